package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	// room is how many pods a /24 takes: all but base, gateway and broadcast.
	room = 253
	// stretch is how many ADDs make one column; those of the last few, up to
	// room, are in none.
	stretch = 50
	// coolDown is more than --address-cooldown of the bench's daemons.
	coolDown = 1500 * time.Millisecond
)

// fullPart fills a subnet to its last address, one ADD after the other: the
// last must not take longer than the first, and the one too many is refused at
// once.
func fullPart(ctx context.Context, b *bench) (err error) {
	callers, err := b.callers(ctx)
	if err != nil {
		return err
	}
	if b.plainOnly {
		callers = callers[:1]
	} else {
		callers = callers[:2] // Tenure and the reference
	}
	defer func() { err = errors.Join(err, vanish(callers)) }()
	for _, c := range callers {
		if err := c.sandboxes(ctx, room+1); err != nil {
			return err
		}
	}
	if err := pause(ctx, coolDown); err != nil {
		return err
	}
	t := newTable("ADDs that fill a /24, ms: p50 / p99").cells(quantiles)
	for i := range room {
		for _, c := range rotated(callers, i) {
			_, took, err := c.call(ctx, "ADD", c.pods[i], nil)
			if err != nil {
				return fmt.Errorf("pod %d: %w", i+1, err)
			}
			if i < room/stretch*stretch {
				t.add(c.name, column(i), ms(took))
			}
		}
	}
	var refusals []string
	for _, c := range callers {
		answer, took, err := c.try(ctx, "ADD", c.pods[room], nil)
		if err != nil {
			return err
		}
		if answer.Exit == 0 {
			return fmt.Errorf("%s gave an address to pod %d of a /24", c.name, room+1)
		}
		t.add(c.name, "one too many", ms(took))
		refusals = append(refusals, fmt.Sprintf("%s refuses pod %d with code %d: %s", c.name, room+1, answer.Err.Code, answer.Err.Msg))
	}
	for i := range room {
		for _, c := range callers {
			if _, _, err := c.call(ctx, "DEL", c.pods[i], nil); err != nil {
				return fmt.Errorf("pod %d: %w", i+1, err)
			}
		}
	}
	if err := t.print(os.Stdout); err != nil {
		return err
	}
	for _, r := range refusals {
		fmt.Println(r)
	}
	if !b.plainOnly {
		last, first := t.at(ours, column(room/stretch*stretch-1), 50), t.at(ours, column(0), 50)
		b.goals = append(b.goals, goal{fmt.Sprintf("the last %d ADDs of a /24, of the first %d", stretch, stretch), 1.25, last / first})
	}
	return nil
}

// column is that of the i-th ADD, from 0.
func column(i int) string {
	first := i/stretch*stretch + 1
	return fmt.Sprintf("%d–%d", first, first+stretch-1)
}
