package dataplane

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

func uplinkScope(link string) string { return scopeUplink + "/" + link }

// uplink is the host's own interface with the direct routes through it.
type uplink struct {
	link string
	// blocked says why no direct route can be made now; "" when they can.
	blocked string
	// onLink says by routes of others whether an address is reached without a
	// gateway through link.
	onLink func(netip.Addr) bool
	// standing are the direct routes of ours that there are, by the link they
	// lead through.
	standing map[string][]Route
	// fallback are the vxlan routes that peers with a direct one lack: they get
	// them for as long as the fence cannot be attached.
	fallback []Route
}

// scope is that of all that needs the fence on the uplink.
func (u uplink) scope() string { return uplinkScope(u.link) }

func (u uplink) peerScope(subnet netip.Prefix) string {
	return u.scope() + "/peer/" + subnet.String()
}

// route is the direct route to a peer.
func (u uplink) route(peer Peer) Route {
	return Route{
		Dst: peer.Subnet, Via: peer.PublicIP, Link: u.link, Type: RouteUnicast,
		Metric: ownMetric(peer.Subnet), Protocol: RouteProtocol, Onlink: true,
	}
}

// lookAtUplink says how it is about direct routes; nothing is planned yet.
func (p *planner) lookAtUplink() uplink {
	u := uplink{link: p.want.Uplink, standing: p.directRoutes(), onLink: p.neighbourhood(p.want.Uplink)}
	link, exists := p.have.Links[u.link]
	switch {
	case u.link == "":
		u.blocked = "no direct routes are wanted"
	case !exists:
		u.blocked = "underlay interface " + u.link + " is missing"
	case !link.Up:
		u.blocked = "underlay interface " + u.link + " is down"
	case link.NoEthernet:
		u.blocked = "packets on underlay interface " + u.link + " have no Ethernet header, in which the fence could judge them, so nothing is sent there by a plain route; vxlan works"
	}
	if u.link != "" && (!exists || link.NoEthernet) && len(p.want.Overlays) == 0 {
		p.conflict("parent", "%s", u.blocked)
	}
	return u
}

// ways decides which peers are reached directly, and notes the others that have
// no place in an overlay. While the fence on the uplink cannot be read, what
// there is stays and nothing is added.
func (p *planner) ways(peers []Peer) (direct []Peer) {
	for _, peer := range peers {
		why, far := p.up.blocked, false
		switch {
		case !peer.Direct:
			why = noOverlay
		case why != "":
		case !p.up.onLink(peer.PublicIP):
			why, far = "its address "+peer.PublicIP.String()+" is on "+p.up.link+"'s link by that link's prefix, and behind a gateway by a route of this node", true
		case p.have.Uplinks == nil && !has(p.have.Routes, p.up.route(peer)):
			why = "the fence on " + p.up.link + " cannot be read"
		default:
			direct, p.directly[peer.Subnet] = append(direct, peer), true
			continue
		}
		if !p.inOverlay(peer) {
			p.noWay[peer], p.far[peer] = why, far
		}
	}
	return direct
}

// noOverlay is said of a peer that speaks vxlan, of a node without it.
const noOverlay = "it can be reached through a vxlan device only, and there is none"

// routed are the places of the routes that this pass wants.
func (p *planner) routed(peers []Peer, devs []overlay) map[place]bool {
	all := make(map[place]bool, len(peers))
	for _, peer := range peers {
		if p.directly[peer.Subnet] || slices.ContainsFunc(devs, func(dev overlay) bool { return dev.reaches(peer) }) {
			all[Route{Dst: peer.Subnet, Metric: ownMetric(peer.Subnet)}.place()] = true
		}
	}
	return all
}

// directRoutes are the routes of ours, and of this instance, that lead to a
// gateway through a device of the host.
func (p *planner) directRoutes() map[string][]Route {
	all := map[string][]Route{}
	for _, r := range p.routesThat(func(r Route) bool {
		return r.leadsDirectly() && !p.isOurLink(r.Link) && p.want.ours(r.Dst.Addr())
	}) {
		all[r.Link] = append(all[r.Link], r)
	}
	return all
}

// leadsDirectly is true of direct routes, and of those through the overlay.
func (r Route) leadsDirectly() bool {
	return r.Protocol == RouteProtocol && r.Type == RouteUnicast && r.Via.IsValid() && r.Link != ""
}

// neighbourhood judges addresses by the longest prefix that others have routed:
// one behind a gateway is not on the link, whatever the link's prefix says. An
// address that only a default route covers has no better route against it.
func (p *planner) neighbourhood(link string) func(netip.Addr) bool {
	direct := map[netip.Prefix]Route{}
	for r := range p.have.Routes {
		if r.Protocol == RouteProtocol || r.Type == RouteLocal || r.Dst.Bits() == 0 {
			continue
		}
		if best, ok := direct[r.Dst]; !ok || r.Metric < best.Metric {
			direct[r.Dst] = r
		}
	}
	lengths := map[int]bool{}
	for dst := range direct {
		lengths[dst.Bits()] = true
	}
	longest := slices.Sorted(maps.Keys(lengths))
	slices.Reverse(longest)
	return func(a netip.Addr) bool {
		for _, bits := range longest {
			dst, err := a.Prefix(bits)
			if err != nil {
				continue // of the other family
			}
			if r, ok := direct[dst]; ok {
				return r.Link == link && !r.Via.IsValid() && r.Type == RouteUnicast
			}
		}
		return true
	}
}

