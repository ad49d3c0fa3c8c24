package dataplane_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tenure-cni/tenure/daemon/dataplane"
)

// keeping wants these peers, and those that the kernel has as well.
func keeping(peers ...dataplane.Peer) dataplane.Desired {
	want := node34(peers...)
	want.KeepPeers = true
	return want
}

// keptPeers: the list of peers cannot be believed. What it lacks stays, not a
// write is made, until somebody else has the subnet or the list counts again.
func keptPeers(t *testing.T, m *machine) {
	m.converge(t, node34(peer(35), peer(36), peer(37)))
	before := m.read(t)
	for name, want := range map[string]dataplane.Desired{
		"an empty list": keeping(), "a short one": keeping(peer(36)), "a whole one": keeping(peer(37), peer(35), peer(36)),
	} {
		if ops := m.converge(t, want); len(ops) > 0 {
			t.Errorf("%s: wrote\n%s", name, text(ops))
		}
	}
	sameState(t, before, m.read(t))

	half := dataplane.Peer{Subnet: prefix("10.5.35.128/25"), PublicIP: addr("192.0.2.90"), MAC: mac(90)}
	m.converge(t, keeping(half))
	wantTokens(t, m, half, peer(36), peer(37))
	// One that is only known to have a tenant, and the node's own subnet.
	want := keeping(half)
	want.Claims = []netip.Prefix{prefix("10.5.36.0/23")}
	m.converge(t, want)
	wantTokens(t, m, half)
	m.converge(t, node34(peer(36), half))
	want = keeping()
	want.Overlays[0].Addr, want.Bridge.Gateways = prefix("10.5.36.0/32"), []netip.Prefix{prefix("10.5.36.1/24")}
	m.converge(t, want)
	wantTokens(t, m, half)
	// Claims that overlap one another hide nothing.
	m.converge(t, node34(peer(37)))
	wide, narrow := peer(36), peer(36)
	wide.Subnet, narrow.MAC = prefix("10.5.36.0/23"), mac(91)
	m.converge(t, keeping(wide, narrow))
	wantTokens(t, m, wide)
	// What lies outside of Network is no peer.
	m.converge(t, node34(half))
	m.change(t, dataplane.AllowToken{MAC: mac(92), Subnet: prefix("10.6.35.0/24")},
		dataplane.SetFDB{FDB: dataplane.FDB{Link: overlay, MAC: mac(92), Dst: addr("192.0.2.92")}})
	m.converge(t, keeping())
	wantTokens(t, m, half)
	// A MAC, and an address, that is somebody else's now.
	thief := peer(40)
	thief.MAC = half.MAC
	m.converge(t, keeping(thief))
	wantTokens(t, m, thief)
	want = keeping()
	want.Overlays[0].Local = thief.PublicIP
	m.converge(t, want)
	wantTokens(t, m)

	m.converge(t, node34(peer(35)))
	m.converge(t, node34())
	wantTokens(t, m)
}

// wantTokens wants exactly these peers in the kernel.
func wantTokens(t *testing.T, m *machine, peers ...dataplane.Peer) {
	t.Helper()
	s := m.read(t)
	for _, p := range peers {
		if missing := missingOf(s, overlay, p, true); missing != "" {
			t.Errorf("peer %v has no %s", p, missing)
		}
	}
	routes := 0
	for r := range s.Routes {
		if r.Link == overlay && r.Via.IsValid() {
			routes++
		}
	}
	if n := len(peers); len(s.Tokens) != n || len(s.FDB) != n || len(s.Neighs) != n || routes != n {
		t.Errorf("want %d each: %d tokens, %d entries, %d neighbours, %d routes", n, len(s.Tokens), len(s.FDB), len(s.Neighs), routes)
	}
}

