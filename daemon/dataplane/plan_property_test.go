package dataplane_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/dataplane/fakekernel"
)

// protocolForeign marks the routes of somebody else.
const protocolForeign = 4

// drawPeers draws peers of which some overlap, share a MAC or have the node's
// own subnet or address.
func drawPeers(t *rapid.T) []dataplane.Peer {
	subnets := []string{
		"10.5.30.0/24", "10.5.34.0/24", "10.5.35.0/24", "10.5.36.0/24", "10.5.37.0/24", "10.5.36.0/25", "10.5.36.0/23",
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) dataplane.Peer {
		return dataplane.Peer{
			Subnet:   prefix(rapid.SampledFrom(subnets).Draw(t, "subnet")),
			PublicIP: addr(fmt.Sprintf("192.0.2.%d", rapid.IntRange(1, 5).Draw(t, "host"))),
			MAC:      mac(rapid.IntRange(100, 106).Draw(t, "mac")),
		}
	}), 0, 6).Draw(t, "peers")
}

func drawDesired(t *rapid.T) dataplane.Desired {
	want := node34(drawPeers(t)...)
	want.Bridge.Ports = []string{port}
	want.Masq = rapid.Bool().Draw(t, "masq")
	want.Clamp = rapid.SampledFrom([]int{0, 1450, 1250}).Draw(t, "clamp")
	want.Overlays[0].TxChecksum = rapid.Bool().Draw(t, "checksum")
	want.ForwardAccept = rapid.Bool().Draw(t, "forward")
	want.KeepPeers = rapid.Bool().Draw(t, "keep peers")
	if rapid.Bool().Draw(t, "claims") {
		want.Claims = []netip.Prefix{prefix("10.5.37.0/24")}
	}
	switch rapid.IntRange(0, 4).Draw(t, "stranded") {
	case 1:
		want.Bridge.Gateways = append(want.Bridge.Gateways, prefix("10.5.30.1/24"))
	case 2:
		want.Bridge.Gateways = append(want.Bridge.Gateways, prefix("10.5.30.1/32"))
		want.HostRoutes = []netip.Addr{addr("10.5.30.7"), addr("10.5.30.8")}
	case 3:
		want.Bridge.Former = []dataplane.Former{{Gateway: prefix("10.5.30.1/24"), Pods: []netip.Addr{addr("10.5.30.7")}}}
	}
	switch rapid.IntRange(0, 3).Draw(t, "families") {
	case 1, 2:
		want = withIPv6(want, drawPeers6(t)...)
	default:
		want.Former = []netip.Prefix{prefix("fd00:5::/48")} // IPv6 was once, perhaps
	}
	change := rapid.IntRange(0, 9).Draw(t, "vxlan")
	which := rapid.IntRange(0, len(want.Overlays)-1).Draw(t, "which")
	switch change {
	case 0:
		want.Overlays = nil
	case 1:
		want.Overlays[which].VNI = 2
	case 2:
		want.Overlays[which].Port = 4789
	}
	drawPaths(t, &want)
	if len(want.Networks) == 2 && rapid.IntRange(0, 3).Draw(t, "as found") == 0 {
		asFound(&want, rapid.Bool().Draw(t, "IPv6 as found"))
	}
	return want
}

// asFound takes out of what is wanted what a node does not ask for that has no
// address of a family.
func asFound(want *dataplane.Desired, six bool) {
	want.AsFound = dataplane.Families{V4: !six, V6: six}
	want.Overlays = slices.DeleteFunc(slices.Clone(want.Overlays), func(v dataplane.Vxlan) bool { return v.Local.Is6() == six })
	want.Peers = slices.DeleteFunc(slices.Clone(want.Peers), func(p dataplane.Peer) bool { return p.Subnet.Addr().Is6() == six })
}

// drawPeers6 draws the same for the second family; the MACs may be those of
// the first.
func drawPeers6(t *rapid.T) []dataplane.Peer {
	subnets := []string{"fd00:5:0:1e::/64", "fd00:5:0:22::/64", "fd00:5:0:23::/64", "fd00:5:0:24::/64", "fd00:5:0:24::/63"}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) dataplane.Peer {
		return dataplane.Peer{
			Subnet:   prefix(rapid.SampledFrom(subnets).Draw(t, "subnet")),
			PublicIP: addr(fmt.Sprintf("2001:db8::%d", rapid.IntRange(1, 5).Draw(t, "host"))),
			MAC:      mac(rapid.IntRange(100, 108).Draw(t, "mac")),
		}
	}), 0, 4).Draw(t, "peers6")
}

