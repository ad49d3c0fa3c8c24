package fence

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"time"
	"unsafe"
)

// Subnets is one prefix per family. The zero prefix says that the family is
// absent.
type Subnets struct {
	V4, V6 netip.Prefix
}

// Network is the cluster's whole address range, out of which subnets are
// leased: one prefix per family, in the same form.
type Network = Subnets

// IsZero reports whether both families are absent.
func (s Subnets) IsZero() bool { return s == Subnets{} }

// String lists the prefixes that are present.
func (s Subnets) String() string {
	switch {
	case s.IsZero():
		return "none"
	case !s.V6.IsValid():
		return s.V4.String()
	case !s.V4.IsValid():
		return s.V6.String()
	}
	return s.V4.String() + "," + s.V6.String()
}

// check says what is wrong with a pair that Set is asked to put in force.
func check(subnets Subnets, network Network) error {
	for _, p := range []netip.Prefix{subnets.V4, subnets.V6, network.V4, network.V6} {
		if p.IsValid() && p != p.Masked() {
			return fmt.Errorf("%s has host bits set", p)
		}
	}
	for _, p := range []netip.Prefix{subnets.V4, network.V4} {
		if p.IsValid() && !p.Addr().Is4() {
			return fmt.Errorf("%s is not an IPv4 prefix", p)
		}
	}
	for _, p := range []netip.Prefix{subnets.V6, network.V6} {
		if p.IsValid() && (!p.Addr().Is6() || p.Addr().Is4In6()) {
			return fmt.Errorf("%s is not an IPv6 prefix", p)
		}
	}
	return errors.Join(within(subnets.V4, network.V4), within(subnets.V6, network.V6))
}

func within(subnet, network netip.Prefix) error {
	if !subnet.IsValid() {
		return nil
	}
	if !network.IsValid() {
		return fmt.Errorf("subnet %s has no Network of its family", subnet)
	}
	if subnet.Bits() < network.Bits() || !network.Contains(subnet.Addr()) {
		return fmt.Errorf("subnet %s is not inside Network %s", subnet, network)
	}
	return nil
}

// state is the value the program reads: the deadline together with the
// addresses it was proven for. The program addresses the fields by their
// offsets in this struct; every field is naturally aligned and there is no
// padding. Changing it means changing layout.
type state struct {
	Deadline uint64 // CLOCK_BOOTTIME in nanoseconds, 0 for closed; written as one word
	V4       family[[4]byte]
	V6       family[[16]byte]
}

// family is what one address family is judged by.
type family[A addr] struct {
	Network, Subnet block[A]
}

// block is a prefix in network byte order. An address x is inside when
// x & Mask == Base. The absent block has Mask 0 and Base all ones, which no
// address can meet: a family without a Network is inside nothing, and one
// without a subnet is at home nowhere, with no special case in the program.
type block[A addr] struct {
	Base, Mask A
}

type addr interface{ [4]byte | [16]byte }

const stateSize = uint32(unsafe.Sizeof(state{}))

func encode(subnets Subnets, network Network, deadline time.Duration) state {
	return state{
		Deadline: uint64(max(deadline, 0)),
		V4:       family[[4]byte]{Network: block4(network.V4), Subnet: block4(subnets.V4)},
		V6:       family[[16]byte]{Network: block6(network.V6), Subnet: block6(subnets.V6)},
	}
}

func block4(p netip.Prefix) (b block[[4]byte]) {
	if p.IsValid() {
		b.Base = p.Addr().As4()
	}
	fill(b.Base[:], b.Mask[:], p)
	return b
}

func block6(p netip.Prefix) (b block[[16]byte]) {
	if p.IsValid() {
		b.Base = p.Addr().As16()
	}
	fill(b.Base[:], b.Mask[:], p)
	return b
}

// fill sets the mask of p, or makes the block absent.
func fill(base, mask []byte, p netip.Prefix) {
	for i := range mask {
		if !p.IsValid() {
			base[i] = 0xff
			continue
		}
		if n := min(max(p.Bits()-8*i, 0), 8); n > 0 {
			mask[i] = 0xff << (8 - n)
		}
	}
}

func decode(s state) (subnets Subnets, network Network, err error) {
	var errs [4]error
	subnets.V4, errs[0] = prefix(netip.AddrFrom4(s.V4.Subnet.Base), s.V4.Subnet.Mask[:])
	subnets.V6, errs[1] = prefix(netip.AddrFrom16(s.V6.Subnet.Base), s.V6.Subnet.Mask[:])
	network.V4, errs[2] = prefix(netip.AddrFrom4(s.V4.Network.Base), s.V4.Network.Mask[:])
	network.V6, errs[3] = prefix(netip.AddrFrom16(s.V6.Network.Base), s.V6.Network.Mask[:])
	return subnets, network, errors.Join(errs[:]...)
}

// prefix is the inverse of block4 and block6.
func prefix(base netip.Addr, mask []byte) (netip.Prefix, error) {
	n := 0
	for _, b := range mask {
		n += bits.LeadingZeros8(^b)
		if b != 0xff {
			break
		}
	}
	p := netip.PrefixFrom(base, n)
	if p == p.Masked() {
		return p, nil
	}
	if n == 0 {
		return netip.Prefix{}, nil
	}
	return netip.Prefix{}, fmt.Errorf("%s with mask %x is no prefix", base, mask)
}
