package lease

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// The term of an etcd with one member grows whenever it is started anew. A node
// that asks at several addresses cannot know that there is no other leader.

// several makes engines ask at two addresses, which are one.
func (h *host) several() *host {
	h.via = conf.Etcd{Endpoints: []string{h.endpoint, h.endpoint}}
	return h
}

// gone waits for the end of a lease.
func (d *daemon) gone(c *clientv3.Client, id clientv3.LeaseID) {
	d.t.Helper()
	d.wait("the old lease to end", func(View) bool {
		resp, err := c.TimeToLive(d.t.Context(), id)
		return err == nil && resp.TTL <= 0
	})
}

// provesOn waits for two more proofs.
func (d *daemon) provesOn() View {
	d.t.Helper()
	proofs := d.Counts().Proofs
	d.Touch()
	return d.wait("two more proofs", func(View) bool { return d.Counts().Proofs > proofs+1 })
}

// sameTenancy says that v and w are one ownership, by the record that made it.
func sameTenancy(v, w View) bool {
	return v.Held && w.Held && v.Holding.Subnets() == w.Holding.Subnets() && v.Holding.create == w.Holding.create && v.Holding.Epoch() == w.Holding.Epoch()
}

// writes is how often the key of what v shows was written since it was made.
func writes(t *testing.T, c *clientv3.Client, v View) int64 {
	t.Helper()
	kvs := etcdtest.Get(t, c, NewKeys(prefix).Subnet(v.Holding.Subnets())).Kvs
	if len(kvs) != 1 {
		t.Fatalf("the key of %s is gone", v.Holding.Subnets())
	}
	return kvs[0].Version
}

// TestLeaderChange: under another leader the key moves to a lease which that one
// grants, the fence is open all along, and it is for one change one move.
func TestLeaderChange(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, tenSeconds)
	h := newHost(t, "n1", s.Endpoint).several()
	d := h.start()
	before := d.waitHeld()
	stop := h.openAllAlong()
	s.Stop()
	s.Restart(t)
	c := s.Client(t)
	after := d.wait("another lease", func(v View) bool {
		return v.State == api.StateHeld && v.Holding.LeaseID() != before.Holding.LeaseID()
	})
	if !sameTenancy(before, after) {
		t.Errorf("holds %s of revision %d, held %s of %d", after.Holding.Subnets(), after.Holding.create, before.Holding.Subnets(), before.Holding.create)
	}
	d.gone(c, before.Holding.LeaseID())
	d.provesOn()
	stop()
	if v := d.View(); v.Holding.LeaseID() != after.Holding.LeaseID() {
		t.Error("the key moved once more")
	}
	if n := writes(t, c, before); n != 2 {
		t.Errorf("the key was written %d times, want once by each lease", n)
	}
}

// TestDeadlineStandsUnderAnotherLeader, however often its lease is renewed there,
// until the key has moved.
func TestDeadlineStandsUnderAnotherLeader(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, tenSeconds)
	p := etcdproxy.Start(t, s.Endpoint)
	h := newHost(t, "n1", p.URL()).several()
	d := h.start()
	before := d.waitHeld()
	silent := p.DropReply(etcdproxy.Always, grants(), etcdproxy.Silence)
	s.Stop()
	s.Restart(t)
	renewed := d.Counts().Cycles[CycleProven]
	d.wait("a proof by the next leader", func(v View) bool { return d.Counts().Cycles[CycleProven] > renewed && v.LastProof > before.LastProof })
	f, _ := h.fence.Deadline()
	d.wait("more of them", func(View) bool { return d.Counts().Cycles[CycleProven] > renewed+1 })
	if now, _ := h.fence.Deadline(); now != f || !d.View().Held {
		t.Errorf("F went from %s to %s without a new lease", f, now)
	}
	silent.Remove()
	after := d.wait("another lease", func(v View) bool { return v.Held && v.Holding.LeaseID() != before.Holding.LeaseID() })
	d.wait("F to move on", func(v View) bool { return v.Deadline > f })
	if !sameTenancy(before, after) {
		t.Error("the tenancy did not outlive the move")
	}
}

