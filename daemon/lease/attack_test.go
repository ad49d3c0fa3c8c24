package lease

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// The tests of this file are about orders of events that no outage brings about
// by itself, and about what an engine asks for while it gets nowhere.

// TestNothingToPublish: a machine that cannot make a record waits and says so; it
// does not take one more lease with every look.
func TestNothingToPublish(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(fourSubnets, "5s", "60s", 1))
	h, p := lossy(t, "n1", s)
	h.publishes("192.0.2.11", errors.New("no underlay address"))
	d := h.start()
	v := d.wait("waiting", func(v View) bool { return v.State == api.StateWaiting })
	if !strings.Contains(v.Reason, "no underlay address") || hasProblem(v, "etcd-unreachable") {
		t.Errorf("waits because %q, problems %v", v.Reason, v.Problems)
	}
	for looks := p.Count(pb.KV_Range_FullMethodName) + 4; p.Count(pb.KV_Range_FullMethodName) < looks; {
		put(t, c, NewKeys(prefix).All()+"noise", "x") // news makes it look
	}
	if l, err := c.Leases(t.Context()); err != nil || len(l.Leases) > 1 {
		t.Errorf("%d leases after a few looks, %v", len(l.Leases), err)
	}
	h.publishes("192.0.2.11", nil)
	d.waitHeld()
	d.calm(c)
}

// TestUnusedLeaseOfAnotherLength: the answer to a grant is lost, and by the time
// etcd answers again the config asks for another length. A lease of the old one
// is not taken for what etcd made of the new.
func TestUnusedLeaseOfAnotherLength(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(fourSubnets, "5s", "60s", 1))
	h, p := lossy(t, "n1", s)
	r := p.DropReply(etcdproxy.Always, grants(), etcdproxy.Fail)
	d := h.start()
	eventually(t, "a grant", func() bool { return r.Hits() > 0 })
	put(t, c, NewKeys(prefix).Config(), fourSubnets)
	r.Remove()
	v := d.wait("the new length", func(v View) bool { return v.State == api.StateHeld && v.Holding.TTL() == 5*time.Second })
	d.calm(c)
	if kv := etcdtest.Get(t, c, NewKeys(prefix).Subnet(v.Holding.Subnets())).Kvs[0]; kv.Version != 1 {
		t.Errorf("the key was written %d times: it hung on a lease of the old length first", kv.Version)
	}
}

// TestLosingLeavesNoLease: the key is gone, and so is the lease it hung on, which
// would else stand for a day.
func TestLosingLeavesNoLease(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(fourSubnets, "5s", "24h", 1))
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	if _, err := c.Delete(t.Context(), NewKeys(prefix).Subnet(v.Holding.Subnets())); err != nil {
		t.Fatal(err)
	}
	d.wait("held again", func(w View) bool {
		return w.State == api.StateHeld && w.Holding.LeaseID() != v.Holding.LeaseID()
	})
	d.calm(c)
}

// TestReconnectDoesNotSoftenAClockGap: after a suspend the connection is back and
// gone again. Nothing is served before a proof.
func TestReconnectDoesNotSoftenAClockGap(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, strings.Replace(fourSubnets, "5s", "60s", 1))
	p := newProxy(t, s.Endpoint)
	h := newHost(t, "n1", "http://"+p.Addr())
	var mu sync.Mutex
	var slept time.Duration
	h.clocks = func() Clocks {
		mu.Lock()
		defer mu.Unlock()
		now := bootClock()
		return Clocks{Boot: now + slept, Mono: now, Real: now + slept}
	}
	d := h.start()
	d.waitHeld()
	p.Stall()
	mu.Lock()
	slept = time.Hour
	mu.Unlock()
	if d.View().Doubt == "" {
		t.Fatal("the gap was not seen")
	}
	d.reconnected()
	eventually(t, "a cycle without an answer", func() bool { h := d.tenancy(); return h != nil && h.unproven != nil })
	if v := d.View(); v.Doubt == "" || v.InDate(bootClock()) {
		t.Errorf("doubt %q, in date %t, after a suspend and without a proof", v.Doubt, v.InDate(bootClock()))
	}
	p.Restore()
	d.wait("served again", func(v View) bool { return v.InDate(bootClock()) })
}

