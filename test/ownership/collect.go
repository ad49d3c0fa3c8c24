package ownership

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

const (
	// askEvery is how often the present revision is asked for, which bounds from
	// below when an event was committed.
	askEvery = 50 * time.Millisecond
	askTime  = 2 * time.Second
	// again is the pause before what failed is tried again.
	again = 100 * time.Millisecond
)

// now reads CLOCK_BOOTTIME, which every kernel has: the call cannot fail.
func now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return time.Duration(t.Nano())
}

// Collect reads the history of a prefix in one go, from the first revision that
// is not compacted to the present one. It knows no times but the present: use a
// Recorder where packets or fences are to be judged with it.
func Collect(ctx context.Context, c *clientv3.Client, prefix string) (History, error) {
	r, err := Record(ctx, c, prefix)
	if err != nil {
		return History{}, err
	}
	h, _, err := r.Stop(ctx)
	return h, err
}

// Recorder follows a store through its lives.
type Recorder struct {
	prefix string

	mu      sync.Mutex
	lives   []Life
	foreign []Foreign
	notes   [][]note // by life
	reached int64    // the revision up to which the present life is known
	moved   chan struct{}
	pending int    // questions after leases
	stop    func() // of the present life's session
	ask     func(context.Context) (int64, error)
	err     error
}

// note is an instant at which the store had not gone beyond a revision.
type note struct {
	revision int64
	at       time.Duration
}

// Record begins with the first revision of the store and records until Stop.
// The client stays the caller's; it should be one for the recorder alone, and
// reach etcd whatever the run does to the nodes.
func Record(ctx context.Context, c *clientv3.Client, prefix string) (*Recorder, error) {
	r := &Recorder{prefix: string(namesIn(prefix)), moved: make(chan struct{})}
	return r, r.Begin(ctx, c, Born, 0)
}

// Begin begins another life, with the client to go on with. revision is that of
// the backup if the store was Restored: what comes after it is news. ctx bounds
// the beginning only.
func (r *Recorder) Begin(ctx context.Context, c *clientv3.Client, b Beginning, revision int64) error {
	if r.stop != nil {
		r.stop()
	}
	l := Life{Beginning: b, Began: now()}
	if b == Restored {
		var err error
		if l.Base, revision, err = r.base(ctx, c, revision); err != nil {
			return err
		}
	}
	r.open(l, revision)
	run, cancel := context.WithCancel(context.Background())
	run = clientv3.WithRequireLeader(run)
	var g sync.WaitGroup
	g.Go(func() { r.watch(run, c, revision+1) })
	g.Go(func() { r.poll(run, c) })
	r.stop = func() { cancel(); g.Wait() }
	r.ask = func(ctx context.Context) (int64, error) {
		resp, err := c.Get(ctx, r.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return 0, err
		}
		// So that the watch says how far it has come although nothing changes.
		return resp.Header.Revision, c.RequestProgress(run)
	}
	return nil
}

// open makes l the present life.
func (r *Recorder) open(l Life, revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lives, r.notes = append(r.lives, l), append(r.notes, nil)
	r.reached, r.err = revision, nil
}

// base reads the prefix as it was at a revision, or at the first one after it
// that is not compacted.
func (r *Recorder) base(ctx context.Context, c *clientv3.Client, revision int64) ([]KV, int64, error) {
	resp, err := c.Get(ctx, r.prefix, clientv3.WithPrefix(), clientv3.WithRev(revision))
	if err != nil {
		return nil, 0, fmt.Errorf("read %s at revision %d: %w", r.prefix, revision, err)
	}
	var all []KV
	for _, kv := range resp.Kvs {
		all = append(all, kvOf(kv))
	}
	if revision == 0 {
		revision = resp.Header.Revision
	}
	return all, revision, nil
}

func kvOf(kv *mvccpb.KeyValue) KV {
	return KV{Key: string(kv.Key), Value: string(kv.Value), Lease: kv.Lease, Create: kv.CreateRevision, Mod: kv.ModRevision}
}

// watch follows the prefix from a revision on.
func (r *Recorder) watch(ctx context.Context, c *clientv3.Client, from int64) {
	var g sync.WaitGroup
	defer g.Wait()
	for ctx.Err() == nil {
		for resp := range c.Watch(ctx, r.prefix, clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithPrevKV()) {
			if resp.CompactRevision != 0 {
				from = r.skip(ctx, c, from, resp.CompactRevision)
				break
			}
			if resp.Err() != nil {
				break
			}
			from = r.take(ctx, c, resp, from, &g)
		}
		wait(ctx, again)
	}
}

