package main

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// connections are those to etcd. A connection from an address that this
// machine has lost is dead, but the kernel goes on sending from it to where no
// answer comes back from, and gRPC takes 15 s to notice. The record with the
// new address must not wait for that.
type connections struct {
	// onAgain is called for every connection after the first: what is at its
	// other end may not be the store that was.
	onAgain func()

	mu    sync.Mutex
	again bool
	open  []*net.TCPConn
}

// idleProbe is how long a connection may be idle before the kernel tries it. A
// box in between that forgets idle flows does not see one, and a flow that is
// dropped in silence is given up a second later, for gRPC's user timeout has
// passed by then. gRPC pings only the watch's connection: each of the others
// would cost a call its timeout, and a cycle in which all are dead its lease.
const idleProbe = 5 * time.Second

// connectTime bounds the way to a connection, the name's resolution included: a
// SYN of after 3 s may still come through. It passes again and again while etcd
// is away, and is the longest part of what a node waits when it is back.
const connectTime = 4 * time.Second

// dial is a gRPC dialer. It returns the plain connection: gRPC sets the user
// timeout of no other kind.
func (c *connections) dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{
		Timeout: connectTime,
		// Go lets those who ask for one name wait for one answer. Where the name
		// server was silent that is an old question's, which others keep alive.
		Resolver:        new(net.Resolver),
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: idleProbe, Interval: time.Second, Count: 5},
	}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if c.note(conn) && c.onAgain != nil {
		c.onAgain()
	}
	return conn, nil
}

// note keeps a connection, and says whether there was one before.
func (c *connections) note(conn net.Conn) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if tcp, ok := conn.(*net.TCPConn); ok {
		c.open = append(slices.DeleteFunc(c.open, closed), tcp)
	}
	again, c.again = c.again, true
	return again
}

// closed says whether gRPC has closed a connection meanwhile.
func closed(conn *net.TCPConn) bool {
	raw, err := conn.SyscallConn()
	return err != nil || raw.Control(func(uintptr) {}) != nil
}

// reached are the addresses that there are connections to, sorted.
func (c *connections) reached() []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []netip.Addr
	for _, conn := range c.open {
		if a, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil && !closed(conn) {
			all = append(all, a.Addr().Unmap().WithZone(""))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// closeFrom closes the connections from addresses that are not among those of
// this machine, and says how many. gRPC then makes new ones.
func (c *connections) closeFrom(present []netip.Addr) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.open)
	c.open = slices.DeleteFunc(c.open, func(conn *net.TCPConn) bool {
		local, err := netip.ParseAddrPort(conn.LocalAddr().String())
		lost := err == nil && !local.Addr().IsLoopback() && !slices.Contains(present, local.Addr().Unmap().WithZone(""))
		if lost {
			_ = conn.Close()
		}
		return lost
	})
	return before - len(c.open)
}
