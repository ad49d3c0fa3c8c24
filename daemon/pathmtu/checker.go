package pathmtu

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Checker checks the ways to the peers. It is safe for concurrent use.
type Checker struct {
	ways func() []Way
	// changed is told when Holes is another.
	changed func()
	log     *slog.Logger

	mu   sync.Mutex
	seen map[Way]known
	// holed are those in seen that lose packets, with the size that passes.
	holed map[Way]int
}

// New returns a Checker of what ways lists each time it is asked: those that
// should carry packets now, nil where that cannot be told, as of a node whose
// overlay is closed. changed is called when Holes is another than before.
func New(ways func() []Way, changed func(), log *slog.Logger) *Checker {
	return &Checker{ways: ways, changed: changed, log: log, seen: map[Way]known{}, holed: map[Way]int{}}
}

// Holes are the ways that lose large packets, in the order of their addresses.
func (c *Checker) Holes() []Hole {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Hole
	for w, passes := range c.holed {
		all = append(all, Hole{w, passes})
	}
	slices.SortFunc(all, func(a, b Hole) int { return a.To.Compare(b.To) })
	return all
}

// Run checks one way after the other until ctx ends.
func (c *Checker) Run(ctx context.Context) error {
	for {
		pause := idle
		if w, ways, ok := c.choose(time.Now()); ok {
			c.check(ctx, w, ways)
			pause = rest
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

// choose is the way to check now, of so many.
func (c *Checker) choose(now time.Time) (w Way, count int, ok bool) {
	ways := c.ways()
	before := c.Holes()
	c.mu.Lock()
	// More than there are ways: some are none any more.
	if ways != nil && len(c.seen) > len(ways) {
		c.seen, c.holed = forget(ways, c.seen), forget(ways, c.holed)
	}
	w, ok = next(ways, c.seen, now)
	c.mu.Unlock()
	c.tell(before)
	return w, len(ways), ok
}

// check checks one way of so many.
func (c *Checker) check(ctx context.Context, w Way, count int) {
	e, err := openEcho(w.From, w.To)
	if err != nil {
		c.log.Debug("way to a peer not checked", "peer", w.To, "error", err)
	}
	c.mu.Lock()
	k := c.seen[w]
	c.mu.Unlock()
	verdict, passes := Unknown, 0
	if err == nil {
		verdict, passes = check(w.Size, k.passes, func(size int, wait time.Duration) (answer, time.Duration) {
			if ctx.Err() != nil {
				return silence, 0
			}
			return e.ask(size, wait)
		})
		e.close()
	}
	if ctx.Err() != nil {
		return
	}
	before := c.Holes()
	c.mu.Lock()
	k = k.after(verdict, passes, time.Now(), count)
	if c.seen[w] = k; k.verdict == Holed {
		c.holed[w] = k.passes
	} else {
		delete(c.holed, w)
	}
	c.mu.Unlock()
	c.tell(before)
}

// tell logs what has changed since before.
func (c *Checker) tell(before []Hole) {
	now := c.Holes()
	if slices.Equal(before, now) {
		return
	}
	for _, h := range now {
		if !slices.Contains(before, h) {
			c.log.Warn("the way to a peer loses large packets", "peer", h.To, "size", h.Size, "passes", h.Passes)
		}
	}
	for _, h := range before {
		if !slices.ContainsFunc(now, func(n Hole) bool { return n.To == h.To }) {
			c.log.Info("the way to a peer is known to lose large packets no more", "peer", h.To, "size", h.Size)
		}
	}
	c.changed()
}
