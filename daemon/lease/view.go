package lease

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// View is what the engine knows at one instant, as a value.
type View struct {
	State  api.State
	Reason string
	// Held says whether Holding is set: held, unproven and fenced have one.
	Held    bool
	Holding Holding
	// Deadline is the CLOCK_BOOTTIME at which the kernel closes by itself.
	Deadline time.Duration
	// LastProof is the CLOCK_BOOTTIME from before the last proof was asked
	// for; 0 if this process has none.
	LastProof time.Duration
	// Former is the subnet that was lost and not replaced yet.
	Former Subnets
	// LostWhy says what happened to the subnet lost last, by this process.
	LostWhy string
	// Doubt is why nothing may be served before the next proof; empty if F
	// alone counts.
	Doubt string
	// UID is the node's identity, which a clone gives up.
	UID string
	// Network is the config in force, nil before the first.
	Network *conf.Network
	// Networks are those that were in force on this node before, newest last.
	Networks []netip.Prefix
	// Snapshot is what etcd had last, nil before the first answer.
	Snapshot *Snapshot
	// Settling: the store forgot, a settle key stands, or most peers have gone
	// at once and no second list has confirmed it; a peer missing from Snapshot
	// may still hold its subnet.
	Settling bool
	Problems []api.Problem
}

// InDate reports whether pods may be given addresses of the holding now.
func (v View) InDate(now time.Duration) bool { return v.Held && v.Doubt == "" && now < v.Deadline }

// View returns the present one.
func (e *Engine) View() View {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.viewLocked()
}

// Changed returns the present View and a channel that is closed at the next
// change. A deadline that passes is no change: compare it with the clock.
func (e *Engine) Changed() (View, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.viewLocked() // which may find a clock gap, and signal
	return v, e.changed
}

// Client is the etcd client, nil before there is one. It is for reading.
func (e *Engine) Client() *clientv3.Client {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.client
}

func (e *Engine) viewLocked() View {
	e.lookAtClocksLocked()
	now := e.cfg.Clock()
	v := View{Former: e.former, LostWhy: e.lostWhy, Network: e.network, Networks: e.networks, Snapshot: e.snapshot, UID: e.cfg.Memory.Get().UID,
		Settling: e.unsettledLocked() || e.trust.open || e.snapshot != nil && e.snapshot.Store.ModRevision == 0}
	if e.doubt != nil {
		v.Doubt = e.doubt.why
	}
	if e.held != nil {
		v.Held, v.Holding, v.Deadline, v.LastProof = true, e.held.Holding, e.held.deadline, e.held.lastProof
	}
	v.State, v.Reason = e.stateLocked(now)
	v.Problems = e.problemsLocked(v, now)
	return v
}

// stateLocked names the node's standing and says it in words.
func (e *Engine) stateLocked(now time.Duration) (api.State, string) {
	h := e.held
	switch {
	case e.refused != "":
		return api.StateRefused, e.refused
	case h == nil && e.conflict != "":
		return api.StateRefused, e.conflict
	case h == nil && !e.former.IsZero():
		return api.StateLost, e.waiting
	case h == nil && e.etcdErr != nil:
		return api.StateStarting, e.notReady() + e.awayText()
	case h == nil && !e.started:
		return api.StateStarting, e.notReady() + "etcd has not answered yet"
	case h == nil:
		return api.StateWaiting, e.waiting
	case now >= h.deadline && errors.Is(h.unproven, errRestarted) && e.etcdErr == nil:
		// Just acquired, or found after the deadline: the first cycle is on its way.
		return api.StateStarting, fmt.Sprintf("%s is about to be proven", h.subnets)
	case now >= h.deadline && h.unproven != nil:
		return api.StateFenced, fmt.Sprintf("the overlay of %s is closed: no proof from etcd before the deadline (%v)", h.subnets, e.unprovenWhy())
	case now >= h.deadline:
		return api.StateFenced, fmt.Sprintf("the overlay of %s is closed: the deadline passed", h.subnets)
	case e.doubt != nil:
		return api.StateUnproven, "no pod is added before the next proof: " + e.doubt.why
	case h.unproven != nil:
		return api.StateUnproven, fmt.Sprintf("etcd has proven nothing since %s; everything goes on for another %s (%v)",
			h.since.UTC().Format(time.RFC3339), (h.deadline - now).Round(time.Second), e.unprovenWhy())
	}
	return api.StateHeld, ""
}

// unprovenWhy is why there is no proof of what is held. A daemon that has just
// started asks for other things first, and may get no answer to them.
func (e *Engine) unprovenWhy() error {
	if e.etcdErr != nil && errors.Is(e.held.unproven, errRestarted) {
		return e.etcdErr
	}
	return e.held.unproven
}

// notReady says first what this machine lacks: etcd may be out of reach for that.
func (e *Engine) notReady() string {
	if err := e.cfg.Ready(e.network); err != nil {
		return err.Error() + "; "
	}
	return ""
}

// awayText says since when etcd does not do what it is asked, and why.
func (e *Engine) awayText() string {
	at, since := strings.Join(e.cfg.Endpoints, ", "), e.etcdDown.UTC().Format(time.RFC3339)
	if why, _, ok := e.keys.refused(e.etcdErr); ok {
		return fmt.Sprintf("etcd at %s has refused this node since %s, %s: %v", at, since, why, e.etcdErr)
	}
	text := fmt.Sprintf("etcd at %s has not answered since %s: %v", at, since, e.etcdErr)
	if e.cfg.Why != nil {
		if why := e.cfg.Why(); why != "" {
			text += "; " + why
		}
	}
	return text
}

