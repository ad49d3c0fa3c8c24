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

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// Fence is the kernel's half: it closes by itself at its deadline. Its
// implementation is the only writer of the deadline.
type Fence interface {
	// Close shuts the fence at once and makes the present generation stale.
	Close() error
	// Generation is what Arm needs; it changes with every Close.
	Generation() uint64
	// Set tells which subnet is live in which network. Where that changes
	// anything, the fence is closed first and stays so until Arm.
	Set(live, network Subnets) error
	// Arm opens the fence until the deadline (CLOCK_BOOTTIME), unless it was
	// closed since gen was read.
	Arm(gen uint64, deadline time.Duration) error
	// Deadline is what the kernel has now; 0 is closed.
	Deadline() (time.Duration, error)
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
	// Ready says what this machine still lacks before it can hold a subnet,
	// for example an underlay address; nil says that it lacks nothing.
	Ready func() error
	// Local says whether an address is on this machine, Silent whether nobody
	// else answers for it (duplicate address detection). They tell a machine
	// after its reboot from a clone of it.
	Local  func(netip.Addr) bool
	Silent func(context.Context, netip.Addr) (bool, error)
	// Judge says what speaks against a network config on this machine, for
	// example that it overlaps the underlay; nil accepts.
	Judge func(conf.Network) error
	// Birth is the network config with which --new-cluster births the
	// cluster where there is none; nil means: wait for it.
	Birth []byte
	Log   *slog.Logger
}

// Engine holds the node's subnet. Create it with NewEngine, then Run it; View
// and Changed may be called from anywhere at any time.
type Engine struct {
	cfg   Config
	keys  Keys
	log   *slog.Logger
	wake  chan struct{} // capacity 1: something to do before the timer
	fence Fence         // set once, by Run

	// The loop's own.
	unused clientv3.LeaseID // asked for, and no key hangs on it
	dead   clientv3.LeaseID // of an own key that etcd did not let be resumed

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced on every change of the view
	client   *clientv3.Client
	held     *tenancy
	former   Subnets // lost in this boot, zero while held
	lostWhy  string  // what happened to the one lost last
	network  *conf.Network
	config   []byte // network as it was written
	snapshot *Snapshot
	started  bool // a decision has been made since the start
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
	unproven  error         // why the last cycle brought no proof
	since     time.Time     // of unproven
}

// NewEngine returns an engine that has done nothing yet.
func NewEngine(cfg Config) *Engine {
	return &Engine{cfg: cfg, keys: NewKeys(cfg.Prefix), log: cfg.Log,
		wake: make(chan struct{}, 1), changed: make(chan struct{}), problems: problems{}}
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

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		NewWatcher(client, e.keys, e.log, e.observe).Run(ctx)
		return nil
	})
	g.Go(func() error { return e.loop(ctx) })
	return g.Wait()
}

// connect dials until there is a client.
func (e *Engine) connect(ctx context.Context) (*clientv3.Client, error) {
	for pause := newPause(); ; {
		c, err := e.cfg.Dial()
		if err == nil {
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
		case <-e.wake:
			// News may come in a stream, and each step asks etcd something.
			wait(ctx, time.Until(began.Add(jitter(wakeGap))))
		}
		t.Stop()
	}
	return nil
}

// wakeGap is the least time between two steps that news asked for.
const wakeGap = 200 * time.Millisecond

// step is one cycle of what is held, or one attempt to hold something. It
// returns the time until the next.
func (e *Engine) step(ctx context.Context) time.Duration {
	h := e.tenancy()
	if h == nil || h.lastProof == 0 {
		// Not held, or held by memory alone: ask etcd what it has.
		return e.settleIn(ctx)
	}
	return e.renew(ctx, *h)
}

// retryWaiting is the pause between two looks while nothing can be had; a
// change in etcd wakes the loop earlier.
const retryWaiting = 3 * time.Second

