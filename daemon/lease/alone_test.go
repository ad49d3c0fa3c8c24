package lease

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/fencetest"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// The tests of this file look at one guard alone, where another one, or chance,
// makes good what it misses while the whole engine runs.

// holder is an engine without a loop that holds a subnet under an open fence. Its
// key is of revision 10.
func holder(t *testing.T) (*host, *Engine, tenancy) {
	t.Helper()
	h := newHost(t, "n1", "http://192.0.2.1:2379")
	e := h.engine()
	e.fence = h.fence
	own := Entry{Subnets: v4("10.5.1.0/24"), Lease: 4, CreateRevision: 10, ModRevision: 10,
		Record: Record{Tenure: &Tenant{Node: "n1", UID: e.cfg.Memory.Get().UID, Boot: h.boot, Epoch: 7}}}
	held, err := NewHolding(e.keys, own, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	now := bootClock()
	h.fence.Do(func(f *kept) { f.Live, f.Deadline = own.Subnets, now+time.Minute })
	e.held = &tenancy{Holding: held, deadline: now + time.Minute, lastProof: now}
	e.known = Life{Store: "s", Cluster: 7, Revision: 10}
	return h, e, *e.held
}

// shown is a snapshot of the store that the holder knows.
func shown(revision int64, listed bool, entries ...Entry) *Snapshot {
	return &Snapshot{Revision: revision, ClusterID: 7, Listed: listed, Store: Versioned[Store]{Store{ID: "s"}, 1}, Entries: entries}
}

// entry is the holding as etcd would have it.
func (h Holding) entry() Entry {
	return Entry{Subnets: h.subnets, Record: h.record, Lease: h.lease, CreateRevision: h.create, ModRevision: h.mod}
}

// foreign is the holding's key as somebody else's.
func (h Holding) foreign(revision int64) Entry {
	e := h.entry()
	e.Lease, e.CreateRevision, e.ModRevision = 66, revision, revision
	e.Tenure = &Tenant{Node: "n2", UID: "you", Boot: "n2-boot", Epoch: 8}
	return e
}

// TestForeignKeyInAStoreThatForgot closes at once, whoever sees it first: the
// watch, or the loop in its own list.
func TestForeignKeyInAStoreThatForgot(t *testing.T) {
	t.Parallel()
	for name, see := range map[string]func(*Engine, tenancy, *Snapshot){
		"watch": func(e *Engine, _ tenancy, s *Snapshot) { e.observe(s) },
		"loop":  func(e *Engine, held tenancy, s *Snapshot) { e.standBy(context.Background(), held, s) },
	} {
		h, e, held := holder(t)
		e.snapshot, e.settling, e.forgot = shown(11, true), true, &forgetting{settled: true}
		see(e, held, shown(12, false, held.foreign(12)))
		if f, _ := h.fence.Deadline(); e.tenancy() != nil || f != 0 || h.fence.Get().Closed != 1 {
			t.Errorf("%s: held %t, open until %s, closed %d times", name, e.tenancy() != nil, f, h.fence.Get().Closed)
		}
	}
}

// TestWatchBehindTheKey: a watch that has only come to before the key was put
// does not show it, and concludes nothing.
func TestWatchBehindTheKey(t *testing.T) {
	t.Parallel()
	h, e, held := holder(t)
	e.snapshot = shown(8, true)
	e.observe(shown(9, true))
	if e.tenancy() == nil || h.fence.Get().Closed != 0 {
		t.Error("lost to a list from before the key was put")
	}
	e.observe(shown(10, false, held.entry()))
	e.observe(shown(11, false))
	if e.tenancy() != nil || h.fence.Get().Closed != 1 {
		t.Error("held on although the key is gone")
	}
}

// TestKeyMovedSinceNodeJSON was written: what a restart finds under another lease
// is this very boot's, and is no loss; another boot's is.
func TestKeyMovedSinceNodeJSON(t *testing.T) {
	t.Parallel()
	for boot, stays := range map[string]bool{"n1-boot": true, "another boot": false} {
		h, e, held := holder(t)
		e.held.lastProof = 0 // by memory alone
		moved, tenant := held.entry(), held.record.Tenant()
		tenant.Boot = boot
		moved.Lease, moved.ModRevision, moved.Tenure = 5, 12, &tenant
		e.observe(shown(12, true, moved))
		if got := e.tenancy() != nil && h.fence.Get().Closed == 0; got != stays {
			t.Errorf("of %s: held on %t, want %t", boot, got, stays)
		}
	}
}

// TestSettleEndsWithAWholeList: an event that tells that settle is gone comes from
// a watch that may not have told of what was put back meanwhile.
func TestSettleEndsWithAWholeList(t *testing.T) {
	t.Parallel()
	_, e, held := holder(t)
	settling := shown(11, true, held.entry())
	settling.Settle.ModRevision = 11
	e.observe(settling)
	e.observe(shown(12, false, held.entry()))
	if !e.unsettled() {
		t.Error("an event alone ended settle")
	}
	e.observe(shown(12, true, held.entry()))
	if e.unsettled() {
		t.Error("a whole list did not end settle")
	}
}

// TestProofOfAnotherTenancy arms nothing: under another lease, or of another life
// of the key.
func TestProofOfAnotherTenancy(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]func(*tenancy){
		"lease": func(t *tenancy) { t.lease++ },
		"life":  func(t *tenancy) { t.create-- },
	} {
		h, e, held := holder(t)
		before, _ := h.fence.Deadline()
		other(&held)
		if e.proven(h.fence.Generation(), held, verdict{proven: true, holding: held.Holding, deadline: before + time.Hour}) {
			t.Errorf("another %s: it was taken for a proof", name)
		}
		if f, _ := h.fence.Deadline(); f != before {
			t.Errorf("another %s: armed for %s longer", name, f-before)
		}
	}
}

