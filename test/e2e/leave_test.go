package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// Networks of one subnet and of two.
const (
	singleSubnet  = `{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.1.0","LeaseTTL":"8s"}`
	pairOfSubnets = `{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.2.0","LeaseTTL":"8s"}`
)

// TestLeave: a node with pods does not leave but on request; then its overlay
// closes, the next node has the subnet at once, the pods are stranded and keep
// what does not cross the overlay, and the daemon waits until it is started anew.
func TestLeave(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, singleSubnet, "n1")
	n1, n2 := c.Nodes[0], c.AddNode(ctx, t, "n2")
	cluster.Serve(ctx, t, c.Outside, port)
	pod := cluster.Pod(ctx, t, n1, "p")
	if err := n2.Start(ctx); err != nil {
		t.Fatal(err)
	}
	waitsAs(ctx, t, n2, "no free subnet")
	subnet := cluster.Status(ctx, t, n1).Subnet

	r := cluster.Run(ctx, t, n1, "tenurectl", "leave", "--socket="+n1.Socket)
	if r.Code != 1 || !strings.Contains(r.Said, "--with-pods") {
		t.Errorf("leave with a pod: %s, want exit code 1 and --with-pods named", r)
	}
	if s := cluster.Status(ctx, t, n1); s.State != api.StateHeld {
		t.Errorf("after it was refused: state %s", s.State)
	}
	wire := cluster.Sniff(t, c.LAN, "to-n1")
	began := time.Now()
	if r = cluster.Run(ctx, t, n1, "tenurectl", "leave", "--with-pods", "--socket="+n1.Socket); r.Code != 0 || !strings.Contains(r.Out, subnet+" is given up") {
		t.Errorf("leave --with-pods: %s", r)
	}
	if s := cluster.WaitState(ctx, t, n2, api.StateHeld); s.Subnet != subnet {
		t.Errorf("n2 holds %s, want %s", s.Subnet, subnet)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the next node was served after %s", took)
	}
	s := cluster.Status(ctx, t, n1)
	if s.State != api.StateLost || !strings.Contains(s.Reason, "tenurectl leave") || len(s.Stranded) != 1 || !cluster.HasProblem(s, "stranded-pods") {
		t.Errorf("n1 is %s (%s), stranded %v", s.State, s.Reason, s.Stranded)
	}
	if a := cluster.Call(ctx, t, n1, lab.CNICall{Verb: "STATUS"}); cluster.Code(a) != api.CodeNotReadyLimited {
		t.Errorf("STATUS: %v, want code 51", a.Err)
	}
	heir := cluster.Pod(ctx, t, n2, "heir", lab.PodOptions{Args: "IP=10.5.1.100"})
	cluster.Serve(ctx, t, heir.NS, port)
	cluster.Unseen(ctx, t, pod.NS, heir.IP, port)
	cluster.Seen(ctx, t, pod.NS, c.OutsideAddr(), port, n1.Addr)
	if n := wire.From(pod.IP); n != 0 {
		t.Errorf("%d packets of the stranded pod crossed the overlay", n)
	}
	if r = cluster.Run(ctx, t, n1, "tenurectl", "leave", "--with-pods", "--socket="+n1.Socket); r.Code != 0 || !strings.Contains(r.Out, "held no subnet") {
		t.Errorf("leave again: %s", r)
	}

	// It waits, also where it could be served; a new daemon joins again.
	if r = cluster.Run(ctx, t, n2, "tenurectl", "leave", "--with-pods", "--socket="+n2.Socket); r.Code != 0 {
		t.Errorf("n2 leaves: %s", r)
	}
	cluster.Stays(ctx, t, 4*time.Second, "n1 waits", func() error {
		if s := cluster.Status(ctx, t, n1); s.Lease != nil {
			t.Fatalf("n1 holds %s", s.Subnet)
		}
		return nil
	})
	n1.Kill()
	cluster.Start(ctx, t, n1)
	if s := cluster.Status(ctx, t, n1); s.Subnet != subnet || len(s.Stranded) != 0 {
		t.Errorf("n1 holds %s, stranded %v", s.Subnet, s.Stranded)
	}
	n1.Kill()
	if r = cluster.Run(ctx, t, n1, "tenurectl", "leave", "--socket="+n1.Socket); r.Code != 3 || !strings.Contains(r.Said, "tenurectl release") {
		t.Errorf("leave without a daemon: %s, want exit code 3 and another way", r)
	}
}

