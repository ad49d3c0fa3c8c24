package dataplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"time"
)

// Options tune a Loop. Zero values mean the defaults.
type Options struct {
	// Settle is how long a pass waits after it was woken, so that a burst
	// becomes one pass; what is wanted anew after a rest waits a fifth of it.
	// Default 50 ms.
	Settle time.Duration
	// MinGap is the least time between the starts of two passes that the
	// kernel's notices asked for, on average. Default 200 ms.
	MinGap time.Duration
	// Backstop is the longest time between two passes, for what the kernel gives
	// no notice of. Default 5 s. With more than 1,000 peers it is longer in
	// proportion, up to four times.
	Backstop time.Duration
	// RulesEvery is the least time between two readings of the firewall rules
	// that only their change asks for, and the time between them where the
	// kernel does not tell of a change. Default 4 s, so that with a look before
	// it what is changed twice in a row comes back within five.
	RulesEvery time.Duration
	// RulesLook is how often the kernel is asked whether they changed. Default
	// 1 s.
	RulesLook time.Duration
	// RetryMin and RetryMax bound the pause after a pass with a failure; it
	// doubles from one to the other. Default 250 ms and 5 s.
	RetryMin, RetryMax time.Duration
}

func (o Options) withDefaults() Options {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.Settle, 50*time.Millisecond)
	set(&o.MinGap, 200*time.Millisecond)
	set(&o.Backstop, 5*time.Second)
	set(&o.RulesEvery, 4*time.Second)
	set(&o.RulesLook, time.Second)
	set(&o.RetryMin, 250*time.Millisecond)
	set(&o.RetryMax, 5*time.Second)
	return o
}

// Loop keeps a Kernel equal to the newest Desired.
type Loop struct {
	kernel Kernel
	log    *slog.Logger
	opts   Options
	faults *faultLog
	// wanted has a token while a newer Desired waits to be looked at.
	wanted chan struct{}

	mu      sync.Mutex
	desired Desired
	// generation counts calls of Set; 0 means that there was none.
	generation uint64
	report     Report
	// reported is the generation that the report is about.
	reported uint64
	changed  chan struct{}
}

// New returns a Loop that does nothing until Run.
func New(kernel Kernel, log *slog.Logger, opts Options) *Loop {
	return &Loop{
		kernel:  kernel,
		log:     log,
		opts:    opts.withDefaults(),
		faults:  newFaultLog(log),
		wanted:  make(chan struct{}, 1),
		changed: make(chan struct{}),
	}
}

// Set replaces what is wanted; the newest value wins. It does not wait. The
// caller must not change d's slices afterwards.
//
// Where only the ports of the bridge differ it asks for no pass: whoever adds a
// pod plugs it in, and the kernel's notices of its link bring the next pass
// anyhow. On a full node a pass for each pod would cost more than the pod.
func (l *Loop) Set(d Desired) {
	l.mu.Lock()
	ports := l.generation > 0 && sameButPorts(l.desired, d)
	l.desired = d
	if !ports {
		l.generation++
	}
	l.mu.Unlock()
	if ports {
		return
	}
	select {
	case l.wanted <- struct{}{}:
	default:
	}
}

func sameButPorts(a, b Desired) bool {
	a.Bridge.Ports, b.Bridge.Ports = nil, nil
	return reflect.DeepEqual(a, b)
}

// Report returns the outcome of the latest pass. One for an older Desired says
// nothing of whether the kernel is as the newest wants it.
func (l *Loop) Report() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	rep := l.report.clone()
	rep.Converged = rep.Converged && l.reported == l.generation
	return rep
}

// Changed returns a channel that is closed when the next pass has ended.
func (l *Loop) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// WaitConverged returns nil once a pass for the newest Desired has found
// nothing to write and no fault; at once when the latest pass was such a one.
// When ctx ends first, the error says what the latest pass failed at.
func (l *Loop) WaitConverged(ctx context.Context) error {
	for {
		l.mu.Lock()
		done := l.report.Converged && l.reported == l.generation
		err, changed := l.report.Err, l.changed
		l.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("kernel is not as wanted: %w", errors.Join(ctx.Err(), err))
		}
	}
}

