package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// TestRivalDevice starts a daemon where another overlay has the VNI and the
// port: one that is called as flannel calls its own. It is named and left
// alone, the bridge and the pods of the node work meanwhile, and once it has
// gone the overlay is made without a restart.
func TestRivalDevice(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	cluster.Exec(ctx, t, n1, "ip", "link", "add", "flannel.1", "type", "vxlan", "id", "1", "dstport", "8472", "local", n1.Addr.String(), "dev", "eth0", "nolearning")
	cluster.Exec(ctx, t, n1, "ip", "link", "set", "flannel.1", "up")
	cluster.Start(ctx, t, n1, n2)
	cluster.Wait(ctx, t, n1, "names flannel.1", func(s *api.Status) bool {
		for _, p := range s.Problems {
			if p.Code == "foreign" && p.Severity == "error" && strings.Contains(p.Text, "flannel.1") {
				return true
			}
		}
		return false
	})
	pod := cluster.Pod(ctx, t, n1, "p")
	cluster.Serve(ctx, t, c.Outside, port)
	cluster.Seen(ctx, t, pod.NS, c.OutsideAddr(), port, n1.Addr)
	if out := cluster.Exec(ctx, t, n1, "ip", "-d", "link", "show", "dev", "flannel.1"); !strings.Contains(out, "dstport 8472") || !strings.Contains(out, ",UP") {
		t.Errorf("flannel.1 is now %s", out)
	}

	cluster.Exec(ctx, t, n1, "ip", "link", "del", "flannel.1")
	cluster.WaitPeers(ctx, t, n1, n2)
	far := cluster.Pod(ctx, t, n2, "far")
	cluster.Serve(ctx, t, far.NS, port)
	cluster.Seen(ctx, t, pod.NS, far.IP, port, pod.IP)
	if s := cluster.Status(ctx, t, n1); cluster.HasProblem(s, "foreign") {
		t.Errorf("problems are still %+v", s.Problems)
	}
}
