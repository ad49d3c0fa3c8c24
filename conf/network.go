package conf

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Network is the cluster's network config, the key `config` in etcd, with all
// defaults filled in. Network values are comparable.
type Network struct {
	// EnableIPv4 and EnableIPv6 say which families pods have; at least one.
	EnableIPv4 bool
	EnableIPv6 bool
	// Network is the IPv4 range of all nodes, without host bits; the zero
	// Prefix without IPv4.
	Network netip.Prefix
	// SubnetLen is the prefix length of one node's IPv4 subnet, in bits.
	SubnetLen int
	// SubnetMin and SubnetMax are the base addresses of the first and the last
	// subnet that nodes may hold.
	SubnetMin netip.Addr
	SubnetMax netip.Addr
	// IPv6Network and IPv6SubnetLen are the same for IPv6. With both families
	// a node's IPv6 subnet has the position of its IPv4 subnet.
	IPv6Network   netip.Prefix
	IPv6SubnetLen int
	// LeaseTTL is the length of a node's lease: whole seconds, 5 s at least.
	LeaseTTL time.Duration
	Backend  Backend
}

// MinLeaseTTL is the shortest LeaseTTL.
const MinLeaseTTL = 5 * time.Second

const (
	defaultLeaseTTL   = "24h"
	maxSubnetBits     = 62 // of a network's subnets: their count fits a uint64 with room
	defaultSubnetLen  = 24
	defaultSubnet6Len = 64
	maxSubnetLen      = 30 // a subnet needs a base, a gateway, a pod and a broadcast address
	maxSubnet6Len     = 126
)

// networkForm is a network config as written: nil is "not given".
type networkForm struct {
	enableIPv4, enableIPv6        bool
	network, subnetMin, subnetMax *string
	subnetLen, subnet6Len         int
	network6, subnet6Min, sub6Max *string
	leaseTTL                      *string
	backend                       json.RawMessage
	enableNFTables                bool
	faults                        Faults
	warnings                      []string
}

// ParseNetwork reads a network config: JSON with flannel's keys, matched
// without regard to case. It returns the config with its defaults, warnings
// about values that flannel knows and Tenure does not use, and an error of
// type Faults that names every field at fault.
func ParseNetwork(b []byte) (Network, []string, error) {
	f := networkForm{enableIPv4: true}
	isObject := fill(b, "", []slot{
		{"Network", &f.network},
		{"SubnetLen", &f.subnetLen},
		{"SubnetMin", &f.subnetMin},
		{"SubnetMax", &f.subnetMax},
		{"EnableIPv4", &f.enableIPv4},
		{"EnableIPv6", &f.enableIPv6},
		{"EnableNFTables", &f.enableNFTables},
		{"IPv6Network", &f.network6},
		{"IPv6SubnetLen", &f.subnet6Len},
		{"IPv6SubnetMin", &f.subnet6Min},
		{"IPv6SubnetMax", &f.sub6Max},
		{"LeaseTTL", &f.leaseTTL},
		{"Backend", &f.backend},
	}, &f.faults)
	if !isObject {
		return Network{}, nil, f.faults
	}
	n := f.read()
	if err := f.faults.Err(); err != nil {
		return Network{}, f.warnings, err
	}
	return n, f.warnings, nil
}

// fault notes what is wrong with a field, unless something already is: a value
// of the wrong type need not be called missing as well.
func (f *networkForm) fault(field, format string, args ...any) {
	if !slices.ContainsFunc(f.faults, func(known Fault) bool { return known.Field == field }) {
		f.faults.add(field, format, args...)
	}
}

func (f *networkForm) warn(text string) { f.warnings = append(f.warnings, text) }

// read checks the form field by field, then the fields against each other.
func (f *networkForm) read() Network {
	n := Network{EnableIPv4: f.enableIPv4, EnableIPv6: f.enableIPv6}
	if !n.EnableIPv4 && !n.EnableIPv6 {
		f.fault("EnableIPv4", "false without EnableIPv6 leaves no address family")
	}
	if n.EnableIPv4 {
		f.readIPv4(&n)
	} else if f.network != nil || f.subnetMin != nil || f.subnetMax != nil {
		f.warn("Network, SubnetMin and SubnetMax are not used while EnableIPv4 is false")
	}
	if n.EnableIPv6 {
		f.readIPv6(&n)
	} else if f.network6 != nil {
		f.warn("IPv6Network is not used while EnableIPv6 is false")
	}
	if n.EnableIPv4 && n.EnableIPv6 {
		f.checkPair(n)
	}
	n.LeaseTTL = f.readTTL()
	n.Backend = f.readBackend(n.EnableIPv6)
	f.warnUnsupported()
	return n
}

