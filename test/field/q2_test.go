package field

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestQ2 is flannel #2063, multus #1105 and multus #1429: after a removal the
// node is broken, since a configuration is left that leads to a plugin which is
// not, and there is no way to take the rest away. Right is: nothing happens while
// pods have addresses; when it is asked for all the same, the configuration
// goes first and the programs last, the subnet is free at once, the pods run on
// and each DEL succeeds; in the end nothing is left, and another instance on
// the host sees no change.
func TestQ2(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	bare := kernelOf(ctx, t, n, "tenure")

	host := newScratch(t, filepath.Join(n.Dir(), "host"))
	layout := []string{"--prefix=" + host.root + "/usr", "--cni-bin-dir=" + host.root + "/cni", "--unit-dir=" + host.root + "/units", "--config=" + host.root + "/etc/tenure/tenured.yaml"}
	if r := cluster.Run(ctx, t, n, "tenurectl", append([]string{"install", "--from", binDir(t)}, layout...)...); r.Code != 0 {
		t.Fatalf("install: %s", r)
	}
	n.Program = filepath.Join(host.root, "usr", "sbin", "tenured")
	conflist := filepath.Join(n.CNIDir, "10-tenure.conflist")
	if err := n.Start(ctx, "--cni-conf-file="+conflist); err != nil {
		t.Fatal(err)
	}
	first := cluster.WaitState(ctx, t, n, api.StateHeld)
	var pods []*lab.Pod
	for i := range 10 {
		pods = append(pods, cluster.Pod(ctx, t, n, fmt.Sprintf("p%d", i)))
	}
	other, second := startOther(ctx, t, c, n)
	others := kernelOf(ctx, t, n, "other")
	before := cluster.Picture(ctx, t, n)
	uninstall := func(more ...string) cluster.Ran {
		return cluster.Run(ctx, t, n, "tenurectl", slices.Concat([]string{"uninstall", "--run-dir=" + n.RunDir, "--state-dir=" + n.StateDir, "--cni-conf-dir=" + n.CNIDir}, layout, more)...)
	}

	if r := uninstall(); r.Code != 1 || !strings.Contains(r.Said, "drain the node first") {
		t.Errorf("with pods: %s", r)
	}
	if after := cluster.Picture(ctx, t, n); after != before {
		t.Errorf("the refusal changed the node from\n%s\nto\n%s", before, after)
	}
	cluster.Exec(ctx, t, n, "test", "-e", conflist)

	r := uninstall("--with-pods", "--purge")
	if r.Code != 0 {
		t.Fatalf("uninstall: %s", r)
	}
	inOrder(t, r.Out, "removed "+conflist, "gave "+first.Subnet+" up", "ended tenured", "rules ", "link del tenure.1", "link del tenure0",
		"route del unreachable", "removed "+n.RunDir, "removed "+n.StateDir, "stay: process")
	if revision(ctx, t, c.Store(t), first.Subnet) != 0 {
		t.Errorf("%s is still on record", first.Subnet)
	}
	if now := kernelOf(ctx, t, n, "other"); now != others {
		t.Errorf("the other instance had\n%s\nand has\n%s", others, now)
	}
	if s, err := api.NewClient(other).Status(ctx); err != nil || s.State != api.StateHeld {
		t.Errorf("the other instance: %v, %v", s, err)
	}
	// Without the other one nobody needs the programs.
	if err := second.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if r = uninstall("--with-pods", "--purge"); r.Code != 0 {
		t.Fatalf("uninstall: %s", r)
	}
	inOrder(t, r.Out, "removed "+host.root+"/units", "removed "+n.Program)
	for _, p := range pods {
		cluster.Exec(ctx, t, p, "ip", "link", "show", "dev", "eth0")
		for range 2 { // a runtime repeats it
			cluster.Exec(ctx, t, n, "env", "CNI_COMMAND=DEL", "CNI_CONTAINERID="+p.ContainerID(), "CNI_NETNS="+p.Path(), "CNI_IFNAME=eth0",
				filepath.Join(host.root, "cni", "tenure"))
		}
	}
	if now := kernelOf(ctx, t, n, "tenure"); now != bare {
		t.Errorf("left in the kernel:\n%s\nbefore there was\n%s", now, bare)
	}
	for _, dir := range []string{n.RunDir, n.StateDir, filepath.Join(host.root, "etc", "tenure")} {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
	if left := fmt.Sprint(slices.Sorted(maps.Keys(eachOf(t, host.root)))); left != "[cni/tenure cni/tenure-ipam]" {
		t.Errorf("left of the programs: %s", left)
	}
	if r := uninstall("--purge"); r.Code != 0 {
		t.Errorf("once more: %s", r)
	}
	if left := eachOf(t, host.root); len(left) != 0 {
		t.Errorf("left in the end: %v", slices.Sorted(maps.Keys(left)))
	}
}

// startOther runs another instance on the node, for another network, and
// returns its socket and process.
func startOther(ctx context.Context, t *testing.T, c *cluster.Cluster, n *lab.Node) (string, *lab.Process) {
	t.Helper()
	dir := filepath.Join(n.Dir(), "other")
	etcd := []string{"--etcd-endpoints=" + c.Etcd.URL(), "--etcd-prefix=/other"}
	if r := cluster.Run(ctx, t, n, "tenurectl", append([]string{"init", `--network-config={"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":2,"Port":8473}}`}, etcd...)...); r.Code != 0 {
		t.Fatalf("birth of the other network: %s", r)
	}
	process, err := n.Spawn(filepath.Join(n.Dir(), "other.log"), slices.Concat([]string{filepath.Join(binDir(t), "tenured"), "--name=other", "--node-name=n1", "--iface=eth0", "--metrics-listen=",
		"--run-dir=" + dir + "/run", "--state-dir=" + dir + "/state"}, etcd)...)
	if err != nil {
		t.Fatal(err)
	}
	socket := dir + "/run/tenured.sock"
	cluster.Eventually(ctx, t, 20*time.Second, "the other instance is served", func() error {
		s, err := api.NewClient(socket).Status(ctx)
		if err == nil && s.State != api.StateHeld {
			err = fmt.Errorf("it is %s", s.State)
		}
		return err
	})
	cluster.Eventually(ctx, t, 10*time.Second, "its network stands", func() error {
		_, err := n.Exec(ctx, "sh", "-ec", "ip link show dev other.2 && ip link show dev other0 && ip route show 10.6.0.0/16 | grep -q unreachable && iptables-save | grep -q OTHER-FWD")
		return err
	})
	return socket, process
}

// kernelOf is what of the node's kernel bears the name of an instance or an
// address of its network, without counters.
func kernelOf(ctx context.Context, t *testing.T, n lab.Execer, name string) string {
	t.Helper()
	network := map[string]string{"tenure": "10.5.", "other": "10.6."}[name]
	var all []string
	for line := range strings.Lines(cluster.Exec(ctx, t, n, "sh", "-ec", "ip -o link; ip -o -4 addr; ip route; ip rule; iptables-save")) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " [")
		if strings.Contains(line, name) || strings.Contains(line, strings.ToUpper(name)) || strings.Contains(line, network) {
			all = append(all, line)
		}
	}
	return strings.Join(all, "\n")
}

// inOrder makes sure that the parts stand in the text one behind another.
func inOrder(t *testing.T, text string, parts ...string) {
	t.Helper()
	rest := text
	for _, part := range parts {
		_, behind, ok := strings.Cut(rest, part)
		if !ok {
			t.Errorf("%q is not there, or not in its place, in\n%s", part, text)
			return
		}
		rest = behind
	}
}