// TestOutageAfterAReconnect: etcd came back and is away again. F alone counts, as
// before it came back; but not after a clock gap.
func TestOutageAfterAReconnect(t *testing.T) {
	t.Parallel()
	for name, soft := range map[string]bool{"reconnected": true, "clock gap": false} {
		_, e, held := holder(t)
		e.mu.Lock()
		e.doubtLocked(name, soft)
		e.mu.Unlock()
		if e.View().InDate(bootClock()) {
			t.Errorf("%s: served before anybody asked etcd", name)
		}
		e.unproven(held, context.DeadlineExceeded)
		if got := e.View().InDate(bootClock()); got != soft {
			t.Errorf("%s: after a cycle without an answer served %t, want %t", name, got, soft)
		}
	}
}

// TestRestoreNeedsTheFence: what node.json names is served by memory only while
// the kernel lets that very subnet through.
func TestRestoreNeedsTheFence(t *testing.T) {
	t.Parallel()
	h, e, held := holder(t)
	past := []Transition{{UID: "you", Node: "n2", Epoch: 6}}
	e.past = past
	e.remember(held.Holding)
	for name, c := range map[string]struct {
		live Subnets
		open bool
		want bool
	}{
		"open":           {held.subnets, true, true},
		"closed":         {held.subnets, false, false},
		"open elsewhere": {v4("10.5.2.0/24"), true, false},
	} {
		h.fence.Do(func(f *kept) {
			f.Live, f.Deadline = c.live, 0
			if c.open {
				f.Deadline = bootClock() + time.Minute
			}
		})
		later := h.engine()
		later.fence = h.fence
		later.restore()
		if v := later.View(); v.Held != c.want || v.InDate(bootClock()) != c.want {
			t.Errorf("%s: held %t, in date %t, want %t", name, v.Held, v.InDate(bootClock()), c.want)
		}
		if !slices.Equal(later.past, past) {
			t.Errorf("%s: the owners before are %v, want %v", name, later.past, past)
		}
	}
}

// toldFence notes which networks it is told.
type toldFence struct {
	Fence
	networks *[]Subnets
}

func (f toldFence) Set(live, network Subnets) error {
	*f.networks = append(*f.networks, network)
	return f.Fence.Set(live, network)
}

// TestRestoreTellsTheNetwork: an earlier process may have written it down and not
// told the fence, which must know before anything leads there.
func TestRestoreTellsTheNetwork(t *testing.T) {
	t.Parallel()
	h, e, held := holder(t)
	e.config = []byte(`{"Network":"10.4.0.0/15","SubnetLen":24}`)
	e.remember(held.Holding)
	h.fence.Do(func(f *kept) { f.Live, f.Deadline = held.subnets, bootClock()+time.Minute })
	later := h.engine()
	var networks []Subnets
	later.fence = toldFence{h.fence, &networks}
	later.restore()
	if want := []Subnets{v4("10.4.0.0/15")}; !slices.Equal(networks, want) || !later.View().InDate(bootClock()) {
		t.Errorf("the fence is told %v, want %v; in date %t", networks, want, later.View().InDate(bootClock()))
	}
}

// TestStoreIsRememberedBeyondItsEnd: that there once was a store is not forgotten
// with the store.
func TestStoreIsRememberedBeyondItsEnd(t *testing.T) {
	t.Parallel()
	_, e, held := holder(t)
	e.remember(held.Holding)
	e.known = Life{Cluster: 8, Revision: 1}
	e.keepKnown()
	if m := e.cfg.Memory.Get(); m.Store != "" || m.Had != "s" {
		t.Errorf("store %q, had %q", m.Store, m.Had)
	}
}

