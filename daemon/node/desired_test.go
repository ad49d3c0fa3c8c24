package node

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/ipam"
)

func compareNetip() cmp.Option {
	return cmp.Options{
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	}
}

// pod is an allocation as ADD records it.
func pod(container, address string) ipam.Allocation {
	return ipam.Allocation{Key: ipam.Key{Network: "net", ContainerID: container, IfName: "eth0"},
		Addresses: []netip.Prefix{prefix(address)}, Host: "ten" + container}
}

// unheard is a view from before etcd's first answer.
func unheard(v lease.View) lease.View {
	v.Snapshot = nil
	return v
}

// settling is a view of a store that forgot, or has not settled yet.
func settling(v lease.View) lease.View {
	v.Settling = true
	return v
}

// before is a view of a node that was in another network.
func before(v lease.View, network string) lease.View {
	v.Networks = []netip.Prefix{prefix(network)}
	return v
}

// dead is a record that was taken from its node by force.
func dead(e lease.Entry) lease.Entry {
	who := e.Tenant()
	who.UID = ""
	e.Tenure = &who
	return e
}

func peerOf(e lease.Entry) dataplane.Peer {
	return dataplane.Peer{Subnet: e.V4, PublicIP: e.PublicIP, MAC: dataplane.MAC(e.BackendData.VtepMAC)}
}

