package field

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/lab/labtest"
)

// withUsers is a cluster on an etcd of three members with users, whose tokens
// live for a short time.
type withUsers struct {
	*cluster.Cluster
	t        *testing.T
	password string // its file on every node
	root     *clientv3.Client
}

// nodesPassword is of the user "tenure", under whose name all nodes go.
const nodesPassword = "correct horse"

func usersIn(ctx context.Context, t *testing.T, network, tokenTTL string, names ...string) *withUsers {
	t.Helper()
	u := &withUsers{Cluster: &cluster.Cluster{Lab: labtest.New(t, lab.Options{})}, t: t, password: filepath.Join(t.TempDir(), "password")}
	if _, err := u.StartEtcdCluster(ctx, 3, "-auth-token-ttl="+tokenTTL, "-bcrypt-cost=4"); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		u.Nodes = append(u.Nodes, u.AddNode(ctx, t, name))
	}
	u.Init(ctx, t, network)
	u.write(nodesPassword)
	first, _ := untilEnabled(t)
	for _, line := range first {
		if err := etcdctl(ctx, u.Store(t).Client, line); err != nil {
			t.Fatal(err)
		}
	}
	u.root = u.client(ctx, "root", rootPassword)
	return u
}

// client is one of all members under a user's name.
func (u *withUsers) client(ctx context.Context, user, password string) *clientv3.Client {
	u.t.Helper()
	var urls []string
	for _, e := range u.EtcdMembers() {
		urls = append(urls, e.URL())
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: urls, Context: ctx, DialTimeout: 5 * time.Second, Logger: zap.NewNop(), Username: user, Password: password,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return u.LAN.Dial(ctx, "tcp", addr) })}})
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { _ = c.Close() })
	return c
}

// prefix is that of every cluster, with the final slash.
const prefix = "/tenure/network/"

func (u *withUsers) write(password string) {
	u.t.Helper()
	if err := os.WriteFile(u.password, []byte(password+"\n"), 0o600); err != nil {
		u.t.Fatal(err)
	}
}

func (u *withUsers) start(ctx context.Context, n *lab.Node) {
	u.t.Helper()
	if err := n.Start(ctx, "--etcd-username=tenure", "--etcd-password-file="+u.password); err != nil {
		u.t.Fatal(err)
	}
}

// hashes is how often the members together were asked to compare a password.
func (u *withUsers) hashes(ctx context.Context) (n int) {
	u.t.Helper()
	for _, e := range u.EtcdMembers() {
		counts, err := e.Requests(ctx)
		if err != nil {
			u.t.Fatal(err)
		}
		n += counts["Authenticate"]
	}
	return n
}

// TestO6 is etcd #11954, #12385, #12615: the watch died when the token had
// lapsed before a stream was opened anew. Right is: with tokens that lapse
// between any two renewals, and members restarted one by one, watch, lease and
// writes go on, and no packet is lost. A password is compared once for each token, not for
// each call. A password that is wrong is a problem that names the file, costs
// etcd a few looks, ends no daemon, and is over when the file is right, without
// a restart.
func TestO6(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, 5*time.Minute)
	idle, life, ttl := 2500*time.Millisecond, "1", "15s"
	end := func(e *lab.Etcd) error { e.Kill(); return nil }
	if cluster.Long(t) {
		idle, life, ttl = 30*time.Second, "10", "90s"
		end = func(e *lab.Etcd) error { return e.Stop(ctx) }
	}
	u := usersIn(ctx, t, `{"Network":"10.5.0.0/16","SubnetMax":"10.5.189.0","LeaseTTL":"`+ttl+`"}`, life, "n1", "n2", "n3")
	n1, n2, late := u.Nodes[0], u.Nodes[1], u.Nodes[2]
	u.start(ctx, n1)
	u.start(ctx, n2)
	for _, n := range u.Nodes[:2] {
		cluster.WaitState(ctx, t, n, api.StateHeld)
	}
	cluster.WaitPeers(ctx, t, n1, n2)
	ring := cluster.NewRing(ctx, t, n1, n2)

	for _, e := range u.EtcdMembers() {
		cluster.Stays(ctx, t, idle, "nobody asks etcd for longer than a token lives", func() error { return nil })
		if err := end(e); err != nil {
			t.Fatal(err)
		}
		if err := e.Launch(); err != nil {
			t.Fatal(err)
		}
		u.watched(ctx, ring)
	}
	ring.Whole(ctx, t)

	// A newcomer with a wrong password.
	u.write("wrong")
	before := u.hashes(ctx)
	u.start(ctx, late)
	s := cluster.Wait(ctx, t, late, "says that its password is refused", func(s *api.Status) bool {
		return strings.Contains(problem(s, "etcd-refuses").Text, u.password)
	})
	if fix := problem(s, "etcd-refuses").Fix; !strings.Contains(fix, "--etcd-password-file") || s.State != api.StateStarting {
		t.Errorf("state %s, fix %q", s.State, fix)
	}
	cluster.Stays(ctx, t, 2*time.Second, "the daemon lives", func() error { _, err := late.Status(ctx); return err })
	// The other two have tokens of their own, or lost them to the same file.
	if n := u.hashes(ctx) - before; n > 12 {
		t.Errorf("a wrong password was tried %d times in seconds", n)
	}
	u.write(nodesPassword)
	cluster.WaitState(ctx, t, late, api.StateHeld)
	for _, n := range u.Nodes {
		cluster.Wait(ctx, t, n, "holds, and nothing is wrong", func(s *api.Status) bool { return s.State == api.StateHeld && len(s.Problems) == 0 })
	}
	ring.Same(ctx, t)
	ring.Whole(ctx, t)
	u.losesRights(ctx, n1)
	ring.Whole(ctx, t)
}