// TestLeaveEndsWhatIsThisBoots and nothing else, and no lease that somebody's key
// hangs on.
func TestLeaveEndsWhatIsThisBoots(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	h, e, held := holder(t)
	e.client, e.held = c, nil
	uid := e.cfg.Memory.Get().UID
	keep := map[string]bool{}
	for subnet, who := range map[string]Tenant{
		"10.5.0.0/24": {UID: uid, Boot: h.boot},
		"10.5.1.0/24": {UID: uid, Boot: "another boot"},
		"10.5.2.0/24": {UID: "you", Boot: h.boot},
	} {
		key := e.keys.Subnet(v4(subnet))
		put(t, c, key, holding(who), clientv3.WithLease(granted(t, c)))
		keep[key] = who != Tenant{UID: uid, Boot: h.boot}
	}
	if n, err := e.leaveAll(t.Context(), nil); n != 1 || err != nil {
		t.Errorf("%d keys given up, %v", n, err)
	}
	for key, want := range keep {
		if got := len(etcdtest.Get(t, c, key).Kvs) == 1; got != want {
			t.Errorf("%s: there %t, want %t", key, got, want)
		}
	}
	lease := func(of string) clientv3.LeaseID {
		return clientv3.LeaseID(etcdtest.Get(t, c, e.keys.Subnet(v4(of))).Kvs[0].Lease)
	}
	held.lease = lease("10.5.2.0/24")
	if _, err := e.leaveAll(t.Context(), &held); err != nil {
		t.Fatal(err)
	}
	if len(etcdtest.Get(t, c, e.keys.Subnet(v4("10.5.2.0/24"))).Kvs) == 0 {
		t.Error("a foreign key went with the lease")
	}
}

// holding is the value of a record.
func holding(who Tenant) string {
	return strings.Replace(anyRecord, "}", `,"Tenure":`+encode(who)+`}`, 1)
}

