package conf

import (
	"fmt"
	"math/big"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// bySum is subnet number i as one works it out by hand: the network's address
// and i times the size of a subnet.
func bySum(network netip.Prefix, length int, i uint64) netip.Prefix {
	sum := new(big.Int).SetBytes(network.Addr().AsSlice())
	size := new(big.Int).Lsh(big.NewInt(1), uint(network.Addr().BitLen()-length))
	sum.Add(sum, size.Mul(size, new(big.Int).SetUint64(i)))
	b := make([]byte, network.Addr().BitLen()/8)
	a, _ := netip.AddrFromSlice(sum.FillBytes(b))
	return netip.PrefixFrom(a, length)
}

// TestSubnetNumbers compares the arithmetic of both families with sums of
// whole numbers, at any place of any network, and back.
func TestSubnetNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most, base := maxSubnetLen, netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "base")))
		if rapid.Bool().Draw(t, "six") {
			most, base = maxSubnet6Len, netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "base6")))
		}
		bits := rapid.IntRange(1, most).Draw(t, "bits")
		network := netip.PrefixFrom(base, bits).Masked()
		length := rapid.IntRange(bits, min(bits+maxSubnetBits, most)).Draw(t, "length")
		last := uint64(1)<<(length-bits) - 1
		i := rapid.OneOf(rapid.Uint64Range(0, last), rapid.Just(last), rapid.Just(last/2), rapid.Just(min(last, 1<<32)), rapid.Just(min(last, 1<<32-1))).Draw(t, "i")
		got, want := nthSubnet(network, length, i), bySum(network, length, i)
		if got != want {
			t.Fatalf("subnet %d of /%d in %s is %s, want %s", i, length, network, got, want)
		}
		inside := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "inside")
		for _, a := range []netip.Addr{got.Addr(), within(got, inside)} {
			if n := subnetNumber(network, length, a); n != i {
				t.Fatalf("%s is in subnet %d of /%d in %s, got %d", a, i, length, network, n)
			}
		}
	})
}

// within is an address of p, with its host bits from noise.
func within(p netip.Prefix, noise []byte) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(b); bit++ {
		b[bit/8] |= noise[bit/8] & (1 << (7 - bit%8))
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// TestPairsHaveOneIndex: in a network of both families the second subnet is at
// the place of the first, in whatever of the network may be handed out, up to
// its very ends.
func TestPairsHaveOneIndex(t *testing.T) {
	for config, pairs := range map[string]map[uint64]string{
		`{"Network":"10.0.0.0/8","SubnetLen":30,"EnableIPv6":true,"IPv6Network":"fd00::/42"}`: {
			0: "10.0.0.0/30 fd00::/64", 1: "10.0.0.4/30 fd00:0:0:1::/64", 1<<22 - 1: "10.255.255.252/30 fd00:0:3f:ffff::/64", 1 << 22: "invalid Prefix invalid Prefix",
		},
		`{"Network":"10.0.0.0/8","SubnetLen":30,"EnableIPv6":true,"IPv6Network":"fd00::/42","SubnetMin":"10.128.0.0"}`: {
			0: "10.128.0.0/30 fd00:0:20::/64", 1<<21 - 1: "10.255.255.252/30 fd00:0:3f:ffff::/64",
		},
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/118","IPv6SubnetLen":126}`: {
			255: "10.5.255.0/24 fd00::3fc/126",
		},
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/32","IPv6SubnetLen":94}`: {
			1<<32 - 1: "fd00::3:ffff:fffc:0:0/94 invalid Prefix", 1 << 32: "fd00:0:0:4::/94 invalid Prefix", 1<<62 - 1: "fd00:0:ffff:ffff:ffff:fffc::/94 invalid Prefix", 1 << 62: "invalid Prefix invalid Prefix",
		},
	} {
		n := mustNetwork(t, config)
		for i, want := range pairs {
			four, six := n.SubnetAt(i), n.Subnet6At(i)
			if got := fmt.Sprint(four, " ", six); got != want {
				t.Errorf("%s: pair %d is %s, want %s", config, i, got, want)
			}
			if back, ok := n.IndexOf(four); four.IsValid() && (!ok || back != i) {
				t.Errorf("%s: %s is number %d, want %d", config, four, back, i)
			}
		}
	}
}

// TestWideningKeepsEveryPair: the wider network has another count of places
// before each subnet, and what is held in the narrower one is still a subnet
// of it: none of them is orphaned.
func TestWideningKeepsEveryPair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(8, 24).Draw(t, "bits")
		narrow := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 173, 86, 219}), bits).Masked()
		wider := netip.PrefixFrom(narrow.Addr(), rapid.IntRange(8, bits).Draw(t, "wider")).Masked()
		before := Network{EnableIPv4: true, Network: narrow, SubnetLen: 24, SubnetMin: narrow.Addr(), SubnetMax: nthSubnet(narrow, 24, 1<<(24-bits)-1).Addr()}
		after := before
		after.Network, after.SubnetMin, after.SubnetMax = wider, wider.Addr(), nthSubnet(wider, 24, 1<<(24-wider.Bits())-1).Addr()
		held := before.SubnetAt(rapid.Uint64Range(0, before.SubnetCount()-1).Draw(t, "held"))
		if faults := Judge(after, []netip.Prefix{held}); len(faults) > 0 {
			t.Fatalf("%s is orphaned by %s: %v", held, wider, faults)
		}
		if i, ok := after.IndexOf(held); !ok || after.SubnetAt(i) != held {
			t.Fatalf("%s is no subnet of %s", held, wider)
		}
	})
}