// TestStoreThatWentBackAndTakesNoSettle: what is held is proven on, and etcd is
// not asked without a pause.
func TestStoreThatWentBackAndTakesNoSettle(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(fourSubnets, "5s", "7s", 1))
	h, p := lossy(t, "n1", s)
	d := h.start()
	v := d.waitHeld()
	alarm(t, c, pb.AlarmRequest_ACTIVATE)
	backup := s.Backup(t)
	d.wait("held after the backup", func(v View) bool { return v.State == api.StateHeld && !hasProblem(v, "etcd-unreachable") })
	etcdtest.Get(t, c, NewKeys(prefix).Config()) // connected again
	alarm(t, c, pb.AlarmRequest_DEACTIVATE)
	put(t, c, NewKeys(prefix).All()+"noise", "so that the backup is older")
	noise := d.wait("the noise", func(View) bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.known.Revision > v.Snapshot.Revision
	})
	stopOpen, stop := h.openAllAlong(), h.neverTooLong(c, false)
	s.Restore(t, backup)
	d.wait("the store to be met", func(v View) bool { return hasProblem(v, storeWentBack) && v.LastProof > noise.LastProof })
	proof, before := d.View().LastProof, p.Counts()
	w := d.wait("proofs for longer than a lease", func(v View) bool { return v.LastProof > proof+7*time.Second })
	if w.Holding.LeaseID() != v.Holding.LeaseID() {
		t.Errorf("lease %x, want %x", w.Holding.LeaseID(), v.Holding.LeaseID())
	}
	asked := 0
	for method, n := range p.Counts() {
		asked += n - before[method]
	}
	if asked > 100 {
		t.Errorf("%d requests in some seven seconds", asked)
	}
	stop()
	stopOpen()
}

// TestRestartIntoARestoredStore: the watch is the first to see it, at a revision
// that is higher than the key's, and without the key. The fence stays open until
// the loop has looked.
func TestRestartIntoARestoredStore(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, strings.Replace(fourSubnets, "5s", "60s", 1))
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	d.stop()
	for name, strange := range map[string]*Snapshot{
		"another cluster": {ClusterID: v.Snapshot.ClusterID + 1, Store: v.Snapshot.Store},
		"another store":   {ClusterID: v.Snapshot.ClusterID, Store: Versioned[Store]{Store{ID: "another"}, 3}},
	} {
		e := h.engine()
		e.fence = h.fence
		e.restore()
		strange.Revision, strange.Listed = v.Snapshot.Revision+1000, true
		e.observe(strange)
		if e.tenancy() == nil || h.fence.Get().Closed != 0 || !e.open() || !e.unsettled() {
			t.Errorf("%s: held %t, closed %d times", name, e.tenancy() != nil, h.fence.Get().Closed)
		}
	}
}

// TestOlderListDoesNotEndSettle: the loop's list was on its way when settle came,
// and the watch was quicker.
func TestOlderListDoesNotEndSettle(t *testing.T) {
	t.Parallel()
	e := newHost(t, "n1", "http://192.0.2.1:2379").engine()
	at := func(revision, settle int64) *Snapshot {
		return &Snapshot{Revision: revision, ClusterID: 7, Listed: settle == 0, Store: Versioned[Store]{Store{ID: "s"}, 1}, Settle: Versioned[Settle]{ModRevision: settle}}
	}
	e.observe(at(5, 0))
	e.observe(at(6, 6))
	e.adopt(at(5, 0))
	if !e.unsettled() {
		t.Error("a list from before settle ended it")
	}
	e.adopt(at(7, 0))
	if e.unsettled() {
		t.Error("a list from after settle did not end it")
	}
}

