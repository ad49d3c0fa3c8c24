package fence

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

func TestNeverArmedStaysShut(t *testing.T) {
	n1, n2 := twoNodes(t)
	c, s := n1.sender(t, "10.5.1.7"), n2.sink(t)
	passes(t, "the lab itself, without a fence", c, s, "10.5.2.7")
	n1.attach(t)
	drops(t, "attached, never armed", n1.fence, Closed, s, func() { send(t, c, "10.5.2.7", s.port, 1) })
	back, home := n2.sender(t, "10.5.2.7"), n1.sink(t)
	drops(t, "the other way", n1.fence, Closed, home, func() { send(t, back, "10.5.1.7", home.port, 1) })
	must(t, n1.fence.Arm(n1.fence.Generation(), BootTime()))
	drops(t, "armed until now", n1.fence, Closed, s, func() { send(t, c, "10.5.2.7", s.port, 2) })
}

// The process lets go of everything and makes no call: the kernel alone ends it.
func TestDeadlineNeedsNobody(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.attach(t)
	c, s := n1.sender(t, "10.5.1.7"), n2.sink(t)
	n1.armFor(t, 300*time.Millisecond)
	until := n1.fence.Deadline()
	must(t, n1.fence.Release())

	sentBefore := uint64(0) // the last packet surely sent before the deadline
	for number := uint64(1); BootTime() < until+50*time.Millisecond; number++ {
		send(t, c, "10.5.2.7", s.port, number)
		if BootTime() < until {
			sentBefore = number
		}
		if number%64 == 0 { // no faster than the receiver
			eventually(func() bool { return uint64(s.count.Load()) >= number || BootTime() >= until })
		}
	}
	if !eventually(func() bool { return s.last.Load() >= sentBefore }) {
		t.Fatalf("packet %d, before the deadline, did not arrive; %d did", sentBefore, s.last.Load())
	}
	if n := uint64(s.count.Load()); n < sentBefore || n > sentBefore+1 {
		t.Fatalf("%d packets arrived, %d were sent before the deadline", n, sentBefore)
	}

	n1.fence = n1.open(t)
	drops(t, "after the deadline", n1.fence, Closed, s, func() { send(t, c, "10.5.2.7", s.port, 1) })
	n1.armFor(t, time.Minute)
	passes(t, "armed again", c, s, "10.5.2.7")
}

func TestRestartGoesOn(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.attach(t)
	n1.armFor(t, time.Minute)
	until := n1.fence.Deadline()
	must(t, n1.fence.Release())
	n1.fence = n1.open(t)

	if d := n1.fence.Deadline(); d != until {
		t.Errorf("the deadline was %s, after the restart it is %s", until, d)
	}
	if s, n, err := n1.fence.Live(); err != nil || s != ours || n != cluster {
		t.Errorf("after the restart %s in %s is in force, %v", s, n, err)
	}
	if tokens, err := n1.fence.Tokens(); err != nil || len(tokens) != 1 || tokens[n2.mac] != pfx("10.5.2.0/24") {
		t.Errorf("after the restart the tokens are %v, %v", tokens, err)
	}
	if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || !ok {
		t.Errorf("after the restart: attached %t, %v", ok, err)
	}
	c, s := n1.sender(t, "10.5.1.7"), n2.sink(t)
	passes(t, "after the restart", c, s, "10.5.2.7")
	n1.fence.Close()
	drops(t, "closed by the new process", n1.fence, Closed, s, func() { send(t, c, "10.5.2.7", s.port, 1) })
}

// Arming again, another Network, tokens coming and going, a restart and an
// upgrade: none may cost a packet of those that are allowed.
func TestNothingLostUnderFlood(t *testing.T) {
	n1, n2 := twoNodes(t)
	for _, n := range []*node{n1, n2} {
		n.attach(t)
		n.armFor(t, time.Minute)
	}
	c, s := n1.sender(t, "10.5.1.7"), n2.sink(t)
	flood := uint64(0)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for ; ; flood++ {
			select {
			case <-done:
				return
			default:
			}
			send(t, c, "10.5.2.7", s.port, flood)
			if flood%64 == 0 { // no faster than the receiver
				eventually(func() bool { return uint64(s.count.Load()) >= flood })
			}
		}
	})
	networks := []Network{{V4: pfx("10.0.0.0/8")}, cluster}
	arms := 0
	for i, end := 0, time.Now().Add(2*time.Second); time.Now().Before(end); i++ {
		for _, n := range []*node{n1, n2} {
			for range 1000 {
				n.armFor(t, time.Minute)
				arms++
			}
			subnets, _, err := n.fence.Live()
			must(t, err)
			must(t, n.fence.Set(subnets, networks[i%2]))
			must(t, n.fence.Allow(known, pfx("10.5.2.0/24")))
			must(t, n.fence.Allow(n.peerMAC(), n.peerSubnet()))
			if i%4 == 0 {
				must(t, n.fence.Release())
				n.fence = n.open(t)
				n.attach(t)
			}
		}
	}
	close(done)
	wg.Wait()
	if !eventually(func() bool { return uint64(s.count.Load()) == flood }) {
		t.Errorf("%d packets sent, %d arrived", flood, s.count.Load())
	}
	for _, n := range []*node{n1, n2} {
		for r, lost := range count(t, n.fence) {
			if lost != 0 {
				t.Errorf("%d packets dropped for %s", lost, r)
			}
		}
	}
	t.Logf("%d packets under %d arms", flood, arms)
}

