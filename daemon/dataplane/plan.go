package dataplane

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Conflict is something of others that stands in the way, or a wish that
// cannot be met. Nothing is done about it; everything else goes on.
type Conflict struct {
	// What is the part concerned: addr, route, peer, parent, notrack, firewall,
	// or one of the constants below.
	What string
	// Peer is set when this one peer cannot be programmed because of it.
	Peer netip.Prefix
	// Device is set where one of others keeps ours from being made.
	Device string
	// Text says what clashes with what.
	Text string
}

// Conflicts about the firewall, which not every pass reads.
const (
	conflictNoTrack  = "notrack"
	conflictFirewall = "firewall"
)

// Conflicts about the name of a device of ours, which then cannot be made.
const (
	// ConflictBridge: there is no bridge, and no pod can be added.
	ConflictBridge = "bridge"
	// ConflictOverlay: there is no vxlan device, and no peer is programmed.
	ConflictOverlay = "overlay"
)

// ConflictIPv6 is a wish that the kernel cannot meet: it has no IPv6.
const ConflictIPv6 = "ipv6"

// Conflicts that only the host can end: the kernel's neighbour table is small
// for the pods.
const (
	// ConflictNeighbours is about the table of IPv4.
	ConflictNeighbours = "neighbours"
	// ConflictNeighbours6 is about that of IPv6.
	ConflictNeighbours6 = "neighbours6"
)

// Scopes of operations; see Op.
const (
	scopeForward  = "forward"
	scopeForward6 = "forward6"
	scopeRules    = "rules"
	scopeNetwork  = "network"
	scopeBridge   = "bridge"
	scopeVxlan    = "vxlan"
	scopeVxlan6   = "vxlan6"
	scopeUplink   = "uplink"
)

func rulesScope(six bool) string {
	if six {
		return scopeRules + "/6"
	}
	return scopeRules + "/4"
}

// vxlanScope is the scope of the overlay of an address's family.
func vxlanScope(a netip.Addr) string {
	if a.Is6() {
		return scopeVxlan6
	}
	return scopeVxlan
}

// Plan returns what has to be done to turn have into want, in an order that
// is safe to stop at any point, and what stands in the way. It is pure.
//
// The order is: forwarding, rules, the unreachable routes, the bridge, each
// vxlan device from creation over the fence to its address, then each peer
// from token over forwarding entry and neighbour to route; the fence on the
// uplink and the direct routes; last, from the route down, what is no longer
// wanted. The fence leaves an uplink in a pass that finds no direct route there.
func Plan(want Desired, have State) ([]Op, []Conflict) {
	p := planAll(want, have)
	return p.ops, p.conflicts
}

// planAll is Plan with its scratch, of which the report needs p.blocked.
func planAll(want Desired, have State) *planner {
	p := newPlanner(want.settled(have), have)
	if !have.IPv6 {
		p.withoutIPv6()
	}
	p.forwarding()
	p.forwarding6()
	p.reversePath()
	p.rules()
	p.networks()
	p.bridge()
	p.overlays()
	p.foreignRoutes()
	p.neighbours()
	return p
}

type planner struct {
	want Desired
	have State
	// places are the routes by what the kernel tells them apart by.
	places    map[place][]Route
	ops       []Op
	conflicts []Conflict
	// blocked says, by the scope of an overlay, why none of its peers can be
	// programmed; "" when they can.
	blocked map[string]string
	// rejected are peers that cannot be programmed, with the reason.
	rejected map[Peer]string
	// up is the uplink, and directly are the subnets that are reached by it.
	up       uplink
	directly map[netip.Prefix]bool
	// noWay says of peers why nothing leads to them now, and far are those of
	// them to which nothing can.
	noWay map[Peer]string
	far   map[Peer]bool
	// kept are peers that only the kernel knows, and that stay.
	kept []Peer
	// tokens are the VTEP MACs that shall be let in, each with the subnet that
	// it stands for.
	tokens map[MAC]netip.Prefix
	// allowed are those that this pass lets in.
	allowed map[MAC]bool
}

