package field

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// wide holds cluster.PodNetwork, and new nodes draw from the part that is new.
const wide = `{"Network":"10.0.0.0/8","SubnetLen":24,"SubnetMin":"10.77.0.0"}`

// TestC1Widen is the way out of a network that has become too small: it is
// made larger while 20 nodes hold subnets of it and pods talk. Right is: no
// subnet, lease or packet is lost; subnet.env, routes, rules and fence of every
// node follow within seconds; a new node draws from the new part and is reached
// without NAT from the old; and when it has left, the way back is as quiet.
func TestC1Widen(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, 3*time.Minute)
	names := make([]string, 20)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i+1)
	}
	c := cluster.Born(ctx, t, cluster.Network, names...)
	cluster.Start(ctx, t, c.Nodes...)
	talking := c.Nodes[:4]
	if cluster.Long(t) {
		talking = c.Nodes
	}
	cluster.WaitPeers(ctx, t, talking...)
	ring := cluster.NewRing(ctx, t, talking...)
	before := map[*lab.Node]*api.Status{}
	fences := map[*lab.Node]*cluster.Fence{}
	for _, n := range c.Nodes {
		before[n], fences[n] = cluster.Status(ctx, t, n), cluster.OpenFence(t, n.Pid())
	}
	network := func(cidr string, nodes ...*lab.Node) {
		t.Helper()
		began := time.Now()
		for _, n := range nodes {
			cluster.Eventually(ctx, t, 10*time.Second, n.Host+" goes by "+cidr, func() error { return goesBy(ctx, n, fences[n], cidr) })
		}
		t.Logf("%d nodes went by %s after %s", len(nodes), cidr, time.Since(began).Round(time.Millisecond))
		for _, n := range nodes {
			s, was := cluster.Status(ctx, t, n), before[n]
			if s.State != api.StateHeld || s.Subnet != was.Subnet || s.Lease.ID != was.Lease.ID || s.Lease.Epoch != was.Lease.Epoch {
				t.Errorf("%s is %s with %s under %+v, it held %s under %+v", n.Host, s.State, s.Subnet, s.Lease, was.Subnet, was.Lease)
			}
		}
	}

	asREADMEHasIt(ctx, t, talking[0])
	network("10.0.0.0/8", c.Nodes...)
	configSet(ctx, t, talking[0], 0, wide)
	young := c.AddNode(ctx, t, "young")
	cluster.Start(ctx, t, young)
	s := cluster.Status(ctx, t, young)
	if p := netip.MustParsePrefix(s.Subnet); netip.MustParsePrefix(cluster.PodNetwork).Overlaps(p) || p.Addr().Less(netip.MustParseAddr("10.77.0.0")) {
		t.Errorf("the new node holds %s", s.Subnet)
	}
	cluster.WaitPeers(ctx, t, young, talking[0], talking[1])
	first := ring.Pods[0]
	pod := cluster.Pod(ctx, t, young, "p")
	cluster.Serve(ctx, t, pod.NS, port)
	cluster.Serve(ctx, t, first.NS, port)
	cluster.Seen(ctx, t, first.NS, pod.IP, port, first.IP)
	cluster.Seen(ctx, t, pod.NS, first.IP, port, pod.IP)
	// Who draws from the old part had it before, and is not asked to go.
	if err := c.Nodes[5].Stop(ctx); err != nil {
		t.Fatal(err)
	}
	cluster.Start(ctx, t, c.Nodes[5])
	fences[c.Nodes[5]] = cluster.OpenFence(t, c.Nodes[5].Pid())
	network("10.0.0.0/8", c.Nodes...)

	// The way back is open when nobody is in the new part.
	configSet(ctx, t, talking[0], 1, cluster.Network)
	leave(ctx, t, pod)
	if r := cluster.Run(ctx, t, young, "tenurectl", "leave", "--socket="+young.Socket); r.Code != 0 {
		t.Fatalf("leave: %s", r)
	}
	configSet(ctx, t, talking[0], 0, cluster.Network)
	network(cluster.PodNetwork, c.Nodes...)
	ring.Whole(ctx, t)
	ring.Same(ctx, t)
	for _, n := range c.Nodes {
		if s := cluster.Status(ctx, t, n); len(s.Problems) != 0 && !cluster.HasProblem(s, "name-server-covered") {
			t.Errorf("%s: %v", n.Host, s.Problems)
		}
	}
}

