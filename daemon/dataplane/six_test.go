package dataplane_test

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/dataplane/fakekernel"
)

func TestIPv6Fake(t *testing.T) { conformance6(t, fakeMachine) }

func TestIPv6Linux(t *testing.T) {
	needsRoot(t)
	conformance6(t, func(t *testing.T) *machine { return linuxMachine(t, "iptables-nft") })
}

func TestIPv6LinuxLegacy(t *testing.T) {
	needsRoot(t)
	conformance6(t, func(t *testing.T) *machine { return linuxMachine(t, "iptables-legacy") })
}

// conformance6 is the part of the suite about IPv6.
func conformance6(t *testing.T, newMachine func(*testing.T) *machine) {
	for name, f := range map[string]func(*testing.T, *machine){
		"DualFromNothing":   dualFromNothing,
		"SixAlone":          sixAlone,
		"I4Vandalism":       vandalism6,
		"M4EachFamilyApart": eachFamilyApart,
		"StrandedSubnet":    stranded6,
		"FamilyGoes":        familyGoes,
		"KeptPeers":         keptPeers6,
		"KeptFamily":        keptFamily,
		"KeptPlainRoutes":   keptDirect6,
		"RoutersAreHeard":   routersAreHeard,
		"NoOverlayOfOne":    noOverlayOfOne,
		"OneFamilyAsFound":  oneFamilyAsFound,
		"DirectAndBack":     directAndBack6,
	} {
		t.Run(name, func(t *testing.T) { f(t, newMachine(t)) })
	}
}

// dualFromNothing applies everything twice, one after the other.
func dualFromNothing(t *testing.T, m *machine) {
	want := dual34(35, 36)
	ops, conflicts := dataplane.Plan(want, m.read(t))
	if len(conflicts) > 0 {
		t.Errorf("conflicts %v", conflicts)
	}
	for _, op := range ops {
		for range 2 {
			if op.Kind() == "rules" {
				break
			}
			if err := m.kernel.Apply(t.Context(), op); err != nil && op.Kind() != "link" && op.Kind() != "route" {
				t.Fatalf("%s: %v", op, err)
			}
		}
	}
	m.converge(t, want)
	s := m.read(t)
	if s.Sysctls[fakekernel.IPForward6] != "1" {
		t.Error("IPv6 is not routed")
	}
	for _, l := range []string{overlay, overlay6} {
		if !s.Fenced[l] || !s.Links[l].Up {
			t.Errorf("%s: fenced %v, %+v", l, s.Fenced, s.Links[l])
		}
	}
	if s.Links[overlay6].MTU != 1430 || s.Tokens[mac(35)] != prefix("10.5.35.0/24") {
		t.Errorf("link %+v, tokens %v", s.Links[overlay6], s.Tokens)
	}
}

// sixAlone leaves IPv4 as it is.
func sixAlone(t *testing.T, m *machine) {
	m.converge(t, six34(35, 36))
	s := m.read(t)
	if len(s.Rules.Chains)+jumps(s.Rules) > 0 || len(s.Rules6.Chains) != 3 || s.Sysctls[fakekernel.IPForward] != "0" {
		t.Errorf("rules %+v and %+v, routing %s", s.Rules, s.Rules6, s.Sysctls[fakekernel.IPForward])
	}
	if s.Tokens[mac(35)] != prefix("fd00:5:0:23::/64") || len(s.Links[overlay].Kind) > 0 {
		t.Errorf("tokens %v, links %v", s.Tokens, s.Links)
	}
}

