package etcdproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Always is the count of a rule that never wears off.
const Always = -1

// longestDelay bounds every delay, so that a slip of the pen hangs no test.
const longestDelay = time.Minute

// Loss is what a client notices of an answer that does not come.
type Loss int

const (
	// Fail ends the call with Unavailable, as a connection that breaks does.
	Fail Loss = iota + 1
	// Silence is nothing, until the client gives up.
	Silence
)

// Side is a direction of a call.
type Side int

const (
	// Request is from the client to etcd.
	Request Side = iota
	// Reply is from etcd to the client.
	Reply
)

// Rule is one fault that stands until it is used up or removed.
type Rule struct {
	p     *Proxy
	match Match       // one of the
	event EventMatch  // three
	mute  bool        // is set
	act   func(*fate) // what befalls a request

	left, hits int // guarded by p.mu

	release chan struct{} // closed by Release
	once    sync.Once
	held    sync.WaitGroup
	errs    []error // of what was held; guarded by p.mu
}

// fate is what befalls one request: all that the rules which fit do to it.
type fate struct {
	pauses [2]time.Duration // by Side
	lose   Loss
	late   *Rule // holds it back
	alone  bool  // not for Release, but until the client has gone
}

// DropReply lets the next n requests that fit reach etcd, whatever becomes of
// the client meanwhile, and loses the answers. It is not for watches, whose
// messages answer nobody: see SwallowEvents.
func (p *Proxy) DropReply(n int, match Match, how Loss) *Rule {
	return p.add(&Rule{match: notWatch(match), left: n, act: func(f *fate) { f.lose = how }})
}

// Delay holds up the next n requests that fit, or their replies, by d, which
// is a minute at most, or until the client gives up. What is behind them in
// the same stream waits too. On watches it is for requests only.
func (p *Proxy) Delay(n int, match Match, side Side, d time.Duration) *Rule {
	if side == Reply {
		match = notWatch(match)
	}
	return p.add(&Rule{match: match, left: n, act: func(f *fate) { f.pauses[side] += min(d, longestDelay) }})
}

// CommitLate keeps the next n requests that fit until Release, then sends them
// to etcd on the proxy's own account. The client never gets an answer. It is
// not for watches.
func (p *Proxy) CommitLate(n int, match Match, how Loss) *Rule {
	r := &Rule{match: notWatch(match), left: n}
	r.act = func(f *fate) { f.late, f.lose = r, how }
	return p.add(r)
}

// CommitAbandoned keeps the next n requests that fit in silence, and sends
// each to etcd as soon as its client has given up, or with Release.
func (p *Proxy) CommitAbandoned(n int, match Match) *Rule {
	r := &Rule{match: notWatch(match), left: n}
	r.act = func(f *fate) { f.late, f.lose, f.alone = r, Silence, true }
	return p.add(r)
}

// SwallowEvents takes the next n events that fit out of watches' responses.
// Header and other events of the response stay; one left without events looks
// like a notice of progress, so that the client believes to have seen all.
func (p *Proxy) SwallowEvents(n int, match EventMatch) *Rule {
	return p.add(&Rule{event: match, left: n})
}

// MuteWatches keeps the next n messages of watches from their clients: events,
// notices of progress, and that a watch was created or has ended. The streams
// stand, and so do the connections.
func (p *Proxy) MuteWatches(n int) *Rule {
	return p.add(&Rule{mute: true, left: n})
}

func notWatch(match Match) Match {
	return func(method string, request any) bool {
		return method != pb.Watch_Watch_FullMethodName && match(method, request)
	}
}

func (p *Proxy) add(r *Rule) *Rule {
	r.p, r.release = p, make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// Hits is how often the rule has fitted: for requests, as soon as they came.
func (r *Rule) Hits() int {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return r.hits
}

// Remove ends the rule. What it has caught already stays caught.
func (r *Rule) Remove() {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.p.rules = slices.DeleteFunc(r.p.rules, func(other *Rule) bool { return other == r })
}

// Release ends the rule, sends what it holds to etcd and returns when etcd has
// answered all of it: nil if it took every request, also where a transaction's
// compares were false. It does nothing for rules that hold nothing.
func (r *Rule) Release(ctx context.Context) error {
	r.Remove()
	r.once.Do(func() { close(r.release) })
	done := make(chan struct{})
	r.p.work.Go(func() { r.held.Wait(); close(done) })
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("release held requests: etcd has not answered: %w", ctx.Err())
	}
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return errors.Join(r.errs...)
}

// settled notes that etcd has answered what the rule held, or never will.
func (r *Rule) settled(err error) {
	if err != nil {
		r.p.mu.Lock()
		r.errs = append(r.errs, err)
		r.p.mu.Unlock()
	}
	r.held.Done()
}

// use takes one of the rule's counts, if it has any. p.mu is held.
func (r *Rule) use() bool {
	if r.left == 0 {
		return false
	}
	if r.left > 0 {
		r.left--
	}
	r.hits++
	return true
}

// judge counts a request and says what befalls it.
func (p *Proxy) judge(method string, msg []byte) fate {
	req := request(method, msg)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[method]++
	var f fate
	for _, r := range p.rules {
		if r.match != nil && r.match(method, req) && r.use() {
			r.act(&f)
		}
	}
	if f.late != nil {
		f.late.held.Add(1)
	}
	return f
}

// muted says whether a message of a watch is to be lost as a whole.
func (p *Proxy) muted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.rules, func(r *Rule) bool { return r.mute && r.use() })
}

// filter takes the events out of a watch's response that are to be lost. What
// it does not change it returns as it came.
func (p *Proxy) filter(msg []byte) []byte {
	var resp pb.WatchResponse
	if decode(msg, &resp) != nil {
		return msg
	}
	before := len(resp.Events)
	p.mu.Lock()
	for _, r := range p.rules {
		if r.event != nil {
			resp.Events = slices.DeleteFunc(resp.Events, func(e *mvccpb.Event) bool { return r.event(e) && r.use() })
		}
	}
	p.mu.Unlock()
	if len(resp.Events) == before {
		return msg
	}
	changed, err := encode(&resp)
	if err != nil {
		return msg
	}
	return changed
}
