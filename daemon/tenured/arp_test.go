package main

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/netnstest"
)

// TestAddressSilent asks on a wire with one other machine, in either family.
func TestAddressSilent(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	us, other := netnstest.New(t), netnstest.New(t)
	cable(t, us, other, "192.0.2.2/24", "2001:db8::2/64")
	for _, c := range []struct {
		name, ip string
		silent   bool
	}{
		{"nobody has it", "192.0.2.1", true},
		{"the other machine has it", "192.0.2.2", false},
		{"nobody has the IPv6 one", "2001:db8::1", true},
		{"the other machine has the IPv6 one", "2001:db8::2", false},
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
	for _, ip := range []string{"192.0.2.1", "2001:db8::1"} {
		if err := us.Do(func() error {
			_, err := addressSilent(t.Context(), "eth9", netip.MustParseAddr(ip))
			return err
		}); err == nil {
			t.Errorf("a link that does not exist was probed for %s", ip)
		}
	}
}

// cable joins two machines by eth0 and gives the other one addresses.
func cable(t *testing.T, us, other *netnstest.NS, addrs ...string) {
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
	far, err := o.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range addrs {
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			t.Fatal(err)
		}
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD // it has long had it
		}
		if err := o.AddrAdd(far, a); err != nil {
			t.Fatal(err)
		}
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

// TestClaims6: what another machine's neighbour messages say of an address.
func TestClaims6(t *testing.T) {
	ip := netip.MustParseAddr("2001:db8::1")
	with := func(f func(b []byte)) []byte {
		b := solicitation(ip)
		f(b)
		return b
	}
	from := func(b []byte, a string) { v := netip.MustParseAddr(a).As16(); copy(b[8:], v[:]) }
	answer := func(of string) []byte {
		return with(func(b []byte) {
			b[ipv6Header] = ndpAdvertise
			from(b, "fe80::2")
			v := netip.MustParseAddr(of).As16()
			copy(b[ipv6Header+8:], v[:])
		})
	}
	for name, c := range map[string]struct {
		packet []byte
		want   bool
	}{
		"an answer":                 {answer("2001:db8::1"), true},
		"a probe":                   {solicitation(ip), true},
		"a question from there":     {with(func(b []byte) { from(b, "2001:db8::1"); b[ipv6Header+23] = 7 }), true},
		"an answer about another":   {answer("2001:db8::7"), false},
		"a neighbour asking for us": {with(func(b []byte) { from(b, "fe80::2") }), false},
		"from another link":         {with(func(b []byte) { b[7] = 64 }), false},
		"another message":           {with(func(b []byte) { b[ipv6Header] = 134 }), false},
		"another protocol":          {with(func(b []byte) { b[6] = unix.IPPROTO_UDP }), false},
		"IPv4":                      {with(func(b []byte) { b[0] = 4 << 4 }), false},
		"cut short":                 {solicitation(ip)[:ndpLength-1], false},
		"nothing":                   {nil, false},
	} {
		if got := claims6(c.packet, ip); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
	// A message whose sum is in it adds up to nothing.
	if b := solicitation(ip); icmp6Sum(b) != 0 {
		t.Errorf("the sum of a probe is %#x", icmp6Sum(b))
	}
}
