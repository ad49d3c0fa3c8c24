package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
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
	return initialise(ctx, c, NewKeys(prefix), config, nil)
}

// InitAfterLoss is Init where nodes of an earlier life may run still: with the
// rest it writes settle, under a lease of length d, so that for as long nobody
// acquires a subnet but those who prove that they hold it. d must not be less
// than the longest lease that such a node may have had. On a born cluster it
// writes settle alone.
func InitAfterLoss(ctx context.Context, c *clientv3.Client, prefix string, config []byte, d time.Duration) (Born, error) {
	k, id := NewKeys(prefix), newLeaseID()
	if _, err := grant(ctx, c, id, d, maxCall); err != nil {
		return Born{}, err
	}
	op, err := putSettle(k, id, Settle{Node: "tenurectl", Since: time.Now().UTC(), Why: "tenurectl init --after-loss"})
	if err != nil {
		return Born{}, err
	}
	b, err := initialise(ctx, c, k, config, &op)
	if err == nil && b.Settling {
		return b, nil
	}
	if err == nil {
		b.Settling, err = putSettleAlone(ctx, c, k, id, op)
	}
	return b, err
}

// putSettleAlone writes settle into a store that lacked nothing else. One that
// stands already is as good, and the lease of the other is given back.
func putSettleAlone(ctx context.Context, c *clientv3.Client, k Keys, id clientv3.LeaseID, op clientv3.Op) (bool, error) {
	f := fenced{cmps: []clientv3.Cmp{absent(k.Settle())}, then: []clientv3.Op{op}}
	resp, err := commit(ctx, c, f, maxCall)
	if err != nil {
		return false, fmt.Errorf("put %s: %w", k.Settle(), err)
	}
	if !resp.Succeeded {
		return true, revoke(ctx, c, id, maxCall)
	}
	return true, nil
}

func initialise(ctx context.Context, c *clientv3.Client, k Keys, config []byte, settle *clientv3.Op) (Born, error) {
	var more []clientv3.Op
	if settle != nil {
		more = append(more, *settle)
	}
	store := Store{ID: uuid.NewString(), Born: time.Now().UTC()}
	for {
		f, err := birth(k, config, store, more...)
		if err != nil {
			return Born{}, err
		}
		resp, err := commit(ctx, c, f, maxCall)
		if err != nil {
			return Born{}, fmt.Errorf("birth of %s: %w", k.All(), err)
		}
		if resp.Succeeded {
			return Born{Created: true, Settling: settle != nil, Store: store.ID, Config: config}, nil
		}
		s := reads(k, resp)
		var b Born
		switch {
		case s.Store.ModRevision != 0 && s.Config.ModRevision != 0:
			return Born{Store: s.Store.Value.ID, Config: s.Config.Value}, nil
		case s.Store.ModRevision != 0:
			f = reconfigure(k, s.Store.ModRevision, config, more...)
			b = Born{Reconfigured: true, Store: s.Store.Value.ID, Config: config}
		default:
			if f, err = adopt(k, s.Config.ModRevision, store, more...); err != nil {
				return Born{}, err
			}
			b = Born{Adopted: true, Store: store.ID, Config: s.Config.Value}
		}
		if resp, err = commit(ctx, c, f, maxCall); err != nil {
			return Born{}, fmt.Errorf("complete %s: %w", k.All(), err)
		}
		if resp.Succeeded {
			b.Settling = settle != nil
			return b, nil
		}
		// Somebody else was quicker: look again.
	}
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
