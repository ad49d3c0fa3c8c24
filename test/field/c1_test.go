package field

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// otherNetwork has no address of cluster.Network.
const otherNetwork = `{"Network":"10.6.0.0/16"}`

// TestC1 is flannel #1604 (wontfix) and #196: another network in etcd goes
// unnoticed, and after a restart the old routes and NAT rules stay. Right is:
// while anybody holds a subnet the change is refused and named within a second
// or two, and nothing changes, also over a restart.
func TestC1(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	ring := cluster.NewRing(ctx, t, n1, n2)
	store := c.Store(t)
	for _, next := range []string{otherNetwork, `{"Network":"10.5.0.0/16","SubnetLen":25}`, `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`} {
		store.Configure(ctx, next)
		for i, n := range c.Nodes {
			within(ctx, t, 3*time.Second, n, "refuses "+next, func(s *api.Status) bool {
				return refusal(s, ring.Before[i].Subnet) == nil && s.State == api.StateHeld && s.Network == cluster.PodNetwork
			})
		}
		if err := n1.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		cluster.Start(ctx, t, n1)
		if s := cluster.Status(ctx, t, n1); s.Network != cluster.PodNetwork || s.Subnet != ring.Before[0].Subnet {
			t.Errorf("after a restart n1 holds %s of %s", s.Subnet, s.Network)
		}
		ring.Untouched(ctx, t)
		store.Configure(ctx, cluster.Network)
		for _, n := range c.Nodes {
			within(ctx, t, 3*time.Second, n, "is well", func(s *api.Status) bool { return len(s.Problems) == 0 })
		}
	}
}

// TestC1Permitted is the way to another network: everybody leaves, the config
// is changed, the daemons start anew. Nothing of the old network is left in the
// kernel but what pods that live on need, who are stranded, still have their
// way out and to the pods beside them; and nothing at all when they have gone.
func TestC1Permitted(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	old, beside := cluster.Pod(ctx, t, n1, "old"), cluster.Pod(ctx, t, n1, "beside")
	if err := cluster.Pod(ctx, t, n2, "gone").Del(ctx); err != nil {
		t.Fatal(err)
	}
	cluster.Serve(ctx, t, c.Outside, port)
	cluster.Serve(ctx, t, beside.NS, port)
	first := cluster.Status(ctx, t, n1)

	// As README has it.
	tenurectl := func(code int, n *lab.Node, args ...string) string {
		t.Helper()
		r := cluster.Run(ctx, t, n, "tenurectl", append(args, "--socket="+n.Socket)...)
		if r.Code != code {
			t.Fatalf("%s: tenurectl %v: want exit code %d: %s", n.Host, args, code, r)
		}
		return r.Out + r.Said
	}
	tenurectl(1, n1, "config", "set", otherNetwork, "--yes")
	tenurectl(1, n1, "leave")
	tenurectl(0, n1, "leave", "--with-pods")
	tenurectl(0, n2, "leave")
	tenurectl(0, n1, "config", "set", otherNetwork, "--yes")
	for _, n := range c.Nodes {
		within(ctx, t, 5*time.Second, n, "has the other network", func(s *api.Status) bool { return s.Network == "10.6.0.0/16" })
		if err := n.Stop(ctx); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Start(ctx, t, n1, n2)
	cluster.WaitPeers(ctx, t, n1, n2)

	stranded(ctx, t, n1, first.Subnet, []*lab.Pod{old, beside})
	left(ctx, t, n2)
	left(ctx, t, n1, strings.TrimSuffix(first.Subnet, ".0/24"))
	cluster.Seen(ctx, t, old.NS, c.OutsideAddr(), port, n1.Addr)
	cluster.Seen(ctx, t, old.NS, beside.IP, port, old.IP)
	young, far := cluster.Pod(ctx, t, n1, "young"), cluster.Pod(ctx, t, n2, "far")
	cluster.Seen(ctx, t, young.NS, beside.IP, port, young.IP)
	talks(ctx, t, young, far)

	leave(ctx, t, old)
	leave(ctx, t, beside)
	left(ctx, t, n1)
	cluster.Wait(ctx, t, n1, "is well", func(s *api.Status) bool { return len(s.Problems) == 0 && len(s.Stranded) == 0 })
	talks(ctx, t, young, far)

	// From now on it may be another's: of a second instance on this host.
	for _, n := range c.Nodes {
		cluster.Eventually(ctx, t, 15*time.Second, n.Host+" has forgotten the old network", func() error {
			b, err := os.ReadFile(filepath.Join(n.StateDir, "node.json"))
			if err == nil && strings.Contains(string(b), `"networks"`) {
				err = fmt.Errorf("node.json is %s", b)
			}
			return err
		})
	}
	route := strings.Fields("route add unreachable 10.5.0.0/16 metric 4278198272 proto 90")
	cluster.Exec(ctx, t, n1, "ip", route...)
	cluster.Stays(ctx, t, 2*time.Second, "the other's route", func() error {
		if out := cluster.Exec(ctx, t, n1, "ip", "route", "show", "10.5.0.0/16"); out == "" {
			return errors.New("it is gone")
		}
		return nil
	})
}

// left waits until nothing of 10.5.0.0/16 is in the kernel's tables or in
// subnet.env, but lines that have one of the words.
func left(ctx context.Context, t *testing.T, n *lab.Node, but ...string) {
	t.Helper()
	cluster.Eventually(ctx, t, 10*time.Second, "of the old network nothing is left on "+n.Host, func() error {
		picture := cluster.Picture(ctx, t, n) + cluster.Exec(ctx, t, n, "ip", "route", "show", "table", "all")
		env, err := os.ReadFile(filepath.Join(n.RunDir, "subnet.env"))
		errs := []error{err}
		for line := range strings.Lines(picture + string(env)) {
			if !strings.Contains(line, "10.5.") {
				continue
			}
			allowed := false
			for _, word := range but {
				allowed = allowed || strings.Contains(line, word)
			}
			if !allowed {
				errs = append(errs, fmt.Errorf("left: %s", strings.TrimSpace(line)))
			}
		}
		return errors.Join(errs...)
	})
}
