package lease

import (
	"math/rand/v2"
	"time"
)

// Bounds of DESIGN §3.
const (
	minMargin   = time.Second
	maxMargin   = 300 * time.Second
	maxInterval = 30 * time.Second
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
// at most 30 seconds.
func Interval(ttl time.Duration) time.Duration { return min(ttl/3, maxInterval) }

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
