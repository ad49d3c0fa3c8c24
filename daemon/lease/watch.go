package lease

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Watcher keeps a whole Snapshot of the prefix. It lists, watches from the
// list's revision + 1, and lists again whenever the watch ends: by compaction,
// by a lost leader, by an error, by silence, and at least every resync period.
// Each list is compared with what the watch before it had shown: see missed.go.
type Watcher struct {
	client  *clientv3.Client
	keys    Keys
	log     *slog.Logger
	call    time.Duration
	resync  time.Duration
	notice  time.Duration // that is waited for
	quiet   time.Duration
	onNew   func(*Snapshot)
	onBack  func()            // before the first snapshot after an outage
	onQuiet func(silent bool) // a watch has ended in silence, or one says something again
	again   chan struct{}
	wake    chan struct{}
	counts  *counters

	// Run's own.
	seen   seen      // what the last watch has shown
	err    error     // of the last list or watch, nil while watching
	since  time.Time // when err began
	mute   bool      // the last watch ended in silence; a list shows whether etcd is there
	silent bool      // it is, and no watch has said anything since: told by onQuiet
	shown  time.Time // when the last snapshot of events was
	listed time.Time // when this attempt's list came, the zero Time before
}

// resyncEvery bounds how long a lost event can go unnoticed.
const resyncEvery = 4 * time.Minute

// quietEvery is how long a watch may say nothing before its stream is tried,
// and how long the answer may take then. A connection that died is found by
// gRPC's pings; this is for one that answers them and carries nothing else: a
// proxy in between, or a server that has got stuck.
const quietEvery = 10 * time.Second

// noticeWait is how long etcd has to say how far the watch has come. It says
// nothing where that is no further than the list was.
const noticeWait = time.Second

// NewWatcher returns a watcher that calls onNew from its Run with every new
// Snapshot, in order of revision, and onBack before the first one after etcd
// was away.
func NewWatcher(c *clientv3.Client, k Keys, log *slog.Logger, onNew func(*Snapshot), onBack func()) *Watcher {
	return &Watcher{client: c, keys: k, log: log, call: maxCall, resync: resyncEvery, notice: noticeWait, quiet: quietEvery,
		onNew: onNew, onBack: onBack, onQuiet: func(bool) {}, again: make(chan struct{}, 1), wake: make(chan struct{}, 1), counts: &counters{}}
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

// Wake ends the pause before the next attempt to list, if there is one.
func (w *Watcher) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// rest is that pause.
func (w *Watcher) rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-w.wake:
	}
}

