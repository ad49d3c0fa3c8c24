package runtimes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestContainerd is a node of Kubernetes without the kubelet: what that would
// ask of containerd, the test asks.
func TestContainerd(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c, m := born(ctx, t)
	d := newContainerd(ctx, t, m)
	d.networkReady(ctx, t, false)
	m.startTenured(ctx, t)
	d.networkReady(ctx, t, true)

	p := &pods{t: t, c: c, m: m, engine: d}
	before := p.fill(ctx)

	// A crash of the runtime is nothing to the pods, and no pod is added anew.
	d.kill(ctx, t)
	p.published(ctx, names()[0])
	d.start(ctx, t)
	d.networkReady(ctx, t, true)
	if after := p.full(ctx); !maps.Equal(after, before) {
		t.Errorf("addresses after a restart of containerd: %v, before %v", after, before)
	}
	again := names()[1]
	if err := d.remove(ctx, again); err != nil {
		t.Fatal(err)
	}
	if err := d.run(ctx, again, 0); err != nil {
		t.Fatal(err)
	}
	if after := p.full(ctx); after[again] == before[again] {
		t.Errorf("%s is given out again at once", after[again])
	}

	p.empty(ctx)
}

// sandbox is a pod as CRI knows it: the sandbox that has the network, and one
// container in it.
type sandbox struct {
	id, container string
	config        *cri.PodSandboxConfig
}

// containerd is a runtime that CRI speaks to.
type containerd struct {
	m                   *machine
	config, socket, pid string
	process             *lab.Process
	cri                 cri.RuntimeServiceClient

	mu   sync.Mutex
	pods map[string]sandbox
}

// newContainerd starts containerd and hands it the image.
func newContainerd(ctx context.Context, t *testing.T, m *machine) *containerd {
	t.Helper()
	dir := m.Dir()
	d := &containerd{m: m, config: filepath.Join(dir, "containerd.toml"), socket: filepath.Join(dir, "containerd.sock"),
		pid: filepath.Join(dir, "containerd.pid"), pods: map[string]sandbox{}}
	if err := os.WriteFile(d.config, d.toml(), 0o644); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+d.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	d.cri = cri.NewRuntimeServiceClient(conn)
	d.start(ctx, t)
	d.load(ctx, t, writeImage(t, dir))
	return d
}

// load hands containerd an image archive.
func (d *containerd) load(ctx context.Context, t *testing.T, archive string) {
	t.Helper()
	cluster.Exec(ctx, t, d.m, "ctr", "--address="+d.socket, "--namespace=k8s.io", "images", "import", archive)
}

// toml is the configuration. All else of containerd is where it is by default,
// which is the machine's own.
func (d *containerd) toml() []byte {
	const plugin = `plugins."io.containerd.grpc.v1.cri"`
	return fmt.Appendf(nil, `version = 2
[grpc]
  address = %q
[%s]
  sandbox_image = %q
  disable_apparmor = true
  # A test need not have CAP_SYS_RESOURCE, which lowering an OOM score takes.
  restrict_oom_score_adj = true
[%[2]s.cni]
  bin_dir = %[4]q
  conf_dir = %[5]q
[%[2]s.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[%[2]s.containerd.runtimes.runc.options]
  SystemdCgroup = false
`, d.socket, plugin, image, d.m.plugins, d.m.config)
}

// start starts containerd and waits until it answers.
func (d *containerd) start(ctx context.Context, t *testing.T) {
	t.Helper()
	// The shell writes the number that it has on the machine, and becomes
	// containerd.
	argv := d.m.inside("sh", "-c", `echo $$ > "$0" && exec containerd --config "$1"`, d.pid, d.config)
	var err error
	if d.process, err = d.m.Spawn(filepath.Join(d.m.Dir(), "containerd.log"), argv...); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(ctx, t, 20*time.Second, "containerd answers", func() error {
		_, err := d.status(ctx)
		return err
	})
}

// kill ends containerd as a crash does. Its shims go on.
func (d *containerd) kill(ctx context.Context, t *testing.T) {
	t.Helper()
	pid, err := os.ReadFile(d.pid)
	if err != nil {
		t.Fatal(err)
	}
	cluster.Exec(ctx, t, d.m, "kill", "-KILL", strings.TrimSpace(string(pid)))
	if err := d.process.Wait(ctx); ctx.Err() != nil {
		t.Fatal(err)
	}
}

func (d *containerd) status(ctx context.Context) (*cri.RuntimeStatus, error) {
	// A connection that is made anew is waited for less long.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := d.cri.Status(ctx, &cri.StatusRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	return r.Status, nil
}

// networkReady waits until containerd says so, or that it is not; that is what
// makes a node of Kubernetes Ready.
func (d *containerd) networkReady(ctx context.Context, t *testing.T, want bool) {
	t.Helper()
	cluster.Eventually(ctx, t, 15*time.Second, fmt.Sprintf("%s is %t", cri.NetworkReady, want), func() error {
		s, err := d.status(ctx)
		if err != nil {
			return err
		}
		for _, condition := range s.Conditions {
			if condition.Type == cri.NetworkReady && condition.Status == want {
				return nil
			}
		}
		return fmt.Errorf("%v", s.Conditions)
	})
}

func (d *containerd) pod(name string) sandbox {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pods[name]
}

func (d *containerd) run(ctx context.Context, name string, publish int) error {
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Hostname: name,
		Linux:    &cri.LinuxPodSandboxConfig{CgroupParent: d.m.Cgroup()},
	}
	if publish != 0 {
		config.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, HostPort: int32(publish), ContainerPort: servePort}}
	}
	box, err := d.cri.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return err
	}
	made, err := d.cri.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: box.PodSandboxId, SandboxConfig: config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: image},
			Command: []string{"/bin/sh", "-c", serve},
			Linux:   &cri.LinuxContainerConfig{},
		},
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.pods[name] = sandbox{id: box.PodSandboxId, container: made.ContainerId, config: config}
	d.mu.Unlock()
	_, err = d.cri.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: made.ContainerId})
	return err
}

func (d *containerd) addrs(ctx context.Context, names ...string) (map[string]netip.Addr, error) {
	addrs := map[string]netip.Addr{}
	for _, name := range names {
		r, err := d.cri.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: d.pod(name).id})
		if err != nil {
			return nil, err
		}
		if r.Status.State != cri.PodSandboxState_SANDBOX_READY {
			return nil, fmt.Errorf("%s is %s", name, r.Status.State)
		}
		if addrs[name], err = netip.ParseAddr(r.Status.GetNetwork().GetIp()); err != nil {
			return nil, fmt.Errorf("address of %s: %w", name, err)
		}
	}
	return addrs, nil
}

func (d *containerd) exec(ctx context.Context, name string, argv ...string) (string, error) {
	r, err := d.cri.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: d.pod(name).container, Cmd: argv, Timeout: 10})
	if err != nil {
		return "", err
	}
	if r.ExitCode != 0 {
		err = fmt.Errorf("%s in %s: exit code %d: %s", argv[0], name, r.ExitCode, r.Stderr)
	}
	return string(r.Stdout), err
}

func (d *containerd) remove(ctx context.Context, name string) error {
	id := d.pod(name).id
	_, err := d.cri.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
	if err == nil {
		_, err = d.cri.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	}
	if err != nil {
		return errors.Join(err, ctx.Err())
	}
	return nil
}
