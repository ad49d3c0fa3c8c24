package field

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// TestE10 is amazon-vpc-cni #2321: after a downgrade the older version cannot
// delete the pods of the newer one. Right is: a ledger of a higher schema stops
// the daemon, which says so and leaves the file as it is; the runtime's DELs
// succeed and wait for a daemon that can read it. One of this schema with fields
// that are not known, or of another type than known, is no reason to stop: pods
// keep their addresses, a DEL frees by the key.
func TestE10(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	path := filepath.Join(n.RunDir, "ledger.json")
	rewrite := func(from, to string) []byte {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(b, []byte(from)) {
			t.Fatalf("no %s in the ledger (%v):\n%s", from, err, b)
		}
		b = bytes.Replace(b, []byte(from), []byte(to), 1)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return b
	}
	stays := cluster.Pod(ctx, t, n, "stays")

	t.Run("a higher schema", func(t *testing.T) {
		goes := cluster.Pod(ctx, t, n, "goes1")
		n.Kill()
		newer := rewrite(`"version":1`, `"version":2,"leases":{"a":[1]}`)
		if err := n.Start(ctx); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := n.Wait(ctx); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("the daemon ended with %v, want code 1", err)
		}
		if log := n.Logs(3); !strings.Contains(log, "newer version") || !strings.Contains(log, path) {
			t.Errorf("the log does not say what is the matter:\n%s", log)
		}
		mustCall(ctx, t, n, cluster.CallFor("DEL", goes, "eth0"))
		for _, verb := range []string{"ADD", "CHECK"} {
			if a := cluster.Call(ctx, t, n, cluster.CallFor(verb, stays, "eth0")); cluster.Code(a) != api.CodeTryAgain {
				t.Errorf("%s without a daemon: %v, want code %d", verb, a.Err, api.CodeTryAgain)
			}
		}
		if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, newer) {
			t.Errorf("the newer version's file is changed: %v\n%s", err, b)
		}
		rewrite(`"version":2,"leases":{"a":[1]}`, `"version":1`)
		cluster.Start(ctx, t, n)
		used(ctx, t, n, 1)
	})
	for name, change := range map[string][2]string{
		"unknown fields":  {`{"network":"tenure"`, `{"owner":{"pod":"web"},"network":"tenure"`},
		"of another type": {`"host":"`, `"mac":{"given":true},"host":"`},
	} {
		t.Run(name, func(t *testing.T) {
			goes := cluster.Pod(ctx, t, n, strings.ReplaceAll(name, " ", "-"))
			n.Kill()
			rewrite(change[0], change[1])
			cluster.Start(ctx, t, n)
			used(ctx, t, n, 2)
			mustCall(ctx, t, n, cluster.CallFor("DEL", goes, "eth0"))
			used(ctx, t, n, 1)
			if err := stays.Check(ctx); err != nil {
				t.Errorf("the pod that stays: %v", err)
			}
		})
	}
}
