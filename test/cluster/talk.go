package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/lab"
)

// Serve answers every TCP connection to the port, on any address of the
// namespace, with the address that it seems to come from.
func Serve(ctx context.Context, t testing.TB, at *lab.NS, port int) {
	t.Helper()
	ln, err := at.Listen(ctx, "tcp4", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			_, _ = io.WriteString(c, host)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
}

// askTime bounds one question; the answer takes a millisecond.
const askTime = time.Second

// Ask connects to what Serve serves and returns whom the server saw.
func Ask(ctx context.Context, from *lab.NS, to netip.Addr, port int) (seen netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	c, err := from.Dial(ctx, "tcp4", netip.AddrPortFrom(to, uint16(port)).String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(askTime)); err != nil {
		return netip.Addr{}, err
	}
	b, err := io.ReadAll(c)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("read from %s: %w", to, err)
	}
	return netip.ParseAddr(string(b))
}

// Seen makes sure that a connection arrives, in good time, and that the server
// sees it come from the given address.
func Seen(ctx context.Context, t testing.TB, from *lab.NS, to netip.Addr, port int, as netip.Addr) {
	t.Helper()
	Eventually(ctx, t, 10*time.Second, fmt.Sprintf("%s to %s:%d, seen as %s", from.Name(), to, port, as), func() error {
		seen, err := Ask(ctx, from, to, port)
		if err == nil && seen != as {
			err = fmt.Errorf("seen as %s", seen)
		}
		return err
	})
}

// Unseen makes sure that no connection comes about.
func Unseen(ctx context.Context, t testing.TB, from *lab.NS, to netip.Addr, port int) {
	t.Helper()
	if seen, err := Ask(ctx, from, to, port); err == nil {
		t.Errorf("%s to %s:%d: connected, seen as %s", from.Name(), to, port, seen)
	}
}
