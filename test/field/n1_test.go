package field

import (
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// TestN1 is k3s #72, kubernetes #17788, kubeadm-ha #28 and flannel #764: all
// machines announce the same address, that of a first interface behind NAT, and
// nobody says a word; packets for all of them go to one. Right is: both nodes'
// status name the two and the address, for as long as it is so and no longer.
func TestN1(t *testing.T) {
	const same = "192.0.2.77"
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.ShortLease, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	for _, n := range c.Nodes {
		// Behind NAT: the address is on no interface of the node.
		if err := n.Start(ctx, "--iface=eth0", "--public-ip="+same); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.Nodes {
		s := cluster.Wait(ctx, t, n, "reports the address that two nodes announce", func(s *api.Status) bool {
			return duplicate(s) != ""
		})
		for _, name := range []string{"n1", "n2", same} {
			if text := duplicate(s); !strings.Contains(text, name) {
				t.Errorf("%s does not name %s: %s", n.Host, name, text)
			}
		}
	}
	if err := n2.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n2.Start(ctx); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes {
		cluster.Wait(ctx, t, n, "holds its subnet and reports it no more", func(s *api.Status) bool {
			return s.State == api.StateHeld && duplicate(s) == ""
		})
	}
	cluster.WaitPeers(ctx, t, n1, n2)
}

// duplicate is what a node's status says about another node like it, empty
// where it says nothing.
func duplicate(s *api.Status) string {
	for _, p := range s.Problems {
		if p.Code == "duplicate-node" {
			return p.Text
		}
	}
	return ""
}
