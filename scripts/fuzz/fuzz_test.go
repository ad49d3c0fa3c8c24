package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const root = "../.."

// TestFuzz runs every target for 5 s, two at once.
func TestFuzz(t *testing.T) {
	if testing.Short() {
		t.Skip("builds every package that has a target")
	}
	var said strings.Builder
	if err := run(t.Context(), options{dir: root, each: 5 * time.Second, atOnce: 2, out: &said}); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + said.String())
}

// TestEveryDecoderIsATarget: who adds a room that reads what others wrote adds it here.
func TestEveryDecoderIsATarget(t *testing.T) {
	all, err := targets(root)
	if err != nil {
		t.Fatal(err)
	}
	had := map[string]bool{}
	for _, one := range all {
		had[one.dir] = true
	}
	for _, dir := range []string{"conf", "daemon/api", "daemon/attach", "daemon/cnidir", "daemon/dataplane", "daemon/fence", "daemon/hook", "daemon/lease",
		"daemon/node", "daemon/server", "ipam", "plugins/shim"} {
		if !had[dir] {
			t.Errorf("%s has no fuzz target", dir)
		}
	}
}

// TestAFindingFails: a target that fails for one input in 65,536 fails, and the input stays.
func TestAFindingFails(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.org/odd\n\ngo 1.26\n",
		"odd/odd_test.go": `package odd

import "testing"

func FuzzOdd(f *testing.F) {
	f.Add([]byte("nothing"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1 && b[0] == 'o' && b[1] == 'd' {
			t.Error("it is odd")
		}
	})
}
`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var said strings.Builder
	err := run(context.Background(), options{dir: dir, each: time.Minute, atOnce: 1, out: &said})
	if err == nil || !strings.Contains(err.Error(), "odd FuzzOdd") || !strings.Contains(err.Error(), "it is odd") {
		t.Errorf("%v\n%s", err, said.String())
	}
	if kept, _ := filepath.Glob(filepath.Join(dir, "odd/testdata/fuzz/FuzzOdd/*")); len(kept) != 1 {
		t.Errorf("kept are %v", kept)
	}
	if err := run(context.Background(), options{dir: dir, only: "Even"}); err == nil {
		t.Error("no target is no error")
	}
}

// TestEndedLate: the end of the time is no finding, and a finding at the end is one.
func TestEndedLate(t *testing.T) {
	const late = "fuzz: elapsed: 5s\n--- FAIL: FuzzX (5.02s)\n    context deadline exceeded\nFAIL\n"
	for said, want := range map[string]bool{
		late: true, "PASS\n": false, "--- FAIL: FuzzX (0.02s)\n    x_test.go:7: context deadline exceeded\n": false,
		late + "Failing input written to testdata/fuzz/FuzzX/1\n": false,
	} {
		if got := endedLate([]byte(said)); got != want {
			t.Errorf("%q is judged %t", said, got)
		}
	}
}
