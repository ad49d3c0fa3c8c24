package field

import (
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// TestL7 is flannel #1317, #1306 and #1462, cilium #28260: rules of the legacy
// and of the nft kind stand side by side, ours land in the wrong one, or a DROP
// in the other one wins and nobody sees why. Right is: ours are in the kind
// that the host's iptables is of, and a rule in the other is named, with the
// program that shows it; it is left alone, and once it has gone so has the
// problem.
func TestL7(t *testing.T) {
	for _, kind := range []struct {
		used, other string
	}{{"nft", "legacy"}, {"legacy", "nft"}} {
		t.Run(kind.used, func(t *testing.T) {
			ctx := cluster.Context(t, time.Minute)
			c := cluster.Born(ctx, t, cluster.Network, "n1")
			n := c.Nodes[0]
			if kind.used == "legacy" {
				n.Env = legacyHost(t, n)
			}
			ours, others := "iptables-"+kind.used, "iptables-"+kind.other
			drop := []string{"FORWARD", "-s", cluster.PodNetwork, "-j", "DROP"}
			cluster.Exec(ctx, t, n, others, append([]string{"-w", "-A"}, drop...)...)
			cluster.Start(ctx, t, n)
			pod := cluster.Pod(ctx, t, n, "p")
			cluster.Serve(ctx, t, c.Outside, port)
			cluster.Wait(ctx, t, n, "names the other kind", func(s *api.Status) bool {
				return strings.Contains(problem(s, "foreign").Text, others+"-save")
			})
			if got := cluster.Exec(ctx, t, n, ours+"-save"); !strings.Contains(got, "-A FORWARD -j TENURE-FWD") {
				t.Errorf("%s-save shows\n%s", ours, got)
			}
			if got := cluster.Exec(ctx, t, n, others+"-save"); strings.Contains(got, "TENURE-") || !strings.Contains(got, "-s 10.5.0.0/16 -j DROP") {
				t.Errorf("%s-save shows\n%s", others, got)
			}
			cluster.Unseen(ctx, t, pod.NS, c.OutsideAddr(), port)

			cluster.Exec(ctx, t, n, others, append([]string{"-w", "-D"}, drop...)...)
			cluster.Wait(ctx, t, n, "has no such problem any more", func(s *api.Status) bool { return !cluster.HasProblem(s, "foreign") })
			cluster.Seen(ctx, t, pod.NS, c.OutsideAddr(), port, n.Addr)
		})
	}
}
