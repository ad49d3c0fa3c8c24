package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// collectTime is two looks of the collector and some time on a busy machine.
const collectTime = 20 * time.Second

// TestCollect lets pods vanish without a DEL, and puts interfaces into the
// kernel that no record knows. The daemon frees and removes them by itself,
// and leaves alone whatever lives or may live.
func TestCollect(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	lives, cut, dead := cluster.Pod(ctx, t, n, "lives"), cluster.Pod(ctx, t, n, "cut"), cluster.Pod(ctx, t, n, "dead")
	run(ctx, t, n, "ip", "link", "delete", hostEnd(cut)) // its namespace lives on
	stray := attach.Owner{Instance: "tenure", Network: "tenure", ContainerID: "stray", IfName: "eth0"}
	other := attach.Owner{Instance: "other", Network: "tenure", ContainerID: "stray", IfName: "eth0"}
	for i, o := range []attach.Owner{stray, other} {
		name := attach.HostName(o)
		run(ctx, t, n, "ip", "link", "add", name, "type", "veth", "peer", "name", fmt.Sprintf("stray%d", i))
		run(ctx, t, n, "ip", "link", "set", name, "alias", attach.Alias(o, nil))
	}
	if err := dead.Vanish(); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(ctx, t, collectTime, "the dead pod's address is free, and the stray interface gone", func() error {
		if used := cluster.Status(ctx, t, n).Addresses.Used; used != 2 {
			return fmt.Errorf("%d addresses are in use, want 2", used)
		}
		if _, err := cluster.FindLink(ctx, n, attach.HostName(stray)); err == nil {
			return fmt.Errorf("%s is still there", attach.HostName(stray))
		}
		return nil
	})
	if err := lives.Check(ctx); err != nil {
		t.Errorf("the pod that lives: %v", err)
	}
	if _, err := cluster.FindLink(ctx, n, attach.HostName(other)); err != nil {
		t.Errorf("another instance's interface: %v", err)
	}
	// Its runtime may ask again for the one whose interface was cut.
	if was := cut.IP; cut.Add(ctx) != nil || cut.IP != was {
		t.Errorf("the pod whose interface was deleted has %s, had %s", cut.IP, was)
	}
}

func hostEnd(p *lab.Pod) string { return p.Result.Interfaces[1].Name }

// run runs a command on the node that has to succeed.
func run(ctx context.Context, t *testing.T, n *lab.Node, name string, args ...string) {
	t.Helper()
	if out, err := n.Exec(ctx, name, args...); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}
