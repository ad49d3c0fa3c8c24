package lease

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Bounds of DESIGN §3.
const (
	minMargin   = time.Second
	maxMargin   = 300 * time.Second
	maxInterval = 30 * time.Second
	minInterval = 100 * time.Millisecond
	maxCall     = 5 * time.Second
)

// Margin is how long before the earliest end of a lease the fence closes:
// a tenth of the TTL, at least one second, at most 300. It covers clocks that
// are being slewed and the granularity of etcd's own timers.
func Margin(ttl time.Duration) time.Duration {
	return min(max(ttl/10, minMargin), maxMargin)
}

// Deadline is the fence's F for a lease whose keep-alive was sent at t0 (both
// CLOCK_BOOTTIME) and whose granted TTL is ttl. It is never before t0.
func Deadline(t0, ttl time.Duration) time.Duration {
	return max(t0, t0+ttl-Margin(ttl))
}

// Interval is the time between two cycles without jitter: a third of the TTL,
// at most 30 seconds and never nothing.
func Interval(ttl time.Duration) time.Duration { return max(min(ttl/3, maxInterval), minInterval) }

// CallTimeout bounds every etcd call: a third of the TTL, at most 5 seconds.
func CallTimeout(ttl time.Duration) time.Duration {
	if ttl <= 0 {
		return maxCall
	}
	return min(ttl/3, maxCall)
}

// jitter spreads d by ±10 %.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()*0.2-0.1)*float64(d))
}

// Clocks is one reading of the machine's three clocks, each as the time since
// its own zero.
type Clocks struct {
	Boot time.Duration // CLOCK_BOOTTIME: F is of this one
	Mono time.Duration // CLOCK_MONOTONIC: stands still while suspended
	Real time.Duration // CLOCK_REALTIME: the wall clock
}

// gapAbove is the least jump that counts. A clock that is being slewed (500
// ppm) drifts by 15 ms between two cycles, a leap second jumps by one second.
const gapAbove = 500 * time.Millisecond

// GapSince says in words what jumped between two readings: BOOTTIME against
// MONOTONIC is a suspend; REALTIME against BOOTTIME is a step of the wall
// clock, which is also all that a guest sees of a pause that stopped every
// other clock. It is "" if nothing did. The zero reading has no gap.
func (c Clocks) GapSince(before Clocks) string {
	if before == (Clocks{}) {
		return ""
	}
	if slept := (c.Boot - c.Mono) - (before.Boot - before.Mono); slept.Abs() > gapAbove {
		return fmt.Sprintf("this machine was suspended for %s", slept.Round(time.Millisecond))
	}
	if step := (c.Real - c.Boot) - (before.Real - before.Boot); step.Abs() > gapAbove {
		return fmt.Sprintf("the wall clock was stepped by %s, or this machine was paused as long", step.Round(time.Millisecond))
	}
	return ""
}
