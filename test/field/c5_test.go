package field

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestC5 is cni #306, podman #12306, flannel #246, #1393 and #427: the bridge
// carries another address than the lease says, after a new lease, a new
// installation or a boot, and every ADD fails. Right is: the bridge follows
// the lease. An address of an older lease is replaced; addresses of others are
// kept and reported; a device that only has the bridge's name is named, left
// alone, and no longer in the way as soon as it is gone. A bridge with pods of
// an older lease on it is TestB3's.
func TestC5(t *testing.T) {
	const gateway, foreign = "10.5.1.1/24", "198.51.100.77/32"
	ctx := cluster.Context(t, 3*time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	c.Store(t).Reserve(ctx, own, "n1")
	ip := func(line string) {
		t.Helper()
		cluster.Exec(ctx, t, n, "ip", strings.Fields(line)...)
	}

	t.Run("another address and no ports", func(t *testing.T) {
		ip("link add tenure0 type bridge")
		ip("addr add 10.5.77.1/24 dev tenure0")
		ip("addr add 10.5.1.1/16 dev tenure0") // the right one with a wrong length
		ip("link set tenure0 up mtu 1300")
		cluster.Start(ctx, t, n)
		works(ctx, t, n, "a")
		onBridge(ctx, t, n, gateway)
	})
	t.Run("foreign addresses", func(t *testing.T) {
		ip("addr add " + foreign + " dev tenure0")
		reports(ctx, t, n, "foreign", foreign)
		if err := n.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		cluster.Start(ctx, t, n)
		works(ctx, t, n, "c")
		reports(ctx, t, n, "foreign", foreign)
		onBridge(ctx, t, n, gateway, foreign)
		ip("addr del " + foreign + " dev tenure0")
		cluster.Wait(ctx, t, n, "is well", func(s *api.Status) bool { return cluster.Well(s) })
	})
	t.Run("no bridge at all", func(t *testing.T) {
		if err := n.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		ip("link del tenure0")
		ip("link add tenure0 type veth peer name other0")
		ip("addr add " + foreign + " dev tenure0")
		was := describe(ctx, t, n)
		cluster.Start(ctx, t, n)
		reports(ctx, t, n, "foreign", "tenure0 is a veth and not a bridge")
		box := cluster.Sandbox(ctx, t, n, "d")
		a := cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0"))
		if cluster.Code(a) == 0 || !strings.Contains(a.Err.Msg+a.Err.Details, "tenure0 is a veth and not a bridge") {
			t.Errorf("ADD: %v, want an error that says what tenure0 is", a.Err)
		}
		if a = cluster.Call(ctx, t, n, lab.CNICall{Verb: "STATUS"}); cluster.Code(a) != api.CodeNotReady {
			t.Errorf("STATUS: %v, want code 50", a.Err)
		}
		if now := describe(ctx, t, n); now != was {
			t.Errorf("tenure0 was\n%s\nand is\n%s", was, now)
		}
		ip("link del tenure0")
		cluster.Eventually(ctx, t, repairTime, "the bridge is made", func() error {
			_, err := cluster.FindLink(ctx, n, cluster.Bridge)
			return err
		})
		works(ctx, t, n, "later")
		onBridge(ctx, t, n, gateway)
		cluster.Wait(ctx, t, n, "is well", func(s *api.Status) bool { return cluster.Well(s) })
	})
}

// works adds a pod, talks to its gateway, and deletes it.
func works(ctx context.Context, t *testing.T, n *lab.Node, name string) {
	t.Helper()
	p := cluster.Pod(ctx, t, n, name)
	if err := lab.WaitPing(ctx, p, inside(own, 1)); err != nil {
		t.Error(err)
	}
	if err := p.Check(ctx); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := p.Del(ctx); err != nil {
		t.Error(err)
	}
}

// onBridge wants exactly these addresses on the bridge.
func onBridge(ctx context.Context, t *testing.T, n *lab.Node, want ...string) {
	t.Helper()
	slices.Sort(want)
	cluster.Eventually(ctx, t, repairTime, "addresses of the bridge", func() error {
		l, err := cluster.FindLink(ctx, n, cluster.Bridge)
		if err == nil && (!slices.Equal(l.Addrs, want) || l.MTU != 1450) {
			err = fmt.Errorf("it is %+v, want addresses %v and MTU 1450", l, want)
		}
		return err
	})
}

// reports waits until a problem of that code says so.
func reports(ctx context.Context, t *testing.T, n *lab.Node, code, text string) {
	t.Helper()
	cluster.Wait(ctx, t, n, fmt.Sprintf("says %q", text), func(s *api.Status) bool {
		return slices.ContainsFunc(s.Problems, func(p api.Problem) bool { return p.Code == code && strings.Contains(p.Text, text) })
	})
}

// describe is all about tenure0 that the kernel shows, less its counters.
func describe(ctx context.Context, t *testing.T, n *lab.Node) string {
	t.Helper()
	return cluster.Exec(ctx, t, n, "ip", "-d", "addr", "show", "dev", cluster.Bridge) +
		cluster.Exec(ctx, t, n, "ip", "route", "show", "table", "all", "dev", cluster.Bridge)
}