// asREADMEHasIt gives the commands of README's section, and a yes to each.
func asREADMEHasIt(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	bin, err := lab.FindBin()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "### Widening the network")
	_, section, _ = strings.Cut(section, "```")
	commands, _, _ := strings.Cut(section, "```")
	given := 0
	for line := range strings.Lines(strings.TrimSpace(commands)) {
		words, ok := strings.CutPrefix(strings.TrimSpace(line), "tenurectl ")
		if !ok {
			t.Fatalf("README has the command %q", line)
		}
		t.Logf("%s%s", line, cluster.Exec(ctx, t, n, "sh", "-ec", "echo y | "+filepath.Join(bin, "tenurectl")+" --socket="+n.Socket+" "+words))
		given++
	}
	if given < 3 {
		t.Fatalf("README has %d commands: %s", given, commands)
	}
}

// configSet is tenurectl config set, as an operator on the node gives it.
func configSet(ctx context.Context, t *testing.T, n *lab.Node, code int, config string) {
	t.Helper()
	r := cluster.Run(ctx, t, n, "tenurectl", "config", "set", config, "--yes", "--socket="+n.Socket)
	if r.Code != code {
		t.Fatalf("config set %s: want exit code %d: %s", config, code, r)
	}
}

// goesBy says what of the node does not go by the network yet: subnet.env, the
// route for what is nobody's, NAT and forwarding rules, the fence.
func goesBy(ctx context.Context, n *lab.Node, fence *cluster.Fence, network string) error {
	s, err := n.Status(ctx)
	if err != nil {
		return err
	}
	var errs []error
	miss := func(what, text string) {
		errs = append(errs, fmt.Errorf("%s: %s", what, text))
	}
	if s.Network != network {
		miss("status", s.Network)
	}
	env, err := os.ReadFile(filepath.Join(n.RunDir, "subnet.env"))
	if !strings.Contains(string(env), "FLANNEL_NETWORK="+network+"\n") {
		miss("subnet.env", string(env))
	}
	routes, err2 := n.Exec(ctx, "ip", "route", "show", "type", "unreachable")
	if strings.Count(routes, "unreachable") != 1 || !strings.Contains(routes, network+" ") {
		miss("routes", routes)
	}
	rules, err3 := n.Exec(ctx, "iptables-save")
	for _, r := range []string{"-s " + network + " -d " + network + " ", "TENURE-MASQ -s " + network + " -m", "TENURE-FWD -s " + network, "TENURE-FWD -d " + network} {
		if !strings.Contains(rules, r) {
			miss("rules lack", r)
		}
	}
	for _, other := range []string{cluster.PodNetwork, "10.0.0.0/8"} {
		if other != network && strings.Contains(rules, other) {
			miss("rules", "they have "+other)
		}
	}
	in, err4 := fence.Network()
	if in.String() != network {
		miss("fence", in.String())
	}
	return errors.Join(append(errs, err, err2, err3, err4)...)
}

// TestC1Bounds: SubnetMin and SubnetMax say what new nodes may draw. Who holds a
// subnet outside of them keeps it, over restarts too, until he gives it up.
func TestC1Bounds(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	ring := cluster.NewRing(ctx, t, c.Nodes...)
	n1 := c.Nodes[0]
	held := netip.MustParsePrefix(ring.Before[0].Subnet)
	bound := "10.5.100.0"
	if held.Addr() == netip.MustParseAddr(bound) {
		bound = "10.5.101.0"
	}
	configSet(ctx, t, n1, 0, fmt.Sprintf(`{"Network":"10.5.0.0/16","SubnetMin":%q,"SubnetMax":%q}`, bound, bound))
	if err := n1.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	cluster.Start(ctx, t, n1)
	ring.Same(ctx, t)
	ring.Whole(ctx, t)
	n3 := c.AddNode(ctx, t, "n3")
	cluster.Start(ctx, t, n3)
	if s := cluster.Status(ctx, t, n3); s.Subnet != bound+"/24" {
		t.Errorf("n3 holds %s, want %s/24", s.Subnet, bound)
	}
	n4 := c.AddNode(ctx, t, "n4")
	if err := n4.Start(ctx); err != nil {
		t.Fatal(err)
	}
	cluster.Wait(ctx, t, n4, "finds nothing free", func(s *api.Status) bool { return cluster.HasProblem(s, "no-free-subnet") })
}

