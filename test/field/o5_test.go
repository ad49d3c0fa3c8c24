package field

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

const (
	// newsTime is how long a change in etcd may take to arrive in a kernel while
	// the watch has to be made anew.
	newsTime = 30 * time.Second
	// backTime is how long a node may take once the way to etcd is whole again.
	backTime = 10 * time.Second
)

// TestO5 is flannel #323, #528, #508 and #913, etcd #7593, #7247, #8980 and
// #8673, and cilium PR #23590: one etcd member hangs or is cut off from the
// others, or a box in between forgets idle connections, and the client hangs on
// to it for ever. Here it is always the member that carries the node's watch.
// Right is: calls end and are made elsewhere, so that the subnet is never lost;
// the watch is made anew within half a minute; and no event is missed.
func TestO5(t *testing.T) {
	for _, part := range []struct {
		name, network string
		fault         func(ctx context.Context, t *testing.T, c *cluster.Cluster, carrier *lab.Etcd) (heal func())
	}{
		{"hung", cluster.ShortLease, hangs},
		{"isolated from its peers", cluster.ShortLease, isolated},
		{"idle flows dropped", quarterLease, flowsDropped},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel() // mostly waits
			ctx := cluster.Context(t, 4*time.Minute)
			c := cluster.BornOn(ctx, t, 3, part.network, "n1")
			n := c.Nodes[0]
			cluster.Start(ctx, t, n)
			before := cluster.Status(ctx, t, n)
			rounds := 1
			if cluster.Long(t) {
				rounds = 5
			}
			var peers []cluster.Peer
			for i := range rounds {
				carrier := carries(ctx, t, c)
				store := c.StoreOn(t, slices.DeleteFunc(slices.Clone(c.EtcdMembers()), func(e *lab.Etcd) bool { return e == carrier })...)
				heal := part.fault(ctx, t, c, carrier)
				takesWrites(ctx, t, store)
				peers = append(peers, cluster.FakePeer(i))
				store.Publish(ctx, peers[i])
				took := arrives(ctx, t, newsTime, n, peers)
				t.Logf("the watch moved from %s within %s", carrier.Addr, took)
				provesOn(ctx, t, n)
				heal()
			}
			neverLost(ctx, t, n, before)
		})
	}
}

// hangs stops the member; its kernel still acknowledges what comes.
func hangs(_ context.Context, t *testing.T, _ *cluster.Cluster, member *lab.Etcd) func() {
	t.Helper()
	return cluster.Hang(t, member)
}

// isolated cuts the member off from its peers, and from nobody else.
func isolated(ctx context.Context, t *testing.T, _ *cluster.Cluster, member *lab.Etcd) func() {
	t.Helper()
	return cluster.CutPeers(ctx, t, member)
}

// flowsDropped loses every packet of the connections that the daemon has to
// etcd now. New ones work.
func flowsDropped(ctx context.Context, t *testing.T, c *cluster.Cluster, _ *lab.Etcd) func() {
	t.Helper()
	n := c.Nodes[0]
	tcp, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", n.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	// Established, to port 2379.
	flows := regexp.MustCompile(`(?m)^ *\d+: [0-9A-F]{8}:([0-9A-F]{4}) [0-9A-F]{8}:094B 01 `).FindAllSubmatch(tcp, -1)
	if len(flows) == 0 {
		t.Fatalf("the daemon has no connection to etcd:\n%s", tcp)
	}
	for _, f := range flows {
		port, err := strconv.ParseUint(string(f[1]), 16, 16)
		if err != nil {
			t.Fatal(err)
		}
		cluster.Exec(ctx, t, n, "iptables", "-w", "-t", "mangle", "-I", "OUTPUT", "-p", "tcp", "--sport", fmt.Sprint(port), "--dport", "2379", "-j", "DROP")
		cluster.Exec(ctx, t, n, "iptables", "-w", "-t", "mangle", "-I", "INPUT", "-p", "tcp", "--sport", "2379", "--dport", fmt.Sprint(port), "-j", "DROP")
	}
	return func() {}
}

