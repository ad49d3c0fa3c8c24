package dataplane_test

import (
	"maps"
	"testing"

	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/dataplane/fakekernel"
)

// What somebody can set on our devices and entries beside what we set: part of
// the suite that the fake and the real kernel pass alike.

// damage is one deed: a script for a real kernel, and what it does to the fake.
type damage struct {
	script string
	edit   func(*dataplane.State)
	// most is the greatest number of changes that may be needed.
	most int
}

// do does it behind the data plane's back.
func (m *machine) do(t *testing.T, d damage) {
	t.Helper()
	if m.ns != nil {
		m.sh(t, "%s", d.script)
		return
	}
	m.kernel.(*fakekernel.Kernel).Edit(d.edit)
}

// undone wants each deed to be seen, and undone in one pass.
func (m *machine) undone(t *testing.T, want dataplane.Desired, deeds ...damage) {
	t.Helper()
	m.converge(t, want)
	before := m.read(t)
	for _, d := range deeds {
		m.do(t, d)
		ops := m.converge(t, want)
		if len(ops) == 0 || len(ops) > d.most {
			t.Errorf("%s: %d changes, want 1 to %d:\n%s", d.script, len(ops), d.most, text(ops))
		}
		sameState(t, before, m.read(t))
		if t.Failed() {
			t.Fatalf("%s: repaired with\n%s", d.script, text(ops))
		}
	}
}

// link is an edit of one link.
func link(name string, f func(*dataplane.Link)) func(*dataplane.State) {
	return func(s *dataplane.State) {
		l := s.Links[name]
		f(&l)
		s.Links[name] = l
	}
}

func oddTunnel(script, odd string) damage {
	return damage{"ip link set tenure.1 type vxlan " + script, link(overlay, func(l *dataplane.Link) { l.Tunnel.Odd = odd }), 14}
}

func vxlanSettings(t *testing.T, m *machine) {
	m.undone(t, node34(peer(35), peer(36)),
		oddTunnel("ttl 1", "ttl 1"),
		oddTunnel("tos 4", "tos 4"),
		oddTunnel("ageing 1", "ageing 1"),
		oddTunnel("df set", "df 1"),
		oddTunnel("remote 192.0.2.77", "group 1"),
		damage{"ip link set tenure.1 type vxlan learning",
			link(overlay, func(l *dataplane.Link) { l.Tunnel.Learning = true }), 14},
		damage{"ip link set tenure.1 type vxlan local 192.0.2.9",
			link(overlay, func(l *dataplane.Link) { l.Tunnel.Local = addr("192.0.2.9") }), 14},
		damage{"ip link set tenure.1 protodown on",
			link(overlay, func(l *dataplane.Link) { l.ProtoDown = true }), 1},
		damage{"ip link set tenure.1 protodown_reason 3 on; ip link set tenure.1 protodown on",
			link(overlay, func(l *dataplane.Link) { l.ProtoDown = true }), 1},
	)
	// What cannot be set on a device that exists.
	for _, odd := range []string{"gbp", "noudpcsum", "srcport 1000 2000", "external vnifilter", "maxaddr 5", "proxy", "l2miss", "l3miss", "rsc"} {
		id := "id 1"
		if odd == "external vnifilter" {
			id = ""
		}
		m.undone(t, node34(peer(35)), damage{
			"ip link del tenure.1; ip link add tenure.1 type vxlan " + id + " dstport 8472 local 192.0.2.1 nolearning dev up0 " + odd,
			link(overlay, func(l *dataplane.Link) { l.Tunnel.Odd = odd }), 12})
	}
}

// bridgeSettings: a bridge that runs the spanning tree protocol passes nothing
// for half a minute after each port that comes, one that filters VLANs may pass
// nothing at all.
func bridgeSettings(t *testing.T, m *machine) {
	m.undone(t, node34(),
		damage{"ip link set tenure0 type bridge stp_state 1", link(bridge, func(l *dataplane.Link) { l.Odd = "stp 1" }), 1})
	if m.ns != nil && m.sh(t, "ip link add vlans0 type bridge vlan_filtering 1 && ip link del vlans0 || echo no") != "" {
		return // not every kernel can filter VLANs
	}
	m.undone(t, node34(), damage{"ip link set tenure0 type bridge vlan_filtering 1 vlan_default_pvid 0",
		link(bridge, func(l *dataplane.Link) { l.Odd = "vlan_filtering 1" }), 1})
}

