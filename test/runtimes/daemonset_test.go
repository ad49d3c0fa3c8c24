package runtimes

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// daemonImage is Tenure's own, as its Dockerfile makes it.
const daemonImage = "tenure.test/tenure:1"

// TestDaemonSet runs tenured in a pod, as conf/kubernetes/daemonset.yaml has it:
// in the node's network and process namespaces, privileged, with the node's
// directories. An init container puts the plugins onto the node. Pods that start
// later have their network, keep it while the daemon's container is replaced, and
// go without a trace.
func TestDaemonSet(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c, m := born(ctx, t)
	// The sandboxes' namespaces are mounts that come after the daemon's start.
	cluster.Exec(ctx, t, m, "sh", "-ec", "mount --bind /run/netns /run/netns; mount --make-rshared /run/netns")
	d := newContainerd(ctx, t, m)
	d.load(ctx, t, writeOCI(t, filepath.Join(m.Dir(), "tenure.tar"), daemonImage, tenureFS(t), object{"Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}}))
	if err := os.Remove(filepath.Join(m.plugins, "tenure")); err != nil {
		t.Fatal(err)
	}

	s := newDaemonSet(ctx, t, d)
	plugins := s.container(ctx, t, "plugins", []string{"/usr/local/bin/tenurectl", "install", "--plugins-only", "--root=/host"},
		&cri.Mount{HostPath: m.plugins, ContainerPath: "/host/opt/cni/bin"})
	s.ends(ctx, t, plugins)
	if info, err := os.Lstat(filepath.Join(m.plugins, "tenure")); err != nil || !info.Mode().IsRegular() {
		t.Fatalf("the plugin is not on the node: %v", err)
	}
	daemon := s.tenured(ctx, t, c)

	names := []string{"a", "b"}
	for _, name := range names {
		if err := d.run(ctx, name, 0); err != nil {
			t.Fatal(err)
		}
	}
	addrs, err := d.addrs(ctx, names...)
	if err != nil {
		t.Fatal(err)
	}
	reach := func(when string) {
		t.Helper()
		cluster.Eventually(ctx, t, 10*time.Second, "a reaches b "+when, func() error {
			got, err := d.exec(ctx, "a", "wget", "-q", "-O", "-", fmt.Sprintf("http://%s:%d/index.html", addrs["b"], servePort))
			if err == nil && strings.TrimSpace(got) != "b" {
				err = fmt.Errorf("b says %q", got)
			}
			return err
		})
	}
	reach("at first")
	if _, err := d.cri.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: daemon, Timeout: 10}); err != nil {
		t.Fatal(err)
	}
	reach("without a daemon")
	s.tenured(ctx, t, c)
	reach("with another")
	for _, name := range names {
		if err := d.remove(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Eventually(ctx, t, 10*time.Second, "nothing is left of the pods", func() error {
		if used := cluster.Status(ctx, t, m.Node).Addresses.Used; used != 0 {
			return fmt.Errorf("%d addresses are used", used)
		}
		return nil
	})
}

// daemonSet is the pod that tenured runs in.
type daemonSet struct {
	d      *containerd
	id     string
	config *cri.PodSandboxConfig
}

func newDaemonSet(ctx context.Context, t *testing.T, d *containerd) *daemonSet {
	t.Helper()
	s := &daemonSet{d: d, config: &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: "tenure", Namespace: "kube-system", Uid: "uid-tenure"},
		LogDirectory: d.m.Dir(),
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: d.m.Cgroup(), SecurityContext: &cri.LinuxSandboxSecurityContext{
			Privileged: true, NamespaceOptions: ofTheNode(),
		}},
	}}
	box, err := d.cri.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: s.config})
	if err != nil {
		t.Fatal(err)
	}
	s.id = box.PodSandboxId
	return s
}

func ofTheNode() *cri.NamespaceOption {
	return &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_NODE}
}

// container starts one in the pod.
func (s *daemonSet) container(ctx context.Context, t *testing.T, name string, command []string, mounts ...*cri.Mount) string {
	t.Helper()
	made, err := s.d.cri.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: s.id, SandboxConfig: s.config, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name, Attempt: uint32(time.Now().UnixNano())}, Image: &cri.ImageSpec{Image: daemonImage},
		Command: command, Mounts: mounts, LogPath: name + ".log",
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{Privileged: true, NamespaceOptions: ofTheNode()}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.d.cri.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: made.ContainerId}); err != nil {
		t.Fatal(err)
	}
	return made.ContainerId
}