// TestOwnersNumberOfAnEarlierAge: a restored store has this node as the owner by
// an earlier number than the one it used last. That one does not come back.
func TestOwnersNumberOfAnEarlierAge(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	for number, stays := range map[string]bool{"7": true, "5": false} {
		_, e, held := holder(t)
		e.client = c
		e.remember(held.Holding)
		put(t, c, e.keys.Owner(held.subnets), `{"UID":"`+e.cfg.Memory.Get().UID+`","Epoch":`+number+`}`)
		seen, err := list(t.Context(), c, newMirror(e.keys), maxCall)
		if err != nil {
			t.Fatal(err)
		}
		a := attempt{client: c, keys: e.keys, seen: seen, ttl: time.Minute, call: maxCall, lease: granted(t, c), silent: func(error) {}, end: e.end}
		got, err := e.tryCandidate(t.Context(), a, network(t, fourSubnets), Candidate{Subnets: held.subnets})
		if err != nil {
			t.Fatal(err)
		}
		if now := got.Epoch(); stays && now != 7 || !stays && now <= 7 {
			t.Errorf("on record by %s, used last 7: now %d", number, now)
		}
		if _, err := c.Delete(t.Context(), e.keys.Subnet(held.subnets)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestShed: what is given up is this boot's, beside what it holds, in a store that
// is not settled, and under an open fence.
func TestShed(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	for name, f := range map[string]func(*host, *Engine){
		"unsettled": func(*host, *Engine) {},
		"settled":   func(_ *host, e *Engine) { e.settling = false },
		"closed":    func(h *host, _ *Engine) { h.fence.Do(func(f *kept) { f.Deadline = 0 }) },
	} {
		h, e, held := holder(t)
		e.client, e.settling = c, true
		f(h, e)
		uid := held.record.Tenant().UID
		for subnet, who := range map[string]Tenant{
			"10.5.0.0/24": {UID: uid, Boot: h.boot},
			"10.5.1.0/24": {UID: uid, Boot: h.boot}, // the one that is held
			"10.5.2.0/24": {UID: uid, Boot: "another boot"},
			"10.5.3.0/24": {UID: "you", Boot: h.boot},
		} {
			put(t, c, e.keys.Subnet(v4(subnet)), holding(who), clientv3.WithLease(granted(t, c)))
		}
		before, err := list(t.Context(), c, newMirror(e.keys), maxCall)
		if err != nil {
			t.Fatal(err)
		}
		e.shed(t.Context(), held, before)
		after, err := list(t.Context(), c, newMirror(e.keys), maxCall)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range before.Entries {
			_, there := after.Entry(entry.Subnets)
			if want := name != "unsettled" || entry.Subnets != v4("10.5.0.0/24"); there != want {
				t.Errorf("%s: %s is there %t, want %t", name, entry.Subnets, there, want)
			}
		}
	}
}

// TestDeadlinesCountFromBeforeTheAnswer, however long etcd takes for it: wherever
// a lease is made or renewed that a key is to hang on.
func TestDeadlinesCountFromBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	const late, ttl = time.Second, 20 * time.Second
	granted := func() clientv3.LeaseID {
		id := newLeaseID()
		if _, err := grant(t.Context(), c, id, ttl, maxCall); err != nil {
			t.Fatal(err)
		}
		return id
	}
	deadline := func(e *Engine) (time.Duration, error) { return e.fence.Deadline() }
	for name, until := range map[string]func(*Engine, tenancy) (time.Duration, error){
		"granted": func(e *Engine, _ tenancy) (time.Duration, error) {
			if err := e.grantUnder(t.Context(), newLeaseID(), ttl); err != nil {
				return 0, err
			}
			return deadline(e)
		},
		"renewed": func(e *Engine, _ tenancy) (time.Duration, error) {
			if err := e.keepUnder(t.Context(), granted(), ttl); err != nil {
				return 0, err
			}
			return deadline(e)
		},
		"moved to": func(e *Engine, _ tenancy) (time.Duration, error) {
			n := network(t, strings.Replace(fourSubnets, "5s", "20s", 1))
			e.network = &n
			e.rebind(t.Context(), time.Minute)
			return deadline(e)
		},
		"moved to, later": func(e *Engine, held tenancy) (time.Duration, error) {
			e.moving = &move{lease: granted(), ttl: ttl}
			return e.keepMoving(t.Context(), held)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, e, held := holder(t)
			p := etcdproxy.Start(t, s.Endpoint)
			e.client = etcdtest.Client(t, p.URL())
			keepAlives := etcdproxy.Method(pb.Lease_LeaseKeepAlive_FullMethodName)
			r := p.Delay(1, func(method string, request any) bool { return grants()(method, request) || keepAlives(method, request) }, etcdproxy.Reply, late)
			before := bootClock()
			f, err := until(e, held)
			if most := before + ttl - Margin(ttl) + late/2; err != nil || f > most || r.Hits() != 1 {
				t.Errorf("until %s, %s too long, %v; %d answers were late", f, f-most, err, r.Hits())
			}
		})
	}
}

// TestLeaseThatTheKeyMovesTo: without an answer about it nothing is proven, for
// the key may hang on it; once it is gone, nothing can.
func TestLeaseThatTheKeyMovesTo(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	_, e, held := holder(t)
	p := etcdproxy.Start(t, s.Endpoint)
	e.client = etcdtest.Client(t, p.URL())
	e.moving = &move{lease: granted(t, c), ttl: 3 * time.Second}
	silent := p.DropReply(etcdproxy.Always, etcdproxy.Method(pb.Lease_LeaseKeepAlive_FullMethodName), etcdproxy.Silence)
	if until, err := e.keepMoving(t.Context(), held); err == nil || e.moving == nil {
		t.Errorf("silence allows until %s", until)
	}
	silent.Remove()
	if _, err := c.Revoke(t.Context(), e.moving.lease); err != nil {
		t.Fatal(err)
	}
	for range mostDenials - 1 {
		if until, err := e.keepMoving(t.Context(), held); err == nil || e.moving == nil {
			t.Errorf("a member that does not know the lease is believed at once: until %s", until)
		}
	}
	if until, err := e.keepMoving(t.Context(), held); err != nil || e.moving != nil || until != math.MaxInt64 {
		t.Errorf("gone: until %s, %v, still moving %t", until, err, e.moving != nil)
	}
}

// uncut is a fence whose deadline cannot be brought forward.
type uncut struct{ *register }

func (uncut) CutTo(time.Duration) error { return fencetest.ErrStale }

// TestNoMove begins under a fence that cannot be cut, nor in a store that is not
// settled.
func TestNoMove(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	for name, f := range map[string]func(*host, *Engine){
		"free to move": func(*host, *Engine) {},
		"not cut":      func(h *host, e *Engine) { e.fence = uncut{h.fence} },
		"unsettled":    func(_ *host, e *Engine) { e.suspect = true },
	} {
		h, e, _ := holder(t)
		e.client = c
		n := network(t, fourSubnets)
		e.network = &n
		f(h, e)
		e.rebind(t.Context(), time.Minute)
		if want := name == "free to move"; (e.moving != nil) != want {
			t.Errorf("%s: moving %t", name, e.moving != nil)
		}
	}
}

// TestNothingIsAcquiredBeforeTheLastIsAbandoned: the key of the subnet that was
// lost may come to hang on a lease that lives.
func TestNothingIsAcquiredBeforeTheLastIsAbandoned(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	h, e, _ := holder(t)
	e.client, e.held = c, nil
	e.moving = &move{lease: granted(t, c), ttl: time.Minute}
	h.fence.Do(func(f *kept) { f.Stuck = errors.New("the kernel refuses") })
	seen, err := list(t.Context(), c, newMirror(e.keys), maxCall)
	if err != nil {
		t.Fatal(err)
	}
	e.acquire(t.Context(), seen, network(t, fourSubnets))
	if now, err := list(t.Context(), c, newMirror(e.keys), maxCall); err != nil || len(now.Entries) != 0 {
		t.Errorf("acquired %v (%v)", now.Entries, err)
	}
}

// TestContradicted: what makes a key another one than the one that is held.
func TestContradicted(t *testing.T) {
	t.Parallel()
	_, _, held := holder(t)
	for name, change := range map[string]func(*Entry){
		"":               func(*Entry) {},
		"another value":  func(e *Entry) { e.ModRevision, e.PublicIP = 12, netip.MustParseAddr("192.0.2.9") },
		"gone":           func(e *Entry) { *e = Entry{} },
		"lease":          func(e *Entry) { e.Lease++ },
		"another life":   func(e *Entry) { e.CreateRevision++ },
		"another holder": func(e *Entry) { e.Tenure.UID = "you" },
		"another number": func(e *Entry) { e.Tenure.Epoch++ },
	} {
		e, who := held.entry(), held.record.Tenant()
		e.Tenure = &who
		change(&e)
		if got, want := held.contradicted(e) == "", name == "" || name == "another value"; got != want {
			t.Errorf("%q: it is the one that is held: %t", name, got)
		}
	}
}

// TestWaitingNodeRemembersTheStore, so that it does not take it for another one at
// every start.
func TestWaitingNodeRemembersTheStore(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	h, e, held := holder(t)
	e.remember(held.Holding)
	e.client, e.held = c, nil
	h.fence.Do(func(f *kept) { f.Deadline = 0 })
	if _, err := c.Delete(t.Context(), e.keys.Config()); err != nil {
		t.Fatal(err)
	}
	e.look(t.Context())
	store, err := decode[Store]("store", etcdtest.Get(t, c, e.keys.Store()).Kvs[0].Value)
	if m := e.cfg.Memory.Get(); err != nil || m.Store != store.ID || m.Had != store.ID {
		t.Errorf("node.json has %q, had %q; the store is %q (%v)", m.Store, m.Had, store.ID, err)
	}
}

// TestLateSnapshotsAreLookedInto: a list of less than was known, and anything of
// another store, may be of a store that went back; an event that comes late is not.
func TestLateSnapshotsAreLookedInto(t *testing.T) {
	t.Parallel()
	another := shown(12, false)
	another.ClusterID++
	for name, c := range map[string]struct {
		s    *Snapshot
		want bool
	}{"list": {shown(9, true), true}, "event": {shown(9, false), false}, "another store": {another, true}} {
		_, e, _ := holder(t)
		e.snapshot = shown(11, true)
		e.observe(c.s)
		if e.suspect != c.want || len(e.wake) == 0 == c.want || e.tenancy() == nil {
			t.Errorf("%s: suspect %t, want %t; %d wakes", name, e.suspect, c.want, len(e.wake))
		}
	}
}

// TestSettleBeginsTheWatchAnew: it may wait for what comes after the revisions of
// the life before.
func TestSettleBeginsTheWatchAnew(t *testing.T) {
	t.Parallel()
	_, e, _ := holder(t)
	begun := 0
	e.rewatch = func() { begun++ }
	settling := shown(12, true)
	settling.Settle.ModRevision = 11
	e.adopt(settling)
	e.adopt(settling)
	if begun != 1 {
		t.Errorf("begun anew %d times", begun)
	}
}

// TestConfigOfAStoreThatForgot is not in force before the store settles: how long
// that takes depends on the one before.
func TestConfigOfAStoreThatForgot(t *testing.T) {
	t.Parallel()
	_, e, _ := holder(t)
	before := network(t, fourSubnets)
	now := shown(12, true)
	now.Config = Versioned[[]byte]{[]byte(tenSeconds), 12}
	for _, settled := range []bool{false, true} {
		e.network, e.forgot = &before, &forgetting{settled: settled}
		e.judgeLocked(now)
		if got := *e.inForce() != before; got != settled {
			t.Errorf("settled %t: the new config is in force %t", settled, got)
		}
	}
}

// TestNobodyAcquiresInTheLastGoodNetwork: two nodes may have different ones.
func TestNobodyAcquiresInTheLastGoodNetwork(t *testing.T) {
	t.Parallel()
	_, e, _ := holder(t)
	n := network(t, fourSubnets)
	e.network = &n
	bad := shown(12, true)
	bad.Config = Versioned[[]byte]{[]byte("{"), 12}
	if got, err := e.networkInForce(bad)(); err == nil {
		t.Errorf("%v is taken for the network of a config that is damaged", got)
	}
}

// TestDetectionThatFailed is no silence.
func TestDetectionThatFailed(t *testing.T) {
	t.Parallel()
	_, e, held := holder(t)
	for _, c := range []struct {
		silent bool
		err    error
		want   bool
	}{{true, nil, true}, {false, nil, false}, {true, errNotJudged, false}} {
		e.cfg.Silent = func(context.Context, netip.Addr) (bool, error) { return c.silent, c.err }
		if got := e.undisputed(t.Context(), held.entry()); got != c.want {
			t.Errorf("silent %t, %v: undisputed %t", c.silent, c.err, got)
		}
	}
}

// TestNothingIsPublishedBeforeTheMachineIsReady to hold a subnet.
func TestNothingIsPublishedBeforeTheMachineIsReady(t *testing.T) {
	t.Parallel()
	_, e, _ := holder(t)
	n := network(t, fourSubnets)
	e.network = &n
	e.cfg.Ready = func(*conf.Network) error { return errNotJudged }
	e.cfg.Publish = func(conf.Network, Subnets, int64) (Record, error) {
		t.Error("a record was asked for")
		return Record{}, errNotJudged
	}
	e.publish(t.Context())
}

// TestServedUntilF and no longer.
func TestServedUntilF(t *testing.T) {
	t.Parallel()
	v := View{Held: true, Deadline: time.Minute}
	for now, want := range map[time.Duration]bool{time.Minute - 1: true, time.Minute: false, time.Hour: false} {
		if got := v.InDate(now); got != want {
			t.Errorf("at %s: in date %t", now, got)
		}
	}
}

// TestUnknown: which errors leave open whether a write was done, or will be.
func TestUnknown(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		context.DeadlineExceeded: true, rpctypes.ErrNoLeader: true, rpctypes.ErrTimeout: true, rpctypes.ErrNoSpace: true,
		rpctypes.ErrPermissionDenied: false, rpctypes.ErrLeaseNotFound: false, rpctypes.ErrCompacted: true,
	} {
		if got := unknown(err); got != want {
			t.Errorf("%v: unknown %t, want %t", err, got, want)
		}
	}
}

