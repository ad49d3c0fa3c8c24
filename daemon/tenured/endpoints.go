package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-semver/semver"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
)

// storeView is the lease engine as far as the endpoints need it.
type storeView interface {
	Client() *clientv3.Client
	Changed() (lease.View, <-chan struct{})
}

// endpoints asks each etcd endpoint now and then how it is, for status only.
type endpoints struct {
	etcd  conf.Etcd
	urls  []string
	certs *certificates
	// beside are the problems of an etcd in this process.
	beside func() []api.Problem

	mu   sync.Mutex
	last map[string]api.Endpoint
}

func newEndpoints(e conf.Etcd, beside func() []api.Problem) *endpoints {
	return &endpoints{etcd: e, urls: e.Endpoints, certs: newCertificates(e), beside: beside, last: map[string]api.Endpoint{}}
}

// How often an endpoint is asked: rarely while all is well, since every node
// of the cluster does it, but once in a LeaseTTL at least.
const (
	probeWell = time.Minute
	probeIll  = 5 * time.Second
	probeCall = 3 * time.Second
)

// Endpoints is what is known of each, in the order of the flag.
func (e *endpoints) Endpoints() []api.Endpoint {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]api.Endpoint, 0, len(e.urls))
	for _, u := range e.urls {
		one := e.last[u]
		one.URL = u
		all = append(all, one)
	}
	return all
}

// Run asks until ctx ends: at once when the engine has no answer any more, or
// has one again.
func (e *endpoints) Run(ctx context.Context, s storeView) error {
	var asked time.Time
	silent, state := false, api.State("")
	for {
		v, changed := s.Changed()
		// Another state often means another answer.
		if now := unreachable(v); now != silent || v.State != state {
			silent, state, asked = now, v.State, time.Time{}
		}
		if due := time.Until(asked.Add(e.interval(silent, v.Network))); due > 0 {
			t := time.NewTimer(due)
			select {
			case <-ctx.Done():
				t.Stop()
				return nil
			case <-t.C:
			case <-changed:
			}
			t.Stop()
			continue
		}
		asked = time.Now()
		e.probe(ctx, s.Client())
		if ctx.Err() != nil {
			return nil
		}
	}
}

func unreachable(v lease.View) bool {
	return slices.ContainsFunc(v.Problems, func(p api.Problem) bool { return p.Code == "etcd-unreachable" })
}

func (e *endpoints) interval(silent bool, n *conf.Network) time.Duration {
	ill := func(one api.Endpoint) bool { return !one.Healthy || one.Alarm != "" }
	if silent || slices.ContainsFunc(e.Endpoints(), ill) {
		return probeIll
	}
	if n != nil {
		return min(probeWell, max(probeIll, n.LeaseTTL))
	}
	return probeWell
}

// probe asks every endpoint once, at the same time.
func (e *endpoints) probe(ctx context.Context, c *clientv3.Client) {
	var all sync.WaitGroup
	for _, u := range e.urls {
		all.Go(func() { e.note(u, e.ask(ctx, c, u)) })
	}
	all.Wait()
}

// ask is one endpoint's answer. Where there is none, a plain connection says
// why more clearly than the client's expired context.
func (e *endpoints) ask(ctx context.Context, c *clientv3.Client, endpoint string) api.Endpoint {
	ctx, cancel := context.WithTimeout(ctx, probeCall)
	defer cancel()
	if err := lease.Handshake(ctx, e.etcd, endpoint); err != nil {
		return api.Endpoint{Reason: noConnection(err)}
	}
	if c == nil {
		return api.Endpoint{Reason: "it accepts connections, but no session with etcd has begun"}
	}
	resp, err := c.Status(ctx, endpoint)
	if answersOthers(err) {
		return api.Endpoint{Healthy: true}
	}
	if err != nil {
		return api.Endpoint{Reason: "it accepts connections, but etcd does not answer: " + err.Error()}
	}
	return api.Endpoint{Healthy: true, Version: resp.Version, Alarm: alarm(resp)}
}

// The alarms of etcd that a member's status is searched for, and what is said
// before the first of them.
const (
	alarmSpace   = "NOSPACE"
	alarmCorrupt = "CORRUPT"
	alarmNear    = "NEARLY FULL"
)

// nearFull is the part of its quota, in percent, from which on a member's file
// is said to be nearly full. Only etcd 3.6 and later tell their quota.
const nearFull = 90

// alarm is what a member's status says of the whole store: etcd lists there the
// alarms of every member, as text of its own making.
func alarm(s *clientv3.StatusResponse) string {
	for _, name := range []string{alarmCorrupt, alarmSpace} {
		if slices.ContainsFunc(s.Errors, func(text string) bool { return strings.Contains(text, "alarm:"+name) }) {
			return name
		}
	}
	if s.DbSizeQuota > 0 && s.DbSize >= s.DbSizeQuota/100*nearFull {
		return alarmNear
	}
	return ""
}