// TestKeyPutBackByALostTry: the store has settled by the time it shows that an
// unanswered try did put the key back.
func TestKeyPutBackByALostTry(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(fourSubnets, "5s", "60s", 1))
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	d.stop()
	e := h.engine()
	e.fence, e.client = h.fence, c
	e.restore()
	e.asserting = v.Holding.LeaseID()
	e.held.lease = 4711 // of before
	stop := h.openAllAlong()
	snap, err := list(t.Context(), c, newMirror(e.keys), maxCall)
	if err != nil {
		t.Fatal(err)
	}
	e.adopt(snap)
	e.standBy(t.Context(), *e.tenancy(), snap)
	stop()
	if now := e.tenancy(); now == nil || now.lease != v.Holding.LeaseID() || now.lastProof == 0 {
		t.Errorf("holds %+v, want it under %x", now, v.Holding.LeaseID())
	}
}

// TestFenceThatCannotBeClosed: nothing is given up before it has closed by
// itself.
func TestFenceThatCannotBeClosed(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	h.fence.Do(func(f *kept) { f.Stuck = errors.New("the kernel refuses") })
	stop := h.neverTooLong(c, false)
	if err := d.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()
	if f, _ := h.fence.Deadline(); f > bootClock() {
		t.Errorf("it has left, and the fence is open for another %s", f-bootClock())
	}
	resp, err := c.TimeToLive(t.Context(), v.Holding.LeaseID())
	if err != nil || resp.TTL > 0 {
		t.Errorf("the lease lives on: %v, %v", resp, err)
	}
}

// TestRefusedKeepAlivesAreNotAHotLoop: etcd says at once that it cannot.
func TestRefusedKeepAlivesAreNotAHotLoop(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h, p := lossy(t, "n1", s)
	d := h.start()
	d.waitHeld()
	r := p.DropReply(etcdproxy.Always, etcdproxy.Method(pb.Lease_LeaseKeepAlive_FullMethodName), etcdproxy.Fail)
	d.wait("fenced", func(v View) bool { return v.State == api.StateFenced })
	if n := r.Hits(); n > 60 {
		t.Errorf("%d keep-alives within one lease", n)
	}
	r.Remove()
	d.waitHeld()
	d.calm(c)
}

// TestRefusedReadsAreNotAHotLoop: a node that holds nothing reads for the watch
// and for itself.
func TestRefusedReadsAreNotAHotLoop(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, fourSubnets)
	h, p := lossy(t, "n1", s)
	r := p.DropReply(etcdproxy.Always, etcdproxy.Method(pb.KV_Range_FullMethodName), etcdproxy.Fail)
	d := h.start()
	began := bootClock()
	d.wait("etcd-unreachable", func(v View) bool { return hasProblem(v, "etcd-unreachable") && bootClock() > began+4*time.Second })
	if n := r.Hits(); n > 60 {
		t.Errorf("%d reads in %s", n, bootClock()-began)
	}
	r.Remove()
	d.waitHeld()
}

// TestRefusalEndsWithTheWish: etcd had no space for a lease of another length,
// and the config asks for none any more.
func TestRefusalEndsWithTheWish(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	d := newHost(t, "n1", s.Endpoint).start()
	v := d.waitHeld()
	k := NewKeys(prefix)
	// The grant is refused, and nothing else.
	put(t, c, k.Config(), strings.Replace(fourSubnets, "5s", "9s", 1))
	alarm(t, c, pb.AlarmRequest_ACTIVATE)
	d.wait("etcd-refuses, or the new length", func(v View) bool { return hasProblem(v, etcdRefuses) || v.Holding.TTL() == 9*time.Second })
	alarm(t, c, pb.AlarmRequest_DEACTIVATE)
	put(t, c, k.Config(), fourSubnets)
	d.wait("no etcd-refuses", func(w View) bool {
		return w.State == api.StateHeld && w.Holding.TTL() == v.Holding.TTL() && !hasProblem(w, etcdRefuses)
	})
}

// TestContestedEndsWithTheSubnet that it is about.
func TestContestedEndsWithTheSubnet(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, fourSubnets)
	d := newHost(t, "n1", s.Endpoint).start()
	d.waitHeld()
	d.problem(api.SeverityError, contested, "another's record", "wait")
	d.lose("the test says so")
	if v := d.View(); hasProblem(v, contested) {
		t.Errorf("problems %v after the subnet was lost", v.Problems)
	}
}

