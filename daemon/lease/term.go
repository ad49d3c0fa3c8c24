package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
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
// was confirmed had committed an entry of his own, which the member that answers
// has applied: he led in term k or earlier. It is one leader then: his clock counts
// from the keep-alive, those after him only prolong, and none before him can end a
// lease that he does not know. (A member that has caught up by a snapshot has the
// term of before until its next entry. Terms only grow, so a node that has been told
// of the next believes it no more; one that asks no other member does.)
//
// Under another leader F stands, and the key moves to a lease which that one
// grants.
//
// In a restored store terms begin anew, and the number of before comes again. Who
// sees that it forgot knows no term any more, and who sees that it settles neither:
// settle stands for longer than any fence is open. Behind a closed fence it may have
// come and gone since the last answer, if that is long ago.

// terms are the loop's.
type terms struct {
	now    uint64        // the highest since forget
	behind bool          // the answer that the loop had last was of a lower one
	at     time.Duration // CLOCK_BOOTTIME from before that was asked for; 0 = none in this process
	settle int64         // ModRevision of the last settle that was seen to stand
	// read is what now was before each lease was asked for that the own key hangs
	// on, or may come to hang on. Of what is missing it is not known.
	read map[clientv3.LeaseID]uint64
}

// forget is for another life of the store.
func (t *terms) forget() {
	clear(t.read)
	t.now = 0
}

// newLease draws the ID of a lease that is asked for next.
func (t *terms) newLease() clientv3.LeaseID {
	id := newLeaseID()
	t.read[id] = t.now
	return id
}

// remember notes the term of a lease, where both are known.
func (t *terms) remember(id clientv3.LeaseID, term uint64) {
	if id != 0 && term != 0 {
		t.read[id] = term
	}
}

// same says that the leader who granted the lease leads.
func (t *terms) same(id clientv3.LeaseID) bool { return t.now != 0 && t.read[id] == t.now }

// heard takes in a linearizable answer: its term, the CLOCK_BOOTTIME from before it
// was asked for, and the ModRevision of the settle that it shows.
func (e *Engine) heard(term uint64, at time.Duration, settle int64) {
	t := &e.terms
	if settle != 0 && settle != t.settle {
		t.forget()
		t.settle = settle
	}
	e.answered(at)
	t.behind = term < t.now
	t.now = max(t.now, term)
}

// answered takes in that what was sent at that CLOCK_BOOTTIME has been answered: a
// read that shows whether the store settles, or a write that commits in none that
// does.
func (e *Engine) answered(at time.Duration) {
	t := &e.terms
	if !e.open() && (t.at == 0 || e.cfg.Clock() >= Deadline(t.at, e.length())) {
		t.forget()
	}
	t.at = at
}

// remaining is how long the fence stays open if nothing moves F on.
func (e *Engine) remaining() time.Duration {
	if t := e.tenancy(); t != nil {
		return t.deadline - e.cfg.Clock()
	}
	return 0
}

// length is that of the lease held, or of the one that would be.
func (e *Engine) length() time.Duration {
	if t := e.tenancy(); t != nil && t.ttl > 0 {
		return t.ttl
	}
	if n := e.inForce(); n != nil {
		return n.LeaseTTL
	}
	return conf.MinLeaseTTL
}

// recognise takes the leader for the one that granted the lease where there is no
// other: etcd has one member, which is asked at one address, and says so itself.
// (etcd's grpc-proxy says that it is the only one.) Its term grows with each start.
func (e *Engine) recognise(ctx context.Context, h Holding) {
	if e.underItsLeader(h) || e.moveAt != 0 || len(e.cfg.Endpoints) != 1 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.callTimeout())
	defer cancel()
	all, err := e.client.MemberList(ctx)
	if err != nil || len(all.Members) != 1 || all.Header == nil || all.Header.MemberId != all.Members[0].ID || all.Header.RaftTerm != e.terms.now {
		return
	}
	e.terms.remember(h.lease, e.terms.now)
	if e.moving != nil {
		e.terms.remember(e.moving.lease, e.terms.now)
	}
}

// underItsLeader says that renewals of the held key's lease count, and of the one
// that it may be moving to.
func (e *Engine) underItsLeader(h Holding) bool {
	return e.terms.same(h.lease) && (e.moving == nil || e.terms.same(e.moving.lease))
}

// mayMoveOn says whether a proof may move F on. Under another leader than the one
// that granted the lease it may not; but an etcd without space grants no other
// lease, and gives the subnet to nobody else.
func (e *Engine) mayMoveOn(h Holding) bool {
	return !e.terms.behind && (e.underItsLeader(h) || e.withoutSpace(h.ttl))
}

// fullness is when etcd refused a lease or a write for want of space.
type fullness struct {
	term uint64
	at   time.Duration // CLOCK_BOOTTIME; 0 = it did not when asked last
}

// noteSpace takes the answer to what needs space.
func (e *Engine) noteSpace(err error) {
	e.full = fullness{}
	if errors.Is(err, rpctypes.ErrNoSpace) {
		e.full = fullness{e.terms.now, e.cfg.Clock()}
	}
}

// withoutSpace says that etcd refused so under this leader, and not long ago: it is
// asked anew after each cycle.
func (e *Engine) withoutSpace(ttl time.Duration) bool {
	return e.full.at != 0 && e.full.term == e.terms.now && e.cfg.Clock() < e.full.at+2*Interval(ttl)
}

// toMove is how long the key stays on a lease of an earlier leader; false if it
// hangs on one of the present leader, as far as can be told.
func (e *Engine) toMove(t tenancy) (time.Duration, bool) {
	if e.terms.same(t.lease) || e.terms.behind {
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
// deadline leaves time for that: cycles are at most a third of it apart. The
// shortest leases leave none.
func moveIn(ttl, remaining time.Duration) time.Duration {
	if remaining < ttl/2 {
		return 0
	}
	return rand.N(max(ttl/6, 1))
}

// leaseStays is the problem that the key cannot be moved to another lease.
const leaseStays = "lease-stays"

// stays says that a key on a lease of an earlier leader could not be moved.
func (e *Engine) stays(t tenancy, err error) {
	if e.terms.same(t.lease) {
		return
	}
	e.problem(api.SeverityWarning, leaseStays, fmt.Sprintf("etcd has another leader than the one that granted the lease of %s, so renewals of it count no more and the deadline stands; the key could not be moved to a new lease: %v", t.subnets, said(err)),
		"if it lasts, see why etcd's leader takes no writes (docs/etcd.md); this is tried again by itself")
}
