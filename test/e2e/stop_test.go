package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestStopAnywhere stops a daemon between any two lines of what the lease engine
// does: once for a second, after which it has what it had, and once until its
// lease has ended and another node holds its subnet. F is never later than the
// lease as it was known at the stop allows, and a request that was queued
// meanwhile is answered with nothing of the old subnet.
func TestStopAnywhere(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	w := newWalk(ctx, t, firstTTL, asking, between, starting, moving, leaving)
	w.hold(ctx, t)
	defer w.sample(t)()
	w.short(ctx, t)
	w.send(ctx, t)
	w.long(ctx, t)
}

// TestStopAfterLoss stops a daemon while it puts its key back into a store that
// was wiped, until settle is over and another node holds its subnet.
func TestStopAfterLoss(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	w := newWalk(ctx, t, lossTTL, returning)
	w.hold(ctx, t)
	defer w.sample(t)()
	for _, v := range w.victims {
		v.arrange(t, v.place)
	}
	w.wipe(ctx, t)
	w.long(ctx, t)
}

// The lease's length at first, while daemons stand still for a second, and
// while they stand still for good. It only becomes shorter, for what must be
// cut then.
const (
	firstTTL = 8 * time.Second
	shortTTL = 7 * time.Second
	longTTL  = 6 * time.Second
	// lossTTL outlasts a new etcd's coming.
	lossTTL = 10 * time.Second
)

// shortStop is well below what is left of a deadline between two cycles.
const shortStop = time.Second

// walk is the cluster: a victim and a rival for every place, and a node that
// all victims' pods send to.
type walk struct {
	*cluster.Cluster
	store    *cluster.Store
	observer *lab.Node
	victims  []*victim
}

func newWalk(ctx context.Context, t *testing.T, ttl time.Duration, these ...way) *walk {
	t.Helper()
	all := placesBy(t, these...)
	names := []string{"observer"}
	for i := range all {
		names = append(names, fmt.Sprintf("v%d", i), fmt.Sprintf("r%d", i))
	}
	w := &walk{}
	program := tenuredThatStops(ctx, t)
	w.Cluster = cluster.Born(ctx, t, poolOf(len(all), ttl), names...)
	w.store, w.observer = w.Store(t), w.Nodes[0]
	for i, place := range all {
		v := &victim{place: place, way: wayTo(place), node: w.Nodes[2*i+1], rival: w.Nodes[2*i+2],
			old: subnetOf(i + 1), spare: subnetOf(len(all) + i + 1), triggers: t.TempDir()}
		v.node.Program, v.node.Env = program, []string{"TENURE_STOP_AT=" + v.triggers}
		w.victims = append(w.victims, v)
	}
	w.reserve(ctx, t)
	return w
}

// reserve keeps to each victim its subnet, and from everybody what it shall
// come to.
func (w *walk) reserve(ctx context.Context, t *testing.T) {
	t.Helper()
	w.store.Reserve(ctx, subnetOf(0).String(), w.observer.Host)
	for _, v := range w.victims {
		w.store.Reserve(ctx, v.old.String(), v.node.Host)
		w.store.Reserve(ctx, v.spare.String(), "nobody")
	}
}

// poolOf has one subnet for the observer, one for each victim, and one for each
// to come to: none is free for anybody else.
func poolOf(victims int, ttl time.Duration) string {
	return fmt.Sprintf(`{"Network":"10.5.0.0/16","SubnetMin":%q,"SubnetMax":%q,"LeaseTTL":%q}`,
		subnetOf(0).Addr(), subnetOf(2*victims).Addr(), ttl.String())
}

func subnetOf(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(100 + i), 0}), 24)
}

// tenuredThatStops builds the daemon with its hook, which is not in what is
// shipped.
func tenuredThatStops(ctx context.Context, t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "tenured")
	build := exec.CommandContext(ctx, "go", "build", "-tags=stopat", "-trimpath", "-buildvcs=false", "-o", program, "../../daemon/tenured")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build tenured with its hook: %v\n%s", err, out)
	}
	return program
}

// hold starts all but those that shall be stopped while they start.
func (w *walk) hold(ctx context.Context, t *testing.T) {
	t.Helper()
	holders := []*lab.Node{w.observer}
	for _, v := range w.victims {
		if v.way != starting {
			holders = append(holders, v.node)
		}
	}
	cluster.Start(ctx, t, holders...)
	for i, v := range w.victims {
		if err := v.rival.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if v.way == starting {
			continue
		}
		v.fence = cluster.OpenFence(t, v.node.Pid())
		v.pod = cluster.Pod(ctx, t, v.node, "p")
		far := cluster.Pod(ctx, t, w.observer, fmt.Sprintf("p%d", i))
		v.flow = cluster.StartFlow(ctx, t, v.pod.NS, far.NS, far.IP)
		v.flow.Runs(ctx, t)
		v.ping = ping(t, far, v.pod)
	}
	for _, v := range w.victims {
		cluster.WaitState(ctx, t, v.rival, api.StateWaiting)
	}
}