func (f *networkForm) readIPv4(n *Network) {
	n.Network = f.prefix("Network", f.network, false, maxSubnetLen)
	n.SubnetLen = f.subnetLen
	if n.SubnetLen == 0 {
		n.SubnetLen = defaultLen(n.Network.Bits(), defaultSubnetLen, maxSubnetLen)
	}
	if !f.checkLen("SubnetLen", n.SubnetLen, n.Network, maxSubnetLen) {
		return
	}
	last := uint64(1)<<(n.SubnetLen-n.Network.Bits()) - 1
	n.SubnetMin = f.bound("SubnetMin", f.subnetMin, *n, 0)
	n.SubnetMax = f.bound("SubnetMax", f.subnetMax, *n, last)
	if n.SubnetMin.IsValid() && n.SubnetMax.IsValid() && n.SubnetMax.Less(n.SubnetMin) {
		f.fault("SubnetMin", "%s comes after SubnetMax %s", n.SubnetMin, n.SubnetMax)
	}
}

func (f *networkForm) readIPv6(n *Network) {
	n.IPv6Network = f.prefix("IPv6Network", f.network6, true, maxSubnet6Len)
	n.IPv6SubnetLen = f.subnet6Len
	if n.IPv6SubnetLen == 0 {
		n.IPv6SubnetLen = defaultLen(n.IPv6Network.Bits(), defaultSubnet6Len, maxSubnet6Len)
	}
	f.checkLen("IPv6SubnetLen", n.IPv6SubnetLen, n.IPv6Network, maxSubnet6Len)
}

// defaultLen is flannel's rule: the usual length, or two bits more than a
// network that is too small for it to be worth dividing.
func defaultLen(network, usual, most int) int {
	if network <= usual-2 {
		return usual
	}
	return min(network+2, most)
}

// prefix reads a network of one family, at most that long; the zero Prefix is
// returned with a fault.
func (f *networkForm) prefix(field string, text *string, six bool, most int) netip.Prefix {
	if text == nil {
		f.fault(field, "required")
		return netip.Prefix{}
	}
	p, err := netip.ParsePrefix(*text)
	special, isSpecial := specialRange(p)
	switch {
	case err != nil:
		f.fault(field, "%q is not a network in the form address/length", *text)
	case six && (p.Addr().Is4() || p.Addr().Is4In6()):
		f.fault(field, "%s is not an IPv6 network", p)
	case !six && !p.Addr().Is4():
		f.fault(field, "%s is not an IPv4 network", p)
	case p != p.Masked():
		f.fault(field, "%s has host bits set; the network is %s", p, p.Masked())
	case p.Bits() > most:
		f.fault(field, "%s is longer than /%d, too small for one subnet", p, most)
	case isSpecial:
		f.fault(field, "%s overlaps %s, whose addresses no pod can have", p, special)
	default:
		return p
	}
	return netip.Prefix{}
}

// specialRange finds the range for unspecified, loopback, link-local,
// multicast or reserved addresses that p overlaps.
func specialRange(p netip.Prefix) (netip.Prefix, bool) {
	for _, text := range []string{
		"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3",
		"::/127", "fe80::/10", "ff00::/8",
	} {
		if s := netip.MustParsePrefix(text); s.Overlaps(p) {
			return s, true
		}
	}
	return netip.Prefix{}, false
}

// checkLen judges a subnet length, alone and against its network if that is
// known; false if they cannot be divided with.
func (f *networkForm) checkLen(field string, length int, network netip.Prefix, most int) bool {
	switch {
	case length > most:
		f.fault(field, "/%d is longer than /%d, a subnet too small for pods", length, most)
	case length < 0:
		f.fault(field, "%d is no prefix length", length)
	case !network.IsValid():
	case length < network.Bits():
		f.fault(field, "network %s is smaller than one subnet of /%d", network, length)
	case length-network.Bits() > maxSubnetBits:
		f.fault(field, "%s has more than 2^%d subnets of /%d", network, maxSubnetBits, length)
	default:
		return true
	}
	return false
}