func TestDesired(t *testing.T) {
	const own = "10.5.34.0/24"
	n2 := entry("n2", "10.5.35.0/24", "192.0.2.12", 8)
	tenant := entry("n2", "10.5.33.0/24", "192.0.2.12", 9) // of a subnet this node once had
	flannel := entry("", "10.5.36.0/24", "192.0.2.13", 10)
	flannel.Tenure = nil

	changed := func(f func(*lease.Entry)) lease.Entry {
		e := entry("n4", "10.5.37.0/24", "192.0.2.14", 11)
		data := *e.BackendData
		e.BackendData = &data
		f(&e)
		return e
	}
	base := dataplane.Desired{Name: "tenure", Networks: []netip.Prefix{prefix("10.5.0.0/16")}, Masq: true, ForwardAccept: true}
	bridge := dataplane.Bridge{MAC: dataplane.MAC(bridgeMAC("uid-n1", "tenure")), MTU: 1450}
	vxlan := dataplane.Vxlan{VNI: 1, Port: 8472, Local: addr("192.0.2.11"), Parent: "eth0", MTU: 1450,
		MAC: dataplane.MAC(lease.VTEPMAC(testPrefix, v4(own), testEpoch)), Addr: prefix("10.5.34.0/32")}
	with := func(f func(*dataplane.Desired)) dataplane.Desired {
		d := base
		d.Bridge, d.Overlays = bridge, []dataplane.Vxlan{vxlan}
		d.Bridge.Gateways = []netip.Prefix{prefix("10.5.34.1/24")}
		if f != nil {
			f(&d)
		}
		return d
	}
	for name, c := range map[string]struct {
		view lease.View
		pods []ipam.Allocation
		want dataplane.Desired
	}{
		"held, no pods, no peers": {held(t, own, 7), nil, with(nil)},
		"pods of the held subnet": {
			held(t, own, 7), []ipam.Allocation{pod("b", "10.5.34.3/24"), pod("a", "10.5.34.2/24")},
			with(func(d *dataplane.Desired) { d.Bridge.Ports = []string{"tena", "tenb"} }),
		},
		"an address of tenure-ipam is no port": {
			held(t, own, 7), []ipam.Allocation{{Key: ipam.Key{Network: "net", ContainerID: "x", IfName: "eth0"},
				Addresses: []netip.Prefix{prefix("10.5.34.2/24")}, IPAM: true}},
			with(nil),
		},
		"peers, flannel's too": {
			held(t, own, 7, n2, flannel), nil,
			with(func(d *dataplane.Desired) { d.Peers = []dataplane.Peer{peerOf(n2), peerOf(flannel)} }),
		},
		"own address announced by another record": {
			held(t, own, 7, entry("n9", "10.5.38.0/24", "192.0.2.11", 12)), nil, with(nil),
		},
		"another VNI": {held(t, own, 7, changed(func(e *lease.Entry) { e.BackendData.VNI = 2 })), nil, with(nil)},
		"another backend": {held(t, own, 7, changed(func(e *lease.Entry) {
			e.BackendType, e.BackendData = "host-gw", nil
		})), nil, with(nil)},
		"no MAC":                            {held(t, own, 7, changed(func(e *lease.Entry) { e.BackendData.VtepMAC = lease.MAC{} })), nil, with(nil)},
		"unreadable":                        {held(t, own, 7, changed(func(e *lease.Entry) { e.Record = lease.Record{} })), nil, with(nil)},
		"an IPv6 subnet":                    {held(t, own, 7, changed(func(e *lease.Entry) { e.V4, e.V6 = netip.Prefix{}, prefix("fd00:5:0:25::/64") })), nil, with(nil)},
		"a whole record":                    {held(t, own, 7, changed(func(*lease.Entry) {})), nil, with(func(d *dataplane.Desired) { d.Peers = []dataplane.Peer{peerOf(changed(func(*lease.Entry) {}))} })},
		"an address inside the pod network": {held(t, own, 7, changed(func(e *lease.Entry) { e.PublicIP = addr("10.5.200.9") })), nil, with(nil)},
		"another network, an old pod stays": {
			before(held(t, own, 7), "10.4.0.0/16"), []ipam.Allocation{pod("new", "10.5.34.2/24"), pod("b", "10.4.33.9/24"), pod("a", "10.4.33.4/24")},
			with(func(d *dataplane.Desired) {
				d.Former, d.Outside = []netip.Prefix{prefix("10.4.0.0/16")}, []netip.Prefix{prefix("10.4.33.0/24")}
				d.Bridge.Gateways = []netip.Prefix{prefix("10.4.33.1/24"), prefix("10.5.34.1/24")}
				d.Bridge.Ports = []string{"tena", "tenb", "tennew"}
			}),
		},
		"the store forgot: what the kernel has stays": {
			settling(held(t, own, 7, n2, changed(func(e *lease.Entry) { e.BackendData.VNI = 2 }), changed(func(e *lease.Entry) {
				e.V4, e.V6 = netip.Prefix{}, prefix("fd00:5:0:25::/64")
			}))), nil,
			with(func(d *dataplane.Desired) {
				d.KeepPeers, d.Peers, d.Claims = true, []dataplane.Peer{peerOf(n2)}, []netip.Prefix{prefix("10.5.37.0/24")}
			}),
		},
		"held by memory alone: the overlay is left alone": {
			unheard(held(t, own, 7)), []ipam.Allocation{pod("a", "10.5.34.2/24")},
			with(func(d *dataplane.Desired) { d.Overlays, d.Bridge.Ports = nil, []string{"tena"} }),
		},
		"by memory alone, and old pods stay as they are": {
			unheard(held(t, own, 7)), []ipam.Allocation{pod("b", "10.5.33.9/24"), pod("a", "10.5.33.4/24"), pod("c", "10.5.32.2/24")},
			with(func(d *dataplane.Desired) {
				d.Overlays, d.Bridge.Ports = nil, []string{"tena", "tenb", "tenc"}
				d.Bridge.Former = []dataplane.Former{
					{Gateway: prefix("10.5.32.1/24"), Pods: []netip.Addr{addr("10.5.32.2")}},
					{Gateway: prefix("10.5.33.1/24"), Pods: []netip.Addr{addr("10.5.33.4"), addr("10.5.33.9")}},
				}
			}),
		},
		"another subnet is held, an old pod stays": {
			held(t, own, 7), []ipam.Allocation{pod("new", "10.5.34.2/24"), pod("old", "10.5.33.9/24")},
			with(func(d *dataplane.Desired) {
				d.Bridge.Gateways = []netip.Prefix{prefix("10.5.33.1/24"), prefix("10.5.34.1/24")}
				d.Bridge.Ports = []string{"tennew", "tenold"}
			}),
		},
		"and its subnet has a new tenant": {
			held(t, own, 7, tenant), []ipam.Allocation{pod("old", "10.5.33.9/24"), pod("older", "10.5.33.4/24")},
			with(func(d *dataplane.Desired) {
				d.Peers = []dataplane.Peer{peerOf(tenant)}
				d.Bridge.Gateways = []netip.Prefix{prefix("10.5.33.1/32"), prefix("10.5.34.1/24")}
				d.Bridge.Ports = []string{"tenold", "tenolder"}
				d.HostRoutes = []netip.Addr{addr("10.5.33.4"), addr("10.5.33.9")}
			}),
		},
		"a tombstone is no peer": {held(t, own, 7, n2, dead(entry("n9", "10.5.37.0/24", "192.0.2.14", 9))), nil,
			with(func(d *dataplane.Desired) { d.Peers = []dataplane.Peer{peerOf(n2)} })},
		"a tombstone while etcd settles: its node is not kept": {settling(held(t, own, 7, dead(entry("n9", "10.5.37.0/24", "192.0.2.14", 9)))), nil,
			with(func(d *dataplane.Desired) { d.KeepPeers, d.Claims = true, []netip.Prefix{prefix("10.5.37.0/24")} })},
		"a tombstone is no new tenant of an old pod's subnet": {
			held(t, own, 7, dead(entry("n1", "10.5.33.0/24", "192.0.2.11", 9))), []ipam.Allocation{pod("old", "10.5.33.9/24")},
			with(func(d *dataplane.Desired) {
				d.Bridge.Gateways = []netip.Prefix{prefix("10.5.33.1/24"), prefix("10.5.34.1/24")}
				d.Bridge.Ports = []string{"tenold"}
			}),
		},
		"nothing held, a pod stays": {
			lost(own), []ipam.Allocation{pod("old", "10.5.34.9/24")},
			with(func(d *dataplane.Desired) {
				d.Overlays = nil
				d.Bridge.Ports = []string{"tenold"}
			}),
		},
		"nothing held and the subnet has a new tenant": {
			lost(own, entry("n2", own, "192.0.2.12", 9)), []ipam.Allocation{pod("old", "10.5.34.9/24")},
			with(func(d *dataplane.Desired) {
				d.Overlays = nil
				d.Bridge.Ports = []string{"tenold"}
				d.Bridge.Gateways = []netip.Prefix{prefix("10.5.34.1/32")}
				d.HostRoutes = []netip.Addr{addr("10.5.34.9")}
			}),
		},
		"nothing held, no pods: the bridge is left alone": {lost(own), nil, base},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.view)
			got, ok := Desired(c.view, testUnderlay(), c.pods, r.cfg)
			if !ok {
				t.Fatal("nothing is wanted")
			}
			if diff := cmp.Diff(c.want, got, compareNetip()); diff != "" {
				t.Errorf("desired (-want +got):\n%s", diff)
			}
		})
	}
	if d, ok := Desired(lease.View{State: api.StateStarting}, testUnderlay(), nil, Config{}); ok {
		t.Errorf("without a network config %+v is wanted", d)
	}
}

