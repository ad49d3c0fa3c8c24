package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// TestUninstallBesideContainer: a daemon that a runtime would start anew is left
// alone with all that it has. The container is its control group here, which is
// all that can be seen of one from outside.
func TestUninstallBesideContainer(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	conflist := filepath.Join(n.CNIDir, "10-tenure.conflist")
	if err := n.Start(ctx, "--cni-conf-file="+conflist); err != nil {
		t.Fatal(err)
	}
	cluster.WaitState(ctx, t, n, api.StateHeld)
	cluster.Eventually(ctx, t, 10*time.Second, "the configuration is there", func() error { _, err := os.Stat(conflist); return err })

	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
		root = filepath.Join(root, "freezer") // version 1
	}
	id := strings.Repeat("0a", 32)
	group := filepath.Join(root, n.Cgroup(), id)
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(n.Pid())), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"uninstall", "--config=", "--keep-programs", "--run-dir=" + n.RunDir, "--state-dir=" + n.StateDir, "--cni-conf-dir=" + n.CNIDir}
	r := cluster.Run(ctx, t, n, "tenurectl", args...)
	if r.Code != 1 || !strings.Contains(r.Said, "DaemonSet") || !strings.Contains(r.Said, id) {
		t.Errorf("beside a container: %s", r)
	}
	if _, err := os.Stat(conflist); err != nil {
		t.Error(err)
	}
	if s := cluster.Status(ctx, t, n); s.State != api.StateHeld {
		t.Errorf("the daemon is %s", s.State)
	}

	// Once it is gone there is nobody to give the subnet up.
	if err := n.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if r := cluster.Run(ctx, t, n, "tenurectl", args...); r.Code != 0 || !strings.Contains(r.Out, "tenurectl release NODE --force") {
		t.Errorf("without a daemon: %s", r)
	}
	if _, err := os.Stat(conflist); err == nil {
		t.Errorf("%s is left", conflist)
	}
}
