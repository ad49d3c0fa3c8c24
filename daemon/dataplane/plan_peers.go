package dataplane

import (
	"maps"
	"net/netip"
	"slices"
)

func peerScope(subnet netip.Prefix) string {
	return vxlanScope(subnet.Addr()) + "/peer/" + subnet.String()
}

// peerItems are the kernel objects of one peer.
type peerItems struct {
	peer  Peer
	fdb   FDB
	neigh Neigh
	route Route
}

func (it peerItems) scope() string { return peerScope(it.peer.Subnet) }

func (dev overlay) items(peer Peer) peerItems {
	base := peer.Subnet.Addr()
	return peerItems{
		peer:  peer,
		fdb:   FDB{Link: dev.name, MAC: peer.MAC, Dst: peer.PublicIP},
		neigh: Neigh{dev.name, base},
		route: Route{
			Dst: peer.Subnet, Via: base, Link: dev.name, Type: RouteUnicast,
			Metric: ownMetric(peer.Subnet), Protocol: RouteProtocol, Onlink: true,
		},
	}
}

// peers brings tokens, forwarding entries, neighbours and routes in line. A
// token stands for a tenancy, not for a family, so all of those that a peer has
// no more go before the first new one comes.
func (p *planner) peers(devs []overlay) {
	if len(devs) == 0 && p.want.Uplink == "" && len(p.up.standing) == 0 {
		return
	}
	if p.have.Tokens == nil {
		const why = "the fence's tokens cannot be read"
		for _, dev := range devs {
			p.blocked[dev.scope] = why
		}
		for _, peer := range p.want.Peers {
			p.noWay[peer] = why
		}
		return
	}
	accepted := p.acceptedPeers()
	items := make([][]peerItems, len(devs))
	p.kept = p.keptDirect()
	wanted := slices.Concat(accepted, p.kept)
	for _, dev := range devs {
		kept := p.keptPeers(dev, wanted)
		p.kept, wanted = append(p.kept, kept...), append(wanted, kept...)
	}
	for i, dev := range devs {
		for _, peer := range wanted {
			if dev.reaches(peer) {
				items[i] = append(items[i], dev.items(peer))
			}
		}
	}
	p.tokens = tokensOf(slices.DeleteFunc(slices.Clone(wanted), func(peer Peer) bool { return !p.inOverlay(peer) }))
	gone := p.replacedTokens()
	direct := p.ways(wanted)
	for i := range devs {
		devs[i].odd = p.oddFDB(devs[i])
		for _, it := range items[i] {
			p.setPeer(devs[i], it)
		}
	}
	p.setDirect(direct, devs)
	for i, dev := range devs {
		p.oldPeers(dev, items[i])
	}
	p.oldDirect(p.routed(wanted, devs))
	if p.want.KeepPeers && (len(devs) < len(p.want.Overlays) || p.want.AsFound != Families{}) {
		return // those of a device that is not looked at may be kept ones
	}
	for _, mac := range gone {
		// A scope of its own: nothing that fails before may keep it in.
		p.add("token/"+mac.String(), DenyToken{mac})
	}
}

// reaches says whether the way to a peer may lead through the device.
func (dev overlay) reaches(peer Peer) bool {
	return peer.MAC != MAC{} && vxlanScope(peer.Subnet.Addr()) == dev.scope
}

// inOverlay says whether a peer has a place in an overlay that there should be.
func (p *planner) inOverlay(peer Peer) bool {
	return slices.ContainsFunc(p.want.Overlays, func(v Vxlan) bool {
		return overlay{scope: vxlanScope(v.Local)}.reaches(peer)
	})
}

// tokensOf are the tokens of the peers, each with the subnet that it stands
// for: a peer's first one, where both families have one MAC.
func tokensOf(peers []Peer) map[MAC]netip.Prefix {
	tokens := make(map[MAC]netip.Prefix, len(peers))
	for _, peer := range peers {
		if first, ok := tokens[peer.MAC]; !ok || peer.Subnet.Compare(first) < 0 {
			tokens[peer.MAC] = peer.Subnet
		}
	}
	return tokens
}

// vtep is a VTEP MAC in one family.
type vtep struct {
	mac MAC
	six bool
}

func (peer Peer) vtep() vtep { return vtep{peer.MAC, peer.Subnet.Addr().Is6()} }

