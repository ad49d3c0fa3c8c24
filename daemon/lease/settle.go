package lease

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// storeWentBack and contested are the problems of a store that forgot.
const (
	storeWentBack = "store-went-back"
	contested     = "contested"
)

// forgetting is a store that is not the one this node knew. It ends when settle
// has stood in it and is gone.
type forgetting struct {
	why   string
	since time.Time
	now   Life // the store as it was met last
	// settled says that settle has been seen to stand in the store as it is
	// now.
	settled bool
}

// meetLocked judges an answer of etcd to the loop, and reports whether it came
// from another life of the store than what was seen before.
func (e *Engine) meetLocked(now Life) (changed bool) {
	m := e.known.Meet(now)
	switch {
	case m == MetFirst || m == MetSame || m == MetBorn:
		e.known = now
		return false
	case m == MetAnother && !e.open():
		// Nothing of this node is at stake in it.
		e.log.Warn("another store is taken for granted", "what", e.known.Difference(now))
		e.forgot = nil
		delete(e.problems, storeWentBack)
		e.known = now
		e.againLocked()
	case e.forgot == nil || e.forgot.settled:
		why := e.known.Difference(now)
		e.log.Error("the store forgot", "what", why)
		e.forgot = &forgetting{why: why, since: time.Now(), now: now}
		e.settler = 0
		e.problems.add(storeWentBack, api.SeverityError, why+"; what this node holds it puts back, and nobody acquires a subnet until every holder has shown itself or lapsed",
			"nothing, if the store is there to stay; if config or store identity are missing: tenurectl init --after-loss with the config it had")
		e.againLocked()
	default:
		// It has been met and is not believed yet, for settle cannot be put into
		// it: no news, or nothing in it would ever be proven.
		before := e.forgot.now
		e.forgot.now = now
		if m := before.Meet(now); m == MetSame || m == MetBorn {
			return false
		}
		e.againLocked()
	}
	e.terms.forget()
	return true
}

// againLocked begins the watch anew: one that the client has resumed by itself
// waits for revisions of the other life.
func (e *Engine) againLocked() {
	if e.rewatch != nil {
		e.rewatch()
	}
}

// recall is called before etcd is asked something whose answer will be judged: what
// the watch has shown by now was in the store, so an answer of less means that
// it went back. The watch runs beside the loop, so this cannot be told later.
func (e *Engine) recall() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.snapshot == nil {
		return
	}
	if seen := e.snapshot.life(); seen.Store == e.known.Store && seen.Cluster == e.known.Cluster {
		e.known.Revision = max(e.known.Revision, seen.Revision)
	}
}

// overlooked is called when a proof found settle standing. Where the watch has
// not shown it, the store went back and has passed the revisions that were
// known since: the watch waits for what came after them, and may never show
// what came before.
func (e *Engine) overlooked() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.settling || e.suspect {
		return
	}
	e.suspect = true
	e.nudge()
	e.signal()
}

// meet is meetLocked for an answer that is no list.
func (e *Engine) meet(now Life) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	changed = e.meetLocked(now)
	if changed {
		e.signal()
	}
	return changed
}

// believeLocked makes the store that forgot the known one: settle stands in it.
func (e *Engine) believeLocked(now Life, why string) {
	if e.forgot.settled {
		return
	}
	e.log.Info("the store settles", "store", orNone(now.Store), "why", why)
	e.forgot.settled = true
	e.known = now
	e.settling = true
}

// unsettled says that what is missing from the store may still be held: it
// forgot, or settle stands.
func (e *Engine) unsettled() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unsettledLocked()
}

func (e *Engine) unsettledLocked() bool { return e.forgot != nil || e.settling || e.suspect }

// settle makes everybody wait where the store forgot and nobody has done so
// yet. It is false if there is nothing to be done before the returned pause.
func (e *Engine) settle(ctx context.Context, s *Snapshot) (time.Duration, bool) {
	e.mu.Lock()
	f := e.forgot
	e.mu.Unlock()
	if f == nil || f.settled {
		return 0, true
	}
	if e.settler == 0 {
		e.settler = newLeaseID()
	}
	ttl := e.settleFor(s)
	v := Settle{Node: e.cfg.Node, Since: f.since.UTC(), Why: f.why}
	ok, err := e.putSettle(ctx, s, ttl, v)
	if err != nil {
		pause := e.denied(fmt.Errorf("put %s: %w", e.keys.Settle(), err))
		// A refusal must not keep this node from proving what it has.
		return min(pause, retryUnproven(ttl)), !silence(err) && e.tenancy() != nil
	}
	if !ok {
		return jitter(firstRetry), false // somebody else did, or the store changed: look again
	}
	e.log.Warn("settle put", "for", ttl, "why", f.why)
	e.update(func() {
		if e.forgot == f {
			e.believeLocked(s.life(), "this node put settle")
		}
	})
	return 0, true
}

