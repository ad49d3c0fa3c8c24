package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
)

// move is the held key's way to another lease, begun and not seen to have
// ended. While it stands the key may hang on either: both are kept alive, the
// fence is never open for longer than both allow, and neither is revoked.
type move struct {
	lease clientv3.LeaseID
	ttl   time.Duration
	// denials are how often in a row it was not known where it was renewed.
	denials int
}

// grantedTTL is what a lease was asked for and what etcd made of it.
type grantedTTL struct{ asked, got time.Duration }

// rebind moves the held key to another lease: where the config asks for another
// length, and where etcd has another leader than the one that granted it. It
// returns the time until the next cycle.
func (e *Engine) rebind(ctx context.Context, pause time.Duration) time.Duration {
	t, n := e.tenancy(), e.inForce()
	if t == nil || n == nil || e.unsettled() && !e.open() {
		return pause
	}
	if e.moving != nil {
		return e.tryMove(ctx, *t)
	}
	in, other := e.toMove(*t)
	switch {
	case other && in == 0, e.outdated(*t, *n) && !e.unsettled():
		return e.beginMove(ctx, *t, *n, pause)
	case other:
		return min(pause, in)
	}
	e.granted() // there is nothing left that etcd could refuse
	e.full = fullness{}
	return pause
}

// beginMove asks for the other lease and sends the move, once in a step: where the
// answers are too slow to count, the loop must come round all the same.
func (e *Engine) beginMove(ctx context.Context, t tenancy, n conf.Network, pause time.Duration) time.Duration {
	again := min(pause, jitter(retryUnproven(t.ttl)))
	if e.begun {
		return again
	}
	e.begun = true
	if e.spare != 0 && !e.terms.same(e.spare) {
		e.dropLease(ctx, e.spare)
		e.spare = 0
	}
	if e.spare == 0 {
		e.spare = e.terms.newLease()
	}
	m := &move{lease: e.spare}
	t0, p := e.cfg.Clock(), patientFor(t.ttl, e.remaining())
	got, err := hedged(ctx, p, func(ctx context.Context) (time.Duration, error) {
		return grant(ctx, e.client, m.lease, n.LeaseTTL, p.timeout)
	})
	e.noteSpace(err)
	switch {
	case err != nil && e.full.at != 0 && !e.outdated(t, n):
		if e.remaining() < t.ttl/2 {
			return again // the next proof moves F on, and this one has not
		}
		return pause // it does without: see mayMoveOn
	case err != nil:
		e.denied(err)
		e.stays(t, err)
		return again
	}
	e.asked, m.ttl = grantedTTL{n.LeaseTTL, got}, got
	if got == t.ttl && e.terms.same(t.lease) {
		e.spare = 0
		e.dropLease(ctx, m.lease)
		return pause
	}
	if err := e.cut(Deadline(t0, got)); err != nil {
		e.log.Error("the key stays on its lease", "error", err)
		return again
	}
	e.update(func() { e.moving, e.spare = m, 0 })
	// Whoever goes on after this process must know where the key may be.
	e.remember(t.Holding)
	return e.tryMove(ctx, t)
}

// granted ends the problem that etcd refuses what is needed.
func (e *Engine) granted() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, stands := e.problems[etcdRefuses]; stands {
		delete(e.problems, etcdRefuses)
		e.signal()
	}
}

// outdated says that the config asks for another length than the lease has,
// unless etcd has been asked for it and made it what it is.
func (e *Engine) outdated(t tenancy, n conf.Network) bool {
	return t.ttl > 0 && n.LeaseTTL != t.ttl && e.asked != grantedTTL{n.LeaseTTL, t.ttl}
}

// tryMove sends the move, again and again until a read shows what became of it.
func (e *Engine) tryMove(ctx context.Context, t tenancy) time.Duration {
	again := jitter(retryUnproven(min(t.ttl, e.moving.ttl)))
	open := e.open()
	f, err := t.rebind(e.moving.lease, open)
	if err != nil {
		e.log.Error("the key stays on its lease", "error", err)
		return again
	}
	sent, p := e.cfg.Clock(), patientFor(t.ttl, e.remaining())
	e.cfg.at("before the key moves")
	resp, err := hedged(ctx, p, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return commit(ctx, e.client, f, p.timeout)
	})
	e.cfg.at("after the key moved")
	e.noteSpace(err)
	if err != nil {
		if !unknown(err) {
			e.denied(err)
		}
		e.stays(t, err)
		e.log.Warn("whether the key has moved to its new lease is not known yet", "subnet", t.subnets, "lease", leaseHex(e.moving.lease), "error", err)
		return again
	}
	if resp.Succeeded {
		if !open { // else it may have settled
			e.answered(sent)
		}
		now := Entry{Subnets: t.subnets, Record: t.record, Lease: e.moving.lease, CreateRevision: t.create, ModRevision: resp.Header.Revision}
		return e.moved(ctx, t, now)
	}
	// Settle stands, or the record was updated: the next cycle reads it.
	return again
}

// moved goes on with the key under its new lease, and ends the old one, on which
// nothing hangs any more.
func (e *Engine) moved(ctx context.Context, t tenancy, entry Entry) time.Duration {
	h, err := NewHolding(e.keys, entry, e.moving.ttl)
	if err != nil {
		e.lose(err.Error())
		return 0
	}
	e.log.Info("own key moved to a new lease", "subnet", h.subnets, "lease", leaseHex(h.lease), "ttl", h.ttl, "before", t.ttl)
	pause := e.take(ctx, h)
	e.cfg.at("before the old lease is revoked")
	e.dropLease(ctx, t.lease)
	return pause
}

