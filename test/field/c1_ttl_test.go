package field

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestC1TTL changes LeaseTTL while pods run, down and up. Right is: every
// holder's key moves to a lease of the new length at its next renewal; the
// fence is never open for longer than the lease that the key hangs on; no
// packet is lost and no subnet. In the short form the first lease is one that
// is renewed every few seconds.
func TestC1TTL(t *testing.T) {
	t.Parallel()
	steps := []time.Duration{9 * time.Second, 5 * time.Second, time.Hour}
	if cluster.Long(t) {
		steps = []time.Duration{24 * time.Hour, 5 * time.Second, time.Hour, 24 * time.Hour}
	}
	ctx := cluster.Context(t, 3*time.Minute)
	config := func(ttl time.Duration) string { return fmt.Sprintf(`{"Network":"10.5.0.0/16","LeaseTTL":%q}`, ttl) }
	c := cluster.New(ctx, t, config(steps[0]), "n1", "n2", "n3")
	ring := cluster.NewRing(ctx, t, c.Nodes...)
	store := c.Store(t)
	for i, n := range c.Nodes {
		fence := cluster.OpenFence(t, n.Pid())
		subnet := ring.Before[i].Subnet
		tick := time.NewTicker(100 * time.Millisecond)
		t.Cleanup(tick.Stop)
		t.Cleanup(poll(ctx, t, func() error {
			<-tick.C
			return closesInTime(ctx, store, fence, n, subnet)
		}))
	}
	for _, ttl := range steps[1:] {
		was := map[*lab.Node]string{}
		for _, n := range c.Nodes {
			was[n] = cluster.Status(ctx, t, n).Lease.ID
		}
		configSet(ctx, t, c.Nodes[0], 0, config(ttl))
		began := time.Now()
		for _, n := range c.Nodes {
			renewed(ctx, t, n, ttl, was[n])
		}
		t.Logf("all have a lease of %s after %s", ttl, time.Since(began).Round(time.Millisecond))
		ring.Same(ctx, t)
	}
	ring.Whole(ctx, t)
}

// renewed waits for the next renewal, which from a long lease may take 30 s and a
// tenth.
func renewed(ctx context.Context, t *testing.T, n *lab.Node, ttl time.Duration, before string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	if _, err := n.WaitState(ctx, "has a lease of "+ttl.String(), func(s *api.Status) bool {
		return s.State == api.StateHeld && s.Lease.TTLSeconds == int64(ttl/time.Second) && s.Lease.ID != before
	}); err != nil {
		t.Fatal(err)
	}
}

// closesInTime says that the fence is open for longer than the key's lease. The
// fence is read before and after: a key that moves between is preceded by a cut,
// and a renewal is followed by a later deadline.
func closesInTime(ctx context.Context, store *cluster.Store, fence *cluster.Fence, n *lab.Node, subnet string) error {
	_, first, err := fence.Read()
	key, err2 := store.Get(ctx, cluster.SubnetKey(subnet))
	if err2 != nil || len(key.Kvs) == 0 {
		return fmt.Errorf("%s: nobody holds %s (%w)", n.Host, subnet, err2)
	}
	left, err2 := store.TimeToLive(ctx, clientv3.LeaseID(key.Kvs[0].Lease))
	now := cluster.BootTime()
	_, second, err3 := fence.Read()
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	// etcd tells whole seconds, rounded down.
	end := now + time.Duration(left.TTL+1)*time.Second
	if left.TTL > 0 && min(first, second) > end {
		return fmt.Errorf("%s: open for another %s, the lease of its key has %ds", n.Host, min(first, second)-now, left.TTL)
	}
	return nil
}