// ends waits for the end of an init container, which has to be a good one.
func (s *daemonSet) ends(ctx context.Context, t *testing.T, id string) {
	t.Helper()
	cluster.Eventually(ctx, t, 20*time.Second, "the init container ends", func() error {
		r, err := s.d.cri.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return err
		}
		if r.Status.State != cri.ContainerState_CONTAINER_EXITED {
			return errors.New(r.Status.State.String())
		}
		if r.Status.ExitCode != 0 {
			b, _ := os.ReadFile(filepath.Join(s.d.m.Dir(), "plugins.log"))
			t.Fatalf("exit code %d: %s", r.Status.ExitCode, b)
		}
		return nil
	})
}

// tenured starts the daemon's container and waits until a pod could be added.
func (s *daemonSet) tenured(ctx context.Context, t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	m := s.d.m
	same := func(dir string) *cri.Mount { return &cri.Mount{HostPath: dir, ContainerPath: dir} }
	netns := same("/run/netns")
	netns.Propagation = cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	for _, dir := range []string{m.RunDir, m.StateDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	id := s.container(ctx, t, "tenured", []string{"/usr/local/bin/tenured", "--node-name=" + m.Host, "--iface=eth0", "--etcd-endpoints=" + c.Etcd.URL(),
		"--run-dir=" + m.RunDir, "--state-dir=" + m.StateDir, "--socket=" + m.Socket, "--metrics-listen=", "--cni-conf-file=" + m.conflist},
		same(m.RunDir), same(m.StateDir), same(m.config), netns)
	if err := m.WaitReady(ctx); err != nil {
		b, _ := os.ReadFile(filepath.Join(m.Dir(), "tenured.log"))
		t.Fatalf("%v\n%s", err, b)
	}
	return id
}

// tenureFS is what the Dockerfile puts together: iptables with its libraries, as
// the system has them, and the four programs.
func tenureFS(t *testing.T) []byte {
	t.Helper()
	bin, err := lab.FindBin()
	if err != nil {
		t.Fatal(err)
	}
	fs := newArchive()
	for _, dir := range []string{"etc/", "proc/", "sys/", "dev/", "run/", "tmp/", "var/", "var/lib/", "usr/", "usr/sbin/", "usr/local/", "usr/local/bin/"} {
		fs.add(t, tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	fs.add(t, tar.Header{Name: "var/run", Typeflag: tar.TypeSymlink, Linkname: "/run", Mode: 0o777}, nil) // as Debian's
	for _, program := range []string{"tenure", "tenure-ipam", "tenured", "tenurectl"} {
		fs.copy(t, filepath.Join(bin, program), "usr/local/bin/"+program)
	}
	iptables, err := exec.LookPath("iptables-nft")
	if err != nil {
		t.Fatal(err)
	}
	multi, err := filepath.EvalSymlinks(iptables)
	if err != nil {
		t.Fatal(err)
	}
	fs.copy(t, multi, "usr/sbin/xtables-nft-multi")
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore"} {
		fs.add(t, tar.Header{Name: "usr/sbin/" + name, Typeflag: tar.TypeSymlink, Linkname: "xtables-nft-multi", Mode: 0o777}, nil)
	}
	out, err := exec.Command("ldd", multi).Output()
	if err != nil {
		t.Fatalf("ldd %s: %v", multi, err)
	}
	lib := ""
	for _, path := range regexp.MustCompile(`/\S+`).FindAllString(string(out), -1) {
		fs.copy(t, path, strings.TrimPrefix(path, "/"))
		if strings.Contains(path, "libxtables") {
			lib, _ = filepath.EvalSymlinks(path)
		}
	}
	extensions, err := filepath.Glob(filepath.Join(filepath.Dir(lib), "xtables", "*.so"))
	if err != nil || len(extensions) == 0 {
		t.Fatalf("no extensions of iptables beside %s: %v", lib, err)
	}
	for _, path := range extensions {
		fs.copy(t, path, strings.TrimPrefix(path, "/"))
	}
	return fs.bytes(t)
}

// copy takes a file of the system over.
func (a *archive) copy(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	a.file(t, to, b)
}
