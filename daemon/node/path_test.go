package node

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/lease"
)

func TestWayTo(t *testing.T) {
	mac := lease.MAC{2, 0, 0, 0, 0, 7}
	link, near, far := prefix("192.0.2.11/24"), addr("192.0.2.12"), addr("198.51.100.12")
	link6, near6 := prefix("2001:db8:2::b/64"), addr("2001:db8:2::c")
	vxlan := conf.Backend{Type: conf.BackendVXLAN, VNI: 1, Port: 8472}
	direct, hostGW := vxlan, conf.Backend{Type: conf.BackendHostGW}
	direct.DirectRouting = true
	data := &lease.BackendData{VNI: 1, VtepMAC: mac}
	for name, c := range map[string]struct {
		b    conf.Backend
		kind string
		addr netip.Addr
		link netip.Prefix
		data *lease.BackendData
		want way
		why  string
	}{
		"vxlan":                    {vxlan, "vxlan", near, link, data, way{mac: mac}, ""},
		"vxlan, far":               {vxlan, "vxlan", far, link, data, way{mac: mac}, ""},
		"direct, near":             {direct, "vxlan", near, link, data, way{mac: mac, direct: true}, ""},
		"direct, near, IPv6":       {direct, "vxlan", near6, link6, data, way{mac: mac, direct: true}, ""},
		"direct, far":              {direct, "vxlan", far, link, data, way{mac: mac}, ""},
		"direct, link unknown":     {direct, "vxlan", near, netip.Prefix{}, data, way{mac: mac}, ""},
		"direct, another VNI":      {direct, "vxlan", near, link, &lease.BackendData{VNI: 2, VtepMAC: mac}, way{direct: true}, ""},
		"host-gw, near":            {hostGW, "host-gw", near, link, nil, way{direct: true}, ""},
		"host-gw, near, vxlan yet": {hostGW, "vxlan", near, link, data, way{direct: true}, ""},
		"host-gw, far":             {hostGW, "host-gw", far, link, nil, way{far: true}, "198.51.100.12 is not on the link of this node (192.0.2.0/24), and with host-gw, this node's backend"},
		"host-gw, far, vxlan yet":  {hostGW, "vxlan", far, link, data, way{far: true}, "this node's backend"},
		"vxlan, peer host-gw":      {vxlan, "host-gw", near, link, nil, way{direct: true}, ""},
		"vxlan, far peer host-gw":  {vxlan, "host-gw", far, link, nil, way{far: true}, "with host-gw, its backend"},
		"another VNI":              {vxlan, "vxlan", near, link, &lease.BackendData{VNI: 2, VtepMAC: mac}, way{}, "its VNI is 2"},
		"another backend":          {direct, "wireguard", near, link, nil, way{}, `its backend is "wireguard", this node speaks vxlan`},
		"no MAC":                   {direct, "vxlan", near, link, &lease.BackendData{VNI: 1}, way{}, "no VtepMAC"},
		"no data":                  {hostGW, "vxlan", near, link, nil, way{}, "no VtepMAC"},
	} {
		got := wayTo(c.b, c.kind, c.addr, c.link, c.data)
		why := got.why
		if got.why = ""; got != c.want || !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%s: %+v because %q, want %+v because %q", name, got, why, c.want, c.why)
		}
	}
}

// with returns the view of a node whose network config has that backend.
func with(v lease.View, b conf.Backend) lease.View {
	n := *v.Network
	n.Backend = b
	v.Network = &n
	return v
}

// routed is the record of a node with host-gw.
func routed(e lease.Entry) lease.Entry {
	e.BackendType, e.BackendData = conf.BackendHostGW, nil
	return e
}

func TestDesiredPaths(t *testing.T) {
	u := Underlay{Interface: "eth0", PublicIP: addr("192.0.2.11"), Local: addr("192.0.2.11"), Net: prefix("192.0.2.11/24"), MTU: 1500}
	near, far := entry("n2", "10.5.35.0/24", "192.0.2.12", 8), entry("n3", "10.5.36.0/24", "198.51.100.13", 9)
	vxlan := testNetwork().Backend
	direct := vxlan
	direct.DirectRouting = true
	for name, c := range map[string]struct {
		b       conf.Backend
		near    lease.Entry
		uplink  string
		overlay bool
		mtu     int
		peers   []dataplane.Peer
	}{
		"vxlan":                   {vxlan, near, "", true, 1450, []dataplane.Peer{peerOf(near), peerOf(far)}},
		"DirectRouting":           {direct, near, "eth0", true, 1450, []dataplane.Peer{directly(peerOf(near)), peerOf(far)}},
		"host-gw":                 {conf.Backend{Type: conf.BackendHostGW}, routed(near), "eth0", false, 1500, []dataplane.Peer{withoutMAC(directly(peerOf(near)))}},
		"host-gw with an MTU":     {conf.Backend{Type: conf.BackendHostGW, MTU: 1400}, routed(near), "eth0", false, 1400, []dataplane.Peer{withoutMAC(directly(peerOf(near)))}},
		"a peer with host-gw yet": {vxlan, routed(near), "eth0", true, 1450, []dataplane.Peer{withoutMAC(directly(peerOf(near))), peerOf(far)}},
	} {
		d, _ := Desired(with(held(t, "10.5.34.0/24", 7, c.near, far), c.b), u, nil, Config{Instance: "tenure", Prefix: testPrefix})
		if d.Uplink != c.uplink || (len(d.Overlays) == 1) != c.overlay || d.Bridge.MTU != c.mtu {
			t.Errorf("%s: uplink %q, overlays %+v, MTU %d", name, d.Uplink, d.Overlays, d.Bridge.MTU)
		}
		if diff := cmp.Diff(c.peers, d.Peers, compareNetip()); diff != "" {
			t.Errorf("%s: peers (-want +got):\n%s", name, diff)
		}
	}
	// A peer that is far is told with the reason, and has nothing in the kernel.
	v := with(held(t, "10.5.34.0/24", 7, routed(far)), conf.Backend{Type: conf.BackendHostGW})
	if s := peerStates(v, u, dataplane.Report{}); len(s) != 1 || s[0].State != api.PeerUnreachable || !strings.Contains(s[0].Reason, "not on the link") {
		t.Errorf("status of a far peer: %+v", s)
	}
}

