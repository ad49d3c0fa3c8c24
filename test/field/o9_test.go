package field

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// quarterLease is a network whose overlays stay open for 13.5 s after the last
// proof: long enough to exchange the store under them, twice if need be.
const quarterLease = `{"Network":"10.5.0.0/16","SubnetMax":"10.5.189.0","LeaseTTL":"15s"}`

// quarterTTL is how long a store settles that forgot quarterLease.
const quarterTTL = 15 * time.Second

// TestO9 is flannel #610 and PR #752: etcd's data are lost; running nodes go
// on, but one that is restarted takes another subnet, and its pods are cut off.
// Right is: every node puts its own subnet back into the empty store, whether
// its daemon is restarted before etcd is back, after, or not at all; nothing
// changes in any kernel, and the pods lose no packet; nobody is given a subnet
// before every holder has shown itself or lapsed, also when the operator has
// made the cluster's config again; then newcomers are served, from what is left.
func TestO9(t *testing.T) {
	for name, newCluster := range map[string]bool{"same cluster ID": false, "another cluster ID": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wiped(t, newCluster)
		})
	}
}

func wiped(t *testing.T, newCluster bool) {
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.New(ctx, t, quarterLease, "n1", "n2", "n3", "n4", "n5")
	newcomer := c.AddNode(ctx, t, "n6")
	ring := cluster.NewRing(ctx, t, c.Nodes...)

	c.Etcd.Kill()
	for _, n := range c.Nodes[3:] { // before etcd is back
		restart(ctx, t, n)
		cluster.WaitState(ctx, t, n, api.StateUnproven)
	}
	if err := c.Etcd.Wipe(ctx, newCluster); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes[1:3] { // after
		restart(ctx, t, n)
	}
	ring.Back(ctx, t)
	for _, n := range c.Nodes {
		if s := cluster.Status(ctx, t, n); !cluster.HasProblem(s, "store-went-back") || !cluster.HasProblem(s, "store-missing") {
			t.Errorf("%s says nothing of the loss: %+v", n.Host, s.Problems)
		}
	}

	if err := newcomer.Start(ctx); err != nil {
		t.Fatal(err)
	}
	waitsFor(ctx, t, newcomer, "tenurectl init")
	told := time.Now()
	r := cluster.Run(ctx, t, c.Etcd.NS, "tenurectl", "init", "--after-loss", "--network-config="+quarterLease, "--settle="+quarterTTL.String(), "--etcd-endpoints="+c.Etcd.URL())
	if r.Code != 0 || !strings.Contains(r.Out, "newcomers wait") {
		t.Fatalf("init --after-loss: %s", r)
	}
	waitsFor(ctx, t, newcomer, "settling")
	ring.Untouched(ctx, t)

	s := cluster.WaitState(ctx, t, newcomer, api.StateHeld)
	if waited := time.Since(told); waited < quarterTTL-time.Second {
		t.Errorf("the newcomer was served %s after init", waited)
	}
	if slices.ContainsFunc(ring.Before, func(b *api.Status) bool { return b.Subnet == s.Subnet }) {
		t.Errorf("the newcomer holds %s, which is another's", s.Subnet)
	}
	for _, n := range c.Nodes {
		cluster.Wait(ctx, t, n, "has settled", func(s *api.Status) bool { return s.State == api.StateHeld && cluster.Well(s) })
	}
	cluster.WaitPeers(ctx, t, c.Lab.Nodes()...)
	ring.Same(ctx, t)
	ring.Whole(ctx, t)
}

// restart kills the daemon and starts it again.
func restart(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	n.Kill()
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// waitsFor waits until the node waits, and gives that reason.
func waitsFor(ctx context.Context, t *testing.T, n *lab.Node, reason string) {
	t.Helper()
	cluster.Wait(ctx, t, n, fmt.Sprintf("waits and says %q", reason), func(s *api.Status) bool {
		return s.State == api.StateWaiting && strings.Contains(s.Reason, reason)
	})
}
