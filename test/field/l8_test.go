package field

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestL8 is flannel #872, #609, #799, #823, #834, #978 and #938, kubernetes
// #39823 and #40182: Docker makes the policy of FORWARD DROP and pods are cut
// off; and the blanket accepts that mend it overrule network policies. Right
// is: pods reach each other and the outside all the same. A chain of policies
// that stands ahead drops what one pod sends, before and after a restart of the
// daemon. With the option off no rule of ours is in the filter table.
func TestL8(t *testing.T) {
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

	if err := n1.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n1.Start(ctx, "--forward-accept=false"); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(ctx, t, repairTime, "no rule of ours in the filter table", func() error {
		filter := cluster.Exec(ctx, t, n1, "iptables-save", "-t", "filter")
		if strings.Contains(filter, "TENURE-") || !strings.Contains(filter, "-A FORWARD -j POLICY") {
			return errors.New(filter)
		}
		return nil
	})
	cluster.Unseen(ctx, t, free.NS, far.IP, port) // the policy is DROP
}
