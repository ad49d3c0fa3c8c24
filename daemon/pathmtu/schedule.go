package pathmtu

import (
	"time"
)

const (
	// rest is between two checks.
	rest = 500 * time.Millisecond
	// minute is how often a way that is well is checked, or where there are many
	// of them one every share, so that the load stays what it is.
	minute = time.Minute
	share  = 600 * time.Millisecond
	// again is how often a hole is.
	again = 5 * time.Second
	// firstPatience is how soon one is that did not answer; each time it does
	// not, twice as long, up to that.
	firstPatience = 2 * time.Second
	// idle is how often the ways are looked at while none is due.
	idle = time.Second
)

// known is what is known about a way.
type known struct {
	verdict Verdict
	passes  int
	// due is when it is to be checked next, patience how long after the last
	// check where that said nothing.
	due      time.Time
	patience time.Duration
}

// every is how often each of so many ways is checked while it is well.
func every(ways int) time.Duration { return max(minute, time.Duration(ways)*share) }

// after is what is known once a check of one among so many ways has said
// something.
func (k known) after(v Verdict, passes int, now time.Time, ways int) known {
	switch {
	case v == Well:
		return known{verdict: Well, due: now.Add(every(ways))}
	case v == Holed:
		return known{verdict: Holed, passes: passes, due: now.Add(again)}
	case k.verdict == Holed:
		k.due = now.Add(again) // who does not answer does not take it back
		return k
	}
	k.patience = min(max(2*k.patience, firstPatience), every(ways))
	k.due = now.Add(k.patience)
	return k
}

// next is the way to check now: one that never was, else the one that is due
// for longest. It is false if there is none.
func next(ways []Way, seen map[Way]known, now time.Time) (Way, bool) {
	var due Way
	var since time.Time
	for _, w := range ways {
		k, ok := seen[w]
		if !ok {
			return w, true
		}
		if !k.due.After(now) && (since.IsZero() || k.due.Before(since)) {
			due, since = w, k.due
		}
	}
	return due, !since.IsZero()
}

// forget leaves only what is known about these ways.
func forget[T any](ways []Way, seen map[Way]T) map[Way]T {
	left := make(map[Way]T, len(seen))
	for _, w := range ways {
		if k, ok := seen[w]; ok {
			left[w] = k
		}
	}
	return left
}