// TestOneMember is its own successor: nothing is written when it was started
// anew.
func TestOneMember(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, tenSeconds)
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	before := d.waitHeld()
	s.Stop()
	s.Restart(t)
	d.wait("F to move on", func(v View) bool { return v.State == api.StateHeld && v.Deadline > before.Deadline })
	d.provesOn()
	if n := writes(t, s.Client(t), before); n != 1 {
		t.Errorf("the key was written %d times", n)
	}
}

// TestMoveWithoutSpace: an etcd that takes no writes gives the subnet to nobody
// else, so F moves on under the old lease; with space, the key moves.
func TestMoveWithoutSpace(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, tenSeconds)
	h := newHost(t, "n1", s.Endpoint).several()
	d := h.start()
	before := d.waitHeld()
	stop := h.openAllAlong()
	alarm(t, c, pb.AlarmRequest_ACTIVATE)
	s.Stop()
	s.Restart(t)
	// By then it could not have opened on the word of the leader of before.
	d.wait("F to move on", func(v View) bool { return v.Deadline > before.Deadline+before.Holding.TTL() })
	if v := d.View(); v.Holding.LeaseID() != before.Holding.LeaseID() || hasProblem(v, "etcd-refuses") {
		t.Errorf("under lease %x, before %x; %v", v.Holding.LeaseID(), before.Holding.LeaseID(), v.Problems)
	}
	alarm(t, s.Client(t), pb.AlarmRequest_DEACTIVATE)
	after := d.wait("another lease", func(v View) bool {
		return v.State == api.StateHeld && v.Holding.LeaseID() != before.Holding.LeaseID() && !hasProblem(v, "etcd-refuses")
	})
	stop()
	if !sameTenancy(before, after) {
		t.Error("the tenancy did not outlive the move")
	}
}

// TestRestartBetweenLeaders: a daemon knows from node.json under which leader its
// lease was granted, and goes on without a write if that one leads. Of what it
// does not know it thinks the worst; where the fence is closed it opens under the
// new lease alone.
func TestRestartBetweenLeaders(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ forgets, closed, moves bool }{
		"the same leader": {},
		"who knows":       {forgets: true, moves: true},
		"closed":          {closed: true, moves: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, client := cluster(t, tenSeconds)
			h := newHost(t, "n1", s.Endpoint).several()
			d := h.start()
			before := d.waitHeld()
			d.stop()
			if c.forgets {
				h.forgetsTerms()
			}
			if c.closed {
				h.fence.Do(func(f *kept) { f.Deadline = 0 })
			}
			d = h.start()
			after := d.wait("held", func(v View) bool {
				return v.State == api.StateHeld && v.LastProof != 0 && (v.Holding.LeaseID() != before.Holding.LeaseID()) == c.moves
			})
			if !sameTenancy(before, after) {
				t.Error("the tenancy did not outlive the restart")
			}
			if n, want := writes(t, client, before), map[bool]int64{true: 2, false: 1}[c.moves]; n != want {
				t.Errorf("the key was written %d times, want %d", n, want)
			}
			if c.moves {
				d.gone(client, before.Holding.LeaseID())
			}
		})
	}
}

// forgetsTerms makes node.json one of an earlier version.
func (h *host) forgetsTerms() {
	h.t.Helper()
	m, err := OpenMemory(h.dir, "")
	if err != nil {
		h.t.Fatal(err)
	}
	if m.Get().Held.Term == 0 {
		h.t.Fatal("there is no term in node.json")
	}
	if err := m.Update(func(m Memory) Memory {
		held := *m.Held
		held.Term, m.Held = 0, &held
		return m
	}); err != nil {
		h.t.Fatal(err)
	}
}

