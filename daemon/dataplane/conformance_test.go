package dataplane_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/dataplane/fakekernel"
)

// The suite that the fake and the real kernel pass alike.

func TestConformanceFake(t *testing.T) {
	conformance(t, fakeMachine)
}

func TestConformanceLinuxNFT(t *testing.T) {
	needsRoot(t)
	conformance(t, func(t *testing.T) *machine { return linuxMachine(t, "iptables-nft") })
}

func TestConformanceLinuxLegacy(t *testing.T) {
	needsRoot(t)
	conformance(t, func(t *testing.T) *machine { return linuxMachine(t, "iptables-legacy") })
}

func conformance(t *testing.T, newMachine func(*testing.T) *machine) {
	for name, f := range map[string]func(*testing.T, *machine){
		"FromNothing":              fromNothing,
		"ApplyIsIdempotent":        applyIsIdempotent,
		"I4Vandalism":              vandalism,
		"I1PeersWhileAway":         peersWhileAway,
		"PeerGetsNewMAC":           peerGetsNewMAC,
		"OwnMACChanges":            ownMACChanges,
		"DeviceIsRemade":           deviceIsRemade,
		"VNIChanges":               vniChanges,
		"NoVxlanLeavesAlone":       noVxlanLeavesAlone,
		"StrandedSubnet":           strandedSubnet,
		"OptionsOff":               optionsOff,
		"NetworkIsWidened":         networkIsWidened,
		"NetworkIsNarrowed":        networkIsNarrowed,
		"C1AnotherNetwork":         anotherNetwork,
		"ForeignRouteInTheWay":     foreignRouteInTheWay,
		"ForeignRouteComesLate":    foreignRouteComesLate,
		"ForeignAddress":           foreignAddress,
		"ForeignLinkOfOurName":     foreignLinkOfOurName,
		"ForeignVxlan":             foreignVxlan,
		"C5ForeignLinkAsBridge":    foreignLinkNamedAsBridge,
		"ParentMissing":            parentMissing,
		"L2ChainsAreLists":         chainsAreLists,
		"PortsComeBack":            portsComeBack,
		"I2FlagsComeBack":          flagsComeBack,
		"MissingLinkIsAnError":     missingLink,
		"WatchSignalsAndCloses":    watchSignals,
		"A10FirstSubnetOfAll":      firstSubnet,
		"FencedBeforeUp":           fencedBeforeUp,
		"FencedWithoutSubnet":      fencedWithoutSubnet,
		"FirstAddressOfPrefixGoes": firstAddressGoes,
		"KeptPeers":                keptPeers,
		"KeptPeersAreRepaired":     keptPeersAreRepaired,
		"I9Leftovers":              leftovers,
		"I9FlannelIsNamed":         names,
		"VxlanSettings":            vxlanSettings,
		"BridgeSettings":           bridgeSettings,
		"PortSettings":             portSettings,
		"TakenByAnother":           taken,
		"Renamed":                  renamed,
		"RoutesOfAddresses":        addressRoutes,
		"RouteSettings":            routeSettings,
		"EntrySettings":            entrySettings,
		"K1TxChecksum":             txChecksum,
		"K3MTUFollows":             mtuFollows,
		"K5Clamp":                  clamp,
	} {
		t.Run(name, func(t *testing.T) { f(t, newMachine(t)) })
	}
	for name, f := range uplinkSuite() {
		t.Run(name, func(t *testing.T) { f(t, newMachine(t)) })
	}
}

func fromNothing(t *testing.T, m *machine) {
	want := node34(peer(35), peer(36))
	m.converge(t, want)
	s := m.read(t)
	b, v := s.Links[bridge], s.Links[overlay]
	if b.Kind != "bridge" || b.MAC != want.Bridge.MAC || b.MTU != 1450 || !b.Up {
		t.Errorf("bridge is %+v", b)
	}
	wantTunnel := dataplane.Tunnel{VNI: 1, Port: 8472, Local: addr("192.0.2.1"), Parent: underlay}
	if v.MAC != mac(34) || v.MTU != 1450 || !v.Up || v.Tunnel != wantTunnel {
		t.Errorf("vxlan device is %+v", v)
	}
	if !s.Fenced[overlay] || s.Tokens[mac(35)] != prefix("10.5.35.0/24") || len(s.Tokens) != 2 {
		t.Errorf("fence attached %v, tokens %v", s.Fenced, s.Tokens)
	}
	route := dataplane.Route{
		Dst: prefix("10.5.36.0/24"), Via: addr("10.5.36.0"), Link: overlay,
		Type: "unicast", Protocol: 90, Onlink: true,
	}
	hole := dataplane.Route{
		Dst: prefix("10.5.0.0/16"), Type: "unreachable", Metric: 4278198272, Protocol: 90,
	}
	for _, r := range []dataplane.Route{route, hole} {
		if _, ok := s.Routes[r]; !ok {
			t.Errorf("route %s is missing from %v", r, s.Routes)
		}
	}
	if _, ok := s.FDB[dataplane.FDB{Link: overlay, MAC: mac(36), Dst: addr("192.0.2.36")}]; !ok || len(s.FDB) != 2 {
		t.Errorf("forwarding entries %v", s.FDB)
	}
	if got := s.Neighs[dataplane.Neigh{Link: overlay, Addr: addr("10.5.36.0")}]; got != mac(36) || len(s.Neighs) != 2 {
		t.Errorf("neighbours %v", s.Neighs)
	}
	if s.Sysctls["net/ipv4/ip_forward"] != "1" {
		t.Errorf("sysctls %v", s.Sysctls)
	}
	if len(s.Rules.Chains) != 3 || len(s.Rules.Jumps) != 4 {
		t.Errorf("rules %+v", s.Rules)
	}
}

