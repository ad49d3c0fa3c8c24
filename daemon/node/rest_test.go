package node

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/lease"
)

// amongMany is the view of a node with so many peers.
func amongMany(t *testing.T, count int) lease.View {
	t.Helper()
	others := make([]lease.Entry, count)
	for i := range others {
		high, low := byte(i>>8), byte(i)
		others[i] = entry(fmt.Sprintf("peer%d", i), netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5 + high, low, 0}), 24).String(),
			netip.AddrFrom4([4]byte{198, 18, high, low}).String(), 8)
	}
	return held(t, "10.5.34.0/24", 7, others...)
}

// A daemon with thousands of peers looks every few seconds whether something is
// to be done, and most often nothing is.
func TestRestAmongManyPeers(t *testing.T) {
	r := newRig(t, amongMany(t, 5000))
	r.steer()
	if d := <-r.plane.desired; d.Name == "" {
		t.Fatalf("the data plane was told %+v", d)
	}
	r.tenancy.set(amongMany(t, 5000)) // a list of all, with nothing new
	cost := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			r.steer()
			r.noteProblems()
		}
	})
	if most := int64(64 << 10); cost.AllocedBytesPerOp() > most {
		t.Errorf("a look at rest takes %d bytes, at most %d would do", cost.AllocedBytesPerOp(), most)
	}
	select {
	case d := <-r.plane.desired:
		t.Errorf("the data plane was told again of %d peers", len(d.Peers))
	default:
	}
}

// A record of vxlan may stay for good in a cluster with host-gw, of a node that is
// off or of another kind: the overlay stays with it, and costs nothing at rest.
func TestRestBesideAnOverlay(t *testing.T) {
	vxlan := amongMany(t, 5000)
	hostGW := with(vxlan, conf.Backend{Type: conf.BackendHostGW})
	r := newRig(t, vxlan)
	clock := now
	r.cfg.Clock = func() time.Duration { return clock }
	look := func(what string, v lease.View, overlays int) {
		t.Helper()
		r.tenancy.set(v)
		r.steer()
		select {
		case <-r.plane.desired:
		default:
		}
		if len(r.steered.Overlays) != overlays {
			t.Errorf("%s: overlays %+v", what, r.steered.Overlays)
		}
	}
	look("vxlan", vxlan, 1)
	look("host-gw here", hostGW, 1)
	clock += prepareFor
	look("host-gw here, a little later", hostGW, 1)
	clock += 10 * lingerFor
	if look("host-gw here, much later", hostGW, 1); r.poll() != underlayPoll {
		t.Errorf("it looks again every %s", r.poll())
	}
	cost := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			r.steer()
		}
	})
	if most := int64(64 << 10); cost.AllocedBytesPerOp() > most {
		t.Errorf("a look at rest takes %d bytes, at most %d would do", cost.AllocedBytesPerOp(), most)
	}

	s := *hostGW.Snapshot
	s.Entries = slices.Clone(s.Entries[:2])
	s.Entries[1] = routed(s.Entries[1])
	hostGW.Snapshot = &s
	if look("nobody speaks vxlan", hostGW, 1); r.poll() != prepareFor {
		t.Errorf("it looks again in %s", r.poll())
	}
	clock += lingerFor
	look("a little later", hostGW, 0)
}

// What a look at rest may leave out is what follows from nothing new: each thing
// that counts is told.
func TestSteerTellsEachChange(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	told := func(what string) dataplane.Desired {
		t.Helper()
		r.steer()
		select {
		case d := <-r.plane.desired:
			return d
		default:
			t.Fatalf("%s is not told", what)
			panic("unreachable")
		}
	}
	told("what there is at the start")
	other := testUnderlay()
	other.MTU -= 100
	r.cfg.Underlay = func() (Underlay, bool) { return other, true }
	told("another MTU of the underlay")
	v, _ := r.tenancy.Changed()
	v.Settling = true
	r.tenancy.set(v)
	if d := told("that etcd settles"); !d.KeepPeers {
		t.Error("peers are not kept while etcd settles")
	}
	mustAdd(t, r, "c1")
	key := r.ledger.List()[0].Key
	if d := told("a pod"); len(d.Bridge.Ports) != 1 {
		t.Errorf("ports %v, want one", d.Bridge.Ports)
	}
	unlock, err := r.keys.lock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if d := told("a pod that a call is at work on"); len(d.Bridge.Ports) != 0 {
		t.Errorf("ports %v while a call is at work on the pod", d.Bridge.Ports)
	}
	unlock()
	if d := told("that it is at rest again"); len(d.Bridge.Ports) != 1 {
		t.Errorf("ports %v, want one again", d.Bridge.Ports)
	}
}
