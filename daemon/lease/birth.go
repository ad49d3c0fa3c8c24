package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Born says what Init found or did.
type Born struct {
	// Created: config and store were written.
	Created bool
	// Adopted: the config was there, flannel's for example, and only the
	// store was added.
	Adopted bool
	// Reconfigured: the store was there, and the config that somebody had
	// deleted was written again.
	Reconfigured bool
	// Settling: nobody acquires a subnet for now, because Init wrote settle
	// or found it standing.
	Settling bool
	// Settle is how long that lasts at most.
	Settle time.Duration
	// Store is the store's ID as it is now.
	Store string
	// Config is the network config as it is now.
	Config []byte
}

// Init births the cluster: it writes the network config and the identity of
// the store in one transaction. On a prefix that has a config only, it adds
// the store and leaves the config; where somebody deleted the config of a born
// cluster, it writes that; else it changes nothing. The config must have been
// validated. It is the operator's word that no node of an earlier life of the
// cluster runs. Errors are etcd's.
func Init(ctx context.Context, c *clientv3.Client, prefix string, config []byte) (Born, error) {
	for {
		b, err := initialise(ctx, c, NewKeys(prefix), config, fenced{})
		if !errors.Is(err, errLostRace) {
			return b, err
		}
		// Somebody else was quicker: look again.
	}
}

// InitAfterLoss is Init where nodes of an earlier life may run still: with the
// rest it writes settle, under a lease of length d, so that for as long nobody
// acquires a subnet but those who prove that they hold it. d must not be less
// than the longest lease that such a node may have had. On a born cluster it
// writes settle alone. A settle that stands for longer stays: a node put it,
// which knew of longer leases.
func InitAfterLoss(ctx context.Context, c *clientv3.Client, prefix string, config []byte, d time.Duration) (Born, error) {
	k, id := NewKeys(prefix), newLeaseID()
	for {
		b, err := afterLoss(ctx, c, k, config, d, id)
		if !errors.Is(err, errLostRace) {
			return b, err
		}
	}
}

// afterLoss is one try, with the settle that it writes under the lease id.
func afterLoss(ctx context.Context, c *clientv3.Client, k Keys, config []byte, d time.Duration, id clientv3.LeaseID) (Born, error) {
	stands, left, err := settleStands(ctx, c, k)
	if err != nil {
		return Born{}, err
	}
	if left >= d {
		b, err := initialise(ctx, c, k, config, fenced{})
		b.Settling, b.Settle = true, left
		return b, err
	}
	if _, err := grant(ctx, c, id, d, maxCall); err != nil {
		return Born{}, err
	}
	settle, err := settleOver(k, id, Settle{Node: "tenurectl", Since: time.Now().UTC(), Why: "tenurectl init --after-loss"}, stands)
	if err != nil {
		return Born{}, err
	}
	b, err := initialise(ctx, c, k, config, settle)
	if err == nil && !b.Settling {
		err = complete(ctx, c, k, settle)
	}
	b.Settling, b.Settle = true, d
	return b, err
}

// settleStands is the revision of the settle that stands, 0 without one, and how
// much longer it does.
func settleStands(ctx context.Context, c *clientv3.Client, k Keys) (mod int64, left time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxCall)
	defer cancel()
	resp, err := c.Get(ctx, k.Settle())
	if err != nil {
		return 0, 0, fmt.Errorf("read %s: %w", k.Settle(), err)
	}
	if len(resp.Kvs) == 0 {
		return 0, 0, nil
	}
	kv := resp.Kvs[0]
	if kv.Lease == 0 {
		return kv.ModRevision, math.MaxInt64, nil // put by hand, and for ever
	}
	ttl, err := c.TimeToLive(ctx, clientv3.LeaseID(kv.Lease))
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return 0, 0, fmt.Errorf("look at lease %x: %w", kv.Lease, err)
	}
	if err != nil {
		return kv.ModRevision, 0, nil
	}
	return kv.ModRevision, time.Duration(ttl.TTL) * time.Second, nil
}

// initialise writes what the store lacks, and with it settle, which may be
// empty. The error wraps errLostRace where somebody has written meanwhile.
func initialise(ctx context.Context, c *clientv3.Client, k Keys, config []byte, settle fenced) (Born, error) {
	settling := len(settle.then) > 0
	store := Store{ID: uuid.NewString(), Born: time.Now().UTC()}
	resp, err := commit(ctx, c, birth(k, config, store, settle), maxCall)
	if err != nil {
		return Born{}, fmt.Errorf("birth of %s: %w", k.All(), err)
	}
	if resp.Succeeded {
		return Born{Created: true, Settling: settling, Store: store.ID, Config: config}, nil
	}
	switch s := reads(k, resp); {
	case s.Store.ModRevision != 0 && s.Config.ModRevision != 0:
		return Born{Store: s.Store.Value.ID, Config: s.Config.Value}, nil
	case s.Store.ModRevision != 0:
		b := Born{Reconfigured: true, Settling: settling, Store: s.Store.Value.ID, Config: config}
		return b, complete(ctx, c, k, reconfigure(k, s.Store.ModRevision, config, settle))
	case s.Config.ModRevision != 0:
		b := Born{Adopted: true, Settling: settling, Store: store.ID, Config: s.Config.Value}
		return b, complete(ctx, c, k, adopt(k, s.Config.ModRevision, store, settle))
	}
	return Born{}, fmt.Errorf("birth of %s: %w", k.All(), errLostRace) // settle has changed
}

// complete sends what was made for the store as it was read.
func complete(ctx context.Context, c *clientv3.Client, k Keys, f fenced) error {
	resp, err := commit(ctx, c, f, maxCall)
	if err == nil && !resp.Succeeded {
		err = errLostRace
	}
	if err != nil {
		return fmt.Errorf("complete %s: %w", k.All(), err)
	}
	return nil
}

// reads is what a transaction read, as a snapshot of only that.
func reads(k Keys, resp *clientv3.TxnResponse) *Snapshot {
	m := newMirror(k)
	for _, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			m.put(kv)
		}
	}
	return m.snapshot(resp.Header.Revision, resp.Header.ClusterId)
}