// drawPaths draws which peers are reached without the overlay, and whether there
// is one at all.
func drawPaths(t *rapid.T, want *dataplane.Desired) {
	if len(want.Overlays) == 0 || rapid.Bool().Draw(t, "overlay only") {
		return
	}
	want.Uplink = underlay
	for i := range want.Peers {
		want.Peers[i].Direct = rapid.Bool().Draw(t, "direct")
	}
	if rapid.IntRange(0, 2).Draw(t, "host-gw") == 0 {
		want.Overlays = nil
		for i := range want.Peers {
			want.Peers[i].Direct, want.Peers[i].MAC = true, dataplane.MAC{}
		}
	}
}

// drawDamage draws a change that somebody else might make.
func drawDamage(t *rapid.T) dataplane.Change {
	link := rapid.SampledFrom([]string{overlay, overlay6, bridge, "tenure.2"}).Draw(t, "link")
	subnet := prefix(rapid.SampledFrom([]string{"10.5.30.0/24", "10.5.35.0/24", "10.5.36.0/24", "10.5.77.0/24"}).Draw(t, "subnet"))
	m := mac(rapid.IntRange(100, 108).Draw(t, "mac"))
	route := dataplane.Route{
		Dst: subnet, Via: subnet.Addr(), Link: link, Type: "unicast", Protocol: dataplane.RouteProtocol, Onlink: true,
	}
	route6 := dataplane.Route{
		Dst: prefix("fd00:5:0:23::/64"), Via: addr("fd00:5:0:23::"), Link: link, Type: "unicast", Metric: 1024, Protocol: dataplane.RouteProtocol, Onlink: true,
	}
	plain := dataplane.Route{
		Dst: subnet, Via: addr("192.0.2.4"), Link: underlay, Type: "unicast", Protocol: dataplane.RouteProtocol, Onlink: true,
	}
	foreign := dataplane.Route{Dst: subnet, Link: underlay, Type: "unicast", Protocol: protocolForeign}
	fdb := dataplane.FDB{Link: link, MAC: m, Dst: addr("192.0.2.4")}
	neigh := dataplane.Neigh{Link: link, Addr: subnet.Addr()}
	fill := dataplane.TableEdit{Table: "nat", Fill: []dataplane.ChainRules{{Chain: "TENURE-MASQ", Rules: []string{"-j ACCEPT"}}}}
	jump := dataplane.TableEdit{Table: "filter", Jump: []dataplane.ChainRule{{Chain: "FORWARD", Rule: "-j TENURE-FWD"}}}
	return rapid.SampledFrom([]dataplane.Change{
		dataplane.DelLink{Link: link},
		dataplane.SetDown{Link: link},
		dataplane.SetUp{Link: link},
		dataplane.SetMAC{Link: link, MAC: m},
		dataplane.SetMTU{Link: link, MTU: 1300},
		dataplane.SetTxChecksum{Link: overlay, On: rapid.Bool().Draw(t, "on")},
		dataplane.AddAddr{Addr: dataplane.Addr{Link: link, Prefix: prefix("10.5.34.99/24")}},
		dataplane.AddAddr{Addr: dataplane.Addr{Link: link, Prefix: prefix("198.51.100.1/24")}},
		dataplane.DelAddr{Addr: dataplane.Addr{Link: link, Prefix: prefix("10.5.34.1/24")}},
		dataplane.DelAddr{Addr: dataplane.Addr{Link: link, Prefix: prefix("10.5.34.0/32")}},
		dataplane.SetRoute{Route: route, Replace: true},
		dataplane.SetRoute{Route: foreign},
		dataplane.SetRoute{Route: plain, Replace: true},
		dataplane.DelRoute{Route: plain},
		dataplane.DelRoute{Route: route},
		dataplane.SetFDB{FDB: fdb},
		dataplane.DelFDB{FDB: fdb},
		dataplane.SetNeigh{Neigh: neigh, MAC: m},
		dataplane.DelNeigh{Neigh: neigh},
		dataplane.AllowToken{MAC: m, Subnet: subnet},
		dataplane.DenyToken{MAC: m},
		dataplane.DelAddr{Addr: dataplane.Addr{Link: link, Prefix: prefix("fd00:5:0:22::1/64")}},
		dataplane.AddAddr{Addr: dataplane.Addr{Link: link, Prefix: prefix("fd00:5:0:22::1/128")}},
		dataplane.SetRoute{Route: route6, Replace: true},
		dataplane.DelRoute{Route: route6},
		dataplane.DelNeigh{Neigh: dataplane.Neigh{Link: link, Addr: route6.Dst.Addr()}},
		dataplane.SetFDB{FDB: dataplane.FDB{Link: link, MAC: m, Dst: addr("2001:db8::4")}},
		dataplane.AllowToken{MAC: m, Subnet: route6.Dst},
		dataplane.SetSysctl{Path: fakekernel.IPForward6, Value: "0"},
		dataplane.SetRules{Six: true, Tables: []dataplane.TableEdit{fill}},
		dataplane.SetSysctl{Path: fakekernel.IPForward, Value: "0"},
		dataplane.SetRules{Tables: []dataplane.TableEdit{fill}},
		dataplane.SetRules{Tables: []dataplane.TableEdit{jump}},
	}).Draw(t, "change")
}

