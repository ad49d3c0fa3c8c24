package flows

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netns"
)

const (
	// restFactor is how many times as long as it worked a Forgetter rests: a
	// table of 200,000 entries takes a third of a second to read.
	restFactor = 9
	// awaitTimeout bounds how long an ADD waits.
	awaitTimeout = 2 * time.Second
)

// Forgetter forgets the connections of addresses. It is safe for concurrent
// use.
type Forgetter struct {
	host netns.NsHandle
	log  *slog.Logger

	due    chan struct{} // capacity 1: there is something to forget
	urgent chan struct{} // capacity 1: somebody waits for it

	mu    sync.Mutex
	next  set           // what the next pass forgets
	now   set           // what this pass forgets
	ended chan struct{} // closed when a pass ends
}

// New returns a Forgetter for the namespace host, netns.None() for the
// process's own, which it only borrows.
func New(host netns.NsHandle, log *slog.Logger) *Forgetter {
	return &Forgetter{host: host, log: log, due: make(chan struct{}, 1), urgent: make(chan struct{}, 1), next: set{}, ended: make(chan struct{})}
}

// Forget says that nobody has these addresses any more. It returns at once.
func (f *Forgetter) Forget(addrs ...netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range addrs {
		f.next[a.Unmap()] = true
	}
	signal(f.due)
}

// Await returns when nothing is to be forgotten of these addresses any more:
// at once as a rule. It waits for two seconds at most; a pass that is at work
// then goes on, and may forget connections of whoever has the address next.
func (f *Forgetter) Await(ctx context.Context, addrs ...netip.Addr) {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	for {
		ended := f.busyWith(addrs)
		if ended == nil {
			return
		}
		signal(f.urgent)
		select {
		case <-ended:
		case <-ctx.Done():
			f.spare(addrs)
			return
		}
	}
}

// busyWith is closed when the present or next pass ends; nil if none is about
// these addresses.
func (f *Forgetter) busyWith(addrs []netip.Addr) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range addrs {
		if f.next[a.Unmap()] || f.now[a.Unmap()] {
			return f.ended
		}
	}
	return nil
}

func (f *Forgetter) spare(addrs []netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range addrs {
		delete(f.next, a.Unmap())
	}
	f.log.Warn("an address is given out before the connections of the one who had it are forgotten", "addresses", addrs)
}

// Run forgets until ctx ends.
func (f *Forgetter) Run(ctx context.Context) error {
	last := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.due:
		}
		began := time.Now()
		n, err := f.pass()
		if err != nil && err.Error() != last {
			f.log.Warn("connections of pods that are gone are not forgotten", "error", err)
		}
		last = fmt.Sprint(err)
		took := time.Since(began)
		f.log.Debug("connections of pods that are gone are forgotten", "count", n, "took", took)
		rest := time.NewTimer(restFactor * took)
		select {
		case <-ctx.Done():
		case <-rest.C:
		case <-f.urgent:
		}
		rest.Stop()
	}
}

// pass forgets what is due. What fails is not tried again: by the next time
// the address may be somebody's.
func (f *Forgetter) pass() (int, error) {
	f.mu.Lock()
	f.now, f.next = f.next, set{}
	now := f.now
	f.mu.Unlock()
	n, err := forget(f.host, now)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = nil
	close(f.ended)
	f.ended = make(chan struct{})
	return n, err
}

// signal fills a channel of capacity 1.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
