package lease

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/tenure-cni/tenure/daemon/api"
)

// Touch makes the engine prove at once what it holds, and look whether what it
// publishes is still right: an address of this machine has changed, or a
// connection to etcd was made anew. The client resumes its watch over that
// without a word, also where the store behind it went back.
func (e *Engine) Touch() {
	e.nudge()
	e.mu.Lock()
	wake := e.rouse
	e.mu.Unlock()
	if wake != nil {
		wake() // where etcd was away, it is back
	}
}

// observe takes every snapshot of the watch: a deleted or foreign key closes
// the fence now, not at the next cycle.
func (e *Engine) observe(s *Snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.observeLocked(s)
}

func (e *Engine) observeLocked(s *Snapshot) {
	if e.snapshot == nil && e.known.strange(s.life()) {
		e.suspect = true // the loop has yet to meet the store
		e.nudge()
		return
	}
	if old := e.snapshot; old != nil && !s.follows(old) {
		// Late, or of another store: the loop's own list tells which.
		if s.Listed || !s.sameStore(old) {
			e.suspect = true
			e.nudge()
		}
		return
	}
	old := e.snapshot
	e.takeInLocked(s)
	if h := e.held; h != nil && s.Revision >= h.mod {
		e.judgeHoldingLocked(*h, s, old)
	}
	e.judgeLocked(s)
	if e.held == nil || e.settling && s.Settle.ModRevision == 0 {
		e.nudge()
	}
	e.signal()
}

// follows says whether a snapshot is of the same store as another, and not
// older.
func (s *Snapshot) follows(old *Snapshot) bool {
	return s.sameStore(old) && s.Revision >= old.Revision
}

// sameStore takes a store that has just been born for the one it was before.
func (s *Snapshot) sameStore(old *Snapshot) bool {
	return s.ClusterID == old.ClusterID && (s.Store.Value.ID == old.Store.Value.ID || old.Store.ModRevision == 0)
}

// judgeHoldingLocked closes the fence for a subnet that is not ours any more.
// Where the store forgot, what is missing from it is put back by the loop while
// the fence is open; only what somebody else has committed since ends it here.
// A watch that has lost an event misses the key without having been told that it
// is gone: then a list says what is true.
func (e *Engine) judgeHoldingLocked(h tenancy, s, old *Snapshot) {
	st, entry := stand(h.Holding, e.past, s)
	switch {
	case st == ours || st == moved && e.comingLocked(entry.Lease):
	case st == moved && h.lastProof == 0 && entry.Tenant().Boot == e.cfg.Boot:
		e.nudge() // node.json was written before the key moved last
	case !s.Listed && old != nil && s.agrees(old, h.subnets):
		e.againLocked()
	case st == foreign || !e.unsettledLocked():
		e.loseLocked(h.whyNot(st, entry))
	default:
		e.nudge()
	}
}

// agrees says that two snapshots show the same of a subnet's key.
func (s *Snapshot) agrees(old *Snapshot, sub Subnets) bool {
	now, _ := s.Entry(sub)
	before, _ := old.Entry(sub)
	return now.ModRevision == before.ModRevision
}

// comingLocked says that the own key has been asked to hang on that lease.
func (e *Engine) comingLocked(id clientv3.LeaseID) bool {
	return id != 0 && (id == e.asserting || e.moving != nil && id == e.moving.lease)
}

// whyNot is contradicted for a subnet that another one may overlap.
func (h Holding) whyNot(st standing, e Entry) string {
	if st == foreign && e.Subnets != h.subnets {
		return "the overlapping " + e.String() + " is held by " + e.holder()
	}
	return h.contradicted(e)
}

// takeInLocked makes s the snapshot that everybody sees.
func (e *Engine) takeInLocked(s *Snapshot) {
	e.snapshot = s
	e.confirmLocked(s)
	e.settling = s.Settle.ModRevision != 0 || e.settling && !s.Listed
	if h := e.held; h != nil && e.forgot == nil {
		e.past = s.before(h.Holding, e.past)
	}
}