// TestC1Backend: another VNI, port or MTU while pods run. For VNI and port each
// node makes its overlay's device anew, and nobody reaches a node before both
// have done so: that is said beforehand, and over in seconds without anybody's
// doing; the subnet and the deadline stand. The MTU loses no packet: pods that
// run keep theirs.
func TestC1Backend(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	ring := cluster.NewRing(ctx, t, c.Nodes...)
	n1 := c.Nodes[0]
	const tail = `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan",%s}}`

	mtu := func(device string, want int) {
		t.Helper()
		for _, n := range c.Nodes {
			cluster.Eventually(ctx, t, 5*time.Second, fmt.Sprintf("%s of %s has MTU %d", device, n.Host, want), func() error {
				link, err := cluster.FindLink(ctx, n, device)
				if err == nil && link.MTU != want {
					err = fmt.Errorf("it has %d", link.MTU)
				}
				return err
			})
		}
	}
	r := cluster.Run(ctx, t, n1, "tenurectl", "config", "set", fmt.Sprintf(tail, `"MTU":1400`), "--dry-run", "--socket="+n1.Socket)
	if r.Code != 0 || !strings.Contains(r.Out, "pods that run keep theirs") || strings.Contains(r.Out, "interruption") {
		t.Errorf("config set --dry-run of an MTU: %s", r)
	}
	configSet(ctx, t, n1, 0, fmt.Sprintf(tail, `"MTU":1400`))
	mtu(cluster.Overlay, 1350)
	mtu(cluster.Bridge, 1350)
	small := cluster.Pod(ctx, t, n1, "small")
	if link, err := cluster.FindLink(ctx, small, "eth0"); err != nil || link.MTU != 1350 {
		t.Errorf("a new pod has MTU %d, %v", link.MTU, err)
	}
	if err := small.Del(ctx); err != nil { // it is to be named once the MTU is another
		t.Fatal(err)
	}
	if link, err := cluster.FindLink(ctx, ring.Pods[0], "eth0"); err != nil || link.MTU != 1450 {
		t.Errorf("a pod that runs has MTU %d, %v", link.MTU, err)
	}
	ring.Whole(ctx, t)

	for backend, device := range map[string]string{`"VNI":77`: "tenure.77", `"Port":8999,"VNI":1`: cluster.Overlay} {
		r := cluster.Run(ctx, t, n1, "tenurectl", "config", "set", fmt.Sprintf(tail, backend), "--dry-run", "--socket="+n1.Socket)
		if r.Code != 0 || !strings.Contains(r.Out, "interruption") {
			t.Errorf("config set --dry-run does not warn: %s", r)
		}
		configSet(ctx, t, n1, 0, fmt.Sprintf(tail, backend))
		began := time.Now()
		for _, n := range c.Nodes {
			cluster.Eventually(ctx, t, 8*time.Second, n.Host+" has "+device, func() error {
				links, err := n.Exec(ctx, "ip", "-d", "-o", "link", "show", "type", "vxlan")
				if err == nil && (strings.Count(links, "vxlan id") != 1 || !strings.Contains(links, device+":")) {
					err = fmt.Errorf("the overlays are %s", links)
				}
				if port, changed := strings.CutPrefix(backend, `"Port":`); err == nil && changed && !strings.Contains(links, "dstport "+port[:4]) {
					err = fmt.Errorf("the overlays are %s", links)
				}
				return err
			})
		}
		for _, n := range c.Nodes {
			within(ctx, t, 8*time.Second, n, "has its peer", func(s *api.Status) bool {
				return s.State == api.StateHeld && len(s.Peers) == 1 && s.Peers[0].State == api.PeerProgrammed && len(s.Problems) == 0
			})
		}
		for _, f := range ring.Flows {
			f.Runs(ctx, t)
		}
		t.Logf("%s: over after %s", backend, time.Since(began).Round(time.Millisecond))
	}
	ring.Same(ctx, t)
}