// drawSetting draws what somebody might set beside what we set.
func drawSetting(t *rapid.T) func(*dataplane.State) {
	name := rapid.SampledFrom([]string{overlay, overlay6, bridge, port}).Draw(t, "link")
	onLink := func(f func(*dataplane.Link)) func(*dataplane.State) {
		return func(s *dataplane.State) {
			if _, ok := s.Links[name]; ok {
				link(name, f)(s)
			}
		}
	}
	pick := rapid.IntRange(0, 9).Draw(t, "setting")
	return []func(*dataplane.State){
		onLink(func(l *dataplane.Link) { l.ProtoDown = true }),
		onLink(func(l *dataplane.Link) { l.NoARP, l.Promisc = true, true }),
		onLink(func(l *dataplane.Link) { l.Odd = "stp 1" }),
		onLink(func(l *dataplane.Link) {
			if l.Kind == dataplane.KindVxlan {
				l.Tunnel.Odd = "gbp 1"
			}
		}),
		onLink(func(l *dataplane.Link) { l.Master, l.Port = underlay, dataplane.Port{} }),
		onLink(func(l *dataplane.Link) { l.Port.Odd = "learning 0" }),
		func(s *dataplane.State) { maps.DeleteFunc(s.Routes, byKernel) },
		func(s *dataplane.State) { bendRoutes(s, func(r *dataplane.Route) { r.Odd = "with metrics" }) },
		func(s *dataplane.State) { bendRoutes(s, func(r *dataplane.Route) { r.Src = addr("192.0.2.1") }) },
		func(s *dataplane.State) {
			for f := range s.FDB {
				delete(s.FDB, f)
				f.Odd = "port 4789"
				s.FDB[f] = struct{}{}
				return
			}
		},
	}[pick]
}

func byKernel(r dataplane.Route, _ struct{}) bool { return r.Protocol == 2 }

// bendRoutes changes all routes of ours.
func bendRoutes(s *dataplane.State, f func(*dataplane.Route)) {
	for r := range maps.Clone(s.Routes) {
		if r.Protocol == dataplane.RouteProtocol {
			delete(s.Routes, r)
			f(&r)
			s.Routes[r] = struct{}{}
		}
	}
}

// world is a fake kernel with a past.
type world struct {
	t      *rapid.T
	kernel *fakekernel.Kernel
	guard  *fakekernel.Guard
}