// acceptedPeers are the peers that can be programmed, in order of subnet.
func (p *planner) acceptedPeers() []Peer {
	out := make([]Peer, 0, len(p.want.Peers))
	macs := make(map[vtep]netip.Prefix, len(p.want.Peers))
	taken := newPrefixSet(len(p.want.Peers))
	for _, peer := range p.want.Peers {
		taken.expect(peer.Subnet)
	}
	for _, peer := range p.want.Peers {
		own, overlaps := p.ownOverlap(peer.Subnet)
		other, clash := taken.overlap(peer.Subnet)
		same, double := macs[peer.vtep()]
		double = double && peer.MAC != MAC{}
		switch {
		case overlaps:
			p.reject(peer, "subnet %s overlaps %s of this node", peer.Subnet, own)
		case clash:
			p.reject(peer, "subnet %s overlaps %s of another peer", peer.Subnet, other)
		case double:
			p.reject(peer, "VTEP MAC %s is also that of the peer with %s", peer.MAC, same)
		case slices.ContainsFunc(p.want.Overlays, func(v Vxlan) bool { return v.Local == peer.PublicIP }):
			p.reject(peer, "public address %s is this node's own", peer.PublicIP)
		default:
			macs[peer.vtep()] = peer.Subnet
			taken.add(peer.Subnet)
			out = append(out, peer)
		}
	}
	slices.SortFunc(out, func(a, b Peer) int { return a.Subnet.Compare(b.Subnet) })
	return out
}

// ownOverlap returns the prefix on this node that subnet overlaps. A gateway
// with a host length marks a stranded subnet that belongs to a peer now.
func (p *planner) ownOverlap(subnet netip.Prefix) (netip.Prefix, bool) {
	for _, v := range p.want.Overlays {
		if v.Addr.Overlaps(subnet) {
			return v.Addr, true
		}
	}
	for _, g := range p.want.Bridge.Gateways {
		if !g.IsSingleIP() && g.Overlaps(subnet) {
			return g.Masked(), true
		}
	}
	return netip.Prefix{}, false
}

// prefixSet holds prefixes.
type prefixSet struct {
	// lengths are all that occur in the set or in questions to it, so that
	// each costs one step per length and not one per member.
	lengths map[int]bool
	members map[netip.Prefix]bool
	// covers maps each member, and each prefix of those lengths around one,
	// to a member.
	covers map[netip.Prefix]netip.Prefix
}

// newPrefixSet makes room for that many members.
func newPrefixSet(n int) *prefixSet {
	return &prefixSet{map[int]bool{}, make(map[netip.Prefix]bool, n), make(map[netip.Prefix]netip.Prefix, n)}
}

// expect makes the length of p known before anything is added.
func (s *prefixSet) expect(p netip.Prefix) { s.lengths[p.Bits()] = true }

func (s *prefixSet) add(p netip.Prefix) {
	s.members[p] = true
	for bits := range s.lengths {
		if bits <= p.Bits() {
			s.covers[netip.PrefixFrom(p.Addr(), bits).Masked()] = p
		}
	}
}

// overlap returns a member that overlaps p.
func (s *prefixSet) overlap(p netip.Prefix) (netip.Prefix, bool) {
	if q, ok := s.covers[p]; ok {
		return q, true
	}
	for bits := range s.lengths {
		if bits >= p.Bits() {
			continue
		}
		if around := netip.PrefixFrom(p.Addr(), bits).Masked(); s.members[around] {
			return around, true
		}
	}
	return netip.Prefix{}, false
}

// replacedTokens plans to shut out every MAC that stands for a subnet, or for
// a part of one, that a peer now has under another MAC. All of that comes
// before any new token, so that never two are in for one subnet; a MAC that
// changes its subnet is let in again with its peer. The MACs that stand for
// no peer at all are returned for later.
func (p *planner) replacedTokens() (gone []MAC) {
	subnets := newPrefixSet(len(p.tokens))
	for _, subnet := range p.have.Tokens {
		subnets.expect(subnet)
	}
	for _, subnet := range p.tokens {
		subnets.expect(subnet)
	}
	for _, subnet := range p.tokens {
		subnets.add(subnet)
	}
	for _, mac := range keysThat(p.have.Tokens, compareMACs, func(mac MAC) bool {
		return p.tokens[mac] != p.have.Tokens[mac]
	}) {
		subnet, keep := p.tokens[mac]
		_, overlaps := subnets.overlap(p.have.Tokens[mac])
		switch {
		case keep && overlaps && p.free(subnet, mac):
			// It stays in, for the peer's other family.
			p.add("token/"+mac.String(), AllowToken{mac, subnet})
			p.allowed[mac] = true
		case overlaps, !keep && p.want.AsFound != Families{} && !p.want.KeepPeers:
			// Of a family that is left as it is, a subnet has no new token to overlap.
			p.add("token/"+mac.String(), DenyToken{mac})
		case !keep:
			gone = append(gone, mac)
		}
	}
	return gone
}

