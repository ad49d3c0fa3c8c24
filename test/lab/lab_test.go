package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestNodesReachEachOtherAndOutside(t *testing.T) {
	l, ctx := newLab(t, Options{IPv6: true})
	n1, n2 := addNode(ctx, t, l, "n1"), addNode(ctx, t, l, "n2")
	for _, step := range []struct {
		what string
		from Execer
		to   netip.Addr
	}{
		{"node to node", n1, n2.Addr},
		{"node to node, IPv6", n1, n2.Addr6},
		{"node to outside", n2, l.OutsideAddr()},
		{"outside to node", l.Outside, n1.Addr},
	} {
		if err := WaitPing(ctx, step.from, step.to); err != nil {
			t.Errorf("%s: %v", step.what, err)
		}
	}
	// Outside must not know a way to pods, or masquerading would go untested.
	if out, err := l.Outside.Exec(ctx, "ip", "route", "get", "10.5.1.2"); err == nil {
		t.Errorf("outside has a route to the pod network: %s", out)
	}
	if got := readSysctl(t, n1, "ipv4/ip_forward"); got != "0" {
		t.Errorf("a fresh node forwards: ip_forward is %s", got)
	}
}

func readSysctl(t *testing.T, n *Node, key string) string {
	t.Helper()
	var b []byte
	if err := n.Do(func() (err error) {
		b, err = os.ReadFile(filepath.Join("/proc/sys/net", key))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestAddNodeRefusesNames(t *testing.T) {
	l, ctx := newLab(t, Options{})
	addNode(ctx, t, l, "n1")
	for _, name := range []string{"", "lan", "out", "etcd", "etcd2", "p-x", "n1", "thirteen-long", "a.b", "N2"} {
		if _, err := l.AddNode(ctx, name); err == nil {
			t.Errorf("AddNode(%q) was accepted", name)
		}
	}
}

func TestPartitions(t *testing.T) {
	l, ctx := newLab(t, Options{})
	n1, n2 := addNode(ctx, t, l, "n1"), addNode(ctx, t, l, "n2")
	if err := WaitPing(ctx, n1, n2.Addr); err != nil {
		t.Fatal(err)
	}
	for _, how := range []Cut{CutCable, CutLAN} {
		if err := n1.Partition(ctx, how, true); err != nil {
			t.Fatal(err)
		}
		if err := WaitNoPing(ctx, n2, n1.Addr); err != nil {
			t.Errorf("%v: %v", how.word(true), err)
		}
		carrier, err := n1.Exec(ctx, "cat", "/sys/class/net/eth0/carrier")
		if want := pick(how == CutCable, "0", "1"); err != nil || strings.TrimSpace(carrier) != want {
			t.Errorf("%v: carrier %q, %v, want %s", how.word(true), carrier, err, want)
		}
		if err := n1.Partition(ctx, how, false); err != nil {
			t.Fatal(err)
		}
		if err := WaitPing(ctx, n2, n1.Addr); err != nil {
			t.Errorf("%v: %v", how.word(false), err)
		}
	}
}

func TestCutEtcdLeavesOtherTraffic(t *testing.T) {
	l, ctx := newLab(t, Options{})
	store, n1 := addNode(ctx, t, l, "store"), addNode(ctx, t, l, "n1")
	for _, port := range []string{"2379", "80"} {
		serveHello(ctx, t, store.NS, ":"+port)
	}
	hello := func(port string) error {
		ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		return readHello(ctx, n1.NS, store.Addr.String()+":"+port)
	}
	for _, port := range []string{"2379", "80"} {
		if err := Eventually(ctx, "port "+port, func() error { return hello(port) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := n1.Partition(ctx, CutEtcd, true); err != nil {
		t.Fatal(err)
	}
	var silent net.Error
	if err := hello("2379"); !errors.As(err, &silent) || !silent.Timeout() {
		t.Errorf("etcd's port while cut: %v, want silence", err)
	}
	if err := hello("80"); err != nil {
		t.Errorf("another port while cut: %v", err)
	}
	if err := n1.Partition(ctx, CutEtcd, false); err != nil {
		t.Fatal(err)
	}
	if err := Eventually(ctx, "healed", func() error { return hello("2379") }); err != nil {
		t.Error(err)
	}
}

// serveHello answers every connection with a word, until the test ends.
func serveHello(ctx context.Context, t *testing.T, n *NS, address string) {
	t.Helper()
	ln, err := n.Listen(ctx, "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello")
			_ = c.Close()
		}
	}()
}

func readHello(ctx context.Context, n *NS, address string) error {
	c, err := n.Dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	b, err := io.ReadAll(c)
	if err == nil && string(b) != "hello" {
		err = fmt.Errorf("read %q", b)
	}
	return err
}

func TestPingerCountsAGap(t *testing.T) {
	l, ctx := newLab(t, Options{})
	n1, n2 := addNode(ctx, t, l, "n1"), addNode(ctx, t, l, "n2")
	if err := WaitPing(ctx, n1, n2.Addr); err != nil {
		t.Fatal(err)
	}
	p, err := n1.StartPing(n2.Addr, 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if err := n2.Partition(ctx, CutLAN, true); err != nil {
		t.Fatal(err)
	}
	if err := WaitNoPing(ctx, n1, n2.Addr); err != nil { // takes a second
		t.Fatal(err)
	}
	if err := n2.Partition(ctx, CutLAN, false); err != nil {
		t.Fatal(err)
	}
	if err := WaitPing(ctx, n1, n2.Addr); err != nil {
		t.Fatal(err)
	}
	res, err := p.Stop()
	if err != nil {
		t.Fatal(err)
	}
	// On a busy machine the pings, and the wait for none to be answered, take their time.
	if res.Lost() < 10 || res.LongestGap < 400*time.Millisecond || res.Received == 0 {
		t.Errorf("cut for about a second, saw %s", res)
	}
}

func TestReboot(t *testing.T) {
	l, ctx := newLab(t, Options{})
	n1, n2 := addNode(ctx, t, l, "n1"), addNode(ctx, t, l, "n2")
	pod, err := n1.Sandbox(ctx, "a", PodOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for dir, name := range map[string]string{n1.RunDir: "ledger.json", n1.StateDir: "node.json"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := inode(t, n1.Path())
	if err := n1.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if inode(t, n1.Path()) == before {
		t.Error("the namespace is the old one")
	}
	if err := WaitPing(ctx, n2, n1.Addr); err != nil {
		t.Error(err)
	}
	if exists(pod.Path()) || exists(filepath.Join(n1.RunDir, "ledger.json")) {
		t.Error("a pod or a file of the run directory outlived the boot")
	}
	if !exists(filepath.Join(n1.StateDir, "node.json")) {
		t.Error("the state directory did not outlive the boot")
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func TestExecSaysWhatFailed(t *testing.T) {
	l, ctx := newLab(t, Options{})
	_, err := l.Outside.Exec(ctx, "sh", "-c", "echo 'no such luck' >&2; exit 3")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("Exec of a failing program: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := l.Outside.Exec(short, "tail", "-f", "/dev/null"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Exec past its deadline: %v", err)
	}
}

// TestProcessesOutliveTheirThreads would fail if children were started from
// any thread: the parent-death signal follows the thread, not the process.
func TestProcessesOutliveTheirThreads(t *testing.T) {
	l, _ := newLab(t, Options{})
	var procs []*Process
	for range 8 {
		// The goroutine that asks for the process ends on a thread of its own.
		if err := l.Outside.Do(func() error {
			p, err := l.spawn(l.Outside.Name(), filepath.Join(l.Dir(), "tail.log"), "tail", "-f", "/dev/null")
			procs = append(procs, p)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		if err := l.Outside.Do(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range procs {
		select {
		case <-p.Done():
			t.Fatalf("process %d ended: %v", p.Pid(), p.err)
		default:
		}
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	l, ctx := newLab(t, Options{})
	n := addNode(ctx, t, l, "n1")
	p, err := n.Spawn(n.LogFile(), "tail", "-f", "/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if err := group(n, p.Pid()); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", n.RunDir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(unix.SIGSTOP); err != nil { // even a hung one must go
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	expectGone(t, l.ID(), l.Dir(), p.Pid())
	if _, err := l.Outside.Exec(ctx, "true"); err == nil {
		t.Error("a closed lab still runs programs")
	}
	if err := l.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestKeepsAGivenDirectory(t *testing.T) {
	dir := t.TempDir()
	l, ctx := newLab(t, Options{Dir: dir})
	n := addNode(ctx, t, l, "n1")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if !exists(n.StateDir) {
		t.Error("Close removed a directory that it was given")
	}
}

func expectGone(t *testing.T, id, dir string, pid int) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(netnsDir, nsPrefix(id)+"*"))
	if err != nil || len(names) > 0 {
		t.Errorf("namespaces left: %v %v", names, err)
	}
	for _, pattern := range []string{nsPrefix(id) + "*", "*/" + nsPrefix(id) + "*"} {
		if groups, err := filepath.Glob(filepath.Join(cgroupDir, pattern)); err != nil || len(groups) > 0 {
			t.Errorf("control groups left: %v %v", groups, err)
		}
	}
	for _, path := range []string{dir, filepath.Join(registryDir, id)} {
		if exists(path) {
			t.Errorf("%s is left", path)
		}
	}
	if _, err := identify(pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("process %d is left: %v", pid, err)
	}
}

func TestNextLabReapsAKilledOwner(t *testing.T) {
	alive, ctx := newLab(t, Options{})
	id, dir, pid := killOwner(ctx, t)
	if !exists(filepath.Join(registryDir, id)) {
		t.Fatal("the killed owner left no record: nothing to test")
	}
	next, err := New(ctx, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := next.Close(); err != nil {
			t.Error(err)
		}
	}()
	expectGone(t, id, dir, pid)
	if !exists(alive.Outside.Path()) {
		t.Error("a lab with a living owner was removed")
	}
}

// killOwner builds a lab in another process and kills that process.
func killOwner(ctx context.Context, t *testing.T) (id, dir string, pid int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), ownerEnv+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, scanErr := fmt.Fscan(out, &id, &dir, &pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if scanErr != nil {
		t.Fatalf("the owner did not build its lab: %v", scanErr)
	}
	return id, dir, pid
}

func TestDetachedLabOutlivesItsOwnerUntilRemove(t *testing.T) {
	l, ctx := newLab(t, Options{Detached: true})
	n := addNode(ctx, t, l, "n1")
	p, err := l.spawn(n.Name(), n.LogFile(), "tail", "-f", "/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(unix.Signal(0)); err != nil || !exists(n.Path()) {
		t.Errorf("Close of a detached lab ended it: %v", err)
	}
	removed, err := Remove(l.ID())
	if err != nil || len(removed) != 1 || removed[0] != l.ID() {
		t.Errorf("Remove: %v, %v", removed, err)
	}
	expectGone(t, l.ID(), l.Dir(), p.Pid())
}