// watched: what is written in etcd is seen by both, each holds what it held, and
// a renewal and a write of its own go through.
func (u *withUsers) watched(ctx context.Context, ring *cluster.Ring) {
	u.t.Helper()
	for i, n := range ring.Nodes {
		s := cluster.Wait(ctx, u.t, n, "has proven its subnet, and nothing is wrong", func(s *api.Status) bool {
			return s.State == api.StateHeld && len(s.Problems) == 0
		})
		if s.Lease.Epoch != ring.Before[i].Lease.Epoch {
			u.t.Errorf("%s holds %s in epoch %d, held %s in epoch %d", n.Host, s.Subnet, s.Lease.Epoch, ring.Before[i].Subnet, ring.Before[i].Lease.Epoch)
		}
	}
	p := cluster.FakePeer(1)
	u.eventually(ctx, func(ctx context.Context) error { return p.Publish(ctx, u.root) })
	for _, n := range ring.Nodes {
		u.sees(ctx, n, p, true)
	}
	u.eventually(ctx, func(ctx context.Context) error {
		_, err := u.root.Delete(ctx, cluster.SubnetKey(p.Subnet.String()))
		return err
	})
	for _, n := range ring.Nodes {
		u.sees(ctx, n, p, false)
	}
}

// eventually writes while a member may still be coming up.
func (u *withUsers) eventually(ctx context.Context, write func(context.Context) error) {
	u.t.Helper()
	cluster.Eventually(ctx, u.t, 20*time.Second, "etcd takes a write", func() error {
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return write(short)
	})
}

func (u *withUsers) sees(ctx context.Context, n *lab.Node, p cluster.Peer, there bool) {
	u.t.Helper()
	cluster.Eventually(ctx, u.t, 10*time.Second, "the watch shows it", func() error {
		s, err := n.Status(ctx)
		if err != nil {
			return err
		}
		seen := false
		for _, one := range s.Peers {
			seen = seen || one.Subnet == p.Subnet.String()
		}
		if seen != there {
			return errors.New("not yet on " + n.Host)
		}
		return nil
	})
}

// losesRights takes the role from the user while nodes hold subnets, and gives
// it back.
func (u *withUsers) losesRights(ctx context.Context, n *lab.Node) {
	u.t.Helper()
	if _, err := u.root.UserRevokeRole(ctx, "tenure", "tenure"); err != nil {
		u.t.Fatal(err)
	}
	// The next renewal may be 30 s away.
	s, err := n.WaitState(ctx, "says which right is missing", func(s *api.Status) bool {
		return strings.Contains(problem(s, "etcd-refuses").Text, "may not read and write all keys under "+prefix)
	})
	if err != nil {
		u.t.Fatal(err)
	}
	if s.State != api.StateUnproven || !strings.Contains(problem(s, "etcd-refuses").Fix, "readwrite "+prefix) {
		u.t.Errorf("state %s, problems %v", s.State, s.Problems)
	}
	if _, err := u.root.UserGrantRole(ctx, "tenure", "tenure"); err != nil {
		u.t.Fatal(err)
	}
	for _, n := range u.Nodes {
		cluster.Wait(ctx, u.t, n, "goes on", func(s *api.Status) bool { return s.State == api.StateHeld && len(s.Problems) == 0 })
	}
}
