package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

// crowds are how many pods come, and go, at once.
func crowds() []int { return []int{20, 50, 100, 200} }

// judged is the crowd that the goal is about.
const judged = 100

// crowdPart times calls that a node gets at once: all of them together, and the
// slowest of a hundred.
func crowdPart(ctx context.Context, b *bench) (err error) {
	callers, err := b.callers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vanish(callers)) }()
	sizes := crowds()
	for _, c := range callers {
		if err := c.sandboxes(ctx, sizes[len(sizes)-1]); err != nil {
			return err
		}
	}
	walls, tails := map[string]*table{}, map[string]*table{}
	for _, verb := range []string{"ADD", "DEL"} {
		walls[verb], tails[verb] = newTable(verb+"s at once, ms until the last is answered"), newTable(verb+"s at once, p99 of a call, ms")
	}
	for range b.rounds {
		for turn, n := range sizes {
			for _, c := range rotated(callers, turn) {
				for _, verb := range []string{"ADD", "DEL"} {
					all, tail := c.atOnce(ctx, verb, n)
					walls[verb].add(c.name, size(n), ms(all))
					tails[verb].add(c.name, size(n), tail)
				}
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	failures := 0
	for _, verb := range []string{"ADD", "DEL"} {
		for _, c := range callers {
			walls[verb].add(c.name, "failed", float64(c.failed[verb]))
		}
		failures += callers[0].failed[verb]
		for _, t := range []*table{walls[verb], tails[verb]} {
			if !b.plainOnly {
				t.ratio(ours, reference)
			}
			if err := t.print(os.Stdout); err != nil {
				return err
			}
		}
	}
	if !b.plainOnly {
		b.goals = append(b.goals,
			goal{fmt.Sprintf("%d ADDs at once, of the reference's", judged), 0.4, walls["ADD"].ratioOf(ours, reference, size(judged))},
			goal{"calls at once that failed", 0, float64(failures)})
	}
	return nil
}

// size is the column of n calls at once.
func size(n int) string { return strconv.Itoa(n) }

// atOnce makes n simultaneous calls. It returns the time until the last is
// answered and the 99th percentile of a single one's.
func (c *caller) atOnce(ctx context.Context, verb string, n int) (all time.Duration, tail float64) {
	took, errs := make([]float64, n), make([]error, n)
	began := time.Now()
	var group sync.WaitGroup
	for i, pod := range c.pods[:n] {
		group.Go(func() {
			_, d, err := c.call(ctx, verb, pod, nil)
			took[i], errs[i] = ms(d), err
		})
	}
	group.Wait()
	all = time.Since(began)
	for _, err := range errs {
		if err == nil {
			continue
		}
		if c.failed[verb]++; c.failed[verb] == 1 {
			fmt.Fprintf(os.Stderr, "bench: %d at once: %v\n", n, err)
		}
	}
	return all, percentile(took, 99)
}
