package field

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// TestQ1 is kubespray #2122, calico #1388, flannel #1437 and others: another
// plugin's configuration sorts first, and pods get addresses of a foreign range,
// twice in the cluster. Right is: the status names the winner, while it is
// first; a file that an earlier version left under another number or extension
// is removed; a foreign one is never touched.
func TestQ1(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	dir := filepath.Join(n.Dir(), "net.d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ours := read(t, filepath.Join(n.CNIDir, "10-tenure.conflist"))
	foreign := map[string]string{
		"05-other.conf":      `{"cniVersion":"0.4.0","name":"other","type":"bridge"}`,
		"20-mine.conflist":   string(ours),
		"30-tenure.conf":     `{"cniVersion":"0.4.0","name":"tenure","type":"bridge"}`,
		"40-tenure.conflist": `{"name":"b","plugins":[{"type":"tenure","tenure":{"socket":"/run/b/tenured.sock"}}]}`,
	}
	put := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range foreign {
		put(name, content)
	}
	put("10-tenure.conf", string(ours))
	put("99-tenure.json", string(ours))
	if err := n.Start(ctx, "--cni-conf-file="+filepath.Join(dir, "10-tenure.conflist")); err != nil {
		t.Fatal(err)
	}
	s := cluster.Wait(ctx, t, n, "names the winner", func(s *api.Status) bool {
		return s.State == api.StateHeld && cluster.HasProblem(s, "not-active-network")
	})
	for _, p := range s.Problems {
		if p.Code == "not-active-network" && (p.Severity != api.SeverityWarning || !strings.Contains(p.Text, "05-other.conf") || !strings.Contains(p.Text, `"other"`)) {
			t.Errorf("the problem does not say who: %v", p)
		}
	}
	if !s.Ready {
		t.Error("the node is not ready for it: a configuration may be meant to be first")
	}
	for name, content := range foreign {
		if got := string(read(t, filepath.Join(dir, name))); got != content {
			t.Errorf("%s has been changed to %q", name, got)
		}
	}
	cluster.Eventually(ctx, t, 5*time.Second, "own old files are gone", func() error {
		for _, name := range []string{"10-tenure.conf", "99-tenure.json"} {
			if _, err := os.Stat(filepath.Join(dir, name)); !os.IsNotExist(err) {
				return fmt.Errorf("%s is there", name)
			}
		}
		return nil
	})
	if err := os.Remove(filepath.Join(dir, "05-other.conf")); err != nil {
		t.Fatal(err)
	}
	cluster.Wait(ctx, t, n, "is the active network", func(s *api.Status) bool { return !cluster.HasProblem(s, "not-active-network") })
}
