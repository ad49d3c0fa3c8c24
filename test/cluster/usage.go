package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/lab"
)

// Usage is what a daemon needs of the machine; memory and files in bytes.
type Usage struct {
	Descriptors, Threads, Goroutines, RSS, Ledger, Log int
}

// Use is what the node's daemon, which was started with lab.MetricsListen, needs
// now.
func Use(ctx context.Context, t *testing.T, n *lab.Node) Usage {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d", n.Pid())
	open, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		t.Fatal(err)
	}
	_, page, err := n.Page(ctx, "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	ledger := 0
	if path := filepath.Join(n.RunDir, "ledger.json"); exists(path) { // not before the first pod
		ledger = len(content(t, path))
	}
	status := content(t, filepath.Join(proc, "status"))
	return Usage{
		Descriptors: len(open),
		Threads:     figure(t, status, `(?m)^Threads:\s+(\d+)`),
		RSS:         figure(t, status, `(?m)^VmRSS:\s+(\d+) kB`) << 10,
		Goroutines:  figure(t, page, `(?m)^go_goroutines (\d+)`),
		Ledger:      ledger,
		Log:         len(content(t, n.LogFile())),
	}
}

// Flat waits until the daemon needs no more than before, and the allowance:
// what the last calls and events took ends a moment after them.
func Flat(ctx context.Context, t *testing.T, n *lab.Node, before, allowance Usage) {
	t.Helper()
	var now Usage
	defer func() { t.Logf("before %+v\nafter  %+v", before, now) }()
	Eventually(ctx, t, 15*time.Second, "the daemon needs what it needed before", func() error {
		now = Use(ctx, t, n)
		var errs []error
		for _, c := range []struct {
			what              string
			before, now, more int
		}{
			{"descriptors", before.Descriptors, now.Descriptors, allowance.Descriptors},
			{"threads", before.Threads, now.Threads, allowance.Threads},
			{"goroutines", before.Goroutines, now.Goroutines, allowance.Goroutines},
			{"bytes of memory", before.RSS, now.RSS, allowance.RSS},
			{"bytes of ledger", before.Ledger, now.Ledger, allowance.Ledger},
			{"bytes of log", before.Log, now.Log, allowance.Log},
		} {
			if c.now > c.before+c.more {
				errs = append(errs, fmt.Errorf("%s: %d, before %d, and %d more are allowed", c.what, c.now, c.before, c.more))
			}
		}
		return errors.Join(errs...)
	})
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func figure(t *testing.T, text, pattern string) int {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in %s", pattern, text)
	}
	v, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return v
}
