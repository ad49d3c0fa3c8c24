package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// unit reads the shipped unit.
func unit(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "conf", "tenured.service"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestUnitIsValid has systemd's own checker read the unit as it is installed.
func TestUnitIsValid(t *testing.T) {
	if testing.Short() {
		t.Skip("needs the programs of make build, and systemd-analyze")
	}
	bin, err := lab.FindBin()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	install := exec.Command(filepath.Join(bin, "tenurectl"), "install", "--from="+bin, "--prefix="+dir, "--cni-bin-dir="+dir+"/cni", "--unit-dir="+dir, "--config="+dir+"/t.yaml")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	path := filepath.Join(dir, "tenured.service")
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput()
	// It also complains of units of the host that it cannot read.
	if strings.Contains(string(out), "tenured.service") || err != nil && strings.Contains(string(out), dir) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	broken := strings.Replace(unit(t), "KillMode=process", "KillMod=process", 1)
	if err := os.WriteFile(path, []byte(broken), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, _ := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput(); !strings.Contains(string(out), "KillMod") {
		t.Errorf("a broken unit passes: %s", out)
	}
}

// bounded is what starts a program with the unit's capabilities and no others.
func bounded(t *testing.T) []string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindStringSubmatch(unit(t))
	if found == nil {
		t.Fatal("the unit bounds no capabilities")
	}
	set := "-all"
	for _, c := range strings.Fields(found[1]) {
		set += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
	}
	return []string{"setpriv", "--bounding-set=" + set, "--no-new-privs"}
}

// TestCapabilitiesOfTheUnit: with those alone all goes on as with all: devices,
// fence, rules and their repair, pods, traffic, an ARP probe, a restart.
func TestCapabilitiesOfTheUnit(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	start := func() {
		t.Helper()
		if err := n1.StartUnder(ctx, bounded(t)); err != nil {
			t.Fatal(err)
		}
		cluster.WaitState(ctx, t, n1, api.StateHeld)
	}
	start()
	cluster.Start(ctx, t, n2)
	cluster.WaitPeers(ctx, t, n1, n2)
	if status := cluster.Exec(ctx, t, n1, "cat", "/proc/"+strconv.Itoa(n1.Pid())+"/status"); regexp.MustCompile(`(?m)^CapEff:\s+000001ffffffffff$`).MatchString(status) {
		t.Error("the daemon has all capabilities")
	}
	p1, p2 := cluster.Pod(ctx, t, n1, "p", lab.PodOptions{MAC: "0a:00:00:00:00:11"}), cluster.Pod(ctx, t, n2, "p")
	flow := cluster.StartFlow(ctx, t, p1.NS, p2.NS, p2.IP)
	flow.Runs(ctx, t)
	if err := p1.Check(ctx); err != nil {
		t.Error(err)
	}
	cluster.Exec(ctx, t, n1, "sh", "-ec", "iptables -w -t nat -F TENURE-MASQ; echo 0 >/proc/sys/net/ipv4/ip_forward")
	cluster.Eventually(ctx, t, 15*time.Second, "rules and forwarding are back", func() error {
		_, err := n1.Exec(ctx, "sh", "-ec", "iptables-save -t nat | grep -q 'TENURE-MASQ.*MASQUERADE'; grep -q 1 /proc/sys/net/ipv4/ip_forward")
		return err
	})
	if err := n1.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	start()
	flow.Runs(ctx, t)
	if s := cluster.Status(ctx, t, n1); !cluster.Well(s) {
		t.Errorf("problems: %v", s.Problems)
	}
	if err := p1.Del(ctx); err != nil {
		t.Error(err)
	}
	// After a boot the address in the record is probed by ARP before the subnet
	// is resumed.
	before := cluster.Status(ctx, t, n1).Subnet
	if err := n1.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	start()
	if after := cluster.Status(ctx, t, n1).Subnet; after != before {
		t.Errorf("%s after a boot, %s before", after, before)
	}
	if log := n1.Logs(1000); strings.Contains(log, "operation not permitted") || strings.Contains(log, "permission denied") {
		t.Errorf("something was not permitted:\n%s", log)
	}
}