// drawWorld draws a kernel in which another wish was fulfilled once, and then
// others were at work.
func drawWorld(t *rapid.T) world {
	guard := &fakekernel.Guard{}
	w := world{t, fakekernel.New(guard, underlay, port), guard}
	if rapid.Bool().Draw(t, "has a past") {
		w.pass(drawDesired(t), nil)
	}
	for _, c := range rapid.SliceOfN(rapid.Custom(drawDamage), 0, 8).Draw(t, "damage") {
		_ = w.kernel.Apply(context.Background(), dataplane.Op{Change: c})
	}
	for range rapid.IntRange(0, 3).Draw(t, "settings") {
		w.kernel.Edit(drawSetting(t))
	}
	if rapid.Bool().Draw(t, "fence lost") {
		w.guard.Detach(w.read().Links[overlay].Index)
	}
	if rapid.Bool().Draw(t, "uplink's fence lost") {
		w.guard.Detach(w.read().Links[underlay].Index)
	}
	return w
}

func (w world) read() dataplane.State {
	s, err := w.kernel.Read(context.Background(), dataplane.Families{V4: true, V6: true})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// pass plans and applies once; check sees the state before and after each
// change.
func (w world) pass(want dataplane.Desired, check func(op dataplane.Op, before, after dataplane.State)) []dataplane.Op {
	ops, _ := dataplane.Plan(want, w.read())
	for i, op := range ops {
		before := w.read()
		if err := w.kernel.Apply(context.Background(), op); err != nil {
			w.t.Fatalf("change %d, %s: %v; plan:\n%s", i, op, err, text(ops))
		}
		if check != nil {
			check(op, before, w.read())
		}
	}
	return ops
}

func TestPlanConvergesInOnePass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, want := drawWorld(t), drawDesired(t)
		first := w.pass(want, nil)
		second := w.pass(want, nil)
		if len(second) > 0 && onlyDetaches(second) {
			second = w.pass(want, nil)
		}
		if len(second) > 0 {
			t.Fatalf("second pass:\n%s\nfirst pass:\n%s", text(second), text(first))
		}
		w.requireWhole(want)
	})
}

// onlyDetaches is true of what is left for a second pass: the fence leaves an
// uplink once no direct route has been seen there.
func onlyDetaches(ops []dataplane.Op) bool {
	return !slices.ContainsFunc(ops, func(op dataplane.Op) bool {
		_, ok := op.Change.(dataplane.DetachUplink)
		return !ok
	})
}

// openUplink is a direct route that leads through a link without the fence.
func openUplink(s dataplane.State) string {
	for r := range s.Routes {
		if isDirect(r) && !s.Uplinks[r.Link] {
			return r.String()
		}
	}
	return ""
}

func isDirect(r dataplane.Route) bool {
	return r.Protocol == dataplane.RouteProtocol && r.Type == "unicast" && r.Via.IsValid() && r.Link == underlay
}

// leftAlone says whether a vxlan device is none of those that are wanted, and stays
// as it is.
func leftAlone(want dataplane.Desired, name string) bool {
	as := want.AsFound
	return len(want.Overlays) == 0 || as.V6 && strings.HasPrefix(name, instance+"6.") || as.V4 && strings.HasPrefix(name, instance+".")
}

// requireWhole is a second opinion on what the kernel has to hold for the
// peers, from the conflicts alone.
func (w world) requireWhole(want dataplane.Desired) {
	s := w.read()
	for name, l := range s.Links {
		if odd := oddOf(l); odd != "" && name != underlay && (l.Kind != dataplane.KindVxlan || !leftAlone(want, name)) {
			w.t.Fatalf("%s is left with %s", name, odd)
		}
		if l.Kind == dataplane.KindVxlan && l.Up && !s.Fenced[name] {
			w.t.Fatalf("%s is up, fenced %v", name, s.Fenced)
		}
	}
	if open := openUplink(s); open != "" {
		w.t.Fatalf("%s without the fence", open)
	}
	if _, ok := s.Uplinks[underlay]; want.Held() && ok != (want.Uplink != "") {
		w.t.Fatalf("the fence is on %v, wanted on %q", s.Uplinks, want.Uplink)
	}
	_, conflicts := dataplane.Plan(want, s)
	w.requireDirect(want, s, conflicts)
	if len(want.Overlays) == 0 {
		return
	}
	for _, v := range want.Overlays {
		name := v.DeviceName(want.Name)
		if l := s.Links[name]; !l.Up || !s.Fenced[name] || l.MAC != v.MAC {
			w.t.Fatalf("device %+v, fenced %v", l, s.Fenced)
		}
		if on, ok := s.TxChecksum[name]; !ok || on != v.TxChecksum {
			w.t.Fatalf("checksums %v, want %t", s.TxChecksum, v.TxChecksum)
		}
	}
	for _, p := range want.Peers {
		if slices.ContainsFunc(conflicts, func(c dataplane.Conflict) bool { return c.Peer == p.Subnet }) {
			continue
		}
		_, name := overlayOf(want, p.Subnet.Addr().Is6())
		if missing := missingOf(s, name, p, !p.Direct); missing != "" {
			w.t.Fatalf("peer %v has no %s", p, missing)
		}
	}
	for a, subnet := range s.Tokens {
		for b, other := range s.Tokens {
			if a != b && subnet.Overlaps(other) {
				w.t.Fatalf("tokens %s and %s are both in for %s", a, b, subnet)
			}
		}
	}
}

