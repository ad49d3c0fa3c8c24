package field

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// backend is a network config with that backend, and more of its fields.
func backend(b, more string) string {
	return `{"Network":"` + cluster.PodNetwork + `","Backend":` + b + more + `}`
}

const (
	plainVXLAN = `{"Type":"vxlan"}`
	routing    = `{"Type":"vxlan","DirectRouting":true}`
	hostGW     = `{"Type":"host-gw"}`
)

// otherLink puts a node on a second link behind the lab's router, before its
// daemon runs.
func otherLink(ctx context.Context, t *testing.T, c *cluster.Cluster, n *lab.Node) {
	t.Helper()
	for _, line := range []string{
		"link add lan1 type bridge stp_state 0 forward_delay 0", "addr add 198.51.100.129/25 dev lan1", "link set lan1 up",
		"link set to-" + n.Host + " master lan1",
	} {
		cluster.Exec(ctx, t, c.LAN, "ip", strings.Fields(line)...)
	}
	for _, line := range []string{
		"addr flush dev eth0", "addr add 198.51.100.130/25 dev eth0", "route add default via 198.51.100.129",
	} {
		cluster.Exec(ctx, t, n, "ip", strings.Fields(line)...)
	}
}

// paths waits until the node reaches the others so: "n2 direct n3 vxlan", or by
// the state of those that it does not reach.
func paths(ctx context.Context, t *testing.T, n *lab.Node, want string) *api.Status {
	t.Helper()
	return cluster.Wait(ctx, t, n, "reaches "+want, func(s *api.Status) bool {
		var got []string
		for _, p := range s.Peers {
			if p.Path != "" {
				got = append(got, p.Node+" "+p.Path)
			} else {
				got = append(got, p.Node+" "+p.State)
			}
		}
		slices.Sort(got)
		return strings.Join(got, " ") == want
	})
}

// uplinkFence is how many filters of ours are on the node's own interface.
func uplinkFence(ctx context.Context, t *testing.T, n *lab.Node) (ours int) {
	t.Helper()
	for _, side := range []string{"ingress", "egress"} {
		for line := range strings.Lines(cluster.Exec(ctx, t, n, "tc", "filter", "show", "dev", "eth0", side)) {
			if strings.Contains(line, " tenure_up_") {
				ours++
			}
		}
	}
	return ours
}

// ownQdisc puts the host's own qdisc where the fence's filters hang: to put one
// there, the kernel stops an interface from sending for a few milliseconds, and
// drops what it is given meanwhile.
func ownQdisc(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	cluster.Exec(ctx, t, n, "tc", "qdisc", "add", "dev", "eth0", "clsact")
}

// strictSources has the kernel drop what comes in by another interface than it would
// go out by.
func strictSources(t *testing.T, n *lab.Node) {
	t.Helper()
	if err := n.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("1"), 0)
	}); err != nil {
		t.Fatal(err)
	}
}

