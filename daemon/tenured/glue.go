package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/fence"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/daemon/node"
	"github.com/tenure-cni/tenure/daemon/pathmtu"
	"github.com/tenure-cni/tenure/daemon/server"
)

// kernelFence is the fence as the lease engine knows it.
type kernelFence struct{ f *fence.Fence }

func (k kernelFence) Close() error { k.f.Close(); return nil }

func (k kernelFence) Generation() uint64 { return uint64(k.f.Generation()) }

func (k kernelFence) Set(live, network lease.Subnets) error {
	return k.f.Set(fence.Subnets(live), fence.Network(network))
}

func (k kernelFence) Arm(gen uint64, deadline time.Duration) error {
	return k.f.Arm(fence.Generation(gen), deadline)
}

func (k kernelFence) CutTo(deadline time.Duration) error { return k.f.CutTo(deadline) }

func (k kernelFence) Deadline() (time.Duration, error) { return k.f.Deadline(), nil }

func (k kernelFence) Live() (lease.Subnets, error) {
	live, _, err := k.f.Live()
	return lease.Subnets(live), err
}

// lateLoop is the data plane for the use cases: what they want before the
// loop can run is kept for it.
type lateLoop struct {
	mu    sync.Mutex
	loop  *dataplane.Loop
	ready chan struct{}
}

func newLateLoop() *lateLoop { return &lateLoop{ready: make(chan struct{})} }

func (l *lateLoop) use(loop *dataplane.Loop) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loop = loop
	close(l.ready)
}

func (l *lateLoop) get() *dataplane.Loop {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loop
}

// Set implements node.Plane; node.Run begins after use.
func (l *lateLoop) Set(d dataplane.Desired) {
	if loop := l.get(); loop != nil {
		loop.Set(d)
	}
}

// WaitConverged implements node.Plane.
func (l *lateLoop) WaitConverged(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("the data plane has not started: %w", ctx.Err())
	case <-l.ready:
		return l.get().WaitConverged(ctx)
	}
}

// Report implements node.Plane.
func (l *lateLoop) Report() dataplane.Report {
	if loop := l.get(); loop != nil {
		return loop.Report()
	}
	return dataplane.Report{}
}

// queue is the DELs that came while no daemon listened.
type queue struct {
	dir  string
	node *node.Node
	log  *slog.Logger
	mu   sync.Mutex // one drain at a time
}

func queueDir(socket string) string { return api.QueueDir(socket) }

func (q *queue) drain(ctx context.Context) {
	q.mu.Lock()
	defer q.mu.Unlock()
	err := api.Drain(q.dir, func(d api.Queued) error {
		del := q.node.Del
		if d.API == api.PathIPAM {
			del = q.node.IPAMDel
		}
		if resp := del(ctx, &d.Request); resp.Error != nil {
			return resp.Error
		}
		q.log.Info("queued DEL done", "container", d.ContainerID, "if", d.IfName)
		return nil
	})
	if err != nil {
		q.log.Warn("queued DELs remain", "error", err)
	}
}

// drainEvery bounds how long a DEL stays queued that met a daemon which was
// slow for a moment.
const drainEvery = 15 * time.Second

// run drains now and then until ctx ends.
func (q *queue) run(ctx context.Context) error {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			q.drain(ctx)
		}
	}
}

// afterDrain puts a drain before every call of f.
func (q *queue) afterDrain(f server.Giving) server.Giving {
	return func(ctx context.Context, r *api.Request, deliver func(*api.Response) error) {
		q.drain(ctx)
		f(ctx, r, deliver)
	}
}

func (d *daemon) handlers() server.Handlers {
	n := d.node
	h := server.Handlers{
		Status: n.Status, Leave: n.Leave, Etcd: d.etcdAccess,
		Add: d.times.Giving("ADD", d.queue.afterDrain(n.Add)), IPAMAdd: d.times.Giving("ADD", d.queue.afterDrain(n.IPAMAdd)),
		CNI:  map[string]server.Verb{"del": n.Del, "check": n.Check, "gc": n.GC, "status": n.Ready},
		IPAM: map[string]server.Verb{"del": n.IPAMDel, "check": n.IPAMCheck, "gc": n.IPAMGC, "status": n.Ready},
	}
	for _, verbs := range []map[string]server.Verb{h.CNI, h.IPAM} {
		for name, f := range verbs {
			verbs[name] = d.times.Verb(strings.ToUpper(name), f)
		}
	}
	return h
}

// etcdAccess is what tenurectl, as root on this node, needs to ask etcd itself.
func (d *daemon) etcdAccess() *api.EtcdAccess {
	e := d.cfg.Etcd
	return &api.EtcdAccess{Node: d.cfg.NodeName, UID: d.memory.Get().UID, Endpoints: e.Endpoints, Prefix: e.Prefix,
		CAFile: absolute(e.CAFile), CertFile: absolute(e.CertFile), KeyFile: absolute(e.KeyFile),
		Username: e.Username, PasswordFile: absolute(e.PasswordFile)}
}

// absolute is a file's path for somebody with another working directory.
func absolute(file string) string {
	if file == "" {
		return ""
	}
	if abs, err := filepath.Abs(file); err == nil {
		return abs
	}
	return file
}

