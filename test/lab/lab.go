package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Options say how a lab is built.
type Options struct {
	// Bin is the directory of tenure, tenure-ipam, tenured and tenurectl, with
	// the helpers (cnitool, portmap, etcdd ...) in Bin/tools. It may be empty
	// for a lab in which none of them is run. See FindBin.
	Bin string
	// Etcd is the path of an etcd of any version, that the members of the store
	// run; empty is the etcdd of Bin/tools.
	Etcd string
	// Dir takes all files of the lab. Empty means a new temporary directory
	// that Close removes; one that is given stays.
	Dir string
	// Log is told what the lab does, a line at a time; nil is silence.
	Log io.Writer
	// IPv6 gives every host an address of 2001:db8:2::/64 too.
	IPv6 bool
	// Detached makes namespaces and daemons outlive the caller until Remove;
	// Close then only lets go.
	Detached bool
}

// Lab is a cluster of namespaces. Its methods may be called from any
// goroutine.
type Lab struct {
	// LAN is the router of the lab with the bridge lan0.
	LAN *NS
	// Outside is a host beyond the router, without a route to any pod.
	Outside *NS
	// Etcd is the store that StartEtcd started, or its first member; nil before.
	Etcd *Etcd

	members []*Etcd
	id      string
	opts    Options
	rec     record
	launch  *launcher

	mu        sync.Mutex
	closed    bool
	procs     map[*Process]struct{}
	nodes     []*Node
	endpoints []string
}

// New removes what labs of dead owners left, then builds the router, the LAN
// and the outside host. ctx bounds the building only. It needs root.
func New(ctx context.Context, opts Options) (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a lab needs root: it is made of network namespaces")
	}
	self, err := identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	rec := record{Owner: self, Boot: bootID(), Detached: opts.Detached, Dir: opts.Dir}
	if rec.Dir == "" {
		rec.OwnDir = true
		if rec.Dir, err = os.MkdirTemp("", "tenure-lab-"); err != nil {
			return nil, fmt.Errorf("make lab directory: %w", err)
		}
	}
	id, err := claim(rec)
	if err != nil {
		return nil, err
	}
	l := &Lab{id: id, opts: opts, rec: rec, launch: newLauncher(), procs: make(map[*Process]struct{})}
	if err := l.build(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("build lab: %w", err), l.remove())
	}
	return l, nil
}

// build makes the namespaces that every lab has.
func (l *Lab) build(ctx context.Context) (err error) {
	if err := os.MkdirAll(l.rec.Dir, 0o755); err != nil {
		return fmt.Errorf("make lab directory: %w", err)
	}
	if l.LAN, err = l.addNS(ctx, "lan"); err != nil {
		return err
	}
	if l.Outside, err = l.addNS(ctx, "out"); err != nil {
		return err
	}
	if err := l.LAN.sysctl(map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1"}); err != nil {
		return err
	}
	if err := l.LAN.ip(ctx, l.lanLines()...); err != nil {
		return err
	}
	if err := l.Outside.ip(ctx, l.outsideLines()...); err != nil {
		return err
	}
	l.logf("lab %s: LAN 192.0.2.0/24, outside host %s, files in %s", l.id, l.OutsideAddr(), l.rec.Dir)
	return nil
}

func (l *Lab) lanLines() []string {
	lines := []string{
		"link add lan0 type bridge stp_state 0 forward_delay 0",
		"addr add 192.0.2.1/24 dev lan0",
		"link set lan0 up",
		"link add to-out type veth peer name eth0 netns " + l.Outside.name,
		"addr add 198.51.100.1/24 dev to-out",
		"link set to-out up",
	}
	if l.opts.IPv6 {
		lines = append(lines, "addr add 2001:db8:2::1/64 dev lan0 nodad", "addr add 2001:db8:100::1/64 dev to-out nodad")
	}
	return lines
}

func (l *Lab) outsideLines() []string {
	lines := []string{
		"addr add 198.51.100.10/24 dev eth0",
		"link set eth0 up",
		"route add 192.0.2.0/24 via 198.51.100.1",
	}
	if l.opts.IPv6 {
		lines = append(lines, "addr add 2001:db8:100::10/64 dev eth0 nodad", "route add 2001:db8:2::/64 via 2001:db8:100::1")
	}
	return lines
}

// ID is the lab's short unique name; its namespaces are called tl<ID>-*.
func (l *Lab) ID() string { return l.id }

// Dir holds all files of the lab.
func (l *Lab) Dir() string { return l.rec.Dir }

// OutsideAddr is the address of the outside host.
func (l *Lab) OutsideAddr() netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, 10}) }

// OutsideAddr6 is its IPv6 address, which it has with Options.IPv6.
func (l *Lab) OutsideAddr6() netip.Addr { return netip.MustParseAddr("2001:db8:100::10") }

// Nodes returns the nodes in the order of AddNode.
func (l *Lab) Nodes() []*Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*Node(nil), l.nodes...)
}

// SetEndpoints says where etcd is; nodes that are started later get it as
// --etcd-endpoints unless told otherwise.
func (l *Lab) SetEndpoints(urls ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endpoints = urls
}

// Close ends every process of the lab and removes its namespaces and files.
// A detached lab is left as it is.
func (l *Lab) Close() error {
	if l.opts.Detached {
		return nil
	}
	return l.remove()
}

func (l *Lab) remove() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	var running []*Process
	for p := range l.procs {
		running = append(running, p)
	}
	l.mu.Unlock()
	for _, p := range running {
		p.killGroup()
	}
	l.launch.close()
	return reap(l.id, l.rec)
}

// Remove ends a detached lab by its id. An empty id means every detached lab;
// the ids of those removed are returned.
func Remove(id string) ([]string, error) {
	ids, err := listLabs()
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	unlock, err := lockRegistry()
	if err != nil {
		return nil, err
	}
	defer unlock()
	var removed []string
	var errs []error
	for _, each := range ids {
		rec, err := readRecord(each)
		if err != nil || !rec.Detached || id != "" && id != each {
			errs = append(errs, err)
			continue
		}
		if err := reap(each, rec); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, each)
	}
	return removed, errors.Join(errs...)
}

// tool is the path of a helper, or of a program of the product.
func (l *Lab) tool(elem ...string) (string, error) {
	if l.opts.Bin == "" {
		return "", fmt.Errorf("run %s: this lab was made without binaries (Options.Bin)", filepath.Join(elem...))
	}
	path := filepath.Join(append([]string{l.opts.Bin}, elem...)...)
	if err := unix.Access(path, unix.X_OK); err != nil {
		return "", fmt.Errorf("run %s: %w (make build tools)", path, err)
	}
	return path, nil
}

// makeNS needs nothing but the name, so it runs outside of any namespace of
// the lab.
func (l *Lab) makeNS(ctx context.Context, name string) error {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "ip", "netns", "add", name)
	cmd.Env, cmd.Stdout, cmd.Stderr = environment(), &stdout, &stderr
	_, err := l.finish(ctx, cmd, &stdout, &stderr)
	return err
}

func (l *Lab) logf(format string, args ...any) {
	if l.opts.Log == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = fmt.Fprintf(l.opts.Log, format+"\n", args...)
}

// FindBin looks for the built programs: $TENURE_BIN, else the directory bin of
// the checkout that the working directory is in.
func FindBin() (string, error) {
	if dir := os.Getenv("TENURE_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find programs: %w", err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "bin"), nil
		}
	}
	return "", errors.New("find programs: not inside a checkout, and TENURE_BIN is not set")
}