// carries is the member that the watch of the cluster's only node is on.
func carries(ctx context.Context, t *testing.T, c *cluster.Cluster) (member *lab.Etcd) {
	t.Helper()
	cluster.Eventually(ctx, t, backTime, "one member carries the watch", func() error {
		member = nil
		for _, e := range c.EtcdMembers() {
			w, err := e.Watchers(ctx)
			if err != nil {
				return err
			}
			if w > 0 && member != nil {
				return errors.New("two of them do")
			}
			if w > 0 {
				member = e
			}
		}
		if member == nil {
			return errors.New("none of them does")
		}
		return nil
	})
	return member
}

// takesWrites waits until a store takes writes, after an election perhaps.
func takesWrites(ctx context.Context, t *testing.T, store *cluster.Store) {
	t.Helper()
	cluster.Eventually(ctx, t, 20*time.Second, "the store takes writes", func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := store.Put(ctx, "/is/writable", "")
		return err
	})
}

// slowly is cluster.Wait for what takes up to three quarters of a minute.
func slowly(ctx context.Context, t *testing.T, n *lab.Node, what string, want func(*api.Status) bool) *api.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	s, err := n.WaitState(ctx, what, want)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// arrives waits until the kernel has exactly these peers, and returns how long
// that took.
func arrives(ctx context.Context, t *testing.T, d time.Duration, n *lab.Node, peers []cluster.Peer) time.Duration {
	t.Helper()
	began, want := time.Now(), cluster.WantPeers(peers...)
	cluster.Eventually(ctx, t, d, "the news is in the kernel", func() error {
		got, err := cluster.KernelPeers(ctx, n)
		if err == nil && !got.Equal(want) {
			err = fmt.Errorf("there are\n%+v, want\n%+v", got, want)
		}
		return err
	})
	return time.Since(began).Round(time.Millisecond)
}

// TestO5Mute is the same with a box in between that answers pings and calls and
// lets no message of a watch through: the stream that stands first, later also
// each new one. Right is: it is found by asking, what changes is seen by listing
// within the same half minute, status says so, and no more of it once the way is
// whole.
func TestO5Mute(t *testing.T) {
	t.Parallel() // mostly waits
	ctx := cluster.Context(t, 3*time.Minute)
	c := cluster.Born(ctx, t, cluster.ShortLease, "n1")
	n, store := c.Nodes[0], c.Store(t)
	p := etcdproxy.StartIn(ctx, t, n, "127.0.0.1:12379", c.Etcd.URL())
	if err := n.Start(ctx, "--etcd-endpoints="+p.URL()); err != nil {
		t.Fatal(err)
	}
	before := cluster.WaitState(ctx, t, n, api.StateHeld)
	mute := p.MuteWatches(etcdproxy.Always)
	peers := publish(ctx, store, 1)
	took := arrives(ctx, t, newsTime, n, peers)
	said := problem(within(ctx, t, backTime, n, "says that the watch is silent", func(s *api.Status) bool {
		return cluster.HasProblem(s, "watch-silent") && s.State == api.StateHeld
	}), "watch-silent")
	t.Logf("the news was there after %s, %d messages were lost, status: %+v", took, mute.Hits(), said)
	mute.Remove()
	cluster.Wait(ctx, t, n, "has no more to say", cluster.Well)
	store.Withdraw(ctx, peers[0])
	arrives(ctx, t, repairTime, n, nil)
	if s := cluster.Status(ctx, t, n); s.State != api.StateHeld || s.Lease.ID != before.Lease.ID {
		t.Errorf("it is %s under %+v, it was under %+v", s.State, s.Lease, before.Lease)
	}
}