// Run works until ctx is done and then returns nil. The kernel stays as it is.
func (l *Loop) Run(ctx context.Context) error {
	r := &runner{loop: l}
	defer r.unwatch()
	select {
	case <-l.wanted:
	case <-ctx.Done():
		return nil
	}
	for ctx.Err() == nil {
		r.watch(ctx)
		r.pass(ctx)
		r.wait(ctx)
	}
	return nil
}

// runner is the state of one Run.
type runner struct {
	loop    *Loop
	notices <-chan struct{}
	// started is when the latest pass began, for so many peers.
	started time.Time
	peers   int
	// rules is what is known about the firewall, which not every pass reads.
	rules rulesSeen
	// fights tell of what is undone again and again.
	fights fights
	// wrote is the number of passes in a row that wrote something.
	wrote int
	// checks says that the latest pass only followed another to check it.
	checks bool
	// retry is the pause after a failure, or after writing again and again;
	// 0 after a pass in which all is well.
	retry time.Duration
}

// rulesSeen remembers when the rules were read; what they are is not.
type rulesSeen struct {
	// at is when they were last asked for, and asked what they should be then.
	at    time.Time
	asked rulesWish
	// mark is what the kernel had to tell of them before that.
	mark string
	// clean: they were found right for asked.
	clean bool
	// written: they were changed since, and are to be read back.
	written bool
	// faults were met then, and stand until the next look; and conflicts.
	faults    []Fault
	conflicts []Conflict
}

// due says whether they are to be read. What changes again and again, by a
// proxy of services for instance, is read in its turn only: it costs processes.
func (s rulesSeen) due(wish rulesWish, mark string, every time.Duration) bool {
	return s.written || s.asked != wish || s.changed(mark) && time.Since(s.at) >= every
}

// changed says whether what was seen may not be true any more.
func (s rulesSeen) changed(mark string) bool {
	return !s.clean || mark == "" || mark != s.mark
}

// note takes in what a pass that asked for the rules has seen and done.
func (s *rulesSeen) note(wish rulesWish, mark string, have State, out outcome) {
	*s = rulesSeen{at: time.Now(), asked: wish, mark: mark, written: out.writes["rules"] > 0}
	for _, f := range have.Faults {
		if f.What == "rules" {
			s.faults = append(s.faults, f)
		}
	}
	for _, f := range out.failures {
		if f.op.Kind() == "rules" {
			s.faults = append(s.faults, f.fault())
		}
	}
	for _, c := range out.conflicts {
		if c.What == conflictNoTrack || c.What == conflictFirewall {
			s.conflicts = append(s.conflicts, c)
		}
	}
	if !s.written && len(s.faults) == 0 {
		s.clean = true
	}
}

// watch subscribes to the kernel's notices, again after a failure. It comes
// before the pass that reads, so that no change is missed.
func (r *runner) watch(ctx context.Context) {
	if r.notices != nil {
		return
	}
	notices, err := r.loop.kernel.Watch(ctx)
	if err != nil {
		r.loop.faults.report("watch", "watch the kernel", err.Error())
		return
	}
	r.notices = notices
}

// unwatch waits until the watcher has let go; its context is done.
func (r *runner) unwatch() {
	if r.notices == nil {
		return
	}
	for range r.notices {
	}
}

// wait returns when the next pass is due. A pass that wrote is followed by
// one that checks, without delay; after that only in its turn, so that a
// fight with somebody else does not become a hot loop.
func (r *runner) wait(ctx context.Context) {
	opts := r.loop.opts
	gap := opts.MinGap
	if r.checks {
		gap *= 2 // two passes have been made of one notice
	}
	if r.checks = r.wrote == 1 && r.retry == 0; r.checks {
		return
	}
	pause := opts.backstop(r.peers)
	if r.retry != 0 {
		pause = r.retry
	}
	r.await(ctx, pause, gap)
	r.drain()
}