// applyIsIdempotent applies each change twice, except those that make a link.
func applyIsIdempotent(t *testing.T, m *machine) {
	ctx := context.Background()
	twice := func(want dataplane.Desired) {
		ops, _ := dataplane.Plan(want, m.read(t))
		for _, op := range ops {
			if err := m.kernel.Apply(ctx, op); err != nil {
				t.Fatalf("%s: %v", op, err)
			}
			switch c := op.Change.(type) {
			case dataplane.AddBridge, dataplane.AddVxlan, dataplane.SetRules:
				continue
			case dataplane.SetRoute:
				c.Replace = true
				op.Change = c
			}
			if err := m.kernel.Apply(ctx, op); err != nil {
				t.Errorf("again %s: %v", op, err)
			}
		}
	}
	twice(node34(peer(35), peer(36)))
	twice(node34(peer(36)))
	want := node34()
	want.Overlays[0].VNI = 2
	twice(want)
	m.converge(t, want)
}

// vandalism undoes one thing after the other and wants all of it back in one
// pass, in the same shape.
func vandalism(t *testing.T, m *machine) {
	want := node34(peer(35), peer(36), peer(37))
	m.converge(t, want)
	before := m.read(t)
	pristine := before.Clone()
	base := dataplane.Neigh{Link: overlay, Addr: addr("10.5.36.0")}
	fdb := dataplane.FDB{Link: overlay, MAC: mac(36), Dst: addr("192.0.2.36")}
	elsewhere := fdb
	elsewhere.Dst = addr("192.0.2.99")
	route := dataplane.Route{
		Dst: prefix("10.5.36.0/24"), Via: addr("10.5.36.0"), Link: overlay,
		Type: "unicast", Protocol: 90, Onlink: true,
	}
	hole := dataplane.Route{
		Dst: prefix("10.5.0.0/16"), Type: "unreachable", Metric: dataplane.UnreachableMetric, Protocol: 90,
	}
	stale := route
	stale.Dst, stale.Via = prefix("10.5.77.0/24"), addr("10.5.77.0")
	bent := route
	bent.Via = addr("10.5.37.0")
	forward := dataplane.Chain{Table: "filter", Name: "FORWARD"}
	unjump := dataplane.ChainRule{Chain: "FORWARD", Rule: before.Rules.Jumps[forward][0]}
	for _, c := range []struct {
		name    string
		changes []dataplane.Change
		// most is the greatest number of changes that may be needed.
		most int
	}{
		{"vxlan device deleted", []dataplane.Change{dataplane.DelLink{Link: overlay}}, 99},
		{"bridge deleted", []dataplane.Change{dataplane.DelLink{Link: bridge}}, 6},
		{"vxlan device down", []dataplane.Change{dataplane.SetDown{Link: overlay}}, 7},
		{"bridge down", []dataplane.Change{dataplane.SetDown{Link: bridge}}, 1},
		{"vxlan MAC changed", []dataplane.Change{dataplane.SetMAC{Link: overlay, MAC: mac(9999)}}, 4},
		{"bridge MAC changed", []dataplane.Change{dataplane.SetMAC{Link: bridge, MAC: mac(9999)}}, 1},
		{"vxlan MTU changed", []dataplane.Change{dataplane.SetMTU{Link: overlay, MTU: 1400}}, 1},
		{"vxlan checksums left to the hardware", []dataplane.Change{dataplane.SetTxChecksum{Link: overlay, On: true}}, 1},
		{"bridge MTU changed", []dataplane.Change{dataplane.SetMTU{Link: bridge, MTU: 1400}}, 1},
		{"vxlan address deleted", []dataplane.Change{dataplane.DelAddr{Addr: dataplane.Addr{Link: overlay, Prefix: prefix("10.5.34.0/32")}}}, 7},
		{"bridge address deleted", []dataplane.Change{dataplane.DelAddr{Addr: dataplane.Addr{Link: bridge, Prefix: prefix("10.5.34.1/24")}}}, 1},
		{"stray address on the bridge", []dataplane.Change{dataplane.AddAddr{Addr: dataplane.Addr{Link: bridge, Prefix: prefix("10.5.99.1/24")}}}, 1},
		{"stray address on the vxlan device", []dataplane.Change{dataplane.AddAddr{Addr: dataplane.Addr{Link: overlay, Prefix: prefix("10.5.99.0/32")}}}, 1},
		{"route deleted", []dataplane.Change{dataplane.DelRoute{Route: route}}, 1},
		{"route bent", []dataplane.Change{dataplane.SetRoute{Route: bent, Replace: true}}, 1},
		{"unreachable route deleted", []dataplane.Change{dataplane.DelRoute{Route: hole}}, 1},
		{"stale route", []dataplane.Change{dataplane.SetRoute{Route: stale}}, 1},
		{"neighbour deleted", []dataplane.Change{dataplane.DelNeigh{Neigh: base}}, 1},
		{"neighbour changed", []dataplane.Change{dataplane.SetNeigh{Neigh: base, MAC: mac(9999)}}, 1},
		{"forwarding entry deleted", []dataplane.Change{dataplane.DelFDB{FDB: fdb}}, 1},
		{"forwarding entry bent", []dataplane.Change{dataplane.SetFDB{FDB: elsewhere}}, 1},
		{"token denied", []dataplane.Change{dataplane.DenyToken{MAC: mac(36)}}, 1},
		{"token of nobody", []dataplane.Change{dataplane.AllowToken{MAC: mac(77), Subnet: prefix("10.5.77.0/24")}}, 1},
		{"second token for a subnet", []dataplane.Change{dataplane.AllowToken{MAC: mac(77), Subnet: prefix("10.5.36.0/24")}}, 1},
		{"forwarding off", []dataplane.Change{dataplane.SetSysctl{Path: "net/ipv4/ip_forward", Value: "0"}}, 1},
		{"redirects on", []dataplane.Change{dataplane.SetSysctl{Path: "net/ipv4/conf/all/send_redirects", Value: "1"}}, 1},
		{"redirects of the bridge on", []dataplane.Change{dataplane.SetSysctl{Path: "net/ipv4/conf/" + bridge + "/send_redirects", Value: "1"}}, 1},
		{"jump removed", []dataplane.Change{dataplane.SetRules{Tables: []dataplane.TableEdit{{Table: "filter", Unjump: []dataplane.ChainRule{unjump}}}}}, 1},
		{"chain and jump removed", []dataplane.Change{dataplane.SetRules{Tables: []dataplane.TableEdit{{Table: "filter", Unjump: []dataplane.ChainRule{unjump}, Drop: []string{"TENURE-FWD"}}}}}, 1},
		{"chain emptied", []dataplane.Change{dataplane.SetRules{Tables: []dataplane.TableEdit{{Table: "nat", Fill: []dataplane.ChainRules{{Chain: "TENURE-MASQ"}}}}}}, 1},
	} {
		m.change(t, c.changes...)
		ops := m.converge(t, want)
		if len(ops) == 0 || len(ops) > c.most {
			t.Errorf("%s: repaired with %d changes, want 1 to %d:\n%s", c.name, len(ops), c.most, text(ops))
		}
		sameState(t, pristine, m.read(t))
		if t.Failed() {
			t.Fatalf("%s: not the same afterwards; repaired with\n%s", c.name, text(ops))
		}
	}
}

