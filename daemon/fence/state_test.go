package fence

import (
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"
)

func TestCheck(t *testing.T) {
	network := Network{V4: pfx("10.5.0.0/16"), V6: pfx("fd00:5::/48")}
	for _, tc := range []struct {
		name    string
		subnets Subnets
		network Network
		wrong   string // part of the complaint, empty if there must be none
	}{
		{"both families", Subnets{V4: pfx("10.5.1.0/24"), V6: pfx("fd00:5:0:1::/64")}, network, ""},
		{"the whole Network", Subnets{V4: pfx("10.5.0.0/16")}, network, ""},
		{"none held", Subnets{}, network, ""},
		{"nothing at all", Subnets{}, Network{}, ""},
		{"outside", Subnets{V4: pfx("10.6.1.0/24")}, network, "not inside Network"},
		{"wider than Network", Subnets{V4: pfx("10.0.0.0/8")}, network, "not inside Network"},
		{"family without Network", Subnets{V6: pfx("fd00:5:0:1::/64")}, Network{V4: network.V4}, "no Network of its family"},
		{"host bits", Subnets{V4: pfx("10.5.1.1/24")}, network, "host bits"},
		{"families exchanged", Subnets{V4: pfx("fd00:5:0:1::/64")}, network, "not an IPv4 prefix"},
		{"IPv4 as IPv6", Subnets{V6: pfx("10.5.1.0/24")}, network, "not an IPv6 prefix"},
		{"mapped IPv4", Subnets{V6: netip.PrefixFrom(netip.MustParseAddr("::ffff:10.5.1.0"), 120)}, network, "not an IPv6 prefix"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := check(tc.subnets, tc.network)
			if tc.wrong == "" && err != nil {
				t.Fatalf("refused: %v", err)
			}
			if tc.wrong != "" && (err == nil || !strings.Contains(err.Error(), tc.wrong)) {
				t.Fatalf("got %v, want a complaint about %q", err, tc.wrong)
			}
		})
	}
}

func TestStateRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		subnets, network := genPair(t)
		d := time.Duration(rapid.Int64().Draw(t, "deadline"))
		s := encode(subnets, network, d)
		if want := uint64(max(d, 0)); s.Deadline != want {
			t.Fatalf("deadline %d became %d", d, s.Deadline)
		}
		gotSubnets, gotNetwork, err := decode(s)
		if err != nil || gotSubnets != subnets || gotNetwork != network {
			t.Fatalf("%s in %s came back as %s in %s, %v", subnets, network, gotSubnets, gotNetwork, err)
		}
	})
}

func TestDecodeDamaged(t *testing.T) {
	s := encode(Subnets{V4: pfx("10.5.1.0/24")}, Network{V4: pfx("10.5.0.0/16")}, 0)
	s.V4.Network.Mask = [4]byte{255, 0, 255, 0}
	if _, _, err := decode(s); err == nil {
		t.Fatal("a mask with a hole was read as a prefix")
	}
}

// The kernel keeps these bytes over an upgrade: whoever changes them has to
// change the number in the maps' names too, and then this test.
func TestLayout(t *testing.T) {
	var s state
	for _, f := range []struct {
		name      string
		got, want uintptr
	}{
		{"deadline", unsafe.Offsetof(s.Deadline), 0},
		{"v4", unsafe.Offsetof(s.V4), 8},
		{"v4 subnet", unsafe.Offsetof(s.V4) + unsafe.Offsetof(s.V4.Subnet), 16},
		{"v6", unsafe.Offsetof(s.V6), 24},
		{"v6 subnet", unsafe.Offsetof(s.V6) + unsafe.Offsetof(s.V6.Subnet), 56},
		{"mask in v6", unsafe.Offsetof(s.V6.Network.Mask), 16},
		{"state", unsafe.Sizeof(s), 88},
		{"token", unsafe.Sizeof(token{}), tokenSize},
		{"reasons", uintptr(reasons), 5},
	} {
		if f.got != f.want {
			t.Errorf("%s is at %d (or that long), layout 1 has %d", f.name, f.got, f.want)
		}
	}
	for _, name := range []string{liveName, stateName, tokensName, dropsName} {
		if len(name) > 15 || !strings.HasSuffix(name, "_1") {
			t.Errorf("map %s: its name is longer than the kernel keeps, or not of layout 1", name)
		}
	}
	for k := range forms {
		for d := range directions {
			if name := programName(k, d); len(name) > 15 {
				t.Errorf("program %s: its name is longer than the kernel keeps", name)
			}
		}
	}
}

func TestTokenRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := genPrefix4(t, "v4")
		if rapid.Bool().Draw(t, "six") {
			p = genPrefix6(t, "v6")
		}
		got, err := newToken(p).prefix()
		if err != nil || got != p {
			t.Fatalf("%s came back as %s, %v", p, got, err)
		}
	})
	for _, damaged := range []token{{Family: 4, Bits: 33}, {Family: 4, Bits: 8}, {Family: 6, Bits: 129}} {
		if p, err := damaged.prefix(); err == nil {
			t.Errorf("%+v was read as %s", damaged, p)
		}
	}
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func genPrefix4(t *rapid.T, label string) netip.Prefix {
	b := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, label)
	return netip.PrefixFrom(netip.AddrFrom4([4]byte(b)), rapid.IntRange(0, 32).Draw(t, label+" bits")).Masked()
}

func genPrefix6(t *rapid.T, label string) netip.Prefix {
	b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label)
	b[0] |= 0x20 // keep away from the mapped IPv4 addresses
	return netip.PrefixFrom(netip.AddrFrom16([16]byte(b)), rapid.IntRange(3, 128).Draw(t, label+" bits")).Masked()
}

// genPair draws a Network of one, both or no families and a subnet in some.
func genPair(t *rapid.T) (subnets Subnets, network Network) {
	if rapid.IntRange(0, 4).Draw(t, "has v4") > 0 {
		network.V4 = genPrefix4(t, "network v4")
		if rapid.IntRange(0, 4).Draw(t, "holds v4") > 0 {
			subnets.V4 = genInside(t, "subnet v4", network.V4)
		}
	}
	if rapid.IntRange(0, 4).Draw(t, "has v6") > 0 {
		network.V6 = genPrefix6(t, "network v6")
		if rapid.IntRange(0, 4).Draw(t, "holds v6") > 0 {
			subnets.V6 = genInside(t, "subnet v6", network.V6)
		}
	}
	return subnets, network
}

// genInside draws a prefix inside p.
func genInside(t *rapid.T, label string, p netip.Prefix) netip.Prefix {
	a := genAddrNear(t, label, p, 0)
	return netip.PrefixFrom(a, rapid.IntRange(p.Bits(), a.BitLen()).Draw(t, label+" bits")).Masked()
}

// genAddrNear draws an address inside p, with up to flips bits turned anywhere.
func genAddrNear(t *rapid.T, label string, p netip.Prefix, flips int) netip.Addr {
	b := p.Addr().AsSlice()
	noise := rapid.SliceOfN(rapid.Byte(), len(b), len(b)).Draw(t, label)
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= noise[i/8] & (0x80 >> (i % 8))
	}
	for range rapid.IntRange(0, flips).Draw(t, label+" flips") {
		i := rapid.IntRange(0, 8*len(b)-1).Draw(t, label+" bit")
		b[i/8] ^= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