// sample reads every fence again and again until it is told to stop.
func (w *walk) sample(t *testing.T) func() {
	stop := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			for _, v := range w.victims {
				v.look(t)
			}
		}
	})
	return func() { close(stop); g.Wait() }
}

// short stops everybody for a second at its place, those that start or leave
// excepted.
func (w *walk) short(ctx context.Context, t *testing.T) {
	var stops []*passage
	for _, v := range w.victims {
		if v.way == starting || v.way == leaving {
			continue
		}
		_, created := w.origin(ctx, t, v.old)
		stops = append(stops, &passage{victim: v, created: created})
		v.arrange(t, v.place)
	}
	w.setTTL(ctx, t, shortTTL)
	through(ctx, t, stops, func(p *passage) error { return p.shortStep(ctx, t, w.store) })
	for _, s := range stops {
		st := cluster.WaitState(ctx, t, s.node, api.StateHeld)
		if node, created := w.origin(ctx, t, s.old); st.Subnet != s.old.String() || node != s.node.Host || created != s.created {
			t.Errorf("%s: it holds %s, and the key of %s is of %s since revision %d, it was since %d", s, st.Subnet, s.old, node, created, s.created)
		}
		lossless(t, s.ping)
	}
}

// passage is a victim on its way through a stop.
type passage struct {
	*victim
	phase   phase
	created int64 // revision of its key before
}

type phase string

const (
	coming   phase = "" // to its place
	standing phase = "standing still"
	going    phase = "going on" // and stands still once more when F is written
	gone     phase = "gone on"
)

func (p *passage) err() error {
	if p.phase != gone {
		return fmt.Errorf("%s: %s", p, cmp.Or(p.phase, "not there yet"))
	}
	return nil
}

// through makes steps until all are through.
func through(ctx context.Context, t *testing.T, stops []*passage, step func(*passage) error) {
	t.Helper()
	cluster.Eventually(ctx, t, time.Minute, "all have gone on", func() error {
		var errs []error
		for _, p := range stops {
			if p.phase != gone {
				errs = append(errs, step(p))
			}
		}
		return errors.Join(errs...)
	})
}

// shortStep goes on if it is time to; the error says what it waits for.
func (p *passage) shortStep(ctx context.Context, t *testing.T, store *cluster.Store) error {
	t.Helper()
	switch {
	case p.phase == coming && p.isStopped():
		p.found(ctx, t, store)
		p.phase = standing
	case p.phase == standing && cluster.BootTime() > p.stopped+shortStop:
		p.look(t)
		report(t, p.still())
		p.phase = gone
		if p.way == asking {
			p.arrange(t, armed)
			p.phase = going
		}
		p.goOn(t)
	case p.phase == going && p.isStopped():
		// The question was sent before the stop: what it proves counts from then.
		p.look(t)
		if got := p.since(); len(got) < 2 || got[len(got)-1].deadline <= got[0].deadline {
			t.Errorf("%s: F was to be moved on by the proof, it went %v", p, got)
		}
		report(t, p.within())
		p.goOn(t)
		p.phase = gone
	}
	return p.err()
}

func report(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// origin is whose the key of a subnet is, and since which revision.
func (w *walk) origin(ctx context.Context, t *testing.T, subnet netip.Prefix) (node string, created int64) {
	t.Helper()
	resp, err := w.store.Get(ctx, cluster.SubnetKey(subnet.String()))
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return "", 0
	}
	kv := resp.Kvs[0]
	return nodeIn(kv.Value), kv.CreateRevision
}

// nodeIn is whose a record is.
func nodeIn(record []byte) string {
	_, after, _ := strings.Cut(string(record), `"Node":"`)
	node, _, _ := strings.Cut(after, `"`)
	return node
}

func (w *walk) setTTL(ctx context.Context, t *testing.T, ttl time.Duration) {
	t.Helper()
	w.store.Configure(ctx, poolOf(len(w.victims), ttl))
}

// long waits until everybody stands still at its place, and lets each go on when
// its rival has its subnet.
func (w *walk) long(ctx context.Context, t *testing.T) {
	changes := w.watch(ctx, t)
	var stops []*passage
	for _, v := range w.victims {
		stops = append(stops, &passage{victim: v})
	}
	through(ctx, t, stops, func(p *passage) error { return w.longStep(ctx, t, p, changes) })
	for _, v := range w.victims {
		w.judge(ctx, t, v, changes)
	}
}