// guardUplinks puts the fence back on every device of the host that direct
// routes lead through, before anything else is judged, also while no subnet is
// held. Where that cannot be done the routes go, and what has another way takes
// it in the next pass.
func (p *planner) guardUplinks() {
	if p.have.Uplinks == nil {
		return
	}
	for _, link := range slices.Sorted(maps.Keys(p.up.standing)) {
		// Those that lead elsewhere than through the uplink go in this very pass,
		// unless what comes in their place waits for the fence there.
		going := p.want.Held() && link != p.want.Uplink && p.have.Tokens != nil && (p.want.Uplink == "" || p.have.Uplinks[p.want.Uplink])
		if !p.have.Uplinks[link] && !going {
			p.attachUplink(link, Reroute{Del: p.up.standing[link]})
		}
	}
}

func (p *planner) attachUplink(link string, otherwise Reroute) {
	op := Op{Scope: uplinkScope(link), Change: AttachUplink{link}}
	if len(otherwise.Set)+len(otherwise.Del) > 0 {
		op.OnFail = otherwise
	}
	p.ops = append(p.ops, op)
}

// setDirect plans the direct routes of the peers, after the fence.
func (p *planner) setDirect(peers []Peer, devs []overlay) {
	if p.up.blocked != "" || p.have.Uplinks == nil {
		return
	}
	if !p.have.Uplinks[p.up.link] && len(p.up.standing[p.up.link]) == 0 {
		p.attachUplink(p.up.link, Reroute{Set: p.up.fallback})
	}
	going := p.going(devs)
	for _, peer := range peers {
		scope := func() string { return p.up.peerScope(peer.Subnet) }
		if foreign := p.setRoute(scope, p.up.route(peer), going); foreign != nil {
			p.reject(peer, "route %s is not ours and in the way", *foreign)
		}
	}
	if len(p.want.Overlays) == 0 {
		p.noOverlays()
	}
}

// noOverlays deletes the vxlan devices of before, once the direct routes are
// there in place of those through them.
func (p *planner) noOverlays() {
	for _, name := range keysThat(p.have.Links, strings.Compare, func(name string) bool {
		return ourVxlan(p.want.Name, name) && p.have.Links[name].Kind == KindVxlan
	}) {
		p.add(p.up.scope()+"/old/"+name, DelLink{name})
	}
}

// oldDirect takes down direct routes to nobody's subnet. Those to a peer that is
// reached by another way now have been replaced. One that stays as it is leads
// through the uplink, where the fence is.
func (p *planner) oldDirect(wanted map[place]bool) {
	for _, link := range slices.Sorted(maps.Keys(p.up.standing)) {
		for _, r := range p.up.standing[link] {
			if !wanted[r.place()] && (link != p.want.Uplink || !p.want.asFound(r.Dst.Addr())) {
				p.add(peerScope(r.Dst), DelRoute{r})
			}
		}
	}
}

// detachUplinks takes the fence off the devices that are no uplink any more,
// once it has been seen that no direct route leads through them.
func (p *planner) detachUplinks() {
	for _, link := range keysThat(p.have.Uplinks, strings.Compare, func(link string) bool {
		return link != p.want.Uplink && len(p.up.standing[link]) == 0
	}) {
		p.add(uplinkScope(link), DetachUplink{link})
	}
}

// Reverse-path filtering: a source is checked strictly, or only whether there is
// a route to it at all. The greater of a link's value and that of all counts.
const (
	reversePathStrict = "1"
	reversePathLoose  = "2"
)

func reversePathOf(link string) string { return "net/ipv4/conf/" + link + "/rp_filter" }

// reversePath loosens a strict check where packets of one peer may come in by
// the uplink and by the overlay: while a config changes, and for as long as a
// node can send by one of them only.
func (p *planner) reversePath() {
	if p.want.Uplink == "" {
		return
	}
	all := p.have.Sysctls[reversePathOf("all")]
	for _, link := range append([]string{p.want.Uplink}, p.overlayNames()...) {
		own, ok := p.have.Sysctls[reversePathOf(link)]
		if ok && own != reversePathLoose && all != reversePathLoose && (own == reversePathStrict || all == reversePathStrict) {
			p.add(scopeForward+"/"+link, SetSysctl{reversePathOf(link), reversePathLoose})
		}
	}
}

func (p *planner) overlayNames() []string {
	var names []string
	for _, v := range p.want.Overlays {
		names = append(names, v.DeviceName(p.want.Name))
	}
	return names
}
