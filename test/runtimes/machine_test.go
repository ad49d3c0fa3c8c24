package runtimes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// machine is a node that a container runtime can have for itself.
type machine struct {
	*lab.Node
	// plugins is the directory of CNI plugins, config that of conflists; both
	// are the machine's own. conflist is the file that tenured writes.
	plugins, config, conflist string

	first *lab.Process
}

// newMachine makes a machine of a node; it ends with the test.
func newMachine(ctx context.Context, t *testing.T, n *lab.Node) *machine {
	t.Helper()
	config := filepath.Join(n.Dir(), "net.d")
	m := &machine{Node: n, plugins: filepath.Join(n.Dir(), "plugins"), config: config, conflist: filepath.Join(config, "10-tenure.conflist")}
	m.installPlugins(t)
	// A runtime watches the directory from its start.
	if err := os.Mkdir(m.config, 0o755); err != nil {
		t.Fatal(err)
	}
	m.boot(ctx, t)
	return m
}

// installPlugins is what an administrator does: one directory with all.
func (m *machine) installPlugins(t *testing.T) {
	t.Helper()
	bin, err := lab.FindBin()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(m.plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, plugin := range []string{"tenure", "tools/portmap", "tools/loopback"} {
		program := filepath.Join(bin, plugin)
		if _, err := os.Stat(program); err != nil {
			t.Fatalf("%v (make build tools)", err)
		}
		if err := os.Symlink(program, filepath.Join(m.plugins, filepath.Base(plugin))); err != nil {
			t.Fatal(err)
		}
	}
}

// boot starts the machine's first process. Shims and monitors of containers
// leave every process group, but the kernel ends them with the first process of
// their process namespace; and unshare ends that one with itself.
func (m *machine) boot(ctx context.Context, t *testing.T) {
	t.Helper()
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	const ready = "machine is up"
	log := filepath.Join(m.Dir(), "machine.log")
	script := strings.Join(append(mounts(groups), "echo "+ready, "while :; do sleep 60; done"), "\n")
	m.first, err = m.Spawn(log, "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc",
		"--propagation=private", "sh", "-ec", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.end(t) })
	cluster.Eventually(ctx, t, 10*time.Second, m.Host+" up", func() error {
		b, err := os.ReadFile(log)
		if err == nil && !bytes.Contains(b, []byte(ready)) {
			err = fmt.Errorf("said %q", b)
		}
		return err
	})
}

// mounts are the commands that give the machine directories of its own where
// runtimes and plugins have fixed paths. The lab has mounted a /sys of the
// node's network, which hides the control groups; groups is /proc/self/cgroup,
// which lists those that the kernel has.
func mounts(groups []byte) []string {
	all := []string{
		"hostname machine",
		"umount --recursive --lazy /run/netns || true", // a runtime would find it below the next one
		"mount -t tmpfs tmpfs /run",
		"mkdir -p /run/netns /run/lock",
		"mount -t tmpfs tmpfs /var/lib",
		"mount -t tmpfs tmpfs /dev/shm",
	}
	var first []string // version 1: a mount for each set of controllers
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 || fields[1] == "" {
			continue
		}
		dir := "/sys/fs/cgroup/" + strings.TrimPrefix(fields[1], "name=")
		options := fields[1]
		if strings.HasPrefix(options, "name=") {
			options = "none," + options
		}
		first = append(first, "mkdir "+dir, "mount -t cgroup -o "+options+" cgroup "+dir)
	}
	if len(first) == 0 {
		return append(all, "mount -t cgroup2 cgroup2 /sys/fs/cgroup")
	}
	return append(append(all, "mount -t tmpfs tmpfs /sys/fs/cgroup"), first...)
}

// end ends every process of the machine, and waits for the last.
func (m *machine) end(t *testing.T) {
	if t.Failed() {
		m.showLogs(t)
	}
	// Held open, so that no other namespace gets its number meanwhile.
	namespace, err := os.Open(m.proc("ns/pid_for_children"))
	if err != nil {
		t.Errorf("the machine has ended by itself: %v", err)
		return
	}
	defer func() { _ = namespace.Close() }()
	id, err := os.Readlink(m.proc("ns/pid_for_children"))
	if err != nil {
		t.Error(err)
	}
	m.first.Kill()
	ctx := cluster.Context(t, 10*time.Second)
	if err := lab.Eventually(ctx, "processes of the machine gone", func() error { return nobodyIn(id) }); err != nil {
		t.Error(err)
	}
}

// nobodyIn is an error while a process is in that process namespace.
func nobodyIn(id string) error {
	all, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	if err != nil {
		return err
	}
	for _, path := range all {
		at, err := os.Readlink(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if at == id {
			return fmt.Errorf("%s is still there", filepath.Dir(filepath.Dir(path)))
		}
	}
	return nil
}

func (m *machine) showLogs(t *testing.T) {
	logs, err := filepath.Glob(filepath.Join(m.Dir(), "*.log"))
	if err != nil {
		t.Error(err)
	}
	for _, log := range logs {
		if b, err := os.ReadFile(log); err == nil && log != m.LogFile() {
			t.Logf("end of %s:\n%s", filepath.Base(log), b[max(0, len(b)-4000):])
		}
	}
}

func (m *machine) proc(name string) string {
	return filepath.Join("/proc", strconv.Itoa(m.first.Pid()), name)
}

// inside makes argv run on the machine. The program is a child of nsenter,
// in its process group.
func (m *machine) inside(argv ...string) []string {
	enter := []string{"nsenter", "--mount=" + m.proc("ns/mnt"), "--uts=" + m.proc("ns/uts"), "--ipc=" + m.proc("ns/ipc"), "--pid=" + m.proc("ns/pid_for_children"), "--wd=/"}
	return append(enter, argv...)
}

// Exec runs a program on the machine and returns its standard output.
func (m *machine) Exec(ctx context.Context, name string, args ...string) (string, error) {
	argv := m.inside(append([]string{name}, args...)...)
	return m.NS.Exec(ctx, argv[0], argv[1:]...)
}

// startTenured starts the daemon where the runtime's namespaces can be seen,
// and waits for the conflist.
func (m *machine) startTenured(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := m.StartUnder(ctx, m.inside(), "--cni-conf-file="+m.conflist); err != nil {
		t.Fatal(err)
	}
	if err := m.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(ctx, t, 10*time.Second, "conflist written", func() error {
		_, err := os.Stat(m.conflist)
		return err
	})
}
