package node

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/ipam"
)

// dual makes a view one of both families, held and announced.
func dual(t *testing.T, others ...lease.Entry) (lease.View, Underlay) {
	t.Helper()
	v := held(t, "10.5.34.0/24", 7, others...)
	own := with6(v.Snapshot.Entries[0], "fd00:5:0:22::/64", "2001:db8::b", 9)
	v.Holding, v.Snapshot.Entries[0] = holdingOf(t, own), own
	n := *v.Network
	n.EnableIPv6, n.IPv6Network, n.IPv6SubnetLen = true, prefix("fd00:5::/48"), 64
	v.Network = &n
	u := testUnderlay()
	u.PublicIP6, u.Local6, u.Net6 = addr("2001:db8::b"), addr("2001:db8::b"), prefix("2001:db8::/64")
	return v, u
}

// with6 adds the second family to a record.
func with6(e lease.Entry, subnet, public string, mac byte) lease.Entry {
	a := addr(public)
	e.V6, e.PublicIPv6 = prefix(subnet), &a
	e.BackendV6Data = &lease.BackendData{VNI: 1, VtepMAC: lease.MAC{2, 0, 0, 0, 6, mac}}
	return e
}

// TestEachFamilyIsJudged: a peer has a way in each family of which its record
// says enough, and the status says which one it lacks.
func TestEachFamilyIsJudged(t *testing.T) {
	n2 := entry("n2", "10.5.35.0/24", "192.0.2.12", 8)
	whole := with6(n2, "fd00:5:0:23::/64", "2001:db8::c", 1)
	second := func(f func(*lease.Entry)) lease.Entry {
		e := with6(n2, "fd00:5:0:23::/64", "2001:db8::c", 1)
		f(&e)
		return e
	}
	six := dataplane.Peer{Subnet: whole.V6, PublicIP: *whole.PublicIPv6, MAC: dataplane.MAC{2, 0, 0, 0, 6, 1}}
	own := addr("2001:db8::b")
	for name, c := range map[string]struct {
		entry lease.Entry
		want  []dataplane.Peer
		why   string
	}{
		"both":               {whole, []dataplane.Peer{peerOf(n2), six}, ""},
		"IPv4 alone":         {n2, []dataplane.Peer{peerOf(n2)}, "IPv6: it has no IPv6 subnet"},
		"no IPv6 address":    {second(func(e *lease.Entry) { e.PublicIPv6 = nil }), []dataplane.Peer{peerOf(n2)}, "IPv6: it announces no IPv6 address"},
		"no IPv4 address":    {second(func(e *lease.Entry) { e.PublicIP = netip.IPv4Unspecified() }), []dataplane.Peer{six}, "IPv4: it announces no IPv4 address"},
		"no MAC for IPv6":    {second(func(e *lease.Entry) { e.BackendV6Data = nil }), []dataplane.Peer{peerOf(n2)}, "IPv6: its backend is vxlan and its record has no VtepMAC"},
		"another VNI":        {second(func(e *lease.Entry) { e.BackendV6Data.VNI = 9 }), []dataplane.Peer{peerOf(n2)}, "IPv6: its VNI is 9"},
		"IPv4 as IPv6":       {second(func(e *lease.Entry) { a := addr("::ffff:192.0.2.12"); e.PublicIPv6 = &a }), []dataplane.Peer{peerOf(n2)}, "IPv6: its address ::ffff:192.0.2.12 is no IPv6 address"},
		"this node's":        {second(func(e *lease.Entry) { e.PublicIPv6 = &own }), []dataplane.Peer{peerOf(n2)}, "IPv6: it announces this node's own address 2001:db8::b"},
		"outside":            {second(func(e *lease.Entry) { e.V6 = prefix("fd00:6::/64") }), []dataplane.Peer{peerOf(n2)}, "IPv6: its subnet fd00:6::/64 is not inside fd00:5::/48"},
		"in the pod network": {second(func(e *lease.Entry) { a := addr("fd00:5:0:99::1"); e.PublicIPv6 = &a }), []dataplane.Peer{peerOf(n2)}, "IPv6: its address fd00:5:0:99::1 lies in the pod network"},
		"a tombstone":        {dead(whole), nil, "it was taken from its node by force"},
	} {
		v, u := dual(t, c.entry)
		d, _ := Desired(v, u, nil, Config{Instance: "tenure"})
		if !slices.Equal(d.Peers, c.want) {
			t.Errorf("%s: peers %v, want %v", name, d.Peers, c.want)
		}
		var r dataplane.Report
		for _, p := range d.Peers {
			r.Peers = append(r.Peers, dataplane.PeerReport{Peer: p, State: dataplane.PeerProgrammed})
		}
		got := peerStates(v, u, r)
		if len(got) != 1 || !strings.HasPrefix(got[0].Reason, c.why) || (c.why == "") != (got[0].State == api.PeerProgrammed) {
			t.Errorf("%s: status %+v, want %q", name, got, c.why)
		}
	}
}

