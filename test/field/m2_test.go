package field

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

const (
	dualNetwork = `{"Network":"10.5.0.0/16","SubnetMax":"10.5.189.0","EnableIPv6":true,"IPv6Network":"fd00:5::/48"%s}`
	sixNetwork  = `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"%s}`
)

// TestM2 is plugins #680, danm #180 and nebula #1835: pods with IPv6 start a
// second and a half late, or with an address that cannot be used yet, since the
// kernel looks for duplicates of it. Right is: no ADD waits for that, and at its
// answer the address is there: the pod's first connection comes about at once.
// In the same lab is row M4.
func TestM2(t *testing.T) {
	ctx := cluster.Context(t, 3*time.Minute)
	c := cluster.BornIn(ctx, t, lab.Options{IPv6: true}, fmt.Sprintf(dualNetwork, ""), "n1", "n2")
	cluster.Start(ctx, t, c.Nodes...)
	cluster.WaitPeers(ctx, t, c.Nodes...)
	n1, n2 := c.Nodes[0], c.Nodes[1]
	s := cluster.Status(ctx, t, n1)
	if s.Network6 != "fd00:5::/48" || s.Subnet6 == "" || s.PublicIP6 != n1.Addr6.String() || s.MTU != 1430 {
		t.Errorf("status %+v", s)
	}
	p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	t.Run("reach", func(t *testing.T) { reach(ctx, t, c, p1, p2) })
	t.Run("M2", func(t *testing.T) { hundredAtOnce(ctx, t, n1, p2) })
	t.Run("address of another", func(t *testing.T) { addressOfAnother(ctx, t, n1, p1) })
	t.Run("restart", func(t *testing.T) { restarted(ctx, t, n1, p1, p2) })
	t.Run("M4", func(t *testing.T) { oneFamilyChanges(ctx, t, c, p1, p2) })
}

// reach has the pods talk to each other, to the nodes and to the outside, which
// sees the node, in each family that they have.
func reach(ctx context.Context, t *testing.T, c *cluster.Cluster, p1, p2 *lab.Pod) {
	t.Helper()
	cluster.Serve(ctx, t, p2.NS, port)
	cluster.Serve(ctx, t, c.Outside, port)
	for _, f := range []struct{ from, to, node, outside, seenAs netip.Addr }{
		{p1.IP, p2.IP, p2.Node.Addr, c.OutsideAddr(), p1.Node.Addr},
		{p1.IP6, p2.IP6, p2.Node.Addr6, c.OutsideAddr6(), p1.Node.Addr6},
	} {
		if f.to.Is6() != f.outside.Is6() || !f.to.IsValid() {
			continue // of the other family
		}
		cluster.Seen(ctx, t, p1.NS, f.to, port, f.from)
		cluster.Seen(ctx, t, p1.NS, f.outside, port, f.seenAs)
		if err := errors.Join(lab.WaitPing(ctx, p1, f.node), lab.WaitPing(ctx, p1.Node, f.to), lab.WaitPing(ctx, p2, f.from)); err != nil {
			t.Error(err)
		}
	}
}