// TestDirectRouting is a cluster on two links whose config asks for direct
// routes and takes that back while pods talk, with strict reverse-path filtering
// on every node. Right is: no datagram is lost in either change; nodes on one
// link reach each other without vxlan and the others with it; the fence is on
// the uplink while there may be a direct route, beside the host's own filters,
// comes back when somebody deletes it, and goes with the routes; where it cannot
// be attached the overlay serves; a peer with another address is followed.
func TestDirectRouting(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.Born(ctx, t, backend(plainVXLAN, ""), "n1", "n2", "n3")
	n1, n2, n3, store := c.Nodes[0], c.Nodes[1], c.Nodes[2], c.Store(t)
	otherLink(ctx, t, c, n3)
	for _, n := range c.Nodes {
		strictSources(t, n)
		ownQdisc(ctx, t, n)
	}
	cluster.Exec(ctx, t, n1, "tc", append(strings.Fields("filter add dev eth0 egress prio 7 protocol ip bpf bytecode"), "1,6 0 0 0")...)
	cluster.Start(ctx, t, c.Nodes...)
	paths(ctx, t, n1, "n2 vxlan n3 vxlan")
	p1, p2, p3 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p"), cluster.Pod(ctx, t, n3, "p")
	near, far := cluster.StartFlow(ctx, t, p1.NS, p2.NS, p2.IP), cluster.StartFlow(ctx, t, p1.NS, p3.NS, p3.IP)
	near.Runs(ctx, t)
	far.Runs(ctx, t)
	wire := cluster.Sniff(t, c.LAN, "to-n1")
	whole := func(what string, act func()) {
		t.Helper()
		fromNear, fromFar := near.Sent(), far.Sent()
		act()
		near.Runs(ctx, t)
		far.Runs(ctx, t)
		if a, b := near.Lost(ctx, fromNear), far.Lost(ctx, fromFar); a+b > 0 {
			t.Errorf("%s: %d and %d datagrams were lost", what, a, b)
		}
	}

	whole("vxlan to direct", func() {
		store.Configure(ctx, backend(routing, ""))
		for n, want := range map[*lab.Node]string{n1: "n2 direct n3 vxlan", n2: "n1 direct n3 vxlan", n3: "n1 vxlan n2 vxlan"} {
			paths(ctx, t, n, want)
		}
	})
	plain, inOverlay := wire.Plain(p1.IP), wire.From(p1.IP)
	cluster.Eventually(ctx, t, 5*time.Second, "packets of both kinds on the wire", func() error {
		if a, b := wire.Plain(p1.IP)-plain, wire.From(p1.IP)-inOverlay; a < 20 || b < 20 {
			return fmt.Errorf("%d plain, %d in the overlay", a, b)
		}
		return nil
	})
	if s := cluster.Status(ctx, t, n1); s.MTU != 1450 || !cluster.Well(s) {
		t.Errorf("status %+v", s)
	}
	untracked(ctx, t, n1, n3)

	whole("the fence deleted", func() {
		for _, side := range []string{"ingress", "egress"} {
			cluster.Exec(ctx, t, n1, "tc", "filter", "del", "dev", "eth0", side, "prio", "1")
		}
		cluster.Eventually(ctx, t, repairTime, "the fence is back", func() error {
			if n := uplinkFence(ctx, t, n1); n != 2 {
				return fmt.Errorf("%d filters", n)
			}
			return nil
		})
	})

	// n2 can put no fence on its uplink for a while: asymmetric, and strict.
	cluster.Eventually(ctx, t, repairTime, "the place of n2's qdisc is taken", func() error {
		_, err := n2.Exec(ctx, "sh", "-c", "tc qdisc del dev eth0 clsact; tc qdisc add dev eth0 ingress")
		return err
	})
	goesOut(ctx, t, n2, p1.IP, "dev "+cluster.Overlay)
	near.Runs(ctx, t)
	whole("asymmetric", func() { talks(ctx, t, p1, p2) })
	if s := cluster.Status(ctx, t, n2); !cluster.HasProblem(s, "data-plane") {
		t.Errorf("nothing says what is in the way of the fence: %+v", s.Problems)
	}
	cluster.Exec(ctx, t, n2, "tc", "qdisc", "del", "dev", "eth0", "ingress")
	paths(ctx, t, n2, "n1 direct n3 vxlan")

	readdress(ctx, t, n2, n2.Addr.String(), "192.0.2.212")
	goesOut(ctx, t, n1, p2.IP, "via 192.0.2.212 dev eth0")
	near.Runs(ctx, t)

	whole("direct to vxlan", func() {
		store.Configure(ctx, backend(plainVXLAN, ""))
		paths(ctx, t, n1, "n2 vxlan n3 vxlan")
		paths(ctx, t, n2, "n1 vxlan n3 vxlan")
		for _, n := range c.Nodes {
			cluster.Eventually(ctx, t, repairTime, "no fence is left on the uplink of "+n.Host, func() error {
				if f := uplinkFence(ctx, t, n); f != 0 {
					return fmt.Errorf("%d filters", f)
				}
				return nil
			})
		}
	})
	if out := cluster.Exec(ctx, t, n1, "tc", "filter", "show", "dev", "eth0", "egress"); !strings.Contains(out, "pref 7 bpf") {
		t.Errorf("the host's own filter is gone: %s", out)
	}
}

