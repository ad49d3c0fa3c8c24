package lease

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Watcher keeps a whole Snapshot of the prefix. It lists, watches from the
// list's revision + 1, and lists again whenever the watch ends: by compaction,
// by a lost leader, by an error, and at least every resync period.
type Watcher struct {
	client *clientv3.Client
	keys   Keys
	log    *slog.Logger
	call   time.Duration
	resync time.Duration
	onNew  func(*Snapshot)
	onBack func() // before the first snapshot after an outage
	again  chan struct{}

	// Run's own.
	err   error     // of the last list or watch, nil while watching
	since time.Time // when err began
}

// resyncEvery bounds how long a lost event can go unnoticed.
const resyncEvery = 4 * time.Minute

// NewWatcher returns a watcher that calls onNew from its Run with every new
// Snapshot, in order of revision, and onBack before the first one after etcd
// was away.
func NewWatcher(c *clientv3.Client, k Keys, log *slog.Logger, onNew func(*Snapshot), onBack func()) *Watcher {
	return &Watcher{client: c, keys: k, log: log, call: maxCall, resync: resyncEvery, onNew: onNew, onBack: onBack, again: make(chan struct{}, 1)}
}

// Again makes the watch begin anew from a list. A client resumes its watch by
// itself at the revision it had reached, and in a store that went back that
// revision may be long in coming.
func (w *Watcher) Again() {
	select {
	case w.again <- struct{}{}:
	default:
	}
}

// Run lists and watches until ctx ends. It never gives up.
func (w *Watcher) Run(ctx context.Context) {
	pause := newPause()
	for ctx.Err() == nil {
		began := time.Now()
		err := w.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil || time.Since(began) > maxPause { // a watch that has lived is no repeated failure
			pause.Reset()
		}
		if err == nil { // the resync period, or a compaction: nothing is wrong
			continue
		}
		w.fail(err)
		wait(ctx, pause.NextBackOff())
	}
}

// once is one list and the watch that follows it. It returns nil when the
// watch has to begin again from a list without anything being wrong.
func (w *Watcher) once(ctx context.Context) error {
	m := newMirror(w.keys)
	snap, err := list(ctx, w.client, m, w.call)
	if err != nil {
		return err
	}
	w.publish(snap)

	wctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), jitter(w.resync))
	defer cancel()
	events := w.client.Watch(wctx, w.keys.All(), clientv3.WithPrefix(), clientv3.WithRev(snap.Revision+1))
	for {
		select {
		case <-w.again:
			return nil
		case resp, ok := <-events:
			switch {
			case !ok && wctx.Err() != nil:
				return nil // the resync period
			case !ok:
				return fmt.Errorf("watch %s: the stream ended", w.keys.All())
			}
			if again, err := w.take(m, events, resp); again || err != nil {
				return err
			}
		}
	}
}

// takeMost bounds how many answers one snapshot takes in.
const takeMost = 64

// take publishes what an answer says, together with those that are there
// already: in a storm every snapshot would be out of date when it is made.
// again says that the watch has to begin anew.
func (w *Watcher) take(m *mirror, events clientv3.WatchChan, resp clientv3.WatchResponse) (again bool, err error) {
	revision := int64(0)
	for left := takeMost; ; left-- {
		switch {
		case resp.CompactRevision != 0:
			w.log.Info("watch fell behind a compaction, listing again", "compacted", resp.CompactRevision)
			return true, nil
		case resp.Err() != nil:
			return false, fmt.Errorf("watch %s: %w", w.keys.All(), resp.Err())
		}
		revision = max(revision, m.apply(resp.Events))
		if left == 0 {
			break
		}
		next, ok := ready(events)
		if !ok {
			break
		}
		resp = next
	}
	if revision > 0 {
		w.publish(m.snapshot(revision, resp.Header.ClusterId))
	}
	return false, nil
}

// ready is the answer that is there already, if there is one.
func ready(events clientv3.WatchChan) (clientv3.WatchResponse, bool) {
	select {
	case resp, ok := <-events:
		return resp, ok
	default:
		return clientv3.WatchResponse{}, false
	}
}

// apply takes events in and returns the revision of the latest, which is what
// the snapshot after them shows: the header's is the member's own and may lag
// or lead.
func (m *mirror) apply(events []*clientv3.Event) int64 {
	revision := int64(0)
	for _, ev := range events {
		revision = max(revision, ev.Kv.ModRevision)
		if ev.Type == clientv3.EventTypeDelete {
			m.remove(string(ev.Kv.Key))
		} else {
			m.put(ev.Kv)
		}
	}
	return revision
}

// list reads the whole prefix at one revision. It is linearizable: a
// serializable read may come from a member that is cut off.
func list(ctx context.Context, c *clientv3.Client, m *mirror, timeout time.Duration) (*Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp, err := c.Get(ctx, m.keys.All(), clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", m.keys.All(), err)
	}
	m.reset(resp.Kvs)
	s := m.snapshot(resp.Header.Revision, resp.Header.ClusterId)
	s.Listed = true
	return s, nil
}

func (w *Watcher) publish(s *Snapshot) {
	if w.err != nil {
		w.log.Info("etcd answers again", "after", time.Since(w.since).Round(time.Millisecond), "revision", s.Revision)
		w.onBack()
	}
	w.err = nil
	w.onNew(s)
}

func (w *Watcher) fail(err error) {
	if w.err == nil {
		w.since = time.Now()
		w.log.Warn("etcd does not answer, trying on", "error", err)
	}
	w.err = err
}

// maxPause is the longest wait between two attempts.
const maxPause = 5 * time.Second

// newPause is the wait between attempts: from 100 ms to 5 s, randomised.
func newPause() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 100*time.Millisecond, maxPause
	return b
}

// wait pauses for d; false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
