package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Removal returns what takes everything of an instance out of the kernel, in
// order: rules, overlay, bridge, routes, the fence on the uplink. What hangs on
// a device goes with it.
// The ends of pods' interfaces stay, as does forwarding, which others may rely
// on. Of the unreachable routes only those of networks are known to be this
// instance's; without a network of their family they are left. It is pure.
func Removal(instance string, networks []netip.Prefix, have State) (ops []Op, left []Conflict) {
	add := func(scope string, c Change) { ops = append(ops, Op{Scope: scope, Change: c}) }
	for _, rules := range []struct {
		six  bool
		have *Rules
	}{{false, have.Rules}, {true, have.Rules6}} {
		if rules.have == nil {
			continue
		}
		if edits := noRules(instance, *rules.have); len(edits) > 0 {
			add(scopeRules, SetRules{Six: rules.six, Tables: edits})
		}
	}
	bridge := bridgeName(instance)
	for _, name := range keysThat(have.Links, strings.Compare, func(name string) bool {
		return name == bridge || ourVxlan(instance, name)
	}) {
		kind, what := KindVxlan, ConflictOverlay
		if name == bridge {
			kind, what = KindBridge, ConflictBridge
		}
		if is := have.Links[name].Kind; is != kind {
			left = append(left, Conflict{What: what, Text: fmt.Sprintf("%s is a %s and not a %s, and is left alone", name, is, kind)})
			continue
		}
		add(scopeVxlan+"/"+name, DelLink{name})
	}
	led := map[string]bool{} // devices that direct routes have been seen through
	slices.SortStableFunc(ops, func(a, b Op) int { return rankOfRemoval(a, bridge) - rankOfRemoval(b, bridge) })
	for _, r := range keysThat(have.Routes, compareRoutes, func(r Route) bool {
		direct := r.leadsDirectly() && r.Link != bridge && !ourVxlan(instance, r.Link)
		return r.Protocol == RouteProtocol && r.Type == RouteUnreachable || direct
	}) {
		sameFamily := func(n netip.Prefix) bool { return n.Addr().Is4() == r.Dst.Addr().Is4() }
		switch {
		case r.Type == RouteUnicast && !slices.ContainsFunc(networks, sameFamily):
			// The fence stays too then, which is shut.
			led[r.Link] = true
			fallthrough
		case !slices.ContainsFunc(networks, sameFamily):
			left = append(left, Conflict{What: "route", Text: fmt.Sprintf("%s is left: whose it is, is not known without the pod network", r)})
		case slices.ContainsFunc(networks, r.Dst.Overlaps):
			led[r.Link] = true
			add(scopeNetwork, DelRoute{r})
		}
	}
	for _, link := range keysThat(have.Uplinks, strings.Compare, func(link string) bool { return !led[link] }) {
		add(uplinkScope(link), DetachUplink{link})
	}
	return ops, left
}

// rankOfRemoval puts the overlay before the bridge.
func rankOfRemoval(o Op, bridge string) int {
	link, ok := o.Change.(DelLink)
	switch {
	case !ok:
		return 0
	case link.Link != bridge:
		return 1
	}
	return 2
}

// noRules are the edits after which no rule and no chain of the instance is
// left.
func noRules(instance string, have Rules) []TableEdit {
	var edits []TableEdit
	for _, c := range ourChains(instance) {
		if edit := planChain(c, nil, false, have); edit.changes() {
			edits = append(edits, edit)
		}
	}
	return edits
}