// TestRelease takes the subnet of a node that is cut off away from it. By force
// it is nobody's until that node's overlay has closed: nobody sends there any
// more, and status says why; then the next node has it. The node that held it
// comes back, takes another subnet, and its pods are stranded. With the word that
// the machine is off the subnet is free at once.
func TestRelease(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, pairOfSubnets, "n1", "n2")
	n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.AddNode(ctx, t, "n3")
	release := func(want int, said string, args ...string) {
		t.Helper()
		r := cluster.Run(ctx, t, c.Etcd.NS, "tenurectl", append([]string{"release", "--etcd-endpoints=" + c.Etcd.URL()}, args...)...)
		if r.Code != want || !strings.Contains(r.Out+r.Said, said) {
			t.Errorf("release %v: %s, want exit code %d and %q", args, r, want, said)
		}
	}
	old, far := cluster.Pod(ctx, t, n1, "old"), cluster.Pod(ctx, t, n2, "far")
	flow := cluster.StartFlow(ctx, t, far.NS, old.NS, old.IP)
	flow.Runs(ctx, t)
	was := cluster.Status(ctx, t, n1)
	if err := n3.Start(ctx); err != nil {
		t.Fatal(err)
	}
	waitsAs(ctx, t, n3, "no free subnet")

	release(2, "--machine-is-off", "n1")
	release(2, "no node and no subnet", "n9", "--force")
	cut(ctx, t, n1, true)
	began := time.Now()
	release(0, was.Subnet+`, which node "n1" held, is nobody's until`, "n1", "--force")
	s := cluster.Wait(ctx, t, n2, "knows the tombstone", func(s *api.Status) bool {
		p := peerOn(s, was.Subnet)
		return p != nil && p.State == api.PeerUnreachable && strings.Contains(p.Reason, "by force")
	})
	if !s.Ready || cluster.HasProblem(s, "duplicate-node") {
		t.Errorf("n2: %+v", s.Problems)
	}
	flow.Ends(ctx, t, time.Second)
	if kernel, err := cluster.KernelPeers(ctx, n2); err != nil || len(kernel.Routes)+len(kernel.Neighs)+len(kernel.FDB) != 0 {
		t.Errorf("n2 still has in its kernel %+v (%v)", kernel, err)
	}
	waitsAs(ctx, t, n3, "released from n1 by force")
	cluster.WaitState(ctx, t, n1, api.StateFenced)
	s = cluster.WaitState(ctx, t, n3, api.StateHeld)
	if waited := time.Since(began); s.Subnet != was.Subnet || s.Lease.Epoch <= was.Lease.Epoch || waited < 7*time.Second {
		t.Errorf("n3 holds %s in epoch %d after %s, want %s after epoch %d and 8 s", s.Subnet, s.Lease.Epoch, waited, was.Subnet, was.Lease.Epoch)
	}

	// The node is back; nothing is free until n2's machine is off.
	cut(ctx, t, n1, false)
	s = cluster.WaitState(ctx, t, n1, api.StateLost)
	if len(s.Stranded) != 1 || s.Stranded[0].Subnet != was.Subnet {
		t.Errorf("n1 is back, stranded %v", s.Stranded)
	}
	second := cluster.Status(ctx, t, n2).Subnet
	n2.Kill()
	if err := n2.Reboot(ctx); err != nil { // and stays off
		t.Fatal(err)
	}
	release(0, second+`, which node "n2" held, is free now`, second, "--machine-is-off")
	began = time.Now()
	if s = cluster.WaitState(ctx, t, n1, api.StateHeld); s.Subnet != second || time.Since(began) > 5*time.Second {
		t.Errorf("n1 holds %s after %s, want %s", s.Subnet, time.Since(began), second)
	}
	if !slices.ContainsFunc(s.Stranded, func(p api.Stranded) bool { return p.Address == old.IP.String() }) {
		t.Errorf("stranded %v", s.Stranded)
	}
	cluster.WaitPeers(ctx, t, n1, n3)
	young, heir := cluster.Pod(ctx, t, n1, "young"), cluster.Pod(ctx, t, n3, "heir", lab.PodOptions{Args: "IP=" + vtep(was.Subnet).Next().Next().Next().Next().String()})
	cluster.Serve(ctx, t, heir.NS, port)
	cluster.Seen(ctx, t, young.NS, heir.IP, port, young.IP)
	cluster.Unseen(ctx, t, old.NS, heir.IP, port)
}
