package field

import (
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// TestO1 is flannel #2470 and #125, and mirendev/runtime #1035: the revision
// from which a watch wants to go on has been compacted; the client asks for it
// for ever, fills the disk with its log, and does not see that its own lease
// was revoked either, since that watch has the same fault. Right is: everything
// is listed again and what was missed is acted on, deletions and the own loss
// included, with two lines in the log at most.
func TestO1(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n, store := c.Nodes[0], c.Store(t)
	store.Reserve(ctx, own, "n1")
	peers := publish(ctx, store, 3)
	cluster.Start(ctx, t, n)
	inKernel(ctx, t, n, peers)
	before := cluster.Status(ctx, t, n)
	lines := strings.Count(n.Logs(10000), "\n")

	cutEtcd(ctx, t, n, true)
	// A new server has none of the old streams, in whose buffers the events
	// would wait: the watch has to ask for its revision.
	c.Etcd.Kill()
	if err := c.Etcd.Start(ctx); err != nil {
		t.Fatal(err)
	}
	store.Withdraw(ctx, peers[0])
	store.Publish(ctx, cluster.FakePeer(3))
	store.Revoke(ctx, before.Lease.ID)
	store.Compact(ctx)
	cutEtcd(ctx, t, n, false)

	inKernel(ctx, t, n, append(peers[1:], cluster.FakePeer(3)))
	after := cluster.Wait(ctx, t, n, "holds under another lease", func(s *api.Status) bool {
		return s.State == api.StateHeld && s.Lease.ID != before.Lease.ID
	})
	if after.Subnet != own {
		t.Errorf("the node holds %s, want %s again", after.Subnet, own)
	}
	var about []string
	for _, line := range strings.Split(n.Logs(10000), "\n")[lines+1:] {
		for _, word := range []string{"etcd", "watch", "compact", "revision"} {
			if strings.Contains(line, word) && !strings.Contains(line, "subnet lost") {
				about = append(about, line)
				break
			}
		}
	}
	if !strings.Contains(strings.Join(about, "\n"), "compact") {
		t.Error("no watch met the compaction, so nothing was tested")
	}
	if len(about) > 2 {
		t.Errorf("%d lines in the log, want two at most:\n%s", len(about), strings.Join(about, "\n"))
	}
}
