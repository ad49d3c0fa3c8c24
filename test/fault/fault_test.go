package fault

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What CI runs: two seeds that are always the same, and one that never is.
const (
	ciTime  = 20 * time.Second
	ciNodes = 5
)

// TestFaults lets clusters go through schedules of faults and judges each. What
// the environment asks for is in the package's comment.
func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	if os.Getenv("TENURE_SOAK") != "" {
		soak(t)
		return
	}
	// 9 has an etcd of three members and 20 one of one, which is saved, wiped and
	// restored; both have as many subnets as nodes.
	seeds := []uint64{9, 20, rand.Uint64N(1 << 32)}
	if os.Getenv("TENURE_SEED") != "" {
		seeds = []uint64{number(t, "TENURE_SEED", 0)}
	}
	length, nodes := duration(t, ciTime), int(number(t, "TENURE_NODES", ciNodes))
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			if v := conduct(t, plan(seed, length, nodes)); v.ok() {
				t.Log(v)
			} else {
				t.Error(v)
			}
		})
	}
}

// soak runs random seeds until the time is over or somebody stops it (Ctrl-C),
// and closes with a table.
func soak(t *testing.T) {
	stopped, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	length, began := duration(t, 30*time.Minute), time.Now()
	var table strings.Builder
	bad := 0
	for runs := 0; time.Since(began) < length && stopped.Err() == nil; runs++ {
		// By turns small and large, short and long.
		s := plan(rand.Uint64N(1<<32), (20+10*time.Duration(runs%4))*time.Second, ciNodes+runs%6)
		var v verdict
		t.Run(fmt.Sprint("seed", s.Seed), func(t *testing.T) {
			if v = conduct(t, s); v.ok() {
				t.Log(v)
			} else {
				t.Error(v)
			}
		})
		word := "well"
		if !v.ok() {
			word = fmt.Sprintf("%d violations: %s", len(v.found), first(v))
			bad++
		}
		fmt.Fprintf(&table, "%-10d %3.0fs %3d nodes %3d subnets, etcd of %d, %2d faults, %d missed  %s\n",
			s.Seed, s.Time.Seconds(), s.Nodes, s.Pool, s.Members, len(s.Faults), v.missed(), word)
	}
	t.Logf("%s, %d runs with violations:\n%s", time.Since(began).Round(time.Second), bad, table.String())
}

// first is what was found first.
func first(v verdict) string {
	if len(v.found) == 0 {
		return "the run was not carried out"
	}
	text, _, _ := strings.Cut(v.found[0].text, "\n")
	return text
}

// duration is TENURE_TIME.
func duration(t *testing.T, otherwise time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("TENURE_TIME")
	if text == "" {
		return otherwise
	}
	if seconds, err := strconv.Atoi(text); err == nil {
		return time.Duration(seconds) * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("TENURE_TIME: %v", err)
	}
	return d
}

func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
