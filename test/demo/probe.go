package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/tenure-cni/tenure/test/lab"
)

// askTimeout bounds one connection.
const askTimeout = 5 * time.Second

// serve answers every connection to the port with the address it came from.
func serve(ctx context.Context, ns *lab.NS, port string) (stop func(), err error) {
	l, err := ns.Listen(ctx, "tcp", ":"+port)
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			_, _ = fmt.Fprint(c, "the server saw ", host)
			_ = c.Close()
		}
	})
	return func() { _ = l.Close(); wg.Wait() }, nil
}

// ask connects and returns what the server says.
func ask(ctx context.Context, ns *lab.NS, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c, err := ns.Dial(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(askTimeout)); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// Beats between two pods: one datagram every beatEvery, and an answer counts
// when it comes within beatWait.
const (
	beatEvery = 20 * time.Millisecond
	beatWait  = 200 * time.Millisecond
)

// heart sends datagrams to an echo in another pod and remembers when the last
// answered one was sent.
type heart struct {
	mu   sync.Mutex
	last time.Time
	stop func()
}

// beat starts one.
func beat(ctx context.Context, from, to *lab.Pod) (*heart, error) {
	var echo net.PacketConn
	if err := to.Do(func() (err error) {
		echo, err = net.ListenPacket("udp", netip.AddrPortFrom(to.IP, 7).String())
		return err
	}); err != nil {
		return nil, err
	}
	c, err := from.Dial(ctx, "udp", netip.AddrPortFrom(to.IP, 7).String())
	if err != nil {
		_ = echo.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	h := &heart{}
	h.stop = func() { cancel(); _ = echo.Close(); _ = c.Close(); wg.Wait() }
	wg.Go(func() {
		b := make([]byte, 64)
		for {
			n, addr, err := echo.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(b[:n], addr)
		}
	})
	wg.Go(func() { h.run(ctx, c) })
	return h, nil
}

func (h *heart) run(ctx context.Context, c net.Conn) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	b := make([]byte, 64)
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		sent := time.Now()
		want := fmt.Sprint(n)
		if _, err := fmt.Fprint(c, want); err != nil {
			continue
		}
		_ = c.SetReadDeadline(sent.Add(beatWait))
		for {
			got, err := c.Read(b)
			if err != nil {
				break
			}
			if string(b[:got]) == want {
				h.mu.Lock()
				h.last = sent
				h.mu.Unlock()
				break
			}
		}
	}
}

// lastAnswered is when the last datagram that was answered had been sent.
func (h *heart) lastAnswered() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}
