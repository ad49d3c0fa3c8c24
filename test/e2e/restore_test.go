package e2e

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// quarterLease is a network whose overlays stay open for 13.5 s after the last
// proof, and whose store settles for 15 s.
const quarterLease = `{"Network":"10.5.0.0/16","LeaseTTL":"15s"}`

// TestRestoredBackup puts a backup of etcd back: the same cluster ID, an earlier
// revision, leases revived. n1 was as it is. n2 has another subnet since then,
// and n3 its old one. late joined after the backup. dead did so too, and its
// daemon is gone, though its overlay is open still. Everybody who lives holds
// what it held, under the same epoch; what they say to each other is heard all
// along; dead's pods are reached until its overlay closes, and it is off the
// others' kernels once the store has settled without it.
func TestRestoredBackup(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.New(ctx, t, quarterLease, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	n3, late, dead := c.AddNode(ctx, t, "n3"), c.AddNode(ctx, t, "late"), c.AddNode(ctx, t, "dead")
	first := cluster.Status(ctx, t, n2)
	backup, err := c.Etcd.Backup(ctx)
	if err != nil {
		t.Fatal(err)
	}
	store := c.Store(t)
	store.Reserve(ctx, first.Subnet, "n3")
	store.Revoke(ctx, first.Lease.ID)
	cluster.Wait(ctx, t, n2, "holds another subnet", func(s *api.Status) bool {
		return s.State == api.StateHeld && s.Subnet != first.Subnet
	})
	cluster.Start(ctx, t, n3, late, dead)
	cluster.WaitPeers(ctx, t, n1, n2, n3, late, dead)
	if s := cluster.Status(ctx, t, n3); s.Subnet != first.Subnet {
		t.Fatalf("n3 holds %s, want %s, which is reserved for it", s.Subnet, first.Subnet)
	}
	ring := cluster.NewRing(ctx, t, n1, n2, late)
	heir, far, last := cluster.Pod(ctx, t, n3, "heir"), cluster.Pod(ctx, t, n1, "far"), cluster.Pod(ctx, t, dead, "last")
	contested := cluster.StartFlow(ctx, t, far.NS, heir.NS, heir.IP)
	dying := cluster.StartFlow(ctx, t, ring.Pods[0].NS, last.NS, last.IP)
	contested.Runs(ctx, t)
	dying.Runs(ctx, t)
	heirs, third := contested.Sent(), cluster.Status(ctx, t, n3)
	gone := cluster.Status(ctx, t, dead)

	dead.Kill()
	if err := c.Etcd.Restore(ctx, backup); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*lab.Node{n1, n2, n3, late} {
		s := cluster.Wait(ctx, t, n, "is back in the store", func(s *api.Status) bool {
			_, lease, there := store.Holder(ctx, s.Subnet)
			return s.State == api.StateHeld && cluster.HasProblem(s, "store-went-back") && !cluster.HasProblem(s, "contested") && there && leaseID(lease) == s.Lease.ID
		})
		if s.Subnet == first.Subnet && (n != n3 || s.Lease.Epoch != third.Lease.Epoch) {
			t.Errorf("%s holds %s in epoch %d, n3 did in epoch %d", n.Host, s.Subnet, s.Lease.Epoch, third.Lease.Epoch)
		}
	}
	ring.Same(ctx, t)
	kept := cluster.Wait(ctx, t, n1, "keeps a peer that the store lacks", func(s *api.Status) bool { return peerOn(s, gone.Subnet) != nil })
	if p := peerOn(kept, gone.Subnet); p.State != api.PeerProgrammed || !strings.Contains(p.Reason, "kept") {
		t.Errorf("the peer that the store lacks is %+v", p)
	}
	dying.Runs(ctx, t)
	cluster.WaitPeers(ctx, t, n1, n2, n3, late)

	// dead's overlay closes by itself, before it is forgotten.
	dying.Ends(ctx, t, 15*time.Second)
	if s := cluster.Status(ctx, t, n1); !cluster.HasProblem(s, "store-went-back") || peerOn(s, gone.Subnet) == nil {
		t.Errorf("the peer went before its overlay closed: %+v", s.Peers)
	}
	for _, n := range []*lab.Node{n1, n2, n3, late} {
		cluster.Wait(ctx, t, n, "has settled, without the dead node", func(s *api.Status) bool {
			return s.State == api.StateHeld && cluster.Well(s) && peerOn(s, gone.Subnet) == nil
		})
		kernel, err := cluster.KernelPeers(ctx, n)
		if err != nil || slices.ContainsFunc(kernel.Routes, func(r string) bool { return strings.HasPrefix(r, gone.Subnet) }) {
			t.Errorf("%s still has a route to the dead node: %v, %v", n.Host, kernel.Routes, err)
		}
	}
	ring.Same(ctx, t)
	ring.Whole(ctx, t)
	// For a moment the store named n2 the holder of n3's subnet.
	if lost := contested.Lost(ctx, heirs); lost > 600 {
		t.Errorf("a pod in the contested subnet lost %d datagrams of 5 ms, want 3 s of them at most", lost)
	} else {
		t.Logf("contested: %d lost of %d", lost, contested.Sent()-heirs)
	}
}

// peerOn is the peer with that subnet, nil without one.
func peerOn(s *api.Status, subnet string) *api.Peer {
	for _, p := range s.Peers {
		if p.Subnet == subnet {
			return &p
		}
	}
	return nil
}

// TestCutOffWhileRestored: two nodes joined after the backup and are cut off
// from etcd while it is put back. One is back while its overlay is open: it puts
// its record back, and its pods have lost nothing. One is back after it has
// closed, and after the store has settled without it: its subnet is not its own
// any more; it takes the same one again, if nobody has.
func TestCutOffWhileRestored(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.New(ctx, t, shortLease, "n1")
	n1, before, after := c.Nodes[0], c.AddNode(ctx, t, "before"), c.AddNode(ctx, t, "after")
	backup, err := c.Etcd.Backup(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cluster.Start(ctx, t, before, after)
	cluster.WaitPeers(ctx, t, n1, before, after)
	ring := cluster.NewRing(ctx, t, n1, before)
	pod := cluster.Pod(ctx, t, after, "p")
	flow := cluster.StartFlow(ctx, t, ring.Pods[0].NS, pod.NS, pod.IP)
	flow.Runs(ctx, t)
	was := cluster.Status(ctx, t, after)

	cut(ctx, t, before, true)
	cut(ctx, t, after, true)
	if err := c.Etcd.Restore(ctx, backup); err != nil {
		t.Fatal(err)
	}
	cluster.Wait(ctx, t, n1, "knows", func(s *api.Status) bool { return cluster.HasProblem(s, "store-went-back") })
	cut(ctx, t, before, false)
	cluster.Wait(ctx, t, before, "is back in the store", func(s *api.Status) bool {
		return s.State == api.StateHeld && s.Lease.ID != ring.Before[1].Lease.ID
	})

	cluster.WaitState(ctx, t, after, api.StateFenced)
	flow.Ends(ctx, t, time.Second)
	cluster.Wait(ctx, t, n1, "has settled", func(s *api.Status) bool { return cluster.Well(s) && peerOn(s, was.Subnet) == nil })
	cut(ctx, t, after, false)
	s := cluster.Wait(ctx, t, after, "holds a subnet again", func(s *api.Status) bool {
		return s.State == api.StateHeld && s.Lease.ID != was.Lease.ID
	})
	if s.Subnet != was.Subnet || len(s.Stranded) != 0 {
		t.Errorf("it holds %s, stranded %v, want %s, which nobody else took", s.Subnet, s.Stranded, was.Subnet)
	}
	flow.Runs(ctx, t)
	ring.Same(ctx, t)
	ring.Whole(ctx, t)
}

// shortLease is a network whose overlays stay open for 7 s after the last proof.
const shortLease = `{"Network":"10.5.0.0/16","LeaseTTL":"8s"}`

func leaseID(id clientv3.LeaseID) string { return strconv.FormatInt(int64(id), 16) }