// TestMoveWhileSettling is for those whose fence is open, or it would close before
// settle is gone.
func TestMoveWhileSettling(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, tenSeconds)
	for _, open := range []bool{true, false} {
		h, e, held := holder(t)
		lease := granted(t, c)
		h2 := holdingOn(t, c, lease)
		e.client, e.settling = c, true
		e.held = &tenancy{Holding: h2, deadline: held.deadline, lastProof: held.lastProof}
		h.fence.Do(func(f *kept) { f.Live = h2.subnets })
		if !open {
			h.fence.Do(func(f *kept) { f.Deadline = 0 })
			e.held.deadline = 0
		}
		n := network(t, tenSeconds)
		e.network, e.moveAt = &n, 1
		e.terms.now = etcdtest.Get(t, c, "/").Header.RaftTerm
		put(t, c, e.keys.Settle(), "x")
		e.rebind(t.Context(), time.Minute)
		kvs := etcdtest.Get(t, c, e.keys.Subnet(h2.subnets)).Kvs
		if moved := len(kvs) == 1 && clientv3.LeaseID(kvs[0].Lease) != lease; moved != open {
			t.Errorf("open %t: moved %t", open, moved)
		}
		if open && e.moveAt != 0 {
			t.Error("the next move is due already")
		}
		if _, err := c.Delete(t.Context(), e.keys.Settle()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Delete(t.Context(), e.keys.Subnet(h2.subnets)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLaterMoves are spread over a sixth of the lease, unless the deadline is near;
// a cycle tells of it, and the next comes in time.
func TestLaterMoves(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	seen := map[time.Duration]bool{}
	for range 100 {
		in := moveIn(day, day-time.Minute)
		if in < 0 || in > 4*time.Hour {
			t.Fatalf("moves in %s", in)
		}
		seen[in.Truncate(time.Hour)] = true
		if in := moveIn(day, day/2-1); in != 0 {
			t.Fatalf("with the deadline near, moves in %s", in)
		}
	}
	if len(seen) < 3 {
		t.Errorf("of a hundred, all in %v", seen)
	}
	_, e, held := holder(t)
	held.ttl, held.deadline = day, bootClock()+day
	e.terms.now = 3
	if in, other := e.toMove(held); !other || in > 4*time.Hour {
		t.Errorf("moves in %s, %t", in, other)
	}
	first := e.moveAt
	if _, other := e.toMove(held); !other || e.moveAt != first {
		t.Error("the time of the move changed")
	}
	e.terms.remember(held.lease, 3)
	if _, other := e.toMove(held); other {
		t.Error("moves although its leader leads")
	}
}

// TestTermsAreOfOneStore: in another one, the same number is another leader's.
func TestTermsAreOfOneStore(t *testing.T) {
	t.Parallel()
	_, e, held := holder(t)
	e.terms.remember(held.lease, 3)
	e.heard(3, bootClock(), 0)
	e.meet(Life{Store: "s", Cluster: 7, Revision: 11})
	if !e.underItsLeader(held.Holding) {
		t.Error("forgotten in the same store")
	}
	e.meet(Life{Store: "s", Cluster: 8, Revision: 11})
	e.heard(3, bootClock(), 0)
	if e.underItsLeader(held.Holding) {
		t.Error("a restored store has the leader of the one before")
	}
	// To whom it does not look like another store, settle tells.
	e.terms.remember(held.lease, 3)
	e.heard(3, bootClock(), 20)
	if e.underItsLeader(held.Holding) {
		t.Error("a store that settles has the leader of the one before")
	}
	e.terms.remember(held.lease, 3)
	e.heard(3, bootClock(), 20)
	if !e.underItsLeader(held.Holding) {
		t.Error("what was read since it settles is forgotten")
	}
}

// TestClosedFenceKnowsNoOldTerm: while it was closed, and etcd was not asked, the
// store may have been restored, and settled.
func TestClosedFenceKnowsNoOldTerm(t *testing.T) {
	t.Parallel()
	h, e, held := holder(t)
	now := bootClock()
	for _, c := range []struct {
		open   bool
		at     time.Duration
		counts bool
	}{
		{true, now - 2*held.ttl, true},
		{false, now, true},
		{false, now - held.ttl + Margin(held.ttl) + 5*time.Second, true},
		{false, now - held.ttl + Margin(held.ttl), false},
		{false, 0, false}, // of another process, of another boot perhaps
		{true, 0, true},
	} {
		h.fence.Do(func(f *kept) {
			if f.Deadline = 0; c.open {
				f.Deadline = now + time.Minute
			}
		})
		e.terms.at = c.at
		e.terms.remember(held.lease, 3)
		e.heard(3, now, 0)
		if got := e.underItsLeader(held.Holding); got != c.counts {
			t.Errorf("open %t, asked last at %s, now %s: counts %t", c.open, c.at, now, got)
		}
	}
}

// TestTermIsReadBeforeTheLeaseIsAskedFor: one that was asked for under the leader
// of before is given back, and another one asked for.
func TestTermIsReadBeforeTheLeaseIsAskedFor(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	_, e, _ := holder(t)
	e.client, e.terms.now = c, 3
	id := e.nextLease(t.Context(), time.Minute)
	if again := e.nextLease(t.Context(), time.Minute); again != id {
		t.Errorf("lease %s, then %s, under one leader", leaseHex(id), leaseHex(again))
	}
	if _, err := grant(t.Context(), c, id, time.Minute, maxCall); err != nil {
		t.Fatal(err)
	}
	e.terms.now = 4
	if again := e.nextLease(t.Context(), time.Minute); again == id || !e.terms.same(again) {
		t.Errorf("lease %s is taken for one of the present leader", leaseHex(again))
	}
	if resp, err := c.TimeToLive(t.Context(), id); err != nil || resp.TTL > 0 {
		t.Errorf("the lease of before has %d s left, %v", resp.TTL, err)
	}
}

// TestMemberThatHasFallenBehind: an answer of a lower term counts for nothing, and
// is no news of another leader.
func TestMemberThatHasFallenBehind(t *testing.T) {
	t.Parallel()
	_, e, held := holder(t)
	e.heard(4, bootClock(), 0)
	e.terms.remember(held.lease, 4)
	if !e.mayMoveOn(held.Holding) {
		t.Error("the leader of the lease does not count")
	}
	e.heard(3, bootClock(), 0)
	if e.mayMoveOn(held.Holding) {
		t.Error("the proof of a member that has fallen behind counts")
	}
	if _, other := e.toMove(held); other || e.moveAt != 0 {
		t.Error("the key moves back to the leader of before")
	}
	id := e.terms.newLease()
	if e.heard(4, bootClock(), 0); !e.terms.same(id) || !e.mayMoveOn(held.Holding) {
		t.Error("what was known is forgotten")
	}
}

// TestSlowMoves: where etcd takes a second for each answer a node gets its subnet,
// keeps it, and moves no more than it must, with the shortest lease too.
func TestSlowMoves(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, fourSubnets)
	p := etcdproxy.Start(t, s.Endpoint)
	p.Delay(etcdproxy.Always, func(method string, _ any) bool {
		return strings.HasPrefix(method, "/etcdserverpb.KV/") || strings.HasPrefix(method, "/etcdserverpb.Lease/")
	}, etcdproxy.Request, time.Second)
	h := newHost(t, "n1", p.URL()).several()
	d := h.start()
	v := d.waitHeld()
	w := d.provesOn()
	if !sameTenancy(v, w) || v.Holding.LeaseID() != w.Holding.LeaseID() || h.log.lines("own key moved") > 1 {
		t.Errorf("lease %x after %x, moved %d times", w.Holding.LeaseID(), v.Holding.LeaseID(), h.log.lines("own key moved"))
	}
}

// TestOneMoveInAStep: where every answer comes too late to count, the loop comes
// round all the same.
func TestOneMoveInAStep(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	_, e, held := holder(t)
	n := network(t, fourSubnets)
	e.client, e.network, e.begun = c, &n, true
	if pause := e.beginMove(t.Context(), held, n, time.Minute); pause <= 0 || e.moving != nil || e.spare != 0 {
		t.Errorf("a second move after %s", pause)
	}
}

// TestKeyThatCannotMove: status says so before the overlay closes, and no more
// once it has moved.
func TestKeyThatCannotMove(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, tenSeconds)
	p := etcdproxy.Start(t, s.Endpoint)
	h := newHost(t, "n1", p.URL()).several()
	d := h.start()
	before := d.waitHeld()
	late := p.DropReply(etcdproxy.Always, etcdproxy.PutsBelow(NewKeys(prefix).subnets()), etcdproxy.Fail)
	grantsToo := p.DropReply(etcdproxy.Always, grants(), etcdproxy.Fail)
	s.Stop()
	s.Restart(t)
	d.wait("the problem", func(v View) bool { return hasProblem(v, leaseStays) && bootClock() < v.Deadline })
	late.Remove()
	grantsToo.Remove()
	after := d.wait("moved", func(v View) bool {
		return v.State == api.StateHeld && v.Holding.LeaseID() != before.Holding.LeaseID() && !hasProblem(v, leaseStays)
	})
	if !sameTenancy(before, after) {
		t.Error("the tenancy did not outlive the move")
	}
}

// TestSpaceIsAskedForAnew: that it lacked counts for the leader who said so, and
// for two intervals.
func TestSpaceIsAskedForAnew(t *testing.T) {
	t.Parallel()
	_, e, held := holder(t)
	e.heard(3, bootClock(), 0)
	for name, c := range map[string]struct {
		full fullness
		want bool
	}{
		"just now":       {fullness{3, bootClock()}, true},
		"another leader": {fullness{2, bootClock()}, false},
		"long ago":       {fullness{3, bootClock() - 2*Interval(held.ttl)}, false},
		"never":          {fullness{}, false},
	} {
		if e.full = c.full; e.mayMoveOn(held.Holding) != c.want {
			t.Errorf("%s: %t", name, !c.want)
		}
	}
}

// TestRestartWhileSettling says what it waits for, behind a closed fence.
func TestRestartWhileSettling(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, tenSeconds)
	h := newHost(t, "n1", s.Endpoint).several()
	d := h.start()
	d.waitHeld()
	d.stop()
	put(t, c, NewKeys(prefix).Settle(), `{"Node":"x"}`)
	h.fence.Do(func(f *kept) { f.Deadline = bootClock() - time.Second })
	d = h.start()
	d.wait("what it waits for", func(v View) bool {
		return v.State == api.StateFenced && strings.Contains(v.Reason, errSettling.Error())
	})
	if _, err := c.Delete(t.Context(), NewKeys(prefix).Settle()); err != nil {
		t.Fatal(err)
	}
	d.waitHeld()
}