func directly(p dataplane.Peer) dataplane.Peer {
	p.Direct = true
	return p
}

func withoutMAC(p dataplane.Peer) dataplane.Peer {
	p.MAC = dataplane.MAC{}
	return p
}

// TestLinger goes from vxlan to host-gw and back while the peer follows a little
// later: at every moment there is what the peer may still send by.
func TestLinger(t *testing.T) {
	u := Underlay{Interface: "eth0", PublicIP: addr("192.0.2.11"), Local: addr("192.0.2.11"), Net: prefix("192.0.2.11/24"), MTU: 1500}
	n2, own := entry("n2", "10.5.35.0/24", "192.0.2.12", 8), "10.5.34.0/24"
	vxlan, hostGW := testNetwork().Backend, conf.Backend{Type: conf.BackendHostGW}
	var l linger
	var before dataplane.Desired
	clock := now
	step := func(what string, after time.Duration, b conf.Backend, e lease.Entry, overlay, direct, token bool) {
		t.Helper()
		clock += after
		v := with(held(t, own, 7, e), b)
		d, _ := Desired(v, u, nil, Config{Instance: "tenure", Prefix: testPrefix})
		before = l.keep(d, before, v, u, testPrefix, clock)
		p := before.Peers[0]
		if got := len(before.Overlays) == 1; got != overlay || p.Direct != direct || (p.MAC != dataplane.MAC{}) != token {
			t.Errorf("%s: overlay %t, peer %+v; want overlay %t, direct %t, token %t", what, got, p, overlay, direct, token)
		}
		if want := b.Type == conf.BackendHostGW || b.DirectRouting || direct; want != (before.Uplink != "") {
			t.Errorf("%s: uplink %q", what, before.Uplink)
		}
	}
	step("vxlan", 0, vxlan, n2, true, false, true)
	step("host-gw here", 0, hostGW, n2, true, false, true)
	step("the uplink of the peer is ready", prepareFor, hostGW, n2, true, true, true)
	step("host-gw here, the peer is cut off", 10*lingerFor, hostGW, n2, true, true, true)
	if l.waits {
		t.Error("time alone changes nothing while the peer speaks vxlan")
	}
	step("the peer follows", 10*lingerFor, hostGW, routed(n2), true, true, true)
	if !l.waits {
		t.Error("what stays for a while is looked at when somebody calls only")
	}
	step("the peer goes back", 1, hostGW, n2, true, true, true)
	step("the peer follows again", 10*lingerFor, hostGW, routed(n2), true, true, true)
	step("a little later", lingerFor, hostGW, routed(n2), false, true, false)
	step("vxlan here", 0, vxlan, routed(n2), true, true, false)
	step("the peer follows back", 10*lingerFor, vxlan, n2, true, true, true)
	step("a moment later", lingerFor-1, vxlan, n2, true, true, true)
	step("a little later", 1, vxlan, n2, true, false, true)

	// The token of an earlier tenancy does not come back.
	step("host-gw again", 0, hostGW, n2, true, false, true)
	another := routed(n2)
	who := another.Tenant()
	who.Epoch++
	another.Tenure = &who
	step("another tenancy", 0, hostGW, another, true, true, false)

	u.Local, u.PublicIP = addr("192.0.2.21"), addr("192.0.2.21")
	step("host-gw here, another address", 0, hostGW, n2, true, true, false)
	if local := before.Overlays[0].Local; local != u.Local {
		t.Errorf("the overlay of before sends from %s, which has gone", local)
	}
	// Nor does this node's own: its subnet may be another's since.
	own = "10.5.37.0/24"
	step("another subnet here", 0, hostGW, n2, false, true, false)
}
