package lease

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"
)

// An etcd that starves is asked for lists less and less, and at once as before
// when it has answered.
func TestPausesOfTheWatch(t *testing.T) {
	failed := errors.New("deadline exceeded")
	p := newPauses()
	if d := p.after(failed, false, 0); d > 125*time.Millisecond {
		t.Errorf("the first pause is %s", d)
	}
	var last, most time.Duration
	for range 30 {
		last = p.after(failed, false, 0)
		most = max(most, last)
	}
	if last < 15*time.Second || most > maxStarved {
		t.Errorf("after 30 lists that failed the pause is %s, the longest was %s", last, most)
	}
	for range 30 {
		last = p.after(failed, true, time.Second)
	}
	if last < time.Second || last > 2*maxPause {
		t.Errorf("after 30 watches that failed at once the pause is %s", last)
	}
	if d := p.after(failed, false, 0); d > 125*time.Millisecond {
		t.Errorf("a list has come, and the pause after the next that fails is %s", d)
	}
	if d := p.after(failed, true, 2*maxPause); d > 150*time.Millisecond {
		t.Errorf("after a watch that has lived the pause is %s", d)
	}
	p.after(failed, true, 0)
	if d := p.after(nil, true, 0); d != 0 {
		t.Errorf("after the resync period the pause is %s", d)
	}
	if d := p.after(failed, true, 0); d > 150*time.Millisecond {
		t.Errorf("all was well, and the next pause is %s", d)
	}
}

// A node that holds nothing asks less and less too; one that holds a subnet asks
// on as it did.
func TestPausesOfTheLoop(t *testing.T) {
	e := NewEngine(Config{Prefix: prefix, Log: slog.New(slog.DiscardHandler)})
	if d := e.retryIn(); d > 1250*time.Millisecond {
		t.Errorf("the first pause is %s", d)
	}
	var last, most time.Duration
	for range 30 {
		last = e.retryIn()
		most = max(most, last)
	}
	if last < 15*time.Second || most > maxStarved {
		t.Errorf("after 30 lists that failed the pause is %s, the longest was %s", last, most)
	}
	e.held = &tenancy{Holding: Holding{ttl: time.Minute}}
	if d := e.retryIn(); d > 2*retryWaiting {
		t.Errorf("with a subnet at stake the pause is %s", d)
	}
}

// Whatever etcd answers ends the watch's pause.
func TestAnswerEndsTheWatchsPause(t *testing.T) {
	e := NewEngine(Config{Prefix: prefix, Log: slog.New(slog.DiscardHandler)})
	roused := 0
	e.rouse = func() { roused++ }
	e.reachable()
	if roused != 0 {
		t.Error("roused although etcd was not away")
	}
	e.unreachable(context.DeadlineExceeded)
	e.reachable()
	e.reachable()
	if roused != 1 {
		t.Errorf("roused %d times by the end of an outage", roused)
	}
}
