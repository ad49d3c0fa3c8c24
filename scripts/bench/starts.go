package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/tenure-cni/tenure/test/lab"
)

const (
	// startsConfig is the cluster's; startsLimit bounds one start.
	startsConfig = `{"Network":"10.5.0.0/16"}`
	startsLimit  = 2 * time.Minute
)

// startsPart counts what clusters of real daemons ask of etcd from their start
// until everybody has everybody in the kernel.
func startsPart(ctx context.Context, b *bench) error {
	t := newTable("Daemons start at once, until all have all in their kernels")
	for _, count := range b.scale.starts {
		if err := b.apart(ctx, fmt.Sprintf("starts%d", count), 1, func(l *lab.Lab, _ *lab.EtcdCluster) error {
			ctx, cancel := context.WithTimeout(ctx, startsLimit)
			defer cancel()
			return startAll(ctx, l, count, t)
		}); err != nil {
			return fmt.Errorf("%d daemons: %w", count, err)
		}
	}
	first, last := b.scale.starts[0], b.scale.starts[len(b.scale.starts)-1]
	per := func(count int) float64 { return t.at(daemons(count), "requests per daemon", 50) }
	b.goals = append(b.goals, goal{fmt.Sprintf("requests per daemon, %d to %d that start (1 is linear)", last, first), 1.25, per(last) / per(first)})
	return t.print(os.Stdout)
}

func daemons(count int) string { return fmt.Sprintf("%d daemons", count) }

func startAll(ctx context.Context, l *lab.Lab, count int, t *table) error {
	for i := range count {
		if _, err := l.AddNode(ctx, fmt.Sprintf("s%d", i+1)); err != nil {
			return err
		}
	}
	before, err := l.Etcd.Requests(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := everyNode(l, func(n *lab.Node) error {
		return n.Start(ctx, "--new-cluster", "--network-config="+startsConfig, "--metrics-listen=")
	}); err != nil {
		return err
	}
	if err := everyNode(l, func(n *lab.Node) error { return settled(ctx, n, count-1) }); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := l.Etcd.Requests(ctx)
	if err != nil {
		return err
	}
	all := 0
	for method, n := range after {
		all += n - before[method]
	}
	row := daemons(count)
	t.add(row, "s", took.Seconds())
	t.add(row, "requests", float64(all))
	t.add(row, "requests per daemon", float64(all)/float64(count))
	for _, method := range []string{"Range", "Txn", "LeaseGrant", "LeaseKeepAlive", "LeaseTimeToLive", "Watch"} {
		t.add(row, method, float64(after[method]-before[method]))
	}
	return nil
}

// everyNode does f for all nodes at once.
func everyNode(l *lab.Lab, f func(*lab.Node) error) error {
	nodes := l.Nodes()
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() { errs[i] = f(n) })
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("%s: %w", nodes[i].Host, err)
		}
	}
	return nil
}
