package field

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestH1 is cni #285, kubernetes #30783, flannel #1381: a bridge without a MAC
// of its own takes the lowest one of its ports, so that it changes when a pod
// comes or goes and all flows stall. Right is: the bridge's MAC is the same
// from its creation on, whatever is plugged in, also when it is made anew and
// under another daemon; no datagram is lost when ports come and go.
func TestH1(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	near, far := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	was, err := cluster.FindLink(ctx, n1, cluster.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	same := func(when string) {
		t.Helper()
		cluster.Eventually(ctx, t, repairTime, "bridge is as it was "+when, func() error {
			now, err := cluster.FindLink(ctx, n1, cluster.Bridge)
			if err == nil && fmt.Sprint(now) != fmt.Sprint(was) {
				err = fmt.Errorf("it is %+v, it was %+v", now, was)
			}
			return err
		})
	}
	flow := cluster.StartFlow(ctx, t, near.NS, far.NS, far.IP)
	flow.Runs(ctx, t)
	sent := flow.Sent()
	cluster.Exec(ctx, t, n1, "sh", "-ec", "ip link add low0 address 00:00:00:00:00:01 type veth peer name low1; ip link set low0 master tenure0 up; ip link set low1 up")
	same("with a lower port")
	cluster.Exec(ctx, t, n1, "ip", "link", "del", "low0")
	same("without it")
	if err := n1.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	cluster.Start(ctx, t, n1)
	same("under another daemon")
	flow.Runs(ctx, t)
	flow.Whole(ctx, t, sent)
	cluster.Exec(ctx, t, n1, "ip", "link", "del", cluster.Bridge)
	same("made anew")
	if err := lab.WaitPing(ctx, near, far.IP); err != nil {
		t.Error(err)
	}
}
