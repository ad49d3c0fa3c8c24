package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/test/fencetest"
	"github.com/tenure-cni/tenure/test/lab"
)

// fleet is many nodes in this process: the lease engine of each, with an etcd
// client, a node.json and a fence of its own. Fences are registers in memory, as
// this is about etcd and not about the kernel.
type fleet struct {
	etcd   []*lab.Etcd // its members
	prefix string
	dir    string // for every node.json
	log    *slog.Logger
	// shared, if set, has the records for all of them.
	shared *shared

	ships  []*ship
	cancel context.CancelFunc
	all    sync.WaitGroup
	dials  chan struct{} // room for those at once
}

// ship is one node; its fence and its node.json outlive its engine.
type ship struct {
	engine *lease.Engine
	fence  *register
	done   chan struct{} // closed when the engine has ended
}

// mostDials bounds the dials at once: each takes a thread, to be in etcd's
// namespace.
const mostDials = 64

// fill makes so many nodes, which do not run yet. It is also what a restart of
// all begins with: the kernel remembers its deadline, and node.json the rest.
func (f *fleet) fill(count int) error {
	f.dials = make(chan struct{}, mostDials)
	for i := range count {
		if len(f.ships) <= i {
			f.ships = append(f.ships, &ship{fence: &register{}})
		}
		dir := filepath.Join(f.dir, fmt.Sprint(i))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("directory of node %d: %w", i, err)
		}
		memory, err := lease.OpenMemory(dir, "")
		if err != nil {
			return err
		}
		f.ships[i].engine = f.engine(i, memory)
	}
	return nil
}

func (f *fleet) engine(i int, memory *lease.MemoryFile) *lease.Engine {
	addr := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) // announced only
	var urls []string
	for _, e := range f.etcd {
		urls = append(urls, e.URL())
	}
	cfg := lease.Config{
		Dial: func() (*clientv3.Client, error) {
			return lease.Dial(conf.Etcd{Endpoints: urls}, grpc.WithContextDialer(f.dial))
		},
		Endpoints: urls, Prefix: f.prefix,
		Node: fmt.Sprintf("node%d", i), Boot: fmt.Sprintf("boot%d", i),
		Memory: memory, Clock: bootTime,
		Publish: func(_ conf.Network, s lease.Subnets, epoch int64) (lease.Record, error) {
			return lease.Record{PublicIP: addr, BackendType: "vxlan",
				BackendData: &lease.BackendData{VNI: 1, VtepMAC: lease.VTEPMAC(f.prefix, s, epoch)}}, nil
		},
		Ready:  func(*conf.Network) error { return nil },
		Local:  func(a netip.Addr) bool { return a == addr },
		Silent: func(context.Context, netip.Addr) (bool, error) { return true, nil },
		Log:    f.log,
	}
	if f.shared != nil {
		cfg.Source = &tap{shared: f.shared, prefix: lease.NewKeys(f.prefix).All()}
	}
	return lease.NewEngine(cfg)
}

func (f *fleet) dial(ctx context.Context, address string) (net.Conn, error) {
	select {
	case f.dials <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-f.dials }()
	return f.etcd[0].Dial(ctx, "tcp", address)
}

// start runs all of them at once.
func (f *fleet) start(ctx context.Context) {
	ctx, f.cancel = context.WithCancel(ctx)
	for _, s := range f.ships {
		done := make(chan struct{})
		s.done = done
		f.all.Go(func() { defer close(done); _ = s.engine.Run(ctx, s.fence) })
	}
}

// stop ends them; they give nothing up.
func (f *fleet) stop() {
	if f.cancel != nil {
		f.cancel()
	}
	f.all.Wait()
}

// held waits until all have proven a subnet.
func (f *fleet) held(ctx context.Context) error { return f.proven(ctx, 0) }

// proven waits until all have proven their subnets by a question of after that
// time.
func (f *fleet) proven(ctx context.Context, after time.Duration) error {
	for i, s := range f.ships {
		if err := proven(ctx, s.engine, after); err != nil {
			return fmt.Errorf("node %d of %d: %w", i, len(f.ships), err)
		}
	}
	return nil
}

func proven(ctx context.Context, e *lease.Engine, after time.Duration) error {
	for {
		v, changed := e.Changed()
		if v.State == api.StateHeld && v.LastProof > after {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("state %s (%s): %w", v.State, v.Reason, ctx.Err())
		}
	}
}

func bootTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // it cannot fail on a Linux that runs Go
	return time.Duration(ts.Nano())
}

// register is a fence that holds nothing back.
type register = fencetest.Register[lease.Subnets]
