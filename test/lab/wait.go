package lab

import (
	"context"
	"fmt"
	"time"
)

const (
	// pollEvery is how often a condition is looked at.
	pollEvery = 25 * time.Millisecond
	// defaultWait bounds a wait whose context has no deadline.
	defaultWait = 20 * time.Second
)

// Eventually calls probe every 25 ms until it returns nil. It gives up when ctx
// ends, or after 20 s where ctx has no deadline; the error then names what was
// waited for and wraps probe's last answer.
func Eventually(ctx context.Context, what string, probe func() error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultWait)
		defer cancel()
	}
	began := time.Now()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := probe()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not so after %s: %w", what, time.Since(began).Round(time.Millisecond), err)
		case <-tick.C:
		}
	}
}