// So many peers are read at rest for the price of an idle daemon; with more the
// backstop is as much longer, up to backstopMost times.
const (
	backstopPeers = 1000
	backstopMost  = 4
)

// backstop is the longest time between two passes with so many peers. With
// thousands a pass is tens of milliseconds of work, and one every five seconds
// would be most of what an idle daemon does.
func (o Options) backstop(peers int) time.Duration {
	return o.Backstop * time.Duration(min(max(peers, backstopPeers), backstopMost*backstopPeers)) / backstopPeers
}

// await returns after pause, or when something asks for a pass before.
func (r *runner) await(ctx context.Context, pause, gap time.Duration) {
	opts := r.loop.opts
	timer := time.NewTimer(pause)
	defer timer.Stop()
	look := time.NewTicker(opts.RulesLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-r.loop.wanted:
			r.settle(ctx)
		case _, ok := <-r.notices:
			if !ok {
				r.notices = nil
			}
			r.rest(ctx, max(opts.Settle, gap-time.Since(r.started)))
		case <-look.C:
			// What is changed there gives no notice.
			if !r.rules.due(r.rules.asked, r.loop.kernel.RulesMark(ctx), opts.RulesEvery) {
				continue
			}
		}
		return
	}
}

// rest lets a burst of notices settle, for d. What is wanted anew does not wait
// behind the notices of the loop's own writes.
func (r *runner) rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-r.loop.wanted:
		r.settle(ctx)
	}
}

// settle lets a burst of wishes come in. The first one after a rest, which is
// most often the only one, hardly waits.
func (r *runner) settle(ctx context.Context) {
	d := r.loop.opts.Settle
	if time.Since(r.started) >= r.loop.opts.MinGap {
		d /= 5
	}
	sleep(ctx, d)
}

