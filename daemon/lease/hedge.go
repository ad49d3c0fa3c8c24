package lease

import (
	"context"
	"time"
)

// patience is how long an answer is waited for, and after what time it is asked for
// once more.
type patience struct{ timeout, again time.Duration }

// patient waits for a quarter of the time.
func patient(timeout time.Duration) patience { return patience{timeout, timeout / 4} }

// hurry is how long an etcd that is well takes for an answer, and then some.
const hurry = 100 * time.Millisecond

// patientFor is for a call about a lease of length ttl, of a node whose fence closes
// after remaining. Where that is near, several calls may each go to a member that
// hangs, and there is no time to lose.
func patientFor(ttl, remaining time.Duration) patience {
	p := patient(CallTimeout(ttl))
	if 0 < remaining && remaining < ttl/2 {
		p.again = min(p.again, hurry)
	}
	return p
}

// hedged makes a call that may be made twice without harm. Where it has not been
// answered in good time it is made again beside the first, which the client's
// balancer sends to another endpoint: one member that hangs must not cost a whole
// cycle, nor all that a move to another lease asks. The first answer counts, and of
// two errors the later one. It returns when both have ended.
//
// Both are sent after the caller has read t0, so whichever answers, the
// deadline counts from before it.
func hedged[T any](ctx context.Context, p patience, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 2)
	running := 0
	try := func() {
		running++
		go func() {
			v, err := call(ctx)
			answers <- answer{v, err}
		}()
	}
	defer func() {
		cancel()
		for ; running > 0; running-- {
			<-answers
		}
	}()
	try()
	again := time.NewTimer(p.again)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			try()
		case a := <-answers:
			running--
			if a.err == nil || running == 0 {
				return a.value, a.err
			}
		}
	}
}
