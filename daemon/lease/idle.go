package lease

import (
	"context"
	"time"
)

// lookEvery bounds, to the jitter of a pause, how long a node that waits goes
// without a list of its own: by that it notices that etcd is away, and a watch
// that is behind.
const lookEvery = 10 * time.Second

// idle waits on without asking etcd, where the watch has shown nothing that this
// node could act on. Else each of many nodes that wait would list everything at
// each event of any. Nothing is concluded from the watch but that there is
// nothing to do yet.
func (e *Engine) idle(ctx context.Context) (pause time.Duration, idle bool) {
	e.mu.Lock()
	s := e.snapshot
	quiet := s != nil && e.held == nil && e.waiting != "" && e.conflict == "" && e.etcdErr == nil && e.forgot == nil && !e.suspect &&
		e.settling == (s.Settle.ModRevision != 0)
	e.mu.Unlock()
	// A pause follows. And --new-cluster stands in a config for good.
	if !quiet || time.Since(e.looked)+retryWaiting >= lookEvery || e.cfg.Birth != nil && s.Store.ModRevision == 0 {
		return 0, false
	}
	if e.hasLeft() {
		return e.waitFor(leftText), true
	}
	d := decide(s, e.self(), e.networkInForce(s))
	switch {
	case d.resume != nil, d.claim != nil, d.inherit != nil, len(d.conflicts) > 0:
		return 0, false
	case d.wait != "":
		return e.waitFor(d.wait), true
	}
	if e.cfg.Ready(d.network) != nil {
		return 0, false
	}
	for range Candidates(*d.network, s, e.want()) {
		return 0, false
	}
	return e.exhausted(ctx, s, *d.network), true
}
