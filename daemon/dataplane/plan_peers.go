package dataplane

import (
	"maps"
	"net/netip"
	"slices"
)

func peerScope(subnet netip.Prefix) string { return scopeVxlan + "/peer/" + subnet.String() }

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
			Protocol: RouteProtocol, Onlink: true,
		},
	}
}

// peers brings tokens, forwarding entries, neighbours and routes in line.
func (p *planner) peers(dev overlay) {
	if p.have.Tokens == nil {
		p.blocked = "the fence's tokens cannot be read"
		return
	}
	accepted := p.acceptedPeers()
	p.kept = p.keptPeers(dev, accepted)
	items := make([]peerItems, 0, len(accepted)+len(p.kept))
	for _, peer := range slices.Concat(accepted, p.kept) {
		items = append(items, dev.items(peer))
	}
	gone := p.replacedTokens(items)
	dev.odd = p.oddFDB(dev)
	for _, it := range items {
		p.setPeer(dev, it)
	}
	p.oldPeers(dev, items)
	for _, mac := range gone {
		// A scope of its own: nothing that fails before may keep it in.
		p.add("token/"+mac.String(), DenyToken{mac})
	}
}

// acceptedPeers are the peers that can be programmed, in order of subnet.
func (p *planner) acceptedPeers() []Peer {
	out := make([]Peer, 0, len(p.want.Peers))
	macs := make(map[MAC]netip.Prefix, len(p.want.Peers))
	taken := newPrefixSet(len(p.want.Peers))
	for _, peer := range p.want.Peers {
		taken.expect(peer.Subnet)
	}
	for _, peer := range p.want.Peers {
		own, overlaps := p.ownOverlap(peer.Subnet)
		other, clash := taken.overlap(peer.Subnet)
		same, double := macs[peer.MAC]
		switch {
		case overlaps:
			p.reject(peer, "subnet %s overlaps %s of this node", peer.Subnet, own)
		case clash:
			p.reject(peer, "subnet %s overlaps %s of another peer", peer.Subnet, other)
		case double:
			p.reject(peer, "VTEP MAC %s is also that of the peer with %s", peer.MAC, same)
		case peer.PublicIP == p.want.Vxlan.Local:
			p.reject(peer, "public address %s is this node's own", peer.PublicIP)
		default:
			macs[peer.MAC] = peer.Subnet
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
	if p.want.Vxlan.Addr.Overlaps(subnet) {
		return p.want.Vxlan.Addr, true
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
func (p *planner) replacedTokens(items []peerItems) (gone []MAC) {
	wanted := make(map[MAC]netip.Prefix, len(items))
	subnets := newPrefixSet(len(items))
	for _, subnet := range p.have.Tokens {
		subnets.expect(subnet)
	}
	for _, it := range items {
		subnets.expect(it.peer.Subnet)
	}
	for _, it := range items {
		wanted[it.peer.MAC] = it.peer.Subnet
		subnets.add(it.peer.Subnet)
	}
	for _, mac := range keysThat(p.have.Tokens, compareMACs, func(mac MAC) bool {
		return wanted[mac] != p.have.Tokens[mac]
	}) {
		_, keep := wanted[mac]
		_, overlaps := subnets.overlap(p.have.Tokens[mac])
		if overlaps {
			p.add("token/"+mac.String(), DenyToken{mac})
		} else if !keep {
			gone = append(gone, mac)
		}
	}
	return gone
}

func (p *planner) setPeer(dev overlay, it peerItems) {
	if dev.attached || p.have.Tokens[it.peer.MAC] != it.peer.Subnet {
		p.add(it.scope(), AllowToken{it.peer.MAC, it.peer.Subnet})
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
	going := func(r Route) bool {
		return (dev.fresh || dev.flushed) && r.Link == dev.name || p.leavesBridge(r)
	}
	if foreign := p.setRoute(it.scope, it.route, going); foreign != nil {
		p.reject(it.peer, "route %s is not ours and in the way", *foreign)
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
		return ownRoute(r, dev.name) && !routes[r.place()]
	}) {
		p.add(peerScope(r.Dst), DelRoute{r})
	}
	for _, n := range keysThat(p.have.Neighs, compareNeighs, func(n Neigh) bool {
		return n.Link == dev.name && !neighs[n]
	}) {
		p.add(scopeVxlan+"/old", DelNeigh{n})
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
		p.add(scopeVxlan+"/old", DelFDB{f})
	}
}
