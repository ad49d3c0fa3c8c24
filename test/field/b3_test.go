package field

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestB3 is flannel #520 and #294: after a lost lease the node is given
// another subnet; the pods on the bridge are cut off, and every new pod fails
// because the bridge carries the old address. Right is: the new subnet works
// at once, beside the old one. Old pods are kept, listed as stranded and told
// so by CHECK; they keep their gateway, their neighbours and the world
// outside. The old subnet is its new tenant's, also as seen from this node,
// and the last old pod takes the old gateway with it.
func TestB3(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, cluster.ShortLease, "n1")
	n1, n2 := c.Nodes[0], c.AddNode(ctx, t, "n2")
	store := c.Store(t)
	cluster.Serve(ctx, t, c.Outside, port)
	old := []*lab.Pod{cluster.Pod(ctx, t, n1, "old1"), cluster.Pod(ctx, t, n1, "old2")}
	for _, p := range old {
		cluster.Serve(ctx, t, p.NS, port)
	}
	s1 := cluster.Status(ctx, t, n1).Subnet

	// The lease ends while the daemon lives on, cut off from etcd.
	store.Reserve(ctx, s1, "n2")
	cutEtcd(ctx, t, n1, true)
	awaitFree(ctx, t, store, s1)
	cluster.Start(ctx, t, n2)
	if s := cluster.Status(ctx, t, n2); s.Subnet != s1 {
		t.Fatalf("n2 holds %s, want %s", s.Subnet, s1)
	}
	heir := cluster.Pod(ctx, t, n2, "heir", lab.PodOptions{Args: "IP=" + inside(s1, 100).String()})
	cluster.Serve(ctx, t, heir.NS, port)
	cutEtcd(ctx, t, n1, false)

	s := held(ctx, t, n1, s1)
	young := cluster.Pod(ctx, t, n1, "young") // at once
	cluster.Serve(ctx, t, young.NS, port)
	stranded(ctx, t, n1, s1, old)
	for _, p := range old {
		a := cluster.Call(ctx, t, n1, cluster.CallFor("CHECK", p, "eth0"))
		if cluster.Code(a) != api.CodeCheckStranded {
			t.Errorf("CHECK of %s: %v, want code 111", p.Pod, a.Err)
		}
	}
	if err := young.Check(ctx); err != nil {
		t.Errorf("CHECK of a pod in %s: %v", s.Subnet, err)
	}
	oldPodsLive(ctx, t, c, old, young, inside(s1, 1))

	cluster.WaitPeers(ctx, t, n1, n2)
	cluster.Seen(ctx, t, young.NS, heir.IP, port, young.IP)
	cluster.Seen(ctx, t, heir.NS, young.IP, port, heir.IP)
	cluster.Unseen(ctx, t, heir.NS, old[0].IP, port)

	// The shorter way, of which the host could tell: a second packet would take it.
	if said, err := young.Exec(ctx, "ping", "-n", "-c", "3", "-i", "0.2", old[0].IP.String()); err != nil || strings.Contains(said, "Redirect") {
		t.Errorf("from %s to the stranded %s: %v\n%s", young.IP, old[0].IP, err, said)
	}
	for _, p := range old {
		if err := p.Del(ctx); err != nil {
			t.Error(err)
		}
	}
	cluster.Eventually(ctx, t, 5*time.Second, "the old gateway leaves the bridge", func() error {
		bridge, err := cluster.FindLink(ctx, n1, cluster.Bridge)
		if want := inside(s.Subnet, 1).String() + "/24"; err == nil && !slices.Equal(bridge.Addrs, []string{want}) {
			err = fmt.Errorf("the bridge has %v, want %s only", bridge.Addrs, want)
		}
		return err
	})
	if now := cluster.Status(ctx, t, n1); len(now.Stranded) != 0 || cluster.HasProblem(now, "stranded-pods") {
		t.Errorf("still stranded: %+v, %+v", now.Stranded, now.Problems)
	}

	// What young has learnt of the way to old1 must not outlive it: its address is
	// the other node's by now.
	again := cluster.Pod(ctx, t, n2, "again", lab.PodOptions{Args: "IP=" + old[0].IP.String()})
	cluster.Serve(ctx, t, again.NS, port)
	if cache, err := young.Exec(ctx, "ip", "route", "get", again.IP.String()); err != nil || strings.Contains(cache, "redirected") {
		t.Errorf("the way to %s: %s, %v", again.IP, cache, err)
	}
	cluster.Seen(ctx, t, young.NS, again.IP, port, young.IP)
}

// inside is an address of a /24.
func inside(subnet string, host byte) netip.Addr {
	a := netip.MustParsePrefix(subnet).Addr().As4()
	a[3] = host
	return netip.AddrFrom4(a)
}

