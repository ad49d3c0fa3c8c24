package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// acquire goes through the order of choice until something is held.
func (e *Engine) acquire(ctx context.Context, s *Snapshot, n conf.Network) time.Duration {
	if err := e.abandon(ctx); err != nil {
		return e.denied(err)
	}
	e.dropEnded(ctx, s)
	a := attempt{client: e.client, keys: e.keys, seen: s, ttl: n.LeaseTTL, call: CallTimeout(n.LeaseTTL), lease: e.nextLease(ctx, n.LeaseTTL), silent: e.unreachable, end: e.end}
	tried := false
	for c := range Candidates(n, s, e.want()) {
		if !tried {
			got, err := grant(ctx, e.client, a.lease, a.ttl, a.call)
			if err != nil {
				return e.denied(err)
			}
			a.ttl, tried = got, true
		}
		e.cfg.at("before the acquire")
		sent := e.cfg.Clock()
		h, err := e.tryCandidate(ctx, a, n, c)
		if err == nil && e.late(ctx, h) {
			return 0
		}
		if err == nil {
			e.cfg.at("after the acquire")
			e.log.Info("subnet acquired", "subnet", c.Subnets, "why", c.Why, "lease", leaseHex(h.lease), "epoch", h.Epoch())
			e.unused = 0
			e.answered(sent)
			return e.take(ctx, h)
		}
		if errors.Is(err, errUnpublished) {
			return e.waitFor(err.Error()) // the lease is kept for the next round
		}
		if !errors.Is(err, errLostRace) {
			if unknown(err) {
				e.unused = 0 // revoked, unless the daemon is stopping
			}
			return e.denied(err)
		}
		e.log.Debug("lost a race for a subnet", "subnet", c.Subnets, "why", c.Why)
		if e.stale(s) {
			break
		}
	}
	if tried {
		return jitter(firstRetry) // the lease is kept for the next round
	}
	return e.exhausted(ctx, s, n)
}

// want is what this node would choose.
func (e *Engine) want() Want {
	m := e.cfg.Memory.Get()
	last, _ := m.Last()
	return Want{Node: e.cfg.Node, UID: m.UID, Last: last, LastFirst: !e.lostSubnet().IsZero(), Seed: rand.Uint64()}
}

// nextLease is the ID that the next grant asks for: the same until it is known
// what became of it, so that answers which are lost leave one lease behind and
// not one each.
func (e *Engine) nextLease(ctx context.Context, ttl time.Duration) clientv3.LeaseID {
	if e.unusedTTL != ttl || !e.terms.same(e.unused) {
		e.dropUnused(ctx)
	}
	if e.unused == 0 {
		e.unused, e.unusedTTL = e.terms.newLease(), ttl
	}
	return e.unused
}

// dropUnused gives back a lease that no key was ever asked to hang on, or that
// was refused one. Its end is asked for: it is never used again.
func (e *Engine) dropUnused(ctx context.Context) {
	id := e.unused
	e.unused = 0
	e.dropLease(ctx, id)
}

// end revokes a lease that a key of this node may hang on. From before it is
// asked for, and also for the next process, the lease counts for nothing: the
// request may commit at any time. No fence may be open for that key.
func (e *Engine) end(ctx context.Context, id clientv3.LeaseID) error {
	e.condemn(id)
	if err := revoke(ctx, e.client, id, e.callTimeout()); err != nil {
		return err
	}
	delete(e.dead, id) // nothing can come to hang on it any more
	delete(e.terms.read, id)
	return nil
}

func (e *Engine) condemn(id clientv3.LeaseID) {
	if !e.dead[id] {
		e.dead[id] = true
		e.saveMemory(e.cfg.Memory.Get())
	}
}

// denied says that etcd answers and does not do what it is asked, or that it
// does not answer.
func (e *Engine) denied(err error) time.Duration {
	if silence(err) {
		e.unreachable(err)
		return e.retryIn()
	}
	what, fix := e.keys.refusal(err)
	text := what + ": " + said(err).Error()
	e.update(func() {
		e.waitLocked(text)
		e.problems.add(etcdRefuses, api.SeverityError, text, fix+"; this is tried again by itself")
	})
	return jitter(retryWaiting)
}

