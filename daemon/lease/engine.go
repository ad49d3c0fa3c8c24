package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/tenure-cni/tenure/conf"
)

// Fence is the kernel's half: it closes by itself at its deadline. Its
// implementation is the only writer of the deadline.
type Fence interface {
	// Close shuts the fence at once and makes the present generation stale.
	Close() error
	// Generation is what Arm needs; it changes with every Close.
	Generation() uint64
	// Set tells which subnet is live in which network. Another subnet closes
	// the fence first, and it stays so until Arm; another network alone lets
	// the deadline stand.
	Set(live, network Subnets) error
	// Arm opens the fence until the deadline (CLOCK_BOOTTIME), unless it was
	// closed since gen was read.
	Arm(gen uint64, deadline time.Duration) error
	// Deadline is what the kernel has now; 0 is closed.
	Deadline() (time.Duration, error)
	// CutTo brings the deadline forward, never back, and makes the present
	// generation stale: a cycle in flight may have proven more.
	CutTo(deadline time.Duration) error
	// Live is the subnet that the kernel lets through now.
	Live() (Subnets, error)
}

// Config is what an Engine works with. Every field without a default is
// required.
type Config struct {
	// Dial makes the etcd client. It is called again after a pause while it
	// fails, which with passwords it does as long as etcd is away.
	Dial func() (*clientv3.Client, error)
	// Endpoints are etcd's URLs, for people.
	Endpoints []string
	// Prefix is --etcd-prefix.
	Prefix string
	// Node is --node-name.
	Node string
	// Boot is this boot: the kernel's boot ID and the network namespace.
	Boot string
	// Memory is node.json.
	Memory *MemoryFile
	// Clock reads CLOCK_BOOTTIME.
	Clock func() time.Duration
	// Publish says what this node announces in the record of a subnet: its
	// addresses and its VTEP. The Engine adds whose it is.
	Publish func(n conf.Network, s Subnets, epoch int64) (Record, error)
	// Ready says what this machine still lacks before it can hold a subnet of n,
	// for example an underlay address of one of its families; nil says that it
	// lacks nothing. n is nil while no config is known. It must not ask the
	// Engine.
	Ready func(n *conf.Network) error
	// Local says whether an address is on this machine, Silent whether nobody
	// else answers for it (duplicate address detection). They tell a machine
	// after its reboot from a clone of it.
	Local  func(netip.Addr) bool
	Silent func(context.Context, netip.Addr) (bool, error)
	// Clocks reads the three clocks whose jumps show a suspend, a pause or a
	// step of the wall clock; nil means that none is looked for.
	Clocks func() Clocks
	// Flannel says whether a flannel device is up on this machine, Running
	// whether a daemon with that UID runs on it. Without them (nil) no
	// record is ever inherited.
	Flannel func() bool
	Running func(uid string) bool
	// Step is called between any two lines of a cycle with the name of the
	// place, for a test that stops the daemon there; nil otherwise.
	Step func(where string)
	// Public are the addresses that this node announces now, none while it has
	// none; nil is none.
	Public func() []netip.Addr
	// Judge says what speaks against a network config on this machine, for
	// example that it overlaps the underlay; nil accepts.
	Judge func(conf.Network) error
	// Why says more of why etcd does not answer, "" if nothing is known; nil
	// never does.
	Why func() string
	// Birth is the network config with which --new-cluster births the
	// cluster where there is none; nil means: wait for it.
	Birth []byte
	// Source is where snapshots come from in a simulation; nil is etcd itself.
	Source Source
	Log    *slog.Logger
}

// at tells a test where the engine is.
func (c Config) at(where string) { step(c.Step).at(where) }

