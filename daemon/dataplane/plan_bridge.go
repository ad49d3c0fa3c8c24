package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// bridge brings the bridge, its ports, its addresses and the host routes of
// stranded pods in line. What is old on it goes at once and not with the old
// peers: the prefix of a stranded subnet has to leave the bridge before the
// route to the subnet's new tenant can be set.
func (p *planner) bridge() {
	want, name := p.want.Bridge, p.want.BridgeName()
	if want.MAC == (MAC{}) {
		return
	}
	link, exists := p.have.Links[name]
	if exists && link.Kind != KindBridge {
		p.blocks(ConflictBridge, name, fmt.Sprintf("%s is a %s and not a bridge, and is left alone", name, link.Kind))
		return
	}
	if !exists {
		p.renamed(scopeBridge, name, KindBridge, want.MAC)
		p.add(scopeBridge, AddBridge{name, want.MAC})
		link.MAC = want.MAC
	}
	// The MTU is set after the creation, since only then the kernel stops
	// adjusting it to that of the ports.
	p.repairLink(scopeBridge, name, link, want.MAC, want.MTU)
	if link.Odd != "" {
		p.add(scopeBridge+"/odd", SetBridge{name})
	}
	addrs := withLinkLocal(want)
	p.ipv6(scopeBridge, name, len(addrs) > len(want.Gateways), !exists)
	p.redirects(name, !exists)
	if !link.Up {
		p.add(scopeBridge, SetUp{name})
	}
	p.ports(name)
	old, flushed := p.addrs(scopeBridge, name, addrs, !exists)
	p.hostRoutes(name, !exists || flushed)
	p.delAddrs(scopeBridge, name, old)
}

// withLinkLocal are the addresses of the bridge. With one of IPv6 goes a
// link-local one: from no other the kernel asks for the MAC of a pod that it
// forwards a packet to.
func withLinkLocal(b Bridge) []netip.Prefix {
	if !slices.ContainsFunc(b.Gateways, isSix) {
		return b.Gateways
	}
	m := b.MAC
	a := [16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}
	return append(slices.Clone(b.Gateways), netip.PrefixFrom(netip.AddrFrom16(a), 64))
}

// repairLink sets MAC, MTU and flags of an existing link. Failing to is not a
// reason to leave out what stands on it.
func (p *planner) repairLink(scope, name string, have Link, mac MAC, mtu int) {
	if have.MAC != mac {
		p.add(scope+"/mac", SetMAC{name, mac})
	}
	if mtu != 0 && have.MTU != mtu {
		p.add(scope+"/mtu", SetMTU{name, mtu})
	}
	if have.NoARP || have.Promisc || have.ProtoDown {
		p.add(scope+"/flags", SetFlags{name})
	}
	if have.Master != "" {
		p.add(scope+"/master", SetFree{name})
	}
}

// renamed deletes a device of ours that somebody gave another name. It is
// known by its MAC, which is made up for this node and device, and by that the
// device of our name is missing. To name it back is not in every kernel's
// power while the device is up, and it would be odd besides.
func (p *planner) renamed(scope, name, kind string, mac MAC) []string {
	if _, exists := p.have.Links[name]; exists {
		return nil
	}
	found := keysThat(p.have.Links, strings.Compare, func(other string) bool {
		l := p.have.Links[other]
		return l.Kind == kind && l.MAC == mac && !p.isOurLink(other)
	})
	for _, other := range found {
		p.add(scope, DelLink{other})
	}
	return found
}

func (p *planner) ports(bridge string) {
	for _, port := range p.want.Bridge.Ports {
		link, exists := p.have.Links[port]
		if exists && (link.Master != bridge || !link.Up || link.Port != Port{Hairpin: true}) {
			p.add(scopeBridge+"/port/"+port, SetPort{port, bridge})
		}
	}
}

// hostRoutes keeps one route per stranded pod. all says that the kernel has
// none, whatever was read.
func (p *planner) hostRoutes(bridge string, all bool) {
	wanted := map[place]bool{}
	for _, pod := range p.want.HostRoutes {
		r := Route{
			Dst: netip.PrefixFrom(pod, pod.BitLen()), Link: bridge,
			Type: RouteUnicast, Protocol: RouteProtocol, LinkScope: pod.Is4(),
		}
		r.Metric = ownMetric(r.Dst)
		wanted[r.place()] = true
		scope := func() string { return scopeBridge + "/pod/" + pod.String() }
		gone := func(have Route) bool { return all && have.Link == bridge }
		if foreign := p.setRoute(scope, r, gone); foreign != nil {
			p.conflict("route", "stranded pod %s: route %s is in the way", pod, *foreign)
		}
	}
	for _, r := range p.routesThat(func(r Route) bool {
		return ownRoute(r, bridge) && !wanted[r.place()]
	}) {
		p.add(scopeBridge+"/old", DelRoute{r})
	}
}

// leavesBridge reports whether r is a route that the kernel made for an
// address of the bridge that is not wanted any more, and so goes with it.
func (p *planner) leavesBridge(r Route) bool {
	return r.Link == p.want.BridgeName() && r.Protocol == protocolKernel &&
		p.want.Bridge.MAC != (MAC{}) &&
		!slices.ContainsFunc(p.want.Bridge.Gateways, func(g netip.Prefix) bool {
			return g.Masked() == r.Dst
		})
}
