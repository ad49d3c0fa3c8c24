package lease

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
)

// resume goes on with a key that is this node's own: no write, a cycle.
func (e *Engine) resume(ctx context.Context, own Entry) time.Duration {
	var ttl time.Duration
	if h := e.tenancy(); h != nil {
		ttl = h.ttl
	}
	h, err := NewHolding(e.keys, own, ttl)
	if err != nil {
		e.log.Error("own key cannot be resumed", "error", err)
		return jitter(retryWaiting)
	}
	e.log.Info("resuming own subnet", "subnet", h.subnets, "lease", leaseHex(h.lease), "epoch", h.Epoch())
	return e.take(ctx, h)
}

// take makes h the tenancy and proves it at once.
func (e *Engine) take(ctx context.Context, h Holding) time.Duration {
	n := e.inForce()
	if n == nil {
		return e.waitFor("own subnet " + h.subnets.String() + " is in etcd, but no usable network config, there or in node.json")
	}
	e.cfg.at("before the subnet is set")
	if err := e.fence.Set(h.subnets, networkPair(*n)); err != nil {
		e.log.Error("the fence does not take the subnet, it stays closed", "subnet", h.subnets, "error", err)
		e.problem(api.SeverityError, fenceRefuses, "the kernel fence refused subnet "+h.subnets.String()+": "+err.Error(),
			"look at the log; the overlay stays closed until this succeeds")
		return jitter(time.Second)
	}
	e.cfg.at("after the subnet was set")
	e.clear(fenceRefuses)
	t := tenancy{Holding: h, unproven: errRestarted, since: time.Now()}
	var before clientv3.LeaseID // nothing hangs on it any more
	if e.inheriting == h.lease {
		before = e.inherited
	}
	e.copied, e.inheriting, e.inherited, e.moveAt = false, 0, 0, 0
	if e.unused == h.lease {
		e.unused = 0
	}
	e.update(func() {
		var err error
		if t.deadline, err = e.fence.Deadline(); err != nil {
			e.log.Warn("the fence cannot be read", "error", err)
		}
		if old := e.held; old != nil && old.lease == h.lease && old.failing() {
			t.unproven, t.since = old.unproven, old.since // to have read the key again proves nothing
		}
		e.held, e.started, e.waiting, e.former, e.conflict = &t, true, "", Subnets{}, ""
		if e.snapshot != nil && e.forgot == nil {
			e.past = e.snapshot.before(h, e.past)
		}
		delete(e.problems, duplicateNode)
		if e.ended == h.lease {
			e.ended = 0
		}
		if e.comingLocked(h.lease) {
			e.moving, e.asserting = nil, 0
		}
		delete(e.problems, noFreeSubnet)
		delete(e.problems, etcdRefuses)
		delete(e.problems, leaseStays)
	})
	select {
	case <-e.wake: // whatever it was about, the cycle that follows answers it
	default:
	}
	e.remember(h)
	pause := e.renew(ctx, t)
	e.dropLease(ctx, before)
	return pause
}

// renew runs one cycle and acts on its verdict.
func (e *Engine) renew(ctx context.Context, t tenancy) time.Duration {
	e.keepNetwork(t)
	gen := e.fence.Generation()
	limit, err := e.keepMoving(ctx, t)
	if err != nil {
		return e.unanswered(ctx, t, err)
	}
	e.recall()
	v := cycle(ctx, asking{e.client}, t.Holding, t.deadline, e.cfg.Clock, e.cfg.Step)
	e.counts.cycle(v)
	if v = e.believe(v); v.answered && e.meet(v.life) {
		return jitter(firstRetry) // a list shows what to make of it
	}
	if v.answered {
		e.heard(v.term, v.asked, v.settle)
	}
	if v.answered && v.settle != 0 {
		e.overlooked()
	}
	switch {
	case v.lost != "" && e.moving != nil && v.entry.Lease == e.moving.lease && v.entry.Tenant() == t.record.Tenant():
		return e.moved(ctx, t, v.entry)
	case v.lost != "" && (e.unsettled() || v.settle != 0):
		e.update(func() { e.settling = e.settling || v.settle != 0 })
		if v.entry.Lease == t.lease && !e.open() {
			e.lose(v.lost) // nothing is left to wait for
		}
		return jitter(firstRetry)
	case v.lost != "":
		e.lose(v.lost)
		if t.lastProof == 0 {
			// It was never proven: etcd shows the key under a lease that it
			// denies. The key is left to lapse.
			e.dead[t.lease] = true
			return jitter(time.Second)
		}
		return 0
	case v.err != nil:
		return e.unanswered(ctx, t, v.err)
	}
	e.recognise(ctx, v.holding)
	if !e.mayMoveOn(v.holding) && !e.open() {
		return e.moveFirst(ctx, t, v)
	}
	v.deadline = min(v.deadline, limit)
	if !e.proven(gen, t, v) {
		return retryUnproven(t.ttl)
	}
	e.publish(ctx)
	e.keepMemory(v.holding)
	// From one question to the next: what an answer takes is no time won.
	next := jitter(Interval(v.holding.ttl)) - (e.cfg.Clock() - v.t0)
	return e.rebind(ctx, max(next, minInterval))
}

