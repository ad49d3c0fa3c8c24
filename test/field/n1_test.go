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

// TestN1 is k3s #72, kubernetes #17788, kubeadm-ha #28 and flannel #764: all
// machines announce the same address, that of a first interface behind NAT, and
// nobody says a word; packets for all of them go to one. Right is: both nodes'
// status and that of every other name the two and the address, for as long as it
// is so and no longer; the one that came second says so from its start. It is
// the same whether the address was given by hand, and is on no interface, or
// whether each machine has it on its first interface, as virtual machines do.
func TestN1(t *testing.T) {
	for name, way := range map[string]struct {
		same  string
		flags []string
		own   bool // the address is on an interface of each
	}{
		"translated on the way":      {"192.0.2.77", []string{"--iface=eth0", "--public-ip=192.0.2.77"}, false},
		"every machine's first card": {"198.51.100.130", []string{"--iface=nat0"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := cluster.Context(t, time.Minute)
			c := cluster.Born(ctx, t, cluster.ShortLease, "n1", "n2", "n3")
			n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.Nodes[2]
			cluster.Start(ctx, t, n3)
			for _, n := range []*lab.Node{n1, n2} {
				if way.own {
					firstCard(ctx, t, n, way.same)
				}
				start(ctx, t, n, way.flags...)
				cluster.Wait(ctx, t, n, "has a record", func(s *api.Status) bool { return s.Subnet != "" && s.PublicIP == way.same })
			}
			for _, n := range c.Nodes {
				s := cluster.Wait(ctx, t, n, "reports the address that two nodes announce", func(s *api.Status) bool {
					return duplicate(s) != ""
				})
				for _, name := range []string{"n1", "n2", way.same} {
					if text := duplicate(s); !strings.Contains(text, name) {
						t.Errorf("%s does not name %s: %s", n.Host, name, text)
					}
				}
				if strings.Contains(duplicate(s), "n3") {
					t.Errorf("%s accuses n3: %s", n.Host, duplicate(s))
				}
			}
			if err := n2.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			start(ctx, t, n2, "--iface=eth0")
			for _, n := range c.Nodes {
				cluster.Wait(ctx, t, n, "holds its subnet and reports it no more", func(s *api.Status) bool {
					return s.State == api.StateHeld && duplicate(s) == ""
				})
			}
			cluster.WaitPeers(ctx, t, n2, n3)
		})
	}
}

// firstCard adds an interface with that address, as a hypervisor gives it to
// every machine.
func firstCard(ctx context.Context, t *testing.T, n *lab.Node, addr string) {
	t.Helper()
	for _, line := range []string{"link add nat0 type veth peer name nat1", "addr add " + addr + "/25 dev nat0", "link set nat0 up", "link set nat1 up"} {
		cluster.Exec(ctx, t, n, "ip", strings.Fields(line)...)
	}
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