func TestAddressesAndTokens(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.attach(t)
	n1.armFor(t, time.Minute)
	out, in := n2.sink(t), n1.sink(t)
	pod, stranded, masqueraded := n1.sender(t, "10.5.1.7"), n1.sender(t, "10.5.3.7"), n1.sender(t, "192.0.2.1")
	remote := n2.sender(t, "10.5.2.7")

	passes(t, "own pod", pod, out, "10.5.2.7")
	passes(t, "masqueraded", masqueraded, out, "10.5.2.7")
	drops(t, "stranded pod", n1.fence, Source, out, func() { send(t, stranded, "10.5.2.7", out.port, 1) })

	passes(t, "for own pod", remote, in, "10.5.1.7")
	passes(t, "for an address outside Network", remote, in, "198.51.100.1")
	n2.routeVia(t, "10.5.3.7/32", 1)
	drops(t, "for a stranded pod", n1.fence, Destination, in, func() { send(t, remote, "10.5.3.7", in.port, 1) })

	must(t, n1.fence.Deny(n2.mac))
	drops(t, "token taken away", n1.fence, Token, in, func() { send(t, remote, "10.5.1.7", in.port, 1) })
	passes(t, "the way out needs no token", pod, out, "10.5.2.7")
	must(t, n1.fence.Allow(n2.mac, pfx("10.5.2.0/24")))
	passes(t, "token given back", remote, in, "10.5.1.7")

	// A later tenant of the same subnet has another MAC; the earlier one is mute.
	later := [6]byte{2, 0, 0, 0, 0, 0x22}
	must(t, n1.fence.Allow(later, pfx("10.5.2.0/24")))
	drops(t, "earlier tenant", n1.fence, Token, in, func() { send(t, remote, "10.5.1.7", in.port, 1) })

	n1.fence.Close()
	drops(t, "closed, own pod", n1.fence, Closed, out, func() { send(t, pod, "10.5.2.7", out.port, 1) })
	drops(t, "closed, masqueraded", n1.fence, Closed, out, func() { send(t, masqueraded, "10.5.2.7", out.port, 1) })
}

// Frames that BPF_PROG_TEST_RUN cannot make: cut short, or with the VLAN tag
// beside the bytes. The kernel's vxlan lets none of the short ones through
// either, so they come over the bare veth.
func TestOddFrames(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.index, n2.index = n1.up(t, underlay).Attrs().Index, n2.up(t, underlay).Attrs().Index
	n1.attach(t)
	n1.armFor(t, time.Minute)
	s := n1.sink(t)
	to := func(from, dst [6]byte, fr []byte) []byte {
		copy(fr[0:6], dst[:])
		copy(fr[6:12], from[:])
		return fr
	}
	v4 := func() []byte { return packet(known, "10.5.2.7", "10.5.1.7") }
	v6 := func() []byte { return packet(known, "2001:db8::1", "2001:db8::2") }
	tagged := func() []byte {
		fr := v4()
		return append(fr[:12:12], append([]byte{0x81, 0, 0, 5}, fr[12:]...)...)
	}
	for _, tc := range []struct {
		name string
		fr   func() []byte
		cut  int
	}{
		{"IPv4 cut short", v4, ethLen + ipv4Len - 1},
		{"no IPv4 at all", v4, ethLen},
		{"IPv6 cut short", v6, ethLen + ipv6Len - 1},
		{"VLAN", tagged, 0},
		{"ARP", func() []byte { return frame(known, 0x0806, make([]byte, 28)) }, 0},
	} {
		fr := tc.fr()
		if tc.cut > 0 {
			fr = fr[:tc.cut]
		}
		drops(t, tc.name+", in", n1.fence, Protocol, s, func() { n2.inject(t, to(n2.mac, n1.mac, fr)) })
		drops(t, tc.name+", out", n1.fence, Protocol, s, func() { n1.inject(t, to(n1.mac, n2.mac, fr)) })
	}
}