// TestOneLeaseForEveryTry: a try whose outcome is unknown leaves its lease alive,
// for the key may come to hang on it, and the next one names the same.
func TestOneLeaseForEveryTry(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		writes etcdproxy.Match
		try    func(*Engine, tenancy, *Snapshot)
	}{
		"put back": {subnetKeys(), func(e *Engine, held tenancy, s *Snapshot) { e.reassert(t.Context(), held, s) }},
		"settle": {etcdproxy.Puts(NewKeys(prefix).Settle()), func(e *Engine, _ tenancy, s *Snapshot) {
			e.forgot = &forgetting{}
			e.settle(t.Context(), s)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, client := cluster(t, fourSubnets)
			_, e, held := holder(t)
			p := etcdproxy.Start(t, s.Endpoint)
			e.client = etcdtest.Client(t, p.URL())
			n := network(t, fourSubnets)
			e.network = &n
			kept := p.CommitLate(2, c.writes, etcdproxy.Fail)
			seen, err := list(t.Context(), client, newMirror(e.keys), maxCall)
			if err != nil {
				t.Fatal(err)
			}
			c.try(e, held, seen)
			c.try(e, held, seen)
			if l, err := client.Leases(t.Context()); err != nil || len(l.Leases) != 1 || kept.Hits() != 2 {
				t.Errorf("after %d tries there are the leases %q, %v", kept.Hits(), leasesOf(l), err)
			}
		})
	}
}