func newPlanner(want Desired, have State) *planner {
	p := &planner{want: want, have: have, places: make(map[place][]Route, len(have.Routes)), rejected: map[Peer]string{}, blocked: map[string]string{}, allowed: map[MAC]bool{},
		directly: map[netip.Prefix]bool{}, noWay: map[Peer]string{}, far: map[Peer]bool{}}
	// Nearly all places have one route: those share one piece of memory.
	all := make([]Route, 0, len(have.Routes))
	for r := range have.Routes {
		if others, ok := p.places[r.place()]; ok {
			others = append(others, r)
			slices.SortFunc(others, compareRoutes)
			p.places[r.place()] = others
			continue
		}
		all = append(all, r)
		p.places[r.place()] = all[len(all)-1 : len(all) : len(all)]
	}
	return p
}

func (p *planner) add(scope string, c Change) {
	p.ops = append(p.ops, Op{Scope: scope, Change: c})
}

func (p *planner) conflict(what, format string, args ...any) {
	p.conflicts = append(p.conflicts, Conflict{What: what, Text: fmt.Sprintf(format, args...)})
}

// blocks notes that a device of others keeps one of ours from being made.
func (p *planner) blocks(what, device, text string) {
	p.conflicts = append(p.conflicts, Conflict{What: what, Device: device, Text: text})
}

func (p *planner) reject(peer Peer, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	p.rejected[peer] = text
	p.conflicts = append(p.conflicts, Conflict{What: "peer", Peer: peer.Subnet, Text: text})
}

func (p *planner) rules() {
	for _, f := range []struct {
		six  bool
		have *Rules
	}{{false, p.have.Rules}, {true, p.have.Rules6}} {
		if f.have == nil {
			continue
		}
		if edits := planRules(p.want, f.six, *f.have); len(edits) > 0 {
			p.add(rulesScope(f.six), SetRules{f.six, edits})
		}
		if why := f.have.NoTrackFault; why != "" && p.want.overlay(f.six) != nil {
			p.conflict(conflictNoTrack, "outer packets pass through conntrack: %s", why)
		}
		if mixed := f.have.Mixed; mixed != "" {
			p.conflict(conflictFirewall, "%s", mixed)
		}
	}
}

// networks keeps the unreachable routes for the networks. One for an older
// network goes; any other that does not overlap belongs to another instance.
func (p *planner) networks() {
	wanted := map[place]bool{}
	for _, n := range p.want.Networks {
		want := Route{Dst: n, Type: RouteUnreachable, Metric: UnreachableMetric, Protocol: RouteProtocol}
		wanted[want.place()] = true
		p.setRoute(func() string { return scopeNetwork }, want, nothingGoes)
	}
	for _, r := range p.routesThat(func(r Route) bool {
		return r.Type == RouteUnreachable && r.Protocol == RouteProtocol && !wanted[r.place()] &&
			(slices.ContainsFunc(p.want.Networks, r.Dst.Overlaps) || slices.Contains(p.want.Former, r.Dst))
	}) {
		p.add(scopeNetwork, DelRoute{r})
	}
}

// place is what the kernel tells routes of one table apart by, besides the
// TOS, which we never set: one route replaces another of the same place.
type place struct {
	dst    netip.Prefix
	metric uint32
	local  bool
}

func (r Route) place() place { return place{r.Dst, r.Metric, r.Type == RouteLocal} }

