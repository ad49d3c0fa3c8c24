package e2e

import (
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestFirewall puts Tenure on nodes where others have rules of their own. As
// Docker does, the policy of FORWARD is DROP, and pods reach each other all
// the same. A chain of policies stands ahead, as Kubernetes' network policies
// do, and drops what one pod sends: that stays in force, before and after a
// restart of the daemon, although ours accepts everything from pods.
func TestFirewall(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	for _, n := range c.Nodes {
		cluster.Exec(ctx, t, n, "iptables", "-w", "-P", "FORWARD", "DROP")
		cluster.Exec(ctx, t, n, "iptables", "-w", "-N", "POLICY")
		cluster.Exec(ctx, t, n, "iptables", "-w", "-A", "FORWARD", "-j", "POLICY")
	}
	cluster.Start(ctx, t, n1, n2)
	cluster.WaitPeers(ctx, t, n1, n2)
	free, held, far := cluster.Pod(ctx, t, n1, "free"), cluster.Pod(ctx, t, n1, "held"), cluster.Pod(ctx, t, n2, "far")
	for _, ns := range []*lab.NS{held.NS, far.NS, c.Outside} {
		cluster.Serve(ctx, t, ns, port)
	}
	cluster.Seen(ctx, t, held.NS, far.IP, port, held.IP)
	cluster.Exec(ctx, t, n1, "iptables", "-w", "-A", "POLICY", "-s", held.IP.String(), "-j", "DROP")

	look := func(t *testing.T) {
		cluster.Seen(ctx, t, free.NS, far.IP, port, free.IP)
		cluster.Seen(ctx, t, free.NS, c.OutsideAddr(), port, n1.Addr)
		cluster.Unseen(ctx, t, held.NS, far.IP, port)
		cluster.Unseen(ctx, t, held.NS, c.OutsideAddr(), port)
	}
	t.Run("policy", look)
	if err := n1.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	cluster.Start(ctx, t, n1)
	cluster.Pod(ctx, t, n1, "later") // the rules have been looked at by then
	t.Run("policy after a restart", look)

	cluster.Exec(ctx, t, n1, "iptables", "-w", "-F", "POLICY")
	cluster.Seen(ctx, t, held.NS, far.IP, port, held.IP)
}