// TestNumberDoesNotGoBack with the store: the own key is found as it was before
// this node came to own the subnet by a later number.
func TestNumberDoesNotGoBack(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, strings.Replace(fourSubnets, "5s", "60s", 1))
	h, e, held := holder(t)
	e.client = c
	n := network(t, strings.Replace(fourSubnets, "5s", "60s", 1))
	e.network = &n
	put(t, c, e.keys.Subnet(held.subnets), holding(Tenant{Node: "n1", UID: held.record.Tenant().UID, Boot: h.boot, Epoch: 5}), clientv3.WithLease(granted(t, c)))
	seen, err := list(t.Context(), c, newMirror(e.keys), maxCall)
	if err != nil {
		t.Fatal(err)
	}
	entry, _ := seen.Entry(held.subnets)
	e.retake(t.Context(), held, entry, seen)
	kv := etcdtest.Get(t, c, e.keys.Subnet(held.subnets)).Kvs[0]
	if r, err := DecodeRecord(kv.Value); err != nil || r.Tenant().Epoch != held.Epoch() || clientv3.LeaseID(kv.Lease) != entry.Lease {
		t.Errorf("the record is %+v under %x, %v; the number was %d", r.Tenant(), kv.Lease, err, held.Epoch())
	}
}

// TestBirthComparesWhatItRead: every write of it.
func TestBirthComparesWhatItRead(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	k := NewKeys(prefix)
	mod := func(key string) int64 { return etcdtest.Get(t, c, key).Kvs[0].ModRevision }
	remove := func(key string) {
		if _, err := c.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	config, store := mod(k.Config()), mod(k.Store())
	for name, f := range map[string]fenced{
		"birth":       birth(k, []byte(fourSubnets), Store{ID: "late"}, fenced{}),
		"adopt":       adopt(k, config, Store{ID: "late"}, fenced{}),
		"reconfigure": reconfigure(k, store, []byte(tenSeconds), fenced{}),
	} {
		if succeeds(t, c, f) {
			t.Errorf("%s: written over a born cluster", name)
		}
	}
	remove(k.Store())
	if succeeds(t, c, adopt(k, config-1, Store{ID: "late"}, fenced{})) {
		t.Error("a store was added to another config than the one that was read")
	}
	put(t, c, k.Store(), `{"ID":"another"}`)
	remove(k.Config())
	if succeeds(t, c, reconfigure(k, store, []byte(tenSeconds), fenced{})) {
		t.Error("a config was written into another store than the one that was read")
	}
	settle, err := settleOver(k, granted(t, c), Settle{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := complete(t.Context(), c, k, settle); err != nil {
		t.Fatal(err)
	}
	// From here on settle stands, which none of these has read.
	remove(k.Store())
	for name, f := range map[string]fenced{
		"settle alone": settle,
		"birth":        birth(k, []byte(fourSubnets), Store{ID: "late"}, settle),
	} {
		if err := complete(t.Context(), c, k, f); !errors.Is(err, errLostRace) {
			t.Errorf("%s: settle was put over one that was not read: %v", name, err)
		}
	}
	put(t, c, k.Config(), fourSubnets)
	if succeeds(t, c, adopt(k, mod(k.Config()), Store{ID: "late"}, settle)) {
		t.Error("adopt: settle was put over one that was not read")
	}
	put(t, c, k.Store(), `{"ID":"another"}`)
	remove(k.Config())
	if succeeds(t, c, reconfigure(k, mod(k.Store()), []byte(fourSubnets), settle)) {
		t.Error("reconfigure: settle was put over one that was not read")
	}
}

// TestInitBesideANodesSettle: while init --after-loss is on its way to a wiped
// store, a node that knows of longer leases puts settle. The cluster is born,
// and the longer settle stands.
func TestInitBesideANodesSettle(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t)
	c, k := s.Client(t), NewKeys(prefix)
	p := etcdproxy.Start(t, s.Endpoint)
	through := etcdtest.Client(t, p.URL())
	birth := p.Delay(1, etcdproxy.Puts(k.Store()), etcdproxy.Request, 2*time.Second)
	done := make(chan error, 1)
	var born Born
	go func() {
		var err error
		born, err = InitAfterLoss(t.Context(), through, prefix, []byte(fourSubnets), 5*time.Second)
		done <- err
	}()
	eventually(t, "the birth on its way", func() bool { return birth.Hits() == 1 })
	long := newLeaseID()
	if _, err := grant(t.Context(), c, long, time.Hour, maxCall); err != nil {
		t.Fatal(err)
	}
	put(t, c, k.Settle(), "x", clientv3.WithLease(long))
	if err := <-done; err != nil || !born.Created || !born.Settling || born.Settle < 59*time.Minute {
		t.Errorf("%+v, %v", born, err)
	}
	kvs := etcdtest.Get(t, c, k.Settle()).Kvs
	if len(kvs) != 1 || clientv3.LeaseID(kvs[0].Lease) != long {
		t.Errorf("settle is %v, want the longer one under %x", kvs, long)
	}
}

// TestStand: how what a list shows relates to what is held.
func TestStand(t *testing.T) {
	t.Parallel()
	_, _, held := holder(t)
	past := []Transition{{UID: "you", Node: "n2", Epoch: 6}}
	of := func(f func(*Entry)) []Entry {
		e := held.foreign(12)
		f(&e)
		return []Entry{e}
	}
	for name, c := range map[string]struct {
		entries []Entry
		want    standing
	}{
		"own":                     {[]Entry{held.entry()}, ours},
		"own under another lease": {of(func(e *Entry) { e.Tenure = held.record.Tenure }), moved},
		"none":                    {nil, gone},
		"of the owner before":     {of(func(e *Entry) { e.Tenure.Epoch = 6 }), earlier},
		"of that owner, later":    {of(func(e *Entry) { e.Tenure.Epoch = 8 }), foreign},
		"a stranger's":            {of(func(e *Entry) { e.Tenure.UID = "they" }), foreign},
		"an overlapping one":      {of(func(e *Entry) { e.Subnets = v4("10.5.0.0/23") }), foreign},
		"another subnet":          {of(func(e *Entry) { e.Subnets = v4("10.5.2.0/24") }), gone},
	} {
		if got, _ := stand(held.Holding, past, shown(12, true, c.entries...)); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestOwnersBefore are those of the ownership that is held, not of one of its own
// earlier or later ones.
func TestOwnersBefore(t *testing.T) {
	t.Parallel()
	_, _, held := holder(t)
	own := held.record.Tenant()
	before := Owner{Transition: Transition{UID: own.UID, Epoch: 5}, History: []Transition{{UID: "you", Epoch: 4}}}
	now := before.succeed(Transition{UID: own.UID, Epoch: own.Epoch})
	if len(now.History) != 2 || now.History[1].Epoch != 5 {
		t.Errorf("an ownership by a later number came after %+v", now.History)
	}
	for name, o := range map[string]Owner{"this one": now, "an earlier one": before} {
		s := shown(12, true)
		s.Owners = map[string]Versioned[Owner]{held.subnets.ownerKey(): {o, 3}}
		want := name == "this one"
		if got := s.before(held.Holding, nil); (len(got) == 2) != want || !want && got != nil {
			t.Errorf("%s: the owners before are %+v", name, got)
		}
	}
}

// TestNothingIsStrandedByAReboot: no pod outlives a boot.
func TestNothingIsStrandedByAReboot(t *testing.T) {
	t.Parallel()
	for _, rebooted := range []bool{false, true} {
		h, e, held := holder(t)
		e.remember(held.Holding)
		if rebooted {
			h.boot = "later"
		}
		later := h.engine()
		later.fence = h.fence
		later.notResumed("the test says so")
		if former := later.lostSubnet(); former.IsZero() != rebooted {
			t.Errorf("rebooted %t: pods are stranded on %s", rebooted, former)
		}
	}
}

// denying is a connection to an etcd that shows keys under leases which it denies
// to know: they have run out, and their keys have yet to go.
type denying struct{ grpc.ClientStream }

func (d denying) RecvMsg(m any) error {
	err := d.ClientStream.RecvMsg(m)
	if r, ok := m.(*pb.LeaseKeepAliveResponse); ok {
		r.TTL = 0
	}
	return err
}

// TestDeniedLeaseIsNotResumedAgain and again: its key is left to go.
func TestDeniedLeaseIsNotResumedAgain(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h, e, held := holder(t)
	client, err := Dial(conf.Etcd{Endpoints: []string{s.Endpoint}}, grpc.WithChainStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := next(ctx, desc, cc, method, opts...)
			return denying{stream}, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	e.client, e.held, e.known = client, nil, Life{}
	lease := granted(t, c)
	put(t, c, e.keys.Subnet(held.subnets), holding(held.record.Tenant()), clientv3.WithLease(lease))
	for range mostDenials {
		if h.fence.Get().Closed != 0 {
			t.Error("a member that does not know the lease is believed at once")
		}
		e.look(t.Context())
	}
	e.look(t.Context())
	if n := h.log.lines("resuming own subnet"); n != mostDenials || h.fence.Get().Closed == 0 {
		t.Errorf("resumed %d times, closed %d times", n, h.fence.Get().Closed)
	}
	if kvs := etcdtest.Get(t, c, e.keys.Subnet(held.subnets)).Kvs; len(kvs) != 1 || kvs[0].Version != 1 || clientv3.LeaseID(kvs[0].Lease) != lease {
		t.Errorf("the key was touched: %v", kvs)
	}
}