// stranded makes sure that status lists exactly these pods, on that subnet.
func stranded(ctx context.Context, t *testing.T, n *lab.Node, subnet string, pods []*lab.Pod) {
	t.Helper()
	s := cluster.Status(ctx, t, n)
	var want []api.Stranded
	for _, p := range pods {
		want = append(want, api.Stranded{Subnet: subnet, ContainerID: p.ContainerID(), IfName: "eth0", Address: p.IP.String()})
	}
	byAddress := func(a, b api.Stranded) int { return strings.Compare(a.Address, b.Address) }
	slices.SortFunc(s.Stranded, byAddress)
	slices.SortFunc(want, byAddress)
	if !slices.Equal(s.Stranded, want) || !cluster.HasProblem(s, "stranded-pods") {
		t.Errorf("stranded %+v, want %+v; problems %+v", s.Stranded, want, s.Problems)
	}
}

// oldPodsLive walks the paths that a stranded pod keeps.
func oldPodsLive(ctx context.Context, t *testing.T, c *cluster.Cluster, old []*lab.Pod, young *lab.Pod, gateway netip.Addr) {
	t.Helper()
	cluster.Seen(ctx, t, old[0].NS, old[1].IP, port, old[0].IP)
	cluster.Seen(ctx, t, old[0].NS, young.IP, port, old[0].IP)
	cluster.Seen(ctx, t, young.NS, old[0].IP, port, young.IP)
	cluster.Seen(ctx, t, old[0].NS, c.OutsideAddr(), port, old[0].Node.Addr)
	if err := lab.Ping(ctx, old[0], gateway); err != nil {
		t.Errorf("the old gateway: %v", err)
	}
}

// TestB3Acts is the rest of that row: what the operator is told and can have
// done, until the last old pod has left, once with the old subnet at its new
// tenant and once with it only kept from this node. Right is: nothing is said
// or done about a pod while the subnet may come back; then one event, one line
// of status, one count and one run of --on-stranded for each pod, also when
// the daemon is started anew; packets that bear an old source reach the
// overlay's device and no farther; and the last old pod ends all of it.
func TestB3Acts(t *testing.T) {
	t.Run("taken by another node", func(t *testing.T) { acts(t, true) })
	t.Run("reserved for another node", func(t *testing.T) { acts(t, false) })
}

func acts(t *testing.T, taken bool) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.Born(ctx, t, cluster.ShortLease, "n1", "n2", "n3")
	n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	store := c.Store(t)
	o := newOperator(t, n1)
	o.start(ctx)
	cluster.Start(ctx, t, n3)
	cluster.WaitPeers(ctx, t, n1, n3)
	s1 := cluster.Status(ctx, t, n1).Subnet
	old := []*lab.Pod{cluster.Pod(ctx, t, n1, "old1"), cluster.Pod(ctx, t, n1, "old2")}
	far := cluster.Pod(ctx, t, n3, "far")
	for _, ns := range []*lab.NS{old[0].NS, old[1].NS, far.NS, c.Outside} {
		cluster.Serve(ctx, t, ns, port)
	}
	flow := cluster.StartFlow(ctx, t, old[0].NS, far.NS, far.IP)
	flow.Runs(ctx, t)

	// Until it is certain, nobody is stranded.
	store.Reserve(ctx, s1, "n2")
	cutEtcd(ctx, t, n1, true)
	cluster.WaitState(ctx, t, n1, api.StateFenced)
	o.tells(ctx)
	o.ran()
	flow.Ends(ctx, t, 8*time.Second)
	awaitFree(ctx, t, store, s1)
	wire := cluster.Sniff(t, c.LAN, "to-n1")
	if taken {
		cluster.Start(ctx, t, n2)
	}
	cutEtcd(ctx, t, n1, false)

	s2 := held(ctx, t, n1, s1).Subnet
	began := time.Now()
	young := cluster.Pod(ctx, t, n1, "young")
	if took := time.Since(began); took > 3*time.Second || !netip.MustParsePrefix(s2).Contains(young.IP) {
		t.Errorf("the first ADD after %s took %s and gave %s", s2, took, young.IP)
	}
	cluster.Serve(ctx, t, young.NS, port)
	o.tells(ctx, old...)
	o.waitRan(ctx, old...)
	if value, _, exists := store.Holder(ctx, s1); exists != taken || exists && !strings.Contains(value, `"n2"`) {
		t.Errorf("%s is announced: %t, as %s", s1, exists, value)
	}
	oldPodsLive(ctx, t, c, old, young, inside(s1, 1))
	cluster.WaitPeers(ctx, t, n1, n3)
	cluster.Seen(ctx, t, young.NS, far.IP, port, young.IP)
	dropped(ctx, t, n1)

	// The next daemon of this boot finds the same and does nothing again, not
	// even while it cannot know who holds the old subnet by now.
	length := pick(taken, "/32", "/24")
	both := []string{inside(s1, 1).String() + length, inside(s2, 1).String() + "/24"}
	o.bridge(ctx, both...)
	o.restart(ctx)
	o.tells(ctx, old...)
	cluster.Stays(ctx, t, 2*time.Second, "nothing runs again", func() error { o.ran(old...); return nil })

	// One leaves, then the other.
	leave(ctx, t, old[0])
	o.tells(ctx, old[1])
	o.bridge(ctx, both...)
	cluster.Seen(ctx, t, old[1].NS, c.OutsideAddr(), port, n1.Addr)
	leave(ctx, t, old[1])
	o.tells(ctx)
	o.bridge(ctx, both[1])
	o.ran(old...)
	o.logged("event=none-stranded", 1)

	if n := wire.From(old[0].IP); n != 0 || !flow.Quiet() {
		t.Errorf("%d packets with an old pod's address left the node", n)
	}
	if wire.From(young.IP) == 0 {
		t.Error("the look at the wire sees nothing at all")
	}
}

