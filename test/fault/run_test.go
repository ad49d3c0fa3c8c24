package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
	"github.com/tenure-cni/tenure/test/ownership"
)

const (
	// prefix is the daemons' --etcd-prefix.
	prefix = "/tenure/network"
	// sampleEvery is how often each fence is looked at, probeEvery how often
	// each pod sends to each other one.
	sampleEvery = 10 * time.Millisecond
	probeEvery  = 50 * time.Millisecond
	// healTime bounds how long a cluster may take to be well once all is healed:
	// leases of others have to end, a store settles, clients redial.
	healTime = time.Minute
	// strikeTime bounds one step of one fault.
	strikeTime = 40 * time.Second
)

// run is a cluster that goes through a schedule.
type run struct {
	t       *testing.T
	s       schedule
	program string // the broken tenured to run; empty is the built one
	// patience is how long the cluster may take to be well.
	patience time.Duration
	// whole says that it has to be well in the end, with its books in order; else
	// only what breaks the promise is looked for.
	whole bool
	c     *cluster.Cluster
	hosts []*host // by their numbers, then the clone
	zero  time.Duration

	client   *clientv3.Client // for what the run does to the store
	recorder *ownership.Recorder
	probes   *ownership.Probes
	sampler  *ownership.Sampler
	ops      *ownership.Ops // of the nodes behind proxies
	backup   string

	work sync.WaitGroup // what goes on beside the schedule
	stop chan struct{}

	mu       sync.Mutex
	stood    []standing
	found    []violation
	over     bool
	taken    map[string]*sync.Mutex // by what a fault needs
	evidence string                 // in words
	counts   struct{ adds, refused, dels int }
}

// standing is a fault that stands or stood, in the run's time; to is 0 while it
// stands.
type standing struct {
	fault
	from, to time.Duration
	// missed is why it did not strike: the store was away.
	missed string
}

// violation is something that must not be, in the run's time. rule is what it
// breaks of the promise, empty where it breaks none.
type violation struct {
	at   time.Duration
	rule ownership.Rule
	text string
}

// verdict is what became of a run.
type verdict struct {
	schedule schedule
	// found is in the order of time. took is the whole run, well how long the
	// cluster took to be well after the last fault was healed.
	found      []violation
	stood      []standing
	took, well time.Duration
	facts      string
}

// conduct lets the product go through a schedule.
func conduct(t *testing.T, s schedule) verdict {
	t.Helper()
	return conductWith(t, &run{s: s, patience: healTime, whole: true})
}

// conductWith makes the cluster, carries the schedule out and judges. Only what
// keeps it from being carried out at all fails the test.
func conductWith(t *testing.T, r *run) verdict {
	t.Helper()
	t.Logf("%s", r.s)
	began := time.Now()
	r.t, r.stop = t, make(chan struct{})
	ctx := cluster.Context(t, r.s.Time+4*time.Minute)
	r.build(ctx)
	r.strikeAll(ctx)
	v := verdict{schedule: r.s}
	healed := time.Now()
	if r.whole {
		r.settle(ctx)
	}
	v.well = time.Since(healed)
	r.finish()
	if r.whole {
		r.audit(ctx)
	}
	r.judge(ctx)
	v.took = time.Since(began)
	v.found, v.stood, v.facts = r.found, r.stood, r.facts()
	slices.SortStableFunc(v.found, func(a, b violation) int { return int(a.at - b.at) })
	return v
}

// now is the run's time.
func (r *run) now() time.Duration { return cluster.BootTime() - r.zero }

// violate notes what must not be.
func (r *run) violate(at time.Duration, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found = append(r.found, violation{at: at, text: fmt.Sprintf(format, args...)})
}

// network is the network config with leases of that length.
func (r *run) network(ttl time.Duration) string {
	return fmt.Sprintf(`{"Network":%q,"SubnetMin":"10.5.0.0","SubnetMax":"10.5.%d.0","LeaseTTL":%q}`,
		cluster.PodNetwork, r.s.Pool-1, ttl)
}

