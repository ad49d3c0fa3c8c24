package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/tenure-cni/tenure/test/packaged"
)

// Etcd is one member of the store, on a host of its own on the LAN. Of a store
// with one member it is all there is.
type Etcd struct {
	*NS
	// Addr is the host's address on the LAN: 192.0.2.2 and up.
	Addr netip.Addr

	host    string // also the member's name
	dir     string
	cluster string // all members, as etcd wants them listed
	life    int    // token of the cluster: each makes another cluster ID
	joins   bool   // it came to members that ran
	flags   []string
	proc    *Process
}

// EtcdCluster is a store of several members.
type EtcdCluster struct {
	// Members are in the order of their addresses.
	Members []*Etcd

	lab *Lab
}

// mostMembers is where the addresses of nodes begin.
const mostMembers = firstHost - 2

// StartEtcd adds a host to the LAN with an etcd in it and makes it the store
// of nodes that are started later. The server does not sync its disk: it is
// as durable as the machine's memory.
func (l *Lab) StartEtcd(ctx context.Context) (*Etcd, error) {
	c, err := l.StartEtcdCluster(ctx, 1)
	if err != nil {
		return nil, err
	}
	return c.Members[0], nil
}

// StartEtcdCluster adds n hosts to the LAN, 9 at most, with an etcd in each,
// which together are the store of nodes that are started later: those get all
// URLs. Lab.Etcd is the first member. It is done once in a lab. Each member has
// the flags of etcdd that are given.
func (l *Lab) StartEtcdCluster(ctx context.Context, n int, flags ...string) (*EtcdCluster, error) {
	if n < 1 || n > mostMembers || l.Etcd != nil {
		return nil, fmt.Errorf("start an etcd of %d members: want 1 to %d, once in a lab", n, mostMembers)
	}
	c := &EtcdCluster{lab: l}
	var all []string
	for i := range n {
		e, err := l.addEtcd(ctx, i)
		if err != nil {
			return nil, fmt.Errorf("add etcd member %d: %w", i+1, err)
		}
		c.Members = append(c.Members, e)
		all = append(all, e.host+"="+e.peerURL())
	}
	for _, e := range c.Members {
		e.cluster, e.flags = strings.Join(all, ","), flags
		if err := e.Launch(); err != nil {
			return nil, err
		}
	}
	for _, e := range c.Members {
		if err := e.await(ctx); err != nil {
			return nil, err
		}
	}
	l.Etcd, l.members = c.Members[0], c.Members
	l.SetEndpoints(c.URLs()...)
	l.logf("etcd is up: %s", strings.Join(c.URLs(), ", "))
	return c, nil
}

// addEtcd makes the host of one member.
func (l *Lab) addEtcd(ctx context.Context, i int) (*Etcd, error) {
	host := "etcd"
	if i > 0 {
		host = fmt.Sprintf("etcd%d", i+1)
	}
	ns, err := l.addNS(ctx, host)
	if err != nil {
		return nil, err
	}
	e := &Etcd{NS: ns, Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + i)}), host: host, dir: filepath.Join(l.rec.Dir, host)}
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make etcd directory: %w", err)
	}
	if err := l.LAN.ip(ctx,
		"link add to-"+host+" type veth peer name eth0 netns "+ns.name,
		"link set to-"+host+" master lan0 up",
	); err != nil {
		return nil, err
	}
	return e, ns.ip(ctx, fmt.Sprintf("addr add %s/24 dev eth0", e.Addr), "link set eth0 up", "route add default via 192.0.2.1")
}

// URLs are the client endpoints of all members.
func (c *EtcdCluster) URLs() []string {
	urls := make([]string, len(c.Members))
	for i, e := range c.Members {
		urls[i] = e.URL()
	}
	return urls
}

// Client returns a client of all members that dials from the router. The
// caller closes it.
func (c *EtcdCluster) Client() (*clientv3.Client, error) { return c.lab.LAN.EtcdClient(c.URLs()...) }

// EtcdMembers are all members of the store that the lab has started, or none.
func (l *Lab) EtcdMembers() []*Etcd { return l.members }

// URL is the client endpoint.
func (e *Etcd) URL() string { return "http://" + net.JoinHostPort(e.Addr.String(), "2379") }

func (e *Etcd) peerURL() string { return "http://" + net.JoinHostPort(e.Addr.String(), "2380") }

// Start starts the server on the data it has and waits until it answers, for
// which enough of the other members must run.
func (e *Etcd) Start(ctx context.Context) error {
	if err := e.Launch(); err != nil {
		return err
	}
	return e.await(ctx)
}

// Launch starts the server on the data it has and waits for nothing.
func (e *Etcd) Launch() error {
	if e.lab.opts.Etcd != "" {
		return e.launchOther(e.lab.opts.Etcd)
	}
	etcdd, err := e.lab.tool("tools", "etcdd")
	if err != nil {
		return err
	}
	argv := append([]string{etcdd, "-name", e.host, "-data-dir", e.dataDir(),
		"-listen", e.URL(), "-listen-peer", e.peerURL(), "-initial-cluster", e.cluster, "-token", strconv.Itoa(e.life),
		"-join=" + strconv.FormatBool(e.joins)}, e.flags...)
	e.proc, err = e.lab.spawn(e.name, e.LogFile(), argv...)
	return err
}