func pick(on bool, yes, no string) string {
	if on {
		return yes
	}
	return no
}

func leave(ctx context.Context, t *testing.T, p *lab.Pod) {
	t.Helper()
	if err := p.Del(ctx); err != nil {
		t.Fatal(err)
	}
}

// dropped makes sure that the fence on the overlay's device is what stops the
// old pods' datagrams, which go on: the filter's count grows.
func dropped(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	count := func() int {
		t.Helper()
		out := cluster.Exec(ctx, t, n, "tc", "-s", "qdisc", "show", "dev", cluster.Overlay, "clsact")
		_, rest, _ := strings.Cut(out, "dropped ")
		text, _, _ := strings.Cut(rest, ",")
		v, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("tc says %q", out)
		}
		return v
	}
	before := count()
	cluster.Eventually(ctx, t, 5*time.Second, "the fence drops old sources", func() error {
		if now := count(); now <= before {
			return fmt.Errorf("%d before, %d now", before, now)
		}
		return nil
	})
}

// operator is who runs the node: asks by every means, and has a command of
// --on-stranded that notes whom it was run for.
type operator struct {
	t             *testing.T
	node          *lab.Node
	command, file string
}

func newOperator(t *testing.T, n *lab.Node) *operator {
	t.Helper()
	dir := t.TempDir()
	o := &operator{t: t, node: n, command: filepath.Join(dir, "on-stranded"), file: filepath.Join(dir, "ran")}
	script := fmt.Sprintf("#!/bin/sh\necho \"$*\" \"$TENURE_NODE $TENURE_CONTAINER_ID ${TENURE_REASON:+why}\" >>'%s'\n", o.file)
	if err := os.WriteFile(o.command, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return o
}

// metrics is where the daemon of a node listens, inside of its namespace.
const metrics = "127.0.0.1:9475"

func (o *operator) start(ctx context.Context) {
	o.t.Helper()
	if err := o.node.Start(ctx, "--on-stranded="+o.command, "--metrics-listen="+metrics); err != nil {
		o.t.Fatal(err)
	}
	cluster.WaitState(ctx, o.t, o.node, api.StateHeld)
}

// restart starts the daemon anew, first without etcd: it has a look at the
// kernel, and finds nothing to be done.
func (o *operator) restart(ctx context.Context) {
	o.t.Helper()
	if err := o.node.Stop(ctx); err != nil {
		o.t.Fatal(err)
	}
	cutEtcd(ctx, o.t, o.node, true)
	if err := o.node.Start(ctx, "--on-stranded="+o.command, "--metrics-listen="+metrics); err != nil {
		o.t.Fatal(err)
	}
	cluster.WaitState(ctx, o.t, o.node, api.StateUnproven)
	cluster.Pod(ctx, o.t, o.node, "early") // waits until the data plane is complete
	cutEtcd(ctx, o.t, o.node, false)
	cluster.WaitState(ctx, o.t, o.node, api.StateHeld)
	all := o.node.Logs(10000)
	if last := all[strings.LastIndex(all, "tenured runs"):]; strings.Contains(last, "kernel brought in line") {
		o.t.Errorf("the restart wrote to the kernel:\n%s", last)
	}
}

// tells waits until every source names exactly these pods.
func (o *operator) tells(ctx context.Context, pods ...*lab.Pod) {
	o.t.Helper()
	cluster.Eventually(ctx, o.t, 8*time.Second, fmt.Sprintf("all sources tell of %d stranded pods", len(pods)), func() error {
		s, err := o.node.Status(ctx)
		if err != nil {
			return err
		}
		if len(s.Stranded) != len(pods) || cluster.HasProblem(s, "stranded-pods") != (len(pods) > 0) {
			return fmt.Errorf("status: %+v, %+v", s.Stranded, s.Problems)
		}
		if got, err := o.metric(ctx, "tenure_stranded_pods"); err != nil || got != strconv.Itoa(len(pods)) {
			return fmt.Errorf("metric: %q, %w", got, err)
		}
		return o.events(pods)
	})
	var ids, listed []string
	for _, p := range pods {
		ids = append(ids, p.ContainerID())
		if a := cluster.Call(ctx, o.t, o.node, cluster.CallFor("CHECK", p, "eth0")); cluster.Code(a) != api.CodeCheckStranded {
			o.t.Errorf("CHECK of %s: %v, want code 111", p.Pod, a.Err)
		}
	}
	r := cluster.Run(ctx, o.t, o.node, "tenurectl", "stranded", "-o", "json", "--socket="+o.node.Socket)
	var all []api.Stranded
	if err := json.Unmarshal([]byte(r.Out), &all); err != nil || all == nil {
		o.t.Errorf("tenurectl stranded: %s (%v)", r, err)
	}
	for _, p := range all {
		listed = append(listed, p.ContainerID)
	}
	slices.Sort(ids)
	slices.Sort(listed)
	if want := min(len(pods), 1); r.Code != want || !slices.Equal(ids, listed) {
		o.t.Errorf("tenurectl stranded: exit code %d and %v, want %d and %v", r.Code, listed, want, ids)
	}
}

// events makes sure that the log of this node tells of these pods as stranded,
// and of each other one that it left as often as that it was stranded.
func (o *operator) events(pods []*lab.Pod) error {
	open := map[string]int{}
	for line := range strings.Lines(o.node.Logs(10000)) {
		_, container, _ := strings.Cut(line, "container=")
		container, _, _ = strings.Cut(container, " ")
		switch {
		case strings.Contains(line, "tenured runs"):
			clear(open) // the next daemon tells all again
		case strings.Contains(line, "event=pod-stranded "):
			open[container]++
		case strings.Contains(line, "event=pod-not-stranded "):
			open[container]--
		}
	}
	for _, p := range pods {
		if n := open[p.ContainerID()]; n != 1 {
			return fmt.Errorf("events: %s is stranded %d times", p.Pod, n)
		}
		delete(open, p.ContainerID())
	}
	for container, n := range open {
		if n != 0 {
			return fmt.Errorf("events: %s is stranded %d times, want 0", container, n)
		}
	}
	return nil
}

func (o *operator) logged(text string, times int) {
	o.t.Helper()
	if n := strings.Count(o.node.Logs(10000), text); n != times {
		o.t.Errorf("%q is in the log %d times, want %d", text, n, times)
	}
}

func (o *operator) metric(ctx context.Context, name string) (string, error) {
	client := http.Client{Transport: &http.Transport{DialContext: o.node.Dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metrics+"/metrics", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("no %s", name)
}

// ranFor is whom the command was run for so far, and what is wrong with that.
func (o *operator) ranFor(pods []*lab.Pod) error {
	b, err := os.ReadFile(o.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	got := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	want := []string{}
	for _, p := range pods {
		want = append(want, fmt.Sprintf("%s eth0 %s %s n1 %s why", p.ContainerID(), p.IP, netip.PrefixFrom(p.IP, 24).Masked(), p.ContainerID()))
	}
	if len(want) == 0 {
		want = []string{""}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("the command ran for\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	return nil
}

func (o *operator) ran(pods ...*lab.Pod) {
	o.t.Helper()
	if err := o.ranFor(pods); err != nil {
		o.t.Error(err)
	}
}

func (o *operator) waitRan(ctx context.Context, pods ...*lab.Pod) {
	o.t.Helper()
	cluster.Eventually(ctx, o.t, 5*time.Second, "the command has run", func() error { return o.ranFor(pods) })
}

// bridge waits until the bridge has exactly these addresses.
func (o *operator) bridge(ctx context.Context, addrs ...string) {
	o.t.Helper()
	addrs = slices.Sorted(slices.Values(addrs))
	cluster.Eventually(ctx, o.t, 5*time.Second, "the bridge has its gateways", func() error {
		bridge, err := cluster.FindLink(ctx, o.node, cluster.Bridge)
		if err == nil && !slices.Equal(bridge.Addrs, addrs) {
			err = fmt.Errorf("the bridge has %v, want %v", bridge.Addrs, addrs)
		}
		return err
	})
}
