package field

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestN4 is flannel #895 and #2141, k3s #11476, kube-router #484, raven #30 and
// cni #41: on a node with several uplinks packets bear the wrong source
// address, outside or inside, and a strict reverse-path filter drops what comes
// back. Right is, with the filter strict everywhere and an uplink chosen that
// is not the default route's: the outer source is the chosen address, the
// host's own packets into the overlay come from its tunnel address, all ways
// work; and where a peer is reached by another uplink, the doctor says so.
func TestN4(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	second := map[*lab.Node]netip.Addr{n1: netip.MustParseAddr("198.51.100.253"), n2: netip.MustParseAddr("198.51.100.254")}
	cluster.Exec(ctx, t, n1, "ip", "link", "add", "eth1", "type", "veth", "peer", "name", "eth1", "netns", n2.Name())
	for _, n := range c.Nodes {
		cluster.Exec(ctx, t, n, "ip", "addr", "add", second[n].String()+"/30", "dev", "eth1")
		cluster.Exec(ctx, t, n, "ip", "link", "set", "eth1", "up")
		for _, device := range []string{"all", "default", "eth0", "eth1"} { // a new device takes default
			set(ctx, t, n, "net/ipv4/conf/"+device+"/rp_filter", "1")
		}
		if err := n.Start(ctx, "--iface=eth1"); err != nil {
			t.Fatal(err)
		}
	}
	cluster.WaitPeers(ctx, t, n1, n2)
	pods := map[*lab.Node]*lab.Pod{}
	for _, n := range c.Nodes {
		pods[n] = cluster.Pod(ctx, t, n, "p")
		cluster.Serve(ctx, t, pods[n].NS, port)
		cluster.Serve(ctx, t, n.NS, port)
		if s := cluster.Status(ctx, t, n); s.PublicIP != second[n].String() || !cluster.Well(s) {
			t.Errorf("%s announces %s, problems %+v", n.Host, s.PublicIP, s.Problems)
		}
	}
	wire := cluster.Sniff(t, n2.NS, "eth1")
	for here, there := range map[*lab.Node]*lab.Node{n1: n2, n2: n1} {
		t.Run("from "+here.Host, func(t *testing.T) {
			outerSource(ctx, t, here, second[here])
			cluster.Seen(ctx, t, pods[here].NS, pods[there].IP, port, pods[here].IP)
			cluster.Seen(ctx, t, here.NS, pods[there].IP, port, tunnel(ctx, t, here))
			cluster.Seen(ctx, t, pods[here].NS, second[there], port, second[here])
			cluster.Seen(ctx, t, pods[here].NS, there.Addr, port, here.Addr)
			nodePort(ctx, t, c, here, pods[there])
			strict(ctx, t, here)
		})
	}
	if wire.From(pods[n1].IP) == 0 {
		t.Error("nothing of the overlay came by the chosen uplink")
	}

	mustFind(ctx, t, n1, nil, "INFO rp-filter", "all 1, eth1 1")
	cluster.Exec(ctx, t, n1, "ip", "route", "add", second[n2].String()+"/32", "via", n2.Addr.String(), "dev", "eth0")
	mustFind(ctx, t, n1, nil, "ERROR rp-filter", second[n2].String()+" by eth0")
}

// nodePort reaches a pod of another node from outside, through this one.
func nodePort(ctx context.Context, t *testing.T, c *cluster.Cluster, n *lab.Node, to *lab.Pod) {
	t.Helper()
	const open = 30080
	for _, rule := range []string{
		fmt.Sprintf("PREROUTING -d %s -p tcp --dport %d -j DNAT --to-destination %s:%d", n.Addr, open, to.IP, port),
		fmt.Sprintf("POSTROUTING -d %s -p tcp --dport %d -j MASQUERADE", to.IP, port),
	} {
		cluster.Exec(ctx, t, n, "iptables", append([]string{"-w", "-t", "nat", "-I"}, strings.Fields(rule)...)...)
	}
	cluster.Seen(ctx, t, c.Outside, n.Addr, open, tunnel(ctx, t, n))
}

// tunnel is the address of the node's overlay device.
func tunnel(ctx context.Context, t *testing.T, n *lab.Node) netip.Addr {
	t.Helper()
	link, err := cluster.FindLink(ctx, n, cluster.Overlay)
	if err != nil || len(link.Addrs) != 1 {
		t.Fatalf("overlay %+v: %v", link, err)
	}
	return netip.MustParsePrefix(link.Addrs[0]).Addr()
}

// outerSource makes sure that the tunnel sends from that address.
func outerSource(ctx context.Context, t *testing.T, n *lab.Node, addr netip.Addr) {
	t.Helper()
	if out := cluster.Exec(ctx, t, n, "ip", "-d", "link", "show", "dev", cluster.Overlay); !strings.Contains(out, " local "+addr.String()+" ") {
		t.Errorf("the tunnel of %s does not send from %s: %s", n.Host, addr, out)
	}
}

// strict makes sure that the filter still is, everywhere.
func strict(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	for _, device := range []string{"all", "eth0", "eth1", cluster.Bridge, cluster.Overlay} {
		if out := cluster.Exec(ctx, t, n, "cat", "/proc/sys/net/ipv4/conf/"+device+"/rp_filter"); strings.TrimSpace(out) != "1" {
			t.Errorf("rp_filter of %s is %s", device, out)
		}
	}
}