func vandalism6(t *testing.T, m *machine) {
	want := dual34(35, 36)
	m.converge(t, want)
	pristine := m.read(t)
	sub, base := prefix("fd00:5:0:24::/64"), addr("fd00:5:0:24::")
	route := dataplane.Route{Dst: sub, Via: base, Link: overlay6, Type: "unicast", Metric: 1024, Protocol: dataplane.RouteProtocol, Onlink: true}
	local := func(link, a string) dataplane.Route {
		return dataplane.Route{Dst: prefix(a + "/128"), Link: link, Type: dataplane.RouteLocal, Protocol: 2}
	}
	gateway := dataplane.Addr{Link: bridge, Prefix: prefix("fd00:5:0:22::1/64")}
	var linkLocal dataplane.Addr
	for a := range pristine.Addrs {
		if a.Link == bridge && a.Prefix.Addr().IsLinkLocalUnicast() {
			linkLocal = a
		}
	}
	for _, c := range []struct {
		name    string
		changes []dataplane.Change
	}{
		{"device deleted", []dataplane.Change{dataplane.DelLink{Link: overlay6}}},
		{"device down", []dataplane.Change{dataplane.SetDown{Link: overlay6}}},
		{"device's MAC", []dataplane.Change{dataplane.SetMAC{Link: overlay6, MAC: mac(77)}}},
		{"bridge deleted", []dataplane.Change{dataplane.DelLink{Link: bridge}}},
		{"bridge down", []dataplane.Change{dataplane.SetDown{Link: bridge}}},
		{"gateway deleted", []dataplane.Change{dataplane.DelAddr{Addr: gateway}}},
		{"gateway's length", []dataplane.Change{dataplane.DelAddr{Addr: gateway}, dataplane.AddAddr{Addr: dataplane.Addr{Link: bridge, Prefix: prefix("fd00:5:0:22::1/128")}}}},
		{"link-local address deleted", []dataplane.Change{dataplane.DelAddr{Addr: linkLocal}}},
		{"second address", []dataplane.Change{dataplane.AddAddr{Addr: dataplane.Addr{Link: bridge, Prefix: prefix("fd00:5:0:22::99/64")}}}},
		{"route to the gateway", []dataplane.Change{dataplane.DelRoute{Route: local(bridge, "fd00:5:0:22::1")}}},
		{"route to the device's own address", []dataplane.Change{dataplane.DelRoute{Route: local(overlay6, "fd00:5:0:22::")}}},
		{"route to the pods", []dataplane.Change{dataplane.DelRoute{Route: dataplane.Route{
			Dst: prefix("fd00:5:0:22::/64"), Link: bridge, Type: "unicast", Metric: 256, Protocol: 2}}}},
		{"unreachable route", []dataplane.Change{dataplane.DelRoute{Route: dataplane.Route{
			Dst: prefix("fd00:5::/48"), Type: dataplane.RouteUnreachable, Metric: dataplane.UnreachableMetric, Protocol: dataplane.RouteProtocol}}}},
		{"route", []dataplane.Change{dataplane.DelRoute{Route: route}}},
		{"neighbour", []dataplane.Change{dataplane.DelNeigh{Neigh: dataplane.Neigh{Link: overlay6, Addr: base}}}},
		{"forwarding entry", []dataplane.Change{dataplane.DelFDB{FDB: dataplane.FDB{Link: overlay6, MAC: mac(36), Dst: addr("2001:db8::24")}}}},
		{"forwarding entry bent", []dataplane.Change{dataplane.SetFDB{FDB: dataplane.FDB{Link: overlay6, MAC: mac(36), Dst: addr("2001:db8::99")}}}},
		{"token", []dataplane.Change{dataplane.DenyToken{MAC: mac(36)}}},
		{"token of the second family", []dataplane.Change{dataplane.AllowToken{MAC: mac(36), Subnet: sub}}},
		{"routing", []dataplane.Change{dataplane.SetSysctl{Path: fakekernel.IPForward6, Value: "0"}}},
		{"duplicate address detection", []dataplane.Change{dataplane.SetSysctl{Path: "net/ipv6/conf/" + bridge + "/accept_dad", Value: "1"}}},
		{"routers", []dataplane.Change{dataplane.SetSysctl{Path: "net/ipv6/conf/" + overlay6 + "/accept_ra", Value: "1"}}},
		{"rules", []dataplane.Change{dataplane.SetRules{Six: true, Tables: []dataplane.TableEdit{{Table: "nat", Fill: []dataplane.ChainRules{{Chain: "TENURE-MASQ"}}}}}}},
	} {
		m.change(t, c.changes...)
		ops := m.converge(t, want)
		if len(ops) == 0 {
			t.Errorf("%s: not repaired", c.name)
		}
		for _, op := range ops {
			if op.Kind() == "link" || op.Kind() == "rules" || strings.Contains(op.String(), bridge) {
				continue
			}
			if strings.Contains(op.String(), " "+overlay+" ") || strings.HasSuffix(op.String(), overlay) {
				t.Errorf("%s: disturbs the other family: %s", c.name, op)
			}
		}
		sameState(t, pristine, m.read(t))
		if t.Failed() {
			t.Fatalf("%s: not the same afterwards; repaired with\n%s", c.name, text(ops))
		}
	}
}