// mostDenials is how often in a row a lease may be denied on which the key hangs.
const mostDenials = 3

// believe makes a loss of a lease that is denied again and again: of a member that
// has fallen behind others are asked meanwhile, and it catches up.
func (e *Engine) believe(v verdict) verdict {
	if !v.denied {
		e.denials = 0
		return v
	}
	if e.denials++; e.denials < mostDenials {
		return v
	}
	e.denials = 0
	v.lost, v.err = fmt.Sprintf("etcd does not know lease %s, and shows the key on it", leaseHex(v.holding.lease)), nil
	return v
}

// unanswered is the end of a cycle that concluded nothing.
func (e *Engine) unanswered(ctx context.Context, t tenancy, err error) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	e.unproven(t, err)
	return min(Interval(t.ttl), jitter(retryUnproven(t.ttl)))
}

// retryUnproven is the pause after a cycle without an answer: short against
// the TTL, so that a short outage leaves several tries before the deadline.
func retryUnproven(ttl time.Duration) time.Duration {
	return min(max(ttl/10, 200*time.Millisecond), 5*time.Second)
}

// proven arms the fence, unless the tenancy was lost while the cycle ran, or the
// proof does not count: then it is false.
func (e *Engine) proven(gen uint64, t tenancy, v verdict) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held == nil || e.held.lease != t.lease || e.held.create != t.create {
		return false
	}
	if !e.open() && !counts(e.forgot != nil, v.settle, e.held.settle) {
		e.unprovenLocked(t, errSettling)
		return false
	}
	if !e.mayMoveOn(v.holding) {
		v.deadline = min(v.deadline, e.held.deadline)
	}
	e.cfg.at("before the fence is armed")
	if err := e.fence.Arm(gen, v.deadline); err != nil {
		e.log.Warn("the fence was not armed", "error", err)
		return false
	}
	e.cfg.at("after the fence was armed")
	e.counts.armed.Add(1)
	if t.lastProof == 0 || t.unproven != nil {
		e.log.Info("subnet proven", "subnet", v.holding.subnets, "lease", leaseHex(v.holding.lease),
			"epoch", v.holding.Epoch(), "ttl", v.holding.ttl)
	}
	e.held = &tenancy{Holding: v.holding, deadline: v.deadline, lastProof: v.t0, settle: v.settle}
	if e.doubt != nil && v.t0 >= e.doubt.since {
		e.doubt = nil
	}
	delete(e.problems, contested)
	e.reachableLocked()
	e.signal()
	return true
}

// keepNetwork tells the fence the network in force, in case it could not be told
// when that changed. Where nothing differs it does nothing.
func (e *Engine) keepNetwork(t tenancy) {
	e.update(func() {
		if n := e.network; n != nil {
			e.noteToldLocked(*n, e.fence.Set(t.subnets, networkPair(*n)))
		}
	})
}

// counts says whether a proof may open a closed fence. Out of a store that
// forgot it may not before settle is gone: another's fence may be open on the
// same subnet. That it forgot is not always to be seen: to a node that was away
// since before the backup all is as it was. So where settle stands, a proof
// counts only if this very settle stood at the last proof already; the key has
// been this node's ever since.
func counts(forgot bool, settle, before int64) bool {
	return !forgot && (settle == 0 || settle == before)
}

var errSettling = errors.New("the store forgot what it knew, and no proof counts while settle stands")

// unproven notes that a cycle concluded nothing: the deadline stands.
func (e *Engine) unproven(t tenancy, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unprovenLocked(t, err)
	if e.doubt != nil && e.doubt.soft {
		e.doubt = nil
	}
	e.unreachableLocked(err)
	e.signal()
}

