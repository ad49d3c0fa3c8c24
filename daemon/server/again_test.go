package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// watched is a socket that is watched until the test ends.
type watched struct {
	*Socket
	path string

	mu    sync.Mutex
	ahead int          // how often something was done ahead of listening again
	found bool         // whether it could be connected to then
	log   bytes.Buffer // of Watch
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(b)
}

func (w *watched) logged(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Count(w.log.String(), what)
}

func watch(t *testing.T) *watched {
	t.Helper()
	w := &watched{path: socketPath(t)}
	var err error
	if w.Socket, err = Listen(w.path); err != nil {
		t.Fatal(err)
	}
	serveFor(t, w, Handlers{Status: okStatus})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- w.Watch(ctx, slog.New(slog.NewTextHandler(w, nil)), func(context.Context) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ahead++
			_, err := os.Lstat(w.path)
			w.found = w.found || err == nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("watch: %v", err)
		}
	})
	return w
}

// eventually waits for a condition, for three looks of Watch.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(3 * watchEvery); !is(); {
		select {
		case <-end:
			t.Fatalf("it never came about: %s", what)
		case <-tick.C:
		}
	}
}

func listens(path string) bool {
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

// ask sends a request over a connection that stays open.
func ask(t *testing.T, c net.Conn) string {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		return err.Error()
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err.Error()
	}
	return answer.Status
}

// TestRemovedSocketIsMadeAgain: a daemon that nobody can reach is of no use,
// and those who did reach it are not disturbed.
func TestRemovedSocketIsMadeAgain(t *testing.T) {
	w := watch(t)
	c, err := net.Dial("unix", w.path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for i, remove := range []func() error{
		func() error { return os.Remove(w.path) },
		func() error { return os.RemoveAll(filepath.Dir(w.path)) },
		func() error { // a dead daemon's comes into its place
			err := os.Remove(w.path)
			stale(t, w.path)
			return err
		},
	} {
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it listens again", func() bool { return listens(w.path) })
		info, err := os.Lstat(w.path)
		if err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("the new file: %v, %v", info.Mode(), err)
		}
		w.mu.Lock()
		if w.ahead != i+1 || w.found && i < 2 {
			t.Errorf("ahead of it was called %d times, want %d, before there is a file", w.ahead, i+1)
		}
		w.mu.Unlock()
		eventually(t, "it is told", func() bool { return w.logged("listening again") == i+1 })
		if got := ask(t, c); got != "200 OK" {
			t.Errorf("who was connected is answered %q", got)
		}
		anew, err := net.Dial("unix", w.path)
		if err != nil {
			t.Fatal(err)
		}
		if got := ask(t, anew); got != "200 OK" {
			t.Errorf("on the new socket it answers %q", got)
		}
		_ = anew.Close()
	}
}

// TestOthersInTheSocketsPlace: they are left alone, told once, and the socket
// comes back when they have gone.
func TestOthersInTheSocketsPlace(t *testing.T) {
	w := watch(t)
	if err := os.Remove(w.path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two tries", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.ahead >= 2 })
	if b, err := os.ReadFile(w.path); err != nil || string(b) != "precious" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	if n := w.logged("cannot be made again"); n != 1 {
		t.Errorf("it was told %d times", n)
	}
	if err := os.Remove(w.path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it listens again", func() bool { return listens(w.path) })
}

// TestClosingLeavesOthers: only its own file goes with the socket, and a
// closed one stays closed.
func TestClosingLeavesOthers(t *testing.T) {
	w, err := Listen(socketPath(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(w.path); err != nil {
		t.Fatal(err)
	}
	other := listen(t, w.path)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if !listens(w.path) {
		t.Error("the other daemon's socket is gone")
	}
	if _, err := w.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.again(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(w.path); !errors.Is(err, fs.ErrNotExist) || !w.inPlace() {
		t.Errorf("a closed socket listens again: %v", err)
	}
}

// TestListenMasksNoOthers: the daemon makes files while it listens again.
func TestListenMasksNoOthers(t *testing.T) {
	dir, done := t.TempDir(), make(chan struct{})
	go func() {
		defer close(done)
		for range 200 {
			l, err := Listen(filepath.Join(dir, "run", "tenured.sock"))
			if err != nil {
				t.Error(err)
				return
			}
			_ = l.Close()
		}
	}()
	for busy := true; busy; {
		select {
		case <-done:
			busy = false
		default:
		}
		sub := filepath.Join(dir, "sub")
		if err := os.Mkdir(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(sub); err != nil || info.Mode().Perm() != 0o755 {
			t.Fatalf("a directory made meanwhile: %v, %v", info.Mode(), err)
		}
		if err := os.Remove(sub); err != nil {
			t.Fatal(err)
		}
	}
}
