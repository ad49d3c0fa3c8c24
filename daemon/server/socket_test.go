package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func socketPath(t *testing.T) string { return filepath.Join(t.TempDir(), "run", "tenured.sock") }

func TestSocketIsForItsOwnerOnly(t *testing.T) {
	old := unix.Umask(0o022)
	defer unix.Umask(old)
	path := socketPath(t)
	listen(t, path)
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("mode %v, want a socket with 0600", info.Mode())
	}
	if now := unix.Umask(0o022); now != 0o022 {
		t.Errorf("Listen left the process with the mask %#o", now)
	}
	if dir, err := os.Stat(filepath.Dir(path)); err != nil || dir.Mode().Perm() != 0o755 {
		t.Errorf("directory: %v, %v", dir.Mode(), err)
	}
}

func TestClosingRemovesTheSocket(t *testing.T) {
	path := socketPath(t)
	if err := listen(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// stale leaves a socket as a killed daemon does.
func stale(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenured.sock")
	stale(t, path)
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	listen(t, path)
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v), want that of a new socket", info.Mode(), err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("nobody listens on the new socket: %v", err)
	}
	_ = c.Close()
}

func TestLiveSocketIsLeftAlone(t *testing.T) {
	path := socketPath(t)
	first := listen(t, path)
	before := inode(t, path)
	if l, err := Listen(path); !errors.Is(err, ErrInUse) {
		if err == nil {
			_ = l.Close()
		}
		t.Fatalf("second Listen: %v, want ErrInUse", err)
	}
	if inode(t, path) != before {
		t.Error("the live daemon's socket was replaced")
	}
	// The first daemon got the look of the second, and answers on.
	for range 2 {
		go func() {
			if c, err := net.Dial("unix", path); err == nil {
				_ = c.Close()
			}
		}()
		c, err := first.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
}

// TestOtherFilesAreLeftAlone: --socket may be mistyped, and the daemon is root.
func TestOtherFilesAreLeftAlone(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"regular file": func(path string) error { return os.WriteFile(path, []byte("precious"), 0o600) },
		"empty file":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"directory":    func(path string) error { return os.Mkdir(path, 0o700) },
		"symlink":      func(path string) error { return os.Symlink("elsewhere", path) },
		"fifo":         func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tenured.sock")
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			leftAlone(t, path)
		})
	}
	t.Run("symlink to a stale socket", func(t *testing.T) {
		dir := t.TempDir()
		target, path := filepath.Join(dir, "target"), filepath.Join(dir, "tenured.sock")
		stale(t, target)
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		leftAlone(t, path)
		if _, err := os.Lstat(target); err != nil {
			t.Errorf("what the link points to: %v", err)
		}
	})
}

func leftAlone(t *testing.T, path string) {
	t.Helper()
	before := inode(t, path)
	l, err := Listen(path)
	if !errors.Is(err, ErrNotASocket) {
		if err == nil {
			_ = l.Close()
		}
		t.Errorf("Listen: %v, want ErrNotASocket", err)
	} else if !strings.Contains(err.Error(), path) {
		t.Errorf("the error does not name the file: %v", err)
	}
	if inode(t, path) != before {
		t.Error("it was replaced")
	}
}

// inode fails the test if nothing lies at path.
func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return st.Ino
}

func TestListenWhereNoDirectoryCanBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(filepath.Join(file, "tenured.sock")); err == nil {
		_ = l.Close()
		t.Error("it listens below a file")
	}
}

// TestPeerCredentials asks as root and as somebody who got hold of the socket
// although its mode forbids it.
func TestPeerCredentials(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root")
	}
	path := filepath.Join(t.TempDir(), "tenured.sock")
	l := listen(t, path)
	serveFor(t, l, Handlers{Status: okStatus})
	// Let everybody in, as far as files go.
	for _, p := range []string{path, filepath.Dir(path), filepath.Dir(filepath.Dir(path))} {
		if err := os.Chmod(p, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		uid  int
		want string
	}{{0, "200 OK"}, {65534, "403 Forbidden"}} {
		got, err := askAs(c.uid, path)
		if err != nil {
			t.Fatalf("ask as user %d: %v", c.uid, err)
		}
		if line, _, _ := strings.Cut(got, "\r\n"); line != "HTTP/1.1 "+c.want {
			t.Errorf("user %d is answered %q, want %s", c.uid, line, c.want)
		}
		if secret := strings.Contains(got, `"node"`); secret != (c.uid == 0) {
			t.Errorf("user %d is told the status: %t", c.uid, secret)
		}
	}
}

// askAs sends one request from a thread with the given user, which is the
// thread's own: the call goes to the kernel past Go's view of the process.
func askAs(uid int, path string) (answer string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
			err = fmt.Errorf("setresuid: %w", e)
			return
		}
		var fd int
		if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		defer func() { _ = unix.Close(fd) }()
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			return
		}
		if _, err = unix.Write(fd, []byte("GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")); err != nil {
			return
		}
		buf := make([]byte, 4096)
		for {
			n, e := unix.Read(fd, buf)
			if n <= 0 {
				err = e
				return
			}
			answer += string(buf[:n])
		}
	}()
	<-done
	return answer, err
}

func TestNobodyIsAllowedWithoutCredentials(t *testing.T) {
	if allowed(context.Background()) {
		t.Error("a caller without credentials is allowed")
	}
	me := &unix.Ucred{Uid: uint32(os.Geteuid())}
	if !allowed(context.WithValue(context.Background(), peerKey{}, me)) {
		t.Error("the daemon's own user is not allowed")
	}
	other := &unix.Ucred{Uid: uint32(os.Geteuid()) + 12345}
	if allowed(context.WithValue(context.Background(), peerKey{}, other)) {
		t.Error("another user is allowed")
	}
}