// before is who owned the subnet before the holding, as its owner record has it;
// or what is known already where the record is not the holding's.
func (s *Snapshot) before(h Holding, known []Transition) []Transition {
	o := s.Owners[h.subnets.ownerKey()].Value
	if own := h.record.Tenant(); o.UID == own.UID && o.Epoch == own.Epoch {
		return o.History
	}
	return known
}

// adopt takes a list of the loop's own. It is the one that is judged: whoever
// asks knows what had been seen before it asked, so that a lower revision can
// only mean that the store went back.
func (e *Engine) adopt(s *Snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.suspect = false
	if s.Settle.ModRevision != 0 && !e.settling && e.rewatch != nil {
		e.rewatch() // which may have resumed behind what went before; see overlooked
	}
	changed := e.meetLocked(s.life())
	// A proof may have met another store before any list did: then the snapshot
	// is of the one before, and no watch can take its place.
	left := e.snapshot != nil && !s.sameStore(e.snapshot)
	if changed || left || e.snapshot == nil || s.follows(e.snapshot) || e.forgot != nil && !e.forgot.settled {
		e.takeInLocked(s) // else the watch has told something later, of settle too
		e.judgeLocked(s)
	}
	if f := e.forgot; f != nil && e.settling {
		e.believeLocked(s.life(), "settle stands")
	}
	if f := e.forgot; f != nil && f.settled && !e.settling {
		e.log.Info("the store has settled", "store", orNone(e.known.Store), "after", time.Since(f.since).Round(time.Millisecond))
		e.forgot = nil
		delete(e.problems, storeWentBack)
	}
	e.signal()
}

// reconnected makes the next ADD wait for a proof, which is asked for at once.
func (e *Engine) reconnected() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held != nil {
		e.doubtLocked("the connection to etcd was lost and is back", true)
	}
}

// watchSilent says, until a watch has been heard again, that what changes in
// etcd is found by listing only.
func (e *Engine) watchSilent(silent bool) {
	if !silent {
		e.clear(watchSilent)
		return
	}
	e.problem(api.SeverityWarning, watchSilent, "the watch of "+e.keys.All()+" brings no answer, though etcd answers otherwise: what changes there is found late, by listing",
		"look at what stands between this node and etcd, or name etcd's members in --etcd-endpoints; the daemon goes on by itself")
}

// watchSilent is the problem that a mute watch is.
const watchSilent = "watch-silent"

// watchConnection tells of connections that were lost and are back. The client
// resumes its watch by itself, so the watch alone does not tell.
func (e *Engine) watchConnection(ctx context.Context, c *clientv3.Client) {
	conn, was, lost := c.ActiveConnection(), false, false
	for state := conn.GetState(); ; state = conn.GetState() {
		switch state {
		case connectivity.Ready:
			if lost {
				e.reconnected()
			}
			was, lost = true, false
		case connectivity.TransientFailure, connectivity.Connecting:
			lost = was
		}
		if !conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// doubt is why nothing may be served before the next proof.
type doubt struct {
	why   string
	since time.Duration // CLOCK_BOOTTIME: an earlier cycle settles nothing
	// soft: etcd was away. If it goes away again F alone counts, as before.
	soft bool
}

// doubtLocked notes one more reason. A soft one does not soften a hard one: only
// a proof does away with a clock gap.
func (e *Engine) doubtLocked(why string, soft bool) {
	if d := e.doubt; d != nil && soft && !d.soft {
		why, soft = d.why, false
	}
	e.doubt = &doubt{why, e.cfg.Clock(), soft}
	e.nudge()
	e.signal()
}

// lookAtClocksLocked finds out whether this machine was suspended or paused, or
// its wall clock stepped, since anybody looked last. F is not touched: it
// counts suspended time, and no wall clock has a part in it.
func (e *Engine) lookAtClocksLocked() {
	if e.cfg.Clocks == nil {
		return
	}
	now := e.cfg.Clocks()
	gap := now.GapSince(e.clocks)
	e.clocks = now
	if gap == "" {
		return
	}
	e.log.Warn("clock gap", "what", gap)
	if e.held != nil {
		e.doubtLocked(gap, false)
	}
}
