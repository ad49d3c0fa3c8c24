package lease

import (
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/etcdtest"
)

// tenSeconds is a network whose leases last long enough for a store to be
// exchanged under an open fence, and end soon enough for a test to see it.
const tenSeconds = `{"Network":"10.5.0.0/22","SubnetLen":24,"LeaseTTL":"10s","Backend":{"Type":"vxlan"}}`

// openAllAlong watches a host's fence until it is stopped, and fails the test if
// it was ever closed.
func (h *host) openAllAlong() (stop func()) {
	ctx, cancel := ctxUntilDone(h.t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx:
				return
			case <-tick.C:
				if d, _ := h.fence.Deadline(); d <= bootClock() {
					h.t.Errorf("%s: the fence is closed (F %s, now %s)", h.name, d, bootClock())
					return
				}
			}
		}
	}()
	return func() { cancel(); <-done }
}

func ctxUntilDone(t *testing.T) (<-chan struct{}, func()) {
	c := make(chan struct{})
	closed := false
	stop := func() {
		if !closed {
			closed = true
			close(c)
		}
	}
	t.Cleanup(stop)
	return c, stop
}

// back waits until a daemon holds the same subnet by the same epoch in the store
// as it is now.
func (d *daemon) back(c *clientv3.Client, was Holding) View {
	d.t.Helper()
	v := d.wait("back in the store", func(v View) bool {
		return v.State == api.StateHeld && v.Holding.LeaseID() != was.LeaseID() && v.Snapshot.Revision >= v.Holding.mod
	})
	if v.Holding.Subnets() != was.Subnets() || v.Holding.Epoch() != was.Epoch() {
		d.t.Errorf("holds %s of epoch %d, want %s of %d", v.Holding.Subnets(), v.Holding.Epoch(), was.Subnets(), was.Epoch())
	}
	kvs := etcdtest.Get(d.t, c, NewKeys(prefix).Subnet(was.Subnets())).Kvs
	if len(kvs) != 1 || clientv3.LeaseID(kvs[0].Lease) != v.Holding.LeaseID() {
		d.t.Errorf("in etcd: %v, want the key under lease %x", kvs, v.Holding.LeaseID())
	}
	return v
}

// TestO9: etcd loses everything. Whoever's fence is open puts its own subnet
// back, traffic never stops, nobody is renumbered, and nobody new acquires
// before settle is gone; then, once an operator has said what the network is,
// the newcomer is served.
func TestO9(t *testing.T) {
	for name, newCluster := range map[string]bool{"same cluster ID": false, "another cluster ID": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := cluster(t, tenSeconds)
			a, b := newHost(t, "n1", s.Endpoint), newHost(t, "n2", s.Endpoint)
			da, db := a.start(), b.start()
			va, vb := da.waitHeld(), db.waitHeld()
			// One is restarted before etcd is back, one after.
			db.stop()
			stopA, stopB := a.openAllAlong(), b.openAllAlong()
			s.Stop()
			db = b.start()
			db.wait("unproven", func(v View) bool { return v.State == api.StateUnproven })
			s.Wipe(t, newCluster)
			wiped := time.Now()

			da.back(c, va.Holding)
			wb := db.back(c, vb.Holding)
			if !hasProblem(wb, "store-went-back") || !wb.Settling {
				t.Errorf("problems %v, settling %t", wb.Problems, wb.Settling)
			}
			da.stop()
			da = a.start()
			da.waitHeld()

			fresh := newHost(t, "n3", s.Endpoint).start()
			fresh.wait("waiting", func(v View) bool { return v.State == api.StateWaiting })
			if _, err := InitAfterLoss(t.Context(), c, prefix, []byte(tenSeconds), 10*time.Second); err != nil {
				t.Fatal(err)
			}
			vf := fresh.waitHeld()
			if waited := time.Since(wiped); waited < 9*time.Second {
				t.Errorf("a newcomer was served %s after the wipe", waited)
			}
			for _, held := range []View{da.waitHeld(), db.waitHeld()} {
				if held.Holding.Subnets() == vf.Holding.Subnets() {
					t.Errorf("%s is held twice", vf.Holding.Subnets())
				}
			}
			stopA()
			stopB()
			if n := a.fence.Get().Closed + b.fence.Get().Closed; n != 0 {
				t.Errorf("fences were closed %d times", n)
			}
			da.wait("settled", func(v View) bool { return !v.Settling && !hasProblem(v, "store-went-back") })
		})
	}
}

