package node

import (
	"fmt"
	"net/netip"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/lease"
)

// family is one of the two address families. Each has a subnet, an underlay
// address and a VTEP MAC of its own, and is judged by itself.
type family struct{ six bool }

// familiesOf are those that pods have, IPv4 first.
func familiesOf(n *conf.Network) []family {
	var all []family
	if n.EnableIPv4 {
		all = append(all, family{false})
	}
	if n.EnableIPv6 {
		all = append(all, family{true})
	}
	return all
}

// String is the family's name.
func (f family) String() string {
	if f.six {
		return "IPv6"
	}
	return "IPv4"
}

func (f family) subnet(s lease.Subnets) netip.Prefix {
	if f.six {
		return s.V6
	}
	return s.V4
}

func (f family) network(n *conf.Network) netip.Prefix {
	if f.six {
		return n.IPv6Network
	}
	return n.Network
}

// local is where this node's outer packets come from, link what lies on the
// link of that address.
func (f family) local(u Underlay) (local netip.Addr, link netip.Prefix) {
	if f.six {
		return u.Local6, u.Net6
	}
	return u.Local, u.Net
}

// announced is what a record says of the family: the zero Addr for no address.
func (f family) announced(r lease.Record) (netip.Addr, *lease.BackendData) {
	a, data := r.PublicIP, r.BackendData
	if f.six {
		a, data = netip.Addr{}, r.BackendV6Data
		if r.PublicIPv6 != nil {
			a = *r.PublicIPv6
		}
	}
	if !a.IsValid() || a.IsUnspecified() {
		return netip.Addr{}, data
	}
	return a, data
}

// unusable says why the family's part of a record cannot be programmed,
// whatever its backend is; "" if it can.
func (f family) unusable(e lease.Entry, n *conf.Network, u Underlay) string {
	addr, _ := f.announced(e.Record)
	switch subnet := f.subnet(e.Subnets); {
	case addr.IsValid() && (n.Network.Contains(addr) || n.IPv6Network.Contains(addr)):
		return fmt.Sprintf("its address %s lies in the pod network: packets to it would go round in the overlay", addr)
	case addr.IsValid() && u.has(addr):
		return fmt.Sprintf("it announces this node's own address %s (a record of an earlier life, or a second node with that address)", addr)
	case !subnet.IsValid():
		return fmt.Sprintf("it has no %s subnet", f)
	case !addr.IsValid():
		return fmt.Sprintf("it announces no %s address", f)
	case addr.Is6() != f.six, addr.Is4In6(): // the kernel takes the latter for one of IPv4
		return fmt.Sprintf("its address %s is no %s address of a machine", addr, f)
	case !f.inside(subnet, n):
		return fmt.Sprintf("its subnet %s is not inside %s", subnet, f.network(n))
	}
	return ""
}

// has says whether an address is this node's, by what it announces and uses.
func (u Underlay) has(a netip.Addr) bool {
	return a == u.PublicIP || a == u.Local || a == u.PublicIP6 || a == u.Local6
}

// inside says whether a subnet is there and lies in the family's network.
func (f family) inside(subnet netip.Prefix, n *conf.Network) bool {
	network := f.network(n)
	return subnet.IsValid() && network.Contains(subnet.Addr()) && subnet.Bits() >= network.Bits()
}