// SpaceFix makes a full store take writes again. An alarm stands until it is
// disarmed, whatever space there is.
const SpaceFix = "free etcd's space (docs/etcd.md): etcdctl compact to the present revision, etcdctl defrag on each member, then etcdctl alarm disarm"

// refusal says in words what an answer that says no means, and what to do.
func (k Keys) refusal(err error) (what, fix string) {
	const no = "etcd answers, but refuses what this node needs"
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return "etcd's store is full (alarm NOSPACE), so it refuses what this node needs", SpaceFix
	}
	if why, fix, ok := k.refused(err); ok {
		return no + ", for " + why, fix
	}
	return no, "look for it in etcd's log"
}

// said is etcd's own word in an error, without what it was asked for: that is
// another subnet each time, and a text that changes is logged each time.
func said(err error) error {
	var (
		login  *loginError
		answer rpctypes.EtcdError
	)
	switch {
	case errors.As(err, &login):
		return login
	case errors.As(err, &answer):
		return answer
	}
	return err
}

// etcdRefuses is the problem that rights or space are missing.
const etcdRefuses = "etcd-refuses"

// unknown says that a write may have been applied all the same, or may be later:
// there was no answer, or etcd found only afterwards that its space is used up.
func unknown(err error) bool { return silence(err) || errors.Is(err, rpctypes.ErrNoSpace) }

// silence tells "no answer" from "an answer that says no".
func silence(err error) bool {
	var refused rpctypes.EtcdError
	if !errors.As(err, &refused) {
		return true
	}
	switch refused.Code() {
	case codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted, codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition:
		return false
	}
	return true
}

// stale reports that config, store or settle changed since s: then every
// further candidate of s would lose as well.
func (e *Engine) stale(s *Snapshot) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.snapshot
	return now != nil && (now.Config.ModRevision != s.Config.ModRevision ||
		now.Store.ModRevision != s.Store.ModRevision || now.Settle.ModRevision != s.Settle.ModRevision)
}

func (e *Engine) tryCandidate(ctx context.Context, a attempt, n conf.Network, c Candidate) (Holding, error) {
	m := e.cfg.Memory.Get()
	owner := a.seen.Owners[c.ownerKey()].Value
	last, _ := m.Last()
	mine := owner.UID == m.UID && last == c.Subnets && m.Boot == e.cfg.Boot && m.Held.Record.Tenant().Epoch == owner.Epoch
	seen := a.seen.MaxEpoch(c.Subnets)
	if last == c.Subnets { // what this node had is seen, also where the store forgot it
		seen = max(seen, m.Held.Record.Tenant().Epoch)
	}
	epoch := NextEpoch(owner, mine, seen, time.Now())
	r, err := e.record(n, c.Subnets, epoch)
	if err != nil {
		return Holding{}, err
	}
	next := owner.succeed(e.transition(epoch, c.Why))
	h, err := a.take(ctx, c, r, next)
	if err == nil {
		e.update(func() { e.past = next.History })
	}
	return h, err
}

// errUnpublished says that this machine lacks what a record must have.
var errUnpublished = errors.New("no record can be made")

func (e *Engine) record(n conf.Network, s Subnets, epoch int64) (Record, error) {
	r, err := e.cfg.Publish(n, s, epoch)
	if err != nil {
		return Record{}, fmt.Errorf("%w for %s: %w", errUnpublished, s, err)
	}
	r.Tenure = &Tenant{Node: e.cfg.Node, UID: e.cfg.Memory.Get().UID, Boot: e.cfg.Boot, Epoch: epoch}
	return r, nil
}

// exhausted says why the node waits, and gives a lease back that it does not
// need for now.
func (e *Engine) exhausted(ctx context.Context, s *Snapshot, n conf.Network) time.Duration {
	why := exhausted(n, s, e.cfg.Node, e.endsNext(ctx, s))
	e.update(func() {
		e.waitLocked(why)
		e.problems.add(noFreeSubnet, api.SeverityError, why,
			"wait for a lease to end, release a dead node's subnet, or widen the network")
	})
	e.dropUnused(ctx)
	return jitter(retryWaiting)
}

// firstRetry follows a round in which every candidate was lost to others.
const firstRetry = 200 * time.Millisecond

func leaseHex(id clientv3.LeaseID) string { return fmt.Sprintf("%x", int64(id)) }
