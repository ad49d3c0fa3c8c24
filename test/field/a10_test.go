package field

import (
	"errors"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestA10 is flannel #533 and #535, homeworld #247: only the node with the
// first subnet of the network cannot reach pods elsewhere from the host, since
// its tunnel address is the network's own. Right is: it is a node as any
// other, in both directions, from pods and from hosts, and its tunnel bears an
// address of host length only.
func TestA10(t *testing.T) {
	for network, first := range map[string]string{
		`{"Network":"10.5.0.0/16","SubnetMin":"10.5.0.0"}`: "10.5.0.0/24",
		`{"Network":"10.0.0.0/8","SubnetMin":"10.0.0.0"}`:  "10.0.0.0/24",
	} {
		t.Run(first, func(t *testing.T) {
			ctx := cluster.Context(t, 90*time.Second)
			c := cluster.Born(ctx, t, network, "n1", "n2")
			n1, n2 := c.Nodes[0], c.Nodes[1]
			c.Store(t).Reserve(ctx, first, "n1")
			cluster.Start(ctx, t, n1, n2)
			cluster.WaitPeers(ctx, t, n1, n2)
			if s := cluster.Status(ctx, t, n1); s.Subnet != first {
				t.Fatalf("n1 holds %s", s.Subnet)
			}
			p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
			if err := errors.Join(
				lab.WaitPing(ctx, n1, p2.IP), lab.WaitPing(ctx, p1, p2.IP),
				lab.WaitPing(ctx, n2, p1.IP), lab.WaitPing(ctx, p2, p1.IP),
			); err != nil {
				t.Error(err)
			}
			link, err := cluster.FindLink(ctx, n1, cluster.Overlay)
			if err != nil || len(link.Addrs) != 1 || link.Addrs[0] != first[:len(first)-2]+"32" {
				t.Errorf("tunnel %+v, %v", link, err)
			}
		})
	}
}