// TestRestoredStore: a snapshot from before n2 had its subnet comes back, with
// its leases revived. n1's key is there, n2's is not.
func TestRestoredStore(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, tenSeconds)
	a, b := newHost(t, "n1", s.Endpoint), newHost(t, "n2", s.Endpoint)
	da := a.start()
	da.waitHeld()
	backup := s.Backup(t)
	va := da.wait("held after the backup", func(v View) bool { return v.State == api.StateHeld && !hasProblem(v, "etcd-unreachable") })
	db := b.start()
	vb := db.waitHeld()
	stopA, stopB := a.openAllAlong(), b.openAllAlong()
	s.Restore(t, backup)

	w := db.back(c, vb.Holding)
	if !hasProblem(w, "store-went-back") {
		t.Errorf("problems %v, want store-went-back", w.Problems)
	}
	fresh := newHost(t, "n3", s.Endpoint).start()
	v := fresh.wait("waiting", func(v View) bool { return v.State == api.StateWaiting })
	if !strings.Contains(v.Reason, "settling") {
		t.Errorf("a newcomer waits because %q", v.Reason)
	}
	fresh.waitHeld()
	w = da.waitHeld()
	if w.Holding.Subnets() != va.Holding.Subnets() || w.Holding.LeaseID() != va.Holding.LeaseID() || w.Holding.Epoch() != va.Holding.Epoch() {
		t.Errorf("n1 holds %s under %x, want %s under %x", w.Holding.Subnets(), w.Holding.LeaseID(), va.Holding.Subnets(), va.Holding.LeaseID())
	}
	stopA()
	stopB()
}

// TestRestoredEarlierTenant: the restored store says that n1's subnet is n2's,
// as it once was. n1's fence stays open, n2, which holds another one now, gives
// its past up, and n1's record is put back.
func TestRestoredEarlierTenant(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, tenSeconds)
	b := newHost(t, "n2", s.Endpoint)
	db := b.start()
	first := db.waitHeld().Holding
	backup := s.Backup(t)
	db.waitHeld()
	// n2 loses it to a reservation, and takes another.
	reserve(t, c, first.Subnets(), "n1")
	if _, err := c.Revoke(t.Context(), first.LeaseID()); err != nil {
		t.Fatal(err)
	}
	vb := db.wait("another subnet", func(v View) bool { return v.State == api.StateHeld && v.Holding.Subnets() != first.Subnets() })
	a := newHost(t, "n1", s.Endpoint)
	da := a.start()
	va := da.waitHeld()
	if va.Holding.Subnets() != first.Subnets() {
		t.Fatalf("n1 took %s, want the reserved %s", va.Holding.Subnets(), first.Subnets())
	}
	da.wait("its predecessor is known", func(View) bool { da.mu.Lock(); defer da.mu.Unlock(); return len(da.past) == 1 })
	stopA, stopB := a.openAllAlong(), b.openAllAlong()
	s.Restore(t, backup)
	db.back(c, vb.Holding)
	da.back(c, va.Holding)
	stopA()
	stopB()
}