// TestOneFamilyHasNoAddress: a daemon that starts while one of the addresses is
// missing keeps what the other leads to in line, and says which is missing.
func TestOneFamilyHasNoAddress(t *testing.T) {
	n2 := with6(entry("n2", "10.5.35.0/24", "192.0.2.12", 8), "fd00:5:0:23::/64", "2001:db8::c", 1)
	n3 := with6(entry("n3", "10.5.36.0/24", "192.0.2.13", 9), "fd00:5:0:24::/64", "2001:db8::d", 2)
	v, u := dual(t, n2)
	u.PublicIP6, u.Local6, u.Net6 = netip.Addr{}, netip.Addr{}, netip.Prefix{}
	r := newRig(t, v)
	r.cfg.Underlay, r.cfg.UnderlayErr = func() (Underlay, bool) { return u, true }, func() error { return errors.New("eth0 has no IPv6 address") }
	r.steer()
	d := <-r.plane.desired
	if len(d.Overlays) != 1 || !slices.Equal(d.Peers, []dataplane.Peer{peerOf(n2)}) || len(d.Bridge.Gateways) != 2 || d.AsFound != (dataplane.Families{V6: true}) {
		t.Errorf("at the start %+v", d)
	}
	v, _ = dual(t, n2, n3)
	r.tenancy.set(v)
	r.steer()
	if d = <-r.plane.desired; !slices.Equal(d.Peers, []dataplane.Peer{peerOf(n2), peerOf(n3)}) {
		t.Errorf("with one more %+v", d.Peers)
	}
	r.plane.report = dataplane.Report{Converged: true, Peers: []dataplane.PeerReport{{Peer: peerOf(n2), State: dataplane.PeerProgrammed}}}
	s := r.Status()
	if len(s.Problems) != 1 || s.Problems[0].Code != "underlay-missing" || !strings.Contains(s.Problems[0].Text, "no IPv6 address") || !s.Ready {
		t.Errorf("ready %t, problems %+v", s.Ready, s.Problems)
	}
	if p := s.Peers[0]; p.State != api.PeerUnreachable || !strings.Contains(p.Reason, "IPv6: this node has no IPv6 address") || p.Path != api.PathVXLAN {
		t.Errorf("peer %+v", p)
	}
	u.PublicIP6, u.Local6 = addr("2001:db8::b"), addr("2001:db8::b")
	r.steer()
	if d = <-r.plane.desired; len(d.Overlays) != 2 || len(d.Peers) != 4 || d.AsFound != (dataplane.Families{}) {
		t.Errorf("once it is there %+v", d)
	}
}

// TestDesiredOfBothFamilies: each has its device, its gateway and its stranded
// pods; one without an underlay address has no device.
func TestDesiredOfBothFamilies(t *testing.T) {
	tenant := with6(entry("n2", "10.5.33.0/24", "192.0.2.12", 9), "fd00:5:0:21::/64", "2001:db8::c", 1)
	v, u := dual(t, tenant)
	old := pod("old", "10.5.33.9/24")
	old.Addresses = append(old.Addresses, prefix("fd00:5:0:21::9/64"))
	desired := func() dataplane.Desired {
		d, _ := Desired(v, u, []ipam.Allocation{old}, Config{Instance: "tenure", UID: "uid-n1", Prefix: testPrefix})
		return d
	}
	d := desired()
	if want := []netip.Prefix{prefix("10.5.0.0/16"), prefix("fd00:5::/48")}; !slices.Equal(d.Networks, want) {
		t.Errorf("networks %v", d.Networks)
	}
	gateways := []netip.Prefix{prefix("10.5.33.1/32"), prefix("10.5.34.1/24"), prefix("fd00:5:0:21::1/128"), prefix("fd00:5:0:22::1/64")}
	if !slices.Equal(d.Bridge.Gateways, gateways) {
		t.Errorf("gateways %v, want %v", d.Bridge.Gateways, gateways)
	}
	if want := []netip.Addr{addr("10.5.33.9"), addr("fd00:5:0:21::9")}; !slices.Equal(d.HostRoutes, want) {
		t.Errorf("routes to pods %v", d.HostRoutes)
	}
	mac := dataplane.MAC(lease.VTEPMAC(testPrefix, v.Holding.Subnets(), testEpoch))
	want := []dataplane.Vxlan{
		{VNI: 1, Port: 8472, Local: u.Local, Parent: "eth0", MAC: mac, MTU: 1450, Addr: prefix("10.5.34.0/32")},
		{VNI: 1, Port: 8472, Local: u.Local6, Parent: "eth0", MAC: mac, MTU: 1430, Addr: prefix("fd00:5:0:22::/128")},
	}
	if !slices.Equal(d.Overlays, want) || d.Bridge.MTU != 1430 {
		t.Errorf("devices %+v, want %+v; bridge %d", d.Overlays, want, d.Bridge.MTU)
	}
	if d.AsFound != (dataplane.Families{}) {
		t.Errorf("with both addresses %+v stay as found", d.AsFound)
	}
	if u.Local6 = (netip.Addr{}); len(desired().Overlays) != 1 || desired().AsFound != (dataplane.Families{V6: true}) {
		t.Errorf("without an address %+v", desired())
	}
	// A stranded pod of a family that there is no network of any more.
	n := *v.Network
	n.EnableIPv6, n.IPv6Network = false, netip.Prefix{}
	v.Network = &n
	if d = desired(); len(d.Networks) != 1 || !slices.Equal(d.Outside, []netip.Prefix{prefix("fd00:5:0:21::/64")}) {
		t.Errorf("networks %v, outside %v", d.Networks, d.Outside)
	}
}

// TestStatusCountsAddresses: of both families those of IPv4, which end first; of
// IPv6 alone its own.
func TestStatusCountsAddresses(t *testing.T) {
	v, _ := dual(t)
	r := newRig(t, v)
	mustAdd(t, r, "c1")
	if got := r.Status().Addresses; got != (api.Addresses{Total: 253, Used: 1}) {
		t.Errorf("of both families %+v", got)
	}
	own := v.Snapshot.Entries[0]
	own.V4 = netip.Prefix{}
	v.Holding, v.Snapshot.Entries[0] = holdingOf(t, own), own
	n := *v.Network
	n.EnableIPv4, n.Network = false, netip.Prefix{}
	v.Network = &n
	r = newRig(t, v)
	mustAdd(t, r, "c1")
	if got := r.Status().Addresses; got.Used != 1 || got.Total < 1<<63 {
		t.Errorf("of IPv6 alone %+v", got)
	}
}
