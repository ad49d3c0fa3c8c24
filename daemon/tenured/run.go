package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/dirlock"
	"github.com/tenure-cni/tenure/daemon/fence"
	"github.com/tenure-cni/tenure/daemon/flows"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/daemon/node"
	"github.com/tenure-cni/tenure/daemon/pathmtu"
	"github.com/tenure-cni/tenure/daemon/server"
	"github.com/tenure-cni/tenure/ipam"
)

// run wires the daemon and runs it until ctx ends. An error is one that no
// retry can cure.
func run(ctx context.Context, cfg conf.Daemon, log *slog.Logger) error {
	unlock, err := dirlock.Hold(cfg.RunDir, cfg.StateDir)
	if err != nil {
		return err
	}
	defer unlock()
	d, err := wire(cfg, log)
	if err != nil {
		return err
	}
	uid, err := holdUID(d.memory.Get().UID)
	if err != nil {
		return err
	}
	// What was queued while no daemon ran is freed before anybody is served.
	d.queue.drain(ctx)
	l, err := server.Listen(cfg.Socket)
	if err != nil {
		return errors.Join(err, uid.Close())
	}
	log.Info("tenured runs", "version", version, "node", cfg.NodeName, "uid", d.memory.Get().UID, "socket", cfg.Socket)

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Serve(ctx, l, d.handlers(), log) })
	g.Go(func() error { return l.Watch(ctx, log, d.queue.drain) })
	g.Go(func() error { return d.holdIdentity(ctx, uid) })
	g.Go(func() error { return d.underlay.Run(ctx) })
	g.Go(func() error { return d.endpoints.Run(ctx, d.engine) })
	g.Go(func() error { return d.files(ctx) })
	g.Go(func() error { return d.serveMetrics(ctx) })
	g.Go(func() error { return d.queue.run(ctx) })
	g.Go(func() error { return d.node.Collect(ctx) })
	g.Go(func() error { return d.hook.Run(ctx) })
	g.Go(func() error { return d.flows.Run(ctx) })
	g.Go(func() error { return d.paths.Run(ctx) })
	g.Go(func() error { return d.tenancy(ctx) })
	g.Go(func() error { return watchdog(ctx, cfg.Socket, log) })
	if cfg.EtcdEmbedded {
		g.Go(func() error { return d.embedded.run(ctx) })
	}
	if _, err := sd.SdNotify(false, sd.SdNotifyReady); err != nil {
		log.Warn("systemd was not told that the daemon is up", "error", err)
	}
	defer d.attacher.Wait()
	return g.Wait()
}

// daemon is the parts, wired.
type daemon struct {
	cfg       conf.Daemon
	log       *slog.Logger
	memory    *lease.MemoryFile
	underlay  *underlay
	endpoints *endpoints
	bridges   *bridges
	podMTUs   *podMTUs
	paths     *pathmtu.Checker
	embedded  *embedded
	engine    *lease.Engine
	plane     *lateLoop
	attacher  *attach.Attacher
	node      *node.Node
	queue     *queue
	hook      stranding
	times     *server.Times
	flows     *flows.Forgetter
	fence     atomic.Pointer[fence.Fence] // nil before there is one; its counts are read
	moved     chan struct{}               // capacity 1: the underlay changed, files may too
	// former are the subnets of before this start.
	former []netip.Prefix
}