func portSettings(t *testing.T, m *machine) {
	want := node34()
	want.Bridge.Ports = []string{"port0"}
	m.change(t, dataplane.AddVxlan{Name: "port0", MAC: mac(7), Tunnel: dataplane.Tunnel{
		VNI: 99, Port: 9999, Local: addr("192.0.2.1"), Parent: underlay,
	}})
	odd := func(script string) damage {
		return damage{"bridge link set dev port0 " + script, link("port0", func(l *dataplane.Link) { l.Port.Odd = script }), 1}
	}
	m.undone(t, want, odd("learning off"), odd("flood off"), odd("bcast_flood off"), odd("mcast_flood off"),
		odd("neigh_suppress on"), odd("locked on"), odd("state 0"),
		damage{"bridge link set dev port0 hairpin off", link("port0", func(l *dataplane.Link) { l.Port.Hairpin = false }), 1},
		damage{"bridge link set dev port0 isolated on", link("port0", func(l *dataplane.Link) { l.Port.Isolated = true }), 1},
		// A port that was cut off by the protocol comes back with it.
		damage{"ip link set tenure0 type bridge stp_state 1; ip link set port0 down; ip link set port0 up",
			func(s *dataplane.State) {
				link(bridge, func(l *dataplane.Link) { l.Odd = "stp 1" })(s)
				link("port0", func(l *dataplane.Link) { l.Port.Odd = "state 1" })(s)
			}, 2},
	)
}

// names: a device in our overlay's way is called by its owner, where that shows.
func names(t *testing.T, m *machine) {
	for name, text := range map[string]string{
		"flannel.1": "flannel.1 is a vxlan device of flannel", "flannel-v6.1": "flannel-v6.1 is a vxlan device of flannel", "vx7": "vx7 is a vxlan device of others",
	} {
		c := dataplane.AddVxlan{Name: name, MAC: mac(7), Tunnel: dataplane.Tunnel{
			VNI: 1, Port: 8472, Local: addr("192.0.2.1"), Parent: underlay,
		}}
		m.change(t, c)
		m.converge(t, node34(peer(35)))
		wantConflict(t, node34(peer(35)), m.read(t), dataplane.ConflictOverlay, text)
		m.change(t, dataplane.DelLink{Link: name})
	}
}

// leftovers of a crash or an older version under our name: one that is not yet
// as it should be is completed, one that cannot become so is made anew.
func leftovers(t *testing.T, m *machine) {
	want := node34(peer(35))
	right := dataplane.Tunnel{VNI: 1, Port: 8472, Local: addr("192.0.2.1"), Parent: underlay}
	vni, port, local, parent := right, right, right, right
	vni.VNI, port.Port, local.Local, parent.Parent = 9, 4789, addr("192.0.2.9"), "lo"
	for _, tunnel := range []dataplane.Tunnel{right, vni, port, local, parent} {
		if m.ns == nil {
			m.do(t, damage{"", func(s *dataplane.State) { s.Links["lo"] = dataplane.Link{Kind: "device"} }, 0})
		}
		m.change(t, dataplane.AddVxlan{Name: overlay, MAC: mac(34), MTU: 1450, Tunnel: tunnel})
		was := m.read(t).Links[overlay].Index
		m.converge(t, want)
		s := m.read(t)
		if l := s.Links[overlay]; l.Tunnel != right || !l.Up || !s.Fenced[overlay] || (l.Index == was) != (tunnel == right) {
			t.Errorf("after %s: %+v, was %d", tunnel, l, was)
		}
		m.change(t, dataplane.DelLink{Link: overlay})
	}
}

// taken: our devices as parts of another one.
func taken(t *testing.T, m *machine) {
	m.change(t, dataplane.AddBridge{Name: "other0", MAC: mac(8)}, dataplane.SetUp{Link: "other0"})
	m.undone(t, node34(peer(35)), damage{"ip link set tenure.1 master other0",
		link(overlay, func(l *dataplane.Link) { l.Master, l.Port = "other0", dataplane.Port{} }), 1})
}

