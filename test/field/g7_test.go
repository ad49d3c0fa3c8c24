package field

import (
	"errors"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestG7 is flannel #636, put right by #785: with the store and the daemons
// stopped, traffic dies after a while, since entries age and nobody resolves
// them. Right is: nothing is removed on stop, nothing of ours ages, and new
// flows between pods, and from the hosts, work in both directions. Ageing is
// hastened here; the long form waits past the kernel's own times.
func TestG7(t *testing.T) {
	ctx := cluster.Context(t, 10*time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	talk := func() error {
		return errors.Join(lab.WaitPing(ctx, p1, p2.IP), lab.WaitPing(ctx, p2, p1.IP),
			lab.WaitPing(ctx, n1, p2.IP), lab.WaitPing(ctx, n2, p1.IP))
	}
	if err := talk(); err != nil {
		t.Fatal(err)
	}
	before := []string{cluster.Picture(ctx, t, n1), cluster.Picture(ctx, t, n2)}
	for _, n := range c.Nodes {
		if err := n.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		cluster.Exec(ctx, t, n, "sh", "-ec", `
			for d in tenure.1 tenure0 eth0; do
				echo 500 > /proc/sys/net/ipv4/neigh/$d/base_reachable_time_ms
				echo 1 > /proc/sys/net/ipv4/neigh/$d/gc_stale_time
			done
			ip link set tenure0 type bridge ageing_time 100
			ip neigh flush dev tenure0; ip neigh flush dev eth0; ip neigh flush dev tenure.1`)
	}
	if err := c.Etcd.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	wait := 4 * time.Second
	if cluster.Long(t) {
		wait = 6 * time.Minute
	}
	cluster.Stays(ctx, t, wait, "all stays", func() error {
		for i, n := range c.Nodes {
			if now := cluster.Picture(ctx, t, n); now != before[i] {
				return errors.New("the kernel of " + n.Host + " is\n" + now + "\nit was\n" + before[i])
			}
		}
		return nil
	})
	if err := talk(); err != nil {
		t.Error(err)
	}
}
