package conf

import (
	"encoding/binary"
	"net/netip"
)

// SubnetCount returns how many subnets nodes may hold: those from SubnetMin to
// SubnetMax, or without IPv4 all of IPv6Network.
func (n Network) SubnetCount() uint64 {
	if n.EnableIPv4 {
		return subnetNumber(n.Network, n.SubnetLen, n.SubnetMax) - n.first() + 1
	}
	return 1 << (n.IPv6SubnetLen - n.IPv6Network.Bits())
}

// SubnetAt returns subnet i, counted from 0 at SubnetMin: of IPv4, or without
// it of IPv6. It is the zero Prefix unless i < SubnetCount().
func (n Network) SubnetAt(i uint64) netip.Prefix {
	if i >= n.SubnetCount() {
		return netip.Prefix{}
	}
	if n.EnableIPv4 {
		return nthSubnet(n.Network, n.SubnetLen, n.first()+i)
	}
	return nthSubnet(n.IPv6Network, n.IPv6SubnetLen, i)
}

// Subnet6At returns the IPv6 subnet that belongs to SubnetAt(i) in a dual
// stack network: the one at the same position in IPv6Network, positions being
// counted from the start of each network, so SubnetMin does not shift them. It
// is the zero Prefix for other networks and unless i < SubnetCount().
func (n Network) Subnet6At(i uint64) netip.Prefix {
	if !n.EnableIPv4 || !n.EnableIPv6 || i >= n.SubnetCount() {
		return netip.Prefix{}
	}
	return nthSubnet(n.IPv6Network, n.IPv6SubnetLen, n.first()+i)
}

// IndexOf is the inverse of SubnetAt: SubnetAt(i) == p. It is false for a
// prefix that is none of the subnets a node may acquire.
func (n Network) IndexOf(p netip.Prefix) (uint64, bool) {
	network, length := n.Network, n.SubnetLen
	if !n.EnableIPv4 {
		network, length = n.IPv6Network, n.IPv6SubnetLen
	}
	if p.Bits() != length || p != p.Masked() || !network.Contains(p.Addr()) {
		return 0, false
	}
	number := subnetNumber(network, length, p.Addr())
	if number < n.first() || number-n.first() >= n.SubnetCount() {
		return 0, false
	}
	return number - n.first(), true
}

// first is the number of the first usable subnet within its network.
func (n Network) first() uint64 {
	if !n.EnableIPv4 {
		return 0
	}
	return subnetNumber(n.Network, n.SubnetLen, n.SubnetMin)
}

// nthSubnet returns subnet number i of network, which must have that many.
func nthSubnet(network netip.Prefix, length int, i uint64) netip.Prefix {
	shift := network.Addr().BitLen() - length
	if network.Addr().Is4() {
		b := network.Addr().As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|uint32(i<<shift))
		return netip.PrefixFrom(netip.AddrFrom4(b), length)
	}
	// A shift by 64 and more yields 0 in Go, which is what is meant here.
	high, low := i>>(64-min(shift, 64)), i<<shift
	if shift >= 64 {
		high = i << (shift - 64)
	}
	b := network.Addr().As16()
	binary.BigEndian.PutUint64(b[:8], binary.BigEndian.Uint64(b[:8])|high)
	binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])|low)
	return netip.PrefixFrom(netip.AddrFrom16(b), length)
}

// subnetNumber is the inverse of nthSubnet for an address within network.
func subnetNumber(network netip.Prefix, length int, a netip.Addr) uint64 {
	shift := network.Addr().BitLen() - length
	if a.Is4() {
		from, at := network.Addr().As4(), a.As4()
		return uint64(binary.BigEndian.Uint32(at[:])-binary.BigEndian.Uint32(from[:])) >> shift
	}
	from, at := network.Addr().As16(), a.As16()
	// The network's bits are equal in both, so xor is the difference.
	high := binary.BigEndian.Uint64(at[:8]) ^ binary.BigEndian.Uint64(from[:8])
	low := binary.BigEndian.Uint64(at[8:]) ^ binary.BigEndian.Uint64(from[8:])
	if shift >= 64 {
		return high >> (shift - 64)
	}
	return high<<(64-shift) | low>>shift
}

// Span returns which of the subnets that nodes may hold share addresses with p,
// from the first to before past; false if none does. p may be of any length.
func (n Network) Span(p netip.Prefix) (first, past uint64, ok bool) {
	network, length := n.Network, n.SubnetLen
	if !n.EnableIPv4 {
		network, length = n.IPv6Network, n.IPv6SubnetLen
	}
	if !network.IsValid() || !p.IsValid() || !network.Overlaps(p) {
		return 0, 0, false
	}
	if p.Bits() < network.Bits() {
		p = network
	}
	first, past = subnetNumber(network, length, p.Addr()), 1
	if p.Bits() < length {
		past = 1 << (length - p.Bits())
	}
	past += first
	first, past = max(first, n.first()), min(past, n.first()+n.SubnetCount())
	if first >= past {
		return 0, 0, false
	}
	return first - n.first(), past - n.first(), true
}
