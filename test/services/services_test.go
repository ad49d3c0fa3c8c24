package services

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

const (
	podPort     = 8080
	servicePort = 80
)

// world is two nodes with a pod each that serves, and one that asks.
type world struct {
	*cluster.Cluster
	n1, n2           *lab.Node
	client, near     *lab.Pod // on n1
	far              *lab.Pod // on n2
	toNear, toFar    service
	gateway1, base1  netip.Addr // of n1's subnet
	gateway2, aNode1 netip.Addr
}

// TestServices is Kubernetes services over two nodes. On one the proxy's rules
// stand ahead of Tenure's, on the other behind, and there the policy of FORWARD
// is DROP. Everybody reaches a pod by its service's address and by a port of
// any node, from pods, nodes and outside; the pod sees the client's own address
// wherever Kubernetes promises that, and one of the node's that answers come
// back to everywhere else.
func TestServices(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			ctx := cluster.Context(t, time.Minute)
			w := newWorld(ctx, t, m)
			for _, protocol := range []string{"tcp4", "udp4"} {
				t.Run(protocol, func(t *testing.T) { w.look(ctx, t, protocol) })
			}
			w.restart(ctx, t)
			t.Run("after a restart", func(t *testing.T) { w.look(ctx, t, "tcp4") })
		})
	}
}

func newWorld(ctx context.Context, t *testing.T, m mode) *world {
	t.Helper()
	w := &world{Cluster: cluster.Born(ctx, t, cluster.Network, "n1", "n2")}
	w.n1, w.n2 = w.Nodes[0], w.Nodes[1]
	for _, n := range w.Nodes {
		// What kube-proxy needs of a network with a bridge: without it the
		// answer of a pod beside the client would not pass the rules.
		cluster.BridgeNetfilter(t, n, true)
	}
	store := w.Store(t)
	store.Reserve(ctx, "10.5.1.0/24", "n1")
	store.Reserve(ctx, "10.5.2.0/24", "n2")
	w.base1, w.gateway1 = netip.MustParseAddr("10.5.1.0"), netip.MustParseAddr("10.5.1.1")
	w.gateway2, w.aNode1 = netip.MustParseAddr("10.5.2.1"), w.n1.Addr
	// The proxy may come first: the addresses of the pods are known here.
	near, far := netip.MustParseAddr("10.5.1.7"), netip.MustParseAddr("10.5.2.7")
	w.toNear = service{"NEAR", netip.MustParseAddr("10.96.0.1"), servicePort, 30001, 31001, near, podPort, true}
	w.toFar = service{"FAR", netip.MustParseAddr("10.96.0.2"), servicePort, 30002, 31002, far, podPort, false}
	on2 := []service{w.toNear, w.toFar}
	on2[0].Here, on2[1].Here = false, true

	m.proxy(ctx, t, w.n1, w.toNear, w.toFar)
	cluster.Exec(ctx, t, w.n2, "iptables", "-w", "-P", "FORWARD", "DROP")
	cluster.Start(ctx, t, w.Nodes...)
	cluster.WaitPeers(ctx, t, w.Nodes...)
	w.client = cluster.Pod(ctx, t, w.n1, "client")
	w.near = cluster.Pod(ctx, t, w.n1, "near", lab.PodOptions{IPs: []string{near.String() + "/24"}})
	w.far = cluster.Pod(ctx, t, w.n2, "far", lab.PodOptions{IPs: []string{far.String() + "/24"}})
	m.proxy(ctx, t, w.n2, on2...)
	for _, p := range []*lab.Pod{w.near, w.far} {
		cluster.Serve(ctx, t, p.NS, podPort)
		cluster.ServeUDP(ctx, t, p.NS, podPort)
	}
	return w
}

// way is one client on its way to a service, and as whom the pod sees it.
type way struct {
	name string
	from *lab.NS
	to   netip.AddrPort
	as   netip.Addr
}

func (w *world) ways() []way {
	ip := func(s service) netip.AddrPort { return netip.AddrPortFrom(s.ClusterIP, uint16(s.Port)) }
	at := func(n *lab.Node, port int) netip.AddrPort { return netip.AddrPortFrom(n.Addr, uint16(port)) }
	near, far := w.toNear, w.toFar
	outside := w.OutsideAddr()
	return []way{
		{"pod to a pod beside it", w.client.NS, ip(near), w.client.IP},
		{"pod to another node's", w.client.NS, ip(far), w.client.IP},
		{"pod to a pod, from the other node", w.far.NS, ip(near), w.far.IP},
		{"pod to itself", w.near.NS, ip(near), w.gateway1},
		{"pod to itself, on the other node", w.far.NS, ip(far), w.gateway2},
		{"node to its own pod", w.n1.NS, ip(near), w.gateway1},
		{"node to another's", w.n1.NS, ip(far), w.base1},
		{"outside by the pod's node", w.Outside, at(w.n1, near.NodePort), w.gateway1},
		{"outside by another node", w.Outside, at(w.n1, far.NodePort), w.base1},
		{"outside, address kept", w.Outside, at(w.n1, near.LocalPort), outside},
		{"outside, address kept, on the other node", w.Outside, at(w.n2, far.LocalPort), outside},
		{"node by another node", w.n1.NS, at(w.n2, far.NodePort), w.gateway2},
		{"node by another node, address kept", w.n1.NS, at(w.n2, far.LocalPort), w.n1.Addr},
		{"pod by its own node", w.client.NS, at(w.n1, near.NodePort), w.gateway1},
		{"pod by its own node to another's", w.client.NS, at(w.n1, far.NodePort), w.base1},
		{"pod by another node", w.client.NS, at(w.n2, far.NodePort), w.gateway2},
		// It leaves the pod network on its way there.
		{"pod by another node, address kept", w.client.NS, at(w.n2, far.LocalPort), w.n1.Addr},
		{"pod to itself by its node", w.near.NS, at(w.n1, near.NodePort), w.gateway1},
	}
}

func (w *world) look(ctx context.Context, t *testing.T, protocol string) {
	for _, way := range w.ways() {
		t.Run(strings.ReplaceAll(way.name, " ", "-"), func(t *testing.T) {
			cluster.SeenBy(ctx, t, protocol, way.from, way.to, way.as)
		})
	}
}

// restart restarts both daemons; who waits for the node to be ready waits for
// the rules.
func (w *world) restart(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, n := range w.Nodes {
		before := proxyRules(ctx, t, n)
		if err := n.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		cluster.Start(ctx, t, n)
		cluster.Eventually(ctx, t, 10*time.Second, "daemon is ready", func() error { return n.WaitReady(ctx) })
		if now := proxyRules(ctx, t, n); now != before {
			t.Errorf("%s: a restart changed rules of others from\n%s\nto\n%s", n.Host, before, now)
		}
	}
}

// proxyRules are the lines of both kinds that are the proxy's.
func proxyRules(ctx context.Context, t *testing.T, n *lab.Node) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(cluster.Exec(ctx, t, n, "iptables-save")) {
		if line, _, _ = strings.Cut(line, " ["); strings.Contains(line, "KUBE-") {
			fmt.Fprintln(&b, strings.TrimSpace(line))
		}
	}
	if out, err := n.Exec(ctx, "nft", "list", "table", "ip", "kube-proxy"); err == nil {
		b.WriteString(out)
	}
	return b.String()
}
