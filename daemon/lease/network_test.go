package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// TestFormerNetworks: what was in force and does not lie in what is now is
// remembered, once, newest last, and not without end.
func TestFormerNetworks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ known, before, now, want string }{
		{"", "10.5.0.0/16", "10.6.0.0/16", "[10.5.0.0/16]"},
		{"", "10.5.0.0/16", "10.0.0.0/8", "[]"},
		{"", "10.5.0.0/16", "10.5.0.0/16", "[]"},
		{"", "10.0.0.0/8", "10.5.0.0/16", "[10.0.0.0/8]"}, // a bridge may have addresses of the rest
		{"10.0.0.0/8", "10.5.0.0/16", "10.0.0.0/8", "[]"},
		{"10.5.0.0/16", "10.6.0.0/16", "10.5.0.0/16", "[10.6.0.0/16]"},
		{"10.5.0.0/16 10.7.0.0/16", "10.5.0.0/16", "10.6.0.0/16", "[10.7.0.0/16 10.5.0.0/16]"},
		{"10.5.0.0/16", "", "10.6.0.0/16", "[10.5.0.0/16]"},
		{"10.5.0.0/16", "10.6.0.0/16", "", "[10.5.0.0/16 10.6.0.0/16]"},
		{"10.1.0.0/16 10.2.0.0/16 10.3.0.0/16 10.4.0.0/16 10.5.0.0/16 10.6.0.0/16 10.7.0.0/16 10.8.0.0/16", "10.9.0.0/16", "10.10.0.0/16",
			"[10.2.0.0/16 10.3.0.0/16 10.4.0.0/16 10.5.0.0/16 10.6.0.0/16 10.7.0.0/16 10.8.0.0/16 10.9.0.0/16]"},
	} {
		var known []netip.Prefix
		for _, text := range strings.Fields(c.known) {
			known = append(known, netip.MustParsePrefix(text))
		}
		before, _ := netip.ParsePrefix(c.before)
		now, _ := netip.ParsePrefix(c.now)
		if got := fmt.Sprint(former(known, before, now)); got != c.want {
			t.Errorf("%s, then %s, now %s: %s, want %s", c.known, c.before, c.now, got, c.want)
		}
	}
}

// TestOrphansAreNotAllNamed: the text stays one that can be read.
func TestOrphansAreNotAllNamed(t *testing.T) {
	t.Parallel()
	var kvs []string
	for i := range 20 {
		kvs = append(kvs, fmt.Sprintf("subnets/10.5.%d.0-24", i), recordOf(fmt.Sprint("n", i), fmt.Sprintf("192.0.2.%d", 11+i), 1))
	}
	faults := orphaned(network(t, `{"Network":"10.5.0.0/28"}`), listed(fourSubnets, kvs...))
	if text := faults.Error(); len(faults) != orphansNamed+1 || !strings.Contains(text, "10.5.10.0/24") || !strings.Contains(text, "17 more") {
		t.Errorf("%d faults: %s", len(faults), text)
	}
}

// TestConfigWithMoreThanThereIs: flannel's, for example; it is said once what has no
// effect.
func TestConfigWithMoreThanThereIs(t *testing.T) {
	t.Parallel()
	_, e, _ := holder(t)
	var said logBuffer
	e.log = slog.New(slog.NewTextHandler(&said, nil))
	s := shown(12, true)
	s.Config = Versioned[[]byte]{[]byte(`{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan","GBP":true}}`), 12}
	e.adopt(s)
	e.adopt(s)
	for _, field := range []string{"EnableNFTables", "Backend.GBP"} {
		if n := said.lines(field); n != 1 {
			t.Errorf("%d lines about %s", n, field)
		}
	}
}

