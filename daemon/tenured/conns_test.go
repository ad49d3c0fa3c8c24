package main

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/test/netnstest"
)

// TestConnectionsFollowTheAddresses: one from an address that is gone is given
// up, and only that.
func TestConnectionsFollowTheAddresses(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	ns := netnstest.New(t)
	again := 0
	c := connections{onAgain: func() { again++ }}
	open := map[string]net.Conn{}
	err := ns.Do(func() error {
		if out, err := exec.Command("sh", "-ec", "ip addr add 192.0.2.1/32 dev lo; ip addr add 192.0.2.2/32 dev lo; ip link set lo up").CombinedOutput(); err != nil {
			return errors.Join(err, errors.New(string(out)))
		}
		for _, addr := range []string{"127.0.0.1", "192.0.2.1", "192.0.2.2"} {
			l, err := net.Listen("tcp", addr+":0")
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = l.Close() })
			// To itself: the kernel takes the same address as the source.
			if open[addr], err = c.dial(t.Context(), l.Addr().String()); err != nil {
				return err
			}
			t.Cleanup(func() { _ = open[addr].Close() })
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if again != 2 {
		t.Errorf("%d of three connections came after another, want 2", again)
	}
	if n := c.closeFrom([]netip.Addr{ip("192.0.2.1"), ip("192.0.2.2")}); n != 0 {
		t.Errorf("%d were closed, and no address is gone", n)
	}
	if n := c.closeFrom([]netip.Addr{ip("192.0.2.2")}); n != 1 || len(c.open) != 2 {
		t.Errorf("%d were closed, %d are left, want 1 and 2", n, len(c.open))
	}
	for addr, conn := range open {
		gone := errors.Is(conn.SetDeadline(time.Now().Add(time.Minute)), net.ErrClosed)
		if gone != (addr == "192.0.2.1") {
			t.Errorf("connection from %s: closed is %t", addr, gone)
		}
	}
	// One that gRPC closed is forgotten with the next.
	_ = open["192.0.2.2"].Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	conn, err := c.dial(t.Context(), l.Addr().String())
	if err != nil || len(c.open) != 2 {
		t.Errorf("%d are known (%v), want the two on loopback", len(c.open), err)
	}
	if conn != nil {
		_ = conn.Close()
	}
	_ = l.Close()
	if _, err := c.dial(t.Context(), l.Addr().String()); err == nil {
		t.Error("a connection to nobody")
	}
	if again != 3 {
		t.Errorf("told %d times of a new connection, want 3", again)
	}
}

// TestUnderlayTellsAddresses: all of them, also what it would not announce.
func TestUnderlayTellsAddresses(t *testing.T) {
	m := newMachine(t)
	m.link("eth0", "192.0.2.11/24", "192.0.2.12/24 deprecated", "2001:db8::1/64")
	m.link("tenure.1", "10.5.1.0/32")
	u := m.underlay(conf.Daemon{Ifaces: []string{"eth0"}})
	var told []netip.Addr
	u.onLook = func(present []netip.Addr) int { told = present; return 1 }
	u.look(t.Context())
	for _, want := range []string{"192.0.2.11", "192.0.2.12", "2001:db8::1", "10.5.1.0"} {
		if !slices.Contains(told, ip(want)) {
			t.Errorf("%s is not among %v", want, told)
		}
	}
}