// setRoute plans a route unless it is there already. A route of others in its
// place is returned instead. going picks those that may go with something
// that is deleted earlier in the same pass, and so do not count. The scope is
// a function since it is seldom needed.
func (p *planner) setRoute(scope func() string, want Route, going func(Route) bool) (foreign *Route) {
	replace := false
	for _, r := range p.places[want.place()] {
		switch {
		case going(r):
			replace = replace || r.Protocol == RouteProtocol || r.Protocol == want.Protocol
		case r == want:
			return nil
		case r.Protocol != RouteProtocol:
			foreign = &r
		default:
			replace = true
		}
	}
	if foreign == nil {
		p.add(scope(), SetRoute{want, replace})
	}
	return foreign
}

func nothingGoes(Route) bool { return false }

// ownMetric is the metric of our routes to a destination. The kernel takes 0
// for IPv4, and calls that 1024 where a route of IPv6 has none.
func ownMetric(dst netip.Prefix) uint32 {
	if dst.Addr().Is6() {
		return metric6
	}
	return 0
}

// metric6 is what the kernel gives to routes of IPv6 that are made without one.
const metric6 = 1024

// ownRoute reports whether r is a route of ours through link.
func ownRoute(r Route, link string) bool {
	return r.Protocol == RouteProtocol && r.Link == link
}

// addrs adds the missing addresses of a device. fresh says that the device
// has just been made and has none. It returns the old addresses, for delAddrs,
// and whether the kernel may have dropped the device's routes and neighbours.
func (p *planner) addrs(scope, link string, wanted []netip.Prefix, fresh bool) (old []netip.Prefix, flushed bool) {
	stale := map[netip.Prefix]bool{}
	if !fresh {
		stale = p.staleAddrs(link, wanted)
	}
	for _, w := range wanted {
		missing := fresh || !has(p.have.Addrs, Addr{Link: link, Prefix: w})
		for _, s := range sortedPrefixes(stale) {
			if goesFirst(s, w) {
				p.add(scope, DelAddr{Addr{Link: link, Prefix: s}})
				delete(stale, s)
				missing, flushed = true, flushed || s.Addr().Is4()
			}
		}
		switch a := (Addr{Link: link, Prefix: w}); {
		case missing:
			p.add(scope, AddAddr{a})
		case w.Addr().Is4():
			p.addrRoutes(scope, a)
		case p.lacksRoutes6(a):
			// The kernel makes its routes with the address alone.
			p.add(scope, DelAddr{a})
			p.add(scope, AddAddr{a})
		}
	}
	return sortedPrefixes(stale), flushed
}

// staleAddrs are the addresses of a device that are ours and not wanted, or
// cannot be used. The rest of others' is reported, but for link-local ones: the
// kernel makes those.
func (p *planner) staleAddrs(link string, wanted []netip.Prefix) map[netip.Prefix]bool {
	stale := map[netip.Prefix]bool{}
	for _, a := range keysThat(p.have.Addrs, compareAddrs, func(a Addr) bool {
		return a.Link == link && (a.Odd != "" || !slices.Contains(wanted, a.Prefix))
	}) {
		switch ip := a.Prefix.Addr(); {
		case p.want.ours(ip), slices.Contains(wanted, a.Prefix):
			stale[a.Prefix] = true
		case !ip.IsLinkLocalUnicast() || ip.Is4():
			p.conflict("addr", "address %s of %s is not ours and is left alone", a.Prefix, link)
		}
	}
	return stale
}

// goesFirst says that an old address goes before a new one comes. With the
// first IPv4 address of a prefix the kernel deletes the later ones of the same
// prefix too; and one of IPv6 it has once on a device, with whatever length.
func goesFirst(old, coming netip.Prefix) bool {
	return old.Masked() == coming.Masked() || old.Addr() == coming.Addr() && old.Addr().Is6()
}