// TestClashComesAndGoes: what has come in the way of a config that is in force
// is told, without an event in etcd, and changes nothing; the faults of a new one
// are named together, the machine's and the cluster's.
func TestClashComesAndGoes(t *testing.T) {
	t.Parallel()
	_, e, _ := holder(t)
	var clash error
	e.cfg.Judge = func(conf.Network) error { return clash }
	s := shown(12, true)
	s.Config = Versioned[[]byte]{[]byte(fourSubnets), 12}
	e.adopt(s)
	problem := func() string { return e.problems[configRefused].Text }
	if problem() != "" || e.inForce() == nil {
		t.Fatalf("a good config: %q", problem())
	}
	if got := string(e.cfg.Memory.Get().Config); got != fourSubnets {
		t.Errorf("a daemon that starts now goes by %q", got)
	}
	clash = conf.Faults{{Field: "Network", Text: "overlaps a bridge"}}
	e.Rejudge()
	if p := e.problems[configRefused]; !strings.Contains(p.Text, "in force") || !strings.Contains(p.Text, "overlaps a bridge") || p.Severity != api.SeverityError {
		t.Errorf("with a clash: %+v", p)
	}
	clash = errors.New("the kernel was not read")
	e.Rejudge()
	if problem() == "" {
		t.Error("a machine that could not be looked at is not well for that")
	}
	clash = nil
	e.Rejudge()
	if problem() != "" || *e.inForce() != network(t, fourSubnets) {
		t.Errorf("without it: %q, %v", problem(), e.inForce())
	}
	clash = conf.Faults{{Field: "Network", Text: "overlaps a bridge"}}
	e.judgeLocked(listed(`{"Network":"10.9.0.0/16"}`, "subnets/10.5.1.0-24", recordOf("n2", "192.0.2.12", 1)))
	if text := problem(); !strings.Contains(text, "overlaps a bridge") || !strings.Contains(text, "held subnet") || strings.Contains(text, "in force on this node") {
		t.Errorf("a config with two faults: %q", text)
	}
}

// reluctant is a fence that refuses some times to take another network.
type reluctant struct {
	*register
	mu      sync.Mutex
	refuse  int // how often still
	refused int
	network Subnets
}

func (r *reluctant) Set(live, network Subnets) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.network != (Subnets{}) && network != r.network && r.refuse > 0 {
		r.refuse, r.refused = r.refuse-1, r.refused+1
		return errors.New("cannot allocate memory")
	}
	r.network = network
	return r.register.Set(live, network)
}

// TestFenceRefusesANetwork: a renewal may be half a minute off, and what lies
// outside of the network of before is not judged meanwhile. So the fence is told
// again soon, status says so until it has been, and the log once.
func TestFenceRefusesANetwork(t *testing.T) {
	t.Parallel()
	const day = `{"Network":"10.5.0.0/22","SubnetLen":24,"LeaseTTL":"24h"}`
	s, c := cluster(t, day)
	h := newHost(t, "n1", s.Endpoint)
	f := &reluctant{register: h.fence, refuse: 3}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	d := &daemon{Engine: h.engine(), t: t}
	go func() { defer close(done); _ = d.Run(ctx, f) }()
	t.Cleanup(func() { cancel(); <-done })
	before := d.waitHeld()

	put(t, c, d.keys.Config(), strings.Replace(day, "10.5.0.0/22", "10.4.0.0/15", 1))
	began := time.Now()
	v := d.wait("the problem", func(v View) bool { return hasProblem(v, fenceRefuses) })
	if v.State != api.StateHeld || v.Network.Network.Bits() != 15 {
		t.Errorf("meanwhile it is %s with %s", v.State, v.Network.Network)
	}
	v = d.wait("no problem", func(v View) bool { return !hasProblem(v, fenceRefuses) })
	f.mu.Lock()
	refused, told := f.refused, f.network
	f.mu.Unlock()
	if refused != 3 || told.V4.Bits() != 15 || v.Holding.Subnets() != before.Holding.Subnets() {
		t.Errorf("refused %d times, then told %s; it holds %s", refused, told, v.Holding.Subnets())
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %s", d)
	}
	if n := h.log.lines("the fence does not take the network"); n != 1 {
		t.Errorf("%d lines in the log", n)
	}
}
