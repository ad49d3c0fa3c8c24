package model

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const file = "tenure.pml"

// A world is a configuration of the model, and the guards without which a
// promise fails in it.
type world struct {
	name   string
	flags  string
	guards string
	// long: only with TENURE_LONG, for it takes minutes or gigabytes.
	long bool
}

var worlds = []world{
	{"leases end", "", "NO_MARGIN NO_T0 NO_ABSOLUTE", false},
	{"three nodes", "-DNODES=3 -DLEASES=2", "", false},
	{"three nodes, more leases", "-DNODES=3", "", true},
	{"two subnets", "-DSUBNETS=2", "NO_ABORT", false},
	{"a daemon or a machine crashes, with its state or without", "-DCRASHES=1 -DLEASES=2", "NO_DEAD NO_SILENCE", false},
	{"crashes, more leases", "-DCRASHES=1 -DLEASES=3", "", true},
	{"a state directory on two machines", "-DCLONE", "NO_MACHINE", false},
	{"two machines with one name and address", "-DSAME_ADDRESS -DCRASHES=1 -DLEASES=2", "", false},
	{"updates", "-DUPDATES=2 -DLEASES=2", "NO_MOD_COMPARE", false},
	{"LeaseTTL changed", "-DTTLCHANGE", "NO_CUT NO_PATIENCE", false},
	{"a node leaves", "-DLEAVES", "NO_CLOSE_FIRST NO_LEASE_COMPARE", false},
	{"forced release", "-DRELEASE", "NO_TOMBSTONE NO_PROOF", false},
	{"a key without a lease", "-DRESERVED -DLEASES=2", "NO_ABSENT", false},
	{"the store is wiped", "-DWIPE", "NO_SETTLE", false},
	{"the store is restored", "-DRESTORE -DLEASES=2", "NO_COUNTS", false},
	{"restored, more leases", "-DRESTORE -DLEASES=3", "", true},
	{"a leader of etcd goes on late", "-DLEADERS=1 -DLEASES=2", "NO_TERM NO_BEFORE", false},
	{"a leader goes on late, more leases", "-DLEADERS=1", "", true},
	{"a leader goes on late in a store that was restored", "-DLEADERS=1 -DRESTORE -DLEASES=2", "NO_ANEW NO_FRESH", true},
	{"a leader goes on late in a store that was wiped", "-DLEADERS=1 -DWIPE -DLEASES=2", "", true},
	{"a guest's clocks stand still", "-DFREEZE", "NO_EPOCH", false},
}

// TestPromises has spin look at every state of every world.
func TestPromises(t *testing.T) {
	needSpin(t)
	for _, w := range worlds {
		if w.long && os.Getenv("TENURE_LONG") == "" {
			continue // what is not looked at is not among those that pass
		}
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			v := verify(t, w.flags)
			if v.errors != 0 || !v.complete {
				t.Errorf("errors %d, complete %t:\n%s\n%s", v.errors, v.complete, v.output, v.trail)
			}
			t.Logf("%d states, depth %d", v.states, v.depth)
		})
	}
}

// TestGuards takes each guard away from the world that needs it.
func TestGuards(t *testing.T) {
	needSpin(t)
	for _, w := range worlds {
		for guard := range strings.FieldsSeq(w.guards) {
			t.Run(guard, func(t *testing.T) {
				t.Parallel()
				v := verify(t, w.flags+" -D"+guard)
				if v.errors == 0 {
					t.Errorf("nothing fails without it (%d states)", v.states)
				}
				t.Logf("found after %d states", v.states)
			})
		}
	}
}

// TestEveryGuardIsTried compares the model's switches with the tables here and in
// README.md.
func TestEveryGuardIsTried(t *testing.T) {
	readme, tried := read(t, "README.md"), ""
	for _, w := range worlds {
		tried += " " + w.guards + " "
	}
	for _, m := range regexp.MustCompile(`(?m)^#\s*if\w*.*\b(NO_\w+)`).FindAllStringSubmatch(read(t, file), -1) {
		guard := m[1]
		if !strings.Contains(tried, guard) {
			t.Errorf("no test takes %s away", guard)
		}
		if !strings.Contains(readme, "`"+guard+"`") {
			t.Errorf("README.md does not say what %s is in the code", guard)
		}
	}
}

func needSpin(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs spin and a C compiler")
	}
	for _, program := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: run ./scripts/deps test", err)
		}
	}
}

// verdict is what spin's verifier says.
type verdict struct {
	states, errors, depth int
	complete              bool
	output, trail         string
}

// maxDepth is far beyond the longest run; a search that reaches it is no longer
// complete, and says so.
const maxDepth = 1_000_000

func verify(t *testing.T, flags string) verdict {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(read(t, file)), 0o600); err != nil {
		t.Fatal(err)
	}
	switches := strings.Fields(flags)
	run(ctx, t, dir, "spin", append(append([]string{"-a"}, switches...), file)...)
	run(ctx, t, dir, "gcc", "-O1", "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=3072", "-o", "pan", "pan.c")
	out := run(ctx, t, dir, "./pan", fmt.Sprintf("-m%d", maxDepth), "-w22")
	v := verdict{states: number(t, out, `(\d+) states, stored`), errors: number(t, out, `errors: (\d+)`), depth: number(t, out, `depth reached (\d+)`),
		output: out}
	v.complete = !strings.Contains(out, "not completed") && !strings.Contains(out, "max search depth too small") && !strings.Contains(out, "out of memory")
	if _, err := os.Stat(filepath.Join(dir, file+".trail")); err == nil {
		v.trail = run(ctx, t, dir, "spin", append(append([]string{"-t", "-p"}, switches...), file)...)
	}
	return v
}

func run(ctx context.Context, t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(ctx, program, args...)
	c.Dir = dir
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

func number(t *testing.T, text, pattern string) (n int) {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %q in\n%s", pattern, text)
	}
	if _, err := fmt.Sscan(m[1], &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