// build makes lab, store, hosts and observers, and starts the daemons.
func (r *run) build(ctx context.Context) {
	t := r.t
	t.Helper()
	r.zero = cluster.BootTime()
	names := make([]string, r.s.Nodes)
	for i := range names {
		names[i] = nodeName(i)
	}
	r.c = cluster.BornOn(ctx, t, r.s.Members, r.network(ttl), append(names, cloneName)...)
	r.client = r.connect()
	recorder, err := ownership.Record(ctx, r.connect(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	r.recorder = recorder
	r.probes, r.sampler = ownership.NewProbes(probeEvery), ownership.NewSampler(sampleEvery)
	r.ops = ownership.NewOps(prefix)
	for i, n := range r.c.Nodes {
		h := &host{Node: n, run: r, clone: n.Host == cloneName}
		if !h.clone && proxied(i) {
			r.shelter(ctx, h)
		}
		n.Program = r.program
		r.hosts = append(r.hosts, h)
	}
	t.Cleanup(r.end)
	for _, h := range r.nodes() {
		if err := h.start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.each(func(h *host) error { return h.greet(ctx) }); err != nil {
		r.violate(0, "the cluster does not begin: %v", err)
	}
	for _, h := range r.nodes() {
		r.work.Go(func() { h.live(ctx) })
		r.work.Go(func() { h.churn(ctx) })
	}
	r.zero = cluster.BootTime()
}

// shelter puts proxies between a node and the members, and its run directory on
// a small disk of its own.
func (r *run) shelter(ctx context.Context, h *host) {
	var urls []string
	for i, m := range r.c.EtcdMembers() {
		p := etcdproxy.StartIn(ctx, r.t, h.Node, fmt.Sprintf("127.0.0.1:%d", 12379+i), m.URL())
		p.Delay(etcdproxy.Always, r.ops.Tap(h.Host), etcdproxy.Request, 0) // listens only
		h.proxies, urls = append(h.proxies, p), append(urls, p.URL())
	}
	h.args = []string{"--etcd-endpoints=" + strings.Join(urls, ",")}
	if err := unix.Mount("tmpfs", h.RunDir, "tmpfs", 0, "size=1m"); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = unix.Unmount(h.RunDir, unix.MNT_DETACH) })
}

// connect makes a client of all members that is closed when the test ends.
func (r *run) connect() *clientv3.Client {
	var urls []string
	for _, m := range r.c.EtcdMembers() {
		urls = append(urls, m.URL())
	}
	c, err := r.c.LAN.EtcdClient(urls...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// nodes are the hosts that are to hold a subnet in the end: all but the clone.
func (r *run) nodes() []*host { return r.hosts[:r.s.Nodes] }

func (r *run) host(name string) *host {
	for _, h := range r.hosts {
		if h.Host == name {
			return h
		}
	}
	return nil
}

// each does the same for all nodes at once.
func (r *run) each(f func(*host) error) error {
	errs := make([]error, r.s.Nodes)
	var all sync.WaitGroup
	for i, h := range r.nodes() {
		all.Go(func() { errs[i] = f(h) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// end stops what goes on beside the schedule. From now on a daemon may end.
func (r *run) end() {
	r.finish()
	for _, h := range r.hosts {
		h.close()
	}
}

// finish ends what goes on beside the schedule.
func (r *run) finish() {
	r.mu.Lock()
	over := r.over
	r.over = true
	r.mu.Unlock()
	if !over {
		close(r.stop)
	}
	r.work.Wait()
}

// strikeAll carries the schedule out; when it returns, all is healed.
func (r *run) strikeAll(ctx context.Context) {
	var all sync.WaitGroup
	for _, f := range r.s.Faults {
		all.Go(func() { r.strike(ctx, f) })
	}
	r.until(ctx, r.s.Time)
	all.Wait()
}

// until waits for an instant of the run; false says that the test is over.
func (r *run) until(ctx context.Context, at time.Duration) bool {
	timer := time.NewTimer(at - r.now())
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// strike is one fault from its beginning to its end.
func (r *run) strike(ctx context.Context, f fault) {
	how := r.strikes()[f.Kind]
	if how == nil {
		r.t.Errorf("no fault is called %s", f.Kind)
		return
	}
	if !r.until(ctx, f.At) {
		return
	}
	defer r.take(f.needs)()
	r.mu.Lock()
	at := len(r.stood)
	r.stood = append(r.stood, standing{fault: f, from: r.now()})
	r.mu.Unlock()
	heal, err := how(ctx, f)
	var missed string
	switch {
	case err != nil && away(err):
		missed = err.Error()
	case err != nil:
		r.broken(f.Kind, err)
	}
	if heal != nil {
		r.until(ctx, f.ends())
		if err := r.mend(ctx, heal); err != nil {
			r.broken("healing "+f.Kind, err)
		}
	}
	r.mu.Lock()
	r.stood[at].to, r.stood[at].missed = r.now(), missed
	r.mu.Unlock()
}

// take waits, on a busy machine, for the faults before this one that strike the
// same.
func (r *run) take(needs []string) (leave func()) {
	var locked []*sync.Mutex
	for _, name := range slices.Sorted(slices.Values(needs)) { // in one order
		r.mu.Lock()
		if r.taken == nil {
			r.taken = map[string]*sync.Mutex{}
		}
		if r.taken[name] == nil {
			r.taken[name] = new(sync.Mutex)
		}
		lock := r.taken[name]
		r.mu.Unlock()
		lock.Lock()
		locked = append(locked, lock)
	}
	return func() {
		for _, lock := range locked {
			lock.Unlock()
		}
	}
}

// mend heals, and tries again for as long as the store does not answer.
func (r *run) mend(ctx context.Context, heal heal) error {
	for until := r.now() + strikeTime; ; {
		short, cancel := context.WithTimeout(ctx, callTime)
		err := heal(short)
		cancel()
		if err == nil || !away(err) || r.now() > until || !r.until(ctx, r.now()+lookEvery) {
			return err
		}
	}
}

// away says that the store did not answer, or not yet again.
func away(err error) bool {
	text := err.Error()
	return errors.Is(err, context.DeadlineExceeded) || strings.Contains(text, context.DeadlineExceeded.Error()) ||
		strings.Contains(text, "etcdserver: ") || strings.Contains(text, "Unavailable") || strings.Contains(text, "nobody leads")
}

// broken is for what the run could not do: the verdict says so, since a fault
// that did not strike shows nothing.
func (r *run) broken(what string, err error) {
	r.violate(r.now(), "the run itself: %s: %v", what, err)
}

// lab is short for errors of conditions.
func eventually(ctx context.Context, d time.Duration, what string, probe func() error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return lab.Eventually(ctx, what, probe)
}