// bound reads SubnetMin or SubnetMax; the default is subnet number otherwise.
func (f *networkForm) bound(field string, text *string, n Network, otherwise uint64) netip.Addr {
	if text == nil {
		return nthSubnet(n.Network, n.SubnetLen, otherwise).Addr()
	}
	a, err := netip.ParseAddr(*text)
	switch {
	case err != nil || !a.Is4():
		f.fault(field, "%q is not an IPv4 address", *text)
	case !n.Network.Contains(a):
		f.fault(field, "%s is not in Network %s", a, n.Network)
	case netip.PrefixFrom(a, n.SubnetLen).Masked().Addr() != a:
		f.fault(field, "%s is not on the boundary of a /%d; the subnet there is %s",
			a, n.SubnetLen, netip.PrefixFrom(a, n.SubnetLen).Masked())
	default:
		return a
	}
	return netip.Addr{}
}

// checkPair sees to it that every usable IPv4 subnet has an IPv6 one.
func (f *networkForm) checkPair(n Network) {
	if !n.SubnetMax.IsValid() || !n.IPv6Network.IsValid() || n.IPv6SubnetLen < n.IPv6Network.Bits() || n.IPv6SubnetLen > maxSubnet6Len {
		return
	}
	bits := n.IPv6SubnetLen - n.IPv6Network.Bits()
	if last := subnetNumber(n.Network, n.SubnetLen, n.SubnetMax); bits <= maxSubnetBits && last >= 1<<bits {
		f.fault("IPv6Network", "%s has %d subnets of /%d, too few for IPv4 subnet number %d (SubnetMax)",
			n.IPv6Network, uint64(1)<<bits, n.IPv6SubnetLen, last)
	}
}

func (f *networkForm) readTTL() time.Duration {
	text := defaultLeaseTTL
	if f.leaseTTL != nil {
		text = *f.leaseTTL
	}
	ttl, err := time.ParseDuration(text)
	switch {
	case err != nil:
		f.fault("LeaseTTL", "%q is not a duration such as \"24h\" or \"90s\"", text)
	case ttl < MinLeaseTTL:
		f.fault("LeaseTTL", "%s is shorter than %s", ttl, MinLeaseTTL)
	case ttl%time.Second != 0:
		f.fault("LeaseTTL", "%s is not a whole number of seconds", ttl)
	}
	return ttl
}

func (f *networkForm) warnUnsupported() {
	if f.enableNFTables {
		f.warn("EnableNFTables is not supported: rules are made with iptables, legacy or nft as the host uses")
	}
	if f.subnet6Min != nil || f.sub6Max != nil {
		f.warn("IPv6SubnetMin and IPv6SubnetMax are not supported: the IPv6 subnet follows from the IPv4 one, or is any of IPv6Network")
	}
}

// MarshalJSON writes the config with flannel's keys; ParseNetwork reads back
// an equal value.
func (n Network) MarshalJSON() ([]byte, error) {
	out := struct {
		Network       *netip.Prefix `json:",omitempty"`
		SubnetLen     int           `json:",omitempty"`
		SubnetMin     *netip.Addr   `json:",omitempty"`
		SubnetMax     *netip.Addr   `json:",omitempty"`
		EnableIPv4    bool
		EnableIPv6    bool
		IPv6Network   *netip.Prefix `json:",omitempty"`
		IPv6SubnetLen int           `json:",omitempty"`
		LeaseTTL      string
		Backend       Backend
	}{EnableIPv4: n.EnableIPv4, EnableIPv6: n.EnableIPv6, LeaseTTL: shortDuration(n.LeaseTTL), Backend: n.Backend}
	if n.EnableIPv4 {
		out.Network, out.SubnetLen, out.SubnetMin, out.SubnetMax = &n.Network, n.SubnetLen, &n.SubnetMin, &n.SubnetMax
	}
	if n.EnableIPv6 {
		out.IPv6Network, out.IPv6SubnetLen = &n.IPv6Network, n.IPv6SubnetLen
	}
	return json.Marshal(out)
}

// shortDuration is "24h" where Duration.String says "24h0m0s".
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
