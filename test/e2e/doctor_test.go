package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// finding is one of tenurectl doctor -o json.
type finding struct{ Code, Severity, Text, Evidence, Fix string }

func (f finding) String() string {
	return fmt.Sprintf("%s %s: %s (%s) → %s", f.Severity, f.Code, f.Text, f.Evidence, f.Fix)
}

// pluginsOf makes a directory of CNI plugins that a test may damage.
func pluginsOf(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"tenure", "portmap"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// doctor runs it on the node.
func doctor(ctx context.Context, t *testing.T, n *lab.Node, plugins string) (code int, all []finding) {
	t.Helper()
	r := cluster.Run(ctx, t, n, "tenurectl", "doctor", "-o", "json", "--socket", n.Socket, "--run-dir", n.RunDir,
		"--state-dir", n.StateDir, "--cni-conf-dir", n.CNIDir, "--cni-bin-dir", plugins)
	if err := json.Unmarshal([]byte(r.Out), &all); err != nil {
		t.Fatalf("%v: %s", err, r)
	}
	return r.Code, all
}

// bad are the findings worse than info, but for the run directory: that of a
// test lies where temporary files lie.
func bad(all []finding) []finding {
	var some []finding
	for _, f := range all {
		if (f.Severity == "error" || f.Severity == "warning") && f.Code != "run-dir" && f.Code != "state-dir" {
			some = append(some, f)
		}
	}
	return some
}

// TestDoctor finds nothing on a healthy node and changes nothing there, then
// each of what is broken, alone, with the actual values; and it works before
// there is a daemon.
func TestDoctor(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	n1, n2, plugins := c.Nodes[0], c.Nodes[1], pluginsOf(t)
	if code, all := doctor(ctx, t, n1, plugins); code != 0 || len(bad(all)) > 0 {
		t.Errorf("before the daemon: exit code %d, %v", code, bad(all))
	}
	cluster.Start(ctx, t, n1, n2)
	cluster.WaitPeers(ctx, t, n1, n2)
	p := cluster.Pod(ctx, t, n1, "p")
	before := cluster.Picture(ctx, t, n1)
	if code, all := doctor(ctx, t, n1, plugins); code != 0 || len(bad(all)) > 0 {
		t.Errorf("on a healthy node: exit code %d, %v", code, bad(all))
	}
	if after := cluster.Picture(ctx, t, n1); after != before {
		t.Errorf("the doctor changed the node from\n%s\nto\n%s", before, after)
	}

	subnet := cluster.Status(ctx, t, n1).Subnet
	inside := strings.TrimSuffix(subnet, "0/24") + "129/25"
	conf := filepath.Join(n1.CNIDir, "05-other.conf")
	for _, c := range []struct {
		name, breaks, mends string
		code                int
		want, evidence      string
	}{
		{"another configuration is first", `echo '{"name":"other","type":"bridge"}' >` + conf, "rm " + conf, 1, "cni-conf-order", "05-other.conf"},
		{"docker0 in the subnet", "ip link add docker0 type bridge && ip addr add " + inside + " dev docker0", "ip link del docker0", 1, "address-overlap", inside},
		{"flannel's device", "ip link add flannel.9 type vxlan id 9 dstport 8472 && ip link set flannel.9 up", "ip link del flannel.9", 0, "other-overlay", "VNI 9"},
		{"underlay's MTU shrinks", "ip link set eth0 mtu 1400", "ip link set eth0 mtu 1500", 1, "mtu", "eth0 1400"},
		{"a program cannot be run", "chmod -x " + plugins + "/portmap", "chmod +x " + plugins + "/portmap", 1, "cni-plugins", "portmap"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "underlay's MTU shrinks" { // a daemon that runs puts it right within seconds
				if err := n1.Stop(ctx); err != nil {
					t.Fatal(err)
				}
				defer cluster.Start(ctx, t, n1)
			}
			cluster.Exec(ctx, t, n1, "sh", "-ec", c.breaks)
			code, all := doctor(ctx, t, n1, plugins)
			cluster.Exec(ctx, t, n1, "sh", "-ec", c.mends)
			if code != c.code || !has(all, c.want, c.evidence) {
				t.Errorf("exit code %d, want %d and %s with %q, found %v", code, c.code, c.want, c.evidence, bad(all))
			}
		})
	}
	t.Run("a pod's interface is deleted", func(t *testing.T) {
		host := ""
		for _, l := range strings.Fields(cluster.Exec(ctx, t, n1, "ls", "/sys/class/net")) {
			if strings.HasPrefix(l, "ten") && !strings.HasPrefix(l, "tenure") {
				host = l
			}
		}
		cluster.Exec(ctx, t, n1, "ip", "link", "del", host)
		if _, all := doctor(ctx, t, n1, plugins); !has(all, "interface-missing", p.IP.String()) {
			t.Errorf("found %v", bad(all))
		}
	})
}

func has(all []finding, code, evidence string) bool {
	for _, f := range bad(all) {
		if f.Code == code && strings.Contains(f.Evidence, evidence) && f.Fix != "" {
			return true
		}
	}
	return false
}
