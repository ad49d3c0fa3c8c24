package lease

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// The tests of this file are about what a request leaves behind that outlives
// whoever sent it.

// TestDeadLeaseStaysDead: an acquire is not answered, its lease is asked to end,
// which is not answered either; then the acquire commits. The key counts for
// nothing, for the end of its lease may commit at any time.
func TestDeadLeaseStaysDead(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(wide, "5s", "60s", 1)) // so that it does not lapse meanwhile
	h, p := lossy(t, "n1", s)
	acquire := p.CommitLate(1, subnetKeys(), etcdproxy.Fail)
	// The client itself repeats a revoke that fails, so this one hangs.
	var dead atomic.Int64
	revoke := p.CommitLate(1, etcdproxy.When(func(r *pb.LeaseRevokeRequest) bool { dead.Store(r.ID); return true }), etcdproxy.Silence)
	stop := h.neverTooLong(c, false)
	d := h.start()
	d.wait("the revoke", func(View) bool { return revoke.Hits() == 1 })
	release(t, acquire)
	if v := d.waitHeld(); int64(v.Holding.LeaseID()) == dead.Load() {
		t.Errorf("it holds %s under lease %x, whose end it has asked for", v.Holding.Subnets(), dead.Load())
	}
	release(t, revoke)
	d.calm(c)
	stop()
}

// TestLeaveOutlivesItsProcess: the deletion of a leave is still on its way when
// the daemon is started anew. It does not resume what is about to go.
func TestLeaveOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(fourSubnets, "5s", "30s", 1))
	h, p := lossy(t, "n1", s)
	d := h.start()
	v := d.waitHeld()
	deletion := p.CommitLate(etcdproxy.Always, deletes(NewKeys(prefix).Subnet(v.Holding.Subnets())), etcdproxy.Fail)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := d.Leave(ctx); err == nil {
		t.Fatal("it left although nothing was deleted")
	}
	d.stop()
	deletion.Remove()
	stop := h.neverTooLong(c, false)
	d = h.start()
	w := d.waitHeld()
	if w.Holding.LeaseID() == v.Holding.LeaseID() {
		t.Errorf("it went on under lease %x, which it had asked to end", v.Holding.LeaseID())
	}
	_ = deletion.Release(t.Context())
	d.wait("unmoved", func(View) bool {
		return len(etcdtest.Get(t, c, NewKeys(prefix).Subnet(w.Holding.Subnets())).Kvs) == 1
	})
	stop()
}

// TestMoveOutlivesItsProcess: the daemon is stopped while its key is on its way
// to a shorter lease. The next one knows, and is never open for longer than
// both leases allow.
func TestMoveOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(fourSubnets, "5s", "60s", 1))
	h, p := lossy(t, "n1", s)
	d := h.start()
	v := d.waitHeld()
	move := p.CommitLate(etcdproxy.Always, subnetKeys(), etcdproxy.Fail)
	put(t, c, NewKeys(prefix).Config(), strings.Replace(fourSubnets, "5s", "6s", 1))
	d.Touch()
	d.wait("the move", func(View) bool { return move.Hits() >= 1 })
	d.stop()
	d = h.start()
	w := d.wait("held", func(v View) bool { return v.State == api.StateHeld })
	if f, _ := h.fence.Deadline(); f > bootClock()+6*time.Second-Margin(6*time.Second) {
		t.Errorf("open for %s under %x, while the key may move to a lease of 6 s", f-bootClock(), w.Holding.LeaseID())
	}
	stop := h.neverTooLong(c, false)
	move.Remove()
	_ = move.Release(t.Context())
	d.wait("the new lease", func(w View) bool {
		return w.State == api.StateHeld && w.Holding.TTL() == 6*time.Second && w.Holding.Subnets() == v.Holding.Subnets()
	})
	stop()
}

// TestBirthAfterALife: --new-cluster stands in a config for good. Where the node
// knew a store that is gone, the one that it births settles first.
func TestBirthAfterALife(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t)
	c := s.Client(t)
	h := newHost(t, "n1", s.Endpoint)
	h.birth = []byte(fourSubnets)
	d := h.start()
	d.waitHeld()
	d.stop()
	h.fence, h.boot = &register{}, "later" // rebooted, with nothing open
	s.Wipe(t, true)
	began := time.Now()
	d = h.start()
	v := d.wait("waiting", func(v View) bool { return v.State == api.StateWaiting })
	if kvs := etcdtest.Get(t, c, NewKeys(prefix).Settle()).Kvs; len(kvs) != 1 {
		t.Errorf("no settle was written; it waits because %s", v.Reason)
	}
	d.waitHeld()
	if waited := time.Since(began); waited < 4*time.Second {
		t.Errorf("a newborn store gave out a subnet after %s", waited)
	}
}

// TestReconnected: after the connection was lost, nothing is served before the
// next proof.
func TestReconnected(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, strings.Replace(fourSubnets, "5s", "60s", 1))
	h, p := lossy(t, "n1", s)
	d := h.start()
	v := d.waitHeld()
	slow := p.Delay(etcdproxy.Always, etcdproxy.Method(pb.Lease_LeaseKeepAlive_FullMethodName), etcdproxy.Request, time.Second)
	p.Cut()
	p.Restore()
	w := d.wait("doubt", func(v View) bool { return v.Doubt != "" })
	if w.InDate(bootClock()) || w.Deadline != v.Deadline {
		t.Errorf("in date %t, deadline %s, was %s", w.InDate(bootClock()), w.Deadline, v.Deadline)
	}
	slow.Remove()
	d.wait("served again", func(v View) bool { return v.InDate(bootClock()) && v.LastProof > w.LastProof })
	if h.fence.Get().Closed != 0 {
		t.Error("the fence was closed")
	}
}
