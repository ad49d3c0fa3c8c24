package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Proxy forwards TCP connections from a loopback address to a target. Its
// methods may be called from any goroutine.
type Proxy struct {
	target string
	listen net.Listener
	work   sync.WaitGroup

	mu     sync.Mutex
	state  state
	change chan struct{} // closed and replaced whenever state changes
	conns  map[net.Conn]struct{}
}

type state int

const (
	open    state = iota // bytes flow
	cut                  // no connections
	stalled              // connections stand, no byte flows
	closed               // over
)

// New listens on a free port of 127.0.0.1 and forwards to target ("host:port").
func New(target string) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy to %s: %w", target, err)
	}
	return On(ln, target), nil
}

// On forwards what a listener accepts, which may be one of another network
// namespace. The proxy closes it.
func On(ln net.Listener, target string) *Proxy {
	p := &Proxy{target: target, listen: ln, change: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	p.work.Go(p.accept)
	return p
}

// Addr is where the proxy listens, as "host:port". It stays the same for the
// proxy's life.
func (p *Proxy) Addr() string { return p.listen.Addr().String() }

// Cut resets every connection and each new one at once: the server has crashed.
func (p *Proxy) Cut() { p.set(cut) }

// Stall lets connections stand and new ones be made, but carries no byte: the
// server is behind a black hole. Bytes sent meanwhile arrive after Restore.
func (p *Proxy) Stall() { p.set(stalled) }

// Restore lets everything through again.
func (p *Proxy) Restore() { p.set(open) }

// Close ends all connections and the listener, and waits until both are gone.
func (p *Proxy) Close() error {
	p.set(closed)
	err := p.listen.Close()
	p.work.Wait()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close proxy to %s: %w", p.target, err)
	}
	return nil
}

func (p *Proxy) set(s state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == closed {
		return
	}
	p.state = s
	close(p.change)
	p.change = make(chan struct{})
	if s == cut || s == closed {
		for c := range p.conns {
			reset(c)
		}
	}
}

// hold takes c into the books, unless connections may not be now.
func (p *Proxy) hold(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == cut || p.state == closed {
		reset(c)
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}

// pass waits until bytes may flow and says whether they still may at all.
func (p *Proxy) pass() bool {
	for {
		p.mu.Lock()
		s, change := p.state, p.change
		p.mu.Unlock()
		if s != stalled {
			return s == open
		}
		<-change
	}
}

func (p *Proxy) accept() {
	for {
		c, err := p.listen.Accept()
		if err != nil {
			return // the listener is closed
		}
		if p.hold(c) {
			p.work.Go(func() { p.serve(c) })
		}
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer p.drop(client)
	if !p.pass() {
		return
	}
	var d net.Dialer
	server, err := d.DialContext(context.Background(), "tcp", p.target)
	if err != nil {
		reset(client)
		return
	}
	defer p.drop(server)
	if !p.hold(server) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.copy(server, client) })
	both.Go(func() { p.copy(client, server) })
	both.Wait()
}

// copy carries one direction. An end of file is passed on as such, so that
// half-closed connections work; any other end takes both sides down.
func (p *Proxy) copy(dst, src net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if !p.pass() {
				return
			}
			if _, werr := dst.Write(buf[:n]); werr != nil {
				_ = src.Close()
				return
			}
		}
		if errors.Is(err, io.EOF) {
			if !p.pass() {
				return
			}
			if tcp, ok := dst.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
			}
			return
		}
		if err != nil {
			_ = dst.Close()
			return
		}
	}
}

// reset closes with RST instead of FIN: the other side gets an error at once.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
