package field

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestPathsOfBothFamilies: the way to a peer is changed and changed back in both
// families, and none of them loses a packet for it.
func TestPathsOfBothFamilies(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	with := func(backend string) string { return fmt.Sprintf(dualNetwork, `,"Backend":`+backend) }
	c := cluster.BornIn(ctx, t, lab.Options{IPv6: true}, with(plainVXLAN), "n1", "n2")
	n1, n2, store := c.Nodes[0], c.Nodes[1], c.Store(t)
	cluster.Start(ctx, t, n1, n2)
	paths(ctx, t, n1, "n2 vxlan")
	p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	reaches(ctx, t, p1, p2.IP, p2.IP6)
	flows := []*cluster.Flow{cluster.StartFlow(ctx, t, p1.NS, p2.NS, p2.IP), cluster.StartFlow(ctx, t, p1.NS, p2.NS, p2.IP6)}
	for _, step := range []struct{ backend, way string }{{routing, "direct"}, {plainVXLAN, "vxlan"}, {hostGW, "direct"}, {plainVXLAN, "vxlan"}} {
		var sent []int
		for _, f := range flows {
			f.Runs(ctx, t)
			sent = append(sent, f.Sent())
		}
		store.Configure(ctx, with(step.backend))
		for _, n := range c.Nodes {
			other := map[string]string{"n1": "n2", "n2": "n1"}[n.Host]
			paths(ctx, t, n, other+" "+step.way)
			cluster.Wait(ctx, t, n, "has a kernel as wanted", func(s *api.Status) bool { return !cluster.HasProblem(s, "data-plane") })
		}
		for i, f := range flows {
			f.Runs(ctx, t)
			if lost := f.Lost(ctx, sent[i]); lost > 0 {
				t.Errorf("to %s: flow %d lost %d of %d datagrams", step.backend, i, lost, f.Sent()-sent[i])
			}
		}
	}
}