// take notes what a watch has shown, and returns what is to come next.
func (r *Recorder) take(ctx context.Context, c *clientv3.Client, resp clientv3.WatchResponse, from int64, g *sync.WaitGroup) int64 {
	seen := now()
	r.mu.Lock()
	defer r.mu.Unlock()
	life := len(r.lives) - 1
	l := &r.lives[life]
	for _, ev := range resp.Events {
		e := Event{KV: kvOf(ev.Kv), Deleted: ev.Type == clientv3.EventTypeDelete, Seen: seen}
		if ev.PrevKv != nil {
			prev := kvOf(ev.PrevKv)
			e.Prev = &prev
		}
		l.Events = append(l.Events, e)
		from = max(from, e.Mod+1)
		if _, subnet := names(r.prefix).subnet(e.Key); subnet && e.Deleted && e.Prev != nil && e.Prev.Lease != 0 {
			at := len(l.Events) - 1
			r.pending++
			g.Go(func() { r.lookAfter(ctx, c, e.Prev.Lease, life, at) })
		}
	}
	if resp.Header.Revision > r.reached {
		r.reached = resp.Header.Revision
		r.movedLocked()
	}
	return from
}

// movedLocked wakes whoever waits for the present life to be known.
func (r *Recorder) movedLocked() {
	close(r.moved)
	r.moved = make(chan struct{})
}

// lookAfter asks whether a deleted key's lease is still there.
func (r *Recorder) lookAfter(ctx context.Context, c *clientv3.Client, lease int64, life, event int) {
	// Also where the recording ends meanwhile.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
	defer cancel()
	resp, err := c.TimeToLive(ctx, clientv3.LeaseID(lease))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending--
	r.movedLocked()
	if err == nil && resp.TTL > 0 {
		r.lives[life].Events[event].LeaseAlive = true
	}
}

// skip begins a life behind a stretch that was compacted before it was seen, and
// returns the revision to go on with: the same as before where the store cannot be
// read, so that the next watch says again what is missing.
func (r *Recorder) skip(ctx context.Context, c *clientv3.Client, from, compacted int64) int64 {
	base, revision, err := r.base(ctx, c, compacted)
	if err != nil {
		return from
	}
	r.mu.Lock()
	first := len(r.lives[len(r.lives)-1].Events) == 0 && r.lives[len(r.lives)-1].Base == nil
	r.mu.Unlock()
	l := Life{Beginning: Resumed, Base: base, Began: now()}
	if first { // nothing was seen of the present life: this is how it begins
		r.mu.Lock()
		r.lives[len(r.lives)-1].Base, r.lives[len(r.lives)-1].Beginning = base, Resumed
		r.mu.Unlock()
		return revision + 1
	}
	r.open(l, revision)
	return revision + 1
}

// poll asks for the present revision, again and again.
func (r *Recorder) poll(ctx context.Context, c *clientv3.Client) {
	for ctx.Err() == nil {
		at := now()
		call, cancel := context.WithTimeout(ctx, askTime)
		resp, err := c.Get(call, r.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		cancel()
		if err == nil {
			r.mu.Lock()
			life := len(r.notes) - 1
			if n := len(r.notes[life]); n > 0 && r.notes[life][n-1].revision == resp.Header.Revision {
				r.notes[life][n-1].at = at
			} else {
				r.notes[life] = append(r.notes[life], note{resp.Header.Revision, at})
			}
			r.mu.Unlock()
		}
		wait(ctx, askEvery)
	}
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// End says that the present life is about to end: it reads what is still to be
// read, for as long as ctx allows. It is to be called before the store is wiped
// or replaced, when no node can write any more; Begin must follow. Without it,
// or after an error, the end of this life counts as unknown, and so does what
// nodes may have come to own in it.
func (r *Recorder) End(ctx context.Context) error {
	var err error
	for ctx.Err() == nil {
		var to int64
		if to, err = r.ask(ctx); err == nil {
			err = r.until(ctx, to)
		}
		if err == nil {
			r.mu.Lock()
			r.lives[len(r.lives)-1].Whole = true
			r.mu.Unlock()
			return nil
		}
		wait(ctx, again)
	}
	return fmt.Errorf("read the end of the history of %s: %w", r.prefix, errors.Join(ctx.Err(), err))
}

// until waits for the watch to have come to a revision.
func (r *Recorder) until(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for {
		r.mu.Lock()
		reached, moved, pending := r.reached, r.moved, r.pending
		r.mu.Unlock()
		// In another life a lease may live again.
		if reached >= revision && pending == 0 {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("the watch has come to revision %d, and the store to %d; %d leases are asked after: %w", reached, revision, pending, ctx.Err())
		}
	}
}

// Foreign notes a write that the run has made past the protocol, by the revision
// in its answer.
func (r *Recorder) Foreign(revision int64, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.foreign = append(r.foreign, Foreign{Life: len(r.lives) - 1, Revision: revision, Why: why})
}

// Stop ends the recording and returns what is known.
func (r *Recorder) Stop(ctx context.Context) (History, []Foreign, error) {
	err := r.End(ctx)
	r.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.lives {
		for j := range r.lives[i].Events {
			e := &r.lives[i].Events[j]
			for _, n := range r.notes[i] {
				if n.revision < e.Mod && n.at < e.Seen {
					e.After = max(e.After, n.at)
				}
			}
		}
	}
	return History{Lives: r.lives}, r.foreign, err
}
