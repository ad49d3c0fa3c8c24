package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/lab"
)

// quiet is one cluster that is watched while nothing happens in it.
type quiet struct {
	ttl string
	// every is how often a node renews, window how long they are watched.
	every, window time.Duration
	// hosts are the beginning of its nodes' names.
	hosts string
}

// etcdPart counts what daemons ask of etcd while nothing happens, by etcd's own
// counters, for the default LeaseTTL and for the least.
func etcdPart(ctx context.Context, b *bench) error {
	if b.plainOnly {
		return nil
	}
	// Nobody else may ask meanwhile.
	for _, n := range b.nodes {
		if err := n.Stop(ctx); err != nil {
			return err
		}
	}
	t := newTable("Requests to etcd, per node and hour")
	for _, q := range []quiet{
		{"24h", 30 * time.Second, 90 * time.Second, "long"},
		{"5s", 5 * time.Second / 3, 30 * time.Second, "short"},
	} {
		if err := q.count(ctx, b, t); err != nil {
			return err
		}
	}
	for _, n := range b.nodes {
		if err := b.daemon(ctx, n); err != nil {
			return err
		}
	}
	return t.print(os.Stdout)
}

// count starts three nodes with a prefix of their own, watches and stops them.
func (q quiet) count(ctx context.Context, b *bench, t *table) error {
	var nodes []*lab.Node
	for i := range 3 {
		n, err := b.lab.AddNode(ctx, fmt.Sprintf("%s%d", q.hosts, i+1))
		if err != nil {
			return err
		}
		if err := n.Start(ctx, "--etcd-prefix=/bench/"+q.hosts, "--new-cluster",
			fmt.Sprintf(`--network-config={"Network":"10.5.0.0/16","LeaseTTL":%q}`, q.ttl)); err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		if err := settled(ctx, n, len(nodes)-1); err != nil {
			return err
		}
	}
	// They were started together, so that they renew together: a window that
	// began with a renewal would have one too many or too few.
	if err := pause(ctx, q.every/2); err != nil {
		return err
	}
	before, err := b.lab.Etcd.Requests(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := pause(ctx, q.window); err != nil {
		return err
	}
	after, err := b.lab.Etcd.Requests(ctx)
	if err != nil {
		return err
	}
	q.add(t, before, after, float64(len(nodes))*time.Since(began).Hours())
	for _, n := range nodes {
		if err := n.Stop(ctx); err != nil {
			return err
		}
	}
	return nil
}

// add fills a row; hours are those of all nodes together.
func (q quiet) add(t *table, before, after map[string]int, hours float64) {
	row, all, named := "LeaseTTL "+q.ttl, 0, 0
	for method, n := range after {
		all += n - before[method]
	}
	for _, column := range []struct{ name, method string }{
		{"keep-alives", "LeaseKeepAlive"}, {"proofs", "Txn"}, {"reads", "Range"},
	} {
		n := after[column.method] - before[column.method]
		named += n
		t.add(row, column.name, float64(n)/hours)
	}
	t.add(row, "others", float64(all-named)/hours)
	t.add(row, "all", float64(all)/hours)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settled waits until the node is ready and has so many peers in its kernel.
func settled(ctx context.Context, n *lab.Node, peers int) error {
	_, err := n.WaitState(ctx, "has its peers", func(s *api.Status) bool {
		programmed := 0
		for _, p := range s.Peers {
			if p.State == api.PeerProgrammed {
				programmed++
			}
		}
		return s.Ready && programmed == peers
	})
	return err
}
