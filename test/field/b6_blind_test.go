package field

import (
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// TestB6Blind is B6 for a daemon whose watch is told nothing of it. Right is:
// the keep-alive (whose answer has a TTL of 0 when the lease is gone) or the
// proof after it notices, within one interval, and the same subnet is held again.
func TestB6Blind(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.ShortLease, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	p := etcdproxy.StartIn(ctx, t, c.LAN, "192.0.2.1:2379", c.Etcd.URL())
	if err := n1.Start(ctx, "--etcd-endpoints=http://192.0.2.1:2379"); err != nil {
		t.Fatal(err)
	}
	cluster.Start(ctx, t, n2)
	cluster.WaitPeers(ctx, t, n1, n2)
	a, b := cluster.Pod(ctx, t, n1, "a"), cluster.Pod(ctx, t, n2, "b")
	flow := cluster.StartFlow(ctx, t, a.NS, b.NS, b.IP)
	flow.Runs(ctx, t)

	for name, rob := range map[string]func(*testing.T, *cluster.Store, *api.Status){
		"lease revoked": func(_ *testing.T, store *cluster.Store, s *api.Status) { store.Revoke(ctx, s.Lease.ID) },
		"key deleted":   func(t *testing.T, store *cluster.Store, s *api.Status) { deleteKey(ctx, t, store, s.Subnet) },
	} {
		t.Run(name, func(t *testing.T) {
			store := c.Store(t)
			before := cluster.WaitState(ctx, t, n1, api.StateHeld)
			swallowed := p.SwallowEvents(1, etcdproxy.EventOf(cluster.SubnetKey(before.Subnet)))
			began := time.Now()
			rob(t, store, before)
			// One interval is TTL/3 and up to a tenth more.
			heldAgain(ctx, t, ttl/3+ttl/30+gap/2, n1, before)
			if swallowed.Hits() != 1 {
				t.Errorf("%d events were kept from the daemon, want 1", swallowed.Hits())
			}
			noticed := time.Since(began)
			flow.Runs(ctx, t)
			t.Logf("held again after %s, the flow runs after %s", noticed.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
		})
	}
}
