package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestHedged: the second try goes out after a quarter of the time, the first answer
// counts, an early error is an answer, and nothing is left running.
func TestHedged(t *testing.T) {
	errNo := errors.New("no")
	type reply struct {
		after time.Duration
		err   error
	}
	const never = time.Hour
	for name, c := range map[string]struct {
		replies []reply
		took    time.Duration
		err     error
	}{
		"quick":                 {[]reply{{time.Second, nil}}, time.Second, nil},
		"quick error":           {[]reply{{time.Second, errNo}}, time.Second, errNo},
		"first hangs":           {[]reply{{never, nil}, {time.Second, nil}}, 3500 * time.Millisecond, nil},
		"first is slow":         {[]reply{{7 * time.Second, nil}, {never, nil}}, 7 * time.Second, nil},
		"second refused":        {[]reply{{7 * time.Second, nil}, {time.Second, errNo}}, 7 * time.Second, nil},
		"both hang":             {[]reply{{never, nil}, {never, nil}}, 10 * time.Second, context.DeadlineExceeded},
		"refused after a while": {[]reply{{6 * time.Second, errNo}, {never, nil}}, 10 * time.Second, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var calls atomic.Int64
				_, err := hedged(t.Context(), patient(10*time.Second), func(ctx context.Context) (int, error) {
					r := c.replies[calls.Add(1)-1]
					select {
					case <-time.After(r.after):
						return 0, r.err
					case <-ctx.Done():
						return 0, ctx.Err()
					}
				})
				if took := time.Since(began); took != c.took || !errors.Is(err, c.err) || int(calls.Load()) != len(c.replies) {
					t.Errorf("took %s with %d calls and %v, want %s, %d and %v", took, calls.Load(), err, c.took, len(c.replies), c.err)
				}
			})
		})
	}
}

// TestPatience: a second answer is asked for at once where the fence closes soon.
func TestPatience(t *testing.T) {
	for _, c := range []struct{ ttl, remaining, again time.Duration }{
		{24 * time.Hour, 23 * time.Hour, maxCall / 4},
		{24 * time.Hour, 11 * time.Hour, hurry},
		{6 * time.Second, 3 * time.Second, 500 * time.Millisecond},
		{6 * time.Second, 3*time.Second - 1, hurry},
		{6 * time.Second, 0, 500 * time.Millisecond}, // closed: a storm of newcomers asks no more than it must
	} {
		if p := patientFor(c.ttl, c.remaining); p.again != c.again || p.timeout != CallTimeout(c.ttl) {
			t.Errorf("lease %s, %s left: %+v, want a second call after %s", c.ttl, c.remaining, p, c.again)
		}
	}
}
