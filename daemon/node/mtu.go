package node

import (
	"fmt"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// OverlayMTU is the largest packet of a family's pods (six is IPv6) that fits
// the way to another node, in bytes: what the backend leaves of the underlay's
// MTU, or of the lesser one that the network config names. A greater one does
// not fit the interface. A config that is not known yet (nil) is taken for vxlan.
func (u Underlay) OverlayMTU(n *conf.Network, six bool) int {
	var b conf.Backend
	if n != nil {
		b = n.Backend
	}
	outer := u.MTU
	if b.MTU > 0 && b.MTU < outer {
		outer = b.MTU
	}
	return outer - b.Overhead(six)
}

// PodMTU is the largest packet of a pod, in bytes. A pod has one interface for
// both families, so that of the family which has less.
func (u Underlay) PodMTU(n *conf.Network) int {
	return u.OverlayMTU(n, n != nil && n.EnableIPv6)
}

// leastMTU is what a pod's interface needs: IPv6 wants 1280 (RFC 8200), and no
// host has to take more than 576 bytes of IPv4.
func leastMTU(n *conf.Network) int {
	if n.EnableIPv6 {
		return 1280
	}
	return 576
}

// mtuProblems says where network config and underlay do not go together.
func mtuProblems(u Underlay, n *conf.Network) []api.Problem {
	if n == nil || u.MTU == 0 {
		return nil
	}
	var all []api.Problem
	if n.Backend.MTU > u.MTU {
		all = append(all, problem("mtu-too-large", api.SeverityWarning,
			fmt.Sprintf("the network config's Backend.MTU %d is more than the %d of %s: pods of this node get %d", n.Backend.MTU, u.MTU, u.Interface, u.PodMTU(n)),
			fmt.Sprintf("ip link set %s mtu %d, if all between the nodes takes that; or tenurectl config set with Backend.MTU %d, or 0, which follows each node's interface", u.Interface, n.Backend.MTU, u.MTU)))
	}
	if least := leastMTU(n); u.PodMTU(n) < least {
		all = append(all, problem("mtu-too-small", api.SeverityError,
			fmt.Sprintf("of the MTU %d of %s pods get %d, and they need %d: without it IPv6 does not work at all, and IPv4 with few", u.MTU, u.Interface, u.PodMTU(n), least),
			fmt.Sprintf("ip link set %s mtu 1500, or at least %d; or name another interface with --iface", u.Interface, least+n.Backend.Overhead(n.EnableIPv6))))
	}
	return all
}