// goesOut waits until the node's way to the address is such.
func goesOut(ctx context.Context, t *testing.T, n *lab.Node, to netip.Addr, way string) {
	t.Helper()
	cluster.Eventually(ctx, t, repairTime, n.Host+" sends to "+to.String()+" "+way, func() error {
		r, err := n.Exec(ctx, "ip", "route", "get", to.String())
		if err == nil && !strings.Contains(r, way) {
			err = fmt.Errorf("it goes out by %s", r)
		}
		return err
	})
}

// untracked makes sure that the overlay's outer packets are in no table of
// connections, though pods' connections are tracked there.
func untracked(ctx context.Context, t *testing.T, nodes ...*lab.Node) {
	t.Helper()
	for _, n := range nodes {
		out := cluster.Exec(ctx, t, n, "conntrack", "-L")
		if strings.Contains(out, "dport=8472") || !strings.Contains(out, "src=10.5.") {
			t.Errorf("%s tracks\n%s", n.Host, out)
		}
		counted := cluster.Exec(ctx, t, n, "iptables", "-t", "raw", "-vnxL")
		for _, base := range []string{"PREROUTING", "OUTPUT"} {
			_, chain, _ := strings.Cut(counted, "Chain "+base)
			chain, _, _ = strings.Cut(chain, "\n\n")
			for line := range strings.Lines(chain) {
				if words := strings.Fields(line); slices.Contains(words, "TENURE-RAW") && words[0] == "0" {
					t.Errorf("%s: no packet has passed raw %s:\n%s", n.Host, base, counted)
				}
			}
		}
	}
}

