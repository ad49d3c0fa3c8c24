package field

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// restoredLease is a network whose overlays stay open for 5 s at least, and
// whose store settles for 9 s.
const restoredLease = `{"Network":"10.5.0.0/16","LeaseTTL":"9s"}`

// TestO9AsWritten does what docs/etcd.md says under "etcd restored from backup",
// with the config that it has from a node.json: the backup is of before late
// joined; off was rebooted, and is down while etcd is restored; new comes right
// behind. Right is: those who ran go on, late too, and their pods lose nothing;
// new and off wait and say that the store settles; tenurectl leases says so with
// exit code 1; then off has its subnet again, new another, and leases exits 0.
func TestO9AsWritten(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, restoredLease, "n1", "n2", "off")
	n1, n2, off := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	backup, err := c.Etcd.Backup(ctx)
	if err != nil {
		t.Fatal(err)
	}
	late, fresh := c.AddNode(ctx, t, "late"), c.AddNode(ctx, t, "new")
	cluster.Start(ctx, t, late)
	cluster.WaitPeers(ctx, t, n1, n2, off, late)
	was := cluster.Status(ctx, t, off)
	if err := off.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	ring := cluster.NewRing(ctx, t, n1, n2, late)

	// jq .config /var/lib/tenure/node.json > network.json
	var memory struct{ Config json.RawMessage }
	b, err := os.ReadFile(filepath.Join(n1.StateDir, "node.json"))
	if err == nil {
		err = json.Unmarshal(b, &memory)
	}
	config := filepath.Join(t.TempDir(), "network.json")
	if err == nil {
		err = os.WriteFile(config, memory.Config, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}

	if err := c.Etcd.Restore(ctx, backup); err != nil {
		t.Fatal(err)
	}
	told := time.Now()
	ctl := func(args ...string) cluster.Ran {
		return cluster.Run(ctx, t, c.Etcd.NS, "tenurectl", append(args, "--etcd-endpoints="+c.Etcd.URL())...)
	}
	if r := ctl("init", "--after-loss", "--network-config=@"+config); r.Code != 0 || !strings.Contains(r.Out, "newcomers wait") {
		t.Fatalf("init --after-loss: %s", r)
	}
	start(ctx, t, fresh)
	start(ctx, t, off)
	waitsFor(ctx, t, fresh, "settling")
	cluster.Wait(ctx, t, off, "does not serve, and says that the store settles", func(s *api.Status) bool {
		return s.State != api.StateHeld && !s.Ready && cluster.HasProblem(s, "store-went-back")
	})
	if r := ctl("leases"); r.Code != 1 || !strings.Contains(r.Out, "store-went-back") {
		t.Errorf("leases while the store settles: %s", r)
	}
	store := c.Store(t)
	for _, n := range ring.Nodes {
		cluster.Wait(ctx, t, n, "is back in the store", func(s *api.Status) bool {
			record, _, there := store.Holder(ctx, s.Subnet)
			return s.State == api.StateHeld && there && strings.Contains(record, s.UID)
		})
	}
	ring.Same(ctx, t)
	ring.Untouched(ctx, t)

	s := cluster.WaitState(ctx, t, off, api.StateHeld)
	if d := time.Since(told); d < 8*time.Second || s.Subnet != was.Subnet {
		t.Errorf("off was served %s after init, with %s; it held %s", d.Round(time.Millisecond), s.Subnet, was.Subnet)
	}
	young := cluster.WaitState(ctx, t, fresh, api.StateHeld)
	if d := time.Since(told); d < 8*time.Second || young.Subnet == was.Subnet {
		t.Errorf("new was served %s after init, with %s", d.Round(time.Millisecond), young.Subnet)
	}
	cluster.Eventually(ctx, t, 10*time.Second, "leases exits 0", func() error {
		if r := ctl("leases"); r.Code != 0 || strings.Contains(r.Out, "store-went-back") {
			return fmt.Errorf("leases: %s", r)
		}
		return nil
	})
	for _, n := range c.Lab.Nodes() {
		cluster.Wait(ctx, t, n, "has settled", func(s *api.Status) bool { return s.State == api.StateHeld && len(s.Problems) == 0 })
	}
	cluster.WaitPeers(ctx, t, c.Lab.Nodes()...)
	ring.Same(ctx, t)
	ring.Whole(ctx, t)
}
