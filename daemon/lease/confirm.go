package lease

import (
	"context"
	"time"
)

const (
	// massLeast is how many peers, more than half of all, must be missing at
	// once to be read twice. Fewer happen every day: a rack of two that is
	// switched off, a cluster of three of which one is left.
	massLeast = 3
	// confirmAfter is the least time between the two readings. A node that has
	// its subnet back after its key was deleted has it within that.
	confirmAfter = time.Second
)

// confirmation is which peers that a snapshot lacks may be taken for gone: few
// at once, or what a second list shows too. A mistaken etcdctl del --prefix, or
// a member that answers nonsense, takes no peer from any kernel, if it is over a
// second later. It is a value, and its methods are pure.
type confirmation struct {
	base *Snapshot // its peers are asked for
	last *Snapshot // the latest one shown
	// open: too many were missing; neither are all of them back, nor has a second
	// list said which are not.
	open bool
	// since is when this began, or, while it is not open, when the first peer of
	// base was missing (CLOCK_BOOTTIME); 0 is not yet. What goes within
	// confirmAfter goes at once.
	since time.Duration
}

// shown is after one more snapshot. own is this node's UID.
func (c confirmation) shown(s *Snapshot, own string, now time.Duration) confirmation {
	if !c.open && c.since != 0 && now-c.since >= confirmAfter {
		c.base, c.since = c.last, 0
	}
	c.last = s
	switch missing := c.missing(s, own); {
	case missing == 0:
		return confirmation{base: s, last: s}
	case c.open: // they come back one by one, and the rest is on its way
	case c.mass(s, own):
		c.open, c.since = true, now
	default:
		if c.since == 0 {
			c.since = now
		}
	}
	return c
}

// confirmed is after a second list has shown it too.
func (c confirmation) confirmed() confirmation { return confirmation{base: c.last, last: c.last} }

// mass says that too many peers are missing from a snapshot to believe it at
// once.
func (c confirmation) mass(s *Snapshot, own string) bool {
	missing := c.missing(s, own)
	return missing >= massLeast && 2*missing > c.base.peers(own)
}

// missing is how many peers a snapshot lacks. It is asked for with every event, so
// that it goes through both lists side by side, as they are sorted alike, and
// makes the names, by which they are, only where they differ.
func (c confirmation) missing(s *Snapshot, own string) (n int) {
	if c.base == nil || c.base == s {
		return 0
	}
	left := s.Entries
	for _, e := range c.base.Entries {
		if len(left) > 1 && left[1].Subnets == e.Subnets {
			left = left[1:] // as a rule
		}
		for len(left) > 0 && left[0].Subnets != e.Subnets && left[0].Key() < e.Key() {
			left = left[1:]
		}
		if (len(left) == 0 || left[0].Subnets != e.Subnets) && e.Tenant().UID != own {
			n++
		}
	}
	return n
}

// peers is how many records are others'.
func (s *Snapshot) peers(own string) (n int) {
	for _, e := range s.Entries {
		if e.Tenant().UID != own {
			n++
		}
	}
	return n
}

// confirmLocked takes a snapshot that everybody sees from now on, and has it read
// again if it lacks too much.
func (e *Engine) confirmLocked(s *Snapshot) {
	was, own := e.trust.open, e.cfg.Memory.Get().UID
	e.trust = e.trust.shown(s, own, e.cfg.Clock())
	if !e.trust.open || was {
		return
	}
	e.log.Warn("most peers are gone from etcd at once, they stay in the kernel until a second list says so too",
		"missing", e.trust.missing(s, own), "of", e.trust.base.peers(own), "revision", s.Revision)
	select {
	case e.lacking <- struct{}{}:
	default:
	}
}

// confirm makes the second lists, until ctx ends.
func (e *Engine) confirm(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.lacking:
		}
		for pause := newPause(); ; {
			left, open := e.toReread()
			if !open {
				break
			}
			if left <= 0 {
				left = pause.NextBackOff()
				if s, err := e.list(ctx, e.callTimeout()); err == nil {
					e.reread(s)
				}
			}
			if !wait(ctx, left) {
				return
			}
		}
	}
}

// toReread says whether a second list is wanted, and in what time.
func (e *Engine) toReread() (left time.Duration, open bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.trust.since + confirmAfter - e.cfg.Clock(), e.trust.open
}

// reread takes a second list. One that is older than what the watch has shown
// since counts too, if it lacks most: it was asked for after the first.
func (e *Engine) reread(s *Snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	latest := s.follows(e.snapshot)
	if latest {
		e.observeLocked(s)
	}
	own := e.cfg.Memory.Get().UID
	if !e.trust.open || !s.sameStore(e.snapshot) || !latest && !e.trust.mass(s, own) {
		return
	}
	e.log.Info("a second list lacks them too, they go", "missing", e.trust.missing(s, own), "revision", s.Revision)
	e.trust = e.trust.confirmed()
	e.signal()
}