// eachFamilyApart is row M4: a peer changes in one family, and in the other
// everything stays.
func eachFamilyApart(t *testing.T, m *machine) {
	want := dual34(35, 36)
	m.converge(t, want)
	change := func(six bool, f func(*dataplane.Peer)) {
		t.Helper()
		want.Peers = slices.Clone(want.Peers)
		for i := range want.Peers {
			if p := &want.Peers[i]; p.Subnet.Addr().Is6() == six && (p.Subnet.Contains(addr("10.5.36.0")) || p.Subnet.Contains(addr("fd00:5:0:24::"))) {
				f(p)
			}
		}
		for _, op := range m.converge(t, want) {
			if op.Kind() != "token" && (strings.Contains(op.String(), overlay6) != six || op.Kind() == "link") {
				t.Errorf("a change of IPv6 %t: %s", six, op)
			}
			if d, ok := op.Change.(dataplane.DenyToken); ok && slices.ContainsFunc(want.Peers, func(p dataplane.Peer) bool { return p.MAC == d.MAC }) {
				t.Errorf("shut out, though the other family has it: %s", op)
			}
		}
		if s := m.read(t); len(s.Tokens) > 3 || len(s.FDB) != 4 {
			t.Errorf("tokens %v, forwarding entries %v", s.Tokens, s.FDB)
		}
	}
	change(true, func(p *dataplane.Peer) { p.MAC = mac(600) })
	change(false, func(p *dataplane.Peer) { p.MAC = mac(400) })
	change(true, func(p *dataplane.Peer) { p.MAC = mac(400) })
	// From one MAC for both, the first family goes on: the second keeps it.
	change(false, func(p *dataplane.Peer) { p.MAC = mac(401) })
	change(true, func(p *dataplane.Peer) { p.PublicIP = addr("2001:db8::77") })
	change(false, func(p *dataplane.Peer) { p.PublicIP = addr("192.0.2.77") })
}

// stranded6: a subnet that another node holds gives way to a route for each pod.
func stranded6(t *testing.T, m *machine) {
	both := dual34(35)
	both.Bridge.Gateways = append(both.Bridge.Gateways, prefix("fd00:5:0:1e::1/64"))
	m.converge(t, both)
	taken := dual34(35, 30)
	taken.Bridge.Gateways = append(taken.Bridge.Gateways, prefix("fd00:5:0:1e::1/128"))
	taken.HostRoutes = []netip.Addr{addr("fd00:5:0:1e::7")}
	m.converge(t, taken)
	pod := dataplane.Route{Dst: prefix("fd00:5:0:1e::7/128"), Link: bridge, Type: "unicast", Metric: 1024, Protocol: dataplane.RouteProtocol}
	s := m.read(t)
	if _, ok := s.Routes[pod]; !ok {
		t.Errorf("no route to the pod: %v", s.Routes)
	}
	if missing := missingOf(s, overlay6, peer6(30), true); missing != "" {
		t.Errorf("the new tenant has no %s", missing)
	}
	m.converge(t, dual34(35, 30))
	if s := withoutLinkLocal(m.read(t)); len(s.Addrs) != 4 {
		t.Errorf("addresses %v", s.Addrs)
	}
}

// familyGoes: without pods of IPv6 nothing of it stays, but for how the host
// routes.
func familyGoes(t *testing.T, m *machine) {
	m.converge(t, dual34(35, 36))
	want := node34(peer(35), peer(36))
	want.Former = []netip.Prefix{prefix("fd00:5::/48")}
	m.converge(t, want)
	s := m.read(t)
	for a := range s.Addrs {
		if a.Prefix.Addr().Is6() && !a.Prefix.Addr().IsLinkLocalUnicast() {
			t.Errorf("left: %s", a)
		}
	}
	for r := range s.Routes {
		if r.Protocol == dataplane.RouteProtocol && r.Dst.Addr().Is6() {
			t.Errorf("left: %s", r)
		}
	}
	if _, ok := s.Links[overlay6]; ok || len(s.Rules6.Chains)+jumps(s.Rules6) > 0 {
		t.Errorf("left: %v, %+v", slices.Sorted(maps.Keys(s.Links)), s.Rules6)
	}
}

func jumps(r *dataplane.Rules) (n int) {
	for _, rules := range r.Jumps {
		n += len(rules)
	}
	return n
}

