package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tenure-cni/tenure/test/lab"
)

// idleFor is how long a daemon is watched doing nothing.
const idleFor = 10 * time.Second

// daemonPart measures a daemon by itself: from its start to ready, with a
// subnet to resume, and what it takes while nothing happens.
func daemonPart(ctx context.Context, b *bench) error {
	if b.plainOnly {
		return nil
	}
	t := newTable("Daemon")
	n := b.nodes[0]
	for range b.rounds {
		if err := n.Stop(ctx); err != nil {
			return err
		}
		began := time.Now()
		if err := n.Start(ctx, "--address-cooldown=1s", lab.MetricsListen); err != nil {
			return err
		}
		if err := readySoon(ctx, n); err != nil {
			return err
		}
		t.add("tenured", "restart to ready, ms", ms(time.Since(began)))
	}
	if err := idle(ctx, n, t); err != nil {
		return err
	}
	return t.print(os.Stdout)
}

// readySoon polls faster than lab.WaitReady: here the time is the result.
func readySoon(ctx context.Context, n *lab.Node) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		st, err := n.Status(ctx)
		if err == nil && st.Ready {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", n.Host, errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}

func idle(ctx context.Context, n *lab.Node, t *table) error {
	before, err := processTicks(n.Pid())
	if err != nil {
		return err
	}
	if err := pause(ctx, idleFor); err != nil {
		return err
	}
	after, err := processTicks(n.Pid())
	if err != nil {
		return err
	}
	// A tick is 1/100 s, so ticks per second are percent of a core.
	t.add("tenured", "idle, % of a core", (after-before)/idleFor.Seconds())
	rss, err := residentMiB(n.Pid())
	if err != nil {
		return err
	}
	t.add("tenured", "resident, MiB", rss)
	return nil
}

// processTicks is the CPU time of a process in user and kernel.
func processTicks(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	var utime, stime float64
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("read CPU time: unexpected stat %q", b)
	}
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &utime, &stime); err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	return utime + stime, nil
}

func residentMiB(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, fmt.Errorf("read memory: %w", err)
	}
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0, fmt.Errorf("read memory: unexpected statm %q", b)
	}
	pages, err := strconv.ParseFloat(fields[1], 64)
	if err != nil {
		return 0, fmt.Errorf("read memory: %w", err)
	}
	return pages * float64(os.Getpagesize()) / (1 << 20), nil
}
