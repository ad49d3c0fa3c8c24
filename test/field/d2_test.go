package field

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestD2 is cni #1167, kubernetes #45334 and plugins #210: a DEL whose network
// namespace is empty or has vanished returns early and leaks the address.
// Right is: DEL needs no namespace. It succeeds with an empty path, with one
// that is gone and with one that is no namespace, the first time and the
// second, and after the first the address, the host's end of the veth and the
// record are gone.
func TestD2(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, netns := range map[string]func(*lab.Pod) string{
		"empty": func(*lab.Pod) string { return "" },
		"gone": func(p *lab.Pod) string {
			if err := p.Vanish(); err != nil {
				t.Fatal(err)
			}
			return p.Path()
		},
		"no-ns": func(*lab.Pod) string { return file },
	} {
		t.Run(name, func(t *testing.T) {
			pod := cluster.Pod(ctx, t, n, name)
			host := pod.Result.Interfaces[1].Name
			call := cluster.CallFor("DEL", pod, "eth0")
			call.Netns = netns(pod)
			for _, time := range []string{"first", "second"} {
				if a := cluster.Call(ctx, t, n, call); a.Exit != 0 || len(a.Stdout) != 0 {
					t.Errorf("the %s DEL: exit code %d, %s", time, a.Exit, a.Stdout)
				}
				used(ctx, t, n, 0)
				if _, err := cluster.FindLink(ctx, n, host); err == nil {
					t.Errorf("after the %s DEL %s is still there", time, host)
				}
				check := cluster.CallFor("CHECK", pod, "eth0")
				if a := cluster.Call(ctx, t, n, check); a.Exit == 0 {
					t.Errorf("after the %s DEL there is still a record", time)
				}
			}
		})
	}
}