// keptPeers6: with the list in doubt a peer stays in both families, until one of
// its subnets is somebody else's, or this node's.
func keptPeers6(t *testing.T, m *machine) {
	m.converge(t, dual34(35, 36))
	want := dual34()
	want.KeepPeers = true
	if ops := m.converge(t, want); len(ops) > 0 {
		t.Errorf("wrote\n%s", text(ops))
	}
	want.Claims = []netip.Prefix{prefix("10.5.36.0/24")}
	m.converge(t, want)
	s := m.read(t)
	if len(s.Tokens) != 1 || len(s.FDB) != 2 || len(s.Neighs) != 2 {
		t.Errorf("tokens %v, entries %v, neighbours %v", s.Tokens, s.FDB, s.Neighs)
	}
	want.Claims = nil
	want.Bridge.Gateways = append(want.Bridge.Gateways, prefix("10.5.35.1/24"))
	m.converge(t, want)
	if s := m.read(t); len(s.Tokens)+len(s.FDB)+len(s.Neighs) > 0 {
		t.Errorf("with the subnet on the bridge: tokens %v, entries %v, neighbours %v", s.Tokens, s.FDB, s.Neighs)
	}
}

// keptFamily: with the list in doubt, a peer that is on it with one family has what
// the list says of it, in the first pass already.
func keptFamily(t *testing.T, m *machine) {
	four, six := withIPv6(node34(peer(36))), withIPv6(node34(), peer6(36))
	for name, c := range map[string]struct{ before, listed dataplane.Desired }{
		"IPv4 listed": {six, four}, "IPv6 listed": {four, six}, "of both, IPv4 listed": {dual34(36), four}, "of both, IPv6 listed": {dual34(36), six},
	} {
		m.converge(t, c.before)
		c.listed.KeepPeers = true
		m.converge(t, c.listed)
		s, p, link := m.read(t), c.listed.Peers[0], overlay
		if p.Subnet.Addr().Is6() {
			link = overlay6
		}
		if missing := missingOf(s, link, p, true); missing != "" || len(s.Tokens) != 1 || len(s.FDB) != 1 || len(s.Neighs) != 1 {
			t.Errorf("%s: there is no %q; tokens %v, entries %v, neighbours %v", name, missing, s.Tokens, s.FDB, s.Neighs)
		}
	}
}

// keptDirect6: that holds of peers with plain routes too; each is kept once.
func keptDirect6(t *testing.T, m *machine) {
	all := dual34(35, 36)
	all.Uplink = underlay
	for i := range all.Peers {
		all.Peers[i].Direct = true
	}
	m.converge(t, all)
	before := m.read(t)
	want := dual34()
	want.Uplink, want.KeepPeers = underlay, true
	if ops := m.converge(t, want); len(ops) > 0 {
		t.Errorf("wrote\n%s", text(ops))
	}
	sameState(t, before, m.read(t))
}

// routersAreHeard: a link with a route from a router keeps it, though the host
// routes from now on; one that is told not to listen is left alone.
func routersAreHeard(t *testing.T, m *machine) {
	const setting = "net/ipv6/conf/" + underlay + "/accept_ra"
	route := dataplane.Route{Dst: prefix("::/0"), Via: addr("2001:db8::fe"), Link: underlay, Type: "unicast", Metric: 1024, Protocol: 9}
	for _, c := range []struct{ set, want string }{{"1", "2"}, {"0", "0"}} {
		m.change(t, dataplane.SetSysctl{Path: fakekernel.IPForward6, Value: "0"}, dataplane.SetSysctl{Path: setting, Value: c.set})
		m.change(t, dataplane.DelRoute{Route: route}, dataplane.SetRoute{Route: route})
		m.converge(t, dual34(35))
		s := m.read(t)
		if s.Sysctls[setting] != c.want || s.Sysctls[fakekernel.IPForward6] != "1" {
			t.Errorf("from %s: %s is %s, routing %s", c.set, setting, s.Sysctls[setting], s.Sysctls[fakekernel.IPForward6])
		}
		if _, ok := s.Routes[route]; !ok {
			t.Error("the route is gone")
		}
	}
}

// noOverlayOfOne: where a family has lost its underlay address, its device stays
// and stays fenced, and the other goes on.
func noOverlayOfOne(t *testing.T, m *machine) {
	m.converge(t, dual34(35))
	before := m.read(t)
	want := dual34(35)
	want.Overlays = want.Overlays[:1]
	m.guard.Detach(before.Links[overlay6].Index)
	m.converge(t, want)
	sameState(t, before, m.read(t))
}

