package field

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// peersFollow is how long a change of the tunnel may be felt.
const peersFollow = 5 * time.Second

// counters are timers and the numbers of devices in what ip shows.
func counters() *regexp.Regexp { return regexp.MustCompile(`(?m)^\d+: |\w+_timer +\S+`) }

// TestI2 is flannel #1788, #1795 and #1330: the MAC of a node's tunnel is
// changed by somebody after it was announced; the other nodes go on sending to
// the old one until a restart. Right is: the announced MAC is restored, the
// neighbours that the kernel forgets with the change come back, packets pass
// both ways within 5 s, and no forwarding line for the wrong MAC is left. The
// same goes for what else can be changed on the tunnel and on the bridge.
func TestI2(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	n1, n2, store := c.Nodes[0], c.Nodes[1], c.Store(t)
	publish(ctx, store, 3)
	cluster.Start(ctx, t, n1, n2)
	cluster.WaitPeers(ctx, t, n1, n2)
	p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	talks(ctx, t, p1, p2)
	cluster.Eventually(ctx, t, repairTime, "all peers are in the kernel", func() error {
		for _, n := range []*lab.Node{n1, n2} {
			if got := look(ctx, t, n); len(got.peers.Routes) != 4 || len(got.peers.FDB) != 4 {
				return fmt.Errorf("%s has %+v", n.Host, got.peers)
			}
		}
		return nil
	})
	was := sight(ctx, t, n1) + sight(ctx, t, n2)
	record, _, _ := store.Holder(ctx, cluster.Status(ctx, t, n1).Subnet)

	for _, line := range []string{
		"link set tenure.1 address 02:00:00:00:00:99",
		"link set tenure.1 mtu 1300",
		"link set tenure.1 down",
		"link set tenure.1 type vxlan learning",
		"link set tenure.1 type vxlan ttl 1",
		"link set tenure.1 arp off",
		"link set tenure0 arp off",
		"link set tenure0 promisc on",
		"addr flush dev tenure.1",
		"link set tenure0 address 02:00:00:00:00:98",
		"link set tenure0 mtu 1300",
		"link set tenure0 down",
		"addr flush dev tenure0",
	} {
		t.Run(line, func(t *testing.T) {
			cluster.Exec(ctx, t, n1, "ip", strings.Fields(line)...)
			within, cancel := context.WithTimeout(ctx, peersFollow)
			defer cancel()
			cluster.Eventually(within, t, peersFollow, "as it was", func() error {
				if now := sight(ctx, t, n1) + sight(ctx, t, n2); now != was {
					return fmt.Errorf("it is\n%s\nand was\n%s", now, was)
				}
				return nil
			})
			if err := errors.Join(lab.WaitPing(within, p1, p2.IP), lab.WaitPing(within, p2, p1.IP)); err != nil {
				t.Error(err)
			}
		})
	}
	if now, _, _ := store.Holder(ctx, cluster.Status(ctx, t, n1).Subnet); now != record {
		t.Errorf("the record was %s and is %s", record, now)
	}
}

// sight is all about the node's two devices, and of the peers on them, that
// the kernel shows, less what counts by itself or follows from a new device.
func sight(ctx context.Context, t *testing.T, n *lab.Node) string {
	t.Helper()
	b := &strings.Builder{}
	for _, line := range []string{
		"ip -d -o link show tenure.1", "ip -o -4 addr show tenure.1", "ip route show dev tenure.1", "ip neigh show dev tenure.1 nud permanent",
		"bridge fdb show dev tenure.1", "ip -d -o link show tenure0", "ip -o -4 addr show tenure0", "ip route show dev tenure0",
	} {
		out, err := n.Exec(ctx, "sh", "-c", line+" | sort")
		fmt.Fprintf(b, "%s %s: %v\n%s", n.Host, line, err, counters().ReplaceAllString(out, ""))
	}
	return b.String()
}