// meddler is a fence during whose first Set something happens.
type meddler struct {
	*register
	once    sync.Once
	during  func()
	network Subnets
}

func (m *meddler) Set(live, network Subnets) error {
	m.once.Do(m.during)
	m.network = network
	return m.register.Set(live, network)
}

// TestNetworkChangesWhileTheFenceIsSet: nothing was held yet when the watch told
// of the wider network; the fence gets it all the same.
func TestNetworkChangesWhileTheFenceIsSet(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := newHost(t, "n1", s.Endpoint)
	e := h.engine()
	f := &meddler{register: h.fence}
	f.during = func() {
		put(t, c, e.keys.Config(), strings.Replace(fourSubnets, "10.5.0.0/22", "10.4.0.0/15", 1))
		snap, err := list(t.Context(), c, newMirror(e.keys), maxCall)
		if err != nil {
			t.Error(err)
			return
		}
		e.observe(snap)
	}
	e.fence, e.client = f, c
	e.look(t.Context())
	if got := e.tenancy(); got == nil || f.network != networkPair(*e.inForce()) || f.network.V4.Bits() != 15 {
		t.Errorf("the fence has %s, in force is %s", f.network, networkPair(*e.inForce()))
	}
}

// TestReleaseThatLosesARace leaves no lease of the first try behind.
func TestReleaseThatLosesARace(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := holdingOn(t, c, granted(t, c))
	p := etcdproxy.Start(t, s.Endpoint)
	first := p.Delay(1, subnetKeys(), etcdproxy.Request, time.Second)
	done := make(chan error, 1)
	go func() {
		_, err := Release(t.Context(), etcdtest.Client(t, p.URL()), prefix, h.subnets.String(), false)
		done <- err
	}()
	eventually(t, "the first try", func() bool { return first.Hits() == 1 })
	put(t, c, h.keys.Subnet(h.subnets), anyRecord, clientv3.WithLease(h.lease))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if l, err := c.Leases(t.Context()); err != nil || len(l.Leases) != 1 {
		t.Errorf("leases %s, %v", leasesOf(l), err)
	}
}

// TestAbandonWaitsForTheFence: nothing that the key may hang on ends while the
// fence cannot be closed and is open.
func TestAbandonWaitsForTheFence(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	h := newHost(t, "n1", "http://192.0.2.1:2379")
	e := h.engine()
	e.fence, e.client = h.fence, c
	l := granted(t, c)
	e.moving = &move{lease: l, ttl: time.Minute}
	lives := func() bool {
		resp, err := c.TimeToLive(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		return resp.TTL > 0
	}
	h.fence.Do(func(f *kept) { f.Stuck, f.Deadline = errors.New("the kernel refuses"), bootClock()+time.Minute })
	if err := e.abandon(t.Context()); err == nil || !lives() {
		t.Errorf("under an open fence: %v, the lease lives %t", err, lives())
	}
	h.fence.Do(func(f *kept) { f.Stuck = nil })
	if err := e.abandon(t.Context()); err != nil || lives() {
		t.Errorf("with a fence that closes: %v, the lease lives %t", err, lives())
	}
}

// TestLeaseUnderAForeignKeyIsLeft: somebody put a record under the lease of the
// subnet that was lost. Ending the lease would delete it.
func TestLeaseUnderAForeignKeyIsLeft(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	e := newHost(t, "n1", "http://192.0.2.1:2379").engine()
	e.client = c
	for hangs, want := range map[bool]bool{true: true, false: false} {
		l := granted(t, c)
		s := &Snapshot{}
		if hangs {
			s.Entries = []Entry{{Lease: l}}
		}
		e.ended = l
		e.dropEnded(t.Context(), s)
		resp, err := c.TimeToLive(t.Context(), l)
		if err != nil || (resp.TTL > 0) != want {
			t.Errorf("a key hangs on it %t: lives %t, %v", hangs, err == nil && resp.TTL > 0, err)
		}
	}
}
