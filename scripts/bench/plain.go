package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/tenure-cni/tenure/test/lab"
)

// pair is two hosts with pods, made by hand: two pods on the first host, one on
// the second.
type pair struct {
	hosts [2]*lab.Node
	pods  [3]*lab.Pod
}

// The ways from one host's pods to the other's.
const (
	overVxlan = `
ip link add vx0 mtu 1450 address 02:00:00:00:00:0%[1]d type vxlan id 1 dstport 8472 nolearning local %[3]s dev eth0
ip addr add 10.6.%[1]d.0/32 dev vx0
ip link set vx0 up
ip neigh add 10.6.%[2]d.0 lladdr 02:00:00:00:00:0%[2]d dev vx0 nud permanent
bridge fdb add 02:00:00:00:00:0%[2]d dev vx0 dst %[4]s
ip route add 10.6.%[2]d.0/24 via 10.6.%[2]d.0 dev vx0 onlink`
	overLink = `
ip route add 10.6.%[2]d.0/24 via %[4]s dev eth0`
)

// flannelRules are those that flannel writes on a node with 10.6.<own>.0/24,
// line by line.
const flannelRules = `
iptables -w -t nat -N FLANNEL-POSTRTG
iptables -w -t filter -N FLANNEL-FWD
masq() { iptables -w -t nat -A "$@"; }
masq POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
masq FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
masq FLANNEL-POSTRTG -s 10.6.%[1]d.0/24 -d 10.6.0.0/16 -m comment --comment "flanneld masq" -j RETURN
masq FLANNEL-POSTRTG -s 10.6.0.0/16 -d 10.6.%[1]d.0/24 -m comment --comment "flanneld masq" -j RETURN
masq FLANNEL-POSTRTG ! -s 10.6.0.0/16 -d 10.6.%[1]d.0/24 -m comment --comment "flanneld masq" -j RETURN
masq FLANNEL-POSTRTG -s 10.6.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
masq FLANNEL-POSTRTG ! -s 10.6.0.0/16 -d 10.6.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
iptables -w -A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
iptables -w -A FLANNEL-FWD -s 10.6.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
iptables -w -A FLANNEL-FWD -d 10.6.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT`

// oneRule is the least that a node needs whose pods reach the world.
const oneRule = `
iptables -w -t nat -A POSTROUTING -s 10.6.0.0/16 ! -d 10.6.0.0/16 -j MASQUERADE --random-fully`

// makePair builds by hand the topology that Tenure builds. more is run on each
// host: the way to the other one, and rules. Without rules it is what the kernel
// can do at best, and the measure for everything else.
func makePair(ctx context.Context, l *lab.Lab, name string, bridgeNetfilter bool, more ...string) (*pair, error) {
	var p pair
	for i := range p.hosts {
		n, err := l.AddNode(ctx, fmt.Sprintf("%s%d", name, i+1))
		if err != nil {
			return nil, err
		}
		p.hosts[i] = n
	}
	for i, n := range p.hosts {
		own, other := i+1, 2-i
		script := fmt.Sprintf(`
echo 1 > /proc/sys/net/ipv4/ip_forward
ip link add br0 type bridge
ip addr add 10.6.%[1]d.1/24 dev br0
ip link set br0 mtu 1450 up`+strings.Join(more, ""), own, other, n.Addr, p.hosts[1-i].Addr)
		if err := shell(ctx, n, script); err != nil {
			return nil, err
		}
		if err := shell(ctx, n, setBridgeNetfilter(bridgeNetfilter)); err != nil {
			return nil, err
		}
	}
	for i, at := range []struct{ host, last int }{{0, 2}, {0, 3}, {1, 2}} {
		pod, err := plainPod(ctx, p.hosts[at.host], fmt.Sprintf("p%d", i), at.host+1, at.last)
		if err != nil {
			return nil, err
		}
		p.pods[i] = pod
	}
	return &p, nil
}

// setBridgeNetfilter says whether iptables sees what bridges pass on, as
// kube-proxy needs it.
func setBridgeNetfilter(on bool) string {
	value := 0
	if on {
		value = 1
	}
	return fmt.Sprintf("test ! -e /proc/sys/net/bridge/bridge-nf-call-iptables || echo %d > /proc/sys/net/bridge/bridge-nf-call-iptables", value)
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

// both runs a script on either host.
func both(ctx context.Context, hosts [2]*lab.Node, script string) error {
	for _, n := range hosts {
		if err := shell(ctx, n, script); err != nil {
			return err
		}
	}
	return nil
}

func shell(ctx context.Context, where lab.Execer, script string) error {
	_, err := where.Exec(ctx, "sh", "-ec", strings.TrimSpace(script))
	return err
}