// Over the uplink, without a tunnel: only what is within Network is fenced,
// also under a priority tag, which is no VLAN.
func TestUplink(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.index, n2.index = n1.up(t, underlay).Attrs().Index, n2.up(t, underlay).Attrs().Index
	for i, n := range []*node{n1, n2} {
		peer := byte(2 - i)
		must(t, n.h.RouteReplace(&netlink.Route{
			LinkIndex: n.index, Dst: &net.IPNet{IP: net.IPv4(10, 5, peer, 0).To4(), Mask: net.CIDRMask(24, 32)},
			Gw: net.IPv4(192, 0, 2, peer),
		}))
	}
	must(t, n1.fence.AttachUplink(t.Context(), n1.index))
	if ok, err := n1.fence.AttachedUplink(t.Context(), n1.index); err != nil || !ok {
		t.Errorf("attached %t, %v", ok, err)
	}
	if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || ok {
		t.Errorf("as a vxlan device: attached %t, %v", ok, err)
	}
	pod, stranded, host := n1.sender(t, "10.5.1.7"), n1.sender(t, "10.5.3.7"), n1.sender(t, "192.0.2.1")
	s := n2.sink(t)
	passes(t, "host to host, shut", host, s, "192.0.2.2")
	drops(t, "pod to pod, shut", n1.fence, Closed, s, func() { send(t, pod, "10.5.2.7", s.port, 1) })
	n1.armFor(t, time.Minute)
	passes(t, "pod to pod", pod, s, "10.5.2.7")
	passes(t, "host to pod", host, s, "10.5.2.7")
	drops(t, "stranded pod to pod", n1.fence, Source, s, func() { send(t, stranded, "10.5.2.7", s.port, 1) })

	tagged := func(id byte) []byte {
		fr := packet(known, "10.5.2.7", "10.5.3.7")
		return append(fr[:12:12], append([]byte{0x81, 0, 0, id}, fr[12:]...)...)
	}
	drops(t, "a priority tag", n1.fence, Destination, s, func() { n2.inject(t, tagged(0)) })
	before := count(t, n1.fence)
	n2.inject(t, tagged(5))
	n2.inject(t, tagged(0)) // behind it: once this one is counted, the other has been judged
	eventually(func() bool { return count(t, n1.fence)[Destination] > before[Destination] })
	if n := count(t, n1.fence)[Destination] - before[Destination]; n != 1 {
		t.Errorf("of a tagged and a priority tagged frame %d were dropped", n)
	}
}

// Two daemons of one host share an uplink and nothing else.
func TestTwoInstancesOnOneUplink(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.index = n1.up(t, underlay).Attrs().Index
	second, err := Open(Options{Links: []string{underlay}, Instance: "other", NetNS: n1.ns.FD()})
	must(t, err)
	t.Cleanup(func() { _ = second.Release() })
	for _, f := range []*Fence{n1.fence, second} {
		must(t, f.AttachUplink(t.Context(), n1.index))
	}
	for _, f := range []*Fence{n1.fence, second} {
		if ok, err := f.AttachedUplink(t.Context(), n1.index); err != nil || !ok {
			t.Errorf("attached %t, %v", ok, err)
		}
	}
	passes(t, "host to host", n1.sender(t, "192.0.2.1"), n2.sink(t), "192.0.2.2")
}

func TestDeviceMadeAnew(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.attach(t)
	n1.armFor(t, time.Minute)
	until := n1.fence.Deadline()
	c, s := n1.sender(t, "10.5.1.7"), n2.sink(t)

	must(t, n1.h.LinkDel(deviceOf(n1.index)))
	if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || ok {
		t.Errorf("on a device that is gone: attached %t, %v", ok, err)
	}
	if err := n1.fence.Attach(t.Context(), n1.index); err == nil {
		t.Error("attached to a device that is gone")
	}
	n1.addVxlan(t, 1)
	if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || ok {
		t.Errorf("on a bare device: attached %t, %v", ok, err)
	}
	n1.attach(t)
	if d := n1.fence.Deadline(); d != until {
		t.Errorf("the deadline was %s, on the new device it is %s", until, d)
	}
	passes(t, "on the new device", c, s, "10.5.2.7")
	n1.fence.Close()
	drops(t, "on the new device, closed", n1.fence, Closed, s, func() { send(t, c, "10.5.2.7", s.port, 1) })
}

func TestCancelled(t *testing.T) {
	n1, _ := twoNodes(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n1.fence.Attach(ctx, n1.index); err == nil {
		t.Error("attached on a cancelled context")
	}
	if _, err := n1.fence.Attached(ctx, n1.index); err == nil {
		t.Error("looked on a cancelled context")
	}
}

func (n *node) peerMAC() [6]byte {
	m := n.mac
	m[5] = 3 - m[5]
	return m
}

func (n *node) peerSubnet() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, 3 - n.mac[5], 0}), 24)
}

// routeVia sends dst into the overlay, to node i.
func (n *node) routeVia(t *testing.T, dst string, i byte) {
	t.Helper()
	to, err := netlink.ParseIPNet(dst)
	must(t, err)
	must(t, n.h.RouteAdd(&netlink.Route{
		LinkIndex: n.index, Dst: to, Gw: net.IPv4(10, 5, i, 0), Flags: int(netlink.FLAG_ONLINK),
	}))
}
