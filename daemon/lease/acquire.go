package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// errLostRace says that somebody else took the subnet between the list and
// the transaction, or that the list is out of date in another way.
var errLostRace = errors.New("changed since it was read")

// attempt is one try for one candidate.
type attempt struct {
	client *clientv3.Client
	keys   Keys
	seen   *Snapshot
	ttl    time.Duration
	call   time.Duration
	lease  clientv3.LeaseID
	silent func(error)                                   // told while an outcome is unknown and etcd says nothing
	end    func(context.Context, clientv3.LeaseID) error // Engine.end
}

// newLeaseID draws an ID. The client chooses it, so that a grant or an acquire
// whose answer was lost can still be undone by revoking a known lease.
func newLeaseID() clientv3.LeaseID {
	return clientv3.LeaseID(rand.Int64N(math.MaxInt64-1) + 1)
}

// grant makes the lease id and returns its length, which etcd may have made
// longer than asked. A lease that exists already under it is an earlier grant
// of ours whose answer was lost: the ID is drawn from 63 random bits.
func grant(ctx context.Context, c *clientv3.Client, id clientv3.LeaseID, ttl, call time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, call)
	defer cancel()
	req := &pb.LeaseGrantRequest{ID: int64(id), TTL: int64((ttl + time.Second - 1) / time.Second)}
	resp, err := clientv3.RetryLeaseClient(c).LeaseGrant(ctx, req)
	err = rpctypes.Error(err)
	switch {
	case errors.Is(err, rpctypes.ErrLeaseExist):
		return keepAlive(ctx, asking{c}, id, patient(CallTimeout(ttl)))
	case err != nil:
		return 0, fmt.Errorf("grant a lease of %s: %w", ttl, err)
	}
	return time.Duration(resp.TTL) * time.Second, nil
}

// take tries to acquire the candidate. The error wraps errLostRace where
// another one is worth trying at once. An outcome that stays unknown is
// resolved before it returns: the key is read back, and if it does not show
// our lease the lease is revoked, because "absent" does not prove that the
// write will not commit later.
func (a attempt) take(ctx context.Context, c Candidate, r Record, o Owner) (Holding, error) {
	f, err := acquire(a.keys, c, a.lease, r, a.seen, o)
	if err != nil {
		return Holding{}, err
	}
	resp, err := commit(ctx, a.client, f, a.call)
	switch {
	case err == nil && resp.Succeeded:
		rev := resp.Header.Revision
		return NewHolding(a.keys, Entry{Subnets: c.Subnets, Record: r, Lease: a.lease,
			CreateRevision: rev, ModRevision: rev}, a.ttl)
	case err == nil:
		return Holding{}, fmt.Errorf("acquire %s: %w", c.Subnets, errLostRace)
	case !unknown(err): // an answer: nothing was written
		return Holding{}, fmt.Errorf("acquire %s: %w", c.Subnets, err)
	}
	return a.resolve(ctx, c, fmt.Errorf("acquire %s: %w", c.Subnets, err))
}

// resolve ends an acquire whose answer did not come. Once its lease has been
// asked to end, the key counts for nothing, whatever a later read shows: that
// request, too, may commit late.
func (a attempt) resolve(ctx context.Context, c Candidate, cause error) (Holding, error) {
	for pause, dead := newPause(), false; ; {
		var err error
		if !dead {
			var e Entry
			if e, err = a.readBack(ctx, c.Subnets); err == nil && e.Lease == a.lease {
				return NewHolding(a.keys, e, a.ttl)
			}
			dead = err == nil
		}
		if dead {
			if err = a.end(ctx, a.lease); err == nil {
				return Holding{}, fmt.Errorf("%w (outcome unknown; undone by revoking its lease %x)", cause, int64(a.lease))
			}
		}
		a.silent(err)
		if !wait(ctx, pause.NextBackOff()) {
			return Holding{}, fmt.Errorf("%w (outcome unknown: %w)", cause, ctx.Err())
		}
	}
}

func (a attempt) readBack(ctx context.Context, s Subnets) (Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, a.call)
	defer cancel()
	resp, err := a.client.Get(ctx, a.keys.Subnet(s))
	if err != nil {
		return Entry{}, err
	}
	return entryOf(a.keys, s, resp), nil
}

// entryOf is the one key that was read; the zero Entry if it is absent.
func entryOf(k Keys, s Subnets, resp *clientv3.GetResponse) Entry {
	m := newMirror(k)
	m.reset(resp.Kvs)
	e, _ := m.snapshot(resp.Header.Revision, resp.Header.ClusterId).Entry(s)
	return e
}

// revoke ends a lease of ours; one that is gone already counts as ended.
func revoke(ctx context.Context, c *clientv3.Client, id clientv3.LeaseID, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := c.Revoke(ctx, id); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("revoke lease %x: %w", int64(id), err)
	}
	return nil
}

// NextEpoch is the fencing number of a new ownership. mine says that this UID
// owned the subnet last on this very boot: then the number stays. Otherwise it
// is above everything ever seen for the subnet and not below the clock, so
// that it grows even when the store forgot.
func NextEpoch(owner Owner, mine bool, seen int64, now time.Time) int64 {
	if mine && owner.Epoch > 0 {
		return owner.Epoch
	}
	return max(owner.Epoch+1, seen+1, now.Unix())
}