// Engine holds the node's subnet. Create it with NewEngine, then Run it; View
// and Changed may be called from anywhere at any time.
type Engine struct {
	cfg  Config
	keys Keys
	log  *slog.Logger
	wake chan struct{} // capacity 1: something to do before the timer
	// lacking has room for one: a snapshot that is to be read again.
	lacking chan struct{}
	fence   Fence // set once, by Run

	asks chan ask // to be done by the loop, which is the only writer

	counts counters

	// The loop's own.
	unusedTTL  time.Duration
	unused     clientv3.LeaseID          // asked for, and no key hangs on it
	dead       map[clientv3.LeaseID]bool // count for nothing, see self.dead
	inheriting clientv3.LeaseID          // asked for to inherit a record
	inherited  clientv3.LeaseID          // of the record that is inherited
	spare      clientv3.LeaseID          // asked for to move the held key to
	copied     bool                      // refused for another machine with this UID
	asserting  clientv3.LeaseID          // asked for to re-assert the held subnet
	settler    clientv3.LeaseID          // asked for to write settle
	asked      grantedTTL                // of the lease asked for last
	terms      terms                     // of the leaders that granted this node's leases
	moveAt     time.Duration             // CLOCK_BOOTTIME; see toMove; 0 = not set for the lease held
	denials    int                       // in a row; see believe
	full       bool                      // etcd refused the last lease or write for want of space
	saved      time.Time                 // when node.json was written last
	looked     time.Time                 // when this loop listed last
	counted    nextEnd                   // which lease ends next, when nothing is free
	starved    *backoff.ExponentialBackOff

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced on every change of the view
	client   *clientv3.Client
	held     *tenancy
	moving   *move            // of the held key to another lease, not answered yet
	past     []Transition     // the owners before the one that is held
	known    Life             // the store as it was believed last
	forgot   *forgetting      // the store is not the one known, nil if it is
	rewatch  func()           // makes the watch begin anew
	rouse    func()           // makes it try again at once, if it waits to
	suspect  bool             // the watch showed what may be another store: list
	settling bool             // settle stands, or a whole list has yet to show that it does not
	doubt    *doubt           // no ADD before the next proof, and why
	found    findings         // what is odd in snapshot
	clocks   Clocks           // as read last
	former   Subnets          // lost in this boot, zero while held
	ended    clientv3.LeaseID // of the subnet lost last, 0 if it is known to be gone
	left     bool             // given up by Leave
	conflict string           // who holds this node's name or UID
	lostWhy  string           // what happened to the one lost last
	network  *conf.Network
	config   []byte         // network as it was written
	networks []netip.Prefix // that were in force before, see Memory.Networks
	snapshot *Snapshot
	trust    confirmation // in what snapshot lacks
	started  bool         // a decision has been made since the start
	waiting  string
	refused  string
	problems problems
	etcdErr  error
	etcdDown time.Time
}

// tenancy is a holding with its clocks. It is replaced, never changed.
type tenancy struct {
	Holding
	deadline  time.Duration // as armed
	lastProof time.Duration // t0 of the last proof, 0 = none in this process
	settle    int64         // ModRevision of the settle that stood at the last proof
	unproven  error         // why the last cycle brought no proof
	since     time.Time     // of unproven
}

// failing says that the last cycle asked etcd, and concluded nothing.
func (t *tenancy) failing() bool {
	return t.unproven != nil && !errors.Is(t.unproven, errRestarted) && !errors.Is(t.unproven, errSettling)
}

// NewEngine returns an engine that has done nothing yet.
func NewEngine(cfg Config) *Engine {
	return &Engine{cfg: cfg, keys: NewKeys(cfg.Prefix), log: cfg.Log, starved: newStarved(time.Second),
		wake: make(chan struct{}, 1), lacking: make(chan struct{}, 1), asks: make(chan ask), dead: map[clientv3.LeaseID]bool{}, terms: terms{read: map[clientv3.LeaseID]reading{}}, changed: make(chan struct{}), problems: problems{}}
}

