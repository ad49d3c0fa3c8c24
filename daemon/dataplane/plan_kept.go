package dataplane

import (
	"net/netip"
	"slices"
)

// keptPeers are the peers on a device that are not wanted, and stay all the
// same because Desired.KeepPeers asks for it. They are then treated as wanted
// ones, so that what is missing of them comes back.
//
// A peer is known by its token and its forwarding entry, which together say
// all about it in the family of the token: they are written first and removed
// last, and the kernel holds on to them when the device goes down or changes its
// MAC. Without either the rest is a leftover. No token is ever let in again: it may have been shut out
// for a later tenant.
func (p *planner) keptPeers(dev overlay, wanted []Peer) []Peer {
	if !p.want.KeepPeers {
		return nil
	}
	found := p.foundPeers(dev)
	macs := map[vtep]bool{}
	for _, peer := range wanted {
		macs[peer.vtep()] = true
	}
	listed := make(map[MAC]bool, len(p.want.Peers))
	for _, peer := range p.want.Peers {
		listed[peer.MAC] = true
	}
	taken := p.claimed(found)
	var kept []Peer
	for _, peer := range found {
		_, own := p.ownOverlap(peer.Subnet)
		_, clash := taken.overlap(peer.Subnet)
		// A tenancy is of both families: it ends with either. And one that is in
		// the list has what the list says.
		_, ended := taken.overlap(p.have.Tokens[peer.MAC])
		_, ours := p.ownOverlap(p.have.Tokens[peer.MAC])
		if own || ours || clash || ended || listed[peer.MAC] || macs[peer.vtep()] || peer.PublicIP == dev.want.Local || !p.want.inNetwork(peer.Subnet) {
			continue
		}
		taken.add(peer.Subnet)
		kept = append(kept, peer)
	}
	slices.SortFunc(kept, func(a, b Peer) int { return a.Subnet.Compare(b.Subnet) })
	return kept
}

// keptDirect are those that have no place in an overlay, and of which the direct
// route says all.
func (p *planner) keptDirect() []Peer {
	if !p.want.KeepPeers || p.have.Uplinks == nil {
		return nil
	}
	tokens := map[netip.Prefix]bool{}
	for _, subnet := range p.have.Tokens {
		tokens[subnet] = true
	}
	for _, v := range p.want.Overlays {
		for mac, subnet := range p.secondSubnets(v.DeviceName(p.want.Name)) {
			tokens[subnet] = tokens[subnet] || p.have.Tokens[mac].IsValid()
		}
	}
	var found, kept []Peer
	for _, r := range p.up.standing[p.up.link] {
		if !tokens[r.Dst] || len(p.want.Overlays) == 0 {
			found = append(found, Peer{Subnet: r.Dst, PublicIP: r.Via, Direct: true})
		}
	}
	taken := p.claimed(found)
	for _, peer := range found {
		_, own := p.ownOverlap(peer.Subnet)
		_, clash := taken.overlap(peer.Subnet)
		if !own && !clash && p.want.inNetwork(peer.Subnet) {
			taken.add(peer.Subnet)
			kept = append(kept, peer)
		}
	}
	return kept
}

// foundPeers are the peers that the kernel has on the device, those of which
// nothing is missing first: where two overlap, the earlier one is right.
func (p *planner) foundPeers(dev overlay) []Peer {
	targets := map[MAC]netip.Addr{}
	for _, f := range keysThat(p.have.FDB, compareFDB, func(f FDB) bool { return f.Link == dev.name }) {
		targets[f.MAC] = f.Dst
	}
	seconds := p.secondSubnets(dev.name)
	var whole, damaged []Peer
	for _, mac := range keysThat(p.have.Tokens, compareMACs, func(mac MAC) bool { return targets[mac].IsValid() }) {
		peer := Peer{Subnet: p.have.Tokens[mac], PublicIP: targets[mac], MAC: mac}
		if peer.Subnet.Addr().Is6() != dev.want.Local.Is6() {
			peer.Subnet = seconds[mac]
		}
		if !peer.Subnet.IsValid() {
			continue
		}
		it := dev.items(peer)
		peer.Direct = p.up.link != "" && has(p.have.Routes, p.up.route(peer))
		if p.have.Neighs[it.neigh] == mac && (peer.Direct || has(p.have.Routes, it.route)) {
			whole = append(whole, peer)
		} else {
			damaged = append(damaged, peer)
		}
	}
	return append(whole, damaged...)
}

// secondSubnets are the subnets of peers whose tokens speak of another family,
// by neighbour and route. Both go when the device goes down: then nobody knows
// any more which they were.
func (p *planner) secondSubnets(device string) map[MAC]netip.Prefix {
	seconds := map[MAC]netip.Prefix{}
	for _, r := range p.routesThat(Route.leadsDirectly) { // through the overlay or not
		if mac, ok := p.have.Neighs[Neigh{device, r.Dst.Addr()}]; ok {
			seconds[mac] = r.Dst
		}
	}
	return seconds
}

// claimed are the subnets that have a tenant by what is wanted, whether it can
// be programmed or not. The set may be asked about the peers given.
func (p *planner) claimed(peers []Peer) *prefixSet {
	claims := slices.Clone(p.want.Claims)
	for _, peer := range p.want.Peers {
		claims = append(claims, peer.Subnet)
	}
	set := newPrefixSet(len(claims))
	for _, peer := range peers {
		set.expect(peer.Subnet)
		set.expect(p.have.Tokens[peer.MAC])
	}
	for _, c := range claims {
		set.expect(c)
	}
	for _, c := range claims {
		set.add(c)
	}
	return set
}
