package node

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/ipam"
)

// result describes an attachment in the version that the caller speaks. What
// plugins ahead of us in the chain have done stays in it, before our part.
func (n *Node) result(c call, prev *current.Result, a ipam.Allocation, ep attach.Endpoint) (json.RawMessage, error) {
	w := n.want(a)
	r := &current.Result{}
	if prev != nil {
		r = prev
	}
	r.CNIVersion = current.ImplementedSpecVersion
	r.Interfaces = append(r.Interfaces,
		&current.Interface{Name: w.Bridge, Mac: n.bridgeMAC().String(), Mtu: w.MTU},
		&current.Interface{Name: ep.HostName, Mac: lease.MAC(ep.HostMAC).String(), Mtu: w.MTU},
		&current.Interface{Name: ep.IfName, Mac: lease.MAC(ep.MAC).String(), Mtu: w.MTU, Sandbox: ep.Sandbox},
	)
	if prev == nil || !c.conf.DNS.IsEmpty() {
		r.DNS = c.conf.DNS
	}
	addIPs(r, a, len(r.Interfaces)-1)
	return encode(r, c.conf.CNIVersion)
}

// ipamResult is what tenure-ipam gives to the plugin that called it.
func ipamResult(c call, a ipam.Allocation) (json.RawMessage, error) {
	r := &current.Result{CNIVersion: current.ImplementedSpecVersion, DNS: c.conf.DNS}
	addIPs(r, a, -1)
	return encode(r, c.conf.CNIVersion)
}

// addIPs adds the addresses and a default route for each; they belong to
// interface index, or to none yet where that is negative.
func addIPs(r *current.Result, a ipam.Allocation, index int) {
	for _, p := range a.Addresses {
		ip := &current.IPConfig{Address: ipNet(p), Gateway: ipam.Gateway(p.Masked()).AsSlice()}
		if index >= 0 {
			ip.Interface = current.Int(index)
		}
		r.IPs = append(r.IPs, ip)
		r.Routes = append(r.Routes, &types.Route{Dst: ipNet(anywhere(p)), GW: ip.Gateway})
	}
}

func anywhere(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func encode(r *current.Result, version string) (json.RawMessage, error) {
	as, err := r.GetAsVersion(version)
	if err != nil {
		return nil, fmt.Errorf("result in CNI version %q: %w", version, err)
	}
	b, err := json.Marshal(as)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return b, nil
}
