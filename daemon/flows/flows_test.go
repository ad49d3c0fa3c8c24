package flows

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/netnstest"
)

// host is a namespace with connections in it.
type host struct {
	*netnstest.NS
	h *netlink.Handle
}

func newHost(t testing.TB) host {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	ns := netnstest.New(t)
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.FD()), unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return host{ns, h}
}

func (h host) forgetter() *Forgetter {
	return New(netns.NsHandle(h.FD()), slog.New(slog.NewTextHandler(io.Discard, nil)))
}

// connect makes an entry: from one address to another, which answers as a
// third.
func (h host) connect(t testing.TB, port uint16, from, to, answers string) {
	t.Helper()
	f := flow(port, from, to, answers)
	if err := h.h.ConntrackCreate(netlink.ConntrackTable, netlink.InetFamily(f.FamilyType), f); err != nil {
		t.Fatalf("connection of %s to %s: %v", from, to, err)
	}
}

func flow(port uint16, from, to, answers string) *netlink.ConntrackFlow {
	f := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 100}
	if strings.Contains(from, ":") {
		f.FamilyType = unix.AF_INET6
	}
	f.Forward = netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: ip(from), DstIP: ip(to), SrcPort: port, DstPort: 53}
	f.Reverse = netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: ip(answers), DstIP: ip(from), SrcPort: 53, DstPort: port}
	return f
}

func ip(text string) net.IP { return netip.MustParseAddr(text).AsSlice() }

// ports are those of the entries that are there.
func (h host) ports(t testing.TB) (all []uint16) {
	t.Helper()
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		found, err := h.h.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			all = append(all, f.Forward.SrcPort)
		}
	}
	slices.Sort(all)
	return all
}

func run(t *testing.T, f *Forgetter) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// TestForget: the entries of the address are deleted, in whichever direction
// it is in them, and no other's.
func TestForget(t *testing.T) {
	h := newHost(t)
	const pod, other, outside = "10.5.1.2", "10.5.1.3", "198.51.100.10"
	h.connect(t, 1, pod, outside, outside)
	h.connect(t, 2, outside, pod, pod)
	h.connect(t, 3, outside, "192.0.2.11", pod) // a published port
	h.connect(t, 4, pod, other, other)
	h.connect(t, 5, "fd00::2", "fd00::9", "fd00::9")
	h.connect(t, 11, other, outside, outside)
	h.connect(t, 12, outside, "192.0.2.11", other)
	h.connect(t, 13, "10.5.1.20", "10.5.1.22", "10.5.1.22")
	h.connect(t, 14, "fd00::3", "fd00::9", "fd00::9")
	n, err := forget(netns.NsHandle(h.FD()), set{addr(pod): true, addr("fd00::2"): true})
	if err != nil || n != 5 {
		t.Errorf("%d forgotten (%v), want 5", n, err)
	}
	if got, want := h.ports(t), []uint16{11, 12, 13, 14}; !slices.Equal(got, want) {
		t.Errorf("the entries of ports %v are left, want %v", got, want)
	}
}

// TestAwait: whoever gets an address finds it without connections, and keeps
// what it makes.
func TestAwait(t *testing.T) {
	h := newHost(t)
	f := h.forgetter()
	run(t, f)
	for port := range uint16(20) {
		h.connect(t, port, "198.51.100.10", "192.0.2.11", "10.5.1.2")
		f.Forget(addr("10.5.1.2"))
		f.Await(t.Context(), addr("10.5.1.9"), addr("::ffff:10.5.1.2")) // in the middle of a rest, too
		if got := h.ports(t); len(got) != 0 {
			t.Fatalf("the entries of ports %v are left", got)
		}
	}
	h.connect(t, 30, "198.51.100.10", "192.0.2.11", "10.5.1.2")
	f.Forget(addr("10.5.1.3"))
	f.Await(t.Context(), addr("10.5.1.3"))
	if got := h.ports(t); !slices.Equal(got, []uint16{30}) {
		t.Errorf("the entries of ports %v are left, want those of the address's next holder, 30", got)
	}
}

// TestAwaitIsBounded: where nobody forgets, the address is given out all the
// same, and what its holder has is left alone.
func TestAwaitIsBounded(t *testing.T) {
	h := newHost(t)
	f := h.forgetter()
	f.Forget(addr("10.5.1.2"))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	f.Await(ctx, addr("10.5.1.2"))
	h.connect(t, 1, "10.5.1.2", "198.51.100.10", "198.51.100.10")
	run(t, f)
	f.Forget(addr("10.5.1.3"))
	f.Await(t.Context(), addr("10.5.1.3"))
	if got := h.ports(t); !slices.Equal(got, []uint16{1}) {
		t.Errorf("the entries of ports %v are left, want 1", got)
	}
}

// TestAwaitOfOthers does not wait: nobody runs.
func TestAwaitOfOthers(t *testing.T) {
	f := New(netns.None(), slog.New(slog.NewTextHandler(io.Discard, nil)))
	f.Forget(addr("10.5.1.2"))
	began := time.Now()
	f.Await(t.Context(), addr("10.5.1.3"))
	if took := time.Since(began); took > awaitTimeout/2 {
		t.Errorf("an address that nobody had waited %s", took)
	}
}

// TestAttrs: what is cut off or says wrong lengths is read as far as it goes.
func TestAttrs(t *testing.T) {
	whole := attrs{5, 0, 7, 0, 42, 0, 0, 0, 8, 0, 1, 0x80, 1, 2, 3, 4}
	if got := whole.get(7); !slices.Equal(got, attrs{42}) {
		t.Errorf("the first is %v", got)
	}
	if got := whole.get(1); !slices.Equal(got, attrs{1, 2, 3, 4}) {
		t.Errorf("the second, which is nested, is %v", got)
	}
	for n := range len(whole) {
		if got := whole[:n].get(1); got != nil {
			t.Errorf("of %d bytes the second is %v", n, got)
		}
	}
	for _, odd := range []attrs{nil, {0, 0, 1, 0}, {3, 0, 1, 0, 1}, {200, 0, 1, 0, 1}} {
		if got := odd.get(1); got != nil {
			t.Errorf("%v holds %v", odd, got)
		}
	}
}