// peersWhileAway is a start after a long time: three peers went, two changed,
// one came, and somebody put a route on our device.
func peersWhileAway(t *testing.T, m *machine) {
	var peers []dataplane.Peer
	for n := 41; n <= 50; n++ {
		peers = append(peers, peer(n))
	}
	m.converge(t, node34(peers...))
	foreign := dataplane.Route{
		Dst: prefix("10.5.200.0/24"), Link: overlay, Type: "unicast", Protocol: 4, LinkScope: true,
	}
	m.change(t, dataplane.SetRoute{Route: foreign})
	peers = append(slices.Clone(peers[3:]), peer(60))
	peers[0].MAC, peers[1].PublicIP = mac(444), addr("192.0.2.200")
	want := node34(peers...)
	m.converge(t, want)
	s := m.read(t)
	if _, ok := s.Routes[foreign]; !ok {
		t.Errorf("foreign route is gone")
	}
	ours := 0
	for r := range s.Routes {
		if r.Link == overlay && r.Protocol == dataplane.RouteProtocol {
			ours++
		}
	}
	if ours != 8 || len(s.FDB) != 8 || len(s.Neighs) != 8 || len(s.Tokens) != 8 {
		t.Errorf("want 8 each: %d routes, %d entries, %d neighbours, %d tokens", ours, len(s.FDB), len(s.Neighs), len(s.Tokens))
	}
	wantConflict(t, want, s, "route", "10.5.200.0/24")
}

func wantConflict(t *testing.T, want dataplane.Desired, s dataplane.State, what, part string) {
	t.Helper()
	_, conflicts := dataplane.Plan(want, s)
	if !slices.ContainsFunc(conflicts, func(c dataplane.Conflict) bool {
		return c.What == what && strings.Contains(c.Text, part)
	}) {
		t.Errorf("no conflict of kind %s about %q in %v", what, part, conflicts)
	}
}

