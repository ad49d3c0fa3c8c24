package field

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestP13 is moby #47966, openshift/origin #9931 and flannel #2068: a network
// restart or a hardening job resets ip_forward, or br_netfilter is not loaded,
// and nobody says a word. Right is: routing is on again within 10 s, for the
// host and for each device, under load; where it cannot be written, the status
// says so; and the preflight names each setting with its value.
func TestP13(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	flow := cluster.StartFlow(ctx, t, p1.NS, p2.NS, p2.IP)
	flow.Runs(ctx, t)
	devices := []string{cluster.Bridge, cluster.Overlay, "eth0"}

	t.Run("routing off", func(t *testing.T) {
		for _, paths := range [][]string{{ipForward}, {forwarding(cluster.Bridge), forwarding(cluster.Overlay), forwarding("eth0")}} {
			for _, path := range paths {
				set(ctx, t, n1, path, "0")
			}
			cluster.Eventually(ctx, t, repairTime, fmt.Sprintf("routing is on again after %v", paths), func() error {
				return routes(ctx, n1, devices...)
			})
			flow.Runs(ctx, t)
		}
	})

	t.Run("bridge-netfilter off", func(t *testing.T) {
		const path = "net/bridge/bridge-nf-call-iptables"
		set(ctx, t, n1, path, "0")
		mustFind(ctx, t, n1, nil, "INFO bridge-netfilter", path+" = 0")
		cluster.Exec(ctx, t, n1, "iptables", "-w", "-t", "nat", "-N", "KUBE-SERVICES")
		mustFind(ctx, t, n1, nil, "WARNING bridge-netfilter", path+" = 0")
		set(ctx, t, n1, path, "1")
		mustFind(ctx, t, n1, nil, "ok bridge-netfilter", path+" = 1")
	})

	t.Run("read-only", func(t *testing.T) {
		sealed := []string{"unshare", "-m", "sh", "-ec", `mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec "$@"`, "sh"}
		stop(ctx, t, n1)
		set(ctx, t, n1, ipForward, "0")
		if err := n1.StartUnder(ctx, sealed); err != nil {
			t.Fatal(err)
		}
		s := cluster.Wait(ctx, t, n1, "says that it cannot turn routing on", func(s *api.Status) bool {
			return s.State == api.StateHeld && cluster.HasProblem(s, "data-plane")
		})
		for _, part := range []string{ipForward, "read-only"} {
			if text := fmt.Sprint(s.Problems); !strings.Contains(text, part) {
				t.Errorf("the problems do not say %q: %s", part, text)
			}
		}
		mustFind(ctx, t, n1, sealed, "ERROR read-only-sysctls", "/proc/sys")
		mustFind(ctx, t, n1, sealed, "ERROR forwarding", ipForward+" = 0")
		stop(ctx, t, n1)
		cluster.Start(ctx, t, n1)
		cluster.Eventually(ctx, t, repairTime, "routing is on", func() error { return routes(ctx, n1, devices...) })
		talks(ctx, t, p1, p2)
	})
}

const ipForward = "net/ipv4/ip_forward"

func forwarding(device string) string { return "net/ipv4/conf/" + device + "/forwarding" }

// set writes a value below /proc/sys.
func set(ctx context.Context, t *testing.T, n lab.Execer, path, value string) {
	t.Helper()
	cluster.Exec(ctx, t, n, "sh", "-c", "echo "+value+" >/proc/sys/"+path)
}

// routes is nil while the node and each of its devices routes.
func routes(ctx context.Context, n lab.Execer, devices ...string) error {
	paths := []string{ipForward}
	for _, d := range devices {
		paths = append(paths, forwarding(d))
	}
	for _, path := range paths {
		if out, err := n.Exec(ctx, "cat", "/proc/sys/"+path); err != nil || strings.TrimSpace(out) != "1" {
			return fmt.Errorf("%s is %q: %w", path, out, err)
		}
	}
	return nil
}

// consult runs tenurectl doctor on the node, behind the words of wrapper, and
// returns its exit code with each finding as a line of its own.
func consult(ctx context.Context, t *testing.T, n *lab.Node, wrapper []string) (int, []string) {
	t.Helper()
	r := cluster.RunEnv(ctx, t, n, wrapper, "tenurectl", "doctor", "--socket="+n.Socket, "--run-dir="+n.RunDir,
		"--state-dir="+n.StateDir, "--cni-conf-dir="+n.CNIDir, "--cni-bin-dir="+binDir(t))
	var all []string
	for line := range strings.Lines(r.Out) {
		if strings.HasPrefix(line, " ") && len(all) > 0 {
			all[len(all)-1] += " " + strings.TrimSpace(line)
			continue
		}
		all = append(all, strings.Join(strings.Fields(line), " "))
	}
	if len(all) < 10 {
		t.Fatalf("doctor has little to say: %s", r)
	}
	return r.Code, all
}

// mustFind makes sure that the doctor finds something, with that in its text
// or evidence.
func mustFind(ctx context.Context, t *testing.T, n *lab.Node, wrapper []string, finding, part string) {
	t.Helper()
	code, all := consult(ctx, t, n, wrapper)
	for _, line := range all {
		if strings.HasPrefix(line, finding+" ") && strings.Contains(line, part) {
			if strings.HasPrefix(finding, "ERROR") && code != 1 {
				t.Errorf("exit code %d with %s", code, line)
			}
			return
		}
	}
	t.Errorf("exit code %d, nothing is %q with %q in\n%s", code, finding, part, strings.Join(all, "\n"))
}

func binDir(t *testing.T) string {
	t.Helper()
	bin, err := lab.FindBin()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}
