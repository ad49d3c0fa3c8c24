package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/test/lab"
)

const (
	// joiners come at once, to a pool of exactly so many subnets.
	joiners  = 200
	joinPool = `{"Network":"10.7.0.0/16","SubnetMin":"10.7.1.0","SubnetMax":"10.7.200.0"}`
	// joinLimit bounds one round.
	joinLimit = 2 * time.Minute
)

// joinPart lets many nodes join at once: the lease engines of the daemon, all
// in this process, each with an etcd client, lists and a watch of its own.
func joinPart(ctx context.Context, b *bench) error {
	if b.plainOnly {
		return nil
	}
	t := newTable(fmt.Sprintf("%d nodes join at once, pool of %d", joiners, joiners))
	for round := range b.rounds {
		if err := joinOnce(ctx, b, t, round); err != nil {
			return err
		}
	}
	return t.print(os.Stdout)
}

func joinOnce(ctx context.Context, b *bench, t *table, round int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	client, err := b.lab.Etcd.Client()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	prefix := fmt.Sprintf("/bench/join%d", round)
	if _, err := lease.Init(ctx, client, prefix, []byte(joinPool)); err != nil {
		return err
	}
	start, err := client.Get(ctx, prefix)
	if err != nil {
		return fmt.Errorf("read revision: %w", err)
	}
	races := &racesLost{}
	f := &fleet{etcd: []*lab.Etcd{b.lab.Etcd}, prefix: prefix, dir: filepath.Join(b.lab.Dir(), fmt.Sprintf("join%d", round)), log: slog.New(races)}
	if err := f.fill(joiners); err != nil {
		return err
	}
	before, err := b.lab.Etcd.Requests(ctx)
	if err != nil {
		return err
	}
	defer f.stop()
	began, worked := time.Now(), ownCPU()
	f.start(ctx)
	if err := f.held(ctx); err != nil {
		return err
	}
	took, worked := time.Since(began), ownCPU()-worked
	after, err := b.lab.Etcd.Requests(ctx)
	if err != nil {
		return err
	}
	twice, err := tenants(ctx, client, prefix, start.Header.Revision, joiners)
	if err != nil {
		return err
	}
	const row = "tenured's lease engines"
	t.add(row, "until all hold, s", took.Seconds())
	t.add(row, "CPU of all of them, s", worked.Seconds())
	t.add(row, "transactions", float64(after["Txn"]-before["Txn"]))
	t.add(row, "reads", float64(after["Range"]-before["Range"]))
	t.add(row, "lost races", float64(races.n.Load()))
	t.add(row, "subnets given twice", float64(twice))
	return nil
}

// tenants reads the whole history of the round: every subnet that was ever
// written has one tenant, and there are as many as nodes. It returns how many
// had another before.
func tenants(ctx context.Context, client *clientv3.Client, prefix string, since int64, nodes int) (twice int, err error) {
	now, err := client.Get(ctx, prefix+"/subnets/", clientv3.WithPrefix())
	if err != nil {
		return 0, fmt.Errorf("read subnets: %w", err)
	}
	if len(now.Kvs) != nodes {
		return 0, fmt.Errorf("%d subnets are held by %d nodes", len(now.Kvs), nodes)
	}
	last := int64(0)
	for _, kv := range now.Kvs {
		last = max(last, kv.ModRevision)
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	seen := tenancies{}
	for resp := range client.Watch(watching, prefix+"/subnets/", clientv3.WithPrefix(), clientv3.WithRev(since+1)) {
		if err := resp.Err(); err != nil {
			return 0, fmt.Errorf("read history: %w", err)
		}
		for _, e := range resp.Events {
			r, err := lease.DecodeRecord(e.Kv.Value)
			if err != nil {
				return 0, fmt.Errorf("history of %s: %w", e.Kv.Key, err)
			}
			if seen.change(string(e.Kv.Key), r.Tenant().UID) {
				twice++
			}
			if e.Kv.ModRevision == last {
				return twice, nil
			}
		}
	}
	return 0, fmt.Errorf("read history: %w", ctx.Err())
}

// tenancies are the tenants of subnets, by key.
type tenancies map[string]string

// change notes a tenant and tells whether the subnet had another before.
func (t tenancies) change(key, uid string) bool {
	before := t[key]
	t[key] = uid
	return before != "" && before != uid
}

// ownCPU is what this process has worked since its start.
func ownCPU() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r) // fails for an unknown "who" only
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// racesLost is a log that counts the races and keeps nothing.
type racesLost struct{ n atomic.Int64 }

// Enabled implements slog.Handler.
func (r *racesLost) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (r *racesLost) Handle(_ context.Context, record slog.Record) error {
	if strings.HasPrefix(record.Message, "lost a race") {
		r.n.Add(1)
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (r *racesLost) WithAttrs([]slog.Attr) slog.Handler { return r }

// WithGroup implements slog.Handler.
func (r *racesLost) WithGroup(string) slog.Handler { return r }
