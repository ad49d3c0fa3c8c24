package field

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// between is where a proxy to etcd is put, on the wire.
const between = "192.0.2.1:2379"

// startVia starts the node's daemon with the proxy for its etcd.
func startVia(ctx context.Context, t *testing.T, n *lab.Node, p *etcdproxy.Proxy) {
	t.Helper()
	if err := n.Start(ctx, lab.MetricsListen, "--etcd-endpoints="+p.URL()); err != nil {
		t.Fatal(err)
	}
	cluster.WaitState(ctx, t, n, api.StateHeld)
}

// TestO13 is etcd #18089: a watch loses the deletion of a record, and here also
// an update, and the client believes to have seen all. Right is: the next list,
// at least every 4 min and whenever a watch ends (here because the member lost
// its leader), is compared with what the watch has told; the kernel is repaired,
// the difference is counted and named in one line.
func TestO13(t *testing.T) {
	long := cluster.Long(t)
	ctx := cluster.Context(t, 8*time.Minute)
	c := cluster.BornOn(ctx, t, 3, cluster.Network, "n1")
	n, store, members := c.Nodes[0], c.Store(t), c.EtcdMembers()
	p := etcdproxy.StartIn(ctx, t, c.LAN, between, members[0].URL())
	peers := publish(ctx, store, 4)
	startVia(ctx, t, n, p)
	inKernel(ctx, t, n, peers)
	before := cluster.Status(ctx, t, n)

	swallowed := []*etcdproxy.Rule{
		p.SwallowEvents(1, etcdproxy.EventOf(cluster.SubnetKey(peers[0].Subnet.String()))),
		p.SwallowEvents(1, etcdproxy.EventOf(cluster.SubnetKey(peers[1].Subnet.String()))),
	}
	moved, seen := peers[1], cluster.FakePeer(4)
	moved.MAC = "02:00:00:00:01:01"
	store.Withdraw(ctx, peers[0])
	store.Publish(ctx, moved)
	store.Publish(ctx, seen)
	inKernel(ctx, t, n, append(peers, seen)) // it knows of neither
	if swallowed[0].Hits() != 1 || swallowed[1].Hits() != 1 {
		t.Fatalf("%d and %d events were swallowed", swallowed[0].Hits(), swallowed[1].Hits())
	}

	members[1].Kill()
	members[2].Kill()
	cluster.Eventually(ctx, t, 30*time.Second, "the watch ends", func() error {
		if !strings.Contains(n.Logs(10000), "no leader") {
			return fmt.Errorf("the log does not say so")
		}
		return nil
	})
	for _, m := range members[1:] {
		if err := m.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	inKernel(ctx, t, n, []cluster.Peer{moved, peers[2], peers[3], seen})
	missed(ctx, t, n, 1, 1)
	if lines := strings.Count(n.Logs(10000), "the watch has missed events"); lines != 1 {
		t.Errorf("%d lines about it", lines)
	}
	after := cluster.WaitState(ctx, t, n, api.StateHeld)
	if after.Subnet != before.Subnet || after.Lease.Epoch != before.Lease.Epoch {
		t.Errorf("holds %s by %+v, held %s by %+v", after.Subnet, after.Lease, before.Subnet, before.Lease)
	}
	if !long {
		return
	}
	last := p.SwallowEvents(1, etcdproxy.EventOf(cluster.SubnetKey(seen.Subnet.String())))
	store.Withdraw(ctx, seen)
	cluster.Eventually(ctx, t, 5*time.Minute, "the list of every 4 min", func() error {
		got, err := cluster.KernelPeers(ctx, n)
		if want := cluster.WantPeers(moved, peers[2], peers[3]); err == nil && !got.Equal(want) {
			err = fmt.Errorf("there are %+v", got)
		}
		return err
	})
	missed(ctx, t, n, 2, 1)
	if last.Hits() != 1 {
		t.Errorf("%d events were swallowed", last.Hits())
	}
}

// missed makes sure that so many events are counted as missed.
func missed(ctx context.Context, t *testing.T, n *lab.Node, deletes, puts int) {
	t.Helper()
	_, page, err := n.Page(ctx, "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]int{"delete": deletes, "put": puts} {
		if line := fmt.Sprintf("tenure_watch_missed_total{kind=%q} %d\n", kind, want); !strings.Contains(page, line) {
			t.Errorf("metrics lack %s", line)
		}
	}
}

// TestO13Mass is for a mass of deletions that is none, a mistaken delete of the
// prefix that everybody repairs within a second, and for one that is one. Right
// is: the kernel is not touched before a second list, a second later, says so
// too; then they go.
func TestO13Mass(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n, store := c.Nodes[0], c.Store(t)
	p := etcdproxy.StartIn(ctx, t, c.LAN, between, c.Etcd.URL())
	peers := publish(ctx, store, 5)
	lease := underOneLease(ctx, t, store, peers)
	startVia(ctx, t, n, p)
	inKernel(ctx, t, n, peers)
	whole := etcdproxy.When(func(r *pb.RangeRequest) bool { return len(r.RangeEnd) > 0 })
	sees := func() { // what is in etcd now
		now, err := store.Get(ctx, "/tenure/network/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		cluster.Wait(ctx, t, n, "sees what is in etcd", func(s *api.Status) bool { return s.Etcd.Revision >= now.Header.Revision })
	}

	kernel, writes := cluster.Picture(ctx, t, n), cluster.WritingPasses(n)
	second := p.Delay(1, whole, etcdproxy.Request, 3*time.Second) // however slow this test is
	untouched := func(d time.Duration) {
		cluster.Stays(ctx, t, d, "the kernel is not touched", func() error {
			if now := cluster.WritingPasses(n); now != writes {
				return fmt.Errorf("%d passes wrote", now-writes)
			}
			return nil
		})
	}
	store.Revoke(ctx, lease)
	sees()
	untouched(500 * time.Millisecond) // ten times what a pass waits for more
	lease = underOneLease(ctx, t, store, peers)
	sees()
	untouched(2 * time.Second)
	if now := cluster.Picture(ctx, t, n); now != kernel {
		t.Errorf("the kernel is\n%s\nit was\n%s", now, kernel)
	}
	second.Remove()

	second = p.Delay(1, whole, etcdproxy.Reply, 2*time.Second)
	began := time.Now()
	store.Revoke(ctx, lease)
	sees()
	cluster.Eventually(ctx, t, 10*time.Second, "the second list", func() error {
		if second.Hits() == 0 {
			return fmt.Errorf("none yet")
		}
		return nil
	})
	if took := time.Since(began); took < 900*time.Millisecond {
		t.Errorf("listed again after %s", took)
	}
	inKernel(ctx, t, n, peers)
	if took := time.Since(began); took < 2900*time.Millisecond && cluster.WritingPasses(n) != writes {
		t.Errorf("the kernel was written to after %s, before the answer", took)
	}
	inKernel(ctx, t, n, nil)
	if logs := n.Logs(10000); !strings.Contains(logs, "most peers are gone") || !strings.Contains(logs, "a second list lacks them too") {
		t.Error("the log does not say so")
	}
	if took := time.Since(began); took < 2900*time.Millisecond {
		t.Errorf("they are gone after %s, before the second list", took)
	}
}

// underOneLease puts the peers' records under one lease, which it returns.
func underOneLease(ctx context.Context, t *testing.T, store *cluster.Store, peers []cluster.Peer) string {
	t.Helper()
	lease, err := store.Grant(ctx, 3600)
	if err != nil {
		t.Fatal(err)
	}
	var ops []clientv3.Op
	for _, peer := range peers {
		if _, _, there := store.Holder(ctx, peer.Subnet.String()); !there {
			store.Publish(ctx, peer)
		}
		value, _, _ := store.Holder(ctx, peer.Subnet.String())
		ops = append(ops, clientv3.OpPut(cluster.SubnetKey(peer.Subnet.String()), value, clientv3.WithLease(lease.ID)))
	}
	if _, err := store.Txn(ctx).Then(ops...).Commit(); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", int64(lease.ID))
}
