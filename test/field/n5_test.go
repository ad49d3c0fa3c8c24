package field

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestN5 is flannel #1978: a public address that is on no interface of the
// node, because it is translated on the way (1:1 NAT), was accepted until a
// restart looked it up among the local ones. Right is: with the interface
// named too it is accepted at each start, restart and reboot; it is announced,
// and the tunnel's own end has the interface's address. Without the interface
// the status says what is missing.
func TestN5(t *testing.T) {
	const public = "203.0.113.11"
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	// The router translates, as a cloud's does.
	cluster.Exec(ctx, t, c.LAN, "iptables", "-t", "nat", "-A", "PREROUTING", "-d", public, "-j", "DNAT", "--to-destination", n1.Addr.String())
	start := func(args ...string) {
		t.Helper()
		if err := n1.Start(ctx, append(args, "--public-ip="+public)...); err != nil {
			t.Fatal(err)
		}
	}

	start()
	cluster.Wait(ctx, t, n1, "asks for --iface", func(s *api.Status) bool {
		return !s.Ready && cluster.HasProblem(s, "underlay-missing") && strings.Contains(s.Problems[0].Text, "give --iface too")
	})
	stop(ctx, t, n1)

	start("--iface=eth0")
	cluster.Start(ctx, t, n2)
	translated(ctx, t, n1, n2, public)
	p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	talks(ctx, t, p1, p2)
	held := cluster.Status(ctx, t, n1)

	stop(ctx, t, n1)
	start("--iface=eth0")
	translated(ctx, t, n1, n2, public)
	talks(ctx, t, p1, p2)
	if s := cluster.Status(ctx, t, n1); s.Subnet != held.Subnet || s.Lease.ID != held.Lease.ID {
		t.Errorf("after the restart it holds %s under %s, before %s under %s", s.Subnet, s.Lease.ID, held.Subnet, held.Lease.ID)
	}

	if err := n1.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	// A host announces its card when it boots, which the lab's does not.
	cluster.Exec(ctx, t, c.LAN, "ip", "neigh", "flush", "dev", "lan0")
	start("--iface=eth0")
	translated(ctx, t, n1, n2, public)
	talks(ctx, t, cluster.Pod(ctx, t, n1, "q"), p2)
}

func stop(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	if err := n.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

// translated waits until n1 announces that address, its tunnel has another,
// and n2 sends to the announced one.
func translated(ctx context.Context, t *testing.T, n1, n2 *lab.Node, public string) {
	t.Helper()
	s := cluster.Wait(ctx, t, n1, "holds a subnet", func(s *api.Status) bool { return s.Ready && s.State == api.StateHeld })
	if s.PublicIP != public || s.Interface != "eth0" {
		t.Errorf("it announces %s on %s, want %s on eth0", s.PublicIP, s.Interface, public)
	}
	cluster.WaitPeers(ctx, t, n1, n2)
	cluster.Wait(ctx, t, n2, "has programmed "+s.Subnet, func(other *api.Status) bool {
		for _, p := range other.Peers {
			if p.Subnet == s.Subnet && p.PublicIP == public && p.State == api.PeerProgrammed {
				return true
			}
		}
		return false
	})
	link := cluster.Exec(ctx, t, n1, "ip", "-d", "link", "show", "dev", cluster.Overlay)
	if !strings.Contains(link, " local "+n1.Addr.String()+" ") {
		t.Errorf("the tunnel sends from another address than %s:\n%s", n1.Addr, link)
	}
}
