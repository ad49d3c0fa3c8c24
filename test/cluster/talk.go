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
	accept(ctx, t, at, "tcp", port, func(c net.Conn) {
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		_, _ = io.WriteString(c, host)
		_ = c.Close()
	})
}

// accept gives each connection to a port, on any address of the namespace, to
// serve, one after the other, until the test ends.
func accept(ctx context.Context, t testing.TB, at *lab.NS, network string, port int, serve func(net.Conn)) {
	t.Helper()
	ln, err := at.Listen(ctx, network, fmt.Sprintf(":%d", port))
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
			serve(c)
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
}

// askTime bounds one question; the answer takes a millisecond.
const askTime = time.Second

// Ask connects to what Serve serves and returns whom the server saw.
func Ask(ctx context.Context, from *lab.NS, to netip.Addr, port int) (seen netip.Addr, err error) {
	return ask(ctx, "tcp", from, netip.AddrPortFrom(to, uint16(port)), readAll)
}

func readAll(c net.Conn) ([]byte, error) { return io.ReadAll(c) }

// readOne sends a datagram and reads the answer.
func readOne(c net.Conn) ([]byte, error) {
	if _, err := c.Write([]byte("?")); err != nil {
		return nil, err
	}
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	return buf[:n], err
}

func ask(ctx context.Context, network string, from *lab.NS, to netip.AddrPort, read func(net.Conn) ([]byte, error)) (seen netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	c, err := from.Dial(ctx, network, to.String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(askTime)); err != nil {
		return netip.Addr{}, err
	}
	b, err := read(c)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("read from %s: %w", to, err)
	}
	return netip.ParseAddr(string(b))
}

// ServeUDP answers every datagram to the port with the address that it seems
// to come from.
func ServeUDP(ctx context.Context, t testing.TB, at *lab.NS, port int) {
	t.Helper()
	var conn net.PacketConn
	err := at.Do(func() (err error) {
		var lc net.ListenConfig
		conn, err = lc.ListenPacket(ctx, "udp4", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64)
		for {
			_, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(from.String())
			_, _ = conn.WriteTo([]byte(host), from)
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
}

// SeenBy is Seen by tcp or, where ServeUDP serves, udp4.
func SeenBy(ctx context.Context, t testing.TB, network string, from *lab.NS, to netip.AddrPort, as netip.Addr) {
	t.Helper()
	read := readAll
	if network == "udp4" {
		read = readOne
	}
	Eventually(ctx, t, 10*time.Second, fmt.Sprintf("%s to %s by %s, seen as %s", from.Name(), to, network, as), func() error {
		seen, err := ask(ctx, network, from, to, read)
		if err == nil && seen != as {
			err = fmt.Errorf("seen as %s", seen)
		}
		return err
	})
}

// Seen makes sure that a connection arrives, in good time, and that the server
// sees it come from the given address.
func Seen(ctx context.Context, t testing.TB, from *lab.NS, to netip.Addr, port int, as netip.Addr) {
	t.Helper()
	SeenBy(ctx, t, "tcp", from, netip.AddrPortFrom(to, uint16(port)), as)
}

// Unseen makes sure that no connection comes about.
func Unseen(ctx context.Context, t testing.TB, from *lab.NS, to netip.Addr, port int) {
	t.Helper()
	if seen, err := Ask(ctx, from, to, port); err == nil {
		t.Errorf("%s to %s:%d: connected, seen as %s", from.Name(), to, port, seen)
	}
}
