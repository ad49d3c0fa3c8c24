package lease

import (
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// The tests of this file each miss one guard of the protocol, if it is taken out.

// TestEveryWriteYieldsToWhatItHasNotRead: to a write under the same lease, to
// another lease, and to a key of the next life.
func TestEveryWriteYieldsToWhatItHasNotRead(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	k := NewKeys(prefix)
	read := func() *Snapshot {
		snap, err := list(t.Context(), c, newMirror(k), maxCall)
		if err != nil {
			t.Fatal(err)
		}
		return snap
	}
	writes := map[string]func(Holding, *Snapshot) (fenced, error){
		"move while open": func(h Holding, _ *Snapshot) (fenced, error) { return h.rebind(granted(t, c), true) },
		"update":          func(h Holding, _ *Snapshot) (fenced, error) { return h.update(h.record), nil },
		"rebind":          func(h Holding, _ *Snapshot) (fenced, error) { return h.rebind(granted(t, c), false) },
		"take over": func(h Holding, s *Snapshot) (fenced, error) {
			return h.takeOver(granted(t, c), h.record, s, Owner{})
		},
		"retake": func(h Holding, s *Snapshot) (fenced, error) { return h.retake(h.record, s, Owner{}), nil },
		"leave":  func(h Holding, _ *Snapshot) (fenced, error) { return h.leave(Owner{}), nil },
		"entomb": func(h Holding, _ *Snapshot) (fenced, error) { return h.entomb(granted(t, c), Owner{}) },
	}
	for name, write := range writes {
		for what, meanwhile := range map[string]func(Holding){
			"nothing":               func(Holding) {},
			"a write under it":      func(h Holding) { put(t, c, k.Subnet(h.subnets), anyRecord, clientv3.WithLease(h.lease)) },
			"another lease":         func(h Holding) { put(t, c, k.Subnet(h.subnets), anyRecord, clientv3.WithLease(granted(t, c))) },
			"a write without lease": func(h Holding) { put(t, c, k.Subnet(h.subnets), anyRecord) },
		} {
			h := holdingOn(t, c, granted(t, c))
			seen := read()
			f, err := write(h, seen)
			if err != nil {
				t.Fatal(err)
			}
			meanwhile(h)
			if got := succeeds(t, c, f); got != (what == "nothing") {
				t.Errorf("%s after %s: written %t", name, what, got)
			}
		}
	}
	// What another store shows at the same revision, under a lease of its own.
	for name, write := range writes {
		h := holdingOn(t, c, granted(t, c))
		h.lease = granted(t, c)
		f, err := write(h, read())
		if err != nil {
			t.Fatal(err)
		}
		if succeeds(t, c, f) {
			t.Errorf("%s over a key under another lease", name)
		}
	}
	// What is compared besides the key.
	for name, write := range writes {
		for what, meanwhile := range map[string]struct {
			yields string
			do     func(Holding)
		}{
			"settle": {"rebind, take over", func(Holding) { put(t, c, k.Settle(), "x") }},
			"config": {"take over", func(Holding) { put(t, c, k.Config(), fourSubnets) }},
			"store":  {"take over", func(Holding) { put(t, c, k.Store(), `{"ID":"s"}`) }},
			"owner":  {"take over, retake", func(h Holding) { put(t, c, k.Owner(h.subnets), `{"UID":"x"}`) }},
		} {
			h := holdingOn(t, c, granted(t, c))
			f, err := write(h, read())
			if err != nil {
				t.Fatal(err)
			}
			meanwhile.do(h)
			if got, want := succeeds(t, c, f), !strings.Contains(meanwhile.yields, name); got != want {
				t.Errorf("%s although %s changed: written %t, want %t", name, what, got, want)
			}
			if _, err := c.Delete(t.Context(), k.Settle()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestReassertComparesEverythingItReliesOn: above all, that the subnet is absent.
func TestReassertComparesEverythingItReliesOn(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	k := NewKeys(prefix)
	h := holdingOn(t, c, granted(t, c))
	key := k.Subnet(h.subnets)
	try := func(meanwhile func()) bool {
		if _, err := c.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		seen, err := list(t.Context(), c, newMirror(k), maxCall)
		if err != nil {
			t.Fatal(err)
		}
		f, err := h.reassert(granted(t, c), seen, Owner{})
		if err != nil {
			t.Fatal(err)
		}
		meanwhile()
		return succeeds(t, c, f)
	}
	for what, meanwhile := range map[string]func(){
		"a key":                 func() { put(t, c, key, anyRecord, clientv3.WithLease(granted(t, c))) },
		"a key without a lease": func() { put(t, c, key, anyRecord) },
		"a config":              func() { put(t, c, k.Config(), fourSubnets) },
		"a store":               func() { put(t, c, k.Store(), `{"ID":"s"}`) },
		"an owner":              func() { put(t, c, k.Owner(h.subnets), `{"UID":"x"}`) },
	} {
		if try(meanwhile) {
			t.Errorf("put back over %s that it had not read", what)
		}
	}
	if !try(func() { put(t, c, k.Settle(), "x") }) {
		t.Error("not put back while settle stands")
	}
}

// steps lets a test act where an engine is.
type steps struct {
	mu sync.Mutex
	at map[string]func()
}

func (s *steps) on(where string, do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = map[string]func(){}
	}
	s.at[where] = do
}

// reached is a host's step; what is to be done at a place is done once.
func (s *steps) reached(where string) {
	s.mu.Lock()
	do := s.at[where]
	delete(s.at, where)
	s.mu.Unlock()
	if do != nil {
		do()
	}
}

// TestPauseAnywhereInACycle: a daemon that is stopped for a while at any place
// of a cycle arms nothing that reaches past the lease.
func TestPauseAnywhereInACycle(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"before the keep-alive", "after the keep-alive", "before the proof", "after the proof", "before the fence is armed"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			s, c := cluster(t, fourSubnets)
			h := newHost(t, "n1", s.Endpoint)
			var at steps
			h.step = at.reached
			d := h.start()
			d.waitHeld()
			stop := h.neverTooLong(c, false)
			first := d.View().LastProof
			var bound time.Duration
			at.on(where, func() { wait(t.Context(), 2*time.Second) }) // as a process that is stopped
			armed := make(chan time.Duration, 1)
			at.on("before t0", func() {
				bound = bootClock() + 5*time.Second - Margin(5*time.Second)
				at.on("after the fence was armed", func() {
					f, _ := h.fence.Deadline()
					armed <- f
				})
			})
			v := d.wait("a proof", func(v View) bool { return v.LastProof > first })
			if f := <-armed; f > bound+100*time.Millisecond {
				t.Errorf("armed until %s, %s after what a question at t0 allows", f, f-bound)
			}
			if v.Deadline > v.LastProof+v.Holding.TTL()-Margin(v.Holding.TTL()) {
				t.Errorf("deadline %s, last proof %s", v.Deadline, v.LastProof)
			}
			stop()
		})
	}
}

// TestLossDiscardsTheCycleInFlight: the key is deleted when its proof has just
// been answered. What was proven opens nothing any more.
func TestLossDiscardsTheCycleInFlight(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := newHost(t, "n1", s.Endpoint)
	var at steps
	h.step = at.reached
	d := h.start()
	v := d.waitHeld()
	stop := h.neverTooLong(c, true)
	after := make(chan time.Duration, 1)
	at.on("after the proof", func() {
		if _, err := c.Delete(t.Context(), NewKeys(prefix).Subnet(v.Holding.Subnets())); err != nil {
			t.Error(err)
		}
		eventually(t, "the fence to close", func() bool { return h.fence.Get().Closed > 0 })
		at.on("before t0", func() { // of the next tenancy
			f, _ := h.fence.Deadline()
			after <- f
		})
	})
	d.wait("held again", func(w View) bool { return w.State == api.StateHeld && w.Holding.LeaseID() != v.Holding.LeaseID() })
	if f := <-after; f != 0 {
		t.Errorf("a cycle of before the loss opened the fence until %s", f)
	}
	stop()
}

// TestCycleFromBeforeAClockGapProvesNothing about the time after it.
func TestCycleFromBeforeAClockGapProvesNothing(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, fourSubnets)
	h := newHost(t, "n1", s.Endpoint)
	var at steps
	var mu sync.Mutex
	var slept time.Duration
	h.clocks = func() Clocks {
		mu.Lock()
		defer mu.Unlock()
		now := bootClock()
		return Clocks{Boot: now + slept, Mono: now, Real: now + slept}
	}
	h.step = at.reached
	d := h.start()
	d.waitHeld()
	after := make(chan string, 1)
	at.on("before the proof", func() {
		mu.Lock()
		slept = time.Hour
		mu.Unlock()
		if d.View().Doubt == "" {
			t.Error("the gap was not seen")
		}
		at.on("before t0", func() { after <- d.View().Doubt })
	})
	if doubt := <-after; doubt == "" {
		t.Error("a cycle that was begun before the gap did away with the doubt")
	}
	d.wait("served again", func(v View) bool { return v.InDate(bootClock()) })
}

