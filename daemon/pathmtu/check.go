package pathmtu

import (
	"net/netip"
	"time"
)

// Way is the way to a peer's pods. It is comparable: another size is another
// way.
type Way struct {
	// From is this node's address, To the peer's, both of one family.
	From, To netip.Addr
	// Size is the largest packet that pods may send there, in bytes with its
	// IP header.
	Size int
}

// Hole is a way that loses large packets in silence.
type Hole struct {
	Way
	// Passes is the largest size that was seen to arrive, in bytes.
	Passes int
}

// Verdict is what one check says about a way.
type Verdict int

// The verdicts.
const (
	// Unknown: nobody answers, or not reliably.
	Unknown Verdict = iota
	// Well: large packets arrive, or whoever sends one is told that it is too
	// large.
	Well
	// Holed: small ones arrive, and large ones are lost.
	Holed
)

// answer is what became of one request.
type answer int

const (
	silence  answer = iota
	answered        // the peer has sent it back
	tooLarge        // this host, or one on the way, said so
)

// probe sends one request of size bytes and waits for what becomes of it, at
// most so long. It says how long an answer took.
type probe func(size int, wait time.Duration) (answer, time.Duration)

const (
	// small is a size that every way takes, in bytes.
	small = 128
	// fine is how exactly the size that passes is looked for, in bytes.
	fine = 8

	smallTries = 2
	largeTries = 3

	// An answer is waited for ten times as long as the first one took, within
	// these bounds.
	waitLeast = 200 * time.Millisecond
	waitMost  = time.Second
	waitTimes = 10
)

// check judges a way. before is the size that passed when the way was found to
// be a hole, 0 if it was not: then that is not looked for again as long as it
// passes.
func check(size, before int, p probe) (Verdict, int) {
	if size <= small {
		return Unknown, 0
	}
	ok, took := try(p, small, smallTries, waitMost)
	if ok != answered {
		return Unknown, 0
	}
	wait := min(max(waitTimes*took, waitLeast), waitMost)
	if a, _ := try(p, size, largeTries, wait); a != silence {
		return Well, 0
	}
	alive := func() bool {
		a, _ := try(p, small, smallTries, wait)
		return a == answered
	}
	if !alive() {
		return Unknown, 0 // it has gone meanwhile
	}
	passes := before
	if before > 0 {
		ok, _ = try(p, before, smallTries, wait)
	}
	if before == 0 || ok != answered {
		passes = largest(size, wait, p)
	}
	if size-passes <= fine || !alive() {
		return Unknown, 0 // so it was chance, or the peer has gone
	}
	return Holed, passes
}

// largest looks for the largest size that is answered; small ones are.
func largest(size int, wait time.Duration, p probe) int {
	low, high := small, size
	for high-low > fine {
		middle := (low + high) / 2
		if a, _ := try(p, middle, smallTries, wait); a == answered {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// try sends up to so many requests until one is not met by silence.
func try(p probe, size, tries int, wait time.Duration) (a answer, took time.Duration) {
	for range tries {
		if a, took = p(size, wait); a != silence {
			return a, took
		}
	}
	return a, took
}