// Run holds the node's subnet until ctx ends, with the kernel's half in f. It
// gives nothing back and never gives up: an error is a programming error or
// the context's.
func (e *Engine) Run(ctx context.Context, f Fence) error {
	e.fence = f
	e.restore()
	client, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()

	w := NewWatcher(client, e.keys, e.log, e.observe, e.reconnected)
	w.onQuiet, w.counts = e.watchSilent, &e.counts
	e.update(func() { e.rewatch, e.rouse = w.Again, w.Wake })
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		e.watch(ctx, client, w)
		return nil
	})
	g.Go(func() error { e.watchConnection(ctx, client); return nil })
	g.Go(func() error { e.confirm(ctx); return nil })
	g.Go(func() error { return e.loop(ctx) })
	return g.Wait()
}

// connect dials until there is a client.
func (e *Engine) connect(ctx context.Context) (*clientv3.Client, error) {
	for pause := newPause(); ; {
		c, err := e.cfg.Dial()
		if err == nil {
			c.KV = counted{c.KV, &e.counts}
			e.update(func() { e.client = c })
			return c, nil
		}
		e.unreachable(err)
		if !wait(ctx, pause.NextBackOff()) {
			return nil, ctx.Err()
		}
	}
}

// restore takes up where the last process of this boot left: the subnet is
// served as unproven until the deadline that the kernel still has.
func (e *Engine) restore() {
	m := e.cfg.Memory.Get()
	e.update(func() {
		e.known = Life{Store: m.Store, Cluster: m.ClusterID, Revision: m.Revision}
		if m.Held != nil {
			e.past = m.Held.Past
			e.terms.remember(m.Held.Lease, m.Held.Term)
		}
		e.networks = m.Networks
		if m.Moving != nil {
			e.moving = &move{lease: m.Moving.Lease, ttl: time.Duration(m.Moving.TTLSeconds) * time.Second}
			e.terms.remember(m.Moving.Lease, m.Moving.Term)
		}
		for _, id := range m.Dead {
			e.dead[id] = true
		}
	})
	if n, _, err := conf.ParseNetwork(m.Config); len(m.Config) > 0 && err == nil {
		e.update(func() { e.network, e.config = &n, m.Config })
	}
	sub, ok := m.Last()
	if !ok || m.Boot != e.cfg.Boot {
		return
	}
	deadline, err := e.fence.Deadline()
	live, liveErr := e.fence.Live()
	if err := errors.Join(err, liveErr); err != nil {
		e.log.Warn("the fence of an earlier process cannot be read", "error", err)
		return
	}
	if live != sub || deadline == 0 {
		return
	}
	h, err := NewHolding(e.keys, Entry{Subnets: sub, Record: m.Held.Record, Lease: m.Held.Lease,
		CreateRevision: m.Held.CreateRevision, ModRevision: m.Held.ModRevision},
		time.Duration(m.Held.TTLSeconds)*time.Second)
	if err != nil {
		e.log.Warn("node.json names no lease that can be proven", "error", err)
		return
	}
	e.log.Info("found own subnet in the kernel", "subnet", sub, "lease", leaseHex(h.lease),
		"remaining", (deadline - e.cfg.Clock()).Round(time.Millisecond))
	e.update(func() {
		e.held = &tenancy{Holding: h, deadline: deadline, unproven: errRestarted, since: time.Now()}
	})
	// A process that ended just after it had written a wider network down has not
	// told the fence, and what is outside of that is not judged on an uplink.
	e.keepNetwork(*e.tenancy())
}

var errRestarted = errors.New("the daemon has just started and etcd has not been asked yet")

// loop does one step after the other, each when it is due or when something
// has changed.
func (e *Engine) loop(ctx context.Context) error {
	for ctx.Err() == nil {
		began := time.Now()
		t := time.NewTimer(e.step(ctx))
		select {
		case <-ctx.Done():
		case <-t.C:
		case a := <-e.asks:
			a.done <- a.do(ctx)
		case <-e.wake:
			// News may come in a stream, and each step asks etcd something.
			wait(ctx, max(time.Until(began.Add(jitter(wakeGap))), e.spread()))
		}
		t.Stop()
	}
	return nil
}

