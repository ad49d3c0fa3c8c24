package field

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// own is the subnet of the node that is looked at, so that it is none of the
// fake peers'.
const own = "10.5.1.0/24"

// TestI1 is flannel #2554: a peer that is removed while the daemon is down
// keeps its route for ever, because only additions are replayed at start; the
// route may even clash with the node's own bridge later. Right is: after a
// start the kernel equals what etcd says, in routes, neighbours and forwarding
// entries, after one pass; and a route on our device that somebody else made
// stays and is reported.
func TestI1(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n, store := c.Nodes[0], c.Store(t)
	store.Reserve(ctx, own, "n1")
	peers := publish(ctx, store, 10)
	cluster.Start(ctx, t, n)
	inKernel(ctx, t, n, peers)
	if err := n.Stop(ctx); err != nil {
		t.Fatal(err)
	}

	for _, p := range peers[:3] {
		store.Withdraw(ctx, p)
	}
	peers = peers[3:]
	peers[0].PublicIP = netip.MustParseAddr("192.0.2.150") // the same tenant at another address
	peers[1].MAC = "02:00:00:00:ff:01"                     // another tenant
	peers = append(peers, cluster.FakePeer(10))
	for _, p := range []cluster.Peer{peers[0], peers[1], peers[len(peers)-1]} {
		store.Publish(ctx, p)
	}
	const foreign = "10.5.250.0/24"
	cluster.Exec(ctx, t, n, "ip", "route", "add", foreign, "dev", cluster.Overlay, "proto", "99")
	passes := cluster.WritingPasses(n)

	cluster.Start(ctx, t, n)
	inKernel(ctx, t, n, peers)
	cluster.Wait(ctx, t, n, "reports the foreign route", func(s *api.Status) bool {
		for _, p := range s.Problems {
			if strings.Contains(p.Text, foreign) {
				return true
			}
		}
		return false
	})
	if now := cluster.WritingPasses(n); now != passes+1 {
		t.Errorf("it took %d passes, want one", now-passes)
	}
	if out := cluster.Exec(ctx, t, n, "ip", "route", "show", foreign, "proto", "99"); !strings.Contains(out, cluster.Overlay) {
		t.Errorf("the foreign route is gone")
	}
}

// publish writes the first so many fake peers to etcd.
func publish(ctx context.Context, store *cluster.Store, count int) []cluster.Peer {
	var peers []cluster.Peer
	for i := range count {
		p := cluster.FakePeer(i)
		store.Publish(ctx, p)
		peers = append(peers, p)
	}
	return peers
}

// repairTime is how long the kernel may differ from what is wanted.
const repairTime = 10 * time.Second

// inKernel waits until the kernel has exactly these peers.
func inKernel(ctx context.Context, t *testing.T, n *lab.Node, peers []cluster.Peer) {
	t.Helper()
	want := cluster.WantPeers(peers...)
	cluster.Eventually(ctx, t, repairTime, "peers in the kernel", func() error {
		got, err := cluster.KernelPeers(ctx, n)
		if err == nil && !got.Equal(want) {
			err = fmt.Errorf("there are\n%+v, want\n%+v", got, want)
		}
		return err
	})
}
