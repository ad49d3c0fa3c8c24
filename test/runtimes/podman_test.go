package runtimes

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
)

// TestPodman has no daemon to restart: containers are restarted, stopped and
// started, and have their network made anew.
func TestPodman(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c, m := born(ctx, t)
	m.startTenured(ctx, t)
	d := newPodman(ctx, t, m)

	p := &pods{t: t, c: c, m: m, engine: d}
	before := p.fill(ctx)

	// Reload is DEL and ADD under one ID, and asks for the same address.
	some := names()[:2]
	for _, name := range some {
		d.must(ctx, t, "network", "reload", name)
	}
	if after := p.full(ctx); !maps.Equal(after, before) {
		t.Errorf("addresses after a reload: %v, before %v", after, before)
	}
	// So are a restart, and a stop with a start behind it, but they ask for none.
	d.must(ctx, t, "restart", "--time=0", some[0])
	d.must(ctx, t, "stop", "--time=0", some[1])
	if used := p.used(ctx); used != podCount-1 {
		t.Errorf("%d addresses in use after one of %d containers was stopped", used, podCount)
	}
	d.must(ctx, t, "start", some[1])
	after := p.full(ctx)
	for _, name := range some {
		if after[name] == before[name] {
			t.Errorf("%s of %s is given out again at once", after[name], name)
		}
	}

	p.empty(ctx)
}

// podman is a runtime without a daemon: each call is a process.
type podman struct {
	m                  *machine
	containers, stores string
}

// newPodman writes podman's configuration and hands it the image.
func newPodman(ctx context.Context, t *testing.T, m *machine) *podman {
	t.Helper()
	d := &podman{m: m, containers: filepath.Join(m.Dir(), "containers.conf"), stores: filepath.Join(m.Dir(), "storage.conf")}
	for path, content := range map[string][]byte{d.containers: d.config(), d.stores: []byte(storage)} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if backend := strings.TrimSpace(d.must(ctx, t, "info", "--format={{.Host.NetworkBackend}}")); backend != "cni" {
		t.Fatalf("podman has the network backend %q: this test wants one that was built with CNI", backend)
	}
	d.must(ctx, t, "load", "--input="+writeImage(t, m.Dir()))
	return d
}

// storage is below what the machine has for itself.
const storage = `[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
`

// config is containers.conf.
func (d *podman) config() []byte {
	return fmt.Appendf(nil, `[network]
network_backend = "cni"
cni_plugin_dirs = [%q]
network_config_dir = %q
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[containers]
log_driver = "k8s-file"
# A test need not have CAP_SYS_RESOURCE, which raising a limit takes.
default_ulimits = []
`, d.m.plugins, d.m.config)
}

// do runs one command of podman.
func (d *podman) do(ctx context.Context, args ...string) (string, error) {
	env := []string{"CONTAINERS_CONF=" + d.containers, "CONTAINERS_STORAGE_CONF=" + d.stores, "TMPDIR=/run", "podman"}
	return d.m.Exec(ctx, "env", append(env, args...)...)
}

func (d *podman) must(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	out, err := d.do(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (d *podman) run(ctx context.Context, name string, publish int) error {
	args := []string{"run", "--detach", "--pull=never", "--network=tenure", "--cgroup-parent=" + d.m.Cgroup(), "--name=" + name, "--hostname=" + name}
	if publish != 0 {
		args = append(args, fmt.Sprintf("--publish=%d:%d", publish, servePort))
	}
	_, err := d.do(ctx, append(args, image, "/bin/sh", "-c", serve)...)
	return err
}

func (d *podman) addrs(ctx context.Context, names ...string) (map[string]netip.Addr, error) {
	out, err := d.do(ctx, append([]string{"inspect", "--format={{.Name}} {{.NetworkSettings.Networks.tenure.IPAddress}}"}, names...)...)
	if err != nil {
		return nil, err
	}
	addrs := map[string]netip.Addr{}
	for line := range strings.Lines(out) {
		name, addr, _ := strings.Cut(strings.TrimSpace(line), " ")
		if addrs[name], err = netip.ParseAddr(addr); err != nil {
			return nil, fmt.Errorf("address of %s: %w", name, err)
		}
	}
	return addrs, nil
}

func (d *podman) exec(ctx context.Context, name string, argv ...string) (string, error) {
	return d.do(ctx, append([]string{"exec", name}, argv...)...)
}

func (d *podman) remove(ctx context.Context, name string) error {
	_, err := d.do(ctx, "rm", "--force", "--time=0", name)
	return err
}
