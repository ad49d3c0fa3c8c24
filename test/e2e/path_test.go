package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// port is where everybody in these tests serves.
const port = 7000

// vtep is the node's own address on the overlay, gateway the one its pods see.
func vtep(subnet string) netip.Addr { return netip.MustParsePrefix(subnet).Addr() }

func gateway(subnet string) netip.Addr { return vtep(subnet).Next() }

// hostPort is mapped to the first pod of n1.
const hostPort = 8080

// TestPath walks every path that a packet can take, and looks at each end
// whom the other sees: pods keep their address among themselves, and towards
// nodes and the world outside they bear their node's.
func TestPath(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	mapped := lab.PodOptions{PortMappings: []lab.PortMapping{{HostPort: hostPort, ContainerPort: port, Protocol: "tcp"}}}
	p1, q1, p2 := cluster.Pod(ctx, t, n1, "p", mapped), cluster.Pod(ctx, t, n1, "q"), cluster.Pod(ctx, t, n2, "p")
	for _, ns := range []*lab.NS{p1.NS, q1.NS, p2.NS, n1.NS, n2.NS, c.Outside} {
		cluster.Serve(ctx, t, ns, port)
	}
	subnet := cluster.Status(ctx, t, n1).Subnet

	for _, path := range []struct {
		name string
		from *lab.NS
		to   netip.Addr
		port int
		as   netip.Addr
	}{
		{"pod to pod of the same node", p1.NS, q1.IP, port, p1.IP},
		{"pod to pod of another node", p1.NS, p2.IP, port, p1.IP},
		{"and back", p2.NS, p1.IP, port, p2.IP},
		{"pod to its node", p1.NS, n1.Addr, port, p1.IP},
		{"pod to another node", p1.NS, n2.Addr, port, n1.Addr},
		{"node to its pod", n1.NS, p1.IP, port, gateway(subnet)},
		{"node to the pod of another", n1.NS, p2.IP, port, vtep(subnet)},
		{"pod to the world outside", p1.NS, c.OutsideAddr(), port, n1.Addr},
		{"outside to a mapped port", c.Outside, n1.Addr, hostPort, c.OutsideAddr()},
		{"pod of another node to a mapped port", p2.NS, n1.Addr, hostPort, n2.Addr},
		{"pod to the mapped port of itself", p1.NS, n1.Addr, hostPort, gateway(subnet)},
	} {
		t.Run(path.name, func(t *testing.T) { cluster.Seen(ctx, t, path.from, path.to, path.port, path.as) })
	}
	t.Run("large packets", func(t *testing.T) {
		// 28 bytes of headers, and no fragments: as much as the overlay takes.
		size := fmt.Sprint(cluster.Status(ctx, t, n1).MTU - 28)
		cluster.Exec(ctx, t, p1, "ping", "-n", "-c", "1", "-W", "1", "-M", "do", "-s", size, p2.IP.String())
	})
	t.Run("a pod that is gone", func(t *testing.T) {
		if err := q1.Del(ctx); err != nil {
			t.Error(err)
		}
		cluster.Unseen(ctx, t, p1.NS, q1.IP, port)
	})
	t.Run("services", func(t *testing.T) { services(ctx, t, c, p1, p2) })
}

const (
	serviceIP = "10.96.0.10"
	nodePort  = 30080
)

// services plays kube-proxy on n1 for a pod that is on n2: a cluster address
// for pods and the node itself, and a node port, which is masqueraded so that
// the answer comes back the same way.
func services(ctx context.Context, t *testing.T, c *cluster.Cluster, client, backend *lab.Pod) {
	n1 := client.Node
	to := fmt.Sprintf("%s:%d", backend.IP, port)
	for _, rule := range [][]string{
		{"-N", "KUBE-SERVICES"},
		{"-A", "KUBE-SERVICES", "-d", serviceIP, "-p", "tcp", "--dport", "80", "-j", "DNAT", "--to-destination", to},
		{"-A", "KUBE-SERVICES", "-d", n1.Addr.String(), "-p", "tcp", "--dport", fmt.Sprint(nodePort), "-j", "MARK", "--set-mark", "0x4000"},
		{"-A", "KUBE-SERVICES", "-d", n1.Addr.String(), "-p", "tcp", "--dport", fmt.Sprint(nodePort), "-j", "DNAT", "--to-destination", to},
		{"-I", "PREROUTING", "-j", "KUBE-SERVICES"},
		{"-I", "OUTPUT", "-j", "KUBE-SERVICES"},
		{"-I", "POSTROUTING", "-m", "mark", "--mark", "0x4000", "-j", "MASQUERADE"},
	} {
		cluster.Exec(ctx, t, n1, "iptables", append([]string{"-w", "-t", "nat"}, rule...)...)
	}
	service := netip.MustParseAddr(serviceIP)
	cluster.Seen(ctx, t, client.NS, service, 80, client.IP)
	subnet := cluster.Status(ctx, t, n1).Subnet
	if _, err := cluster.Ask(ctx, n1.NS, service, 80); err != nil {
		t.Errorf("the node itself to the service: %v", err)
	}
	cluster.Seen(ctx, t, c.Outside, n1.Addr, nodePort, vtep(subnet))
	cluster.Seen(ctx, t, c.Node(t, "n2").NS, n1.Addr, nodePort, vtep(subnet))
}
