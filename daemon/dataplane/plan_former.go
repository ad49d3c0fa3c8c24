package dataplane

import (
	"net/netip"
	"slices"
)

// Former is a stranded subnet while nobody can say whether another node holds
// it by now: after a restart, until etcd has been heard.
type Former struct {
	// Gateway is the bridge's address in it, with the subnet's length.
	Gateway netip.Prefix
	// Pods are the stranded pods.
	Pods []netip.Addr
}

// settled puts each former subnet into the form that the kernel has it in: a
// single address and a route per pod where another node was known to hold it,
// else the whole prefix. Nothing of it is changed before somebody knows
// better, since either change would cut connections.
func (d Desired) settled(have State) Desired {
	if len(d.Bridge.Former) == 0 {
		return d
	}
	d.Bridge.Gateways, d.HostRoutes = slices.Clone(d.Bridge.Gateways), slices.Clone(d.HostRoutes)
	for _, f := range d.Bridge.Former {
		single := netip.PrefixFrom(f.Gateway.Addr(), f.Gateway.Addr().BitLen())
		if has(have.Addrs, Addr{Link: d.BridgeName(), Prefix: single}) {
			d.Bridge.Gateways = append(d.Bridge.Gateways, single)
			d.HostRoutes = append(d.HostRoutes, f.Pods...)
		} else {
			d.Bridge.Gateways = append(d.Bridge.Gateways, f.Gateway)
		}
	}
	return d
}