// TestCleared: a former network is forgotten when nobody can still have a part of
// it, and not before.
func TestCleared(t *testing.T) {
	clean := dataplane.Desired{Former: []netip.Prefix{prefix("10.4.0.0/16")}, Overlays: []dataplane.Vxlan{{}}}
	without := func(f func(*dataplane.Desired)) dataplane.Desired {
		d := clean
		f(&d)
		return d
	}
	rest := dataplane.Report{Converged: true}
	for name, c := range map[string]struct {
		d    dataplane.Desired
		r    dataplane.Report
		want bool
	}{
		"at rest":           {clean, rest, true},
		"none before":       {without(func(d *dataplane.Desired) { d.Former = nil }), rest, false},
		"a pod lives on":    {without(func(d *dataplane.Desired) { d.Outside = d.Former }), rest, false},
		"overlay untouched": {without(func(d *dataplane.Desired) { d.Overlays = nil }), rest, false},
		"at work":           {clean, dataplane.Report{}, false},
		"a fault":           {clean, dataplane.Report{Converged: true, Err: context.Canceled}, false},
	} {
		if got := cleared(c.d, c.r); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestDesiredFollowsTheUnderlay(t *testing.T) {
	v := held(t, "10.5.34.0/24", 7)
	nat := Underlay{Interface: "ens5", PublicIP: addr("203.0.113.9"), Local: addr("198.51.100.9"), MTU: 9001}
	d, _ := Desired(v, nat, nil, Config{Instance: "tenure"})
	if d.Overlays[0].Local != nat.Local || d.Overlays[0].Parent != "ens5" || d.Overlays[0].MTU != 8951 || d.Bridge.MTU != 8951 {
		t.Errorf("vxlan %+v, bridge MTU %d do not follow %+v", d.Overlays[0], d.Bridge.MTU, nat)
	}
	n := *v.Network
	n.Backend.MTU = 1400 // of the underlay, as flannel has it
	v.Network = &n
	if d, _ = Desired(v, nat, nil, Config{Instance: "tenure"}); d.Overlays[0].MTU != 1350 || d.Bridge.MTU != 1350 {
		t.Errorf("MTU %d and %d, want 1350 by the network config", d.Overlays[0].MTU, d.Bridge.MTU)
	}
	n.Backend.MTU = 9002 // one byte more than the interface has
	if d, _ = Desired(v, nat, nil, Config{Instance: "tenure"}); d.Overlays[0].MTU != 8951 || d.Bridge.MTU != 8951 {
		t.Errorf("MTU %d and %d, want the 8951 that fit", d.Overlays[0].MTU, d.Bridge.MTU)
	}
}

func TestBridgeMAC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		uid, instance := rapid.String().Draw(t, "uid"), rapid.String().Draw(t, "instance")
		mac := bridgeMAC(uid, instance)
		if mac != bridgeMAC(uid, instance) {
			t.Fatal("it is not a function of node and instance")
		}
		if mac[0]&0x01 != 0 || mac[0]&0x02 == 0 {
			t.Fatalf("%s is not a locally administered address of one station", mac)
		}
		if mac == bridgeMAC(uid+"x", instance) || mac == bridgeMAC(uid, instance+"x") {
			t.Fatal("two nodes or instances share it")
		}
	})
}

func TestRunTellsThePlane(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	wait := func(when string, ok func(dataplane.Desired) bool) {
		t.Helper()
		for late := time.After(5 * time.Second); ; {
			select {
			case d := <-r.plane.desired:
				if ok(d) {
					return
				}
			case <-late:
				t.Fatalf("%s the data plane was not told", when)
			}
		}
	}
	wait("at the start", func(d dataplane.Desired) bool { return len(d.Overlays) > 0 && len(d.Bridge.Ports) == 0 })
	mustAdd(t, r, "c1")
	wait("after an ADD", func(d dataplane.Desired) bool { return len(d.Bridge.Ports) == 1 })
	same, _ := r.tenancy.Changed()
	r.tenancy.set(same) // which is nothing to tell
	r.tenancy.set(lost("10.5.34.0/24"))
	wait("after the loss", func(d dataplane.Desired) bool { return len(d.Overlays) == 0 && len(d.Bridge.Gateways) == 1 })
	if resp := r.Del(t.Context(), request("c1", "")); resp.Error != nil {
		t.Fatal(resp.Error)
	}
	wait("after the DEL", func(d dataplane.Desired) bool { return len(d.Bridge.Gateways) == 0 })
}
