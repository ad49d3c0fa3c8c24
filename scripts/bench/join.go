package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
)

const (
	// joiners come at once, to a pool of exactly so many subnets.
	joiners  = 200
	joinPool = `{"Network":"10.7.0.0/16","SubnetMin":"10.7.1.0","SubnetMax":"10.7.200.0"}`
	// joinLimit bounds one round.
	joinLimit = 2 * time.Minute
)

// joinPart lets many nodes join at once: the lease engines of the daemon, all
// in this process, each with an etcd client of its own. Their fences are
// registers in memory, as this is about etcd and not about the kernel.
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
	engines, err := b.engines(prefix, round, slog.New(races))
	if err != nil {
		return err
	}
	before, err := b.lab.Etcd.Requests(ctx)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	began, worked := time.Now(), ownCPU()
	for _, e := range engines {
		all.Go(func() { _ = e.Run(running, &register{}) })
	}
	for i, e := range engines {
		if err := held(ctx, e); err != nil {
			return fmt.Errorf("joiner %d of %d: %w", i, joiners, err)
		}
	}
	took, worked := time.Since(began), ownCPU()-worked
	after, err := b.lab.Etcd.Requests(ctx)
	if err != nil {
		return err
	}
	twice, err := tenants(ctx, client, prefix, start.Header.Revision)
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

// held waits until the engine has proven a subnet.
func held(ctx context.Context, e *lease.Engine) error {
	for {
		v, changed := e.Changed()
		if v.State == api.StateHeld {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("state %s (%s): %w", v.State, v.Reason, ctx.Err())
		}
	}
}

// tenants reads the whole history of the round: every subnet that was ever
// written has one tenant, and there are as many as joiners. It returns how many
// had another before.
func tenants(ctx context.Context, client *clientv3.Client, prefix string, since int64) (twice int, err error) {
	now, err := client.Get(ctx, prefix+"/subnets/", clientv3.WithPrefix())
	if err != nil {
		return 0, fmt.Errorf("read subnets: %w", err)
	}
	if len(now.Kvs) != joiners {
		return 0, fmt.Errorf("%d subnets are held by %d nodes", len(now.Kvs), joiners)
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

// engines are those of the joiners, not running yet.
func (b *bench) engines(prefix string, round int, log *slog.Logger) ([]*lease.Engine, error) {
	var all []*lease.Engine
	for i := range joiners {
		dir := filepath.Join(b.lab.Dir(), fmt.Sprintf("join%d", round), fmt.Sprint(i))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("directory of joiner %d: %w", i, err)
		}
		memory, err := lease.OpenMemory(dir, "")
		if err != nil {
			return nil, err
		}
		addr := netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)})
		all = append(all, lease.NewEngine(lease.Config{
			Dial: b.lab.Etcd.Client, Endpoints: []string{b.lab.Etcd.URL()}, Prefix: prefix,
			Node: fmt.Sprintf("joiner%d", i), Boot: fmt.Sprintf("boot%d", i),
			Memory: memory, Clock: bootTime,
			Publish: func(_ conf.Network, s lease.Subnets, epoch int64) (lease.Record, error) {
				return lease.Record{PublicIP: addr, BackendType: "vxlan",
					BackendData: &lease.BackendData{VNI: 1, VtepMAC: lease.VTEPMAC(prefix, s, epoch)}}, nil
			},
			Ready:  func() error { return nil },
			Local:  func(a netip.Addr) bool { return a == addr },
			Silent: func(context.Context, netip.Addr) (bool, error) { return true, nil },
			Log:    log,
		}))
	}
	return all, nil
}

// ownCPU is what this process has worked since its start.
func ownCPU() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r) // fails for an unknown "who" only
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func bootTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // it cannot fail on a Linux that runs Go
	return time.Duration(ts.Nano())
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

// register is a fence that holds nothing back and remembers what a kernel would.
type register struct {
	mu       sync.Mutex
	gen      uint64
	live     lease.Subnets
	deadline time.Duration
}

// errStale says that the register was closed since its generation was read.
var errStale = errors.New("closed since")

// Close implements lease.Fence.
func (r *register) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gen, r.deadline = r.gen+1, 0
	return nil
}

// Generation implements lease.Fence.
func (r *register) Generation() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gen
}

// Set implements lease.Fence.
func (r *register) Set(live, _ lease.Subnets) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if live != r.live {
		r.gen, r.deadline, r.live = r.gen+1, 0, live
	}
	return nil
}

// Arm implements lease.Fence.
func (r *register) Arm(gen uint64, deadline time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if gen != r.gen {
		return errStale
	}
	r.deadline = deadline
	return nil
}

// Deadline implements lease.Fence.
// CutTo implements lease.Fence.
func (r *register) CutTo(deadline time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gen++
	r.deadline = min(r.deadline, deadline)
	return nil
}

func (r *register) Deadline() (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deadline, nil
}

// Live implements lease.Fence.
func (r *register) Live() (lease.Subnets, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live, nil
}
