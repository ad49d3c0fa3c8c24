package ownership_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/fencetest"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
	"github.com/tenure-cni/tenure/test/ownership"
)

const (
	prefix = "/tenure/network"
	// four subnets, and a node more than that.
	network  = `{"Network":"10.5.0.0/22","SubnetLen":24,"LeaseTTL":"%ds","Backend":{"Type":"vxlan"}}`
	machines = 5
	// faultTime is for how long faults come; leases last 5 s at least.
	faultTime = 7 * time.Second
)

// register is a fence as an engine sees it.
type register = fencetest.Register[lease.Subnets]

// reading is what a sampler asks a register for.
func reading(r *register) func() (netip.Prefix, time.Duration, error) {
	return func() (netip.Prefix, time.Duration, error) {
		now := r.Get()
		return now.Live.V4, now.Deadline, nil
	}
}

func bootTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return time.Duration(t.Nano())
}

// machine is a node without a kernel: its disk and its fence outlive its daemon.
type machine struct {
	r       *run
	name    string
	dir     string
	boots   int
	address netip.Addr
	fence   register
	way     *etcdproxy.Proxy
	engine  *lease.Engine
	stop    func()
}

func (m *machine) start() {
	memory, err := lease.OpenMemory(m.dir, "")
	if err != nil {
		m.r.t.Error(err)
		return
	}
	m.engine = lease.NewEngine(lease.Config{
		Dial: func() (*clientv3.Client, error) {
			return lease.Dial(conf.Etcd{Endpoints: []string{m.way.URL()}}, m.r.ops.Of(m.name)...)
		},
		Prefix: prefix, Node: m.name, Boot: fmt.Sprintf("%s-boot-%d", m.name, m.boots), Memory: memory, Clock: bootTime,
		Ready:  func(*conf.Network) error { return nil },
		Local:  func(a netip.Addr) bool { return a == m.address },
		Silent: func(context.Context, netip.Addr) (bool, error) { return true, nil },
		Publish: func(_ conf.Network, s lease.Subnets, epoch int64) (lease.Record, error) {
			return lease.Record{PublicIP: m.address, BackendType: "vxlan",
				BackendData: &lease.BackendData{VNI: 1, VtepMAC: lease.VTEPMAC(prefix, s, epoch)}}, nil
		},
		Flannel: func() bool { return false }, Running: func(string) bool { return false },
		Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.engine.Run(ctx, &m.fence) }()
	m.stop = func() { cancel(); <-done }
}

func (m *machine) restart() { m.stop(); m.start() }

func (m *machine) reboot() {
	m.stop()
	m.boots++
	_ = m.fence.Close()
	m.start()
}

func (m *machine) losesState() {
	m.stop()
	if err := os.Remove(filepath.Join(m.dir, "node.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.r.t.Error(err)
	}
	m.start()
}

func (m *machine) leave() {
	ctx, cancel := context.WithTimeout(m.r.t.Context(), time.Second)
	defer cancel()
	_ = m.engine.Leave(ctx) // etcd may be away
	m.restart()
}

// run is a store, machines, and who listens to them.
type run struct {
	t       *testing.T
	rnd     *rand.Rand
	server  *etcdtest.Server
	client  *clientv3.Client
	ops     *ownership.Ops
	rec     *ownership.Recorder
	sampler *ownership.Sampler
	all     []*machine
	late    []*etcdproxy.Rule
	backup  string
}

func newRun(t *testing.T, seed uint64) *run {
	r := &run{t: t, rnd: rand.New(rand.NewPCG(seed, 8)), server: etcdtest.Start(t), ops: ownership.NewOps(prefix),
		sampler: ownership.NewSampler(10 * time.Millisecond)}
	r.client = r.server.Client(t)
	var err error
	if r.rec, err = ownership.Record(t.Context(), r.client, prefix); err != nil {
		t.Fatal(err)
	}
	if _, err := lease.Init(t.Context(), r.client, prefix, fmt.Appendf(nil, network, 5)); err != nil {
		t.Fatal(err)
	}
	for i := range machines {
		m := &machine{r: r, name: fmt.Sprintf("n%d", i+1), dir: t.TempDir(), address: netip.AddrFrom4([4]byte{192, 0, 2, byte(11 + i)}),
			way: etcdproxy.Start(t, r.server.Endpoint)}
		m.start()
		t.Cleanup(func() { m.stop() })
		t.Cleanup(r.sampler.Watch(m.name, reading(&m.fence)))
		r.all = append(r.all, m)
	}
	return r
}

// some is a machine, d a time of that order.
func (r *run) some() *machine                     { return r.all[r.rnd.IntN(len(r.all))] }
func (r *run) d(most time.Duration) time.Duration { return time.Duration(r.rnd.Int64N(int64(most))) }
func (r *run) loss() etcdproxy.Loss               { return etcdproxy.Loss(1 + r.rnd.IntN(2)) }

func (r *run) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.t.Context().Done():
	}
}