func peerGetsNewMAC(t *testing.T, m *machine) {
	m.converge(t, node34(peer(35), peer(36)))
	changed := peer(36)
	changed.MAC = mac(3600)
	ops := m.converge(t, node34(peer(35), changed))
	want := `token deny 0a:58:00:00:00:24
token allow 0a:58:00:00:0e:10 for 10.5.36.0/24
fdb set 0a:58:00:00:0e:10 dst 192.0.2.36 dev tenure.1
neigh set 10.5.36.0 lladdr 0a:58:00:00:0e:10 dev tenure.1
fdb del 0a:58:00:00:00:24 dst 192.0.2.36 dev tenure.1`
	if got := text(ops); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// ownMACChanges: a new MAC of ours makes the kernel forget the neighbours.
func ownMACChanges(t *testing.T, m *machine) {
	want := node34(peer(35), peer(36))
	m.converge(t, want)
	want.Overlays[0].MAC = mac(340)
	m.converge(t, want)
}

func deviceIsRemade(t *testing.T, m *machine) {
	want := node34(peer(35), peer(36))
	m.converge(t, want)
	before := m.read(t)
	m.change(t, dataplane.DelLink{Link: overlay}, dataplane.AddVxlan{
		Name: overlay, MAC: mac(34), MTU: 1450,
		Tunnel: dataplane.Tunnel{VNI: 1, Port: 4789, Local: addr("192.0.2.1"), Parent: underlay, Learning: true},
	}, dataplane.SetUp{Link: overlay})
	m.converge(t, want)
	sameState(t, before, m.read(t))
}

func vniChanges(t *testing.T, m *machine) {
	want := node34(peer(35))
	m.converge(t, want)
	want.Overlays[0].VNI = 7
	m.converge(t, want)
	s := m.read(t)
	if _, old := s.Links[overlay]; old || !s.Links["tenure.7"].Up || !s.Fenced["tenure.7"] {
		t.Errorf("links %v, fenced %v", s.Links, s.Fenced)
	}
}

func noVxlanLeavesAlone(t *testing.T, m *machine) {
	m.converge(t, node34(peer(35)))
	before := m.read(t)
	want := node34(peer(36))
	want.Overlays = nil
	if ops := m.converge(t, want); len(ops) > 0 {
		t.Errorf("wrote\n%s", text(ops))
	}
	sameState(t, before, m.read(t))
}

// strandedSubnet moves a node from 10.5.30 to 10.5.34 with a pod left behind,
// and then sees the old subnet at another node.
func strandedSubnet(t *testing.T, m *machine) {
	first := node34(peer(35))
	first.Bridge.Gateways = []netip.Prefix{prefix("10.5.30.1/24")}
	first.Overlays[0].Addr = prefix("10.5.30.0/32")
	m.converge(t, first)

	both := node34(peer(35))
	both.Bridge.Gateways = append(both.Bridge.Gateways, prefix("10.5.30.1/24"))
	m.converge(t, both)
	nobodyKnows(t, m, both, addr("10.5.30.7"), addr("10.5.30.9"))

	taken := node34(peer(35), peer(30))
	taken.Bridge.Gateways = append(taken.Bridge.Gateways, prefix("10.5.30.1/32"))
	taken.HostRoutes = []netip.Addr{addr("10.5.30.7"), addr("10.5.30.9")}
	ops := m.converge(t, taken)
	_, conflicts := dataplane.Plan(taken, m.read(t))
	if len(conflicts) > 0 {
		t.Errorf("conflicts %v after\n%s", conflicts, text(ops))
	}
	s := m.read(t)
	pod := dataplane.Route{Dst: prefix("10.5.30.7/32"), Link: bridge, Type: "unicast", Protocol: 90, LinkScope: true}
	tenant := dataplane.Route{Dst: prefix("10.5.30.0/24"), Via: addr("10.5.30.0"), Link: overlay, Type: "unicast", Protocol: 90, Onlink: true}
	for _, r := range []dataplane.Route{pod, tenant} {
		if _, ok := s.Routes[r]; !ok {
			t.Errorf("route %s is missing", r)
		}
	}
	nobodyKnows(t, m, taken, taken.HostRoutes...)

	taken.HostRoutes = taken.HostRoutes[1:]
	if ops := m.converge(t, taken); text(ops) != "route del 10.5.30.7/32 dev tenure0 proto 90 scope link" {
		t.Errorf("a stranded pod left: wrote\n%s", text(ops))
	}
}

// nobodyKnows is a daemon's start before etcd has been heard: the subnet that
// is stranded on the node stays in the form in which it is in the kernel.
func nobodyKnows(t *testing.T, m *machine, known dataplane.Desired, pods ...netip.Addr) {
	t.Helper()
	early := known
	early.Overlays, early.Peers, early.HostRoutes = nil, nil, nil
	early.Bridge.Gateways = known.Bridge.Gateways[:1]
	early.Bridge.Former = []dataplane.Former{{Gateway: prefix("10.5.30.1/24"), Pods: pods}}
	if ops := m.converge(t, early); len(ops) > 0 {
		t.Errorf("wrote\n%s", text(ops))
	}
	// What a pod needs is made again all the same.
	gone := early.Bridge
	gone.Gateways = nil
	if ops, _ := dataplane.Plan(dataplane.Desired{Name: early.Name, Networks: early.Networks, Bridge: gone}, dataplane.State{}); !strings.Contains(text(ops), "addr add 10.5.30.1/24") {
		t.Errorf("on an empty kernel:\n%s", text(ops))
	}
}

func optionsOff(t *testing.T, m *machine) {
	want := node34()
	m.converge(t, want)
	want.Masq, want.ForwardAccept = false, false
	m.converge(t, want)
	rules := m.read(t).Rules
	if len(rules.Chains) != 1 || len(rules.Jumps[dataplane.Chain{Table: "filter", Name: "FORWARD"}]) != 0 {
		t.Errorf("left over: %+v", rules)
	}
}

func networkIsWidened(t *testing.T, m *machine) {
	m.converge(t, node34(peer(35)))
	want := node34(peer(35))
	want.Networks = []netip.Prefix{prefix("10.0.0.0/8")}
	ops := m.converge(t, want)
	if len(ops) != 3 {
		t.Errorf("want rules and two routes, wrote\n%s", text(ops))
	}
}

// networkIsNarrowed: what the bridge had for stranded pods in the rest of the
// network of before goes with them.
func networkIsNarrowed(t *testing.T, m *machine) {
	want := node34()
	gateways := want.Bridge.Gateways
	want.Bridge.Gateways = append(slices.Clone(gateways), prefix("10.5.200.1/24"))
	m.converge(t, want)
	want.Networks, want.Former, want.Bridge.Gateways = []netip.Prefix{prefix("10.5.32.0/19")}, []netip.Prefix{prefix("10.5.0.0/16")}, gateways
	m.converge(t, want)
	s := m.read(t)
	if _, ok := s.Addrs[dataplane.Addr{Link: bridge, Prefix: prefix("10.5.200.1/24")}]; ok {
		t.Error("the gateway of nobody stays")
	}
	for r := range s.Routes {
		if r.Type == dataplane.RouteUnreachable && r.Dst != want.Networks[0] {
			t.Errorf("%+v stays", r)
		}
	}
}

// anotherNetwork is row C1: of the network of before nothing is left but what a
// pod needs that lives on, and then nothing; and what another instance has made
// for a network of its own is not touched.
func anotherNetwork(t *testing.T, m *machine) {
	m.converge(t, node34(peer(35)))
	others := dataplane.Route{Dst: prefix("10.7.0.0/16"), Type: dataplane.RouteUnreachable,
		Metric: dataplane.UnreachableMetric, Protocol: dataplane.RouteProtocol}
	m.change(t, dataplane.SetRoute{Route: others})
	want := node34()
	want.Networks, want.Former, want.Outside = []netip.Prefix{prefix("10.6.0.0/16")}, []netip.Prefix{prefix("10.5.0.0/16")}, []netip.Prefix{prefix("10.5.34.0/24")}
	want.Overlays[0].Addr, want.Overlays[0].MAC = prefix("10.6.1.0/32"), mac(61)
	want.Bridge.Gateways = []netip.Prefix{prefix("10.5.34.1/24"), prefix("10.6.1.1/24")}
	old := func(routes, addrs, rules int) {
		t.Helper()
		m.converge(t, want)
		s := m.read(t)
		n := [3]int{}
		for r := range s.Routes {
			if prefix("10.5.0.0/16").Overlaps(r.Dst) && r.Protocol == dataplane.RouteProtocol {
				n[0]++
			}
		}
		for a := range s.Addrs {
			if prefix("10.5.0.0/16").Contains(a.Prefix.Addr()) {
				n[1]++
			}
		}
		for _, lines := range s.Rules.Chains {
			for _, line := range lines {
				n[2] += strings.Count(line, "10.5.")
			}
		}
		if n != [3]int{routes, addrs, rules} {
			t.Errorf("of the old network %v routes, addresses and mentions in rules stand, want %v", n, [3]int{routes, addrs, rules})
		}
		if _, ok := s.Routes[others]; !ok {
			t.Error("the other instance's route is gone")
		}
	}
	old(0, 1, 8)
	want.Outside, want.Bridge.Gateways = nil, want.Bridge.Gateways[1:]
	old(0, 0, 0)
}

func foreignRouteInTheWay(t *testing.T, m *machine) {
	foreign := dataplane.Route{
		Dst: prefix("10.5.36.0/24"), Link: underlay, Type: "unicast", Protocol: 4, LinkScope: true,
	}
	m.change(t, dataplane.SetRoute{Route: foreign})
	want := node34(peer(35), peer(36))
	m.converge(t, want)
	s := m.read(t)
	if _, ok := s.Routes[foreign]; !ok {
		t.Errorf("foreign route is gone")
	}
	wantConflict(t, want, s, "peer", "10.5.36.0/24")
	m.change(t, dataplane.DelRoute{Route: foreign})
	if ops := m.converge(t, want); len(ops) != 1 {
		t.Errorf("want the one missing route, wrote\n%s", text(ops))
	}
}

// foreignRouteComesLate puts a route between the look and the write.
func foreignRouteComesLate(t *testing.T, m *machine) {
	want := node34(peer(36))
	ops, _ := dataplane.Plan(want, m.read(t))
	foreign := dataplane.Route{
		Dst: prefix("10.5.36.0/24"), Link: underlay, Type: "unicast", Protocol: 4, LinkScope: true,
	}
	m.change(t, dataplane.SetRoute{Route: foreign})
	for _, op := range ops {
		_ = m.kernel.Apply(context.Background(), op)
	}
	if _, ok := m.read(t).Routes[foreign]; !ok {
		t.Errorf("foreign route was replaced")
	}
}

func foreignAddress(t *testing.T, m *machine) {
	want := node34()
	m.converge(t, want)
	foreign := dataplane.Addr{Link: bridge, Prefix: prefix("198.51.100.1/24")}
	m.change(t, dataplane.AddAddr{Addr: foreign})
	if ops := m.converge(t, want); len(ops) > 0 {
		t.Errorf("wrote\n%s", text(ops))
	}
	wantConflict(t, want, m.read(t), "addr", "198.51.100.1/24")
}

func foreignLinkOfOurName(t *testing.T, m *machine) {
	m.change(t, dataplane.AddBridge{Name: overlay, MAC: mac(7)})
	want := node34(peer(35))
	m.converge(t, want)
	s := m.read(t)
	if s.Links[overlay].MAC != mac(7) || s.Links[overlay].Up {
		t.Errorf("foreign link was touched: %+v", s.Links[overlay])
	}
	wantConflict(t, want, s, dataplane.ConflictOverlay, overlay)
	if s.Links[bridge].Kind != "bridge" {
		t.Errorf("bridge was not made")
	}
}

// foreignLinkNamedAsBridge: not even its forwarding switch is touched.
func foreignLinkNamedAsBridge(t *testing.T, m *machine) {
	m.change(t, dataplane.AddVxlan{Name: bridge, MAC: mac(7), Tunnel: dataplane.Tunnel{
		VNI: 99, Port: 9999, Local: addr("192.0.2.1"), Parent: underlay,
	}})
	want := node34(peer(35))
	m.converge(t, want)
	off := dataplane.SetSysctl{Path: "net/ipv4/conf/tenure0/forwarding", Value: "0"}
	m.change(t, off)
	before := m.read(t)
	if ops := m.converge(t, want); len(ops) > 0 {
		t.Errorf("wrote\n%s", text(ops))
	}
	if s := m.read(t); s.Links[bridge].MAC != mac(7) || s.Links[bridge].Up || s.Sysctls[off.Path] != "0" {
		t.Errorf("foreign link was touched: %+v, forwarding %q", s.Links[bridge], s.Sysctls[off.Path])
	}
	wantConflict(t, want, before, dataplane.ConflictBridge, "tenure0 is a vxlan and not a bridge")
	if s := m.read(t); !s.Links[overlay].Up {
		t.Errorf("the overlay was not made")
	}
	m.change(t, dataplane.DelLink{Link: bridge})
	m.converge(t, want)
	if s := m.read(t); s.Links[bridge].Kind != "bridge" {
		t.Errorf("bridge was not made afterwards: %+v", s.Links[bridge])
	}
}

func foreignVxlan(t *testing.T, m *machine) {
	m.change(t, dataplane.AddVxlan{Name: "flannel.1", MAC: mac(7), Tunnel: dataplane.Tunnel{
		VNI: 1, Port: 8472, Local: addr("192.0.2.1"), Parent: underlay,
	}})
	want := node34(peer(35))
	m.converge(t, want)
	s := m.read(t)
	if _, ok := s.Links["flannel.1"]; !ok {
		t.Errorf("foreign device is gone")
	}
	wantConflict(t, want, s, dataplane.ConflictOverlay, "flannel.1")
}

func parentMissing(t *testing.T, m *machine) {
	want := node34(peer(35))
	want.Overlays[0].Parent = "later0"
	m.converge(t, want)
	wantConflict(t, want, m.read(t), "parent", "later0")
	// A device that exists keeps working when its parent is renamed.
	want.Overlays[0].Parent = underlay
	m.converge(t, want)
	before := m.read(t)
	want.Overlays[0].Parent = "later0"
	if ops := m.converge(t, want); len(ops) > 0 {
		t.Errorf("wrote\n%s", text(ops))
	}
	sameState(t, before, m.read(t))
}

// chainsAreLists swaps, doubles and adds rules in our chains.
func chainsAreLists(t *testing.T, m *machine) {
	want := node34()
	m.converge(t, want)
	before := m.read(t)
	masq := before.Rules.Chains[dataplane.Chain{Table: "nat", Name: "TENURE-MASQ"}]
	fill := func(rules ...string) dataplane.Change {
		return dataplane.SetRules{Tables: []dataplane.TableEdit{{
			Table: "nat", Fill: []dataplane.ChainRules{{Chain: "TENURE-MASQ", Rules: rules}},
		}}}
	}
	jump := func(rule string) dataplane.Change {
		return dataplane.SetRules{Tables: []dataplane.TableEdit{{
			Table: "nat", Jump: []dataplane.ChainRule{{Chain: "POSTROUTING", Rule: rule}},
		}}}
	}
	ours := before.Rules.Jumps[dataplane.Chain{Table: "nat", Name: "POSTROUTING"}][0]
	for name, change := range map[string]dataplane.Change{
		"broad masquerade first": fill(append([]string{"-s 10.5.0.0/16 -j MASQUERADE"}, masq...)...),
		"doubled":                fill(masq[0], masq[0], masq[1], masq[2]),
		"swapped":                fill(masq[1], masq[0], masq[2]),
		"shortened":              fill(masq[0], masq[1]),
		"second jump":            jump(ours),
		"other jump":             jump("-s 10.9.0.0/16 -j TENURE-MASQ"),
	} {
		m.change(t, change)
		if ops := m.converge(t, want); len(ops) != 1 {
			t.Errorf("%s: want one restore, wrote\n%s", name, text(ops))
		}
		sameState(t, before, m.read(t))
	}
}

func portsComeBack(t *testing.T, m *machine) {
	want := node34()
	want.Bridge.Ports = []string{"port0", "unborn0"}
	m.converge(t, want)
	// Any link will do for a port.
	m.change(t, dataplane.AddVxlan{Name: "port0", MAC: mac(7), Tunnel: dataplane.Tunnel{
		VNI: 99, Port: 9999, Local: addr("192.0.2.1"), Parent: underlay,
	}})
	for _, change := range []dataplane.Change{nil, dataplane.SetDown{Link: "port0"}, dataplane.DelLink{Link: bridge}} {
		if change != nil {
			m.change(t, change)
		}
		m.converge(t, want)
		if l := m.read(t).Links["port0"]; l.Master != bridge || !l.Up || l.Port != (dataplane.Port{Hairpin: true}) {
			t.Errorf("after %v: port is %+v", change, l)
		}
	}
	before := m.read(t)
	for line, edit := range map[string]func(*dataplane.Link){
		"hairpin off": func(l *dataplane.Link) { l.Port.Hairpin = false },
		"isolated on": func(l *dataplane.Link) { l.Port.Isolated = true },
	} {
		m.spoil(t, "port0", "ip link set dev port0 type bridge_slave "+line, edit)
		if ops := m.converge(t, want); len(ops) != 1 {
			t.Errorf("%s: want one change, wrote\n%s", line, text(ops))
		}
		sameState(t, before, m.read(t))
	}
	// A pod may go between the look and the change that it led to.
	if m.ns != nil {
		m.sh(t, "ip link del port0")
	} else {
		m.kernel.(*fakekernel.Kernel).Edit(func(s *dataplane.State) { delete(s.Links, "port0") })
	}
	for _, gone := range []string{"port0", "unborn0"} {
		m.change(t, dataplane.SetPort{Link: gone, Bridge: bridge})
	}
}

// flagsComeBack: what somebody else sets on our devices, beside MAC and MTU.
func flagsComeBack(t *testing.T, m *machine) {
	want := node34(peer(35), peer(36))
	m.converge(t, want)
	before := m.read(t)
	for _, link := range []string{bridge, overlay} {
		for line, edit := range map[string]func(*dataplane.Link){
			"arp off":    func(l *dataplane.Link) { l.NoARP = true },
			"promisc on": func(l *dataplane.Link) { l.Promisc = true },
		} {
			m.spoil(t, link, "ip link set "+link+" "+line, edit)
			m.converge(t, want)
			sameState(t, before, m.read(t))
		}
	}
}

// spoil changes a link in a way that we never do: by the line on a real kernel.
func (m *machine) spoil(t *testing.T, link, line string, edit func(*dataplane.Link)) {
	t.Helper()
	if m.ns != nil {
		m.sh(t, "%s", line)
		return
	}
	m.kernel.(*fakekernel.Kernel).Edit(func(s *dataplane.State) {
		l := s.Links[link]
		edit(&l)
		s.Links[link] = l
	})
}

func missingLink(t *testing.T, m *machine) {
	m.read(t)
	for _, c := range []dataplane.Change{
		dataplane.SetUp{Link: "none0"},
		dataplane.SetMTU{Link: "none0", MTU: 1400},
		dataplane.AttachFence{Link: "none0"},
		dataplane.SetFDB{FDB: dataplane.FDB{Link: "none0", MAC: mac(1), Dst: addr("192.0.2.9")}},
	} {
		if err := m.kernel.Apply(context.Background(), dataplane.Op{Change: c}); err == nil {
			t.Errorf("%s succeeded", c)
		}
	}
	for _, c := range []dataplane.Change{
		dataplane.DelLink{Link: "none0"},
		dataplane.DelFDB{FDB: dataplane.FDB{Link: "none0", MAC: mac(1), Dst: addr("192.0.2.9")}},
		dataplane.DelAddr{Addr: dataplane.Addr{Link: "none0", Prefix: prefix("10.5.1.1/24")}},
	} {
		if err := m.kernel.Apply(context.Background(), dataplane.Op{Change: c}); err != nil {
			t.Errorf("%s: %v", c, err)
		}
	}
}

func watchSignals(t *testing.T, m *machine) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	notices, err := m.kernel.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	m.change(t, dataplane.SetMTU{Link: underlay, MTU: 1400})
	if _, ok := <-notices; !ok {
		t.Fatal("closed before the end")
	}
	cancel()
	for range notices {
	}
}