// TestClosedFencePutsNothingBack: the store was wiped while this node's fence
// closed. Settle has begun, and it waits like everybody else.
func TestClosedFencePutsNothingBack(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	p := newProxy(t, s.Endpoint)
	h := newHost(t, "n1", "http://"+p.Addr())
	d := h.start()
	v := d.waitHeld()
	p.Cut()
	d.wait("fenced", func(v View) bool { return v.State == api.StateFenced })
	s.Wipe(t, true)
	if _, err := InitAfterLoss(t.Context(), c, prefix, []byte(fourSubnets), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	born := etcdtest.Get(t, c, NewKeys(prefix).Settle()).Kvs
	p.Restore()
	d.wait("lost", func(v View) bool { return v.State == api.StateLost && strings.Contains(v.Reason, "settling") })
	w := d.waitHeld()
	gone := int64(0)
	for rev, kv := range history(t, c, NewKeys(prefix).Settle()) {
		if kv == nil && int64(rev+1) > born[0].ModRevision && gone == 0 {
			gone = int64(rev + 1)
		}
	}
	if gone == 0 || w.Holding.create < gone {
		t.Errorf("settle went at revision %d, the key of %s came at %d", gone, w.Holding.Subnets(), w.Holding.create)
	}
	for rev, kv := range history(t, c, NewKeys(prefix).Subnet(v.Holding.Subnets())) {
		if kv != nil && int64(rev+1) < gone {
			t.Fatalf("%s was put back at revision %d", v.Holding.Subnets(), rev+1)
		}
	}
}

// TestShorterLeaseCutsTheFenceFirst: wherever the key comes to hang on a lease
// that is shorter than the one before, F is cut before; also when nobody answers
// whether it does.
func TestShorterLeaseCutsTheFenceFirst(t *testing.T) {
	t.Parallel()
	ttl := func(of string) string { return strings.Replace(fourSubnets, "5s", of, 1) }
	lost := func(h *host, p *etcdproxy.Proxy) *etcdproxy.Rule {
		return p.DropReply(1, func(method string, request any) bool {
			if !subnetKeys()(method, request) {
				return false
			}
			if f, _ := h.fence.Deadline(); f > bootClock()+8*time.Second-Margin(8*time.Second) {
				t.Errorf("the key is to hang on a lease of 8s, and the fence is open for another %s", f-bootClock())
			}
			return true
		}, etcdproxy.Fail)
	}
	t.Run("inherited", func(t *testing.T) {
		t.Parallel()
		s, c := cluster(t, ttl("30s"))
		h, p := lossy(t, "n1", s)
		h.local, h.silent = true, true
		d := h.start()
		d.waitHeld()
		d.stop()
		h.losesState()
		put(t, c, NewKeys(prefix).Config(), ttl("8s"))
		r := lost(h, p)
		stop := h.neverTooLong(c, false)
		d = h.start()
		d.wait("held", func(v View) bool { return v.State == api.StateHeld && r.Hits() == 1 })
		stop()
	})
	t.Run("put back", func(t *testing.T) {
		t.Parallel()
		s, c := cluster(t, ttl("30s"))
		h, p := lossy(t, "n1", s)
		d := h.start()
		d.waitHeld()
		p.Cut()
		s.Wipe(t, true)
		if _, err := InitAfterLoss(t.Context(), c, prefix, []byte(ttl("8s")), 5*time.Second); err != nil {
			t.Fatal(err)
		}
		r := lost(h, p)
		stop := h.neverTooLong(c, true)
		p.Restore()
		d.Touch()
		d.wait("held", func(v View) bool {
			return v.State == api.StateHeld && v.Holding.TTL() == 8*time.Second && r.Hits() == 1
		})
		stop()
	})
	t.Run("found again", func(t *testing.T) {
		t.Parallel()
		s, c := cluster(t, ttl("8s"))
		h, p := lossy(t, "n1", s)
		d := h.start()
		v := d.waitHeld()
		backup := s.Backup(t)
		put(t, c, NewKeys(prefix).Config(), ttl("30s"))
		d.wait("the longer lease", func(v View) bool { return v.State == api.StateHeld && v.Holding.TTL() == 30*time.Second })
		eventually(t, "the shorter lease to end", func() bool {
			resp, err := c.TimeToLive(t.Context(), v.Holding.LeaseID())
			return err == nil && resp.TTL < 0
		})
		r := lost(h, p)
		s.Restore(t, backup)
		d.Touch()
		d.wait("the shorter lease", func(w View) bool {
			return w.State == api.StateHeld && w.Holding.LeaseID() == v.Holding.LeaseID() && r.Hits() == 1
		})
	})
}

// TestSettleLastsAsLongAsAnyFenceMayBeOpen that this node can know of.
func TestSettleLastsAsLongAsAnyFenceMayBeOpen(t *testing.T) {
	t.Parallel()
	none := &Snapshot{}
	config := func(ttl string) []byte { return []byte(strings.Replace(fourSubnets, "5s", ttl, 1)) }
	stored := &Snapshot{Config: Versioned[[]byte]{config("40s"), 3}}
	for name, c := range map[string]struct {
		set  func(*Engine)
		s    *Snapshot
		want time.Duration
	}{
		"nothing known": {func(*Engine) {}, none, conf.MinLeaseTTL},
		"in etcd":       {func(*Engine) {}, stored, 40 * time.Second},
		"in force":      {func(e *Engine) { n, _, _ := conf.ParseNetwork(config("50s")); e.network = &n }, stored, 50 * time.Second},
		"held": {func(e *Engine) {
			h, err := NewHolding(e.keys, Entry{Subnets: Subnets{V4: netip.MustParsePrefix("10.5.1.0/24")}, Lease: 4, CreateRevision: 2}, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			e.held = &tenancy{Holding: h}
		}, stored, time.Minute},
		"remembered": {func(e *Engine) {
			m := e.cfg.Memory.Get()
			m.Held = &MemoryOfHolding{TTLSeconds: 70}
			if err := e.cfg.Memory.Save(m); err != nil {
				t.Fatal(err)
			}
		}, stored, 70 * time.Second},
		"remembered config": {func(e *Engine) {
			m := e.cfg.Memory.Get()
			m.Config = config("80s")
			if err := e.cfg.Memory.Save(m); err != nil {
				t.Fatal(err)
			}
		}, stored, 80 * time.Second},
	} {
		e := newHost(t, "n1", "http://192.0.2.1:2379").engine()
		c.set(e)
		if got := e.settleFor(c.s); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestLateAnswersOfTheWatchConcludeNothing: what a member says of its own
// revision may lag behind what another one has said.
func TestLateAnswersOfTheWatchConcludeNothing(t *testing.T) {
	t.Parallel()
	e := newHost(t, "n1", "http://192.0.2.1:2379").engine()
	at := func(revision int64, listed bool) *Snapshot {
		return &Snapshot{Revision: revision, ClusterID: 7, Listed: listed, Store: Versioned[Store]{Store{ID: "s"}, 1}}
	}
	e.adopt(at(100, true))
	for _, listed := range []bool{true, false} {
		e.observe(at(90, listed))
		if v := e.View(); hasProblem(v, storeWentBack) || e.forgot != nil || v.Snapshot.Revision != 100 {
			t.Errorf("listed %t: problems %v, snapshot of %d", listed, v.Problems, v.Snapshot.Revision)
		}
	}
	// A proof has told the loop of a later revision than the watch has come to.
	e.meet(at(200, false).life())
	e.observe(at(150, false))
	if v := e.View(); hasProblem(v, storeWentBack) || v.Snapshot.Revision != 150 {
		t.Errorf("problems %v, snapshot of %d", v.Problems, v.Snapshot.Revision)
	}
	e.adopt(at(90, true))
	if v := e.View(); !hasProblem(v, storeWentBack) {
		t.Error("the loop's own list of a lower revision was not noticed")
	}
}

// TestAnotherStoreMetByAProof: a daemon that slept while the store was wiped, and
// whose overlay has closed, hears of it by a proof. The list that follows shows
// the store that is known by then, and everybody sees it.
func TestAnotherStoreMetByAProof(t *testing.T) {
	t.Parallel()
	h := newHost(t, "n1", "http://192.0.2.1:2379")
	e := h.engine()
	e.fence = h.fence
	of := func(store string, cluster uint64, revision int64) *Snapshot {
		return &Snapshot{Revision: revision, ClusterID: cluster, Listed: true, Store: Versioned[Store]{Store{ID: store}, 1}}
	}
	e.adopt(of("before", 7, 100))
	for _, now := range []*Snapshot{of("after", 8, 5), of("later", 8, 9), of("again", 8, 4)} {
		if !e.meet(now.life()) {
			t.Fatalf("%+v is taken for the store that is known", now.life())
		}
		e.observe(now) // the watch, begun anew
		e.adopt(now)
		if v := e.View(); v.Snapshot.Store.Value.ID != now.Store.Value.ID || hasProblem(v, storeWentBack) {
			t.Errorf("everybody sees the store %s, known is %s; problems %v", v.Snapshot.Store.Value.ID, now.Store.Value.ID, v.Problems)
		}
	}
}

// TestSettleIsPutOnce: into the store that was judged, and over no other.
func TestSettleIsPutOnce(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	k := NewKeys(prefix)
	try := func(meanwhile func()) bool {
		seen, err := list(t.Context(), c, newMirror(k), maxCall)
		if err != nil {
			t.Fatal(err)
		}
		f, err := settle(k, granted(t, c), Settle{Node: "n1"}, seen)
		if err != nil {
			t.Fatal(err)
		}
		meanwhile()
		return succeeds(t, c, f)
	}
	if try(func() { put(t, c, k.Store(), `{"ID":"another"}`) }) {
		t.Error("put into another store than the one that was judged")
	}
	if !try(func() {}) {
		t.Error("not put")
	}
	if try(func() {}) {
		t.Error("put over a settle, whose end would come later")
	}
}

// TestKeyGoneUnderSettle: the watch tells neither of settle nor that the own key
// was deleted. The proof reads both, and the key is put back under an open fence.
func TestKeyGoneUnderSettle(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, tenSeconds)
	h, p := lossy(t, "n1", s)
	d := h.start()
	v := d.waitHeld()
	key := NewKeys(prefix).Subnet(v.Holding.Subnets())
	p.SwallowEvents(1, etcdproxy.EventOf(NewKeys(prefix).Settle()))
	gone := p.SwallowEvents(1, etcdproxy.EventOf(key))
	stop := h.openAllAlong()
	if _, err := InitAfterLoss(t.Context(), c, prefix, []byte(tenSeconds), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	d.back(c, v.Holding)
	stop()
	if gone.Hits() != 1 {
		t.Errorf("%d events swallowed", gone.Hits())
	}
}

// TestEpochGrowsWithTheBoot: the key had lapsed by the time the machine was back,
// and whoever missed that may still have sent frames by the old epoch.
func TestEpochGrowsWithTheBoot(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	d.stop()
	if _, err := c.Revoke(t.Context(), v.Holding.LeaseID()); err != nil {
		t.Fatal(err)
	}
	h.boot, h.fence = "later", &register{}
	w := h.start().waitHeld()
	if w.Holding.Subnets() != v.Holding.Subnets() || w.Holding.Epoch() <= v.Holding.Epoch() {
		t.Errorf("holds %s of epoch %d, had %s of %d", w.Holding.Subnets(), w.Holding.Epoch(), v.Holding.Subnets(), v.Holding.Epoch())
	}
}

// TestEpochGrowsOverWhatThisNodeHad: the clock was ahead when the subnet was
// acquired, and the store has forgotten whose it was.
func TestEpochGrowsOverWhatThisNodeHad(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, `{"Network":"10.5.0.0/24","SubnetLen":24,"LeaseTTL":"5s"}`)
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	d.stop()
	m, err := OpenMemory(h.dir, "")
	if err != nil {
		t.Fatal(err)
	}
	had := m.Get()
	tenant := had.Held.Record.Tenant()
	tenant.Epoch += 1_000_000
	had.Held.Record.Tenure = &tenant
	if err := m.Save(had); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{NewKeys(prefix).Owner(v.Holding.Subnets()), NewKeys(prefix).Subnet(v.Holding.Subnets())} {
		if _, err := c.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	h.boot, h.fence = "later", &register{}
	if w := h.start().waitHeld(); w.Holding.Epoch() <= tenant.Epoch {
		t.Errorf("epoch %d after %d", w.Holding.Epoch(), tenant.Epoch)
	}
}

// TestConflicts: who may be another machine under this node's name or UID.
func TestConflicts(t *testing.T) {
	t.Parallel()
	here, elsewhere, translated := netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("192.0.2.12"), netip.MustParseAddr("203.0.113.11")
	me := self{Memory: Memory{UID: "me"}, node: "n1", dead: map[clientv3.LeaseID]bool{9: true}, local: func(a netip.Addr) bool { return a == here }}
	translated6 := netip.MustParseAddr("2001:db8::99")
	v6only := func(a netip.Addr) Record {
		return Record{PublicIP: netip.IPv4Unspecified(), PublicIPv6: &a, Tenure: &Tenant{Node: "n1", UID: "me"}}
	}
	for name, c := range map[string]struct {
		public netip.Addr
		e      Entry
		want   bool
	}{
		"own translated address, of IPv6 only": {translated6, Entry{Lease: 4, Record: v6only(translated6)}, false},
		"another address, of IPv6 only":        {translated6, Entry{Lease: 4, Record: v6only(netip.MustParseAddr("2001:db8::12"))}, true},
		"own address of the second family":     {translated6, Entry{Lease: 4, Record: Record{PublicIP: elsewhere, PublicIPv6: &translated6, Tenure: &Tenant{Node: "n1", UID: "me"}}}, true},
		"another node":                         {here, Entry{Lease: 4, Record: Record{PublicIP: elsewhere, Tenure: &Tenant{Node: "n2", UID: "you"}}}, false},
		"same name":                            {here, Entry{Lease: 4, Record: Record{PublicIP: elsewhere, Tenure: &Tenant{Node: "n1", UID: "you"}}}, true},
		"same UID":                             {here, Entry{Lease: 4, Record: Record{PublicIP: elsewhere, Tenure: &Tenant{Node: "n1", UID: "me"}}}, true},
		"same address, which others answer":    {here, Entry{Lease: 4, Record: Record{PublicIP: here, Tenure: &Tenant{Node: "n1", UID: "me"}}}, true},
		"without a lease":                      {here, Entry{Record: Record{PublicIP: elsewhere, Tenure: &Tenant{Node: "n1", UID: "you"}}}, false},
		"a tombstone":                          {here, Entry{Lease: 4, Record: Record{PublicIP: elsewhere, Tenure: &Tenant{Node: "n1"}}}, false},
		"a lease that counts for nothing":      {here, Entry{Lease: 9, Record: Record{PublicIP: elsewhere, Tenure: &Tenant{Node: "n1", UID: "me"}}}, false},
		"own translated address":               {translated, Entry{Lease: 4, Record: Record{PublicIP: translated, Tenure: &Tenant{Node: "n1", UID: "me"}}}, false},
		"another's translated address":         {translated, Entry{Lease: 4, Record: Record{PublicIP: elsewhere, Tenure: &Tenant{Node: "n1", UID: "me"}}}, true},
	} {
		me.public = []netip.Addr{netip.MustParseAddr("192.0.2.99"), c.public}
		if got := me.conflicts(c.e); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

func TestInherits(t *testing.T) {
	t.Parallel()
	here := netip.MustParseAddr("192.0.2.11")
	here6, there6 := netip.MustParseAddr("2001:db8::11"), netip.MustParseAddr("2001:db8::12")
	me := self{Memory: Memory{UID: "now"}, node: "n1", dead: map[clientv3.LeaseID]bool{9: true},
		local:   func(a netip.Addr) bool { return a == here || a == here6 },
		flannel: func() bool { return false },
		running: func(uid string) bool { return uid == "running" }}
	own := Entry{Record: Record{PublicIP: here, Tenure: &Tenant{Node: "n1", UID: "before"}}, Lease: 4}
	with := func(f func(*Entry)) Entry {
		e, tenant := own, *own.Tenure
		e.Tenure = &tenant
		f(&e)
		return e
	}
	for name, c := range map[string]struct {
		e    Entry
		want bool
	}{
		"own of before":             {own, true},
		"without a lease":           {with(func(e *Entry) { e.Lease = 0 }), false},
		"a lease that etcd denies":  {with(func(e *Entry) { e.Lease = 9 }), false},
		"address elsewhere":         {with(func(e *Entry) { e.PublicIP = netip.MustParseAddr("192.0.2.12") }), false},
		"another name":              {with(func(e *Entry) { e.Tenure.Node = "n2" }), false},
		"a tombstone":               {with(func(e *Entry) { e.Tenure.UID = "" }), false},
		"of a daemon that runs":     {with(func(e *Entry) { e.Tenure.UID = "running" }), false},
		"this identity's":           {with(func(e *Entry) { e.Tenure.UID = "now" }), false},
		"flannel's":                 {with(func(e *Entry) { e.Tenure = nil }), true},
		"of IPv6 only":              {with(func(e *Entry) { e.PublicIP, e.PublicIPv6 = netip.IPv4Unspecified(), &here6 }), true},
		"of IPv6 only, elsewhere":   {with(func(e *Entry) { e.PublicIP, e.PublicIPv6 = netip.IPv4Unspecified(), &there6 }), false},
		"flannel's of IPv6 only":    {with(func(e *Entry) { e.Tenure, e.PublicIP, e.PublicIPv6 = nil, netip.IPv4Unspecified(), &here6 }), true},
		"IPv4 elsewhere, IPv6 here": {with(func(e *Entry) { e.PublicIP, e.PublicIPv6 = netip.MustParseAddr("192.0.2.12"), &here6 }), false},
	} {
		if got := me.inherits(c.e); got != c.want {
			t.Errorf("%s: inherited %t", name, got)
		}
	}
	me.flannel = func() bool { return true }
	if me.inherits(with(func(e *Entry) { e.Tenure = nil })) {
		t.Error("flannel's record was inherited while its device is up")
	}
}