// TestO5Names is the same with endpoints that are names, which nobody resolves
// any more: the connections that stand go on, and when etcd was away there are
// no new ones. Right is: status says that the names do not resolve, everything
// goes on until the deadline, and within ten seconds of their return all is well.
func TestO5Names(t *testing.T) {
	t.Parallel() // mostly waits
	// A node finds out at its next proof, after a third of the TTL.
	away, network := time.Second, `{"Network":"10.5.0.0/16","SubnetMax":"10.5.189.0","LeaseTTL":"36s"}`
	if cluster.Long(t) {
		away, network = 10*time.Minute, `{"Network":"10.5.0.0/16","SubnetMax":"10.5.189.0","LeaseTTL":"12m"}`
	}
	ctx := cluster.Context(t, away+2*time.Minute)
	c := cluster.BornOn(ctx, t, 3, network, "n1")
	n := c.Nodes[0]
	hosts, resolv := filepath.Join(n.Dir(), "hosts"), filepath.Join(n.Dir(), "resolv.conf")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	known, urls := "", []string(nil)
	for i, e := range c.EtcdMembers() {
		name := fmt.Sprintf("member%d.example", i+1)
		known += fmt.Sprintf("%s %s\n", e.Addr, name)
		urls = append(urls, "http://"+name+":2379")
	}
	write(hosts, known)
	// A server that never answers: a resolver waits for it.
	write(resolv, fmt.Sprintf("nameserver %s\n", c.OutsideAddr()))
	cluster.Exec(ctx, t, c.Outside, "iptables", "-w", "-I", "INPUT", "-p", "udp", "--dport", "53", "-j", "DROP")
	// "ip netns exec" has made a mount namespace for this one process.
	wrapper := []string{"sh", "-ec", `mount --bind "$0" /etc/hosts; mount --bind "$1" /etc/resolv.conf; shift; exec "$@"`, hosts, resolv}
	if err := n.StartUnder(ctx, wrapper, "--etcd-endpoints="+strings.Join(urls, ",")); err != nil {
		t.Fatal(err)
	}
	before := cluster.WaitState(ctx, t, n, api.StateHeld)

	write(hosts, "")
	for _, e := range c.EtcdMembers() {
		e.Kill()
	}
	s := slowly(ctx, t, n, "says that the names do not resolve", func(s *api.Status) bool {
		for _, e := range s.Etcd.Endpoints {
			if e.Healthy || !strings.Contains(e.Reason, "cannot be resolved") {
				return false
			}
		}
		return cluster.HasProblem(s, "etcd-unreachable")
	})
	t.Logf("status: %s; %+v", problem(s, "etcd-unreachable").Text, s.Etcd.Endpoints)
	if r := cluster.Run(ctx, t, n, "tenurectl", "status", "--socket="+n.Socket); !strings.Contains(r.Out, "the name member1.example cannot be resolved") {
		t.Errorf("tenurectl status does not say that the name cannot be resolved: %s", r)
	}
	for _, e := range c.EtcdMembers() {
		if err := e.Launch(); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Stays(ctx, t, away, "the node serves on", func() error {
		s, err := n.Status(ctx)
		if err == nil && (s.State != api.StateUnproven || !s.Ready) {
			err = fmt.Errorf("it is %s, ready %t: %s", s.State, s.Ready, s.Reason)
		}
		return err
	})
	store := c.Store(t)
	takesWrites(ctx, t, store)
	peers := publish(ctx, store, 1)
	write(hosts, known)
	took := arrives(ctx, t, backTime, n, peers)
	after := within(ctx, t, backTime-took, n, "is held and well", func(s *api.Status) bool {
		return s.State == api.StateHeld && !cluster.HasProblem(s, "etcd-unreachable")
	})
	if after.Lease.Epoch != before.Lease.Epoch || after.Subnet != before.Subnet {
		t.Errorf("it holds %s under %+v, it held %s under %+v", after.Subnet, after.Lease, before.Subnet, before.Lease)
	}
	t.Logf("the news was there %s after the names were", took)
}