// wakeGap is the least time between two steps that news asked for.
const wakeGap = 200 * time.Millisecond

// waitersSpread is how far apart those begin who wait for one subnet: the first
// has it before most of the others have asked for a lease for nothing.
const waitersSpread = 300 * time.Millisecond

// spread is how long this node lets others go first when there is news.
func (e *Engine) spread() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.problems[noFreeSubnet].Code == "" {
		return 0
	}
	return rand.N(waitersSpread)
}

// step is one cycle of what is held, or one attempt to hold something. It
// returns the time until the next.
func (e *Engine) step(ctx context.Context) time.Duration {
	if h := e.tenancy(); h != nil && h.lastProof != 0 && !e.unsettled() {
		return e.renew(ctx, *h)
	}
	// Not held, held by memory alone, or held in a store that forgot: look at
	// all that etcd has.
	return e.look(ctx)
}

// look reads everything and acts on it.
func (e *Engine) look(ctx context.Context) time.Duration {
	if pause, idle := e.idle(ctx); idle {
		return pause
	}
	e.looked = time.Now()
	at := e.cfg.Clock()
	e.recall()
	s, err := e.list(ctx, e.callTimeout())
	if err != nil {
		if ctx.Err() == nil {
			e.unreachable(err)
		}
		return e.retryIn()
	}
	e.starved.Reset()
	e.reachable()
	e.adopt(s)
	e.terms.see(reading{s.Term, at}, s.Settle.ModRevision)
	if e.cfg.Birth != nil && s.Store.ModRevision == 0 && !e.unsettled() {
		return e.birth(ctx, s)
	}
	if pause, done := e.settle(ctx, s); !done {
		return pause
	}
	e.keepKnown()
	if t := e.tenancy(); t != nil && (t.lastProof != 0 || e.unsettled()) {
		return e.standBy(ctx, *t, s)
	}
	return e.choose(ctx, s)
}

// choose resumes, inherits, acquires or waits.
func (e *Engine) choose(ctx context.Context, s *Snapshot) time.Duration {
	if e.hasLeft() {
		return e.waitFor(leftText)
	}
	d := decide(s, e.self(), e.networkInForce(s))
	if d.resume == nil {
		e.notResumed(d.missing)
	}
	switch {
	case d.resume != nil:
		return e.resume(ctx, *d.resume)
	case d.claim != nil && e.undisputed(ctx, *d.claim):
		return e.resume(ctx, *d.claim)
	case d.inherit != nil && e.undisputed(ctx, *d.inherit):
		return e.inherit(ctx, *d.inherit, s, *d.network)
	case d.wait != "":
		return e.waitFor(d.wait)
	}
	// A machine that has booted a moment ago may have no address yet, and its own
	// record would pass for another machine's.
	if err := e.cfg.Ready(d.network); err != nil {
		return e.waitFor(err.Error())
	}
	if pause, free := e.identified(ctx, d.conflicts); !free {
		return pause
	}
	return e.acquire(ctx, s, *d.network)
}

// self is this node as decide asks for it.
func (e *Engine) self() self {
	me := self{Memory: e.cfg.Memory.Get(), node: e.cfg.Node, boot: e.cfg.Boot, dead: e.dead, open: e.open(), local: e.cfg.Local,
		flannel: e.cfg.Flannel, running: e.cfg.Running}
	if e.cfg.Public != nil {
		me.public = e.cfg.Public()
	}
	if me.flannel == nil {
		me.flannel = func() bool { return true }
	}
	if me.running == nil {
		me.running = func(string) bool { return true }
	}
	return me
}

// open says whether the kernel lets the overlay through now.
func (e *Engine) open() bool {
	deadline, err := e.fence.Deadline()
	return err == nil && e.cfg.Clock() < deadline
}

