package dataplane

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/netnstest"
)

// TestWatchP2SurvivesAnOverrun overflows the socket before anybody reads it:
// that is one notice, and later changes are noticed as before.
func TestWatchP2SurvivesAnOverrun(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	ns := netnstest.New(t)
	k, err := OpenLinux(LinuxOptions{Name: "tenure", NetNS: ns.FD()})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	socket, err := k.subscribe()
	if err != nil {
		t.Fatal(err)
	}
	if err := socket.SetReceiveBufferSize(2048, false); err != nil {
		t.Fatal(err)
	}
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1, Name: "lo"}}
	change := func() {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 5, 1, 1), Mask: net.CIDRMask(32, 32)}}
		if err := k.handle.AddrReplace(lo, a); err != nil {
			t.Fatal(err)
		}
		if err := k.handle.AddrDel(lo, a); err != nil {
			t.Fatal(err)
		}
	}
	for range 10000 { // two notices each
		change()
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	notices := k.watch(ctx, socket)
	quiet := false
	for !quiet { // what was left in the buffer, and the overrun itself
		select {
		case _, alive := <-notices:
			if !alive {
				t.Fatal("the overrun ended it")
			}
		case <-time.After(200 * time.Millisecond):
			quiet = true
		}
	}
	change()
	select {
	case <-notices:
	case <-time.After(5 * time.Second):
		t.Fatal("deaf after an overrun")
	}
	cancel()
	for range notices {
	}
}

// TestWatchNoticesTheFence: a filter or its qdisc that somebody deletes or adds
// is noticed, not only found by the timer.
func TestWatchNoticesTheFence(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	ns := netnstest.New(t)
	k, err := OpenLinux(LinuxOptions{Name: "tenure", NetNS: ns.FD()})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	notices, err := k.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	clsact := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: 1, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}}
	for _, change := range []func(netlink.Qdisc) error{k.handle.QdiscAdd, k.handle.QdiscDel} {
		if err := change(clsact); err != nil {
			t.Fatal(err)
		}
		select {
		case <-notices:
		case <-time.After(5 * time.Second):
			t.Fatal("not noticed")
		}
	}
}

// TestWatchNoticesForwarding: a switch under /proc that somebody turns.
func TestWatchNoticesForwarding(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	ns := netnstest.New(t)
	k, err := OpenLinux(LinuxOptions{Name: "tenure", NetNS: ns.FD()})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	notices, err := k.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{ipForward, forwardingOf("lo")} {
		for _, value := range []string{"1", "0"} {
			if err := k.Apply(ctx, Op{Change: SetSysctl{path, value}}); err != nil {
				t.Fatal(err)
			}
			select {
			case <-notices:
			case <-time.After(5 * time.Second):
				t.Fatalf("%s = %s is not noticed", path, value)
			}
		}
	}
}

func TestMatters(t *testing.T) {
	neigh := func(kind uint16, state uint16) syscall.NetlinkMessage {
		m := syscall.NetlinkMessage{Data: make([]byte, unix.SizeofNdMsg)}
		m.Header.Type = kind
		m.Data[8], m.Data[9] = byte(state), byte(state>>8)
		return m
	}
	for _, c := range []struct {
		name string
		msg  syscall.NetlinkMessage
		want bool
	}{
		{"resolved neighbour", neigh(unix.RTM_NEWNEIGH, netlink.NUD_REACHABLE), false},
		{"stale neighbour", neigh(unix.RTM_NEWNEIGH, netlink.NUD_STALE), false},
		{"permanent neighbour", neigh(unix.RTM_NEWNEIGH, netlink.NUD_PERMANENT), true},
		{"deleted neighbour", neigh(unix.RTM_DELNEIGH, netlink.NUD_STALE), true},
		{"route", syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWROUTE}}, true},
	} {
		if got := matters(c.msg); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