// Run lists and watches until ctx ends. It never gives up.
func (w *Watcher) Run(ctx context.Context) {
	p := newPauses()
	for ctx.Err() == nil {
		w.listed = time.Time{}
		err := w.once(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := p.after(err, !w.listed.IsZero(), time.Since(w.listed))
		if err == nil { // the resync period, or a compaction: nothing is wrong
			continue
		}
		w.fail(err)
		w.rest(ctx, pause)
	}
}

// pauses are those between attempts to list and watch.
type pauses struct{ list, watch *backoff.ExponentialBackOff }

func newPauses() pauses { return pauses{newStarved(100 * time.Millisecond), newPause()} }

// after is the pause after an attempt that ended with err, listed or not, and if
// so with a watch that has lived for so long. An etcd that brings no list may
// starve, and is asked less and less; one that lists and does not let watch is
// read from, and so is asked soon. A watch that has lived is no repeated failure.
func (p pauses) after(err error, listed bool, lived time.Duration) time.Duration {
	if listed {
		p.list.Reset()
	}
	switch {
	case err == nil:
		p.watch.Reset()
		return 0
	case !listed:
		return p.list.NextBackOff()
	case lived > maxPause:
		p.watch.Reset()
	}
	return p.watch.NextBackOff()
}

// once is one list and the watch that follows it. It returns nil when the
// watch has to begin again from a list without anything being wrong.
func (w *Watcher) once(ctx context.Context) error {
	m := newMirror(w.keys)
	snap, err := list(ctx, w.client, m, w.call)
	if err != nil {
		return err
	}
	w.listed = time.Now()
	w.publish(snap)
	w.compare(ctx, m, snap) // which may ask etcd: nobody waits for what is only counted
	w.seen = seen{mirror: m, cluster: snap.ClusterID, reached: snap.Revision}
	if w.mute {
		w.muted()
	}
	return w.follow(ctx, m, snap.Revision+1)
}

// follow watches from a revision on, until there is a reason to list.
func (w *Watcher) follow(ctx context.Context, m *mirror, revision int64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	// A watcher of its own means a stream of its own. On one that is shared, a
	// watch that etcd does not begin keeps all later ones waiting for ever.
	stream := clientv3.NewWatcher(w.client)
	var echoes sync.WaitGroup
	defer func() { cancel(); _ = stream.Close(); echoes.Wait() }()
	// The client returns when etcd has begun the watch, which may never be.
	begun := time.AfterFunc(w.quiet, cancel)
	events := stream.Watch(ctx, w.keys.All(), clientv3.WithPrefix(), clientv3.WithRev(revision))
	if !begun.Stop() {
		w.mute = true
		return nil
	}
	due := time.NewTimer(jitter(w.resync))
	defer due.Stop()
	echo, tried, asked := make(chan struct{}, 1), false, false
	first := w.quiet
	if w.silent {
		first /= 10 // that it is over is to be known soon
	}
	quiet := time.NewTimer(jitter(first))
	defer quiet.Stop()
	for ; ; quiet.Reset(jitter(w.quiet)) {
		select {
		case <-w.again:
			w.seen = seen{} // the next list may be of another life
			return nil
		case <-due.C: // the resync period is over
			if asked || w.askProgress(ctx, stream) != nil {
				return nil
			}
			asked = true
			due.Reset(w.notice)
		case <-quiet.C:
			if tried {
				w.mute = true
				return nil
			}
			tried = true
			echoes.Go(func() { try(ctx, stream, w.keys.Config(), echo) })
		case <-echo:
			tried = false
			w.heard()
		case resp, ok := <-events:
			if !ok {
				return fmt.Errorf("watch %s: the stream ended", w.keys.All())
			}
			tried = false
			w.heard()
			if again, err := w.take(m, events, resp); again || err != nil {
				return err
			}
			if asked && w.seen.noticed {
				return nil
			}
		}
	}
}

// try begins another watch, ends it, and says so if etcd has begun it. The
// client gives it the stream of the watch whose context it has: what carries
// this answer carries events. A notice of progress would say more, but etcd gives
// none where nothing was written since the list (etcd #20229), its proxy never
// does, and old releases let it overtake events (etcd #15220).
func try(ctx context.Context, stream clientv3.Watcher, key string, echo chan<- struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream.Watch(ctx, key)
	if ctx.Err() != nil {
		return
	}
	select {
	case echo <- struct{}{}:
	default:
	}
}

// muted tells, once, that a watch said nothing for too long while etcd is there.
func (w *Watcher) muted() {
	w.mute = false
	if !w.silent {
		w.log.Warn("the watch is silent though etcd answers, listing again and again", "key", w.keys.All())
		w.silent = true
		w.onQuiet(true)
	}
}

// heard notes that a watch has said something.
func (w *Watcher) heard() {
	if w.silent {
		w.log.Info("the watch says something again", "key", w.keys.All())
		w.silent = false
		w.onQuiet(false)
	}
}

const (
	// takeMost bounds how many answers one snapshot takes in.
	takeMost = 64
	// takeGap is the least time between two snapshots. A change that comes alone
	// is shown at once. In a storm the client hands over one answer at a time, and a
	// snapshot of thousands of records for each is more than a node can make.
	takeGap = 20 * time.Millisecond
)

// take publishes what an answer says, together with those that are there
// already, or come before another snapshot is due: in a storm every snapshot
// would be out of date when it is made. again says that the watch has to begin
// anew. What came before an answer that ends the watch is published too: the list
// that follows may be long in coming.
func (w *Watcher) take(m *mirror, events clientv3.WatchChan, resp clientv3.WatchResponse) (again bool, err error) {
	revision, cluster := int64(0), uint64(0)
	for left, ok := takeMost, true; ok; left-- {
		if again, err = w.ends(resp); again || err != nil {
			break
		}
		revision, cluster = max(revision, m.apply(resp.Events)), resp.Header.ClusterId
		w.seen.reach(revision, resp)
		due := takeGap - time.Since(w.shown)
		if left <= 0 && due <= 0 || revision == 0 {
			break
		}
		resp, ok = more(events, due)
	}
	if revision > 0 {
		w.publish(m.snapshot(revision, cluster))
		w.shown = time.Now()
	}
	return again, err
}

// ends says whether an answer is the watch's last, and whether that is a fault.
func (w *Watcher) ends(resp clientv3.WatchResponse) (again bool, err error) {
	switch {
	case resp.CompactRevision != 0:
		w.log.Info("watch fell behind a compaction, listing again", "compacted", resp.CompactRevision)
		return true, nil
	case resp.Err() != nil:
		return false, fmt.Errorf("watch %s: %w", w.keys.All(), resp.Err())
	}
	return false, nil
}

// more is the answer that is there already, or comes within d.
func more(events clientv3.WatchChan, d time.Duration) (clientv3.WatchResponse, bool) {
	if d <= 0 {
		select {
		case resp, ok := <-events:
			return resp, ok
		default:
			return clientv3.WatchResponse{}, false
		}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case resp, ok := <-events:
		return resp, ok
	case <-t.C:
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
	s.Listed, s.Term = true, resp.Header.RaftTerm
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
		what := "etcd does not answer, trying on"
		if _, _, refused := w.keys.refused(err); refused {
			what = "etcd refuses this node, trying on"
		}
		w.log.Warn(what, "error", err)
	}
	w.err, w.mute = err, false
}

// maxPause is the longest wait between two attempts.
const maxPause = 5 * time.Second

// newPause is the wait between attempts: from 100 ms to 5 s, randomised.
func newPause() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 100*time.Millisecond, maxPause
	return b
}

// maxStarved is the longest wait between two lists that bring nothing. That of
// thousands of records is the dearest question there is, and all nodes ask it.
// Whatever etcd answers this node meanwhile ends the wait.
const maxStarved = 30 * time.Second

// newStarved is that wait: from first to maxStarved, randomised by a quarter.
func newStarved(first time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.RandomizationFactor = first, maxStarved*4/5, 0.25
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
