package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// quietFor is how long a fault that has been told is not told again: a minute,
// less what the clock of one who counts a minute himself may be ahead.
const quietFor = time.Minute - 100*time.Millisecond

// quietMost bounds how many faults are remembered.
const quietMost = 4096

// quiet is a log in which a fault that repeats is told once a minute, with how
// often it was not: whoever meets it may say so each time. Faults are warnings
// and errors; what else there is to tell is passed on, and so is what has the
// key "event", which programs count.
type quiet struct {
	slog.Handler
	before *saidBefore
	attrs  string // of With, as they tell a fault from another
	event  bool
}

type saidBefore struct {
	mu   sync.Mutex
	said map[string]*said
}

type said struct {
	at   time.Time
	left int // not told since
}

func newQuiet(h slog.Handler) *quiet {
	return &quiet{Handler: h, before: &saidBefore{said: map[string]*said{}}}
}

// Handle implements slog.Handler.
func (q *quiet) Handle(ctx context.Context, r slog.Record) error {
	has := map[string]bool{}
	r.Attrs(func(a slog.Attr) bool { has[a.Key] = true; return true })
	if r.Level < slog.LevelWarn || q.event || has["event"] {
		return q.Handler.Handle(ctx, r)
	}
	key := r.Message + q.attrs
	r.Attrs(func(a slog.Attr) bool {
		// What keeps one pod from being added keeps each next try from it, and
		// runtimes try for ever, each time with another container.
		if !has["error"] || a.Key != "container" {
			key += distinct(a)
		}
		return true
	})
	left, due := q.before.due(key, r.Time)
	if !due {
		return nil
	}
	if left > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("repeated", left))
	}
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (q *quiet) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := &quiet{q.Handler.WithAttrs(attrs), q.before, q.attrs, q.event}
	for _, a := range attrs {
		next.attrs += distinct(a)
		next.event = next.event || a.Key == "event"
	}
	return next
}

// WithGroup implements slog.Handler.
func (q *quiet) WithGroup(name string) slog.Handler {
	return &quiet{q.Handler.WithGroup(name), q.before, q.attrs + "\x00" + name, q.event}
}

// distinct is what of a line's attribute tells a fault from another: neither how
// long something took, nor the numbers in an error, such as a port.
func distinct(a slog.Attr) string {
	v := a.Value.Resolve()
	switch {
	case v.Kind() == slog.KindDuration, v.Kind() == slog.KindInt64, v.Kind() == slog.KindUint64, v.Kind() == slog.KindTime:
		return "\x00" + a.Key
	case slices.Contains([]string{"error", "why", "what"}, a.Key):
		return "\x00" + a.Key + "=" + withoutNumbers(v.String())
	}
	return "\x00" + a.Key + "=" + v.String()
}

func withoutNumbers(s string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, s)
}

// due says whether a fault is to be told now, and how often it was not.
func (s *saidBefore) due(key string, now time.Time) (left int, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, known := s.said[key]
	if known && now.Sub(one.at) < quietFor {
		one.left++
		return 0, false
	}
	if known {
		left = one.left
	}
	if len(s.said) >= quietMost {
		s.forget(now)
	}
	s.said[key] = &said{at: now}
	return left, true
}

// forget drops what would be told again anyway, or all of it: rather a line too
// many than a daemon that grows.
func (s *saidBefore) forget(now time.Time) {
	for key, one := range s.said {
		if now.Sub(one.at) >= quietFor {
			delete(s.said, key)
		}
	}
	if len(s.said) >= quietMost {
		clear(s.said)
	}
}