// TestOwnSettleIsNoNews: who has put it himself knows the store that settles.
func TestOwnSettleIsNoNews(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, tenSeconds)
	h := newHost(t, "n1", s.Endpoint).several()
	d := h.start()
	v := d.waitHeld()
	stop := h.openAllAlong()
	if _, err := c.Delete(t.Context(), "/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	w := d.wait("put back", func(w View) bool { return w.Held && w.Holding.create > v.Holding.create && w.LastProof > v.LastProof })
	d.provesOn()
	stop()
	if n := writes(t, c, w); n != 1 {
		t.Errorf("the key was written %d times, want once", n)
	}
}

// TestGRPCProxy: etcd's own proxy says that it is the only member, of however many.
func TestGRPCProxy(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, tenSeconds)
	h := newHost(t, "n1", "http://"+grpcProxy(t, c))
	d := h.start()
	before := d.waitHeld()
	if list, err := d.Client().MemberList(t.Context()); err != nil || len(list.Members) != 1 {
		t.Fatalf("members behind the proxy: %v, %v", list, err)
	}
	s.Stop()
	s.Restart(t)
	after := d.wait("another lease", func(v View) bool { return v.State == api.StateHeld && v.Holding.LeaseID() != before.Holding.LeaseID() })
	if !sameTenancy(before, after) {
		t.Error("the tenancy did not outlive the move")
	}
}

// grpcProxy is etcd's grpc-proxy before a client's etcd, with its own defaults.
func grpcProxy(t *testing.T, c *clientv3.Client) (addr string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	srv, log := grpc.NewServer(), zap.NewNop()
	kv, _ := grpcproxy.NewKvProxy(c)
	watch, _ := grpcproxy.NewWatchProxy(ctx, log, c)
	members, _ := grpcproxy.NewClusterProxy(log, c, "127.0.0.1:23790", "")
	leases, _ := grpcproxy.NewLeaseProxy(ctx, c)
	pb.RegisterKVServer(srv, kv)
	pb.RegisterWatchServer(srv, watch)
	pb.RegisterClusterServer(srv, members)
	pb.RegisterLeaseServer(srv, leases)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { cancel(); srv.Stop(); <-done })
	return ln.Addr().String()
}
