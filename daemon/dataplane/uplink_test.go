package dataplane_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/dataplane/fakekernel"
)

// directly wants the peers by plain routes, as with DirectRouting.
func directly(peers ...dataplane.Peer) dataplane.Desired {
	for i := range peers {
		peers[i].Direct = true
	}
	want := node34(peers...)
	want.Uplink = underlay
	return want
}

// hostGW is directly without a vxlan device, and with peers that have none.
func hostGW(peers ...dataplane.Peer) dataplane.Desired {
	for i := range peers {
		peers[i].MAC = dataplane.MAC{}
	}
	want := directly(peers...)
	want.Overlays = nil
	return want
}

// directRoute is the plain route to peer n.
func directRoute(n int) dataplane.Route {
	p := peer(n)
	return dataplane.Route{Dst: p.Subnet, Via: p.PublicIP, Link: underlay, Type: "unicast", Protocol: 90, Onlink: true}
}

// uplinkSuite is the part of the conformance suite about direct routes.
func uplinkSuite() map[string]func(*testing.T, *machine) {
	return map[string]func(*testing.T, *machine){
		"DirectRoutes":          directRoutes,
		"HostGWHasNoOverlay":    hostGWHasNoOverlay,
		"UplinkChanges":         uplinkChanges,
		"UplinkFenceComesBack":  uplinkFenceComesBack,
		"UplinkWithoutSubnet":   uplinkWithoutSubnet,
		"UplinkCannotBeFenced":  uplinkCannotBeFenced,
		"UplinkWithoutEthernet": uplinkWithoutEthernet,
		"GatewayedIsNotDirect":  gatewayedIsNotDirect,
		"DirectPeersAreKept":    directPeersAreKept,
		"DirectIsRemoved":       directIsRemoved,
		"ForeignRouteForDirect": foreignRouteForDirect,
	}
}

// settle makes passes until one has nothing to do, and returns all they did.
func (m *machine) settle(t *testing.T, want dataplane.Desired) []dataplane.Op {
	t.Helper()
	var all []dataplane.Op
	for range 4 {
		ops, _ := dataplane.Plan(want, m.read(t))
		if len(ops) == 0 {
			return all
		}
		for _, op := range ops {
			if err := m.kernel.Apply(t.Context(), op); err != nil {
				t.Fatalf("%s: %v\nafter the plan:\n%s", op, err, text(ops))
			}
		}
		all = append(all, ops...)
	}
	t.Fatalf("still writes after\n%s", text(all))
	return nil
}