func firstSubnet(t *testing.T, m *machine) {
	want := node34(peer(35), peer(34))
	want.Overlays[0].Addr = prefix("10.5.0.0/32")
	want.Bridge.Gateways = []netip.Prefix{prefix("10.5.0.1/24")}
	m.converge(t, want)
	for _, network := range []string{"10.0.0.0/12", "10.0.0.0/8"} {
		want.Networks = []netip.Prefix{prefix(network)}
		m.converge(t, want)
	}
}

// fencedBeforeUp lets the fence fail: the device must stay down, and one that
// is up must go down.
func fencedBeforeUp(t *testing.T, m *machine) {
	want := node34(peer(35))
	ctx := context.Background()
	broken := errors.New("no program for you")
	run := func(failAttach bool) {
		ops, _ := dataplane.Plan(want, m.read(t))
		for _, op := range ops {
			if _, attach := op.Change.(dataplane.AttachFence); attach && failAttach {
				m.guard.Fail(broken)
				err := m.kernel.Apply(ctx, op)
				m.guard.Fail(nil)
				if !errors.Is(err, broken) {
					t.Fatalf("%s: %v", op, err)
				}
				if op.OnFail != nil {
					m.change(t, op.OnFail)
				}
				return
			}
			if err := m.kernel.Apply(ctx, op); err != nil {
				t.Fatalf("%s: %v", op, err)
			}
		}
	}
	run(true)
	if m.read(t).Links[overlay].Up {
		t.Errorf("up without a fence")
	}
	run(false)
	s := m.read(t)
	if !s.Links[overlay].Up || !s.Fenced[overlay] {
		t.Fatalf("link %+v, fenced %v", s.Links[overlay], s.Fenced)
	}
	m.guard.Detach(s.Links[overlay].Index)
	run(true)
	if m.read(t).Links[overlay].Up {
		t.Errorf("still up after the fence was lost and could not be attached")
	}
	m.converge(t, want)
}

