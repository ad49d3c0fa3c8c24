package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
)

// firstHost is the last octet of the first node's address.
const firstHost = 11

// Node is one host of the cluster: a namespace on the LAN with directories of
// its own, and at most one tenured in it.
type Node struct {
	*NS
	// Host is the node's name inside the lab, as given to AddNode.
	Host string
	// Addr is its address on the LAN; Addr6 is invalid without Options.IPv6.
	Addr, Addr6 netip.Addr
	// RunDir, StateDir and CNIDir are the node's own; Socket is tenured's.
	RunDir, StateDir, CNIDir, Socket string
	// Program is the tenured that Start runs; empty is that of Options.Bin. Env
	// is added to its environment, each as NAME=value.
	Program string
	Env     []string

	dir    string
	daemon *Process // guarded by lab.mu
}

// AddNode makes a host on the LAN: namespace, eth0 with an address, default
// route, directories and a CNI configuration that points at its socket. No
// daemon runs yet. name has at most 12 letters, digits or dashes.
func (l *Lab) AddNode(ctx context.Context, name string) (*Node, error) {
	if !validHost(name) {
		return nil, fmt.Errorf("add node %q: want 1 to 12 letters, digits or dashes, none of the lab's own names", name)
	}
	n, err := l.register(name)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{n.RunDir, n.StateDir, n.CNIDir, n.varLib()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("add node %s: %w", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(n.CNIDir, "10-tenure.conflist"), n.conflist(), 0o644); err != nil {
		return nil, fmt.Errorf("add node %s: %w", name, err)
	}
	if err := n.plug(ctx); err != nil {
		return nil, fmt.Errorf("add node %s: %w", name, err)
	}
	l.logf("node %s is up: %s, namespace %s", name, n.Addr, n.Name())
	return n, nil
}

func validHost(name string) bool {
	if name == "" || len(name) > 12 || slices.Contains([]string{"lan", "out"}, name) || strings.HasPrefix(name, "etcd") || strings.HasPrefix(name, "p-") {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// register gives the node its number, and so its address.
func (l *Lab) register(name string) (*Node, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	host := firstHost + len(l.nodes)
	if host > 254 || slices.ContainsFunc(l.nodes, func(n *Node) bool { return n.Host == name }) {
		return nil, fmt.Errorf("add node %s: the name is taken, or the LAN is full", name)
	}
	dir := filepath.Join(l.rec.Dir, name)
	n := &Node{
		NS:       &NS{lab: l, name: nsPrefix(l.id) + name},
		Host:     name,
		Addr:     netip.AddrFrom4([4]byte{192, 0, 2, byte(host)}),
		RunDir:   filepath.Join(dir, "run"),
		StateDir: filepath.Join(dir, "state"),
		CNIDir:   filepath.Join(dir, "cni"),
		Socket:   filepath.Join(dir, "run", "tenured.sock"),
		dir:      dir,
	}
	if l.opts.IPv6 {
		a := netip.MustParseAddr("2001:db8:2::").As16()
		a[15] = byte(host)
		n.Addr6 = netip.AddrFrom16(a)
	}
	l.nodes = append(l.nodes, n)
	return n, nil
}

// plug makes the namespace and its cable to the LAN.
func (n *Node) plug(ctx context.Context) error {
	if _, err := n.lab.addNS(ctx, n.Host); err != nil {
		return err
	}
	// A new namespace inherits the machine's IPv4 settings; a node starts with
	// the kernel's own, so that what Tenure needs is what Tenure sets.
	if err := n.sysctl(map[string]string{"ipv4/ip_forward": "0", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0"}); err != nil {
		return err
	}
	port := n.port()
	if err := n.lab.LAN.ip(ctx,
		"link add "+port+" type veth peer name eth0 netns "+n.name,
		"link set "+port+" master lan0 up",
	); err != nil {
		return err
	}
	lines := []string{
		fmt.Sprintf("addr add %s/24 dev eth0", n.Addr),
		"link set eth0 up",
		"route add default via 192.0.2.1",
	}
	if n.Addr6.IsValid() {
		lines = append(lines, fmt.Sprintf("addr add %s/64 dev eth0 nodad", n.Addr6), "route add default via 2001:db8:2::1")
	}
	return n.ip(ctx, lines...)
}

// port is the LAN's end of the node's cable.
func (n *Node) port() string { return "to-" + n.Host }

// varLib stands in for /var/lib while cnitool runs: its cache is compiled in.
func (n *Node) varLib() string { return filepath.Join(n.dir, "var-lib") }

// Start starts tenured with the node's name, directories and uplink, and args
// after them. A flag that args has is not given twice. It waits for nothing;
// an earlier daemon must have ended.
func (n *Node) Start(ctx context.Context, args ...string) error {
	return n.StartUnder(ctx, nil, args...)
}

// StartUnder is Start behind the words of wrapper: a program that becomes
// tenured, as nice(1) does.
func (n *Node) StartUnder(ctx context.Context, wrapper []string, args ...string) error {
	if p := n.Process(); p != nil {
		select {
		case <-p.Done():
		default:
			return fmt.Errorf("start tenured on %s: process %d still runs", n.Host, p.Pid())
		}
	}
	tenured, err := n.lab.tool("tenured")
	if n.Program != "" {
		tenured, err = n.Program, nil
	}
	if err != nil {
		return err
	}
	// Like "ip netns exec", env replaces itself by the program.
	argv := slices.Concat([]string{"env"}, n.Env, wrapper, []string{tenured}, n.flags(args), args)
	p, err := n.lab.spawn(n.name, n.LogFile(), argv...)
	if err != nil {
		return err
	}
	n.lab.mu.Lock()
	n.daemon = p
	n.lab.mu.Unlock()
	n.lab.logf("node %s: tenured %s started, pid %d", n.Host, strings.Join(args, " "), p.Pid())
	return ctx.Err()
}

// flags are the lab's own, less those that args sets.
func (n *Node) flags(args []string) []string {
	n.lab.mu.Lock()
	endpoints := strings.Join(n.lab.endpoints, ",")
	n.lab.mu.Unlock()
	given := func(name string) bool {
		return slices.ContainsFunc(args, func(a string) bool { return a == name || strings.HasPrefix(a, name+"=") })
	}
	own := [][2]string{
		{"--node-name", n.Host},
		{"--run-dir", n.RunDir},
		{"--state-dir", n.StateDir},
		{"--socket", n.Socket},
		{"--metrics-listen", ""},
	}
	if !given("--public-ip") {
		own = append(own, [2]string{"--iface", "eth0"})
	}
	if endpoints != "" && !given("--etcd-embedded") {
		own = append(own, [2]string{"--etcd-endpoints", endpoints})
	}
	var flags []string
	for _, f := range own {
		if !given(f[0]) {
			flags = append(flags, f[0]+"="+f[1])
		}
	}
	return flags
}

// Spawn starts a program on the node that goes on in the background, with what
// it prints in logFile. The lab ends it and its process group at the latest.
func (n *Node) Spawn(logFile string, argv ...string) (*Process, error) {
	return n.lab.spawn(n.name, logFile, argv...)
}

// Dir holds all files of the node.
func (n *Node) Dir() string { return n.dir }

// Cgroup is the control group below which container runtimes on the node put
// theirs. Nobody makes it beforehand; what there is of it, in any hierarchy,
// goes with the lab.
func (n *Node) Cgroup() string { return "/" + n.name }

// Process is the daemon started last, running or not; nil before Start.
func (n *Node) Process() *Process {
	n.lab.mu.Lock()
	defer n.lab.mu.Unlock()
	return n.daemon
}

// Pid is the daemon's process id, 0 before Start.
func (n *Node) Pid() int {
	if p := n.Process(); p != nil {
		return p.Pid()
	}
	return 0
}

// Stop ends the daemon with SIGTERM and expects exit code 0 within 10 s.
func (n *Node) Stop(ctx context.Context) error {
	p := n.Process()
	if p == nil {
		return nil
	}
	if err := p.Stop(ctx); err != nil {
		return fmt.Errorf("stop tenured on %s: %w\n%s", n.Host, err, n.Logs(10))
	}
	return nil
}

// Kill ends the daemon with SIGKILL.
func (n *Node) Kill() {
	if p := n.Process(); p != nil {
		p.Kill()
	}
}

// Signal sends sig (SIGSTOP, SIGCONT ...) to the daemon.
func (n *Node) Signal(sig os.Signal) error {
	p := n.Process()
	if p == nil {
		return fmt.Errorf("signal tenured on %s: never started", n.Host)
	}
	return p.Signal(sig)
}

// Wait waits for the daemon's end; the error is an *exec.ExitError when its
// exit code was not 0.
func (n *Node) Wait(ctx context.Context) error {
	p := n.Process()
	if p == nil {
		return fmt.Errorf("wait for tenured on %s: never started", n.Host)
	}
	return p.Wait(ctx)
}

// Reboot ends everything of the node as a power cut does and brings the host
// up again, without daemon or pods: same address and state directory, new
// namespace, empty run directory.
func (n *Node) Reboot(ctx context.Context) error {
	n.Kill()
	// Held until the new namespace stands: the kernel may give a freed inode
	// number to the next one, and by that number Tenure tells boots apart.
	old, err := os.Open(n.Path())
	if err != nil {
		return fmt.Errorf("power off %s: %w", n.Host, err)
	}
	defer func() { _ = old.Close() }()
	if err := errors.Join(
		deleteNamespaces(n.podPrefix()),
		n.lab.LAN.ip(ctx, "link del "+n.port()),
		deleteNamespace(n.name),
		os.RemoveAll(n.RunDir),
		os.MkdirAll(n.RunDir, 0o755),
	); err != nil {
		return fmt.Errorf("power off %s: %w", n.Host, err)
	}
	if err := n.plug(ctx); err != nil {
		return fmt.Errorf("boot %s: %w", n.Host, err)
	}
	return nil
}

// LogFile is where all daemons of the node write.
func (n *Node) LogFile() string { return filepath.Join(n.dir, "tenured.log") }

// Logs returns the last lines of the daemon's log.
func (n *Node) Logs(lines int) string {
	b, err := os.ReadFile(n.LogFile())
	if err != nil {
		return ""
	}
	all := bytes.Split(bytes.TrimRight(b, "\n"), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

// Status asks the daemon, for at most 2 s.
func (n *Node) Status(ctx context.Context) (*api.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c := api.NewClient(n.Socket)
	return c.Status(ctx)
}

// WaitReady waits until the daemon says that it is ready.
func (n *Node) WaitReady(ctx context.Context) error {
	_, err := n.WaitState(ctx, "ready", func(st *api.Status) bool { return st.Ready })
	return err
}

// WaitState waits until the daemon's status satisfies want and returns it. The
// error holds the last status and the end of the log.
func (n *Node) WaitState(ctx context.Context, what string, want func(*api.Status) bool) (*api.Status, error) {
	var last *api.Status
	err := Eventually(ctx, fmt.Sprintf("node %s %s", n.Host, what), func() error {
		st, err := n.Status(ctx)
		if err != nil {
			return err
		}
		last = st
		if want(st) {
			return nil
		}
		b, err := json.Marshal(st)
		return errors.Join(errors.New(string(b)), err)
	})
	if err != nil {
		return last, fmt.Errorf("%w\nlog of %s:\n%s", err, n.Host, n.Logs(15))
	}
	return last, nil
}
