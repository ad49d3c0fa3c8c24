package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestQuiet is row P5's log: an hour of a fault that is met every second, whose
// text changes in its numbers, is a line a minute with the count.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		var b bytes.Buffer
		log := slog.New(newQuiet(slog.NewTextHandler(&b, nil)))
		for i := range 3600 {
			log.Warn("cut off", "error", fmt.Errorf("dial 192.0.2.2:%d: refused", i), "remaining", time.Duration(i), "subnet", "10.5.1.0/24")
			log.With("container", "c1").Error("cut off")
			<-time.After(time.Second)
		}
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		if len(lines) != 120 {
			t.Fatalf("%d lines in an hour of two faults, want 120, the first of them:\n%s", len(lines), strings.Join(lines[:min(6, len(lines))], "\n"))
		}
		if want := "repeated=59"; !strings.Contains(lines[2], want) {
			t.Errorf("the third line lacks %s: %s", want, lines[2])
		}
	})
}

// TestQuietPassesOn what is another fault, no fault, or an event.
func TestQuietPassesOn(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(newQuiet(slog.NewTextHandler(&b, nil)))
	for range 2 {
		log.Warn("a")
		log.Warn("b")
		log.Warn("a", "error", errors.New("one"))
		log.Warn("a", "error", errors.New("two"))
		log.Warn("a", "container", "c4", "error", errors.New("one"))
		log.Warn("a", "container", "c1")
		log.Warn("a", "container", "c2")
		log.With("container", "c3").Warn("a")
		log.WithGroup("g").Warn("a", "container", "c3")
		log.Info("a")
		log.Warn("a", "event", "x")
		log.With("event", "x").Warn("a")
	}
	if got := strings.Count(b.String(), "\n"); got != 8+2*3 {
		t.Errorf("%d lines, want 8 faults and twice 3 others:\n%s", got, b.String())
	}
}

// TestQuietForgets: however many faults there are, few are remembered.
func TestQuietForgets(t *testing.T) {
	s, now := &saidBefore{said: map[string]*said{}}, time.Now()
	for i := range 3 * quietMost {
		if _, due := s.due(fmt.Sprint(i), now); !due || len(s.said) > quietMost {
			t.Fatalf("fault %d is due: %t, remembered %d", i, due, len(s.said))
		}
	}
}
