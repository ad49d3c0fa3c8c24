package dataplane

import (
	"log/slog"
	"time"
)

// faultPause is how long a fault that stands is kept quiet.
const faultPause = time.Minute

// faultLog writes each distinct fault at most once a minute, with a count.
type faultLog struct {
	log  *slog.Logger
	seen map[string]*faultCount
}

type faultCount struct {
	written time.Time
	quiet   int
}

func newFaultLog(log *slog.Logger) *faultLog {
	return &faultLog{log: log, seen: map[string]*faultCount{}}
}

// report logs a fault unless it was logged less than a minute ago.
func (f *faultLog) report(key, what, why string) {
	now := time.Now()
	c, ok := f.seen[key]
	if ok && now.Sub(c.written) < faultPause {
		c.quiet++
		return
	}
	repeated := 0
	if ok {
		repeated = c.quiet
	}
	f.forget(now)
	f.seen[key] = &faultCount{written: now}
	f.log.Warn(what, "error", why, "repeated", repeated)
}

// forget drops faults that have not been seen for long.
func (f *faultLog) forget(now time.Time) {
	for key, c := range f.seen {
		if now.Sub(c.written) > 2*faultPause {
			delete(f.seen, key)
		}
	}
}
