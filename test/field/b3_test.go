package field

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestB3 is flannel #520 and #294: after a lost lease the node is given
// another subnet; the pods on the bridge are cut off, and every new pod fails
// because the bridge carries the old address. Right is: the new subnet works
// at once, beside the old one. Old pods are kept, listed as stranded and told
// so by CHECK; they keep their gateway, their neighbours and the world
// outside. The old subnet is its new tenant's, also as seen from this node,
// and the last old pod takes the old gateway with it.
func TestB3(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, cluster.ShortLease, "n1")
	n1, n2 := c.Nodes[0], c.AddNode(ctx, t, "n2")
	store := c.Store(t)
	cluster.Serve(ctx, t, c.Outside, port)
	old := []*lab.Pod{cluster.Pod(ctx, t, n1, "old1"), cluster.Pod(ctx, t, n1, "old2")}
	for _, p := range old {
		cluster.Serve(ctx, t, p.NS, port)
	}
	s1 := cluster.Status(ctx, t, n1).Subnet

	// The lease ends while the daemon lives on, cut off from etcd.
	store.Reserve(ctx, s1, "n2")
	cutEtcd(ctx, t, n1, true)
	awaitFree(ctx, t, store, s1)
	cluster.Start(ctx, t, n2)
	if s := cluster.Status(ctx, t, n2); s.Subnet != s1 {
		t.Fatalf("n2 holds %s, want %s", s.Subnet, s1)
	}
	heir := cluster.Pod(ctx, t, n2, "heir", lab.PodOptions{Args: "IP=" + inside(s1, 100).String()})
	cluster.Serve(ctx, t, heir.NS, port)
	cutEtcd(ctx, t, n1, false)

	s := held(ctx, t, n1, s1)
	young := cluster.Pod(ctx, t, n1, "young") // at once
	cluster.Serve(ctx, t, young.NS, port)
	stranded(ctx, t, n1, s1, old)
	for _, p := range old {
		a := cluster.Call(ctx, t, n1, cluster.CallFor("CHECK", p, "eth0"))
		if cluster.Code(a) != api.CodeCheckStranded {
			t.Errorf("CHECK of %s: %v, want code 111", p.Pod, a.Err)
		}
	}
	if err := young.Check(ctx); err != nil {
		t.Errorf("CHECK of a pod in %s: %v", s.Subnet, err)
	}
	oldPodsLive(ctx, t, c, old, young, inside(s1, 1))

	cluster.WaitPeers(ctx, t, n1, n2)
	cluster.Seen(ctx, t, young.NS, heir.IP, port, young.IP)
	cluster.Seen(ctx, t, heir.NS, young.IP, port, heir.IP)
	cluster.Unseen(ctx, t, heir.NS, old[0].IP, port)

	for _, p := range old {
		if err := p.Del(ctx); err != nil {
			t.Error(err)
		}
	}
	cluster.Eventually(ctx, t, 5*time.Second, "the old gateway leaves the bridge", func() error {
		bridge, err := cluster.FindLink(ctx, n1, cluster.Bridge)
		if want := inside(s.Subnet, 1).String() + "/24"; err == nil && !slices.Equal(bridge.Addrs, []string{want}) {
			err = fmt.Errorf("the bridge has %v, want %s only", bridge.Addrs, want)
		}
		return err
	})
	if now := cluster.Status(ctx, t, n1); len(now.Stranded) != 0 || cluster.HasProblem(now, "stranded-pods") {
		t.Errorf("still stranded: %+v, %+v", now.Stranded, now.Problems)
	}
}

// inside is an address of a /24.
func inside(subnet string, host byte) netip.Addr {
	a := netip.MustParsePrefix(subnet).Addr().As4()
	a[3] = host
	return netip.AddrFrom4(a)
}

// stranded makes sure that status lists exactly these pods, on that subnet.
func stranded(ctx context.Context, t *testing.T, n *lab.Node, subnet string, pods []*lab.Pod) {
	t.Helper()
	s := cluster.Status(ctx, t, n)
	var want []api.Stranded
	for _, p := range pods {
		want = append(want, api.Stranded{Subnet: subnet, ContainerID: p.ContainerID(), IfName: "eth0", Address: p.IP.String()})
	}
	byAddress := func(a, b api.Stranded) int { return strings.Compare(a.Address, b.Address) }
	slices.SortFunc(s.Stranded, byAddress)
	slices.SortFunc(want, byAddress)
	if !slices.Equal(s.Stranded, want) || !cluster.HasProblem(s, "stranded-pods") {
		t.Errorf("stranded %+v, want %+v; problems %+v", s.Stranded, want, s.Problems)
	}
}

// oldPodsLive walks the paths that a stranded pod keeps.
func oldPodsLive(ctx context.Context, t *testing.T, c *cluster.Cluster, old []*lab.Pod, young *lab.Pod, gateway netip.Addr) {
	t.Helper()
	cluster.Seen(ctx, t, old[0].NS, old[1].IP, port, old[0].IP)
	cluster.Seen(ctx, t, old[0].NS, young.IP, port, old[0].IP)
	cluster.Seen(ctx, t, young.NS, old[0].IP, port, young.IP)
	cluster.Seen(ctx, t, old[0].NS, c.OutsideAddr(), port, old[0].Node.Addr)
	if err := lab.Ping(ctx, old[0], gateway); err != nil {
		t.Errorf("the old gateway: %v", err)
	}
}