func (e *Engine) putSettle(ctx context.Context, s *Snapshot, ttl time.Duration, v Settle) (bool, error) {
	if _, err := grant(ctx, e.client, e.settler, ttl, e.callTimeout()); err != nil {
		return false, err
	}
	f, err := settle(e.keys, e.settler, v, s)
	if err != nil {
		return false, err
	}
	resp, err := commit(ctx, e.client, f, e.callTimeout())
	return err == nil && resp.Succeeded, err
}

// settleFor is how long everybody must wait: as long as any fence may be open
// that this node can know of.
func (e *Engine) settleFor(s *Snapshot) time.Duration {
	ttl := conf.MinLeaseTTL
	if n := e.inForce(); n != nil {
		ttl = max(ttl, n.LeaseTTL)
	}
	if n, _, err := conf.ParseNetwork(s.Config.Value); s.Config.ModRevision != 0 && err == nil {
		ttl = max(ttl, n.LeaseTTL)
	}
	if t := e.tenancy(); t != nil {
		ttl = max(ttl, t.ttl)
	}
	m := e.cfg.Memory.Get()
	if m.Held != nil {
		ttl = max(ttl, time.Duration(m.Held.TTLSeconds)*time.Second)
	}
	if n, _, err := conf.ParseNetwork(m.Config); len(m.Config) > 0 && err == nil {
		ttl = max(ttl, n.LeaseTTL)
	}
	return ttl
}

// standBy goes on with a holding in a store that was just read whole.
func (e *Engine) standBy(ctx context.Context, t tenancy, s *Snapshot) time.Duration {
	e.mu.Lock()
	st, entry := stand(t.Holding, e.past, s)
	e.mu.Unlock()
	switch {
	case e.moving != nil && st == moved && entry.Lease == e.moving.lease:
		return e.moved(ctx, t, entry)
	case st == moved && entry.Lease == e.asserting && e.open():
		return e.retake(ctx, t, entry, s) // put back by a try whose answer was lost
	case st == ours && t.lastProof == 0:
		return e.resume(ctx, entry)
	case st == ours:
		e.clear(contested)
		e.shed(ctx, t, s)
		return e.renew(ctx, t)
	case st == foreign, !e.unsettled(), !e.open():
		e.lose(t.whyNot(st, entry))
		return 0
	case st == gone:
		return e.reassert(ctx, t, s)
	case st == moved:
		return e.retake(ctx, t, entry, s)
	}
	text := fmt.Sprintf("%s, which this node holds, is in the restored store as the record of %s, from before this node's time; it is put back as soon as that record ends", t.subnets, entry.holder())
	e.problem(api.SeverityError, contested, text, "nothing while that node runs: it gives the record up; else tenurectl release "+t.subnets.String()+" --machine-is-off, if it is")
	return jitter(min(time.Second, retryUnproven(t.ttl)))
}

// reassert puts the own key back where it is missing. The fence, which is open,
// is cut to what the new lease allows before the key can hang on it.
func (e *Engine) reassert(ctx context.Context, t tenancy, s *Snapshot) time.Duration {
	h, err := e.restated(t, t.Epoch())
	if err != nil {
		return e.failed(t, err)
	}
	if e.asserting == 0 {
		e.update(func() { e.asserting = e.terms.newLease() })
	}
	if err := e.grantUnder(ctx, e.asserting, e.leaseTTL(s, t.ttl)); err != nil {
		return e.failed(t, err)
	}
	f, err := h.reassert(e.asserting, s, e.succession(s, h, "put back into a store that had forgotten it"))
	if err != nil {
		return e.failed(t, err)
	}
	e.cfg.at("before the key is put back")
	resp, err := commit(ctx, e.client, f, CallTimeout(t.ttl))
	e.cfg.at("after the key was put back")
	if err != nil {
		return e.failed(t, fmt.Errorf("re-assert %s: %w", t.subnets, err)) // a list will show what became of it
	}
	if !resp.Succeeded {
		return jitter(firstRetry)
	}
	h.lease, h.create, h.mod = e.asserting, resp.Header.Revision, resp.Header.Revision
	e.log.Warn("own subnet put back into the store", "subnet", h.subnets, "lease", leaseHex(h.lease), "epoch", h.Epoch())
	e.clear(contested)
	return e.take(ctx, h)
}