// drain takes what has come in while the burst settled: the pass that follows
// sees all of it.
func (r *runner) drain() {
	select {
	case <-r.loop.wanted:
	default:
	}
	select {
	case _, ok := <-r.notices:
		if !ok {
			r.notices = nil
		}
	default:
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// pass reads, plans, applies and reports once.
func (r *runner) pass(ctx context.Context) {
	l := r.loop
	r.started = time.Now()
	l.mu.Lock()
	want, generation := l.desired, l.generation
	l.mu.Unlock()
	r.peers = len(want.Peers)

	// A pod that comes or goes changes what is wanted, but not the rules: it
	// must not cost a process.
	wish, mark := want.rulesWish(), l.kernel.RulesMark(ctx)
	rules := r.rules.due(wish, mark, l.opts.RulesEvery)
	var families Families
	if rules {
		families = wish.families
	}
	have, err := l.kernel.Read(ctx, families)
	if err != nil {
		r.finish(generation, outcome{faults: []Fault{{"read", err.Error()}}})
		return
	}
	p := planAll(want, have)
	out := r.apply(ctx, p)
	out.conflicts = p.conflicts
	if rules {
		r.rules.note(wish, mark, have, out)
	} else {
		out.faults = append(out.faults, r.rules.faults...)
		out.conflicts = append(out.conflicts, r.rules.conflicts...)
	}
	out.faults = append(out.faults, have.Faults...)
	out.clean = len(p.ops) == 0 && len(out.faults) == 0 && r.rules.clean
	out.peers = peerReports(p, want.Peers, out.failures)
	out.kept = peerReports(p, p.kept, out.failures)
	r.finish(generation, out)
}

// outcome is what one pass did.
type outcome struct {
	clean     bool
	writes    map[string]uint64
	failures  []failure
	faults    []Fault
	peers     []PeerReport
	kept      []PeerReport
	conflicts []Conflict
}

// errSkipped marks operations that were left out after an earlier failure.
var errSkipped = errors.New("left out after an earlier failure")

// apply makes the planned changes and goes past failures, except for what
// depends on the failed one.
func (r *runner) apply(ctx context.Context, p *planner) outcome {
	out := outcome{writes: map[string]uint64{}}
	broken := map[string]bool{}
	debug := r.loop.log.Enabled(ctx, slog.LevelDebug)
	for _, op := range p.ops {
		if ctx.Err() != nil {
			break
		}
		if isBroken(broken, op.Scope) {
			out.failures = append(out.failures, failure{op, errSkipped})
			continue
		}
		if err := r.applyOne(ctx, op); err != nil {
			broken[op.Scope] = true
			out.failures = append(out.failures, failure{op, err})
			out.faults = append(out.faults, failure{op, err}.fault())
			continue
		}
		out.writes[op.Kind()]++
		if c, ok := op.Change.(SetSysctl); ok && op.Scope == scopeForward6 {
			// What the host does with routers changes, and once: it is said.
			r.loop.log.Info("setting of IPv6 changed", "path", c.Path, "value", c.Value)
		}
		if debug { // to put thousands into words takes longer than to do them
			r.loop.log.Debug("kernel changed", "op", op.String())
		}
	}
	return out
}

func (r *runner) applyOne(ctx context.Context, op Op) error {
	err := r.loop.kernel.Apply(ctx, op)
	if err == nil || op.OnFail == nil {
		return err
	}
	return errors.Join(err, r.loop.kernel.Apply(ctx, Op{Scope: op.Scope, Change: op.OnFail}))
}

// isBroken reports whether scope or one around it has failed.
func isBroken(broken map[string]bool, scope string) bool {
	for len(broken) > 0 {
		if broken[scope] {
			return true
		}
		cut := strings.LastIndexByte(scope, '/')
		if cut < 0 {
			break
		}
		scope = scope[:cut]
	}
	return false
}

// finish logs the pass, publishes it and decides on the next one.
func (r *runner) finish(generation uint64, out outcome) {
	l := r.loop
	r.next(out)
	for _, f := range out.faults {
		l.faults.report(f.What, f.What, f.Why)
	}
	for _, c := range out.conflicts {
		key := "conflict " + c.Text
		if c.What == ConflictNeighbours || c.What == ConflictNeighbours6 {
			key = c.What // its numbers change with every pod
		}
		l.faults.report(key, "conflict in the kernel", c.Text)
	}
	if len(out.writes) > 0 {
		l.log.Info("kernel brought in line", "writes", out.writes, "failed", len(out.failures))
	}
	now := time.Now()
	r.fights.note(generation, out, now)
	fought := r.fights.standing(now)
	for _, f := range fought {
		l.faults.report("fight "+f.Kind, "repaired again and again", f.String())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	rep := l.report.clone()
	rep.Fights = fought
	rep.Converged, rep.Faults = out.clean, out.faults
	rep.Err = nil
	if len(out.faults) > 0 {
		f := out.faults[0]
		rep.Err = fmt.Errorf("%s: %s", f.What, f.Why)
	}
	if out.peers != nil { // else nothing could be read, and what was seen stands
		rep.Peers, rep.Kept, rep.Conflicts = out.peers, out.kept, out.conflicts
	}
	rep.Passes++
	if rep.Writes == nil {
		rep.Writes = map[string]uint64{}
	}
	for kind, n := range out.writes {
		rep.Writes[kind] += n
	}
	l.report, l.reported = rep, generation
	close(l.changed)
	l.changed = make(chan struct{})
}

func (r *runner) next(out outcome) {
	if len(out.writes) > 0 {
		r.wrote++
	} else {
		r.wrote = 0
	}
	switch {
	case len(out.faults) == 0 && r.wrote < 2:
		r.retry = 0
	case r.retry == 0:
		r.retry = r.loop.opts.RetryMin
	default:
		r.retry = min(2*r.retry, r.loop.opts.RetryMax)
	}
}
