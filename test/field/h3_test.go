package field

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestH3 is kubernetes #67183, cni #77, amazon-vpc-cni #3162 and rke2 #786: the
// bridge or a pod's interface ends up without address, or a network manager
// strips it seconds later. Right is: each loss is made good within 10 s with
// the same values, and the pod answers.
func TestH3(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	pod, other := cluster.Pod(ctx, t, n, "p"), cluster.Pod(ctx, t, n, "q")
	port := strings.TrimSpace(cluster.Exec(ctx, t, n, "sh", "-ec", "ls /sys/class/net/tenure0/brif | head -1"))
	picture := cluster.Picture(ctx, t, n)
	for _, loss := range []string{
		"ip addr flush dev tenure0",
		"ip link set tenure0 down",
		"ip link set " + port + " down",
		"ip link set " + port + " nomaster",
		"bridge link set dev " + port + " state 0",
		"ip route flush dev tenure0",
		"ip link set tenure0 type bridge stp_state 1",
	} {
		passes := cluster.WritingPasses(n)
		cluster.Exec(ctx, t, n, "sh", "-ec", loss)
		cluster.Eventually(ctx, t, repairTime, "all is as before "+loss, func() error {
			if cluster.WritingPasses(n) == passes {
				return errors.New("nothing was written")
			}
			if now := cluster.Picture(ctx, t, n); now != picture {
				return fmt.Errorf("there is\n%s\nwas\n%s", now, picture)
			}
			return nil
		})
		for _, p := range []*lab.Pod{pod, other} {
			if err := lab.WaitPing(ctx, n, p.IP); err != nil {
				t.Errorf("after %s: %v", loss, err)
			}
		}
		if err := lab.WaitPing(ctx, pod, other.IP); err != nil {
			t.Errorf("after %s: %v", loss, err)
		}
		if wrote := cluster.WritingPasses(n) - passes; wrote > 2 {
			t.Errorf("after %s: %d passes wrote", loss, wrote)
		}
	}
}
