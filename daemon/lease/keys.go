package lease

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Subnets is what one key names: an IPv4 subnet, an IPv6 subnet, or both. The
// zero prefix stands for an absent family. It is comparable.
type Subnets struct {
	V4, V6 netip.Prefix
}

// IsZero reports whether neither family is present.
func (s Subnets) IsZero() bool { return !s.V4.IsValid() && !s.V6.IsValid() }

// All lists the families that are present, IPv4 first.
func (s Subnets) All() []netip.Prefix {
	var all []netip.Prefix
	for _, p := range []netip.Prefix{s.V4, s.V6} {
		if p.IsValid() {
			all = append(all, p)
		}
	}
	return all
}

// Overlaps reports whether the two share an address in either family.
func (s Subnets) Overlaps(o Subnets) bool {
	return s.V4.IsValid() && o.V4.IsValid() && s.V4.Overlaps(o.V4) ||
		s.V6.IsValid() && o.V6.IsValid() && s.V6.Overlaps(o.V6)
}

// noV4 is how flannel writes the missing IPv4 half of an IPv6-only key.
const noV4 = "0.0.0.0-0"

// Key is the last element of the subnet's key, in flannel's form:
// 10.5.34.0-24, 10.5.34.0-24&fd00:5:0:22::-64 or 0.0.0.0-0&fd00:5:0:22::-64.
func (s Subnets) Key() string {
	switch {
	case !s.V6.IsValid():
		return dashed(s.V4)
	case !s.V4.IsValid():
		return noV4 + "&" + dashed(s.V6)
	default:
		return dashed(s.V4) + "&" + dashed(s.V6)
	}
}

// ownerKey is the last element of the owner's and the reservation's key: the
// IPv4 name, or for an IPv6-only subnet the IPv6 name.
func (s Subnets) ownerKey() string {
	if s.V4.IsValid() {
		return dashed(s.V4)
	}
	return dashed(s.V6)
}

// String is the subnets as people write them, joined by " & ".
func (s Subnets) String() string {
	var parts []string
	for _, p := range s.All() {
		parts = append(parts, p.String())
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, " & ")
}

func dashed(p netip.Prefix) string {
	return p.Addr().String() + "-" + strconv.Itoa(p.Bits())
}

// ParseSubnets reads the last element of a subnet key. Like flannel it takes
// letters in either case; unlike flannel it refuses host bits.
func ParseSubnets(name string) (Subnets, error) {
	first, second, dual := strings.Cut(strings.ToLower(name), "&")
	a, err := parseDashed(first)
	if err != nil {
		return Subnets{}, fmt.Errorf("subnet key %q: %w", name, err)
	}
	if !dual {
		return place(a, netip.Prefix{}, name)
	}
	b, err := parseDashed(second)
	if err != nil {
		return Subnets{}, fmt.Errorf("subnet key %q: %w", name, err)
	}
	if a.Addr().Is4() && a.Bits() == 0 {
		a = netip.Prefix{} // noV4
	}
	return place(a, b, name)
}

func place(a, b netip.Prefix, name string) (Subnets, error) {
	var s Subnets
	for _, p := range []netip.Prefix{a, b} {
		switch {
		case !p.IsValid():
		case p.Addr().Is4() && !s.V4.IsValid():
			s.V4 = p
		case p.Addr().Is6() && !s.V6.IsValid():
			s.V6 = p
		default:
			return Subnets{}, fmt.Errorf("subnet key %q: two subnets of one family", name)
		}
	}
	return s, nil
}

func parseDashed(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(strings.Replace(s, "-", "/", 1))
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("want ADDRESS-LENGTH: %w", err)
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%s has host bits set; the subnet is %s", p, p.Masked())
	}
	return p, nil
}

// Keys names every key of one network under an etcd prefix.
type Keys struct{ prefix string }

// NewKeys takes the value of --etcd-prefix, for example /tenure/network.
func NewKeys(prefix string) Keys { return Keys{strings.TrimSuffix(prefix, "/") + "/"} }

// All is the common prefix of every key, for a range read and the watch.
func (k Keys) All() string { return k.prefix }

// Config is the network config's key.
func (k Keys) Config() string { return k.prefix + "config" }

// Store is the key of the store's identity.
func (k Keys) Store() string { return k.prefix + "tenure/store" }

// Settle is the key that, while present, keeps everybody from acquiring.
func (k Keys) Settle() string { return k.prefix + "tenure/settle" }

// Subnet is the key whose holder is the subnet's tenant.
func (k Keys) Subnet(s Subnets) string { return k.subnets() + s.Key() }

// Owner is the key of the subnet's ownership record.
func (k Keys) Owner(s Subnets) string { return k.owners() + s.ownerKey() }

// Reservation is the key that keeps the subnet for one node.
func (k Keys) Reservation(s Subnets) string { return k.reservations() + s.ownerKey() }

func (k Keys) subnets() string      { return k.prefix + "subnets/" }
func (k Keys) owners() string       { return k.prefix + "tenure/owners/" }
func (k Keys) reservations() string { return k.prefix + "tenure/reservations/" }
