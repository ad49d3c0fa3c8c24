package field

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestQ4 is flannel #1633 and #451: one daemon for each of two networks on a
// host, and names, files, chains or routes of the two clash. Right is: while
// the second one comes, goes, and is uninstalled, nothing of
// the first one changes and no packet of it is lost; and after that nothing of
// the second one is left.
func TestQ4(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	near, far := cluster.Pod(ctx, t, n1, "near"), cluster.Pod(ctx, t, n2, "far")
	cluster.Serve(ctx, t, c.Outside, port)
	alone, passes := cluster.Picture(ctx, t, n1), cluster.WritingPasses(n1)
	flow := cluster.StartFlow(ctx, t, near.NS, far.NS, far.IP)
	flow.Runs(ctx, t)
	from := flow.Sent()

	r := cluster.Run(ctx, t, c.Etcd.NS, "tenurectl", "init", "--etcd-endpoints="+c.Etcd.URL(), "--etcd-prefix=/other/network",
		`--network-config={"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":2}}`)
	if r.Code != 0 {
		t.Fatal(r)
	}
	second, second2 := startSecond(ctx, t, c, n1), startSecond(ctx, t, c, n2)
	theirs := second.pod(ctx, t, "theirs")
	cluster.Seen(ctx, t, theirs.NS, c.OutsideAddr(), port, n1.Addr)
	theirFar := second2.pod(ctx, t, "theirs")
	cluster.Serve(ctx, t, theirFar.NS, port)
	cluster.Seen(ctx, t, theirs.NS, theirFar.IP, port, theirs.IP)
	if s := cluster.Status(ctx, t, n1); !cluster.Well(s) {
		t.Errorf("beside another instance the first one has problems: %+v", s.Problems)
	}
	if s := second.status(ctx, t); !cluster.Well(s) {
		t.Errorf("beside another instance the second one has problems: %+v", s.Problems)
	}
	second.restart(ctx, t)
	cluster.Seen(ctx, t, theirs.NS, theirFar.IP, port, theirs.IP)

	if err := theirs.Del(ctx); err != nil {
		t.Fatal(err)
	}
	second.remove(ctx, t)
	cluster.Eventually(ctx, t, repairTime, "nothing of the second one is left", func() error {
		if now := cluster.Picture(ctx, t, n1); now != alone {
			return fmt.Errorf("the node was\n%s\nand is\n%s", alone, now)
		}
		return nil
	})
	if now := cluster.WritingPasses(n1); now != passes {
		t.Errorf("the first one wrote meanwhile:\n%s", n1.Logs(5))
	}
	flow.Whole(ctx, t, from)
	cluster.Seen(ctx, t, near.NS, c.OutsideAddr(), port, n1.Addr)
}

// instance is a second daemon on a node.
type instance struct {
	c      *cluster.Cluster
	node   *lab.Node
	dir    string
	daemon *lab.Process
}

func startSecond(ctx context.Context, t *testing.T, c *cluster.Cluster, n *lab.Node) *instance {
	t.Helper()
	i := &instance{c: c, node: n, dir: filepath.Join(n.Dir(), "other")}
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"tenure","tenure":{"socket":%q}}]}`, i.socket())
	if err := os.WriteFile(filepath.Join(n.CNIDir, "20-other.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	i.start(ctx, t)
	return i
}

func (i *instance) socket() string { return filepath.Join(i.dir, "run", "tenured.sock") }

func (i *instance) start(ctx context.Context, t *testing.T) {
	t.Helper()
	bin, err := lab.FindBin()
	if err != nil {
		t.Fatal(err)
	}
	i.daemon, err = i.node.Spawn(i.dir+".log", filepath.Join(bin, "tenured"), "--name=other", "--node-name="+i.node.Host, "--iface=eth0",
		"--etcd-endpoints="+i.c.Etcd.URL(), "--etcd-prefix=/other/network", "--metrics-listen=",
		"--run-dir="+filepath.Join(i.dir, "run"), "--state-dir="+filepath.Join(i.dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(ctx, t, 20*time.Second, "the second instance is ready", func() error {
		s, err := api.NewClient(i.socket()).Status(ctx)
		if err == nil && !s.Ready {
			err = fmt.Errorf("%s: %s %+v", s.State, s.Reason, s.Problems)
		}
		return err
	})
}

func (i *instance) restart(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := i.daemon.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	i.start(ctx, t)
}

func (i *instance) status(ctx context.Context, t *testing.T) *api.Status {
	t.Helper()
	s, err := api.NewClient(i.socket()).Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (i *instance) pod(ctx context.Context, t *testing.T, name string) *lab.Pod {
	t.Helper()
	return cluster.Pod(ctx, t, i.node, name, lab.PodOptions{Network: "other"})
}

// remove takes the second one off the host; programs and unit are both's.
func (i *instance) remove(ctx context.Context, t *testing.T) {
	t.Helper()
	r := cluster.Run(ctx, t, i.node, "tenurectl", "uninstall", "--name=other", "--config=", "--keep-programs", "--cni-conf-dir="+i.node.CNIDir,
		"--socket="+i.socket(), "--run-dir="+filepath.Join(i.dir, "run"), "--state-dir="+filepath.Join(i.dir, "state"))
	if r.Code != 0 {
		t.Errorf("uninstall: %s", r)
	}
}

// nowhere is a name that only a server inside the overlay would resolve.
const nowhere = "etcd.overlay.example"

// TestQ4Name is the row's other half: the store has a name that only resolves
// through the network that is being built. Right is: the daemon tries again and
// again, says why in status, answers status and SIGTERM at once meanwhile, and
// goes on by itself once the name resolves.
func TestQ4Name(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	hosts, resolv := filepath.Join(n.Dir(), "hosts"), filepath.Join(n.Dir(), "resolv.conf")
	for file, text := range map[string]string{hosts: "127.0.0.1 localhost\n", resolv: "nameserver 10.5.250.9\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// "ip netns exec" has made a mount namespace for this one process.
	wrapper := []string{"sh", "-ec", `mount --bind "$0" /etc/hosts; mount --bind "$1" /etc/resolv.conf; shift; exec "$@"`, hosts, resolv}
	begin := func(what string, want func(*api.Status) bool) {
		t.Helper()
		if err := n.StartUnder(ctx, wrapper, "--etcd-endpoints=http://"+nowhere+":2379"); err != nil {
			t.Fatal(err)
		}
		cluster.Wait(ctx, t, n, what, want)
	}
	begin("says that the store's name does not resolve", func(s *api.Status) bool {
		return !s.Ready && strings.Contains(problem(s, "etcd-unreachable").Text, nowhere) &&
			len(s.Etcd.Endpoints) == 1 && strings.Contains(s.Etcd.Endpoints[0].Reason, "lookup "+nowhere)
	})
	began := time.Now()
	if err := n.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the stop took %s", took)
	}

	begin("has tried", func(s *api.Status) bool { return len(s.Etcd.Endpoints) == 1 && s.Etcd.Endpoints[0].Reason != "" })
	text := fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", c.Etcd.Addr, nowhere)
	if err := os.WriteFile(hosts, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster.WaitState(ctx, t, n, api.StateHeld)
	if s := cluster.Status(ctx, t, n); !s.Ready {
		t.Errorf("held, but not ready: %+v", s.Problems)
	}
}