// showAwayLocked adds the problem that this is.
func (e *Engine) showAwayLocked(all problems, v View, now time.Duration) {
	text := e.awayText()
	if v.Held && now < v.Deadline {
		text += fmt.Sprintf("; pods are served for another %s", (v.Deadline - now).Round(time.Second))
	}
	if _, fix, ok := e.keys.refused(e.etcdErr); ok {
		all.show(etcdRefuses, api.SeverityError, text, fix, e.etcdDown)
		return
	}
	all.show("etcd-unreachable", api.SeverityError, text,
		"check that the endpoints in --etcd-endpoints are up and reachable from this node; the daemon goes on by itself", e.etcdDown)
}

// problemsLocked adds what follows from the state to what has been noted.
func (e *Engine) problemsLocked(v View, now time.Duration) []api.Problem {
	all := maps.Clone(e.problems)
	if e.etcdErr != nil {
		delete(all, watchSilent)
		e.showAwayLocked(all, v, now)
	}
	if v.State == api.StateFenced {
		all.show("fenced", api.SeverityError, v.Reason, "restore the connection to etcd; the fence opens with the next proof", e.closedSince(now))
	}
	if v.State == api.StateLost {
		all.show("lost", api.SeverityError, v.Reason, "drain the stranded pods of this node; a new subnet is taken as soon as one is free", time.Time{})
	}
	if v.State == api.StateWaiting && all[noFreeSubnet].Code == "" && all[etcdRefuses].Code == "" {
		all.show("waiting", api.SeverityError, v.Reason, "as the text says; the node goes on by itself", time.Time{})
	}
	if v.Snapshot != nil {
		if v.Held && v.Snapshot.Store.ModRevision == 0 {
			all.show("store-missing", api.SeverityError, "etcd has no store identity under "+e.keys.All()+": what is held is served on, new nodes wait",
				"tenurectl init --after-loss with the network config it had", time.Time{})
		}
		for code, p := range e.findingsLocked(v) {
			if _, known := all[code]; !known && (code != duplicateNode || e.conflict == "") {
				all[code] = p
			}
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b api.Problem) int { return cmp.Compare(a.Code, b.Code) })
}

// closedSince is when the kernel closed the overlay of what is held: at the
// deadline. Without one it has not been open yet.
func (e *Engine) closedSince(now time.Duration) time.Time {
	if e.held.deadline == 0 {
		return e.held.since
	}
	return time.Now().Add(e.held.deadline - now)
}

// problems are those that stand, by code.
type problems map[string]api.Problem

func (p problems) add(code, severity, text, fix string) {
	at := time.Now().UTC().Format(time.RFC3339)
	if old, ok := p[code]; ok {
		at = old.Since
	}
	p[code] = api.Problem{Code: code, Severity: severity, Text: text, Since: at, Fix: fix}
}

// show is add for what is found out anew with every view: whoever shows it knows
// since when it stands, unless since says so.
func (p problems) show(code, severity, text, fix string, since time.Time) {
	at := ""
	if !since.IsZero() {
		at = since.UTC().Format(time.RFC3339)
	}
	p[code] = api.Problem{Code: code, Severity: severity, Text: text, Since: at, Fix: fix}
}

func (e *Engine) problem(severity, code, text, fix string) {
	e.update(func() { e.problems.add(code, severity, text, fix) })
}

func (e *Engine) clear(code string) {
	e.update(func() { delete(e.problems, code) })
}

// Refuse puts the node into the state refused until it is called with "": the
// machine cannot fence, so Run must not be called yet.
func (e *Engine) Refuse(why string) { e.update(func() { e.refused = why }) }

// update changes fields and tells everybody who waits in Changed.
func (e *Engine) update(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
	e.signal()
}

func (e *Engine) signal() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// nudge makes the loop act before its timer.
func (e *Engine) nudge() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *Engine) tenancy() *tenancy {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.held
}

func (e *Engine) lostSubnet() Subnets {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.former
}

func (e *Engine) inForce() *conf.Network {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.network
}

func (e *Engine) unreachable(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unreachableLocked(err)
	e.signal()
}

func (e *Engine) unreachableLocked(err error) {
	_, _, refused := e.keys.refused(err)
	_, _, before := e.keys.refused(e.etcdErr)
	if e.etcdErr == nil {
		e.etcdDown = time.Now()
	}
	switch {
	case refused && !before:
		e.log.Warn("etcd refuses this node, trying on", "error", err)
	case !refused && (before || e.etcdErr == nil):
		e.log.Warn("etcd does not answer, trying on", "error", err)
	}
	e.etcdErr = err
}

// reachable notes an answer of etcd's. While renewals fail, that it answers
// something else is no end of it.
func (e *Engine) reachable() {
	e.update(func() {
		if e.held == nil || !e.held.failing() {
			e.reachableLocked()
		}
	})
}

func (e *Engine) reachableLocked() {
	if e.etcdErr != nil {
		e.log.Info("etcd answers again", "after", time.Since(e.etcdDown).Round(time.Millisecond))
		if e.rouse != nil {
			e.rouse() // the watch may be waiting long before it asks again
		}
	}
	e.etcdErr = nil
}

// errNotJudged says that there is no config that could have been judged.
var errNotJudged = errors.New("there is no network config")
