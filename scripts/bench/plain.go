package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/tenure-cni/tenure/test/lab"
)

// plainPaths builds by hand the same topology that Tenure builds, with nothing
// around it: no rules, no fence, no bridge-netfilter. It is what the kernel can
// do at best, and the measure for everything else.
func plainPaths(ctx context.Context, l *lab.Lab) ([]path, error) {
	var hosts [2]*lab.Node
	for i := range hosts {
		n, err := l.AddNode(ctx, fmt.Sprintf("plain%d", i+1))
		if err != nil {
			return nil, err
		}
		hosts[i] = n
	}
	var pods [3]*lab.Pod
	for i, n := range hosts {
		if err := plainHost(ctx, n, i+1, hosts[1-i].Addr); err != nil {
			return nil, err
		}
	}
	for i, at := range []struct{ host, last int }{{0, 2}, {0, 3}, {1, 2}} {
		pod, err := plainPod(ctx, hosts[at.host], fmt.Sprintf("p%d", i), at.host+1, at.last)
		if err != nil {
			return nil, err
		}
		pods[i] = pod
	}
	return []path{
		{"raw underlay", hosts[0], hosts[1].NS, hosts[1].Addr},
		{"plain, same node", pods[0], pods[1].NS, pods[1].IP},
		{"plain, vxlan", pods[0], pods[2].NS, pods[2].IP},
	}, nil
}

// plainHost gives a node a bridge with 10.6.<own>.0/24 and a vxlan to the peer.
func plainHost(ctx context.Context, n *lab.Node, own int, peer netip.Addr) error {
	other := 3 - own
	script := fmt.Sprintf(`
echo 1 > /proc/sys/net/ipv4/ip_forward
test ! -e /proc/sys/net/bridge/bridge-nf-call-iptables || echo 0 > /proc/sys/net/bridge/bridge-nf-call-iptables
ip link add br0 type bridge
ip addr add 10.6.%[1]d.1/24 dev br0
ip link set br0 mtu 1450 up
ip link add vx0 mtu 1450 address 02:00:00:00:00:0%[1]d type vxlan id 1 dstport 8472 nolearning local %[3]s dev eth0
ip addr add 10.6.%[1]d.0/32 dev vx0
ip link set vx0 up
ip neigh add 10.6.%[2]d.0 lladdr 02:00:00:00:00:0%[2]d dev vx0 nud permanent
bridge fdb add 02:00:00:00:00:0%[2]d dev vx0 dst %[4]s
ip route add 10.6.%[2]d.0/24 via 10.6.%[2]d.0 dev vx0 onlink
`, own, other, n.Addr, peer)
	return shell(ctx, n, script)
}

// plainPod plugs a namespace into the node's bridge.
func plainPod(ctx context.Context, n *lab.Node, name string, subnet, last int) (*lab.Pod, error) {
	pod, err := n.Sandbox(ctx, name, lab.PodOptions{})
	if err != nil {
		return nil, err
	}
	if err := shell(ctx, n, fmt.Sprintf(`
ip link add v%[1]s mtu 1450 type veth peer name eth0 mtu 1450 netns %[2]s
ip link set v%[1]s master br0 up
`, name, pod.Name())); err != nil {
		return nil, err
	}
	pod.IP = netip.AddrFrom4([4]byte{10, 6, byte(subnet), byte(last)})
	return pod, shell(ctx, pod, fmt.Sprintf(`
ip addr add %s/24 dev eth0
ip link set eth0 up
ip route add default via 10.6.%d.1
`, pod.IP, subnet))
}

func shell(ctx context.Context, where lab.Execer, script string) error {
	_, err := where.Exec(ctx, "sh", "-ec", strings.TrimSpace(script))
	return err
}
