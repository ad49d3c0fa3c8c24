package field

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// TestB7Leader is of the same reports: the store has another leader every two
// seconds, for three TTLs of the shortest lease. Right is: no subnet is lost, no
// overlay closes, and each peer that comes or goes meanwhile is seen.
func TestB7Leader(t *testing.T) {
	t.Parallel() // mostly waits
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.BornOn(ctx, t, 3, cluster.ShortLease, "n1")
	n, store := c.Nodes[0], c.Store(t)
	cluster.Start(ctx, t, n)
	before := cluster.Status(ctx, t, n)
	during := 3 * ttl
	if cluster.Long(t) {
		during = 20 * ttl
	}
	const every = 2 * time.Second
	var peers []cluster.Peer
	elections := 0
	for began, i := time.Now(), 0; time.Since(began) < during; i++ {
		next := time.Now().Add(every)
		leads(ctx, t, c, i)
		elections++
		if len(peers) < 4 {
			peers = append(peers, cluster.FakePeer(i%8))
			store.Publish(ctx, peers[len(peers)-1])
		} else {
			store.Withdraw(ctx, peers[0])
			peers = slices.Delete(peers, 0, 1)
		}
		arrives(ctx, t, repairTime, n, peers)
		cluster.Stays(ctx, t, time.Until(next), "the node holds", func() error { return holds(ctx, n, before) })
	}
	t.Logf("%d leaders in %s", elections, during)
	neverLost(ctx, t, n, before)
}

// leads makes member i the leader, or the next one if it is already.
func leads(ctx context.Context, t *testing.T, c *cluster.Cluster, i int) {
	t.Helper()
	cluster.Eventually(ctx, t, 20*time.Second, "another member leads", func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		members := c.EtcdMembers()
		ids := map[uint64]*lab.Etcd{}
		var order []uint64
		var leader uint64
		for _, m := range members {
			client, err := m.Client()
			if err != nil {
				return err
			}
			s, err := client.Status(ctx, m.URL())
			_ = client.Close()
			if err != nil {
				return err
			}
			ids[s.Header.MemberId], leader = m, s.Leader
			order = append(order, s.Header.MemberId)
		}
		if ids[leader] == nil {
			return fmt.Errorf("the leader is %x, of %x", leader, order)
		}
		to := order[i%len(order)]
		if to == leader {
			to = order[(i+1)%len(order)]
		}
		client, err := ids[leader].Client() // only the leader can hand it on
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
		_, err = client.MoveLeader(ctx, to)
		return err
	})
}

// TestB7Replaced is of the same reports: each of three members in turn is killed
// and replaced by a new one without data, at the same address. Right is: no
// lease is lost, and what changes is seen, with any member that there was at the
// beginning gone.
func TestB7Replaced(t *testing.T) {
	t.Parallel() // mostly waits
	ctx := cluster.Context(t, 3*time.Minute)
	c := cluster.BornOn(ctx, t, 3, cluster.ShortLease, "n1")
	n, store := c.Nodes[0], c.Store(t)
	cluster.Start(ctx, t, n)
	before := cluster.Status(ctx, t, n)
	var replacing errgroup.Group
	replacing.Go(func() error {
		for _, m := range c.EtcdMembers() {
			if err := m.Replace(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	done := make(chan error, 1)
	go func() { done <- replacing.Wait() }()
	for replaced := false; !replaced; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			replaced = true
		default:
			cluster.Stays(ctx, t, time.Second, "the node holds", func() error { return holds(ctx, n, before) })
		}
	}
	takesWrites(ctx, t, store)
	peers := publish(ctx, store, 2)
	arrives(ctx, t, newsTime, n, peers)
	provesOn(ctx, t, n)
	neverLost(ctx, t, n, before)
	if s := cluster.Status(ctx, t, n); cluster.HasProblem(s, "store-went-back") {
		t.Errorf("the node takes the store for another one: %+v", s.Problems)
	}
}

// holds is nil while the node is in service with the subnet and the epoch that it
// had. The lease is another one under each leader of etcd.
func holds(ctx context.Context, n *lab.Node, before *api.Status) error {
	s, err := n.Status(ctx)
	if err != nil {
		return err
	}
	if s.Lease == nil || s.Lease.Epoch != before.Lease.Epoch || s.Subnet != before.Subnet || !s.Ready {
		return fmt.Errorf("%s is %s, ready %t, with %s under %+v: %s", n.Host, s.State, s.Ready, s.Subnet, s.Lease, s.Reason)
	}
	return nil
}

// neverLost makes sure that the node holds what it held, and has never lost it.
func neverLost(ctx context.Context, t *testing.T, n *lab.Node, before *api.Status) {
	t.Helper()
	if err := holds(ctx, n, before); err != nil {
		t.Error(err)
	}
	if log := n.Logs(1000); strings.Contains(log, "subnet lost") {
		t.Errorf("the subnet was lost:\n%s", log)
	}
}

// TestB7Slow is of the same reports: every answer of etcd takes two seconds, from
// the start of the node on. Right is: it holds a subnet under one lease, sees
// what changes, and serves pods as quickly as ever.
func TestB7Slow(t *testing.T) {
	t.Parallel() // mostly waits
	ctx := cluster.Context(t, 2*time.Minute)
	during := quarterTTL / 2
	if cluster.Long(t) {
		during = 4 * quarterTTL
	}
	c := cluster.Born(ctx, t, quarterLease, "n1")
	n := c.Nodes[0]
	p := etcdproxy.StartIn(ctx, t, n, "127.0.0.1:12379", c.Etcd.URL())
	p.Delay(etcdproxy.Always, func(string, any) bool { return true }, etcdproxy.Reply, 2*time.Second)
	if err := n.Start(ctx, "--etcd-endpoints="+p.URL()); err != nil {
		t.Fatal(err)
	}
	before := cluster.Wait(ctx, t, n, "is ready", func(s *api.Status) bool { return s.Ready && s.State == api.StateHeld })
	addresses(ctx, t, n, "p", before.Subnet)
	cluster.Stays(ctx, t, during, "the node holds", func() error { return holds(ctx, n, before) })
	arrives(ctx, t, repairTime, n, publish(ctx, c.Store(t), 1))
	neverLost(ctx, t, n, before)
	if now := cluster.Status(ctx, t, n).Lease; now.ID != before.Lease.ID {
		t.Errorf("it holds the subnet under %+v, it was under %+v", now, before.Lease)
	}
}
