package field

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// firewalldTable is what of firewalld's nftables backend concerns pods, as
// firewalld 1.3 writes it: hooks behind those of iptables that reject what no
// zone takes. The sets stand for its zones and ports.
const firewalldTable = `table inet firewalld
delete table inet firewalld
table inet firewalld {
	set trusted {
		type ipv4_addr; flags interval;
	}
	set ports {
		type inet_service;
	}
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		iifname "lo" accept
		ip saddr @trusted accept
		udp dport @ports accept
		meta l4proto icmp accept
		reject with icmpx admin-prohibited
	}
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		ct state invalid drop
		ip saddr @trusted accept
		reject with icmpx admin-prohibited
	}
}
`

// TestL1Firewalld is flannel #1668 with what firewalld does, on a node of two:
// it rejects what no zone of its own takes, which no rule of ours can change
// and none tries to; with the pod network trusted and the overlay's port open,
// as README says, everything passes. A reload flushes every rule of iptables
// and makes its own table anew: ours are back within 10 s, its table is left
// alone.
func TestL1Firewalld(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	pod, far := cluster.Pod(ctx, t, n1, "pod"), cluster.Pod(ctx, t, n2, "far")
	for _, ns := range []*lab.NS{pod.NS, far.NS, c.Outside} {
		cluster.Serve(ctx, t, ns, port)
	}
	whole := rules(ctx, t, n1)

	load(ctx, t, n1, firewalldTable)
	for _, way := range []struct {
		from *lab.NS
		to   netip.Addr
	}{{pod.NS, far.IP}, {pod.NS, c.OutsideAddr()}, {far.NS, pod.IP}} {
		cluster.Unseen(ctx, t, way.from, way.to, port)
	}
	trust(ctx, t, n1)
	look := func() {
		t.Helper()
		cluster.Seen(ctx, t, pod.NS, far.IP, port, pod.IP)
		cluster.Seen(ctx, t, pod.NS, c.OutsideAddr(), port, n1.Addr)
		cluster.Seen(ctx, t, far.NS, pod.IP, port, far.IP)
	}
	look()

	for _, table := range []string{"raw", "nat", "filter"} {
		cluster.Exec(ctx, t, n1, "iptables", "-w", "-t", table, "-F")
		_, _ = n1.Exec(ctx, "iptables", "-w", "-t", table, "-X") // the daemon may be faster
	}
	load(ctx, t, n1, firewalldTable)
	trust(ctx, t, n1)
	table := cluster.Exec(ctx, t, n1, "nft", "list", "table", "inet", "firewalld")
	cluster.Eventually(ctx, t, repairTime, "rules are back", func() error {
		if now := rules(ctx, t, n1); !slices.Equal(now, whole) {
			return fmt.Errorf("there are %q", now)
		}
		return nil
	})
	look()
	if now := cluster.Exec(ctx, t, n1, "nft", "list", "table", "inet", "firewalld"); now != table {
		t.Errorf("the table of others is now\n%s", now)
	}
}

// load has nft read the text.
func load(ctx context.Context, t *testing.T, n *lab.Node, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "table")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster.Exec(ctx, t, n, "nft", "-f", file)
}

// trust is what the operator tells firewalld.
func trust(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	cluster.Exec(ctx, t, n, "nft", "add", "element", "inet", "firewalld", "trusted", "{", cluster.PodNetwork, "}")
	cluster.Exec(ctx, t, n, "nft", "add", "element", "inet", "firewalld", "ports", "{", "8472", "}")
}
