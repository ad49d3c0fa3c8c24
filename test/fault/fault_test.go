package fault

import (
	"fmt"
	"math/rand/v2"
	"os"
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
	seeds := []uint64{1, 2, rand.Uint64N(1 << 32)}
	if os.Getenv("TENURE_SEED") != "" {
		seeds = []uint64{number(t, "TENURE_SEED", 0)}
	}
	length, nodes := duration(t, ciTime), int(number(t, "TENURE_NODES", ciNodes))
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			if v := conduct(t, plan(seed, length, nodes), os.Getenv("TENURE_TENURED")); v.ok() {
				t.Log(v)
			} else {
				t.Error(v)
			}
		})
	}
}

// soak runs random seeds until the time is over, and closes with a table.
func soak(t *testing.T) {
	length, began := duration(t, 30*time.Minute), time.Now()
	var table strings.Builder
	bad := 0
	for runs := 0; time.Since(began) < length; runs++ {
		// By turns small and large, short and long.
		s := plan(rand.Uint64N(1<<32), (20+10*time.Duration(runs%4))*time.Second, ciNodes+runs%6)
		var v verdict
		t.Run(fmt.Sprint("seed", s.Seed), func(t *testing.T) {
			v = conduct(t, s, "")
			t.Log(v)
		})
		word := "well"
		if !v.ok() {
			word = fmt.Sprintf("%d violations: %s", len(v.found), first(v))
			bad++
		}
		line := fmt.Sprintf("%-12d %4s %3d nodes %3d subnets, etcd of %d, %3d faults  %s", s.Seed, s.Time, s.Nodes, s.Pool, s.Members, len(s.Faults), word)
		t.Log(line)
		fmt.Fprintln(&table, line)
	}
	t.Logf("%s:\n%s", time.Since(began).Round(time.Second), table.String())
	if bad > 0 {
		t.Errorf("%d runs found something", bad)
	}
}

// first is what was found first.
func first(v verdict) string {
	if len(v.found) == 0 {
		return "the run was not carried out"
	}
	return v.found[0].text
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