// renamed: our devices under another name, as udev does it; the bridge with
// its pods.
func renamed(t *testing.T, m *machine) {
	want := node34(peer(35))
	want.Bridge.Ports = []string{"port0"}
	m.change(t, dataplane.AddVxlan{Name: "port0", MAC: mac(7), Tunnel: dataplane.Tunnel{
		VNI: 99, Port: 9999, Local: addr("192.0.2.1"), Parent: underlay,
	}})
	move := func(from string) func(*dataplane.State) {
		return func(s *dataplane.State) {
			s.Links["moved0"] = s.Links[from]
			delete(s.Links, from)
			maps.DeleteFunc(s.Addrs, func(a dataplane.Addr, _ struct{}) bool { return a.Link == from })
			maps.DeleteFunc(s.Neighs, func(n dataplane.Neigh, _ dataplane.MAC) bool { return n.Link == from })
			maps.DeleteFunc(s.FDB, func(f dataplane.FDB, _ struct{}) bool { return f.Link == from })
			for r := range s.Routes {
				if r.Link == from {
					delete(s.Routes, r)
					if r.Type != dataplane.RouteLocal {
						r.Link = "moved0"
						s.Routes[r] = struct{}{}
					}
				}
			}
			for name, l := range s.Links {
				if l.Master == from {
					l.Master = "moved0"
					s.Links[name] = l
				}
			}
		}
	}
	m.undone(t, want,
		damage{"ip link set tenure.1 down; ip link set tenure.1 name moved0; ip link set moved0 up", move(overlay), 12},
		damage{"ip link set tenure0 down; ip link set tenure0 name moved0; ip link set moved0 up", move(bridge), 12})
	// A bridge of others that took over the MAC of a device on ours stays.
	if m.ns != nil {
		m.sh(t, "ip link add mv0 link tenure0 type macvlan; ip link set mv0 address $(cat /sys/class/net/tenure0/address) || true; ip link add other0 address 0a:58:00:00:03:e8 type bridge")
		m.undone(t, want, damage{"ip link set tenure0 down", nil, 2})
	}
}

// addressRoutes: the kernel makes these routes with an address, and not again.
func addressRoutes(t *testing.T, m *machine) {
	connected := dataplane.Route{
		Dst: prefix("10.5.34.0/24"), Link: bridge, Type: "unicast", Protocol: 2, LinkScope: true, Src: addr("10.5.34.1"),
	}
	local := dataplane.Route{Dst: prefix("10.5.34.1/32"), Link: bridge, Type: "local", Protocol: 2, Src: addr("10.5.34.1")}
	tunnel := dataplane.Route{Dst: prefix("10.5.34.0/32"), Link: overlay, Type: "local", Protocol: 2, Src: addr("10.5.34.0")}
	without := func(routes ...dataplane.Route) func(*dataplane.State) {
		return func(s *dataplane.State) {
			for _, r := range routes {
				delete(s.Routes, r)
			}
		}
	}
	bent := connected
	bent.Odd = "with metrics"
	m.undone(t, node34(peer(35)),
		damage{"ip route del 10.5.34.0/24 dev tenure0", without(connected), 1},
		damage{"ip route del local 10.5.34.1 dev tenure0 table local", without(local), 1},
		damage{"ip route del local 10.5.34.0 dev tenure.1 table local", without(tunnel), 1},
		damage{"ip route flush dev tenure0; ip route del local 10.5.34.1 dev tenure0 table local", without(connected, local), 2},
		damage{"ip route change 10.5.34.0/24 dev tenure0 proto kernel scope link src 10.5.34.1 mtu 600", func(s *dataplane.State) {
			without(connected)(s)
			s.Routes[bent] = struct{}{}
		}, 1},
	)
	// One of others in its place is named and stays.
	foreign := dataplane.Route{Dst: prefix("10.5.34.0/24"), Link: underlay, Type: "unicast", Protocol: 4, LinkScope: true}
	m.change(t, dataplane.DelRoute{Route: connected}, dataplane.SetRoute{Route: foreign})
	if ops := m.converge(t, node34(peer(35))); len(ops) > 0 {
		t.Errorf("wrote\n%s", text(ops))
	}
	wantConflict(t, node34(peer(35)), m.read(t), "route", "in the way of address 10.5.34.1/24")
	m.change(t, dataplane.DelRoute{Route: foreign})
	m.converge(t, node34(peer(35)))
}