// requireDirect wants the plain route of each peer that shall have one, and no
// vxlan device where there is no other peer.
func (w world) requireDirect(want dataplane.Desired, s dataplane.State, conflicts []dataplane.Conflict) {
	for _, p := range want.Peers {
		r := dataplane.Route{Dst: p.Subnet, Via: p.PublicIP, Link: underlay, Type: "unicast", Metric: metricOf(p), Protocol: 90, Onlink: true}
		_, ok := s.Routes[r]
		inTheWay := slices.ContainsFunc(conflicts, func(c dataplane.Conflict) bool { return c.Peer == p.Subnet })
		if want.Uplink != "" && p.Direct && !ok && !inTheWay {
			w.t.Fatalf("peer %v has no direct route", p)
		}
	}
	for name, l := range s.Links {
		if want.Uplink != "" && len(want.Overlays) == 0 && l.Kind == dataplane.KindVxlan {
			w.t.Fatalf("%s is left", name)
		}
	}
}

// oddOf says what no device of ours should have.
func oddOf(l dataplane.Link) string {
	switch {
	case l.Kind == "veth" && (l.Master != bridge || l.Port != dataplane.Port{Hairpin: true}):
		return fmt.Sprintf("master %q, port %+v", l.Master, l.Port)
	case l.Kind == "veth":
		return ""
	case l.NoARP || l.Promisc || l.ProtoDown || l.Master != "":
		return fmt.Sprintf("flags %+v", l)
	case l.Kind == dataplane.KindBridge:
		return l.Odd
	}
	return l.Tunnel.Odd
}

// metricOf is that of the routes to a peer.
func metricOf(p dataplane.Peer) uint32 {
	if p.Subnet.Addr().Is6() {
		return 1024
	}
	return 0
}

func missingOf(s dataplane.State, link string, p dataplane.Peer, route bool) string {
	base := p.Subnet.Addr()
	// One of both families is let in for the subnet of the first.
	if token := s.Tokens[p.MAC]; token != p.Subnet && (base.Is4() || !token.IsValid() || token.Addr().Is6()) {
		return "token"
	}
	if _, ok := s.FDB[dataplane.FDB{Link: link, MAC: p.MAC, Dst: p.PublicIP}]; !ok {
		return "forwarding entry"
	}
	if s.Neighs[dataplane.Neigh{Link: link, Addr: base}] != p.MAC {
		return "neighbour"
	}
	r := dataplane.Route{Dst: p.Subnet, Via: base, Link: link, Type: "unicast", Metric: metricOf(p), Protocol: 90, Onlink: true}
	if _, ok := s.Routes[r]; route && !ok {
		return "route"
	}
	return ""
}

func TestPlanIsSafeAfterEachChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, want := drawWorld(t), drawDesired(t)
		w.pass(want, func(op dataplane.Op, before, after dataplane.State) {
			if open := openUplink(after); open != "" && openUplink(before) == "" {
				t.Fatalf("%s: %s without the fence", op, open)
			}
			switch c := op.Change.(type) {
			case dataplane.SetUp:
				if after.Links[c.Link].Kind == dataplane.KindVxlan && !after.Fenced[c.Link] {
					t.Fatalf("%s without the fence", op)
				}
			case dataplane.SetRoute:
				peers := want.Peers
				if want.KeepPeers {
					peers = slices.Concat(peers, peersIn(before, c.Route.Link))
				}
				if !isDirect(c.Route) {
					requireFor(t, op, before, c.Route, peers)
				}
			case dataplane.AllowToken:
				for other, subnet := range after.Tokens {
					if other != c.MAC && subnet.Overlaps(c.Subnet) {
						t.Fatalf("%s while %s is in for %s", op, other, subnet)
					}
				}
			}
		})
	})
}