// directAndBack6: a peer is reached directly for a while, then through the overlay
// again. IPv6 takes no next hop that another route leads to.
func directAndBack6(t *testing.T, m *machine) {
	want := dual34(35, 36)
	m.settle(t, want)
	before := m.read(t)
	for _, overlays := range [][]dataplane.Vxlan{want.Overlays, nil} {
		direct := dual34(35, 36)
		direct.Uplink, direct.Overlays = underlay, overlays
		for i := range direct.Peers {
			direct.Peers[i].Direct = true
		}
		m.settle(t, direct)
		if ops := text(m.settle(t, want)); strings.Contains(ops, "route del fd00:5:0:23::/128") {
			t.Errorf("something was left to be cleared away:\n%s", ops)
		}
		sameState(t, before, m.read(t))
	}
}

// oneFamilyAsFound: of a family without an address nothing is taken away, while
// the peers of the other come and go.
func oneFamilyAsFound(t *testing.T, m *machine) {
	backends := map[string]func(*dataplane.Desired){
		"overlay": func(*dataplane.Desired) {},
		"direct":  func(d *dataplane.Desired) { d.Uplink = underlay },
		"host-gw": func(d *dataplane.Desired) { d.Uplink, d.Overlays = underlay, nil },
	}
	for _, name := range []string{"overlay", "direct", "host-gw"} {
		make := backends[name]
		wish := func(peers ...int) dataplane.Desired {
			d := dual34(peers...)
			make(&d)
			for i := range d.Peers {
				d.Peers[i].Direct = d.Uplink != ""
				if len(d.Overlays) == 0 {
					d.Peers[i].MAC = dataplane.MAC{}
				}
			}
			return d
		}
		for _, six := range []bool{true, false} {
			without := func(peers ...int) dataplane.Desired {
				d := wish(peers...)
				asFound(&d, six)
				return d
			}
			m.settle(t, wish(35, 36))
			before := m.read(t)
			m.settle(t, without(35, 36))
			after := m.read(t)
			after.Tokens, before.Tokens = nil, nil // one may stand for the other family's subnet now
			sameState(t, before, after)
			m.settle(t, without(36, 37))
			s := m.read(t)
			for n, there := range map[int][2]bool{35: {!six, six}, 36: {true, true}, 37: {six, !six}} {
				for i, p := range []dataplane.Peer{peer(n), peer6(n)} {
					if got := slices.ContainsFunc(slices.Collect(maps.Keys(s.Routes)), func(r dataplane.Route) bool { return r.Dst == p.Subnet && r.Via.IsValid() }); got != there[i] {
						t.Errorf("%s, without IPv6 %t: a route to %s is there: %t", name, six, p.Subnet, got)
					}
				}
			}
			m.settle(t, wish(36))
			if ops := m.settle(t, wish(36)); len(ops) > 0 {
				t.Errorf("%s, with both again: %s", name, text(ops))
			}
			if s := m.read(t); slices.ContainsFunc(slices.Collect(maps.Keys(s.Routes)), func(r dataplane.Route) bool { return r.Dst == peer6(35).Subnet || r.Dst == peer(35).Subnet }) {
				t.Errorf("%s, with both again: what led to a peer that is gone has stayed", name)
			}
		}
	}
}

// TestWithoutIPv6 is row M1 for the plan: on a kernel without IPv6 the other
// family is all there, nothing of IPv6 is written, and it is said.
func TestWithoutIPv6(t *testing.T) {
	m := fakeMachine(t)
	fake := m.kernel.(*fakekernel.Kernel)
	fake.Edit(func(s *dataplane.State) {
		s.IPv6 = false
		maps.DeleteFunc(s.Sysctls, func(path, _ string) bool { return strings.HasPrefix(path, "net/ipv6") })
	})
	four := fakeMachine(t)
	four.kernel.(*fakekernel.Kernel).Edit(func(s *dataplane.State) { s.IPv6 = false })
	four.converge(t, node34(peer(35)))
	ops, conflicts := dataplane.Plan(dual34(35), m.read(t))
	for _, op := range ops {
		if s := op.String(); strings.Contains(s, "ipv6") || strings.Contains(s, "fd00:") || strings.Contains(s, "fe80:") || strings.Contains(s, "rules6") {
			t.Errorf("%s", s)
		}
		if err := fake.Apply(context.Background(), op); err != nil {
			t.Fatal(err)
		}
	}
	if len(conflicts) != 1 || !strings.Contains(conflicts[0].Text, "no IPv6") {
		t.Errorf("conflicts %v", conflicts)
	}
	if a, b := m.read(t), four.read(t); len(a.Routes) != len(b.Routes) || len(a.Neighs) != len(b.Neighs) || !m.read(t).Fenced[overlay] {
		t.Errorf("IPv4 has %v and %v", a.Routes, a.Neighs)
	}
}