// TestHostGW is a cluster that goes from vxlan to host-gw and back while pods
// talk, is restarted, and lives through the outage of the founding issues with
// direct routes: a node is away past its lease, another is given its subnet.
// Right is: no datagram is lost in either change; there is no vxlan device, and
// new pods have the underlay's MTU; a node on another link is unreachable, says
// why, and what is sent there is refused at once; a restart finds the fence; and
// no packet of the old tenant's pods leaves its node once its time is over.
func TestHostGW(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	const short = `,"LeaseTTL":"6s"`
	c := cluster.Born(ctx, t, backend(plainVXLAN, short), "n1", "n2", "n3")
	n1, n2, n3, store := c.Nodes[0], c.Nodes[1], c.Nodes[2], c.Store(t)
	otherLink(ctx, t, c, n3)
	for _, n := range c.Nodes {
		ownQdisc(ctx, t, n)
	}
	cluster.Start(ctx, t, c.Nodes...)
	paths(ctx, t, n1, "n2 vxlan n3 vxlan")
	p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	flow := cluster.StartFlow(ctx, t, p1.NS, p2.NS, p2.IP)
	flow.Runs(ctx, t)
	whole := func(what string, act func()) {
		t.Helper()
		from := flow.Sent()
		act()
		flow.Runs(ctx, t)
		if lost := flow.Lost(ctx, from); lost > 0 {
			t.Errorf("%s: %d of %d datagrams were lost", what, lost, flow.Sent()-from)
		}
	}

	whole("vxlan to host-gw", func() {
		store.Configure(ctx, backend(hostGW, short))
		paths(ctx, t, n1, "n2 direct n3 unreachable")
		paths(ctx, t, n2, "n1 direct n3 unreachable")
		for _, n := range c.Nodes[:2] {
			cluster.Eventually(ctx, t, 20*time.Second, "no overlay is left on "+n.Host, func() error {
				if _, err := cluster.FindLink(ctx, n, cluster.Overlay); err == nil {
					return fmt.Errorf("%s is there", cluster.Overlay)
				}
				return nil
			})
		}
	})
	first := cluster.Status(ctx, t, n1)
	if i := slices.IndexFunc(first.Peers, func(p api.Peer) bool { return p.Node == "n3" }); !strings.Contains(first.Peers[i].Reason, "not on the link of this node (192.0.2.0/24)") {
		t.Errorf("n3 is unreachable because %q", first.Peers[i].Reason)
	}
	if value, _, _ := store.Holder(ctx, first.Subnet); !strings.HasPrefix(value, `{"PublicIP":"192.0.2.11","PublicIPv6":null,"BackendType":"host-gw","Tenure":`) {
		t.Errorf("the record is %s", value)
	}
	young := cluster.Pod(ctx, t, n1, "young")
	if link, err := cluster.FindLink(ctx, young, "eth0"); err != nil || link.MTU != 1500 || first.MTU != 1500 {
		t.Errorf("a new pod's interface is %+v, %v; status says MTU %d", link, err, first.MTU)
	}
	third := netip.MustParsePrefix(cluster.Status(ctx, t, n3).Subnet)
	if out, err := n1.Exec(ctx, "ip", "route", "get", third.Addr().Next().Next().String()); err == nil {
		t.Errorf("a packet for n3 leaves by %s", out)
	}

	whole("restart", func() {
		fence := cluster.OpenFence(t, n1.Pid())
		if err := n1.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		_, was, err := fence.Read()
		if err != nil {
			t.Fatal(err)
		}
		cluster.Start(ctx, t, n1)
		if _, is, err := cluster.OpenFence(t, n1.Pid()).Read(); err != nil || is < was {
			t.Errorf("the fence was open until %s, is until %s, %v", was, is, err)
		}
		paths(ctx, t, n1, "n2 direct n3 unreachable")
	})

	// The outage: n1 is away past its lease, n4 is given its subnet.
	n4 := c.AddNode(ctx, t, "n4")
	store.Reserve(ctx, first.Subnet, "n4")
	n1.Kill()
	flow.Ends(ctx, t, 10*time.Second)
	if _, _, held := store.Holder(ctx, first.Subnet); !held {
		t.Errorf("the lease of %s ended before the fence was shut", first.Subnet)
	}
	wire := cluster.Sniff(t, c.LAN, "to-n1")
	awaitFree(ctx, t, store, first.Subnet)
	cluster.Start(ctx, t, n4)
	paths(ctx, t, n2, "n3 unreachable n4 direct")
	heir := cluster.Pod(ctx, t, n4, "heir", lab.PodOptions{Args: "IP=" + inside(first.Subnet, 100).String()})
	talks(ctx, t, heir, p2)
	cluster.Start(ctx, t, n1)
	second := cluster.Status(ctx, t, n1)
	if second.Subnet == first.Subnet || len(second.Stranded) != 2 {
		t.Errorf("n1 is back with %s and stranded %+v", second.Subnet, second.Stranded)
	}
	paths(ctx, t, n1, "n2 direct n3 unreachable n4 direct")
	late := cluster.Pod(ctx, t, n1, "late")
	talks(ctx, t, late, p2)
	talks(ctx, t, late, heir)
	if n := wire.Plain(p1.IP) + wire.From(p1.IP); n != 0 || !flow.Quiet() {
		t.Errorf("%d packets of the stranded pod left its node", n)
	}
	if wire.Plain(late.IP) == 0 {
		t.Error("the look at the wire sees nothing at all")
	}

	// n2 is taken out, with its pod.
	if r := cluster.Run(ctx, t, n2, "tenurectl", "uninstall", "--with-pods", "--keep-programs", "--run-dir="+n2.RunDir, "--state-dir="+n2.StateDir, "--cni-conf-dir="+n2.CNIDir); r.Code != 0 {
		t.Errorf("uninstall: %s", r)
	}
	if f := uplinkFence(ctx, t, n2); f != 0 {
		t.Errorf("%d filters are left on the uplink of n2", f)
	}
	if out := cluster.Exec(ctx, t, n2, "ip", "route", "show", "proto", "90"); out != "" {
		t.Errorf("routes are left on n2: %s", out)
	}

	flow = cluster.StartFlow(ctx, t, late.NS, heir.NS, heir.IP)
	flow.Runs(ctx, t)
	whole("host-gw to vxlan", func() {
		store.Configure(ctx, backend(plainVXLAN, short))
		paths(ctx, t, n1, "n3 vxlan n4 vxlan")
		paths(ctx, t, n4, "n1 vxlan n3 vxlan")
	})
}
