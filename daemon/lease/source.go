package lease

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Source shows what is in etcd in the place of an engine's own lists and watch.
// It is for a simulation of many nodes in one process, where each record would be
// decoded and kept once per engine: work that real nodes do each on a machine of
// its own. A daemon has none.
type Source interface {
	// List is everything at one revision, read linearizably after the call. The
	// snapshot is Listed.
	List(ctx context.Context, c *clientv3.Client) (*Snapshot, error)
	// Watch calls onNew with whole snapshots, in order of revision, until ctx
	// ends. The first is a list.
	Watch(ctx context.Context, c *clientv3.Client, onNew func(*Snapshot))
}

// list reads everything.
func (e *Engine) list(ctx context.Context, timeout time.Duration) (*Snapshot, error) {
	if e.cfg.Source == nil {
		return list(ctx, e.client, newMirror(e.keys), timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return e.cfg.Source.List(ctx, e.client)
}

// watch shows what changes, until ctx ends.
func (e *Engine) watch(ctx context.Context, c *clientv3.Client, w *Watcher) {
	if e.cfg.Source != nil {
		e.cfg.Source.Watch(ctx, c, e.observe)
		return
	}
	w.Run(ctx)
}