// launchOther starts etcd's own program, of whatever version.
func (e *Etcd) launchOther(program string) (err error) {
	m := packaged.Member{Name: e.host, Dir: e.dataDir(), Client: e.URL(), Peer: e.peerURL(), Cluster: e.cluster, Token: strconv.Itoa(e.life), Joins: e.joins}
	argv := append([]string{program}, m.Flags()...)
	e.proc, err = e.lab.spawn(e.name, e.LogFile(), append(argv, e.flags...)...)
	return err
}

// await waits until this member answers a read of the store, which a majority
// has to agree on.
func (e *Etcd) await(ctx context.Context) error {
	c, err := e.Client()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return Eventually(ctx, e.host+" answers", func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := c.Get(ctx, "any")
		return err
	})
}

// Replace kills the server and puts another member in its place, at the same
// URLs and with no data, as an operator does whose disk is gone. The others
// must be a majority.
func (e *Etcd) Replace(ctx context.Context) error {
	e.Kill()
	if err := os.RemoveAll(e.dataDir()); err != nil {
		return fmt.Errorf("replace etcd: %w", err)
	}
	if err := e.rejoin(ctx); err != nil {
		return fmt.Errorf("replace %s: %w", e.host, err)
	}
	e.joins = true
	return e.Start(ctx)
}

// rejoin takes the member out of the cluster and adds another one at its URLs.
func (e *Etcd) rejoin(ctx context.Context) error {
	other := e.lab.members[0]
	if other == e {
		other = e.lab.members[len(e.lab.members)-1]
	}
	c, err := other.Client()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	all, err := c.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, m := range all.Members {
		if m.Name == e.host {
			if _, err := c.MemberRemove(ctx, m.ID); err != nil {
				return err
			}
		}
	}
	// The others may need a moment before they take another change.
	return Eventually(ctx, "the member is added", func() error {
		_, err := c.MemberAdd(ctx, []string{e.peerURL()})
		return err
	})
}

// Process is the server's.
func (e *Etcd) Process() *Process { return e.proc }

// Stop ends the server in good order.
func (e *Etcd) Stop(ctx context.Context) error {
	err := e.proc.Stop(ctx)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGTERM {
		return nil // etcd's own program ends itself so once it has closed everything
	}
	return err
}

// Kill ends the server with SIGKILL.
func (e *Etcd) Kill() { e.proc.Kill() }

// Signal sends sig to the server: SIGSTOP hangs it, SIGCONT lets it go on.
func (e *Etcd) Signal(sig os.Signal) error { return e.proc.Signal(sig) }

// alone refuses what a member cannot survive that has others: going back
// behind what it has promised them.
func (e *Etcd) alone(what string) error {
	if len(e.lab.members) > 1 {
		return fmt.Errorf("%s %s: it is one of %d members, who would not have it back", what, e.host, len(e.lab.members))
	}
	return nil
}

// Wipe kills the server, throws its data away and starts an empty one. With
// newCluster its cluster ID is another one, else the same as before. It is for
// a store of one member.
func (e *Etcd) Wipe(ctx context.Context, newCluster bool) error {
	if err := e.alone("wipe"); err != nil {
		return err
	}
	e.Kill()
	if err := os.RemoveAll(e.dataDir()); err != nil {
		return fmt.Errorf("wipe etcd: %w", err)
	}
	if newCluster {
		e.life++
	}
	return e.Start(ctx)
}

// Backup kills the server, copies its data and starts it again. The copy's
// directory is returned, for Restore. To end it in good order would take seconds
// while clients watch, and what it has answered is in its files either way.
func (e *Etcd) Backup(ctx context.Context) (string, error) {
	e.Kill()
	dir, err := os.MkdirTemp(e.dir, "backup-")
	if err != nil {
		return "", fmt.Errorf("back up etcd: %w", err)
	}
	if err := os.CopyFS(dir, os.DirFS(e.dataDir())); err != nil {
		return "", fmt.Errorf("back up etcd: %w", err)
	}
	return dir, e.Start(ctx)
}

// Restore kills the server, puts a Backup in place of its data and starts it:
// the same cluster ID at an earlier revision. It is for a store of one member.
func (e *Etcd) Restore(ctx context.Context, backup string) error {
	if err := e.alone("restore"); err != nil {
		return err
	}
	e.Kill()
	if err := os.RemoveAll(e.dataDir()); err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	if err := os.CopyFS(e.dataDir(), os.DirFS(backup)); err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	return e.Start(ctx)
}

// LogFile is where the server writes.
func (e *Etcd) LogFile() string { return filepath.Join(e.dir, "etcd.log") }

func (e *Etcd) dataDir() string { return filepath.Join(e.dir, "data") }

// Client returns a client of this member that dials inside its own host. The
// caller closes it.
func (e *Etcd) Client() (*clientv3.Client, error) { return e.EtcdClient(e.URL()) }

// EtcdClient returns a client of any etcd that can be reached from the
// namespace, for example one embedded in a node's tenured. The caller closes
// it.
func (n *NS) EtcdClient(urls ...string) (*clientv3.Client, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints:   urls,
		DialTimeout: 2 * time.Second,
		Logger:      zap.NewNop(), // what fails is said by the one who waits for it
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return n.Dial(ctx, "tcp", addr)
		})},
	})
	if err != nil {
		return nil, fmt.Errorf("make etcd client in %s: %w", n.name, err)
	}
	return c, nil
}
