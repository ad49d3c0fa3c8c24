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
	// Store is the store's ID as it is now.
	Store string
	// Config is the network config as it is now.
	Config []byte
}

// Init births the cluster: it writes the network config and the identity of
// the store in one transaction. On a prefix that has a config only, it adds
// the store and leaves the config; where somebody deleted the config of a born
// cluster, it writes that; else it changes nothing. The config must have been validated. Errors are etcd's.
func Init(ctx context.Context, c *clientv3.Client, prefix string, config []byte) (Born, error) {
	k := NewKeys(prefix)
	store := Store{ID: uuid.NewString(), Born: time.Now().UTC()}
	for {
		f, err := birth(k, config, store)
		if err != nil {
			return Born{}, err
		}
		resp, err := commit(ctx, c, f, maxCall)
		if err != nil {
			return Born{}, fmt.Errorf("birth of %s: %w", k.All(), err)
		}
		if resp.Succeeded {
			return Born{Created: true, Store: store.ID, Config: config}, nil
		}
		m := newMirror(k)
		for _, r := range resp.Responses {
			for _, kv := range r.GetResponseRange().GetKvs() {
				m.put(kv)
			}
		}
		s := m.snapshot(resp.Header.Revision, resp.Header.ClusterId)
		if s.Store.ModRevision != 0 && s.Config.ModRevision != 0 {
			return Born{Store: s.Store.Value.ID, Config: s.Config.Value}, nil
		}
		if s.Store.ModRevision != 0 {
			resp, err := commit(ctx, c, reconfigure(k, s.Store.ModRevision, config), maxCall)
			if err != nil {
				return Born{}, fmt.Errorf("put the config of %s back: %w", k.All(), err)
			}
			if resp.Succeeded {
				return Born{Reconfigured: true, Store: s.Store.Value.ID, Config: config}, nil
			}
			continue
		}
		f, err = adopt(k, s.Config.ModRevision, store)
		if err != nil {
			return Born{}, err
		}
		resp, err = commit(ctx, c, f, maxCall)
		if err != nil {
			return Born{}, fmt.Errorf("add the store to %s: %w", k.All(), err)
		}
		if resp.Succeeded {
			return Born{Adopted: true, Store: store.ID, Config: s.Config.Value}, nil
		}
		// Somebody else was born in between: look again.
	}
}