// routesTo are the routes for the pod network, in words.
func routesTo(s dataplane.State) string {
	var all []string
	for r := range s.Routes {
		if r.Protocol == 90 && r.Type == "unicast" {
			all = append(all, strings.TrimPrefix(r.String(), "10.5."))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

func wantRoutes(t *testing.T, when string, s dataplane.State, want ...string) {
	t.Helper()
	if got := routesTo(s); got != strings.Join(want, "\n") {
		t.Errorf("%s: the routes are\n%s\nwant\n%s", when, got, strings.Join(want, "\n"))
	}
}

const (
	direct35  = "35.0/24 via 192.0.2.35 dev up0 proto 90 onlink"
	direct36  = "36.0/24 via 192.0.2.36 dev up0 proto 90 onlink"
	overlay35 = "35.0/24 via 10.5.35.0 dev tenure.1 proto 90 onlink"
	overlay36 = "36.0/24 via 10.5.36.0 dev tenure.1 proto 90 onlink"
)

// directRoutes: one peer is direct, the other is not; both have their place in
// the overlay; back to vxlan the fence leaves the uplink after the routes.
func directRoutes(t *testing.T, m *machine) {
	want := directly(peer(35))
	want.Peers = append(want.Peers, peer(36))
	ops := m.settle(t, want)
	at := func(what string) int {
		return slices.IndexFunc(ops, func(op dataplane.Op) bool { return strings.HasPrefix(op.String(), what) })
	}
	if fence := at("fence attach up0 as uplink"); fence < 0 || fence > at("route set 10.5.35.0/24") {
		t.Errorf("the direct route comes before the fence:\n%s", text(ops))
	}
	s := m.read(t)
	wantRoutes(t, "direct", s, direct35, overlay36)
	if !s.Uplinks[underlay] || len(s.FDB) != 2 || len(s.Neighs) != 2 || len(s.Tokens) != 2 {
		t.Errorf("uplinks %v, %d forwarding entries, %d neighbours, %d tokens", s.Uplinks, len(s.FDB), len(s.Neighs), len(s.Tokens))
	}
	for _, c := range []dataplane.Change{dataplane.DelRoute{Route: directRoute(35)}, dataplane.DenyToken{MAC: mac(35)}} {
		m.change(t, c)
		if ops := m.settle(t, want); len(ops) != 1 {
			t.Errorf("%s: repaired with\n%s", c, text(ops))
		}
	}

	back := node34(peer(35), peer(36))
	// A route that cannot be replaced must still be fenced.
	if ops, _ := dataplane.Plan(back, m.read(t)); strings.Contains(text(ops), "detach") {
		t.Errorf("the fence goes before the routes have been seen gone:\n%s", text(ops))
	}
	ops = m.settle(t, back)
	if got := text(ops); got != "route set 10.5."+overlay35+"\nfence detach up0 as uplink" {
		t.Errorf("back to vxlan with\n%s", got)
	}
	s = m.read(t)
	wantRoutes(t, "back", s, overlay35, overlay36)
	if len(s.Uplinks) != 0 {
		t.Errorf("uplinks %v", s.Uplinks)
	}
}

// hostGWHasNoOverlay goes from vxlan to host-gw and back: the direct routes stand
// before the device goes, and its rule and tokens go with it.
func hostGWHasNoOverlay(t *testing.T, m *machine) {
	m.settle(t, node34(peer(35), peer(36)))
	ops := m.settle(t, hostGW(peer(35), peer(36)))
	words := strings.Split(text(ops), "\n")
	if slices.Index(words, "link del tenure.1") < slices.Index(words, "route set 10.5."+direct36) || !slices.Contains(words, "link del tenure.1") {
		t.Errorf("the device goes before the routes stand:\n%s", text(ops))
	}
	s := m.read(t)
	wantRoutes(t, "host-gw", s, direct35, direct36)
	if _, ok := s.Links[overlay]; ok || len(s.Tokens) != 0 || !s.Uplinks[underlay] {
		t.Errorf("device there: %t, tokens %v, uplinks %v", ok, s.Tokens, s.Uplinks)
	}
	if _, ok := s.Rules.Chains[dataplane.Chain{Table: "raw", Name: "TENURE-RAW"}]; ok {
		t.Error("the rule for outer packets has stayed")
	}
	m.settle(t, hostGW(peer(36)))
	wantRoutes(t, "a peer left", m.read(t), direct36)
	m.settle(t, node34(peer(35), peer(36)))
	s = m.read(t)
	wantRoutes(t, "back", s, overlay35, overlay36)
	if len(s.Uplinks) != 0 || !s.Fenced[overlay] {
		t.Errorf("uplinks %v, fenced %v", s.Uplinks, s.Fenced)
	}
}

// uplinkChanges: the underlay is another interface now.
func uplinkChanges(t *testing.T, m *machine) {
	m.settle(t, directly(peer(35), peer(36)))
	want := directly(peer(35), peer(36))
	const other = "up1"
	want.Uplink, want.Overlays[0].Parent = other, other
	if fake, ok := m.kernel.(*fakekernel.Kernel); ok {
		fake.Edit(func(s *dataplane.State) {
			s.Links[other] = dataplane.Link{Index: 999, Kind: "veth", MTU: 1500, Up: true}
		})
	} else {
		m.sh(t, "ip link add up1 type veth peer name up1-far && ip link set up1-far up && ip link set up1 up && ip addr add 192.0.2.1/24 dev up1 && ip addr del 192.0.2.1/24 dev up0")
	}
	// The routes through the old one wait for the fence on the new one, which may
	// not come: meanwhile they need theirs. (With the address the kernel has dropped
	// them already.)
	m.guard.Detach(m.read(t).Links[underlay].Index)
	s := m.read(t)
	ops, _ := dataplane.Plan(want, s)
	if strings.Contains(routesTo(s), underlay) && !strings.Contains(text(ops), "fence attach up0 as uplink") {
		t.Errorf("with neither fence there, the routes that stand stay open:\n%s", text(ops))
	}
	ops = m.settle(t, want)
	if last := ops[len(ops)-1].String(); last != "fence detach up0 as uplink" {
		t.Errorf("the last change is %s of\n%s", last, text(ops))
	}
	s = m.read(t)
	wantRoutes(t, "moved", s, strings.ReplaceAll(direct35, underlay, other), strings.ReplaceAll(direct36, underlay, other))
	if _, ok := s.Uplinks[underlay]; ok || !s.Uplinks[other] {
		t.Errorf("uplinks %v", s.Uplinks)
	}
}

// uplinkFenceComesBack in the first change of the pass, whatever else is to do.
func uplinkFenceComesBack(t *testing.T, m *machine) {
	want := directly(peer(35), peer(36))
	m.settle(t, want)
	m.guard.Detach(m.read(t).Links[underlay].Index)
	m.change(t, dataplane.DelRoute{Route: directRoute(36)})
	ops := m.settle(t, want)
	if got := text(ops); got != "fence attach up0 as uplink\nroute set 10.5."+direct36 {
		t.Errorf("repaired with\n%s", got)
	}
}

// uplinkWithoutSubnet: nothing is touched while none is held, but for the fence,
// without which the routes would be open.
func uplinkWithoutSubnet(t *testing.T, m *machine) {
	m.settle(t, hostGW(peer(35)))
	want := hostGW()
	want.Uplink = ""
	if ops := m.settle(t, want); len(ops) != 0 {
		t.Errorf("without a subnet:\n%s", text(ops))
	}
	m.guard.Detach(m.read(t).Links[underlay].Index)
	ops := m.settle(t, want)
	if got := text(ops); got != "fence attach up0 as uplink" {
		t.Errorf("without a subnet and a fence:\n%s", got)
	}
	if back, ok := ops[0].OnFail.(dataplane.Reroute); !ok || !slices.Equal(back.Del, []dataplane.Route{directRoute(35)}) {
		t.Errorf("if it cannot be attached: %v", ops[0].OnFail)
	}
}

// uplinkCannotBeFenced: no direct route stays, and what has a place in the
// overlay is reached through it.
func uplinkCannotBeFenced(t *testing.T, m *machine) {
	want := directly(peer(35))
	gateway := peer(36)
	gateway.MAC, gateway.Direct = dataplane.MAC{}, true
	want.Peers = append(want.Peers, gateway)
	m.settle(t, want)
	m.guard.Detach(m.read(t).Links[underlay].Index)
	loop := dataplane.New(unfenceable{m.kernel}, quietLog(), quick())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- loop.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	loop.Set(want)
	for start := time.Now(); routesTo(m.look(t)) != overlay35; <-time.After(20 * time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatalf("after 10 s the routes are\n%s", routesTo(m.look(t)))
		}
	}
	<-loop.Changed()
	r := loop.Report()
	if r.Converged || r.Err == nil || r.Peers[1].State != dataplane.PeerPending || !strings.Contains(r.Peers[1].Reason, errUnfenceable.Error()) {
		t.Errorf("report %+v", r)
	}
}

// uplinkWithoutEthernet: the fence cannot read packets there, and none go there
// by a plain route.
func uplinkWithoutEthernet(t *testing.T, m *machine) {
	const tunnel = "tun9"
	if fake, ok := m.kernel.(*fakekernel.Kernel); ok {
		fake.Edit(func(s *dataplane.State) {
			s.Links[tunnel] = dataplane.Link{Index: 999, Kind: "tuntap", MTU: 1500, Up: true, NoEthernet: true}
		})
	} else {
		m.sh(t, "ip tuntap add tun9 mode tun && ip link set tun9 up")
	}
	s := m.read(t)
	if !s.Links[tunnel].NoEthernet || s.Links[underlay].NoEthernet || s.Links["lo"].NoEthernet {
		t.Errorf("without Ethernet are %+v", s.Links)
	}
	want := directly(peer(35))
	want.Uplink = tunnel
	m.settle(t, want)
	wantRoutes(t, "DirectRouting", m.read(t), overlay35)
	want = hostGW(peer(36))
	want.Uplink = tunnel
	m.settle(t, want)
	if s := m.read(t); strings.Contains(routesTo(s), tunnel) || len(s.Uplinks) != 0 {
		t.Errorf("host-gw: uplinks %v, routes\n%s", s.Uplinks, routesTo(s))
	}
	_, conflicts := dataplane.Plan(want, m.read(t))
	if !slices.ContainsFunc(conflicts, func(c dataplane.Conflict) bool {
		return c.What == "parent" && strings.Contains(c.Text, "no Ethernet header")
	}) {
		t.Errorf("host-gw: not said: %v", conflicts)
	}
}

var errUnfenceable = errors.New("no fence here")

// unfenceable is a kernel whose uplink takes no fence.
type unfenceable struct{ dataplane.Kernel }

func (k unfenceable) Apply(ctx context.Context, op dataplane.Op) error {
	if _, ok := op.Change.(dataplane.AttachUplink); ok {
		return errUnfenceable
	}
	return k.Kernel.Apply(ctx, op)
}

// gatewayedIsNotDirect: a route of the host's own leads to the peer's address
// through a gateway.
func gatewayedIsNotDirect(t *testing.T, m *machine) {
	foreign := dataplane.Route{
		Dst: netip.PrefixFrom(peer(35).PublicIP, 32), Via: addr("192.0.2.99"), Link: underlay, Type: "unicast", Protocol: protocolForeign, Onlink: true,
	}
	m.change(t, dataplane.SetRoute{Route: foreign})
	m.settle(t, directly(peer(35), peer(36)))
	wantRoutes(t, "gatewayed", m.read(t), overlay35, direct36)
	m.change(t, dataplane.DelRoute{Route: foreign})
	m.settle(t, directly(peer(35), peer(36)))
	wantRoutes(t, "not any more", m.read(t), direct35, direct36)
	m.change(t, dataplane.SetRoute{Route: foreign})
	m.settle(t, hostGW(peer(35), peer(36)))
	wantRoutes(t, "and no overlay", m.read(t), direct36)
}

// directPeersAreKept while etcd's list cannot be believed, with an overlay and
// without one, until somebody else claims the subnet.
func directPeersAreKept(t *testing.T, m *machine) {
	for name, wish := range map[string]func(...dataplane.Peer) dataplane.Desired{"overlay": directly, "host-gw": hostGW} {
		m.settle(t, wish(peer(35), peer(36)))
		want := wish()
		want.KeepPeers = true
		if ops := m.settle(t, want); len(ops) != 0 {
			t.Errorf("%s: %s", name, text(ops))
		}
		wantRoutes(t, name+" kept", m.read(t), direct35, direct36)
		want.Claims = []netip.Prefix{peer(36).Subnet}
		m.settle(t, want)
		wantRoutes(t, name+" claimed", m.read(t), direct35)
	}
}

// directIsRemoved with the instance: routes first, then the fence.
func directIsRemoved(t *testing.T, m *machine) {
	m.settle(t, hostGW(peer(35)))
	for range 2 {
		ops, left := dataplane.Removal(instance, []netip.Prefix{prefix("10.5.0.0/16")}, m.read(t))
		if len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		m.apply(t, ops)
	}
	s := m.read(t)
	wantRoutes(t, "removed", s)
	if len(s.Uplinks) != 0 {
		t.Errorf("uplinks %v", s.Uplinks)
	}
	m.settle(t, hostGW(peer(35)))
	ops, left := dataplane.Removal(instance, nil, m.read(t))
	if strings.Contains(text(ops), "uplink") || strings.Contains(text(ops), "route") || len(left) != 2 {
		t.Errorf("without a network:\n%s\nleft %v", text(ops), left)
	}
}

func foreignRouteForDirect(t *testing.T, m *machine) {
	foreign := dataplane.Route{Dst: peer(35).Subnet, Link: underlay, Type: "unicast", Protocol: protocolForeign, LinkScope: true}
	m.change(t, dataplane.SetRoute{Route: foreign})
	want := directly(peer(35), peer(36))
	m.settle(t, want)
	s := m.read(t)
	wantRoutes(t, "in the way", s, direct36)
	if _, ok := s.Routes[foreign]; !ok {
		t.Error("the foreign route is gone")
	}
	wantConflict(t, want, s, "peer", "10.5.35.0/24")
}

func (m *machine) apply(t *testing.T, ops []dataplane.Op) {
	t.Helper()
	for _, op := range ops {
		if err := m.kernel.Apply(t.Context(), op); err != nil {
			t.Fatalf("%s: %v", op, err)
		}
	}
}
