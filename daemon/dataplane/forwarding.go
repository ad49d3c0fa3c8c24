package dataplane

import (
	"net/netip"
	"slices"
	"strings"
)

// ipForward is the switch that routes IPv4 between interfaces; setting it sets
// the one of each interface too.
const ipForward = "net/ipv4/ip_forward"

func forwardingOf(link string) string { return "net/ipv4/conf/" + link + "/forwarding" }

// forwarding turns routing of IPv4 on, and on again for each single interface
// that a pod's packet comes in by: the bridge, the overlay, the underlay. A
// device that only bears the name of one of ours is left alone.
func (p *planner) forwarding() {
	if !p.want.families().V4 {
		return
	}
	if v, ok := p.have.Sysctls[ipForward]; ok && v != "1" {
		p.add(scopeForward, SetSysctl{ipForward, "1"})
		return
	}
	var links []string
	if p.have.Links[p.want.BridgeName()].Kind == KindBridge {
		links = append(links, p.want.BridgeName())
	}
	for _, v := range p.want.Overlays {
		if v.Local.Is6() {
			continue
		}
		if name := v.DeviceName(p.want.Name); p.have.Links[name].Kind == KindVxlan {
			links = append(links, name)
		}
		links = append(links, v.Parent)
	}
	if p.want.Uplink != "" {
		links = append(links, p.want.Uplink)
	}
	slices.Sort(links)
	for _, link := range slices.Compact(links) {
		if v, ok := p.have.Sysctls[forwardingOf(link)]; ok && v != "1" {
			p.add(scopeForward+"/"+link, SetSysctl{forwardingOf(link), "1"})
		}
	}
}

// sendRedirects says whether a host that sees a packet leave by the link it came in
// on tells the sender of the shorter way. The greater of a link's value and that
// of all counts.
func sendRedirects(link string) string { return "net/ipv4/conf/" + link + "/send_redirects" }

// redirects keeps the node from telling its pods of shorter ways. Those to a
// stranded pod, and the ones between the subnets of one node, lead over the bridge
// both in and out; a pod that was told so remembers it for five minutes, and for
// that long does not reach who has the address next, on another node. Other links
// go by their own value, as the value of all is no more than a second one to each.
func (p *planner) redirects(bridge string, fresh bool) {
	for _, link := range []string{"all", bridge} {
		v, ok := p.have.Sysctls[sendRedirects(link)]
		if ok && v != "0" || fresh && link == bridge {
			p.add(scopeBridge+"/redirects", SetSysctl{sendRedirects(link), "0"})
		}
	}
}

// ipForward6 is the switch that routes IPv6 between interfaces; there is none
// for a single one.
const ipForward6 = "net/ipv6/conf/all/forwarding"

// sysctl6 is the path of a setting of IPv6 on a link.
func sysctl6(link, name string) string { return "net/ipv6/conf/" + link + "/" + name }

// acceptRA says whether a link listens to routers. Where it is 1, it does so
// only while the host does not route.
const acceptRA = "accept_ra"

// forwarding6 turns routing of IPv6 on. With that the kernel drops the default
// routes that it has from routers, and hears no more of them, except where it is
// told to listen all the same: so it is, on each link that has such a route.
func (p *planner) forwarding6() {
	if v, ok := p.have.Sysctls[ipForward6]; !ok || v == "1" || !p.want.families().V6 {
		return
	}
	listening := map[string]bool{}
	for r := range p.have.Routes {
		if r.Protocol == protocolRA && p.have.Sysctls[sysctl6(r.Link, acceptRA)] == "1" {
			listening[r.Link] = true
		}
	}
	for _, link := range keysThat(listening, strings.Compare, func(string) bool { return true }) {
		p.add(scopeForward6, SetSysctl{sysctl6(link, acceptRA), "2"})
	}
	p.add(scopeForward6, SetSysctl{ipForward6, "1"})
}

// protocolRA marks routes that the kernel has from routers.
const protocolRA = 9

// setting6 is a setting of IPv6 on a device of ours.
type setting6 struct{ name, want string }

// settings6 are those of a device that bears addresses of pods' network. It
// looks for no duplicates, which would keep an address from use for a second;
// it makes no link-local address, which would do so too; and it believes no
// router, since pods could pretend to be one.
func settings6() []setting6 {
	return []setting6{{"disable_ipv6", "0"}, {"accept_dad", "0"}, {acceptRA, "0"}, {"addr_gen_mode", "1"}}
}

// ipv6 makes the settings of IPv6 on a device of ours. One that is not used for
// that family is only told not to believe that a pod is a router.
func (p *planner) ipv6(scope, link string, used, fresh bool) {
	if !p.have.IPv6 {
		return
	}
	for _, s := range settings6() {
		if !used && s.name != acceptRA {
			continue
		}
		path := sysctl6(link, s.name)
		if v, ok := p.have.Sysctls[path]; fresh || ok && v != s.want {
			p.add(scope+"/ipv6/"+s.name, SetSysctl{path, s.want})
		}
	}
}

// withoutIPv6 leaves out of what is wanted what the kernel cannot do, and says
// so.
func (p *planner) withoutIPv6() {
	if !p.want.families().V6 {
		return
	}
	d := &p.want
	d.Networks, d.Former, d.Outside = slices.DeleteFunc(slices.Clone(d.Networks), isSix), slices.DeleteFunc(slices.Clone(d.Former), isSix), slices.DeleteFunc(slices.Clone(d.Outside), isSix)
	d.Bridge.Gateways = slices.DeleteFunc(slices.Clone(d.Bridge.Gateways), isSix)
	d.HostRoutes = slices.DeleteFunc(slices.Clone(d.HostRoutes), netip.Addr.Is6)
	d.Overlays = slices.DeleteFunc(slices.Clone(d.Overlays), func(v Vxlan) bool { return v.Local.Is6() })
	d.Peers = slices.DeleteFunc(slices.Clone(d.Peers), func(peer Peer) bool { return peer.Subnet.Addr().Is6() })
	p.blocked[scopeVxlan6] = noIPv6
	p.conflict(ConflictIPv6, "%s, which the network config asks for", noIPv6)
}

// noIPv6 is why nothing of that family is done.
const noIPv6 = "this kernel has no IPv6"

func isSix(p netip.Prefix) bool { return p.Addr().Is6() }
