package main

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestUIDIsHeldOnce: two daemons of one identity do not run on one machine, and
// the first stays found however often it is asked for.
func TestUIDIsHeldOnce(t *testing.T) {
	uid := uuid.NewString()
	if uidRuns(uid) {
		t.Error("it runs before it was started")
	}
	l, err := holdUID(uid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holdUID(uid); err == nil || !strings.Contains(err.Error(), uid) {
		t.Errorf("the same identity was held twice: %v", err)
	}
	// More calls than any listener's queue takes.
	for n := range 10_000 {
		if !uidRuns(uid) {
			t.Fatalf("it does not run, says look %d", n)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if uidRuns(uid) {
		t.Error("it runs after its end")
	}
}

// TestUIDOfADaemonThatHangs: a listener whose process is stopped takes nothing,
// and its queue fills. It counts as running.
func TestUIDOfADaemonThatHangs(t *testing.T) {
	uid := uuid.NewString()
	l, err := net.Listen("unix", uidSocket(uid))
	if err != nil {
		t.Fatal(err)
	}
	var calls []net.Conn
	t.Cleanup(func() {
		_ = l.Close()
		for _, c := range calls {
			_ = c.Close()
		}
	})
	for full := false; !full && len(calls) < 100_000; {
		c, err := net.DialTimeout("unix", uidSocket(uid), 100*time.Millisecond)
		if full = err != nil; !full {
			calls = append(calls, c)
		}
	}
	if !uidRuns(uid) {
		t.Errorf("with %d calls in its queue it does not run", len(calls))
	}
}

// TestClocks: all three go on, and nothing jumps by itself.
func TestClocks(t *testing.T) {
	a := clocks()
	b := clocks()
	if a.Boot <= 0 || a.Mono <= 0 || a.Real <= 0 || b.Boot < a.Boot || b.Mono < a.Mono {
		t.Errorf("%+v, then %+v", a, b)
	}
	if gap := b.GapSince(a); gap != "" {
		t.Error(gap)
	}
}