// routeSettings: one route of a peer, each time with one thing changed.
func routeSettings(t *testing.T, m *machine) {
	right := dataplane.Route{
		Dst: prefix("10.5.36.0/24"), Via: addr("10.5.36.0"), Link: overlay, Type: "unicast", Protocol: 90, Onlink: true,
	}
	bend := func(args string, f func(*dataplane.Route)) damage {
		return damage{"ip route replace " + args, func(s *dataplane.State) {
			delete(s.Routes, right)
			r := right
			f(&r)
			s.Routes[r] = struct{}{}
		}, 2}
	}
	m.undone(t, node34(peer(35), peer(36)),
		bend("10.5.36.0/24 via 10.5.36.0 dev tenure.1 onlink proto 90 mtu 600", func(r *dataplane.Route) { r.Odd = "with metrics" }),
		bend("10.5.36.0/24 via 10.5.36.0 dev tenure.1 onlink proto 90 advmss 500", func(r *dataplane.Route) { r.Odd = "with metrics" }),
		bend("10.5.36.0/24 via 10.5.36.0 dev tenure.1 onlink proto 90 src 192.0.2.1", func(r *dataplane.Route) { r.Src = addr("192.0.2.1") }),
		bend("10.5.36.0/24 dev tenure.1 proto 90 scope link", func(r *dataplane.Route) { r.Via, r.Onlink, r.LinkScope = addr("10.5.36.0").Prev(), false, true }),
		bend("unreachable 10.5.36.0/24 proto 90", func(r *dataplane.Route) { *r = dataplane.Route{Dst: r.Dst, Type: "unreachable", Protocol: 90} }),
		bend("blackhole 10.5.36.0/24 proto 90", func(r *dataplane.Route) { *r = dataplane.Route{Dst: r.Dst, Type: "type-6", Protocol: 90} }),
		bend("10.5.36.0/24 via 192.0.2.2 dev up0 proto 90", func(r *dataplane.Route) { r.Link, r.Via, r.Onlink = underlay, addr("192.0.2.2"), false }),
	)
}

// entrySettings: forwarding entries and neighbours, each with one thing changed.
func entrySettings(t *testing.T, m *machine) {
	right := dataplane.FDB{Link: overlay, MAC: mac(36), Dst: addr("192.0.2.36")}
	neigh := dataplane.Neigh{Link: overlay, Addr: addr("10.5.36.0")}
	odd := func(script, odd string) damage {
		return damage{"bridge fdb replace 0a:58:00:00:00:24 dev tenure.1 dst 192.0.2.36 " + script, func(s *dataplane.State) {
			delete(s.FDB, right)
			f := right
			f.Odd = odd
			s.FDB[f] = struct{}{}
		}, 2}
	}
	stranger := dataplane.FDB{Link: overlay, MAC: mac(77), Dst: addr("192.0.2.36"), Odd: "port 4789"}
	deeds := []damage{
		odd("port 4789", "port 4789"),
		odd("vni 5", "vni 5"),
		odd("via up0", "via 2"),
		{"bridge fdb add 0a:58:00:00:00:4d dev tenure.1 dst 192.0.2.36 port 4789",
			func(s *dataplane.State) { s.FDB[stranger] = struct{}{} }, 1},
		{"bridge fdb replace 0a:58:00:00:00:24 dev tenure.1 dst 192.0.2.36 dynamic",
			func(s *dataplane.State) { delete(s.FDB, right) }, 1},
		{"ip neigh replace 10.5.36.0 lladdr 0a:58:00:00:00:24 dev tenure.1 nud reachable",
			func(s *dataplane.State) { delete(s.Neighs, neigh) }, 1},
		{"ip neigh replace 10.5.36.0 lladdr 0a:58:00:00:00:99 dev tenure.1 nud noarp",
			func(s *dataplane.State) { delete(s.Neighs, neigh) }, 1},
	}
	if m.ns != nil {
		deeds = append(deeds, damage{"ip nexthop replace id 7 via 192.0.2.36 fdb; ip nexthop replace id 8 group 7 fdb; " +
			"bridge fdb del 0a:58:00:00:00:24 dev tenure.1 dst 192.0.2.36; bridge fdb add 0a:58:00:00:00:24 dev tenure.1 nhid 8", nil, 2})
	}
	m.undone(t, node34(peer(35), peer(36)), deeds...)
}