// wire makes every part; nothing runs yet. Its errors are those of this
// machine's files, which no retry cures.
func wire(cfg conf.Daemon, log *slog.Logger) (*daemon, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	d := &daemon{cfg: cfg, log: log, plane: newLateLoop(), times: server.NewTimes(), moved: make(chan struct{}, 1)}
	etcd, step := &connections{}, stopAt()
	if d.memory, err = lease.OpenMemory(cfg.StateDir, productUUID()); err != nil {
		return nil, err
	}
	if d.memory.SetAside != "" {
		log.Warn("node.json was damaged; this node starts with a new identity", "kept", d.memory.SetAside)
	}
	if d.underlay, err = newUnderlay(cfg, log); err != nil {
		return nil, err
	}
	d.embedded = &embedded{cfg: cfg, log: log}
	d.endpoints = newEndpoints(cfg.Etcd, d.embedded.Problems)
	d.engine = lease.NewEngine(lease.Config{
		Dial:      func() (*clientv3.Client, error) { return lease.Dial(cfg.Etcd, grpc.WithContextDialer(etcd.dial)) },
		Endpoints: cfg.Etcd.Endpoints, Prefix: cfg.Etcd.Prefix, Node: cfg.NodeName,
		Boot: boot, Memory: d.memory, Clock: fence.BootTime, Clocks: clocks, Flannel: d.underlay.flannelUp, Running: uidRuns,
		Ready: d.underlay.Ready, Local: d.underlay.local, Public: d.underlay.public, Silent: d.underlay.silent, Publish: d.publish, Judge: d.judge, Birth: cfg.NetworkConfig, Why: d.endpoints.why, Step: step, Log: log,
	})
	d.underlay.onChange, d.underlay.onLook = d.underlayMoved, etcd.closeFrom
	d.bridges = &bridges{ours: dataplane.Desired{Name: cfg.Name}.BridgeName()}
	d.podMTUs = &podMTUs{instance: cfg.Name}
	d.underlay.onLinks = func(links []netlink.Link, addrs []netlink.Addr) {
		d.podMTUs.look(links)
		d.bridges.look(links, addrs, d.engine.View().Holding.Subnets())
	}
	d.underlay.network = func() *conf.Network { return d.engine.View().Network }
	d.underlay.onTaken, d.underlay.reached, d.underlay.announced = d.engine.Rejudge, etcd.reached, d.announced
	etcd.onAgain = d.engine.Touch // a proof shows whether it is the same store
	d.attacher = attach.New(cfg.Name, netns.None(), log)
	d.attacher.Step = step
	if d.former, err = d.heldBefore(d.attacher); err != nil {
		return nil, err
	}
	ledger, err := openLedger(cfg, ipam.Options{Boot: boot, Cooldown: cfg.AddressCooldown, Exclude: cfg.Exclude, Log: log, Step: step, Took: d.ledgerTook}, d.attacher, d.former)
	if err != nil {
		return nil, err
	}
	d.hook, d.flows = d.onStranded(boot), flows.New(netns.None(), log)
	d.node = node.New(node.Config{
		Instance: cfg.Name, NodeName: cfg.NodeName, UID: d.memory.Get().UID, Version: version, Prefix: cfg.Etcd.Prefix,
		Clock: fence.BootTime, Underlay: d.underlay.Get, UnderlayErr: d.underlay.Err,
		Masq: cfg.IPMasq, MasqRandomFully: cfg.MasqRandomFully, ForwardAccept: cfg.ForwardAccept, ClampMSS: cfg.ClampMSS, TxChecksum: cfg.TxChecksum, Holes: d.holes,
		Tenancy: d.engine, GiveUp: d.engine.Leave, Forget: d.engine.ForgetNetworks, Ledger: ledger, Interfaces: timedInterfaces{d.attacher, d.times}, Plane: d.plane, Store: d.endpoints, Hook: d.hook, Neighbours: d.attacher, Flows: d.flows, Surroundings: d.surroundings, Log: log, Step: step,
	})
	d.paths = pathmtu.New(d.node.Ways, d.node.Touch, log)
	d.queue = &queue{dir: queueDir(cfg.Socket), node: d.node, log: log}
	return d, nil
}

// tenancy opens the fence, however long that takes, and then holds the subnet
// and keeps the data plane. Without a fence nothing is held: the node is
// refused and says why.
func (d *daemon) tenancy(ctx context.Context) error {
	f, kernel, err := d.openKernel(ctx)
	if err != nil {
		return nil // ctx ended
	}
	loop := dataplane.New(kernel, d.log, dataplane.Options{})
	d.plane.use(loop)
	d.fence.Store(f)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return loop.Run(ctx) })
	g.Go(func() error { return d.node.Run(ctx) })
	g.Go(func() error {
		if err := d.engine.Run(ctx, kernelFence{f}); !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	})
	return g.Wait()
}