// free says that no other MAC is let in for a part of the subnet, and that a MAC
// which comes to stand for it stood for one of the other family.
func (p *planner) free(subnet netip.Prefix, mac MAC) bool {
	if p.have.Tokens[mac].Addr().Is4() == subnet.Addr().Is4() {
		return false
	}
	for other, held := range p.have.Tokens {
		if other != mac && held.Overlaps(subnet) {
			return false
		}
	}
	return true
}

func (p *planner) setPeer(dev overlay, it peerItems) {
	token := p.tokens[it.peer.MAC]
	if (dev.attached || p.have.Tokens[it.peer.MAC] != token) && !p.allowed[it.peer.MAC] {
		p.add(it.scope(), AllowToken{it.peer.MAC, token})
		p.allowed[it.peer.MAC] = true
	}
	if odd, ok := dev.odd[it.peer.MAC]; ok {
		p.add(it.scope(), DelFDB{odd})
		p.add(it.scope(), SetFDB{it.fdb})
	} else if dev.fresh || !has(p.have.FDB, it.fdb) {
		p.add(it.scope(), SetFDB{it.fdb})
	}
	mac, ok := p.have.Neighs[it.neigh]
	if dev.fresh || dev.noNeighs || !ok || mac != it.peer.MAC {
		p.add(it.scope(), SetNeigh{it.neigh, it.peer.MAC})
	}
	if p.directly[it.peer.Subnet] {
		if !slices.ContainsFunc(p.places[it.route.place()], func(r Route) bool { return r == it.route || r.Protocol != RouteProtocol }) {
			p.up.fallback = append(p.up.fallback, it.route)
		}
		return
	}
	if foreign := p.setRoute(it.scope, it.route, p.going([]overlay{dev})); foreign != nil {
		p.reject(it.peer, "route %s is not ours and in the way", *foreign)
	}
}

// going picks the routes that go with something else that this pass does.
func (p *planner) going(devs []overlay) func(Route) bool {
	return func(r Route) bool {
		return p.leavesBridge(r) || slices.ContainsFunc(devs, func(dev overlay) bool {
			return (dev.fresh || dev.flushed) && r.Link == dev.name
		})
	}
}

// oldPeers takes down what is on the device and not wanted, routes first.
func (p *planner) oldPeers(dev overlay, items []peerItems) {
	if dev.fresh {
		return
	}
	routes, neighs, fdb := make(map[place]bool, len(items)), make(map[Neigh]bool, len(items)), make(map[FDB]bool, len(items))
	for _, it := range items {
		routes[it.route.place()], neighs[it.neigh], fdb[it.fdb] = true, true, true
	}
	for _, r := range p.routesThat(func(r Route) bool {
		return ownRoute(r, dev.name) && !routes[r.place()] && !p.directly[r.Dst]
	}) {
		p.add(peerScope(r.Dst), DelRoute{r})
	}
	for _, n := range keysThat(p.have.Neighs, compareNeighs, func(n Neigh) bool {
		return n.Link == dev.name && !neighs[n]
	}) {
		p.add(dev.scope+"/old", DelNeigh{n})
	}
	p.oldFDB(dev, fdb)
}

// oddFDB returns one entry for each MAC that has an odd one: with an entry's
// UDP port or network the kernel keeps it beside ours, so it has to go first,
// and with it goes all that the MAC has.
func (p *planner) oddFDB(dev overlay) map[MAC]FDB {
	odd := map[MAC]FDB{}
	if dev.fresh {
		return odd
	}
	for _, f := range keysThat(p.have.FDB, compareFDB, func(f FDB) bool { return f.Link == dev.name && f.Odd != "" }) {
		odd[f.MAC] = f
	}
	return odd
}

// oldFDB removes forwarding entries that are not wanted, except an only entry
// that the wanted one for its MAC has replaced.
func (p *planner) oldFDB(dev overlay, wanted map[FDB]bool) {
	perMAC := make(map[MAC]int, len(p.have.FDB))
	for f := range p.have.FDB {
		if f.Link == dev.name {
			perMAC[f.MAC]++
		}
	}
	wantedMACs := make(map[MAC]bool, len(wanted))
	for f := range maps.Keys(wanted) {
		wantedMACs[f.MAC] = true
	}
	for _, f := range keysThat(p.have.FDB, compareFDB, func(f FDB) bool {
		if odd, ok := dev.odd[f.MAC]; ok && f.Link == dev.name {
			return f == odd && !wantedMACs[f.MAC]
		}
		replaced := wantedMACs[f.MAC] && perMAC[f.MAC] == 1
		return f.Link == dev.name && !wanted[f] && !replaced
	}) {
		p.add(dev.scope+"/old", DelFDB{f})
	}
}