// keptPeersAreRepaired damages a peer that only the kernel knows.
func keptPeersAreRepaired(t *testing.T, m *machine) {
	m.converge(t, node34(peer(35), peer(36)))
	before := m.read(t)
	route := dataplane.Route{
		Dst: prefix("10.5.36.0/24"), Via: addr("10.5.36.0"), Link: overlay, Type: "unicast", Protocol: 90, Onlink: true,
	}
	bent := route
	bent.Via = addr("10.5.35.0")
	neigh := dataplane.Neigh{Link: overlay, Addr: addr("10.5.36.0")}
	second := dataplane.AllowToken{MAC: mac(9), Subnet: prefix("10.5.36.0/24")}
	entry := dataplane.SetFDB{FDB: dataplane.FDB{Link: overlay, MAC: mac(9), Dst: addr("192.0.2.9")}}
	for name, changes := range map[string][]dataplane.Change{
		"device down":             {dataplane.SetDown{Link: overlay}},
		"own MAC changed":         {dataplane.SetMAC{Link: overlay, MAC: mac(9)}},
		"route deleted":           {dataplane.DelRoute{Route: route}},
		"route bent":              {dataplane.SetRoute{Route: bent, Replace: true}},
		"neighbour deleted":       {dataplane.DelNeigh{Neigh: neigh}},
		"neighbour changed":       {dataplane.SetNeigh{Neigh: neigh, MAC: mac(9)}},
		"second token":            {second},
		"second token with entry": {second, entry},
		"token of nobody":         {dataplane.AllowToken{MAC: mac(9), Subnet: prefix("10.5.77.0/24")}},
		"entry of nobody":         {entry},
	} {
		m.change(t, changes...)
		m.converge(t, keeping())
		sameState(t, before, m.read(t))
		if t.Failed() {
			t.Fatalf("after %s", name)
		}
	}
	// The device is made anew for another port, with all that stood on it.
	want := keeping()
	want.Overlays[0].Port = 4789
	m.converge(t, want)
	wantTokens(t, m, peer(35), peer(36))
	// What is shut out is not let in again, and where to is not guessed.
	fdb := dataplane.FDB{Link: overlay, MAC: mac(36), Dst: addr("192.0.2.36")}
	m.change(t, dataplane.DenyToken{MAC: mac(35)}, dataplane.DelFDB{FDB: fdb})
	m.converge(t, want)
	wantTokens(t, m)
	// Peers of another network number are none of this one.
	m.converge(t, node34(peer(35)))
	want = keeping()
	want.Overlays[0].VNI = 7
	m.converge(t, want)
	wantTokens(t, m)
}

// TestPlanKeepsPeers: with the list in doubt no change takes a part of a whole
// peer, and all of it is there at the end; but one whose subnet is claimed goes,
// and without doubt so does each that is not listed.
func TestPlanKeepsPeers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, want := drawWorld(t), drawDesired(t)
		dev, name := overlayOf(want, false)
		start := w.read()
		var keep, drop []dataplane.Peer
		for _, p := range peersIn(start, name) {
			listed := slices.ContainsFunc(want.Peers, func(q dataplane.Peer) bool { return p.MAC == q.MAC })
			switch {
			case listed || missingOf(start, name, p, true) != "" || p.PublicIP == dev.Local:
			case want.KeepPeers && !claimedIn(want, start, p.Subnet):
				keep = append(keep, p)
			default:
				drop = append(drop, p)
			}
		}
		w.pass(want, func(op dataplane.Op, before, after dataplane.State) {
			switch op.Change.(type) {
			case dataplane.DelLink, dataplane.SetMAC, dataplane.SetFlags, dataplane.DelAddr:
				return // the kernel takes along what it likes
			}
			for _, p := range keep {
				if missing := missingOf(after, name, p, true); missing != "" && missingOf(before, name, p, true) == "" {
					t.Fatalf("%s took the %s of %v", op, missing, p)
				}
			}
		})
		end := w.read()
		for _, p := range keep {
			if missing := missingOf(end, name, p, true); missing != "" {
				t.Fatalf("%v was to be kept and has no %s", p, missing)
			}
		}
		for _, p := range drop {
			if end.Tokens[p.MAC].IsValid() {
				t.Fatalf("%v was to go and is still let in", p)
			}
		}
	})
}

