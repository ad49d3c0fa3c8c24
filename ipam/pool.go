package ipam

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
)

// Gateway returns the address that a subnet's own node bears on its bridge:
// the first one after the subnet's base, in both families.
func Gateway(subnet netip.Prefix) netip.Addr {
	return subnet.Masked().Addr().Next()
}

// span is an inclusive run of addresses of one family.
type span struct{ first, last netip.Addr }

func (s span) contains(a netip.Addr) bool {
	return s.first.Compare(a) <= 0 && a.Compare(s.last) <= 0
}

// size is the number of addresses in the span, at most MaxUint64.
func (s span) size() uint64 {
	if s.last.Less(s.first) {
		return 0
	}
	firstHi, firstLo := halves(s.first)
	lastHi, lastLo := halves(s.last)
	lo, borrow := bits.Sub64(lastLo, firstLo, 0)
	hi, _ := bits.Sub64(lastHi, firstHi, borrow)
	if hi > 0 || lo == math.MaxUint64 {
		return math.MaxUint64
	}
	return lo + 1
}

// halves reads an address as one 128-bit number.
func halves(a netip.Addr) (hi, lo uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// lastOf is the highest address of a prefix, IPv4's broadcast.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// mergeSpans turns prefixes into disjoint spans in ascending order, so that a
// long excluded stretch is stepped over at once and never counted twice.
func mergeSpans(prefixes []netip.Prefix) []span {
	var all []span
	for _, p := range prefixes {
		if p.IsValid() {
			all = append(all, span{p.Masked().Addr(), lastOf(p)})
		}
	}
	slices.SortFunc(all, func(a, b span) int { return a.first.Compare(b.first) })
	var merged []span
	for _, s := range all {
		if n := len(merged); n > 0 && s.first.Compare(merged[n-1].last) <= 0 {
			if merged[n-1].last.Less(s.last) {
				merged[n-1].last = s.last
			}
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// pool is the set of addresses that pods may have in one subnet: everything
// but the base, the gateway, IPv4's broadcast and what is excluded.
type pool struct {
	subnet   netip.Prefix
	hosts    span
	excluded []span // disjoint, ascending, not clipped to the subnet
}

// newPool returns ErrTooSmall for a subnet without a pod address.
func newPool(subnet netip.Prefix, excluded []span) (pool, error) {
	if !subnet.IsValid() {
		return pool{}, fmt.Errorf("%w: it is not a valid prefix", ErrTooSmall)
	}
	subnet = subnet.Masked()
	if subnet.Addr().BitLen()-subnet.Bits() < 2 {
		return pool{}, fmt.Errorf("%w: %s has no address left beside its gateway", ErrTooSmall, subnet)
	}
	hosts := span{Gateway(subnet).Next(), lastOf(subnet)}
	if subnet.Addr().Is4() {
		hosts.last = hosts.last.Prev()
	}
	return pool{subnet, hosts, excluded}, nil
}

// size is how many addresses a full pool gives, at most MaxUint64.
func (p pool) size() uint64 {
	n := p.hosts.size()
	for _, e := range p.excluded {
		if e.first.BitLen() != p.hosts.first.BitLen() {
			continue
		}
		n -= min(n, span{maxAddr(e.first, p.hosts.first), minAddr(e.last, p.hosts.last)}.size())
	}
	return n
}

// refusal says why a pod may not have a, or nothing if it may.
func (p pool) refusal(a netip.Addr) string {
	switch {
	case !p.subnet.Contains(a):
		return "it is outside " + p.subnet.String()
	case a == p.subnet.Addr():
		return "it is the base of " + p.subnet.String()
	case a == Gateway(p.subnet):
		return "it is the gateway of " + p.subnet.String()
	case !p.hosts.contains(a):
		return "it is the broadcast address of " + p.subnet.String()
	case p.isExcluded(a):
		return "it is excluded by configuration"
	}
	return ""
}

func (p pool) isExcluded(a netip.Addr) bool {
	i := p.excludedFrom(a)
	return i < len(p.excluded) && p.excluded[i].contains(a)
}

// excludedFrom is the index of the first excluded span that ends at a or later.
func (p pool) excludedFrom(a netip.Addr) int {
	i, _ := slices.BinarySearchFunc(p.excluded, a, func(s span, a netip.Addr) int { return s.last.Compare(a) })
	return i
}

// next returns the first free address after the last one handed out, going
// round once. taken is in ascending order.
func (p pool) next(last netip.Addr, taken []slot) (netip.Addr, bool) {
	if !p.hosts.contains(last) {
		return p.gap(p.hosts, taken)
	}
	if a, ok := p.gap(span{last.Next(), p.hosts.last}, taken); ok {
		return a, true
	}
	return p.gap(span{p.hosts.first, last}, taken)
}

// gap returns the lowest address of s that is neither excluded nor taken. Its
// steps are bounded by the taken addresses and the excluded spans, not by the
// size of s.
func (p pool) gap(s span, taken []slot) (netip.Addr, bool) {
	a := s.first
	excluded := p.excluded[p.excludedFrom(a):]
	for a.IsValid() && a.Compare(s.last) <= 0 { // Next of a family's very last address is invalid
		if len(excluded) > 0 && excluded[0].contains(a) {
			a, excluded = excluded[0].last.Next(), excluded[1:]
			continue
		}
		i, found := findSlot(taken, a)
		if !found {
			return a, true
		}
		// A run of taken addresses ends at the next excluded one at the latest.
		for taken = taken[i:]; len(taken) > 0 && taken[0].addr == a; taken = taken[1:] {
			a = a.Next()
		}
		for len(excluded) > 0 && a.IsValid() && excluded[0].last.Less(a) {
			excluded = excluded[1:]
		}
	}
	return netip.Addr{}, false
}

func maxAddr(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return b
	}
	return a
}

func minAddr(a, b netip.Addr) netip.Addr {
	if b.Less(a) {
		return b
	}
	return a
}
