package e2e

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// closeTime bounds the wait for an overlay that closes 4 s after the last
// proof.
const closeTime = 8 * time.Second

// TestFence parts a node from its lease, by a daemon that hangs and by an etcd
// that cannot be reached. Packets prove that the overlay closes in both
// directions while etcd still has the key, that traffic on the node and to the
// world outside goes on, and that the overlay opens again, with the same
// subnet, once the lease can be proven.
func TestFence(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, cluster.ShortLease, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	f := fenced{c: c, node: n1, pod: cluster.Pod(ctx, t, n1, "p"), near: cluster.Pod(ctx, t, n1, "q"),
		far: cluster.Pod(ctx, t, n2, "p"), subnet: cluster.Status(ctx, t, n1).Subnet}
	for _, ns := range []*lab.NS{f.pod.NS, f.near.NS, f.far.NS, c.Outside} {
		cluster.Serve(ctx, t, ns, port)
	}
	f.out = cluster.StartFlow(ctx, t, f.pod.NS, f.far.NS, f.far.IP)
	f.back = cluster.StartFlow(ctx, t, f.far.NS, f.pod.NS, f.pod.IP)

	t.Run("daemon hangs", func(t *testing.T) {
		f.opens(ctx, t)
		signal(t, n1, unix.SIGSTOP)
		f.closes(ctx, t)
		status := lab.CNICall{Verb: "STATUS"}
		if a := cluster.Call(ctx, t, n1, status); cluster.Code(a) != api.CodeNotReady {
			t.Errorf("STATUS with a daemon that hangs: %v, want code 50", a.Err)
		}
		signal(t, n1, unix.SIGCONT)
		f.opens(ctx, t)
	})
	t.Run("etcd is cut off", func(t *testing.T) {
		cut(ctx, t, n1, true)
		cluster.WaitState(ctx, t, n1, api.StateUnproven)
		cluster.Pod(ctx, t, n1, "late") // until the deadline all goes on
		f.closes(ctx, t)
		f.says(ctx, t)
		cut(ctx, t, n1, false)
		f.opens(ctx, t)
	})
}

// fenced is a node whose overlay shall close, with pods on it and elsewhere.
type fenced struct {
	c              *cluster.Cluster
	node           *lab.Node
	pod, near, far *lab.Pod
	subnet         string
	out, back      *cluster.Flow
}

// closes waits until the overlay is closed, and looks at what must go on.
func (f *fenced) closes(ctx context.Context, t *testing.T) {
	t.Helper()
	f.out.Ends(ctx, t, closeTime)
	f.back.Ends(ctx, t, closeTime)
	// Read after the last packet has arrived: the key outlives the overlay.
	if _, _, held := f.c.Store(t).Holder(ctx, f.subnet); !held {
		t.Errorf("the key of %s ended before the overlay was closed", f.subnet)
	}
	cluster.Seen(ctx, t, f.pod.NS, f.near.IP, port, f.pod.IP)
	cluster.Seen(ctx, t, f.node.NS, f.pod.IP, port, gateway(f.subnet))
	cluster.Seen(ctx, t, f.pod.NS, f.c.OutsideAddr(), port, f.node.Addr)
	if !f.out.Quiet() || !f.back.Quiet() {
		t.Errorf("packets went through the overlay again")
	}
}

// says looks at what a daemon tells that knows its fence is closed.
func (f *fenced) says(ctx context.Context, t *testing.T) {
	t.Helper()
	s := cluster.WaitState(ctx, t, f.node, api.StateFenced)
	if s.Ready || s.Reason == "" || !cluster.HasProblem(s, "fenced") || !cluster.HasProblem(s, "etcd-unreachable") {
		t.Errorf("status of a fenced node: ready %t, reason %q, problems %+v", s.Ready, s.Reason, s.Problems)
	}
	if a := cluster.Call(ctx, t, f.node, lab.CNICall{Verb: "STATUS"}); cluster.Code(a) != api.CodeNotReadyLimited {
		t.Errorf("STATUS while fenced: %v, want code 51", a.Err)
	}
	r := cluster.Run(ctx, t, f.node, "tenurectl", "status", "--socket="+f.node.Socket)
	if r.Code != 1 {
		t.Errorf("tenurectl status while fenced: %s, want exit code 1", r)
	}
	box := cluster.Sandbox(ctx, t, f.node, "refused")
	if a := cluster.Call(ctx, t, f.node, cluster.CallFor("ADD", box, "eth0")); cluster.Code(a) != api.CodeTryAgain {
		t.Errorf("ADD while fenced: %v, want code 11", a.Err)
	}
}

// opens waits until the overlay carries packets again, with the same subnet.
func (f *fenced) opens(ctx context.Context, t *testing.T) {
	t.Helper()
	s := cluster.WaitState(ctx, t, f.node, api.StateHeld)
	if s.Subnet != f.subnet || len(s.Stranded) != 0 {
		t.Errorf("the node holds %s with %v stranded, want %s and none", s.Subnet, s.Stranded, f.subnet)
	}
	f.out.Runs(ctx, t)
	f.back.Runs(ctx, t)
}

func signal(t *testing.T, n *lab.Node, sig unix.Signal) {
	t.Helper()
	if err := n.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func cut(ctx context.Context, t *testing.T, n *lab.Node, on bool) {
	t.Helper()
	if err := n.Partition(ctx, lab.CutEtcd, on); err != nil {
		t.Fatal(err)
	}
}
