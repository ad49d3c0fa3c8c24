package field

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// TestK5 is flannel #1171, calico #7651 and moby #24906: what stands between
// takes less than the interfaces say, and nobody gets to know: small packets pass
// and connections hang once they carry much. Right is: status names the peer and
// both sizes; with --clamp-mss on one side new connections pass, to the other
// node and to the outside, both ways; and once the way is whole status says
// nothing more.
func TestK5(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	// Of what passes the LAN only the overlay's packets: etcd's are large too.
	const narrow = `nft add table bridge narrow
nft 'add chain bridge narrow forward { type filter hook forward priority 0; }'
nft add rule bridge narrow forward ip protocol udp meta length gt 1300 drop
iptables -w -A OUTPUT -p icmp --icmp-type fragmentation-needed -j DROP
ip link set to-out mtu 1300`
	cluster.Exec(ctx, t, c.LAN, "sh", "-ec", narrow)
	cluster.Start(ctx, t, n1, n2)
	cluster.WaitPeers(ctx, t, n1, n2)
	near, far := cluster.Pod(ctx, t, n1, "near"), cluster.Pod(ctx, t, n2, "far")
	cluster.Serve(ctx, t, far.NS, port)
	cluster.Seen(ctx, t, near.NS, far.IP, port, near.IP) // small packets pass
	cluster.Sink(ctx, t, far.NS, port+1)
	cluster.Sink(ctx, t, c.Outside, port+1)

	for _, n := range c.Nodes {
		other := map[string]string{"n1": "n2", "n2": "n1"}[n.Host]
		s := within(ctx, t, 20*time.Second, n, "finds the hole", func(s *api.Status) bool { return problemText(s, "path-mtu") != "" })
		if text := problemText(s, "path-mtu"); !strings.Contains(text, other+" at ") || !strings.Contains(text, "1450 do not") || !strings.Contains(text, "(12") {
			t.Errorf("%s says %q", n.Host, text)
		}
	}
	targets := map[string]netip.Addr{"to the other node": far.IP, "to the outside": c.OutsideAddr()}
	for what, to := range targets {
		if err := cluster.Bulk(ctx, near.NS, to, port+1, 3*time.Second); err == nil {
			t.Errorf("%s a mebibyte passes without the clamp: this lab has no hole", what)
		}
	}
	if err := n1.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n1.Start(ctx, "--clamp-mss"); err != nil {
		t.Fatal(err)
	}
	within(ctx, t, 20*time.Second, n1, "clamps", func(s *api.Status) bool {
		return strings.Contains(problemText(s, "path-mtu"), "(--clamp-mss)")
	})
	for what, to := range targets {
		cluster.Eventually(ctx, t, 20*time.Second, "a mebibyte passes both ways, "+what, func() error {
			return cluster.Bulk(ctx, near.NS, to, port+1, 3*time.Second)
		})
	}
	cluster.Sink(ctx, t, near.NS, port+1)
	if err := cluster.Bulk(ctx, far.NS, near.IP, port+1, 10*time.Second); err != nil {
		t.Errorf("from the other node, which does not clamp: %v", err)
	}
	cluster.Exec(ctx, t, c.LAN, "sh", "-ec", "nft delete table bridge narrow; iptables -w -F OUTPUT; ip link set to-out mtu 1500")
	for _, n := range c.Nodes {
		cluster.Wait(ctx, t, n, "says nothing of it any more", func(s *api.Status) bool { return problemText(s, "path-mtu") == "" })
	}
}