// TestWhoeverCommitsAKeyKeepsIt: while n1 is cut off the store is wiped, born
// anew on an operator's word, and n1's subnet goes to n2. n1 closes at once.
func TestWhoeverCommitsAKeyKeepsIt(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, `{"Network":"10.5.0.0/22","SubnetLen":24,"LeaseTTL":"30s"}`)
	p := newProxy(t, s.Endpoint)
	h := newHost(t, "n1", "http://"+p.Addr())
	d := h.start()
	v := d.waitHeld()
	p.Cut()
	d.wait("unproven", func(v View) bool { return v.State == api.StateUnproven })
	s.Wipe(t, true)
	if _, err := Init(t.Context(), c, prefix, []byte(tenSeconds)); err != nil {
		t.Fatal(err)
	}
	reserve(t, c, v.Holding.Subnets(), "n2")
	other := newHost(t, "n2", s.Endpoint).start()
	if w := other.waitHeld(); w.Holding.Subnets() != v.Holding.Subnets() {
		t.Fatalf("n2 took %s, want the reserved %s", w.Holding.Subnets(), v.Holding.Subnets())
	}
	p.Restore()
	d.wait("closed", func(View) bool { return h.fence.Get().Closed > 0 })
	w := d.wait("settling", func(v View) bool { return v.State == api.StateLost && strings.Contains(v.Reason, "settling") })
	if w.Held {
		t.Errorf("holds %s", w.Holding.Subnets())
	}
	kv := etcdtest.Get(t, c, NewKeys(prefix).Subnet(v.Holding.Subnets())).Kvs
	if len(kv) != 1 || kv[0].Version != 1 {
		t.Errorf("n2's key was touched: %v", kv)
	}
}

// TestDeletedPrefix: somebody deletes everything under the prefix in a store
// that lives on: the same as a wipe.
func TestDeletedPrefix(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, tenSeconds)
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	stop := h.openAllAlong()
	if _, err := c.Delete(t.Context(), NewKeys(prefix).All(), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	d.back(c, v.Holding)
	stop()
}

// TestClosedFenceWaitsForSettle: a node whose fence has closed does not open it
// on the word of a store that went back before settle is gone.
func TestClosedFenceWaitsForSettle(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	d.waitHeld()
	backup := s.Backup(t)
	v := d.wait("held after the backup", func(v View) bool { return v.State == api.StateHeld && !hasProblem(v, "etcd-unreachable") })
	put(t, c, NewKeys(prefix).All()+"noise", "so that the backup is older")
	d.wait("the noise", func(View) bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.known.Revision > v.Snapshot.Revision
	})
	s.Stop()
	d.wait("fenced", func(v View) bool { return v.State == api.StateFenced })
	s.Restore(t, backup)
	back := time.Now()
	w := d.waitHeld()
	if waited := time.Since(back); waited < 4*time.Second {
		t.Errorf("the fence opened %s after the store went back", waited)
	}
	if w.Holding.Subnets() != v.Holding.Subnets() {
		t.Errorf("holds %s, want %s", w.Holding.Subnets(), v.Holding.Subnets())
	}
}

// TestInitAfterLoss: on a born cluster it writes settle alone; newcomers wait
// and holders do not notice.
func TestInitAfterLoss(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	stop := h.openAllAlong()
	b, err := InitAfterLoss(t.Context(), c, prefix, []byte(fourSubnets), 5*time.Second)
	if err != nil || !b.Settling || b.Created || b.Reconfigured {
		t.Fatalf("%+v, %v", b, err)
	}
	began := time.Now()
	fresh := newHost(t, "n2", s.Endpoint).start()
	fresh.wait("waiting", func(v View) bool { return v.State == api.StateWaiting && strings.Contains(v.Reason, "settling") })
	fresh.waitHeld()
	if waited := time.Since(began); waited < 4*time.Second {
		t.Errorf("a newcomer was served after %s", waited)
	}
	stop()
	if w := d.waitHeld(); w.Holding.LeaseID() != v.Holding.LeaseID() || h.fence.Get().Closed != 0 {
		t.Errorf("the holder has lease %x, had %x; closed %d times", w.Holding.LeaseID(), v.Holding.LeaseID(), h.fence.Get().Closed)
	}
}