// settleIn reads everything and resumes, acquires or waits.
func (e *Engine) settleIn(ctx context.Context) time.Duration {
	s, err := list(ctx, e.client, newMirror(e.keys), e.callTimeout())
	if err != nil {
		if ctx.Err() == nil {
			e.unreachable(err)
		}
		return e.retryIn()
	}
	e.reachable()
	e.adopt(s)
	if e.cfg.Birth != nil && s.Store.ModRevision == 0 {
		return e.birth(ctx)
	}
	d := decide(s, e.cfg.Memory.Get(), e.cfg.Boot, e.dead, e.cfg.Local, e.networkInForce(s))
	if d.resume == nil {
		e.notResumed(d.missing)
	}
	switch {
	case d.resume != nil:
		return e.resume(ctx, *d.resume)
	case d.claim != nil && e.undisputed(ctx, *d.claim):
		return e.resume(ctx, *d.claim)
	case d.wait != "":
		return e.waitFor(d.wait)
	}
	if err := e.cfg.Ready(); err != nil {
		return e.waitFor(err.Error())
	}
	return e.acquire(ctx, s, *d.network)
}

// birth births the cluster of --new-cluster; a born one is never touched.
func (e *Engine) birth(ctx context.Context) time.Duration {
	born, err := Init(ctx, e.client, e.cfg.Prefix, e.cfg.Birth)
	if err != nil {
		return e.denied(fmt.Errorf("birth of the cluster: %w", err))
	}
	e.log.Info("cluster", "created", born.Created, "adopted", born.Adopted, "store", born.Store)
	e.cfg.Birth = nil
	return 0
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

// undisputed makes sure that no other machine has the address under which this
// UID holds a subnet: a clone of this machine would. If that cannot be told,
// the key is left to lapse, which costs this node nothing but its old subnet:
// no pod outlives a boot.
func (e *Engine) undisputed(ctx context.Context, own Entry) bool {
	silent, err := e.cfg.Silent(ctx, own.PublicIP)
	if err == nil && silent {
		return true
	}
	e.log.Warn("own subnet of an earlier boot is left to lapse: its address may be another machine's",
		"subnet", own.Subnets, "publicIP", own.PublicIP, "answered", !silent, "error", err)
	return false
}

// waitFor says why nothing can be held now, until the next look.
func (e *Engine) waitFor(why string) time.Duration {
	e.update(func() {
		e.waitLocked(why)
		delete(e.problems, noFreeSubnet)
		delete(e.problems, etcdRefuses)
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

// retryIn is soon while a subnet is at stake, and slower otherwise.
func (e *Engine) retryIn() time.Duration {
	if h := e.tenancy(); h != nil && h.ttl > 0 {
		return jitter(min(Interval(h.ttl), retryWaiting))
	}
	return jitter(time.Second)
}

func (e *Engine) callTimeout() time.Duration {
	if h := e.tenancy(); h != nil {
		return CallTimeout(h.ttl)
	}
	return maxCall
}

// resume goes on with a key that is this node's own: no write, a cycle.
func (e *Engine) resume(ctx context.Context, own Entry) time.Duration {
	var ttl time.Duration
	if h := e.tenancy(); h != nil {
		ttl = h.ttl
	}
	h, err := NewHolding(e.keys, own, ttl)
	if err != nil {
		e.log.Error("own key cannot be resumed", "error", err)
		return jitter(retryWaiting)
	}
	e.log.Info("resuming own subnet", "subnet", h.subnets, "lease", leaseHex(h.lease), "epoch", h.Epoch())
	return e.take(ctx, h)
}

// take makes h the tenancy and proves it at once.
func (e *Engine) take(ctx context.Context, h Holding) time.Duration {
	n := e.inForce()
	if n == nil {
		return e.waitFor("own subnet " + h.subnets.String() + " is in etcd, but no usable network config, there or in node.json")
	}
	if err := e.fence.Set(h.subnets, networkPair(*n)); err != nil {
		e.log.Error("the fence does not take the subnet, it stays closed", "subnet", h.subnets, "error", err)
		e.problem(api.SeverityError, "fence", "the kernel fence refused subnet "+h.subnets.String()+": "+err.Error(),
			"look at the log; the overlay stays closed until this succeeds")
		return jitter(time.Second)
	}
	e.clear("fence")
	deadline, err := e.fence.Deadline()
	if err != nil {
		e.log.Warn("the fence cannot be read", "error", err)
	}
	t := tenancy{Holding: h, deadline: deadline, unproven: errRestarted, since: time.Now()}
	e.update(func() {
		e.held, e.started, e.waiting, e.former = &t, true, "", Subnets{}
		delete(e.problems, noFreeSubnet)
		delete(e.problems, etcdRefuses)
	})
	select {
	case <-e.wake: // whatever it was about, the cycle that follows answers it
	default:
	}
	e.remember(h)
	return e.renew(ctx, t)
}

// renew runs one cycle and acts on its verdict.
func (e *Engine) renew(ctx context.Context, t tenancy) time.Duration {
	gen := e.fence.Generation()
	v := cycle(ctx, e.client, t.Holding, e.cfg.Clock)
	switch {
	case v.lost != "":
		e.lose(v.lost)
		if t.lastProof == 0 {
			// It was never proven: etcd shows the key under a lease that it
			// denies. The key is left to lapse.
			e.dead = t.lease
			return jitter(time.Second)
		}
		return 0
	case v.err != nil:
		if ctx.Err() != nil {
			return 0
		}
		e.unproven(t, v.err)
		return min(Interval(t.ttl), jitter(retryUnproven(t.ttl)))
	}
	if !e.proven(gen, t, v) {
		return retryUnproven(t.ttl)
	}
	e.publish(ctx)
	return jitter(Interval(v.holding.ttl))
}

// retryUnproven is the pause after a cycle without an answer: short against
// the TTL, so that a short outage leaves several tries before the deadline.
func retryUnproven(ttl time.Duration) time.Duration {
	return min(max(ttl/10, 200*time.Millisecond), 5*time.Second)
}

// proven arms the fence, unless the tenancy was lost while the cycle ran: then
// it is false, and what the cycle has proven counts for nothing.
func (e *Engine) proven(gen uint64, t tenancy, v verdict) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held == nil || e.held.lease != t.lease || e.held.create != t.create {
		return false
	}
	if err := e.fence.Arm(gen, v.deadline); err != nil {
		e.log.Warn("the fence was not armed", "error", err)
		return false
	}
	if t.lastProof == 0 || t.unproven != nil {
		e.log.Info("subnet proven", "subnet", v.holding.subnets, "lease", leaseHex(v.holding.lease),
			"epoch", v.holding.Epoch(), "ttl", v.holding.ttl)
	}
	e.held = &tenancy{Holding: v.holding, deadline: v.deadline, lastProof: v.t0}
	e.reachableLocked()
	e.signal()
	return true
}

// unproven notes that a cycle concluded nothing: the deadline stands.
func (e *Engine) unproven(t tenancy, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held == nil || e.held.lease != t.lease {
		return
	}
	next := *e.held
	if next.unproven == nil || errors.Is(next.unproven, errRestarted) {
		next.since = time.Now()
		e.log.Warn("no proof from etcd, the deadline stands", "subnet", t.subnets,
			"remaining", max(0, t.deadline-e.cfg.Clock()).Round(time.Millisecond), "error", err)
	}
	next.unproven = err
	e.held = &next
	e.unreachableLocked(err)
	e.signal()
}

// lose closes the fence first and then forgets the tenancy.
func (e *Engine) lose(why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.loseLocked(why)
}

func (e *Engine) loseLocked(why string) {
	if e.held == nil {
		return
	}
	if err := e.fence.Close(); err != nil {
		// The deadline in the kernel still closes it; nothing opens it again.
		e.log.Error("the fence could not be closed, it closes by itself at its deadline", "error", err)
	}
	e.log.Error("subnet lost, overlay closed", "subnet", e.held.subnets, "lease", leaseHex(e.held.lease), "why", why)
	e.former, e.held, e.lostWhy = e.held.subnets, nil, e.held.subnets.String()+": "+why
	e.waiting = "lost " + e.former.String() + ": " + why
	e.signal()
}

// Touch makes the engine look at once whether what it publishes is still
// right: an address of this machine has changed.
func (e *Engine) Touch() { e.nudge() }

// observe takes every snapshot of the watch: a deleted or foreign key closes
// the fence now, not at the next cycle.
func (e *Engine) observe(s *Snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.snapshot != nil && e.snapshot.Revision > s.Revision && e.snapshot.ClusterID == s.ClusterID {
		return
	}
	e.snapshot = s
	e.judgeLocked(s)
	if h := e.held; h != nil && s.Revision >= h.mod {
		own, _ := s.Entry(h.subnets)
		if why := h.contradicted(own); why != "" {
			e.loseLocked(why)
		}
	}
	if e.held == nil {
		e.nudge()
	}
	e.signal()
}

// adopt takes a list of the loop's own as the newest snapshot.
func (e *Engine) adopt(s *Snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.snapshot == nil || s.Revision >= e.snapshot.Revision || s.ClusterID != e.snapshot.ClusterID {
		e.snapshot = s
		e.judgeLocked(s)
		e.signal()
	}
}

// acquire goes through the order of choice until something is held.
func (e *Engine) acquire(ctx context.Context, s *Snapshot, n conf.Network) time.Duration {
	a := attempt{client: e.client, keys: e.keys, seen: s, ttl: n.LeaseTTL, call: CallTimeout(n.LeaseTTL), lease: e.nextLease()}
	last, _ := e.cfg.Memory.Get().Last()
	want := Want{Node: e.cfg.Node, UID: e.cfg.Memory.Get().UID, Last: last, LastFirst: !e.lostSubnet().IsZero(), Seed: rand.Uint64()}
	tried := false
	for c := range Candidates(n, s, want) {
		if !tried {
			if err := grant(ctx, e.client, a.lease, a.ttl, a.call); err != nil {
				return e.denied(err)
			}
			tried = true
		}
		h, err := e.tryCandidate(ctx, a, n, c)
		if err == nil {
			e.log.Info("subnet acquired", "subnet", c.Subnets, "why", c.Why, "lease", leaseHex(h.lease), "epoch", h.Epoch())
			e.unused = 0
			return e.take(ctx, h)
		}
		if !errors.Is(err, errLostRace) {
			if silence(err) {
				e.unused = 0 // revoked, unless the daemon is stopping
			}
			return e.denied(err)
		}
		e.log.Debug("lost a race for a subnet", "subnet", c.Subnets, "why", c.Why)
		if e.stale(s) {
			break
		}
	}
	if tried {
		return jitter(firstRetry) // the lease is kept for the next round
	}
	return e.exhausted(ctx, s, n)
}

// nextLease is the ID that the next grant asks for: the same until it is known
// what became of it, so that answers which are lost leave one lease behind and
// not one each.
func (e *Engine) nextLease() clientv3.LeaseID {
	if e.unused == 0 {
		e.unused = newLeaseID()
	}
	return e.unused
}

// denied says that etcd answers and does not do what it is asked, or that it
// does not answer.
func (e *Engine) denied(err error) time.Duration {
	if silence(err) {
		e.unreachable(err)
		return e.retryIn()
	}
	e.update(func() {
		e.waitLocked("etcd refuses: " + err.Error())
		e.problems.add(etcdRefuses, api.SeverityError, "etcd answers, but refuses what this node needs: "+err.Error(),
			"give the user of --etcd-username its rights on the prefix, or free the store's space (etcdctl alarm list); this is tried again by itself", time.Time{})
	})
	return jitter(retryWaiting)
}

// etcdRefuses is the problem that rights or space are missing.
const etcdRefuses = "etcd-refuses"

// silence tells "no answer" from "an answer that says no". Only what etcd
// itself says before it applies anything is an answer; after everything else
// the request may still commit.
func silence(err error) bool {
	var refused rpctypes.EtcdError
	if !errors.As(err, &refused) {
		return true
	}
	switch refused.Code() {
	case codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted, codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition:
		return false
	}
	return true
}

// stale reports that config, store or settle changed since s: then every
// further candidate of s would lose as well.
func (e *Engine) stale(s *Snapshot) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.snapshot
	return now != nil && (now.Config.ModRevision != s.Config.ModRevision ||
		now.Store.ModRevision != s.Store.ModRevision || now.Settle != s.Settle)
}

func (e *Engine) tryCandidate(ctx context.Context, a attempt, n conf.Network, c Candidate) (Holding, error) {
	m := e.cfg.Memory.Get()
	owner := a.seen.Owners[c.ownerKey()].Value
	last, _ := m.Last()
	mine := owner.UID == m.UID && last == c.Subnets && m.Boot == e.cfg.Boot && m.Held.Record.Tenant().Epoch == owner.Epoch
	epoch := NextEpoch(owner, mine, a.seen.MaxEpoch(c.Subnets), time.Now())
	r, err := e.record(n, c.Subnets, epoch)
	if err != nil {
		return Holding{}, err
	}
	next := owner.succeed(Transition{UID: m.UID, Node: e.cfg.Node, Epoch: epoch, Since: time.Now().UTC(), Why: c.Why})
	return a.take(ctx, c, r, next)
}

func (e *Engine) record(n conf.Network, s Subnets, epoch int64) (Record, error) {
	r, err := e.cfg.Publish(n, s, epoch)
	if err != nil {
		return Record{}, fmt.Errorf("what to publish for %s: %w", s, err)
	}
	r.Tenure = &Tenant{Node: e.cfg.Node, UID: e.cfg.Memory.Get().UID, Boot: e.cfg.Boot, Epoch: epoch}
	return r, nil
}

// exhausted says why the node waits, and gives a lease back that it does not
// need for now.
func (e *Engine) exhausted(ctx context.Context, s *Snapshot, n conf.Network) time.Duration {
	why := exhausted(n, s, e.cfg.Node)
	e.update(func() {
		e.waitLocked(why)
		e.problems.add(noFreeSubnet, api.SeverityError, why,
			"wait for a lease to end, release a dead node's subnet, or widen the network", time.Time{})
	})
	if e.unused != 0 {
		if err := revoke(ctx, e.client, e.unused, CallTimeout(n.LeaseTTL)); err == nil {
			e.unused = 0
		}
	}
	return jitter(retryWaiting)
}

// firstRetry follows a round in which every candidate was lost to others.
const firstRetry = 200 * time.Millisecond

// publish brings the record up to date where this node's addresses or the
// form of the record have changed.
func (e *Engine) publish(ctx context.Context) {
	t := e.tenancy()
	n := e.inForce()
	if t == nil || n == nil || e.cfg.Ready() != nil {
		return
	}
	want, err := e.record(*n, t.subnets, t.Epoch())
	if err != nil {
		e.log.Warn("own record cannot be brought up to date", "error", err)
		return
	}
	if want.same(t.record) {
		return
	}
	resp, err := commit(ctx, e.client, t.update(want), CallTimeout(t.ttl))
	if err != nil || !resp.Succeeded {
		// The next proof reads what the key has now, and this is tried again.
		e.log.Warn("own record not updated yet", "subnet", t.subnets, "error", err)
		return
	}
	e.log.Info("own record updated", "subnet", t.subnets, "publicIP", want.PublicIP)
	e.update(func() {
		if e.held != nil && e.held.lease == t.lease {
			next := *e.held
			next.record, next.mod = want, resp.Header.Revision
			e.held = &next
		}
	})
}

func (e *Engine) remember(h Holding) {
	m := e.cfg.Memory.Get().remember(h, e.cfg.Boot)
	e.mu.Lock()
	if s := e.snapshot; s != nil {
		m.Store, m.ClusterID, m.Revision = s.Store.Value.ID, s.ClusterID, max(s.Revision, h.mod)
		m.Config = e.config
	}
	e.mu.Unlock()
	if err := e.cfg.Memory.Save(m); err != nil {
		e.log.Warn("node.json not written; a restart with etcd away would not find the subnet", "error", err)
		e.problem(api.SeverityWarning, "state-dir", err.Error(), "free space or repair --state-dir")
		return
	}
	e.clear("state-dir")
}

func leaseHex(id clientv3.LeaseID) string { return fmt.Sprintf("%x", int64(id)) }