func (e *Engine) unprovenLocked(t tenancy, err error) {
	if e.held == nil || e.held.lease != t.lease {
		return
	}
	next := *e.held
	if next.unproven == nil || errors.Is(next.unproven, errRestarted) {
		next.since = time.Now()
		e.log.Warn("no proof from etcd, the deadline stands", "subnet", t.subnets,
			"remaining", max(0, t.deadline-e.cfg.Clock()).Round(time.Millisecond), "error", err)
	}
	next.unproven = err
	e.held = &next
	e.signal()
}

// lose closes the fence first and then forgets the tenancy.
func (e *Engine) lose(why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.loseLocked(why)
}

func (e *Engine) loseLocked(why string) {
	if e.held == nil {
		return
	}
	e.cfg.at("before the fence is closed")
	if err := e.fence.Close(); err != nil {
		// The deadline in the kernel still closes it; nothing opens it again.
		e.log.Error("the fence could not be closed, it closes by itself at its deadline", "error", err)
	}
	e.log.Error("subnet lost, overlay closed", "subnet", e.held.subnets, "lease", leaseHex(e.held.lease), "why", why)
	e.doubt, e.ended = nil, e.held.lease
	delete(e.problems, contested)
	delete(e.problems, fenceRefuses)
	e.former, e.held, e.lostWhy = e.held.subnets, nil, e.held.subnets.String()+": "+why
	e.waiting = "lost " + e.former.String() + ": " + why
	e.signal()
}

// publish brings the record up to date where this node's addresses or the
// form of the record have changed.
func (e *Engine) publish(ctx context.Context) {
	t := e.tenancy()
	n := e.inForce()
	if t == nil || n == nil || e.cfg.Ready(n) != nil {
		return
	}
	want, err := e.record(*n, t.subnets, t.Epoch())
	if err != nil {
		e.log.Warn("own record cannot be brought up to date", "error", err)
		return
	}
	if want.same(t.record) {
		return
	}
	resp, err := commit(ctx, e.client, t.update(want), CallTimeout(t.ttl))
	if err != nil || !resp.Succeeded {
		// The next proof reads what the key has now, and this is tried again.
		e.log.Warn("own record not updated yet", "subnet", t.subnets, "error", err)
		return
	}
	e.log.Info("own record updated", "subnet", t.subnets, "publicIP", want.Address())
	e.update(func() {
		if e.held != nil && e.held.lease == t.lease {
			next := *e.held
			next.record, next.mod = want, resp.Header.Revision
			e.held = &next
		}
	})
}

// remember writes node.json.
func (e *Engine) remember(h Holding) {
	e.mu.Lock()
	m := e.memoryLocked(e.cfg.Memory.Get().remember(h, e.cfg.Boot))
	m.Held.Past, m.Held.Term, m.Moving = e.past, e.terms.read[h.lease], nil
	if e.moving != nil {
		m.Moving = &MemoryOfMove{e.moving.lease, int64(e.moving.ttl / time.Second), e.terms.read[e.moving.lease]}
	}
	e.mu.Unlock()
	e.saved = time.Now()
	e.saveMemory(m)
}

// saveMemory writes node.json with the leases that count for nothing.
func (e *Engine) saveMemory(m Memory) {
	m.Dead = slices.Sorted(maps.Keys(e.dead))
	if err := e.cfg.Memory.Save(m); err != nil {
		e.log.Warn("node.json not written; a restart with etcd away would not find the subnet", "error", err)
		e.problem(api.SeverityWarning, "state-dir", err.Error(), "free space or repair --state-dir")
		return
	}
	e.clear("state-dir")
}

// memoryLocked adds what is known of the store to what is known of the node.
func (e *Engine) memoryLocked(m Memory) Memory {
	m.Store, m.ClusterID, m.Revision = e.known.Store, e.known.Cluster, e.known.Revision
	m.Had = cmp.Or(m.Store, m.Had)
	m.Config, m.Networks = e.config, e.networks
	return m
}

// keepEvery bounds how often a cycle writes node.json.
const keepEvery = 10 * time.Second

// keepMemory brings node.json up to date with the store, whose revision must be
// known after a restart to tell a store that went back.
func (e *Engine) keepMemory(h Holding) {
	if time.Since(e.saved) < keepEvery {
		return
	}
	old := e.cfg.Memory.Get()
	e.mu.Lock()
	changed := e.known != Life{old.Store, old.ClusterID, old.Revision} || !bytes.Equal(e.config, old.Config) ||
		old.Held == nil || old.Held.Lease != h.lease || old.Held.Term != e.terms.read[h.lease] || old.Held.ModRevision != h.mod || len(old.Held.Past) != len(e.past)
	e.mu.Unlock()
	if changed {
		e.remember(h)
	}
}