// fencedWithoutSubnet takes the fence off a device that stands from before,
// while no subnet is held: it comes back, and where it cannot, the device goes
// down.
func fencedWithoutSubnet(t *testing.T, m *machine) {
	held, lost := node34(peer(35)), node34(peer(35))
	lost.Overlays = nil
	m.converge(t, held)
	m.guard.Detach(m.read(t).Links[overlay].Index)
	m.converge(t, lost)
	if s := m.read(t); !s.Links[overlay].Up || !s.Fenced[overlay] {
		t.Fatalf("link %+v, fenced %v", s.Links[overlay], s.Fenced)
	}
	m.guard.Detach(m.read(t).Links[overlay].Index)
	ops, _ := dataplane.Plan(lost, m.read(t))
	if len(ops) != 1 || ops[0].OnFail == nil {
		t.Fatalf("planned\n%s", text(ops))
	}
	m.change(t, ops[0].OnFail)
	if ops := m.converge(t, lost); len(ops) > 0 || m.read(t).Links[overlay].Up {
		t.Errorf("down without a fence, wrote\n%s", text(ops))
	}
	m.converge(t, held)
}

// firstAddressGoes: the kernel deletes later addresses of a prefix with the
// first.
func firstAddressGoes(t *testing.T, m *machine) {
	want := node34()
	want.HostRoutes = []netip.Addr{addr("10.5.30.7")}
	want.Bridge.Gateways = []netip.Prefix{prefix("10.5.34.9/24")}
	m.converge(t, want)
	want.Bridge.Gateways = []netip.Prefix{prefix("10.5.34.1/24")}
	m.converge(t, want)
	m.change(t, dataplane.DelAddr{Addr: dataplane.Addr{Link: bridge, Prefix: prefix("10.5.34.1/24")}},
		dataplane.AddAddr{Addr: dataplane.Addr{Link: bridge, Prefix: prefix("10.5.34.9/24")}},
		dataplane.AddAddr{Addr: dataplane.Addr{Link: bridge, Prefix: prefix("10.5.34.1/24")}})
	m.converge(t, want)
	if s := withoutLinkLocal(m.read(t)); len(s.Addrs) != 2 {
		t.Errorf("addresses %v", s.Addrs)
	}
}