// requireFor wants one of the peers to have all that a route for it needs.
func requireFor(t *rapid.T, op dataplane.Op, s dataplane.State, r dataplane.Route, peers []dataplane.Peer) {
	missing := ""
	for _, p := range peers {
		if p.Subnet == r.Dst && r.Via.IsValid() {
			if missing = missingOf(s, r.Link, p, false); missing == "" {
				return
			}
		}
	}
	if missing != "" {
		t.Fatalf("%s before its %s", op, missing)
	}
}

// TestPlanCanStopAnywhere stops a pass after some changes and starts anew.
func TestPlanCanStopAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, want := drawWorld(t), drawDesired(t)
		ops, _ := dataplane.Plan(want, w.read())
		stop := rapid.IntRange(0, len(ops)).Draw(t, "stop after")
		for _, op := range ops[:stop] {
			if err := w.kernel.Apply(context.Background(), op); err != nil {
				t.Fatalf("%s: %v", op, err)
			}
		}
		w.pass(want, nil)
		again := w.pass(want, nil)
		if onlyDetaches(again) {
			again = w.pass(want, nil)
		}
		if len(again) > 0 {
			t.Fatalf("still writes:\n%s", text(again))
		}
		w.requireWhole(want)
	})
}

func TestPlanIsMinimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		guard := &fakekernel.Guard{}
		w := world{t, fakekernel.New(guard, underlay), guard}
		peers := []dataplane.Peer{peer(35), peer(36), peer(37), peer(38)}
		want := func() dataplane.Desired { return node34(peers...) }
		if rapid.Bool().Draw(t, "both families") {
			peers = append(peers, peer6(35), peer6(36), peer6(37))
			want = func() dataplane.Desired { return withIPv6(node34(peers...)) }
		}
		w.pass(want(), nil)
		peers = slices.Clone(peers)
		i := rapid.IntRange(0, len(peers)-1).Draw(t, "which")
		six := peers[i].Subnet.Addr().Is6()
		switch rapid.IntRange(0, 2).Draw(t, "how") {
		case 0:
			peers[i].MAC = mac(500)
		case 1:
			peers[i].PublicIP = addr("192.0.2.200")
			if six {
				peers[i].PublicIP = addr("2001:db8::200")
			}
		case 2:
			peers = slices.Delete(peers, i, i+1)
		}
		ops := w.pass(want(), nil)
		if len(ops) == 0 || len(ops) > 6 {
			t.Fatalf("one peer changed, wrote\n%s", text(ops))
		}
		for _, op := range ops {
			if op.Kind() != "token" && strings.Contains(op.String(), " dev tenure6.1") != six {
				t.Fatalf("one family of a peer changed (IPv6: %t), wrote\n%s", six, text(ops))
			}
		}
	})
}

func TestPlanLeavesOthersAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, want := drawWorld(t), drawDesired(t)
		foreign := func(s dataplane.State) (out []string) {
			for r := range s.Routes {
				if r.Protocol == protocolForeign && r.Link == underlay {
					out = append(out, r.String())
				}
			}
			for a := range s.Addrs {
				ip := a.Prefix.Addr()
				ours := func(n netip.Prefix) bool { return n.Contains(ip) }
				if !slices.ContainsFunc(slices.Concat(want.Networks, want.Former), ours) && !ip.IsLinkLocalUnicast() && a.Link == bridge {
					out = append(out, a.String())
				}
			}
			slices.Sort(out)
			return out
		}
		before := foreign(w.read())
		w.pass(want, nil)
		if after := foreign(w.read()); !slices.Equal(before, after) {
			t.Fatalf("before %v, after %v", before, after)
		}
	})
}
