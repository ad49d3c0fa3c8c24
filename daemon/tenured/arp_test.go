package main

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/tenure-cni/tenure/test/netnstest"
)

// TestAddressSilent asks on a wire with one other machine.
func TestAddressSilent(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	us, other := netnstest.New(t), netnstest.New(t)
	cable(t, us, other, "192.0.2.2/24")
	for _, c := range []struct {
		name, ip string
		silent   bool
	}{
		{"nobody has it", "192.0.2.1", true},
		{"the other machine has it", "192.0.2.2", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := us.Do(func() error {
				silent, err := addressSilent(t.Context(), "eth0", netip.MustParseAddr(c.ip))
				if silent != c.silent {
					t.Errorf("silent: %t, want %t", silent, c.silent)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := us.Do(func() error {
		_, err := addressSilent(t.Context(), "eth9", netip.MustParseAddr("192.0.2.1"))
		return err
	}); err == nil {
		t.Error("a link that does not exist was probed")
	}
}

// cable joins two machines by eth0 and gives the other one an address.
func cable(t *testing.T, us, other *netnstest.NS, addr string) {
	t.Helper()
	h, err := netlink.NewHandleAt(netns.NsHandle(us.FD()))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	o, err := netlink.NewHandleAt(netns.NsHandle(other.FD()))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if err := h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(other.FD())}); err != nil {
		t.Fatal(err)
	}
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		t.Fatal(err)
	}
	far, err := o.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := o.AddrAdd(far, a); err != nil {
		t.Fatal(err)
	}
	for _, end := range []*netlink.Handle{o, h} {
		l, err := end.LinkByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		if err := end.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
}

func TestClaims(t *testing.T) {
	ip := netip.MustParseAddr("192.0.2.1")
	own, other := []byte{2, 0, 0, 0, 0, 1}, []byte{2, 0, 0, 0, 0, 2}
	reply := func(from []byte, sender string) []byte {
		b := arpPacket(from, ip)
		b[7] = 2
		a := netip.MustParseAddr(sender).As4()
		copy(b[14:18], a[:])
		return b
	}
	for name, c := range map[string]struct {
		packet []byte
		want   bool
	}{
		"another's reply":           {reply(other, "192.0.2.1"), true},
		"another's probe":           {arpPacket(other, ip), true},
		"our own probe, echoed":     {arpPacket(own, ip), false},
		"reply about another":       {reply(other, "192.0.2.7"), false},
		"cut short":                 {reply(other, "192.0.2.1")[:20], false},
		"a neighbour asking for us": {func() []byte { b := reply(other, "192.0.2.7"); b[7] = 1; return b }(), false},
		"nothing":                   {nil, false},
	} {
		if got := claims(c.packet, own, ip); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
