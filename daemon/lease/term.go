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
//
// In a restored store terms begin anew, and the number of before comes again. Who
// sees that it forgot knows no term any more, and who sees that it settles neither:
// settle stands for longer than any fence is open. A closed fence may have slept
// through both, so there a term counts for as long as the lease cannot have ended.

// terms are those read before each lease was asked for that the own key hangs on,
// or may come to hang on. Of what is missing it is not known.
type terms struct {
	now  reading // of the linearizable answer that the loop had last
	read map[clientv3.LeaseID]reading
	// settle is the ModRevision of the last settle that was seen to stand.
	settle int64
}

// reading is a raft term, and the CLOCK_BOOTTIME from before it was asked for; that
// is 0 where another process asked.
type reading struct {
	term uint64
	at   time.Duration
}

// see takes in an answer of the loop's: its term, and the settle that it shows.
func (t *terms) see(r reading, settle int64) {
	if settle != 0 && settle != t.settle {
		t.forget()
		t.settle = settle
	}
	t.now = r
}

// forget is for another life of the store.
func (t *terms) forget() { clear(t.read) }

// newLease draws the ID of a lease that is asked for next.
func (t *terms) newLease() clientv3.LeaseID {
	id := newLeaseID()
	t.read[id] = t.now
	return id
}

// remember takes what an earlier process knew.
func (t *terms) remember(id clientv3.LeaseID, term uint64) {
	if id != 0 && term != 0 {
		t.read[id] = reading{term: term}
	}
}

// recognise takes the leader for the one that granted the lease where there is no
// other: etcd has one member, which is asked at one address. Its term grows with
// each start.
func (e *Engine) recognise(ctx context.Context, h Holding) {
	if e.underItsLeader(h) || e.moveAt != 0 || len(e.cfg.Endpoints) != 1 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.callTimeout())
	defer cancel()
	if all, err := e.client.MemberList(ctx); err != nil || len(all.Members) != 1 {
		return
	}
	e.terms.read[h.lease] = e.terms.now
	if e.moving != nil {
		e.terms.read[e.moving.lease] = e.terms.now
	}
}

// sameLeader says that the leader who granted a lease of that length leads.
func (e *Engine) sameLeader(id clientv3.LeaseID, ttl time.Duration) bool {
	r := e.terms.read[id]
	return r.term != 0 && r.term == e.terms.now.term && (e.open() || e.cfg.Clock() < Deadline(r.at, ttl))
}

// underItsLeader says that renewals of the held key's lease count, and of the one
// that it may be moving to.
func (e *Engine) underItsLeader(h Holding) bool {
	return e.sameLeader(h.lease, h.ttl) && (e.moving == nil || e.sameLeader(e.moving.lease, e.moving.ttl))
}

// mayMoveOn says whether a proof may move F on. Under another leader than the one
// that granted the lease it may not; but an etcd without space grants no other
// lease, and gives the subnet to nobody else.
func (e *Engine) mayMoveOn(h Holding) bool { return e.full || e.underItsLeader(h) }

// toMove is how long the key stays on a lease of an earlier leader; false if it
// hangs on one of the present leader.
func (e *Engine) toMove(t tenancy) (time.Duration, bool) {
	if e.sameLeader(t.lease, t.ttl) {
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
