package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Under which leader of etcd a lease counts.
//
// A leader that was stopped for longer than a lease lasts, and goes on, ends that
// lease by its own old clock, however often it was renewed at the next leader; and
// it may answer a keep-alive that the next leader never hears of. It knows only the
// leases that were granted before it was followed. So a proof moves F on if its
// raft term is the one of an answer from before the lease was asked for, k.
//
// A header's term is that of the last entry its member has applied. One of term k
// was committed before the lease was asked for, so whoever knows the lease leads in
// term k or later. The proof comes after the keep-alive, and whoever led when it
// was confirmed had committed an entry of his own, so he led in term k or earlier.
// It is one leader then: his clock counts from the keep-alive, those after him only
// prolong, and none before him can end a lease that he does not know.
//
// Under another leader F stands, and the key moves to a lease which that one
// grants.

// terms are those read before each lease was asked for that the own key hangs on,
// or may come to hang on. Of what is missing it is not known.
type terms struct {
	now  uint64 // of the linearizable answer that the loop had last
	read map[clientv3.LeaseID]uint64
}

// newLease draws the ID of a lease that is asked for next.
func (t *terms) newLease() clientv3.LeaseID {
	id := newLeaseID()
	t.read[id] = t.now
	return id
}

// remember takes what an earlier process knew.
func (t *terms) remember(id clientv3.LeaseID, term uint64) {
	if id != 0 && term != 0 {
		t.read[id] = term
	}
}

// same says that the leader who granted the lease leads.
func (t *terms) same(id clientv3.LeaseID) bool { return t.now != 0 && t.read[id] == t.now }

// recognise takes the leader for the one that granted the lease where there is no
// other: etcd has one member, which is asked at one address. Its term grows with
// each start.
func (e *Engine) recognise(ctx context.Context, t tenancy) {
	if e.underItsLeader(t) || e.moveAt != 0 || len(e.cfg.Endpoints) != 1 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.callTimeout())
	defer cancel()
	if all, err := e.client.MemberList(ctx); err != nil || len(all.Members) != 1 {
		return
	}
	e.terms.remember(t.lease, e.terms.now)
	if e.moving != nil {
		e.terms.remember(e.moving.lease, e.terms.now)
	}
}

// underItsLeader says that renewals of the held key's lease count, and of the one
// that it may be moving to.
func (e *Engine) underItsLeader(t tenancy) bool {
	return e.terms.same(t.lease) && (e.moving == nil || e.terms.same(e.moving.lease))
}

// mayMoveOn says whether a proof may move F on. Under another leader than the one
// that granted the lease it may not; but an etcd without space grants no other
// lease, and gives the subnet to nobody else.
func (e *Engine) mayMoveOn(t tenancy) bool { return e.full || e.underItsLeader(t) }

// toMove is how long the key stays on a lease of an earlier leader; false if it
// hangs on one of the present leader.
func (e *Engine) toMove(t tenancy) (time.Duration, bool) {
	if e.terms.same(t.lease) {
		return 0, false
	}
	now := e.cfg.Clock()
	if e.moveAt == 0 {
		pause := moveIn(t.ttl, t.deadline-now)
		e.moveAt = now + pause
		e.log.Info("the leader of etcd is not known to have granted the lease, the key moves to one that it grants",
			"subnet", t.subnets, "lease", leaseHex(t.lease), "in", pause.Round(time.Millisecond))
	}
	return max(0, e.moveAt-now), true
}

// moveIn spreads the moves of all nodes over a sixth of the lease, where the
// deadline leaves time for that: cycles are at most a third of it apart.
func moveIn(ttl, remaining time.Duration) time.Duration {
	if remaining < ttl/2 {
		return 0
	}
	return rand.N(max(ttl/6, 1))
}

// refuses notes whether etcd has the space to take a new lease or a write.
func (e *Engine) refuses(err error) { e.full = errors.Is(err, rpctypes.ErrNoSpace) }
