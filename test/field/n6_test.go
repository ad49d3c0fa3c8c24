package field

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestN6 is k3s #3006 and #6969, flannel #760 and tectonic-installer #2439: a
// node gets another address, from DHCP for instance, and its routes are
// missing, its daemon loops or crashes. Right is: the subnet is kept, under
// the same lease and with the same token; the record is updated in place, the
// tunnel's own end moves, and the peers follow within 10 s, whether the daemon
// was running or not. It is the same when the interface goes away for a moment,
// gets another name, or a bridge takes its place, as a bond does.
func TestN6(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2, store := c.Nodes[0], c.Nodes[1], c.Store(t)
	p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	talks(ctx, t, p1, p2)
	was := cluster.Status(ctx, t, n1)
	mac := look(ctx, t, n1).link.MAC
	history := func() int64 {
		resp, err := store.Get(ctx, cluster.SubnetKey(was.Subnet))
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatalf("key of %s: %v", was.Subnet, err)
		}
		return resp.Kvs[0].CreateRevision
	}
	born := history()
	follows := func(addr, device string) {
		t.Helper()
		within, cancel := context.WithTimeout(ctx, repairTime)
		defer cancel()
		cluster.Eventually(within, t, repairTime, "the overlay is at "+addr+" on "+device, func() error {
			return moved(within, n1, n2, mac, addr, device)
		})
		talks(within, t, p1, p2)
		s := cluster.Wait(within, t, n1, "is well there", func(s *api.Status) bool {
			return s.State == api.StateHeld && s.PublicIP == addr && s.Interface == device && cluster.Well(s)
		})
		if s.Subnet != was.Subnet || s.Lease.ID != was.Lease.ID || s.Lease.Epoch != was.Lease.Epoch {
			t.Errorf("status %+v, want %s under lease %s", s, was.Subnet, was.Lease.ID)
		}
		if v, _, _ := store.Holder(ctx, was.Subnet); !strings.Contains(v, `"PublicIP":"`+addr+`"`) || history() != born {
			t.Errorf("the record is %s, made at revision %d, want one of %d with %s", v, history(), born, addr)
		}
	}

	readdress(ctx, t, n1, n1.Addr.String(), "192.0.2.211")
	follows("192.0.2.211", "eth0")
	if err := n1.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	readdress(ctx, t, n1, "192.0.2.211", "192.0.2.212")
	start(ctx, t, n1, "--iface=") // by the route to etcd
	follows("192.0.2.212", "eth0")
	for _, way := range []struct{ device, lines string }{
		{"eth0", "link set eth0 down; link set eth0 up; route add default via 192.0.2.1"},
		{"lan0", "link set eth0 down; link set eth0 name lan0; link set lan0 up; route add default via 192.0.2.1"},
		{"br0", "link add br0 type bridge; link set lan0 master br0; addr del 192.0.2.212/24 dev lan0; link set br0 up; addr add 192.0.2.212/24 dev br0; route add default via 192.0.2.1"},
	} {
		for line := range strings.SplitSeq(way.lines, "; ") {
			cluster.Exec(ctx, t, n1, "ip", strings.Fields(line)...)
		}
		follows("192.0.2.212", way.device)
	}
}

// readdress gives the node another address in place of the one it has.
func readdress(ctx context.Context, t *testing.T, n *lab.Node, from, to string) {
	t.Helper()
	for _, line := range []string{
		"addr del " + from + "/24 dev eth0", "addr add " + to + "/24 dev eth0", "route add default via 192.0.2.1",
	} {
		cluster.Exec(ctx, t, n, "ip", strings.Fields(line)...)
	}
}

// moved is nil when n1's tunnel sends from addr by that device, and n2 sends there to n1's MAC.
func moved(ctx context.Context, n1, n2 *lab.Node, mac, addr, device string) error {
	link, err := n1.Exec(ctx, "ip", "-d", "link", "show", "dev", cluster.Overlay)
	if err != nil {
		return err
	}
	peers, err := cluster.KernelPeers(ctx, n2)
	if err != nil {
		return err
	}
	if !strings.Contains(link, " local "+addr+" dev "+device+" ") || fmt.Sprint(peers.FDB) != "["+mac+" "+addr+"]" {
		return fmt.Errorf("n2 sends to %v, the tunnel of n1 is\n%s", peers.FDB, link)
	}
	return nil
}