// retryWaiting is the pause between two looks while nothing can be had; a
// change in etcd wakes the loop earlier.
const retryWaiting = 3 * time.Second

// keepKnown writes node.json where the store is another one than it says, held
// or not: a node that has made everybody wait once does not do so at every
// start.
func (e *Engine) keepKnown() {
	old := e.cfg.Memory.Get()
	e.mu.Lock()
	m := e.memoryLocked(old)
	e.mu.Unlock()
	same := old.Store == m.Store && old.ClusterID == m.ClusterID
	if same && (old.Revision == m.Revision || time.Since(e.saved) < keepEvery) {
		return
	}
	e.saved = time.Now()
	if err := e.cfg.Memory.Save(m); err != nil {
		e.log.Warn("node.json not written; after a restart this node takes the store for one that went back", "error", err)
	}
}

// birth births the cluster of --new-cluster; a born one is never touched.
// Where this node knew a store before, others may hold subnets of it, and
// newcomers wait for them.
func (e *Engine) birth(ctx context.Context, s *Snapshot) time.Duration {
	if err := e.fitForBirth(); err != nil && s.Config.ModRevision == 0 {
		return e.waitFor("the cluster is not born with the config of --network-config: " + err.Error())
	}
	born, err := e.bear(ctx, s)
	if err != nil {
		return e.denied(fmt.Errorf("birth of the cluster: %w", err))
	}
	e.log.Info("cluster", "created", born.Created, "adopted", born.Adopted, "store", born.Store)
	e.cfg.Birth = nil
	return 0
}

// fitForBirth says what speaks against the config of --new-cluster on this
// machine. One that this node would refuse is not written for others.
func (e *Engine) fitForBirth() error {
	n, _, err := conf.ParseNetwork(e.cfg.Birth)
	if err != nil || e.cfg.Judge == nil {
		return err
	}
	return e.cfg.Judge(n)
}

func (e *Engine) bear(ctx context.Context, s *Snapshot) (Born, error) {
	if e.cfg.Memory.Get().Had != "" {
		return InitAfterLoss(ctx, e.client, e.cfg.Prefix, e.cfg.Birth, e.settleFor(s))
	}
	return Init(ctx, e.client, e.cfg.Prefix, e.cfg.Birth)
}

// notResumed drops a tenancy that memory alone spoke for. If pods of this boot
// sit on the subnet they are stranded, also when another process lost it.
func (e *Engine) notResumed(missing string) {
	m := e.cfg.Memory.Get()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.loseLocked("after the restart " + missing)
	if last, ok := m.Last(); ok && m.Boot == e.cfg.Boot && e.former.IsZero() {
		e.former = last
		e.waitLocked("lost " + last.String() + ": " + missing)
		e.signal()
	}
}

// waitFor says why nothing can be held now, until the next look.
func (e *Engine) waitFor(why string) time.Duration {
	e.update(func() {
		e.waitLocked(why)
		delete(e.problems, noFreeSubnet)
		delete(e.problems, etcdRefuses)
		delete(e.problems, duplicateNode)
		e.conflict = ""
	})
	return jitter(retryWaiting)
}

func (e *Engine) waitLocked(why string) {
	if e.waiting != why {
		e.log.Info("waiting", "why", why)
	}
	e.started, e.waiting = true, why
}

// noFreeSubnet is the problem that exhaustion is.
const noFreeSubnet = "no-free-subnet"

// retryIn is soon while a subnet is at stake, and slower and slower otherwise: see
// maxStarved. A watch that is back, or a connection, ends the pause.
func (e *Engine) retryIn() time.Duration {
	if h := e.tenancy(); h != nil && h.ttl > 0 {
		return jitter(min(Interval(h.ttl), retryWaiting))
	}
	return e.starved.NextBackOff()
}

func (e *Engine) callTimeout() time.Duration {
	if h := e.tenancy(); h != nil {
		return CallTimeout(h.ttl)
	}
	return maxCall
}