// retake goes on with the own key as the store has it: of an earlier age, or
// under another lease. Its lease is what counts from now on, so the fence is
// cut to it first.
func (e *Engine) retake(ctx context.Context, t tenancy, entry Entry, s *Snapshot) time.Duration {
	if err := e.keepUnder(ctx, entry.Lease, t.ttl); err != nil {
		return e.failed(t, err)
	}
	h, err := NewHolding(e.keys, entry, t.ttl)
	if err != nil {
		return e.failed(t, err)
	}
	want, err := e.restated(t, max(t.Epoch(), entry.Tenant().Epoch))
	if err != nil {
		return e.failed(t, err)
	}
	f := h.retake(want.record, s, e.succession(s, want, "found again in a store that had gone back"))
	resp, err := commit(ctx, e.client, f, CallTimeout(t.ttl))
	if err != nil {
		return e.failed(t, fmt.Errorf("retake %s: %w", t.subnets, err))
	}
	if !resp.Succeeded {
		return jitter(firstRetry)
	}
	h.record, h.mod = want.record, resp.Header.Revision
	e.log.Warn("own subnet found again in the store", "subnet", h.subnets, "lease", leaseHex(h.lease), "epoch", h.Epoch())
	return e.take(ctx, h)
}

// shed gives up what a restored store says this very boot holds beside what it
// does hold: a subnet of its past. Nobody's fence is open on it by this node,
// and its present tenant waits for it.
func (e *Engine) shed(ctx context.Context, t tenancy, s *Snapshot) {
	if !e.unsettled() || !e.open() {
		return
	}
	own := t.record.Tenant()
	for _, entry := range s.Entries {
		who := entry.Tenant()
		if entry.Subnets == t.subnets || entry.Lease == 0 || who.UID != own.UID || who.Boot != e.cfg.Boot {
			continue
		}
		h, err := NewHolding(e.keys, entry, t.ttl)
		if err == nil {
			err = e.giveUp(ctx, h, s, "given up: its node holds "+t.subnets.String())
		}
		e.log.Warn("a subnet of this node's past is given up", "subnet", entry.Subnets, "error", err)
	}
}

// restated is the holding with the record that this node would write now.
func (e *Engine) restated(t tenancy, epoch int64) (Holding, error) {
	n := e.inForce()
	if n == nil {
		return Holding{}, errNotJudged
	}
	r, err := e.record(*n, t.subnets, epoch)
	h := t.Holding
	h.record = r
	return h, err
}

// succession is the owner record after this node's holding came back.
func (e *Engine) succession(s *Snapshot, h Holding, why string) Owner {
	return s.Owners[h.subnets.ownerKey()].Value.succeed(e.transition(h.Epoch(), why))
}

// transition is this node's coming to own a subnet, now.
func (e *Engine) transition(epoch int64, why string) Transition {
	return Transition{UID: e.cfg.Memory.Get().UID, Node: e.cfg.Node, Epoch: epoch, Since: time.Now().UTC(), Why: why}
}

// leaseTTL is the length that a new lease is asked for: the config's, or that
// of the lease before where there is none.
func (e *Engine) leaseTTL(s *Snapshot, before time.Duration) time.Duration {
	if n, _, err := conf.ParseNetwork(s.Config.Value); s.Config.ModRevision != 0 && err == nil {
		return n.LeaseTTL
	}
	if n := e.inForce(); before <= 0 && n != nil {
		return n.LeaseTTL
	}
	return max(before, conf.MinLeaseTTL)
}

// grantUnder makes a lease and cuts the fence to what it allows, before any key
// can hang on it.
func (e *Engine) grantUnder(ctx context.Context, id clientv3.LeaseID, ttl time.Duration) error {
	t0 := e.cfg.Clock()
	got, err := grant(ctx, e.client, id, ttl, CallTimeout(ttl))
	if err != nil {
		return err
	}
	return e.cut(Deadline(t0, got))
}

// keepUnder renews a lease that the own key hangs on already, and cuts the
// fence to what it allows.
func (e *Engine) keepUnder(ctx context.Context, id clientv3.LeaseID, ttl time.Duration) error {
	t0 := e.cfg.Clock()
	got, err := keepAlive(ctx, asking{e.client}, id, ttl)
	if err != nil {
		return fmt.Errorf("keep lease %x alive: %w", int64(id), err)
	}
	return e.cut(Deadline(t0, got))
}

// cut brings the fence's deadline forward, never back.
func (e *Engine) cut(to time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cfg.at("before the fence is cut")
	if err := e.fence.CutTo(to); err != nil {
		return fmt.Errorf("cut the fence: %w", err)
	}
	e.cfg.at("after the fence was cut")
	if e.held != nil && e.held.deadline > to {
		next := *e.held
		next.deadline = to
		e.held = &next
		e.signal()
	}
	return nil
}

// failed notes that etcd did not do what the holding needs; F stands.
func (e *Engine) failed(t tenancy, err error) time.Duration {
	if silence(err) {
		e.unproven(t, err)
	} else {
		e.denied(err)
	}
	return jitter(retryUnproven(t.ttl))
}
