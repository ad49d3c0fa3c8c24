package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/lab/labtest"
	"github.com/tenure-cni/tenure/test/packaged"
)

// PodNetwork holds all pods of a cluster.
const PodNetwork = "10.5.0.0/16"

// Network is the network config of tests in which no lease ends by itself. Nodes
// draw below what FakePeer and others have in the tests.
const Network = `{"Network":"` + PodNetwork + `","SubnetMax":"10.5.189.0"}`

// ShortLease is the one of tests in which leases end: the overlay closes 4 s,
// and the subnet is free 5 s, after the last proof. Nodes draw as in Network.
const ShortLease = `{"Network":"10.5.0.0/16","SubnetMax":"10.5.189.0","LeaseTTL":"5s"}`

// Cluster is a lab with an etcd in which the cluster has been born.
type Cluster struct {
	*lab.Lab
	// Nodes are those named at the start, in that order.
	Nodes []*lab.Node
}

// Context ends after d, or with the test.
func Context(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// Born makes a lab with an etcd and the named nodes, and births the cluster
// with the network config. No daemon runs yet.
func Born(ctx context.Context, t testing.TB, network string, names ...string) *Cluster {
	t.Helper()
	return BornIn(ctx, t, lab.Options{}, network, names...)
}

// BornIn is Born in a lab with options, such as IPv6 on the LAN.
func BornIn(ctx context.Context, t testing.TB, opts lab.Options, network string, names ...string) *Cluster {
	t.Helper()
	l, nodes := labtest.Cluster(t, opts, names...)
	c := &Cluster{Lab: l, Nodes: nodes}
	c.Init(ctx, t, network)
	return c
}

// BornOn is Born on an etcd of that many members.
func BornOn(ctx context.Context, t testing.TB, members int, network string, names ...string) *Cluster {
	t.Helper()
	c := &Cluster{Lab: labtest.New(t, lab.Options{})}
	if _, err := c.StartEtcdCluster(ctx, members); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		c.Nodes = append(c.Nodes, c.AddNode(ctx, t, name))
	}
	c.Init(ctx, t, network)
	return c
}

// New is Born, and then every node's daemon runs, holds a subnet and has all
// others as peers.
func New(ctx context.Context, t testing.TB, network string, names ...string) *Cluster {
	t.Helper()
	c := Born(ctx, t, network, names...)
	Start(ctx, t, c.Nodes...)
	WaitPeers(ctx, t, c.Nodes...)
	return c
}

// Init births the cluster with tenurectl, as an operator does.
func (c *Cluster) Init(ctx context.Context, t testing.TB, network string, flags ...string) {
	t.Helper()
	args := append([]string{"init", "--network-config=" + network, "--etcd-endpoints=" + c.Etcd.URL()}, flags...)
	r := Run(ctx, t, c.Etcd.NS, "tenurectl", args...)
	if r.Code != 0 {
		t.Fatalf("birth of the cluster: %s", r)
	}
}

// AddNode adds a node without a daemon.
func (c *Cluster) AddNode(ctx context.Context, t testing.TB, name string) *lab.Node {
	t.Helper()
	n, err := c.Lab.AddNode(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Start starts the daemons of the nodes and waits until each holds a subnet.
func Start(ctx context.Context, t testing.TB, nodes ...*lab.Node) {
	t.Helper()
	for _, n := range nodes {
		if err := n.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range nodes {
		WaitState(ctx, t, n, api.StateHeld)
	}
}

// WaitState waits until the node says that it is in the state.
func WaitState(ctx context.Context, t testing.TB, n *lab.Node, state api.State) *api.Status {
	t.Helper()
	return Wait(ctx, t, n, "is "+string(state), func(s *api.Status) bool { return s.State == state })
}

// Wait waits until the node's status is as wanted, and returns it.
func Wait(ctx context.Context, t testing.TB, n *lab.Node, what string, want func(*api.Status) bool) *api.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	s, err := n.WaitState(ctx, what, want)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Status is what the daemon says now.
func Status(ctx context.Context, t testing.TB, n *lab.Node) *api.Status {
	t.Helper()
	s, err := n.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// HasProblem tells whether a problem with that code stands.
func HasProblem(s *api.Status, code string) bool {
	for _, p := range s.Problems {
		if p.Code == code {
			return true
		}
	}
	return false
}

// Well tells that nothing is wrong with a node. What it says of an old etcd does
// not count: that one is the choice of who runs the tests (package packaged).
func Well(s *api.Status) bool {
	for _, p := range s.Problems {
		if p.Code != "etcd-version" || packaged.Program() == "" {
			return false
		}
	}
	return true
}

// WaitPeers waits until each of the nodes has every other one in its kernel.
func WaitPeers(ctx context.Context, t testing.TB, nodes ...*lab.Node) {
	t.Helper()
	for _, n := range nodes {
		for _, other := range nodes {
			if other == n {
				continue
			}
			Wait(ctx, t, n, "has programmed "+other.Host, func(s *api.Status) bool {
				for _, p := range s.Peers {
					if p.Node == other.Host && p.State == api.PeerProgrammed {
						return true
					}
				}
				return false
			})
		}
	}
}

// Eventually waits up to d until probe returns nil.
func Eventually(ctx context.Context, t testing.TB, d time.Duration, what string, probe func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if err := lab.Eventually(ctx, what, probe); err != nil {
		t.Fatal(err)
	}
}

// Stays makes sure that probe returns nil for all of d: for what must not
// happen, nothing but time can be waited for.
func Stays(ctx context.Context, t testing.TB, d time.Duration, what string, probe func() error) {
	t.Helper()
	short, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	errStill := errors.New("as it should be")
	err := lab.Eventually(short, what, func() error {
		if err := probe(); err != nil && short.Err() == nil {
			t.Fatalf("%s: %v", what, err)
		}
		return errStill
	})
	if !errors.Is(err, errStill) || ctx.Err() != nil {
		t.Fatal(fmt.Errorf("%s: %w", what, errors.Join(err, ctx.Err())))
	}
}

// Node is the node of that name.
func (c *Cluster) Node(t testing.TB, name string) *lab.Node {
	t.Helper()
	for _, n := range c.Lab.Nodes() {
		if n.Host == name {
			return n
		}
	}
	t.Fatalf("no node %s", name)
	return nil
}
