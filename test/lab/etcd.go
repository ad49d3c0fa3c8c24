package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Etcd is a one-member store on a host of its own on the LAN, 192.0.2.2.
type Etcd struct {
	*NS
	// Addr is the host's address on the LAN.
	Addr netip.Addr

	dir  string
	life int // token of the cluster: each makes another cluster ID
	proc *Process
}

// StartEtcd adds a host to the LAN with an etcd in it and makes it the store
// of nodes that are started later. The server does not sync its disk: it is
// as durable as the machine's memory.
func (l *Lab) StartEtcd(ctx context.Context) (*Etcd, error) {
	ns, err := l.addNS(ctx, "etcd")
	if err != nil {
		return nil, err
	}
	e := &Etcd{NS: ns, Addr: netip.AddrFrom4([4]byte{192, 0, 2, 2}), dir: filepath.Join(l.rec.Dir, "etcd")}
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make etcd directory: %w", err)
	}
	if err := l.LAN.ip(ctx,
		"link add to-etcd type veth peer name eth0 netns "+ns.name,
		"link set to-etcd master lan0 up",
	); err != nil {
		return nil, err
	}
	if err := ns.ip(ctx, fmt.Sprintf("addr add %s/24 dev eth0", e.Addr), "link set eth0 up", "route add default via 192.0.2.1"); err != nil {
		return nil, err
	}
	if err := e.Start(ctx); err != nil {
		return nil, err
	}
	l.Etcd = e
	l.SetEndpoints(e.URL())
	l.logf("etcd is up: %s", e.URL())
	return e, nil
}

// URL is the client endpoint.
func (e *Etcd) URL() string { return "http://" + net.JoinHostPort(e.Addr.String(), "2379") }

// Start starts the server on the data it has and waits until it answers.
func (e *Etcd) Start(ctx context.Context) error {
	etcdd, err := e.lab.tool("tools", "etcdd")
	if err != nil {
		return err
	}
	e.proc, err = e.lab.spawn(e.name, e.LogFile(), etcdd,
		"-data-dir", e.dataDir(), "-listen", e.URL(), "-token", strconv.Itoa(e.life))
	if err != nil {
		return err
	}
	c, err := e.Client()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return Eventually(ctx, "etcd answers", func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := c.Get(ctx, "any")
		return err
	})
}

// Process is the server's.
func (e *Etcd) Process() *Process { return e.proc }

// Stop ends the server in good order.
func (e *Etcd) Stop(ctx context.Context) error { return e.proc.Stop(ctx) }

// Kill ends the server with SIGKILL.
func (e *Etcd) Kill() { e.proc.Kill() }

// Wipe kills the server, throws its data away and starts an empty one. With
// newCluster its cluster ID is another one, else the same as before.
func (e *Etcd) Wipe(ctx context.Context, newCluster bool) error {
	e.Kill()
	if err := os.RemoveAll(e.dataDir()); err != nil {
		return fmt.Errorf("wipe etcd: %w", err)
	}
	if newCluster {
		e.life++
	}
	return e.Start(ctx)
}

// Backup stops the server, copies its data and starts it again. The copy's
// directory is returned, for Restore.
func (e *Etcd) Backup(ctx context.Context) (string, error) {
	if err := e.Stop(ctx); err != nil {
		return "", fmt.Errorf("back up etcd: %w", err)
	}
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
// the same cluster ID at an earlier revision.
func (e *Etcd) Restore(ctx context.Context, backup string) error {
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

// Client returns a client of the store that dials inside its own host. The
// caller closes it.
func (e *Etcd) Client() (*clientv3.Client, error) { return e.EtcdClient(e.URL()) }

// EtcdClient returns a client of any etcd that can be reached from the
// namespace, for example one embedded in a node's tenured. The caller closes
// it.
func (n *NS) EtcdClient(urls ...string) (*clientv3.Client, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints:   urls,
		DialTimeout: 2 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return n.Dial(ctx, "tcp", addr)
		})},
	})
	if err != nil {
		return nil, fmt.Errorf("make etcd client in %s: %w", n.name, err)
	}
	return c, nil
}
