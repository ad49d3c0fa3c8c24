package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// echo is a line server that ends with the test.
func echo(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return ln.Addr().String()
}

type client struct {
	net.Conn
	lines *bufio.Reader
}

func dial(t *testing.T, p *Proxy) client {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return client{c, bufio.NewReader(c)}
}

// ask sends a line and waits for its echo, at most as long as given.
func (c client) ask(line string, wait time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return err
	}
	got, err := c.lines.ReadString('\n')
	if err == nil && got != line+"\n" {
		return errors.New("got " + got)
	}
	return err
}

// try makes a connection that may be reset at any point, even while it is made.
func try(p *Proxy) error {
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return client{c, bufio.NewReader(c)}.ask("new", soon)
}

func start(t *testing.T, target string) *Proxy {
	t.Helper()
	p, err := New(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

const (
	soon    = 5 * time.Second
	silence = 60 * time.Millisecond
)

func TestForwards(t *testing.T) {
	p := start(t, echo(t))
	c := dial(t, p)
	if err := c.ask("hello", soon); err != nil {
		t.Fatal(err)
	}
	// A half close reaches the server, whose answer still comes back.
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.lines.ReadByte(); !errors.Is(err, io.EOF) {
		t.Fatalf("after a half close: %v, want EOF", err)
	}
}

func TestCutResetsOldAndNew(t *testing.T) {
	p := start(t, echo(t))
	old := dial(t, p)
	if err := old.ask("before", soon); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	for name, err := range map[string]error{"old": old.ask("during", soon), "new": try(p)} {
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, io.EOF) {
			t.Errorf("%s connection while cut: %v, want a reset", name, err)
		}
	}
	p.Restore()
	if err := dial(t, p).ask("after", soon); err != nil {
		t.Errorf("after Restore: %v", err)
	}
}

func TestStallHoldsBytesUntilRestore(t *testing.T) {
	p := start(t, echo(t))
	old := dial(t, p)
	if err := old.ask("before", soon); err != nil {
		t.Fatal(err)
	}
	p.Stall()
	late := dial(t, p)
	for name, c := range map[string]client{"old": old, "new": late} {
		if err := c.ask("during", silence); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s connection while stalled: %v, want silence", name, err)
		}
	}
	p.Restore()
	for name, c := range map[string]client{"old": old, "new": late} {
		if err := c.SetDeadline(time.Now().Add(soon)); err != nil {
			t.Fatal(err)
		}
		if got, err := c.lines.ReadString('\n'); err != nil || got != "during\n" {
			t.Errorf("%s connection after Restore: %q, %v, want the held line", name, got, err)
		}
	}
}

func TestCutEndsAStall(t *testing.T) {
	p := start(t, echo(t))
	c := dial(t, p)
	p.Stall()
	if err := c.ask("lost", silence); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("while stalled: %v, want silence", err)
	}
	p.Cut()
	if err := c.ask("more", soon); err == nil {
		t.Fatal("the connection outlived Cut")
	}
}

func TestNoServer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := ln.Addr().String()
	_ = ln.Close()
	p := start(t, target)
	if err := try(p); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("without a server: %v, want a prompt error", err)
	}
}

func TestCloseWithOpenConnections(t *testing.T) {
	p, err := New(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	busy, held := dial(t, p), dial(t, p)
	if err := errors.Join(busy.ask("a", soon), held.ask("b", soon)); err != nil {
		t.Fatal(err)
	}
	p.Stall()
	_, _ = io.WriteString(held, "pending\n")
	done := make(chan error, 1)
	go func() { done <- p.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(soon):
		t.Fatal("Close hangs")
	}
}
