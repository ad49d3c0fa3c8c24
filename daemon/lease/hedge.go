package lease

import (
	"context"
	"time"
)

// hedged makes a call that may be made twice without harm. Where it has not been
// answered after a quarter of the timeout it is made again beside the first, which
// the client's balancer sends to another endpoint: one member that hangs must
// not cost a whole cycle, nor all that a move to another lease asks. The first answer counts, and of two errors the later
// one. It returns when both have ended.
//
// Both are sent after the caller has read t0, so whichever answers, the
// deadline counts from before it.
func hedged[T any](ctx context.Context, timeout time.Duration, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
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
	again := time.NewTimer(timeout / 4)
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