// peersIn are the tokens of the kernel with where the device sends to for them.
func peersIn(s dataplane.State, link string) []dataplane.Peer {
	var out []dataplane.Peer
	for f := range s.FDB {
		if subnet, in := s.Tokens[f.MAC]; in && f.Link == link && subnet.Addr().Is4() == f.Dst.Is4() {
			out = append(out, dataplane.Peer{Subnet: subnet, PublicIP: f.Dst, MAC: f.MAC})
		}
	}
	return out
}

func claimedIn(want dataplane.Desired, have dataplane.State, subnet netip.Prefix) bool {
	claims := slices.Clone(want.Claims)
	for _, v := range want.Overlays {
		claims = append(claims, v.Addr)
	}
	for _, p := range want.Peers {
		claims = append(claims, p.Subnet)
	}
	for _, g := range want.Bridge.Gateways {
		if !g.IsSingleIP() {
			claims = append(claims, g)
		}
	}
	for _, f := range want.Bridge.Former {
		single := dataplane.Addr{Link: want.BridgeName(), Prefix: netip.PrefixFrom(f.Gateway.Addr(), 32)}
		if _, found := have.Addrs[single]; !found {
			claims = append(claims, f.Gateway) // in its whole form
		}
	}
	return slices.ContainsFunc(claims, subnet.Overlaps)
}

// TestPlanKeepsNoPeerWithoutPlace: an entry that somebody made without a
// destination says nothing of a peer.
func TestPlanKeepsNoPeerWithoutPlace(t *testing.T) {
	m := fakeMachine(t)
	m.converge(t, node34())
	m.change(t, dataplane.AllowToken{MAC: mac(36), Subnet: prefix("10.5.36.0/24")},
		dataplane.SetFDB{FDB: dataplane.FDB{Link: overlay, MAC: mac(36)}})
	m.converge(t, keeping())
	wantTokens(t, m)
}

func TestLoopReportsKeptPeers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.loop.Set(node34(peer(35), peer(36)))
		b.converge(time.Minute)
		b.loop.Set(keeping(peer(36)))
		b.converge(time.Minute)
		r := b.loop.Report()
		want := []dataplane.PeerReport{{Peer: peer(35), State: dataplane.PeerProgrammed}}
		if !slices.Equal(r.Kept, want) || len(r.Peers) != 1 {
			t.Errorf("kept %+v, want %+v beside one peer of %+v", r.Kept, want, r.Peers)
		}
		b.loop.Set(node34(peer(36)))
		b.converge(time.Minute)
		if r := b.loop.Report(); len(r.Kept) > 0 {
			t.Errorf("kept %+v, with a list that counts", r.Kept)
		}
	})
}

// TestPlanKeepsNothingOfAListedToken: a tenancy is of both families, so where the
// list has one of them it speaks for the other too, in the first pass already.
func TestPlanKeepsNothingOfAListedToken(t *testing.T) {
	m := fakeMachine(t)
	want := dual34()
	want.Peers = []dataplane.Peer{peer6(36)}
	m.converge(t, want)
	moved := peer(40)
	moved.MAC = mac(36)
	want.Peers, want.KeepPeers = []dataplane.Peer{moved}, true
	m.converge(t, want)
	wantTokens(t, m, moved)
}

// TestPlanKeepsNoHalfTenancy: one of a subnet that this node's own stranded pods
// sit on has ended, in the family too in which nobody of this node is.
func TestPlanKeepsNoHalfTenancy(t *testing.T) {
	m := fakeMachine(t)
	m.converge(t, dual34(36))
	want := dual34()
	want.KeepPeers = true
	want.Bridge.Gateways = append(want.Bridge.Gateways, prefix("10.5.36.1/24"))
	m.converge(t, want)
	wantTokens(t, m)
}
