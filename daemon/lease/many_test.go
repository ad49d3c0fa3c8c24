package lease

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// joinAtOnce lets so many nodes join a large network at once, and returns what
// each of them asked of etcd for that, by method.
func joinAtOnce(t *testing.T, nodes int) map[string]float64 {
	t.Helper()
	s, _ := cluster(t, `{"Network":"10.0.0.0/8","LeaseTTL":"10m"}`)
	p := etcdproxy.Start(t, s.Endpoint)
	var all []*daemon
	for i := range nodes {
		h := newHost(t, fmt.Sprintf("n%d", i), p.URL())
		h.publishes(fmt.Sprintf("192.0.2.%d", 1+i), nil)
		all = append(all, h.start())
	}
	tenants := map[Subnets]string{}
	for i, d := range all {
		sub := d.waitHeld().Holding.Subnets()
		if other := tenants[sub]; other != "" {
			t.Errorf("%s is held by n%d and by %s", sub, i, other)
		}
		tenants[sub] = fmt.Sprintf("n%d", i)
	}
	each := map[string]float64{}
	for _, method := range []string{pb.KV_Range_FullMethodName, pb.KV_Txn_FullMethodName, pb.Lease_LeaseGrant_FullMethodName,
		pb.Lease_LeaseKeepAlive_FullMethodName, pb.Lease_LeaseTimeToLive_FullMethodName, pb.Watch_Watch_FullMethodName} {
		each[method] = float64(p.Count(method)) / float64(nodes)
	}
	for _, d := range all {
		d.stop()
	}
	return each
}

// TestManyJoinAtOnce: every node has a subnet of its own, and what a node asks of
// etcd does not grow with how many there are: in all it is linear, where one that
// asks about each of the others makes it quadratic.
func TestManyJoinAtOnce(t *testing.T) {
	t.Parallel()
	few, many := joinAtOnce(t, 10), joinAtOnce(t, 50)
	t.Logf("per node: of ten %v, of fifty %v", few, many)
	for method, n := range many {
		if n > few[method]+1 {
			t.Errorf("%s: %.1f per node of fifty, %.1f per node of ten", method, n, few[method])
		}
	}
	// A list of the loop and one of the watch; an acquisition and a proof.
	if lists, txns := many[pb.KV_Range_FullMethodName], many[pb.KV_Txn_FullMethodName]; lists > 3 || txns > 3 {
		t.Errorf("per node of fifty %.1f lists and %.1f transactions", lists, txns)
	}
}

// tapped is a Source that says how often it was asked.
type tapped struct {
	keys           Keys
	lists, watches atomic.Int64
}

func (s *tapped) List(ctx context.Context, c *clientv3.Client) (*Snapshot, error) {
	s.lists.Add(1)
	return list(ctx, c, newMirror(s.keys), maxCall)
}

func (s *tapped) Watch(ctx context.Context, c *clientv3.Client, onNew func(*Snapshot)) {
	s.watches.Add(1)
	NewWatcher(c, s.keys, slog.New(slog.DiscardHandler), onNew, func() {}).Run(ctx)
}

// TestSource: an engine that is given a Source has all it knows of others from
// it, and neither lists nor watches by itself.
func TestSource(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, fourSubnets)
	p := etcdproxy.Start(t, s.Endpoint)
	h, src := newHost(t, "n1", p.URL()), &tapped{keys: NewKeys(prefix)}
	e := h.engine()
	e.cfg.Source = src
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Run(ctx, h.fence) }()
	defer func() { cancel(); <-done }()
	d := &daemon{Engine: e, t: t}
	d.waitHeld()
	newHost(t, "n2", s.Endpoint).start().waitHeld()
	d.wait("the peer", func(v View) bool { return len(v.Snapshot.Entries) == 2 })
	lists, watches := src.lists.Load(), src.watches.Load()
	if asked := int64(p.Count(pb.KV_Range_FullMethodName)); watches != 1 || lists == 0 || asked != lists+watches {
		t.Errorf("%d lists and %d watches of the source, %d lists in all", lists, watches, asked)
	}
}
