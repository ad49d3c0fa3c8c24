package field

import (
	"context"
	"errors"
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

// TestA9 is flannel #611 (wontfix), #959 and #844, flynn #724: the pod network
// overlaps the host's own LAN, its etcd or a docker range, and the machine drops
// off the network. Right is: a node that has not begun programs nothing, waits
// and names what clashes; one that runs goes on with the last good config and
// names it too; and when what clashed is gone, both go on by themselves.
func TestA9(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2", "n3")
	n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	bridge(ctx, t, n2, "docker0", "172.17.0.1/16")
	cluster.Start(ctx, t, n1)
	pod := cluster.Pod(ctx, t, n1, "p")
	cluster.Serve(ctx, t, c.Outside, port)
	before := cluster.Picture(ctx, t, n1)
	untouched := bare(ctx, t, n3)

	for name, clash := range map[string]struct {
		network, names string
		at             *lab.Node
	}{
		"the underlay":      {"192.0.2.0/24", "192.0.2.0/24 of interface eth0", n3},
		"more than that":    {"192.0.0.0/16", "192.0.2.0/24 of interface eth0", n3},
		"a part of it":      {"192.0.2.128/25", "192.0.2.0/24 of interface eth0", n3},
		"etcd by a router":  {"198.51.100.0/24", "etcd", n3},
		"a bridge's subnet": {"172.16.0.0/12", "172.17.0.0/16 of interface docker0", n2},
	} {
		c.Store(t).Configure(ctx, fmt.Sprintf(`{"Network":%q}`, clash.network))
		if err := clash.at.Start(ctx, endpointFlag(c, clash.at == n3)); err != nil {
			t.Fatal(err)
		}
		was := untouched
		if clash.at == n2 {
			was = bare(ctx, t, n2)
		}
		s := cluster.Wait(ctx, t, clash.at, "names "+name, func(s *api.Status) bool {
			return s.State == api.StateWaiting && refusal(s, clash.names) == nil
		})
		if !strings.Contains(s.Reason, clash.names) {
			t.Errorf("%s: the reason is %q", name, s.Reason)
		}
		if now := bare(ctx, t, clash.at); now != was {
			t.Errorf("%s: the kernel is\n%s\nit was\n%s", name, now, was)
		}
		clash.at.Kill()
	}

	// Nobody bears a cluster with it either.
	revision := storeRevision(ctx, t, c.Store(t))
	r := cluster.Run(ctx, t, n3, "tenurectl", "init", "--network=192.0.2.0/24", "--etcd-prefix=/other", endpointFlag(c, false))
	if r.Code != 2 || !strings.Contains(r.Said, "overlaps") {
		t.Errorf("init: %s", r)
	}
	if err := n3.Start(ctx, "--new-cluster", `--network-config={"Network":"192.0.2.128/25"}`, "--etcd-prefix=/other"); err != nil {
		t.Fatal(err)
	}
	cluster.Wait(ctx, t, n3, "bears no such cluster", func(s *api.Status) bool {
		return s.State == api.StateWaiting && strings.Contains(s.Reason, "192.0.2.0/24 of interface eth0")
	})
	n3.Kill()
	if now := storeRevision(ctx, t, c.Store(t)); now != revision {
		t.Errorf("etcd was written to: revision %d, it was %d", now, revision)
	}

	// To the one that runs such a config is none, whatever else is wrong with it.
	cluster.Wait(ctx, t, n1, "refuses what would orphan", func(s *api.Status) bool {
		return s.State == api.StateHeld && s.Network == cluster.PodNetwork && cluster.HasProblem(s, "config-refused")
	})
	if now := cluster.Picture(ctx, t, n1); now != before {
		t.Errorf("the kernel of n1 is\n%s\nit was\n%s", now, before)
	}
	cluster.Seen(ctx, t, pod.NS, c.OutsideAddr(), port, n1.Addr)

	// What was repaired is taken by itself.
	if err := n3.Start(ctx); err != nil {
		t.Fatal(err)
	}
	c.Store(t).Configure(ctx, cluster.Network)
	cluster.WaitState(ctx, t, n3, api.StateHeld)
	cluster.Wait(ctx, t, n1, "is well", func(s *api.Status) bool { return len(s.Problems) == 0 })
}

// farEtcd is an endpoint that is not on the underlay, and answers nothing.
const farEtcd = "http://198.51.100.77:2379"

func endpointFlag(c *cluster.Cluster, far bool) string {
	if far {
		return "--etcd-endpoints=" + c.Etcd.URL() + "," + farEtcd
	}
	return "--etcd-endpoints=" + c.Etcd.URL()
}

// refusal is nil if the status has a config-refused that holds the words.
func refusal(s *api.Status, words ...string) error {
	for _, p := range s.Problems {
		if p.Code != "config-refused" {
			continue
		}
		for _, w := range words {
			if !strings.Contains(p.Text, w) {
				return fmt.Errorf("config-refused does not say %q: %s", w, p.Text)
			}
		}
		return nil
	}
	return fmt.Errorf("no config-refused among %v", s.Problems)
}

func bridge(ctx context.Context, t *testing.T, n *lab.Node, name, addr string) {
	t.Helper()
	cluster.Exec(ctx, t, n, "ip", "link", "add", name, "type", "bridge")
	cluster.Exec(ctx, t, n, "ip", "addr", "add", addr, "dev", name)
	cluster.Exec(ctx, t, n, "ip", "link", "set", name, "up")
}

func pointToPoint(ctx context.Context, t *testing.T, n *lab.Node, name, near, far string) {
	t.Helper()
	cluster.Exec(ctx, t, n, "ip", "link", "add", name, "type", "bridge")
	cluster.Exec(ctx, t, n, "ip", "addr", "add", near, "peer", far, "dev", name)
	cluster.Exec(ctx, t, n, "ip", "link", "set", name, "up")
}

// TestA9Later: an interface gets an address in the pod network when the config
// has long been in force. Nothing is torn down, status says it within seconds,
// also after a restart, and when the address is gone so is the problem. Where
// the other's route is that of a peer's subnet, that peer alone waits for it.
func TestA9Later(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2", "n3")
	n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	ring := cluster.NewRing(ctx, t, n2, n3)
	p1 := cluster.Pod(ctx, t, n1, "p")
	flow := cluster.StartFlow(ctx, t, ring.Pods[1].NS, p1.NS, p1.IP) // with the peer that nothing clashes with
	flow.Runs(ctx, t)
	sent := flow.Sent()
	peer := cluster.Status(ctx, t, n2).Subnet

	t.Run("an address", func(t *testing.T) {
		pointToPoint(ctx, t, n1, "ptp9", "198.51.100.130", "10.5.254.1")
		within(ctx, t, 8*time.Second, n1, "names ptp9", func(s *api.Status) bool { return refusal(s, "10.5.254.1/32 of the far end of interface ptp9") == nil })
		cluster.Exec(ctx, t, n1, "ip", "link", "del", "ptp9")
		bridge(ctx, t, n1, "lan9", "10.5.255.1/24")
		clashing := func(s *api.Status) bool {
			return s.State == api.StateHeld && s.Ready && refusal(s, "10.5.255.0/24 of interface lan9", "in force") == nil
		}
		within(ctx, t, 8*time.Second, n1, "names lan9", clashing)
		if err := n1.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		cluster.Start(ctx, t, n1)
		within(ctx, t, 8*time.Second, n1, "names lan9 after a restart", clashing)
		cluster.Exec(ctx, t, n1, "ip", "link", "del", "lan9")
		within(ctx, t, 8*time.Second, n1, "is well", func(s *api.Status) bool { return len(s.Problems) == 0 })
	})
	t.Run("a peer's subnet", func(t *testing.T) {
		bridge(ctx, t, n1, "lan9", "198.51.100.129/32")
		cluster.Exec(ctx, t, n1, "ip", "route", "replace", peer, "dev", "lan9")
		conflict := func(s *api.Status) bool {
			return peerState(s, "n2") == api.PeerConflict && peerState(s, "n3") == api.PeerProgrammed && s.State == api.StateHeld
		}
		s := within(ctx, t, 8*time.Second, n1, "has n2 in conflict", conflict)
		for _, p := range s.Peers {
			if p.Node == "n2" && (!strings.Contains(p.Reason, peer) || !strings.Contains(p.Reason, "lan9")) {
				t.Errorf("the reason is %q", p.Reason)
			}
		}
		// Also to a daemon that has just started, and programs whom it can.
		n1.Kill()
		cluster.Start(ctx, t, n1)
		within(ctx, t, 8*time.Second, n1, "has n2 in conflict after a restart", conflict)
		cluster.Exec(ctx, t, n1, "ip", "link", "del", "lan9")
		within(ctx, t, 8*time.Second, n1, "has programmed n2", func(s *api.Status) bool { return peerState(s, "n2") == api.PeerProgrammed && len(s.Problems) == 0 })
		if err := errors.Join(lab.WaitPing(ctx, p1, ring.Pods[0].IP), lab.WaitPing(ctx, ring.Pods[0], p1.IP)); err != nil {
			t.Error(err)
		}
	})
	ring.Whole(ctx, t)
	flow.Whole(ctx, t, sent)
}

func peerState(s *api.Status, node string) string {
	for _, p := range s.Peers {
		if p.Node == node {
			return p.State
		}
	}
	return "missing"
}

// TestA9NameServer: the name server that the node asks lies in the network. By
// that the machine loses all names, unless the server is a pod: it is warned of.
func TestA9NameServer(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	dir := t.TempDir()
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("resolv.conf", "search example.org\nnameserver 127.0.0.53\nnameserver 10.5.0.53\n")
	write("hosts", c.Etcd.Addr.String()+" etcd.example.org\n")
	with := []string{"unshare", "-m", "--propagation=slave", "sh", "-ec",
		`mount --bind "$1/resolv.conf" /etc/resolv.conf; mount --bind "$1/hosts" /etc/hosts; shift; exec "$@"`, "sh", dir}
	for n, endpoint := range map[*lab.Node]string{n1: "http://etcd.example.org:2379", n2: c.Etcd.URL()} {
		if err := n.StartUnder(ctx, with, "--etcd-endpoints="+endpoint); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.Nodes {
		s := cluster.WaitState(ctx, t, n, api.StateHeld)
		if len(s.Problems) != 1 || s.Problems[0].Code != "name-server-covered" || !strings.Contains(s.Problems[0].Text, "10.5.0.53") {
			t.Errorf("problems of %s: %v", n.Host, s.Problems)
		}
	}
	write("resolv.conf", "nameserver 192.0.2.53\n") // into the same file, so that the mount shows it
	for _, n := range c.Nodes {
		within(ctx, t, 10*time.Second, n, "is well", func(s *api.Status) bool { return s.State == api.StateHeld && len(s.Problems) == 0 })
	}
}

// TestA9EtcdName: etcd goes by a name whose address lies in the network.
func TestA9EtcdName(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n1 := c.Nodes[0]
	// The way to etcd: by the router, and a translation there.
	const far = "10.6.0.9"
	cluster.Exec(ctx, t, c.LAN, "ip", "addr", "add", far+"/32", "dev", "lo")
	cluster.Exec(ctx, t, c.LAN, "iptables", "-t", "nat", "-A", "PREROUTING", "-d", far, "-j", "DNAT", "--to-destination", c.Etcd.Addr.String())
	cluster.Exec(ctx, t, c.LAN, "iptables", "-t", "nat", "-A", "POSTROUTING", "-p", "tcp", "--dport", "2379", "-j", "MASQUERADE")
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte(far+" etcd.example.org\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	with := []string{"unshare", "-m", "--propagation=slave", "sh", "-ec", `mount --bind "$1" /etc/hosts; shift; exec "$@"`, "sh", hosts}
	if err := n1.StartUnder(ctx, with, "--etcd-endpoints=http://etcd.example.org:2379"); err != nil {
		t.Fatal(err)
	}
	held := cluster.WaitState(ctx, t, n1, api.StateHeld)
	c.Store(t).Configure(ctx, `{"Network":"10.0.0.0/8"}`)
	s := cluster.Wait(ctx, t, n1, "refuses to cover its etcd", func(s *api.Status) bool { return refusal(s, far) == nil })
	if s.State != api.StateHeld || s.Network != "10.5.0.0/16" || s.Subnet != held.Subnet {
		t.Errorf("n1 is %s with %s of %s", s.State, s.Subnet, s.Network)
	}
	if out := cluster.Exec(ctx, t, n1, "ip", "route", "show", "10.0.0.0/8"); out != "" {
		t.Errorf("programmed: %s", out)
	}
	cluster.Stays(ctx, t, 3*time.Second, "etcd is reached", func() error {
		s, err := n1.Status(ctx)
		if err == nil && s.State != api.StateHeld {
			err = fmt.Errorf("%s: %s", s.State, s.Reason)
		}
		return err
	})
}