// noConnection says why there is none. A name that does not resolve is no
// trouble of etcd's, and is looked for elsewhere.
func noConnection(err error) string {
	var name *net.DNSError
	if errors.As(err, &name) {
		return fmt.Sprintf("the name %s cannot be resolved, look at this node's /etc/resolv.conf and /etc/hosts and at its name server: %v", name.Name, err)
	}
	return err.Error()
}

func (e *endpoints) note(u string, one api.Endpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, known := e.last[u]
	one.Since = before.Since
	if !known || before.Healthy != one.Healthy {
		one.Since = time.Now().UTC().Format(time.RFC3339)
	}
	if one.Version == "" {
		one.Version = before.Version
	}
	e.last[u] = one
}

// why is what is known of each endpoint that does not answer.
func (e *endpoints) why() string {
	var all []string
	for _, one := range e.Endpoints() {
		if !one.Healthy && one.Reason != "" {
			all = append(all, one.URL+": "+one.Reason)
		}
	}
	return strings.Join(all, "; ")
}

// fixedIn is the first release of each line of etcd without known lease bugs
// (etcd #15247); later lines have none.
var fixedIn = []string{"3.4.38", "3.5.23", "3.6.5"}

// Problems is what is odd about the way to etcd.
func (e *endpoints) Problems() []api.Problem {
	return slices.Concat(e.oldMembers(), e.alarms(), e.certs.problems(time.Now()), e.beside())
}

// alarms says what a node that holds a subnet would not notice: it writes
// nothing, until it has to.
func (e *endpoints) alarms() []api.Problem {
	by := map[string][]string{}
	for _, one := range e.Endpoints() {
		by[one.Alarm] = append(by[one.Alarm], one.URL)
	}
	var all []api.Problem
	show := func(code, alarm, text, fix string) {
		if urls := by[alarm]; len(urls) > 0 {
			all = append(all, api.Problem{Code: code, Severity: api.SeverityWarning, Text: strings.Join(urls, ", ") + ": " + text, Fix: fix})
		}
	}
	show("etcd-space", alarmSpace, "etcd's store is full (alarm NOSPACE) and refuses writes: leases are renewed and what is held is served on, but nobody gets a subnet who has none", lease.SpaceFix)
	if len(by[alarmSpace]) == 0 {
		show("etcd-space", alarmNear, fmt.Sprintf("etcd's store has reached %d %% of its quota: when it is full, nobody gets a subnet who has none", nearFull), lease.SpaceFix)
	}
	show("etcd-corrupt", alarmCorrupt, "etcd says that a member's data differ from the others' (alarm CORRUPT)",
		"replace the member that etcdctl alarm list names, by an empty one, and then: etcdctl alarm disarm")
	return all
}

// oldMembers names members whose version may end a lease that is being kept
// alive.
func (e *endpoints) oldMembers() []api.Problem {
	var old []string
	for _, one := range e.Endpoints() {
		if leaseBugs(one.Version) {
			old = append(old, one.URL+" runs "+one.Version)
		}
	}
	if len(old) == 0 {
		return nil
	}
	return []api.Problem{{Code: "etcd-version", Severity: api.SeverityWarning,
		Text: fmt.Sprintf("%s: this version has bugs that can end a lease which is being kept alive", strings.Join(old, "; ")),
		Fix:  "upgrade etcd to at least " + strings.Join(fixedIn, ", ") + " of its line"}}
}

// leaseBugs says whether a version of etcd is older than the fixed one of its
// line. A version that cannot be read is given the benefit of the doubt.
func leaseBugs(text string) bool {
	v, err := semver.NewVersion(text)
	if err != nil {
		return false
	}
	for _, fixed := range fixedIn {
		f, err := semver.NewVersion(fixed)
		if err == nil && (v.Major < f.Major || v.Major == f.Major && v.Minor < f.Minor) {
			return true // a line that was never fixed
		}
		if err == nil && v.Major == f.Major && v.Minor == f.Minor {
			return v.LessThan(*f)
		}
	}
	return false
}

// answersOthers says whether an endpoint refused to tell how it is, and is well
// therefore: etcd 3.6 tells that to root alone, where it has users. Its version
// is not known then.
func answersOthers(err error) bool {
	return errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied)
}

// endpointHosts are the hosts of the etcd URLs.
func endpointHosts(e conf.Etcd) []string {
	var hosts []string
	for _, raw := range e.Endpoints {
		if u, err := url.Parse(raw); err == nil && !slices.Contains(hosts, u.Hostname()) {
			hosts = append(hosts, u.Hostname())
		}
	}
	return hosts
}