// keepMoving keeps the lease alive that the key may have moved to, and returns
// the deadline that it allows. Without a move there is no limit.
func (e *Engine) keepMoving(ctx context.Context, t tenancy) (time.Duration, error) {
	if e.moving == nil {
		return math.MaxInt64, nil
	}
	t0 := e.cfg.Clock()
	ttl, err := keepAlive(ctx, asking{e.client}, e.moving.lease, patientFor(e.moving.ttl, e.remaining()))
	if e.moving.gone(err) {
		// No write can commit with it any more, and none has that a proof of
		// the old one does not contradict.
		delete(e.terms.read, e.moving.lease)
		e.update(func() { e.moving = nil })
		return math.MaxInt64, nil
	}
	if err != nil {
		return 0, fmt.Errorf("keep lease %x alive, to which %s moves: %w", int64(e.moving.lease), t.subnets, err)
	}
	return Deadline(t0, ttl), nil
}

// moveFirst goes on with a key that is proven under another leader than the one
// that granted its lease, and whose fence is closed: it opens under a new lease,
// and that is for after settle.
func (e *Engine) moveFirst(ctx context.Context, t tenancy, v verdict) time.Duration {
	e.update(func() {
		if e.held != nil && e.held.lease == t.lease {
			next := *e.held
			next.Holding = v.holding
			e.held = &next
		}
		if e.forgot != nil || e.settling {
			e.unprovenLocked(t, errSettling)
		}
	})
	return e.rebind(ctx, jitter(retryUnproven(v.holding.ttl)))
}

// gone says that the lease has ended, of an error of renewing it; see believe.
func (m *move) gone(err error) bool {
	if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		m.denials = 0
		return false
	}
	m.denials++
	return m.denials >= mostDenials
}

// dropLease revokes a lease that no key of this node hangs on, or can come to
// hang on; one that cannot be reached ends by itself.
func (e *Engine) dropLease(ctx context.Context, id clientv3.LeaseID) {
	if id == 0 {
		return
	}
	delete(e.terms.read, id)
	if err := revoke(ctx, e.client, id, e.callTimeout()); err != nil {
		e.log.Debug("a lease is left to lapse", "lease", leaseHex(id), "error", err)
	}
}

// abandon ends every lease that a key of a subnet which is not held might still
// come to hang on: "absent" does not prove that an unanswered write will not
// commit. The fence, which an earlier process may have left open, is closed
// first. Until it succeeds nothing else is acquired.
func (e *Engine) abandon(ctx context.Context) error {
	var open []clientv3.LeaseID
	if e.moving != nil {
		open = append(open, e.moving.lease)
	}
	for _, id := range []clientv3.LeaseID{e.asserting, e.inheriting} {
		if id != 0 {
			open = append(open, id)
		}
	}
	if len(open) == 0 {
		return nil
	}
	if err := e.shut(); err != nil {
		return err
	}
	for _, id := range open {
		if err := e.end(ctx, id); err != nil {
			return err
		}
	}
	e.update(func() { e.moving, e.asserting = nil, 0 })
	e.inheriting = 0
	return nil
}

// dropEnded ends the lease of the subnet lost last, so that losing one costs etcd
// no lease of a day's length. A key that still hangs on it is not ours to end.
func (e *Engine) dropEnded(ctx context.Context, s *Snapshot) {
	var id clientv3.LeaseID
	e.update(func() { id, e.ended = e.ended, 0 })
	if !s.hangs(id) {
		e.dropLease(ctx, id)
	}
}

// shut makes sure that the fence is closed, also one that an earlier process left
// open, before anything ends that a key may hang on.
func (e *Engine) shut() error {
	if !e.open() {
		return nil
	}
	if err := e.fence.Close(); err != nil {
		return fmt.Errorf("close the fence: %w", err)
	}
	return nil
}

// inherit takes over the record of this machine's earlier self or of its
// flannel. The kernel's fence may still be open for that subnet; it is cut to
// what the new lease allows before the key can hang on it.
func (e *Engine) inherit(ctx context.Context, own Entry, s *Snapshot, n conf.Network) time.Duration {
	h, err := NewHolding(e.keys, own, n.LeaseTTL)
	if err != nil {
		return e.denied(err)
	}
	owner := s.Owners[own.ownerKey()].Value
	epoch := NextEpoch(owner, false, s.MaxEpoch(own.Subnets), time.Now())
	r, err := e.record(n, own.Subnets, epoch)
	if err != nil {
		return e.waitFor(err.Error())
	}
	if e.inheriting == 0 {
		e.inheriting = e.terms.newLease()
	}
	e.inherited = own.Lease
	id := e.inheriting
	if err := e.grantUnder(ctx, id, n.LeaseTTL); err != nil {
		return e.denied(err)
	}
	e.log.Info("taking over this machine's record of before", "subnet", own.Subnets, "of", own.holder(), "lease", leaseHex(own.Lease))
	f, err := h.takeOver(id, r, s, owner.succeed(e.transition(epoch, "inherited from "+own.holder()+" on this machine")))
	if err != nil {
		return e.denied(err)
	}
	resp, err := commit(ctx, e.client, f, e.callTimeout())
	if err != nil {
		// It may have committed, or may do so later: the next list shows it,
		// and until then its lease stands.
		return e.denied(fmt.Errorf("take %s over: %w", own.Subnets, err))
	}
	if !resp.Succeeded {
		return jitter(firstRetry)
	}
	h.record, h.lease, h.mod = r, id, resp.Header.Revision
	return e.take(ctx, h)
}