// addrRoutes keeps the routes that the kernel once made for an address that
// stands: it makes them with the address and, but for the local one, with the
// link's coming up, and never again when somebody deletes them.
func (p *planner) addrRoutes(scope string, a Addr) {
	ip := a.Prefix.Addr()
	routes := []Route{{
		Dst: netip.PrefixFrom(ip, ip.BitLen()), Link: a.Link, Type: RouteLocal, Protocol: protocolKernel, Src: ip,
	}}
	if !a.Prefix.IsSingleIP() && p.have.Links[a.Link].Up {
		routes = append(routes, Route{
			Dst: a.Prefix.Masked(), Link: a.Link, Type: RouteUnicast, Protocol: protocolKernel, LinkScope: true, Src: ip,
		})
	}
	for _, want := range routes {
		scope := func() string { return scope + "/route/" + want.Dst.String() }
		going := func(r Route) bool { return r.Link == a.Link && r != want && r.Protocol == protocolKernel }
		if foreign := p.setRoute(scope, want, going); foreign != nil {
			p.conflict("route", "route %s is not ours and in the way of address %s", *foreign, a)
		}
	}
}

// lacksRoutes6 says that a route is missing that the kernel made for an IPv6
// address that stands: to itself and, while the link is up, to its prefix. That
// of a link-local one is of no use here.
func (p *planner) lacksRoutes6(a Addr) bool {
	ip := a.Prefix.Addr()
	local := Route{Dst: netip.PrefixFrom(ip, ip.BitLen()), Link: a.Link, Type: RouteLocal, Protocol: protocolKernel}
	if !has(p.have.Routes, local) {
		return true
	}
	prefix := Route{Dst: a.Prefix.Masked(), Link: a.Link, Type: RouteUnicast, Metric: prefixMetric6, Protocol: protocolKernel}
	return p.have.Links[a.Link].Up && !ip.IsLinkLocalUnicast() && !has(p.have.Routes, prefix)
}

// prefixMetric6 is the metric of the route that the kernel makes for the prefix
// of an IPv6 address.
const prefixMetric6 = 256

func (p *planner) delAddrs(scope, link string, old []netip.Prefix) {
	for _, prefix := range old {
		p.add(scope+"/old", DelAddr{Addr{Link: link, Prefix: prefix}})
	}
}

// foreignRoutes reports the routes of others inside the networks. Those that the
// kernel makes for addresses of our devices are no strangers.
func (p *planner) foreignRoutes() {
	for _, r := range p.routesThat(func(r Route) bool {
		ours := r.Protocol == RouteProtocol || p.isOurLink(r.Link) && r.Protocol == protocolKernel
		return !ours && p.want.inNetwork(r.Dst)
	}) {
		p.conflict("route", "route %s lies inside %s, is not ours and is left alone", r, p.want.network(r.Dst.Addr()))
	}
}

// protocolKernel marks routes that the kernel makes for addresses.
const protocolKernel = 2

func (p *planner) isOurLink(name string) bool {
	return name == p.want.BridgeName() || ourVxlan(p.want.Name, name)
}

func has[K comparable](set map[K]struct{}, k K) bool {
	_, ok := set[k]
	return ok
}

// keysThat picks keys of a map and sorts them. Picking comes first: a pass
// that finds nothing to do has next to nothing to sort.
func keysThat[K comparable, V any](m map[K]V, cmp func(a, b K) int, keep func(K) bool) []K {
	var out []K
	for k := range m {
		if keep(k) {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, cmp)
	return out
}

func (p *planner) routesThat(keep func(Route) bool) []Route {
	return keysThat(p.have.Routes, compareRoutes, keep)
}

func sortedPrefixes(m map[netip.Prefix]bool) []netip.Prefix {
	return slices.SortedFunc(maps.Keys(m), netip.Prefix.Compare)
}

func compareAddrs(a, b Addr) int {
	if c := strings.Compare(a.Link, b.Link); c != 0 {
		return c
	}
	return cmp.Or(a.Prefix.Compare(b.Prefix), strings.Compare(a.Odd, b.Odd))
}

func compareRoutes(a, b Route) int {
	if c := a.Dst.Compare(b.Dst); c != 0 {
		return c
	}
	return strings.Compare(a.String(), b.String())
}