// hundredAtOnce adds pods, a few at a time, and has each connect by IPv6 the
// moment it is there.
func hundredAtOnce(ctx context.Context, t *testing.T, n *lab.Node, far *lab.Pod) {
	cluster.Serve(ctx, t, far.NS, port)
	boxes := cluster.Sandboxes(ctx, t, n, "box", 100)
	took := make([]time.Duration, len(boxes))
	if err := cluster.Each(ctx, len(boxes), 4, func(ctx context.Context, i int) error {
		began := time.Now()
		_, a, err := cluster.Add(ctx, n, boxes[i])
		took[i] = time.Since(began)
		if err == nil && a.Exit != 0 {
			err = a.Err
		}
		if err != nil {
			return fmt.Errorf("ADD: %w", err)
		}
		var result struct {
			IPs []struct{ Address netip.Prefix }
		}
		if err := json.Unmarshal(a.Stdout, &result); err != nil || len(result.IPs) != 2 {
			return fmt.Errorf("result %s: %w", a.Stdout, err)
		}
		seen, err := cluster.Ask(ctx, boxes[i].NS, far.IP6, port)
		if err == nil && seen != result.IPs[1].Address.Addr() {
			err = fmt.Errorf("seen as %s, the address is %s", seen, result.IPs[1].Address)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(took)
	t.Logf("ADD: median %s, longest %s", took[50], took[99])
	if took[50] > time.Second { // looking for duplicates takes as long, and more
		t.Errorf("half of all took more than %s", took[50])
	}
	if err := cluster.Each(ctx, len(boxes), 4, func(ctx context.Context, i int) error { return cluster.Delete(ctx, n, boxes[i]) }); err != nil {
		t.Error(err)
	}
}

// addressOfAnother gives a pod the IPv6 address that another had, together with
// another IPv4 address and so another MAC: who knew the former one reaches the
// new one at once.
func addressOfAnother(ctx context.Context, t *testing.T, n *lab.Node, neighbour *lab.Pod) {
	s := cluster.Status(ctx, t, n)
	four, six := netip.MustParsePrefix(s.Subnet), netip.MustParsePrefix(s.Subnet6)
	last := func(p netip.Prefix, host byte) string {
		a := p.Addr().AsSlice()
		a[len(a)-1] = host
		addr, _ := netip.AddrFromSlice(a)
		return netip.PrefixFrom(addr, p.Bits()).String()
	}
	for i, host := range []byte{240, 241} {
		p := cluster.Pod(ctx, t, n, fmt.Sprint("again", i), lab.PodOptions{IPs: []string{last(four, host), last(six, 240)}})
		cluster.Serve(ctx, t, p.NS, port)
		for _, from := range []*lab.NS{neighbour.NS, n.NS} {
			if _, err := cluster.Ask(ctx, from, p.IP6, port); err != nil {
				t.Errorf("bearer %d of %s from %s: %v", i, p.IP6, from.Name(), err)
			}
		}
		if err := p.Del(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// restarted makes sure that a restart costs neither family a packet, changes
// nothing in the kernel, and that a pod comes and goes after it.
func restarted(ctx context.Context, t *testing.T, n *lab.Node, p1, p2 *lab.Pod) {
	flows := []*cluster.Flow{cluster.StartFlow(ctx, t, p1.NS, p2.NS, p2.IP), cluster.StartFlow(ctx, t, p1.NS, p2.NS, p2.IP6)}
	var sent []int
	for _, f := range flows {
		f.Runs(ctx, t)
		sent = append(sent, f.Sent())
	}
	before, passes := cluster.Status(ctx, t, n), cluster.WritingPasses(n)
	if err := n.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	cluster.Start(ctx, t, n)
	after := cluster.Wait(ctx, t, n, "has its peer", func(s *api.Status) bool {
		return len(s.Peers) > 0 && s.Peers[0].State == api.PeerProgrammed && cluster.Well(s)
	})
	if after.Subnet != before.Subnet || after.Subnet6 != before.Subnet6 {
		t.Errorf("subnets %s %s, before %s %s", after.Subnet, after.Subnet6, before.Subnet, before.Subnet6)
	}
	if wrote := cluster.WritingPasses(n) - passes; wrote != 0 {
		t.Errorf("%d passes wrote to the kernel:\n%s", wrote, n.Logs(20))
	}
	for i, f := range flows {
		f.Whole(ctx, t, sent[i])
	}
	if err := cluster.Pod(ctx, t, n, "later").Del(ctx); err != nil {
		t.Error(err)
	}
}

// oneFamilyChanges is row M4, flannel #1822, k3s #12538 and #8794: after a peer's
// reboot its IPv6 is dead while IPv4 works. Right is: what a peer announces in
// one family is programmed by itself, and the other family is not touched.
func oneFamilyChanges(ctx context.Context, t *testing.T, c *cluster.Cluster, p1, p2 *lab.Pod) {
	store, n1 := c.Store(t), c.Nodes[0]
	flows := []*cluster.Flow{cluster.StartFlow(ctx, t, p1.NS, p2.NS, p2.IP), cluster.StartFlow(ctx, t, p1.NS, p2.NS, p2.IP6)}
	for _, f := range flows {
		f.Runs(ctx, t)
	}
	const key, base, base6 = "/tenure/network/subnets/10.5.250.0-24&fd00:5:0:fa::-64", "10.5.250.0", "fd00:5:0:fa::"
	lease, err := store.Grant(ctx, 3600)
	if err != nil {
		t.Fatal(err)
	}
	put := func(mac, mac6 string) {
		t.Helper()
		value := fmt.Sprintf(`{"PublicIP":"192.0.2.99","PublicIPv6":"2001:db8:2::99","BackendType":"vxlan",`+
			`"BackendData":{"VNI":1,"VtepMAC":%q},"BackendV6Data":{"VNI":1,"VtepMAC":%q}}`, mac, mac6)
		if _, err := store.Put(ctx, key, value, clientv3.WithLease(lease.ID)); err != nil {
			t.Fatal(err)
		}
		cluster.Eventually(ctx, t, 10*time.Second, "both families of the peer as announced", func() error {
			neigh, neigh6 := cluster.Exec(ctx, t, n1, "ip", "neigh", "show", base), cluster.Exec(ctx, t, n1, "ip", "-6", "neigh", "show", base6)
			fdb, fdb6 := cluster.Exec(ctx, t, n1, "bridge", "fdb", "show", "dev", "tenure.1"), cluster.Exec(ctx, t, n1, "bridge", "fdb", "show", "dev", "tenure6.1")
			if strings.Contains(neigh, mac) && strings.Contains(neigh6, mac6) && strings.Contains(fdb, mac+" dst 192.0.2.99") && strings.Contains(fdb6, mac6+" dst 2001:db8:2::99") {
				return nil
			}
			return fmt.Errorf("%s%s%s%s", neigh, neigh6, fdb, fdb6)
		})
	}
	events := monitor(ctx, t, n1)
	heard := func(address string) {
		t.Helper()
		cluster.Eventually(ctx, t, 5*time.Second, "the kernel has told of "+address, func() error {
			if events.of(address) == "" {
				return errors.New("of nothing there")
			}
			return nil
		})
	}
	sent := []int{flows[0].Sent(), flows[1].Sent()}
	put("02:00:00:00:00:01", "02:00:00:00:00:01")
	heard(base)
	heard(base6)
	events.clear()
	put("02:00:00:00:00:01", "02:00:00:00:00:06")
	heard(base6)
	if got := events.of(base); got != "" {
		t.Errorf("IPv6 changed, and of IPv4: %s", got)
	}
	events.clear()
	put("02:00:00:00:00:04", "02:00:00:00:00:06")
	heard(base)
	if got := events.of(base6); got != "" {
		t.Errorf("IPv4 changed, and of IPv6: %s", got)
	}
	for i, f := range flows {
		f.Whole(ctx, t, sent[i])
	}
	cluster.Wait(ctx, t, n1, "has the peer", func(s *api.Status) bool {
		return slices.ContainsFunc(s.Peers, func(p api.Peer) bool {
			return strings.HasPrefix(p.Subnet, base) && p.State == api.PeerProgrammed
		})
	})
}

// TestIPv6 is the founding outage, of both families and of IPv6 alone: a node
// whose daemon hangs past its deadline neither sends nor hears a packet of pods,
// and the other node's pods go on.
func TestIPv6(t *testing.T) {
	const short, plain = `,"LeaseTTL":"5s"`, `,"LeaseTTL":"5s","Backend":{"Type":"host-gw"}`
	for name, network := range map[string]string{
		"dual stack": fmt.Sprintf(dualNetwork, short), "IPv6 alone": fmt.Sprintf(sixNetwork, short), "plain routes": fmt.Sprintf(dualNetwork, plain),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := cluster.Context(t, 2*time.Minute)
			c := cluster.BornIn(ctx, t, lab.Options{IPv6: true}, network, "n1", "n2", "n3")
			cluster.Start(ctx, t, c.Nodes...)
			cluster.WaitPeers(ctx, t, c.Nodes...)
			var pods []*lab.Pod
			for _, n := range c.Nodes {
				pods = append(pods, cluster.Pod(ctx, t, n, "p"))
			}
			reach(ctx, t, c, pods[0], pods[1])
			if s := cluster.Status(ctx, t, c.Nodes[0]); s.Addresses.Used != 1 || s.Addresses.Total < 200 || !cluster.Well(s) {
				t.Errorf("status %+v", s)
			}
			closes, stays := cluster.StartFlow(ctx, t, pods[0].NS, pods[1].NS, pods[1].IP6), cluster.StartFlow(ctx, t, pods[1].NS, pods[2].NS, pods[2].IP6)
			closes.Runs(ctx, t)
			stays.Runs(ctx, t)
			from := stays.Sent()
			wire := cluster.Sniff(t, c.LAN, "to-n1")
			sent := func() int { return wire.From(pods[0].IP6) + wire.Plain(pods[0].IP6) }
			closes.Runs(ctx, t)
			hang(t, c.Nodes[0])
			closes.Ends(ctx, t, 15*time.Second)
			stays.Whole(ctx, t, from)
			cluster.Eventually(ctx, t, 20*time.Second, "the lease of the hung node has ended", func() error {
				for _, p := range cluster.Status(ctx, t, c.Nodes[1]).Peers {
					if p.Node == "n1" {
						return fmt.Errorf("%+v", p)
					}
				}
				return nil
			})
			last := sent()
			if err := lab.Ping(ctx, pods[0], pods[1].IP6); err == nil || last == 0 || sent() != last {
				t.Errorf("the hung node's pod has sent %d packets, and then %d; ping: %v", last, sent()-last, err)
			}
		})
	}
}

// hang stops a daemon, and lets it go on when the test ends.
func hang(t *testing.T, n *lab.Node) {
	t.Helper()
	if err := n.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Signal(unix.SIGCONT) })
}

// told is what the kernel of a node has told of routes and neighbours.
type told struct {
	file string
	seen int
}

// monitor listens when it returns.
func monitor(ctx context.Context, t *testing.T, n *lab.Node) *told {
	t.Helper()
	e := &told{file: filepath.Join(t.TempDir(), "monitor")}
	p, err := n.Spawn(e.file, "ip", "-o", "monitor", "neigh", "route")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	const route = "198.51.100.64"
	cluster.Eventually(ctx, t, 5*time.Second, "it listens", func() error {
		cluster.Exec(ctx, t, n, "ip", "route", "add", route, "dev", "lo")
		cluster.Exec(ctx, t, n, "ip", "route", "del", route, "dev", "lo")
		if e.of(route) == "" {
			return errors.New("it has told of nothing")
		}
		return nil
	})
	return e
}

func (e *told) read() string {
	b, _ := os.ReadFile(e.file) // nothing told yet is nothing
	return string(b)
}

// clear forgets what was told until now.
func (e *told) clear() { e.seen = len(e.read()) }

// of are the lines since then that are about an address.
func (e *told) of(address string) string {
	var lines []string
	for line := range strings.Lines(e.read()[e.seen:]) {
		if strings.HasPrefix(line, address) || strings.Contains(line, " "+address) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
