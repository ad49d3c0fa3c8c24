package field

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// fullPool is a pool of two subnets under leases of 5 s.
const fullPool = `{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.2.0","LeaseTTL":"5s"}`

// TestC2 is flannel #954 and #875: in a rolling replacement the network runs
// out of subnets, because those of deleted nodes are kept for hours by a TTL
// that cannot be changed. Right is: a node that finds none says so and whom it
// waits for, asks etcd once in some ten seconds, and tells the runtime to try
// again later; a node that died makes room when its TTL, which is a setting,
// has ended: no sooner, and the next one is served at once.
func TestC2(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c, n3 := full(ctx, t)
	n1 := c.Nodes[0]
	first := cluster.Status(ctx, t, n1)

	asked := ranges(ctx, t, c)
	began := time.Now()
	const window = 14 * time.Second
	cluster.Stays(ctx, t, window, "n3 waits", func() error {
		s, err := n3.Status(ctx)
		if err == nil && (s.State != api.StateWaiting || !cluster.HasProblem(s, "no-free-subnet") || s.Ready) {
			err = fmt.Errorf("it is %s, ready %t, with %v", s.State, s.Ready, s.Problems)
		}
		return errors.Join(err, lives(n3))
	})
	if n, d := ranges(ctx, t, c)-asked, time.Since(began); n < 1 || n > int(d/(4*time.Second)) {
		t.Errorf("n3 asked etcd %d times in %s, want once in some ten seconds", n, d.Round(time.Millisecond))
	}
	noAddress(ctx, t, n3)

	// What becomes of the subnet's key from now on.
	keys := c.Store(t).Watch(ctx, cluster.SubnetKey(first.Subnet))
	began = time.Now()
	n1.Kill()
	s := within(ctx, t, ttl+2*time.Second, n3, "is served", func(s *api.Status) bool { return s.State == api.StateHeld })
	served := time.Since(began)
	if s.Subnet != first.Subnet || s.Lease.Epoch <= first.Lease.Epoch {
		t.Errorf("n3 holds %s in epoch %d, want %s after epoch %d", s.Subnet, s.Lease.Epoch, first.Subnet, first.Lease.Epoch)
	}
	// The last proof was up to an interval (TTL/3 and a tenth) before the end.
	if least := ttl - ttl/3 - ttl/30 - 100*time.Millisecond; served < least {
		t.Errorf("n3 was served %s after n1's end, its lease stood for %s at least", served, least)
	}
	lapsedFirst(t, keys)
	t.Logf("served %s after the kill", served.Round(time.Millisecond))
	addresses(ctx, t, n3, "young", first.Subnet)
}

// full makes a cluster whose pool two nodes hold, and a third that waits.
func full(ctx context.Context, t *testing.T) (*cluster.Cluster, *lab.Node) {
	t.Helper()
	c := cluster.New(ctx, t, fullPool, "n1", "n2")
	n3 := c.AddNode(ctx, t, "n3")
	if err := n3.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s := cluster.Wait(ctx, t, n3, "waits for a subnet", func(s *api.Status) bool {
		return s.State == api.StateWaiting && cluster.HasProblem(s, "no-free-subnet")
	})
	for _, holder := range []string{"n1", "n2"} {
		if !strings.Contains(s.Reason, holder) {
			t.Errorf("the reason does not name %s: %s", holder, s.Reason)
		}
	}
	return c, n3
}

// lapsedFirst makes sure that the key was deleted before it was put.
func lapsedFirst(t *testing.T, keys clientv3.WatchChan) {
	t.Helper()
	resp := <-keys
	if len(resp.Events) == 0 {
		t.Errorf("nothing was seen of the key: %v", resp.Err())
		return
	}
	if e := resp.Events[0]; e.Type != clientv3.EventTypeDelete {
		t.Errorf("the key was written while its lease stood: %s", e.Kv.Value)
	}
}

// ranges is how many reads etcd has served since it was started. Nodes that
// hold a subnet make none: a proof is a transaction.
func ranges(ctx context.Context, t *testing.T, c *cluster.Cluster) int {
	t.Helper()
	counts, err := c.Etcd.Requests(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return counts["Range"]
}