// longStep goes on if it is time to; the error says what it waits for.
func (w *walk) longStep(ctx context.Context, t *testing.T, p *passage, changes *changes) error {
	t.Helper()
	taken, is := changes.by(p.rival.Host, p.old)
	switch {
	case p.phase == coming && p.isStopped():
		p.found(ctx, t, w.store)
		w.store.Reserve(ctx, p.old.String(), p.rival.Host)
		w.store.Reserve(ctx, p.spare.String(), p.node.Host)
		p.queue(ctx, t)
		p.phase = standing
	case p.phase == standing && is:
		p.look(t)
		report(t, p.still())
		if then := p.since()[0]; then.deadline >= taken.at && then.subnet == p.old {
			t.Errorf("%s: its rival has had %s since %s, its own F is %s", p, p.old, taken.at, then.deadline)
		}
		p.arrange(t, armed)
		p.goOn(t)
		p.phase = going
	case p.phase == going:
		if err := p.settled(ctx, t); err != nil {
			return err
		}
		p.phase = gone
	}
	return p.err()
}

// wipe makes etcd forget everything, and gives the cluster its config back.
func (w *walk) wipe(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := w.Etcd.Wipe(ctx, true); err != nil {
		t.Fatal(err)
	}
	w.Init(ctx, t, poolOf(len(w.victims), lossTTL), "--after-loss")
	w.reserve(ctx, t)
}

// send puts every victim on its way to its place.
func (w *walk) send(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, v := range w.victims {
		v.arrange(t, v.place)
		if v.way == starting {
			if err := v.node.Start(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.setTTL(ctx, t, longTTL)
	bin, err := lab.FindBin()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range w.victims {
		if v.way == leaving {
			background(ctx, t, func(ctx context.Context) {
				// What it says after so long is no matter of this test.
				_, _ = v.node.Exec(ctx, filepath.Join(bin, "tenurectl"), "leave", "--with-pods", "--socket="+v.node.Socket)
			})
		}
	}
}

// seenLate is how long after its arrival a packet may be noted.
const seenLate = 500 * time.Millisecond

// judge looks at a victim that has gone on beside its rival.
func (w *walk) judge(ctx context.Context, t *testing.T, v *victim, changes *changes) {
	t.Helper()
	report(t, v.within())
	v.answered(t)
	w.store.Same(ctx, v.old.String())
	taken, _ := changes.by(v.rival.Host, v.old)
	if node, created := w.origin(ctx, t, v.old); node != v.rival.Host || created != taken.revision {
		t.Errorf("%s: %s is held by %s since revision %d, want its rival %s since %d", v, v.old, node, created, v.rival.Host, taken.revision)
	}
	if v.pod == nil {
		return
	}
	last := v.flow.Ends(ctx, t, 5*time.Second)
	if at := cluster.BootTime() - time.Since(last); at >= taken.at || at > v.limit+seenLate {
		t.Errorf("%s: a packet of its pod arrived at %s; its F may have been %s, and its rival had the subnet at %s", v, at, v.limit, taken.at)
	}
	for _, s := range cluster.Status(ctx, t, v.node).Stranded {
		if s.ContainerID == v.pod.ContainerID() && s.Subnet == v.old.String() {
			return
		}
	}
	t.Errorf("%s: its pod on %s is not listed as stranded", v, v.old)
}

// changes are the puts of subnet keys.
type changes struct {
	mu    sync.Mutex
	first map[string]put // of each node to each key
}

// put is when a write was seen, and its revision.
type put struct {
	at       time.Duration
	revision int64
}

func (w *walk) watch(ctx context.Context, t *testing.T) *changes {
	c := &changes{first: map[string]put{}}
	ctx, cancel := context.WithCancel(ctx)
	events := w.store.Watch(ctx, cluster.SubnetKey(""), clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-events // it watches from now on
	done := make(chan struct{})
	go func() {
		defer close(done)
		for resp := range events {
			for _, e := range resp.Events {
				c.note(string(e.Kv.Key), nodeIn(e.Kv.Value), put{cluster.BootTime(), e.Kv.ModRevision})
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

func (c *changes) note(key, node string, p put) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, seen := c.first[key+" "+node]; !seen {
		c.first[key+" "+node] = p
	}
}

// by is the node's first put of the subnet's key, if there has been one.
func (c *changes) by(node string, subnet netip.Prefix) (put, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, there := c.first[cluster.SubnetKey(subnet.String())+" "+node]
	return p, there
}