// fault does one thing to one machine, or to the store.
func (r *run) fault() {
	m := r.some()
	subnetPuts := etcdproxy.PutsBelow(prefix + "/subnets/")
	switch n := r.rnd.IntN(24); n {
	case 0, 1:
		m.way.DropReply(1, subnetPuts, r.loss())
	case 2:
		m.way.DropReply(1+r.rnd.IntN(3), etcdproxy.Method(pb.KV_Txn_FullMethodName), r.loss())
	case 3:
		r.late = append(r.late, m.way.CommitLate(1, subnetPuts, r.loss()))
	case 4:
		m.way.CommitAbandoned(1, subnetPuts)
	case 5:
		m.way.Delay(1, etcdproxy.Method(pb.Lease_LeaseKeepAlive_FullMethodName), etcdproxy.Side(r.rnd.IntN(2)), r.d(3*time.Second))
	case 6:
		m.way.Cut()
	case 7:
		m.way.Stall()
	case 8:
		m.restart()
	case 9:
		m.losesState()
	case 10:
		m.reboot()
	case 11, 12, 13:
		m.leave()
	case 14:
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
		_, _ = lease.Release(ctx, r.client, prefix, m.name, false) // it may hold nothing
		cancel()
	case 15:
		_, _ = r.client.Put(r.t.Context(), prefix+"/config", fmt.Sprintf(network, 5+r.rnd.IntN(3)))
	default:
		r.heal()
	}
}

// heal ends what was begun: lines are whole, what was late commits.
func (r *run) heal() {
	for _, m := range r.all {
		m.way.Restore()
	}
	for _, l := range r.late {
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
		_ = l.Release(ctx) // etcd may refuse it: its lease has ended
		cancel()
	}
	r.late = nil
}

// replace gives the store another life, while no node reaches it.
func (r *run) replace() {
	for _, m := range r.all {
		m.way.Cut()
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	if err := r.rec.End(ctx); err != nil {
		r.t.Fatal(err)
	}
	how := ownership.Wiped
	if r.backup != "" && r.rnd.IntN(2) == 0 {
		how = ownership.Restored
		r.server.Restore(r.t, r.backup)
	} else {
		r.server.Wipe(r.t, r.rnd.IntN(2) == 0)
	}
	r.client = r.server.Client(r.t)
	if err := r.rec.Begin(ctx, r.client, how, 0); err != nil {
		r.t.Fatal(err)
	}
	if how == ownership.Wiped {
		if _, err := lease.InitAfterLoss(ctx, r.client, prefix, fmt.Appendf(nil, network, 5), 7*time.Second); err != nil {
			r.t.Fatal(err)
		}
	}
	r.heal()
	r.t.Logf("the store: %v", map[ownership.Beginning]string{ownership.Wiped: "wiped", ownership.Restored: "restored"}[how])
}

// evidence stops the machines and returns what is known.
func (r *run) evidence() ownership.Evidence {
	r.heal()
	for _, m := range r.all {
		m.stop()
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	h, foreign, err := r.rec.Stop(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return ownership.Evidence{Prefix: prefix, History: h, Foreign: foreign, Samples: r.sampler.Samples(), Ops: r.ops.All()}
}

// TestEngines: five engines on four subnets, with faults between them and etcd,
// and a store that forgets. Whatever happens, nothing is found.
func TestEngines(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as some leases")
	}
	for name, seed := range map[string]uint64{"fixed": 8, "random": rand.Uint64()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d", seed)
			r := newRun(t, seed)
			end := time.Now().Add(faultTime)
			forgets := time.Now().Add(faultTime/2 + r.d(faultTime/4))
			r.wait(time.Second)
			r.backup = r.server.Backup(t)
			for time.Now().Before(end) {
				r.fault()
				r.wait(r.d(150 * time.Millisecond))
				if time.Now().After(forgets) {
					forgets = end.Add(time.Hour) // once
					r.replace()
				}
			}
			e := r.evidence()
			for _, v := range ownership.Judge(e) {
				t.Errorf("seed %d: %s", seed, v)
			}
			says(t, e)
		})
	}
}

// says what there was to judge, and fails where that was too little.
func says(t *testing.T, e ownership.Evidence) {
	var writes, ends, lost, open int
	for _, l := range e.History.Lives {
		for _, ev := range l.Events {
			switch {
			case !strings.HasPrefix(ev.Key, prefix+"/subnets/"):
			case ev.Deleted:
				ends++
			default:
				writes++
			}
		}
	}
	for _, o := range e.Ops {
		if o.Return == ownership.Never && o.Put {
			lost++
		}
	}
	for _, s := range e.Samples {
		if s.Deadline > s.Ended {
			open++
		}
	}
	t.Logf("%d lives, %d writes of subnets' keys and %d ends, %d calls of which %d puts without an answer, %d looks at open fences",
		len(e.History.Lives), writes, ends, len(e.Ops), lost, open)
	if writes < 2 || open == 0 || len(e.Ops) == 0 || len(e.History.Lives) < 2 {
		t.Error("too little happened for this to be a test")
	}
}
