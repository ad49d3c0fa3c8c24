package field

import (
	"context"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// port is where everybody in these tests serves.
const port = 7000

// TestA1 is flannel #1289 (also #1129, #1182): a node is away for longer than
// its lease, another node is given the subnet, the first comes back, takes up
// the subnet it remembers and overwrites the other's record; from then on two
// hosts fight for one subnet. Right is: the node's overlay closes before the
// lease ends, so that packets of its pods are nowhere to be seen when the
// subnet has its new tenant; it comes back with its old state and takes
// another subnet; and the new tenant's record is the same at every revision of
// etcd.
func TestA1(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, cluster.ShortLease, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	n3 := c.AddNode(ctx, t, "n3")
	store := c.Store(t)
	old, far := cluster.Pod(ctx, t, n1, "old"), cluster.Pod(ctx, t, n2, "far")
	cluster.Serve(ctx, t, c.Outside, port)
	cluster.Serve(ctx, t, far.NS, port)
	flow := cluster.StartFlow(ctx, t, old.NS, far.NS, far.IP)
	flow.Runs(ctx, t)
	first := cluster.Status(ctx, t, n1)

	// Away: cut off from etcd, and the daemon dies.
	store.Reserve(ctx, first.Subnet, "n3")
	cutEtcd(ctx, t, n1, true)
	n1.Kill()
	flow.Ends(ctx, t, 8*time.Second)
	if _, _, held := store.Holder(ctx, first.Subnet); !held {
		t.Errorf("the lease of %s ended before the overlay was closed", first.Subnet)
	}
	wire := cluster.Sniff(t, c.LAN, "to-n1")
	awaitFree(ctx, t, store, first.Subnet)

	// The subnet has a new tenant, and everybody reaches that one.
	cluster.Start(ctx, t, n3)
	if s := cluster.Status(ctx, t, n3); s.Subnet != first.Subnet || s.Lease.Epoch <= first.Lease.Epoch {
		t.Fatalf("n3 holds %s in epoch %d, want %s after epoch %d", s.Subnet, s.Lease.Epoch, first.Subnet, first.Lease.Epoch)
	}
	cluster.WaitPeers(ctx, t, n2, n3)
	// Not the old pod's own address: on n1 that one leads to the old pod.
	heir := cluster.Pod(ctx, t, n3, "heir", lab.PodOptions{Args: "IP=" + inside(first.Subnet, 100).String()})
	cluster.Serve(ctx, t, heir.NS, port)
	cluster.Seen(ctx, t, heir.NS, far.IP, port, heir.IP)
	cluster.Seen(ctx, t, far.NS, heir.IP, port, far.IP)
	cluster.Seen(ctx, t, old.NS, c.OutsideAddr(), port, n1.Addr) // the old pod lives on

	// Back, with the old state.
	cutEtcd(ctx, t, n1, false)
	cluster.Start(ctx, t, n1)
	second := cluster.Status(ctx, t, n1)
	if second.Subnet == first.Subnet || second.UID != first.UID || len(second.Stranded) != 1 || second.Stranded[0].Address != old.IP.String() {
		t.Errorf("n1 is back with %s and stranded %+v, had %s", second.Subnet, second.Stranded, first.Subnet)
	}
	cluster.WaitPeers(ctx, t, n1, n2, n3)
	young := cluster.Pod(ctx, t, n1, "young")
	cluster.Serve(ctx, t, young.NS, port)
	for _, other := range []*lab.Pod{far, heir} {
		cluster.Seen(ctx, t, young.NS, other.IP, port, young.IP)
		cluster.Seen(ctx, t, other.NS, young.IP, port, other.IP)
	}
	cluster.Seen(ctx, t, old.NS, c.OutsideAddr(), port, n1.Addr)

	if !flow.Quiet() {
		t.Error("the old pod's datagrams arrive again")
	}
	if n := wire.From(old.IP); n != 0 {
		t.Errorf("%d packets with the old pod's address left its node after the overlay was closed", n)
	}
	if n := wire.From(young.IP); n == 0 {
		t.Error("the look at the wire sees nothing at all")
	}
	store.Same(ctx, first.Subnet)
}

func cutEtcd(ctx context.Context, t *testing.T, n *lab.Node, on bool) {
	t.Helper()
	if err := n.Partition(ctx, lab.CutEtcd, on); err != nil {
		t.Fatal(err)
	}
}

// awaitFree waits until the subnet's lease has ended.
func awaitFree(ctx context.Context, t *testing.T, store *cluster.Store, subnet string) {
	t.Helper()
	cluster.Eventually(ctx, t, 10*time.Second, subnet+" is free", func() error {
		if value, _, held := store.Holder(ctx, subnet); held {
			return errHeld(value)
		}
		return nil
	})
}

// errHeld is the record that keeps a subnet from being free.
type errHeld string

func (e errHeld) Error() string { return "held: " + string(e) }

// held waits until the node holds a subnet other than the one before.
func held(ctx context.Context, t *testing.T, n *lab.Node, before string) *api.Status {
	t.Helper()
	return cluster.Wait(ctx, t, n, "holds another subnet than "+before, func(s *api.Status) bool {
		return s.State == api.StateHeld && s.Subnet != before
	})
}