// publish is what this node announces for a subnet.
func (d *daemon) publish(n conf.Network, s lease.Subnets, epoch int64) (lease.Record, error) {
	if err := d.underlay.Ready(&n); err != nil {
		return lease.Record{}, err
	}
	u, _ := d.underlay.Get()
	return record(u, n, lease.VTEPMAC(d.cfg.Etcd.Prefix, s, epoch)), nil
}

// record is the record in flannel's form: each family's address and data where
// pods have that family, and of an address of IPv4 that there is none else.
func record(u node.Underlay, n conf.Network, mac lease.MAC) lease.Record {
	r := lease.Record{PublicIP: netip.IPv4Unspecified(), BackendType: n.Backend.Type}
	vxlan := n.Backend.Type == conf.BackendVXLAN
	if n.EnableIPv4 {
		r.PublicIP = u.PublicIP
	}
	if n.EnableIPv4 && vxlan {
		r.BackendData = &lease.BackendData{VNI: n.Backend.VNI, VtepMAC: mac}
	}
	if n.EnableIPv6 {
		r.PublicIPv6 = &u.PublicIP6
	}
	if n.EnableIPv6 && vxlan {
		r.BackendV6Data = &lease.BackendData{VNI: n.Backend.VNI, VtepMAC: mac}
	}
	return r
}

// holes are the ways to peers that lose large packets.
func (d *daemon) holes() []pathmtu.Hole { return d.paths.Holes() }

// underlayMoved tells whoever works with the underlay that it is another, or
// has another MTU.
func (d *daemon) underlayMoved() {
	d.engine.Touch()
	d.node.Touch()
	select {
	case d.moved <- struct{}{}:
	default:
	}
}

// judge says what speaks against a network config on this machine.
func (d *daemon) judge(n conf.Network) error {
	faults := append(conf.Unsupported(n), unable(n, d.cfg.Name, dataplane.HasIPv6())...)
	taken, err := d.underlay.taken()
	if err != nil {
		return err
	}
	faults = append(faults, conf.Overlaps(n, d.withoutOwn(taken, n.SubnetLen))...)
	return faults.Err()
}

// maxDevice is how long a device's name may be, in bytes.
const maxDevice = 15

// unable says what of a network config this machine cannot do with IPv6.
func unable(n conf.Network, name string, hasIPv6 bool) conf.Faults {
	if !n.EnableIPv6 {
		return nil
	}
	var faults conf.Faults
	if !hasIPv6 {
		faults = append(faults, conf.Fault{Field: "EnableIPv6", Text: "this node's kernel has no IPv6: it was built or started without (ipv6.disable=1)"})
	}
	device := dataplane.Vxlan{VNI: n.Backend.VNI, Local: netip.IPv6Unspecified()}.DeviceName(name)
	if n.Backend.Type == conf.BackendVXLAN && len(device) > maxDevice {
		faults = append(faults, conf.Fault{Field: "Backend.VNI", Text: fmt.Sprintf("the device for IPv6 would be called %s, and no device's name is longer than %d bytes: take a smaller VNI, or a shorter --name on this node", device, maxDevice)})
	}
	return faults
}

// withoutOwn leaves out what lies in a subnet this node holds or held before:
// interfaces of the reference plugins that tenure-ipam gave addresses to, and
// bridges that others made for it, such as docker's. Those do not follow when
// the subnet changes; to refuse the config for them would cost the pods their
// node too. A bridge may have been left with whatever address: what is no subnet
// of the network's is not believed.
func (d *daemon) withoutOwn(taken []conf.Named, length int) []conf.Named {
	m := d.memory.Get()
	last, _ := m.Last()
	own := last.All()
	for _, s := range m.Before() {
		own = append(own, s.All()...)
	}
	for _, p := range d.former {
		if p.Bits() == length {
			own = append(own, p)
		}
	}
	return slices.DeleteFunc(taken, func(t conf.Named) bool {
		return slices.ContainsFunc(own, func(p netip.Prefix) bool {
			return p.Bits() <= t.Prefix.Bits() && p.Contains(t.Prefix.Addr())
		})
	})
}

// surroundings are the problems that others on this machine make.
func (d *daemon) surroundings() []api.Problem {
	v := d.engine.View()
	return slices.Concat(d.notActive(), d.oldMTUs(v.Network), d.bridges.problems(v, d.memory.Get().Before(), d.cfg.SubnetFile), d.nameServerProblems(v.Network))
}

// serveMetrics answers on --metrics-listen. A port in use is told and tried
// again: it is no reason to leave the pods without a daemon.
func (d *daemon) serveMetrics(ctx context.Context) error {
	if d.cfg.MetricsListen == "" {
		return nil
	}
	return forever(ctx, d.log, "metrics listener", func(ctx context.Context) error {
		return server.ServeMetrics(ctx, d.cfg.MetricsListen, server.Sources{Status: d.node.Status, Counts: d.counts, Times: d.times})
	})
}

// foreverPause is the time between two tries of what shall always run.
const foreverPause = 2 * time.Second

// forever runs f again and again until ctx ends; a repeated error is logged
// when it changes.
func forever(ctx context.Context, log *slog.Logger, what string, f func(context.Context) error) error {
	last := ""
	for {
		err := f(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && err.Error() != last {
			log.Error(what+" failed, trying on", "error", err)
			last = err.Error()
		}
		t := time.NewTimer(foreverPause)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}
