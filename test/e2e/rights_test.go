package e2e

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// rights are the capabilities that the daemon needs; SECURITY.md says what for.
// Without sys_admin or net_admin this test fails. The others are for machines
// unlike this one: net_raw for the older iptables and for ARP, bpf to be
// explicit, sys_resource for kernels before 5.11 (locked memory of BPF maps) and
// sys_ptrace for a namespace that a runtime names by another user's /proc/PID.
const rights = "net_admin net_raw bpf sys_admin sys_resource sys_ptrace"

// TestRights runs a daemon that has no others, cannot get any, and whose
// programs (iptables) cannot either: it attaches, fences, repairs and detaches
// as ever.
func TestRights(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, shortLease, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	path, err := exec.LookPath("setpriv")
	if err != nil {
		t.Fatalf("util-linux is missing: run scripts/deps test: %v", err)
	}
	wrapper := []string{path, "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all,+" + strings.ReplaceAll(rights, " ", ",+"), "--"}
	if err := n1.StartUnder(ctx, wrapper); err != nil {
		t.Fatal(err)
	}
	cluster.Start(ctx, t, n2)
	cluster.WaitPeers(ctx, t, n1, n2)
	a, b := cluster.Pod(ctx, t, n1, "a"), cluster.Pod(ctx, t, n2, "b")
	flow := cluster.StartFlow(ctx, t, a.NS, b.NS, b.IP)
	flow.Runs(ctx, t)

	for _, broken := range [][]string{{"ip", "link", "del", "tenure.1"}, {"ip", "addr", "flush", "dev", "tenure0"}, {"iptables", "-t", "nat", "-F"}} {
		if _, err := n1.Exec(ctx, broken[0], broken[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Eventually(ctx, t, 15*time.Second, "the rules are back", func() error {
		out, err := n1.Exec(ctx, "iptables-save", "-t", "nat")
		if err == nil && !strings.Contains(out, "-j TENURE-MASQ") {
			err = errors.New(out)
		}
		return err
	})
	cluster.Wait(ctx, t, n1, "has no problem", func(s *api.Status) bool { return len(s.Problems) == 0 })
	flow.Runs(ctx, t)
	if code := cluster.Code(cluster.Call(ctx, t, n1, cluster.CallFor("CHECK", a, "eth0"))); code != 0 {
		t.Errorf("CHECK of a pod that was left alone: code %d", code)
	}
	if code := cluster.Code(cluster.Call(ctx, t, n1, cluster.CallFor("DEL", a, "eth0"))); code != 0 {
		t.Errorf("DEL ends with code %d", code)
	}
	s := cluster.Wait(ctx, t, n1, "has no problem", func(s *api.Status) bool { return len(s.Problems) == 0 })
	if s.Addresses.Used != 0 {
		t.Errorf("%d addresses are used after the DEL", s.Addresses.Used)
	}
}
