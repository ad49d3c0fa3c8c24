package lease

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/lab/proxy"
)

// wentBack is a node that has seen a write by its watch alone, and whose etcd is
// put back to before that write. It does not prove anything by itself meanwhile.
// It is cut off until then.
func wentBack(t *testing.T) (*daemon, *clientv3.Client, *proxy.Proxy) {
	s, c := cluster(t, `{"Network":"10.5.0.0/22","SubnetLen":24,"LeaseTTL":"90s"}`)
	p := newProxy(t, s.Endpoint)
	d := newHost(t, "n1", "http://"+p.Addr()).start()
	v := d.waitHeld()
	backup := s.Backup(t)
	put(t, c, NewKeys(prefix).All()+"noise", "so that the backup is older")
	d.wait("the write is seen", func(w View) bool { return w.Snapshot.Revision > v.Snapshot.Revision })
	p.Cut()
	s.Restore(t, backup)
	return d, c, p
}

// TestWhatTheWatchHasSeenCounts: a store that lost only what no proof has shown
// yet went back all the same.
func TestWhatTheWatchHasSeenCounts(t *testing.T) {
	t.Parallel()
	d, _, p := wentBack(t)
	p.Restore()
	d.Touch()
	d.wait("knows that the store went back", func(v View) bool { return hasProblem(v, storeWentBack) && v.Settling })
}

// TestSettleThatTheWatchMissed: the store went back and was written to by others,
// settle first, until it was past what this node knew. The watch goes on behind
// that. The next proof shows settle, and the node looks anew.
func TestSettleThatTheWatchMissed(t *testing.T) {
	t.Parallel()
	d, c, p := wentBack(t)
	if _, err := InitAfterLoss(t.Context(), c, prefix, []byte(tenSeconds), time.Minute); err != nil {
		t.Fatal(err)
	}
	put(t, c, NewKeys(prefix).All()+"noise", "past what was known")
	put(t, c, NewKeys(prefix).All()+"noise", "and again")
	p.Restore()
	d.Touch()
	d.wait("sees settle", func(v View) bool { return v.Settling && v.Snapshot.Settle.ModRevision != 0 })
}

// TestSettleOfAStoreThatSeemsTheSame: a node is cut off since before the backup,
// so that to it nothing has gone back when that is put in place, with its key in
// it and its lease revived. Others have had all the time to give its subnet to
// somebody else, whose fence may be open: its own stays closed until settle, which
// they have put, is gone.
func TestSettleOfAStoreThatSeemsTheSame(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	p := newProxy(t, s.Endpoint)
	h := newHost(t, "n1", "http://"+p.Addr())
	d := h.start()
	v := d.waitHeld()
	p.Cut()
	backup := s.Backup(t)
	d.wait("fenced", func(v View) bool { return v.State == api.StateFenced })
	s.Restore(t, backup)
	if _, err := InitAfterLoss(t.Context(), c, prefix, []byte(fourSubnets), 6*time.Second); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	p.Restore()
	w := d.waitHeld()
	if waited := time.Since(back); waited < 5*time.Second {
		t.Errorf("the fence opened %s after settle was put", waited)
	}
	if w.Holding.Subnets() != v.Holding.Subnets() {
		t.Errorf("holds %s, want %s", w.Holding.Subnets(), v.Holding.Subnets())
	}
}

// TestCounts: which proofs open a closed fence.
func TestCounts(t *testing.T) {
	for _, c := range []struct {
		forgot         bool
		settle, before int64
		want           bool
	}{
		{false, 0, 0, true}, {false, 0, 7, true}, {false, 7, 7, true}, {false, 7, 0, false},
		{false, 8, 7, false}, {true, 0, 0, false}, {true, 7, 7, false},
	} {
		if got := counts(c.forgot, c.settle, c.before); got != c.want {
			t.Errorf("%+v: it counts: %t", c, got)
		}
	}
}

// TestSettleIsTold to a daemon that was started while it stands, and by whom.
func TestSettleIsTold(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	d.waitHeld()
	if _, err := InitAfterLoss(t.Context(), c, prefix, []byte(fourSubnets), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	d.stop()
	d = h.start()
	v := d.wait("held, and told", func(v View) bool { return v.State == api.StateHeld && hasProblem(v, storeWentBack) })
	for _, p := range v.Problems {
		if p.Code == storeWentBack && !strings.Contains(p.Text, "tenurectl init --after-loss") {
			t.Errorf("%+v, want it to say who began it", p)
		}
	}
	d.wait("and that it is over", func(v View) bool { return v.State == api.StateHeld && !hasProblem(v, storeWentBack) })
}

// TestInitAfterLossKeepsTheLongerSettle: a node that puts settle knows how long
// its lease was; the operator's word is for those that he knows of.
func TestInitAfterLossKeepsTheLongerSettle(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	for _, step := range []struct{ ask, least, most time.Duration }{
		{30 * time.Second, 29 * time.Second, 30 * time.Second},
		{5 * time.Second, 20 * time.Second, 30 * time.Second},
		{60 * time.Second, 59 * time.Second, 60 * time.Second},
	} {
		b, err := InitAfterLoss(t.Context(), c, prefix, []byte(fourSubnets), step.ask)
		if err != nil || !b.Settling || b.Settle < step.least || b.Settle > step.most {
			t.Errorf("--settle %s: %+v, %v", step.ask, b, err)
		}
		if _, left, err := settleStands(t.Context(), c, NewKeys(prefix)); err != nil || left < step.least-time.Second || left > step.most {
			t.Errorf("after --settle %s it stands for %s (%v), want %s to %s", step.ask, left, err, step.least, step.most)
		}
	}
}

// TestWhichInit a node without a cluster asks for: plain where there never was
// one, or flannel's; --after-loss where nodes of an earlier life may run.
func TestWhichInit(t *testing.T) {
	config := Versioned[[]byte]{nil, 1}
	held := Entry{Subnets: v4("10.5.3.0/24"), Lease: 4, Record: Record{Tenure: &Tenant{UID: "you", Node: "n2"}}}
	flannels := Entry{Subnets: v4("10.5.4.0/24"), Lease: 5}
	for name, c := range map[string]struct {
		s     Snapshot
		known string
		loss  bool
	}{
		"unborn":                     {Snapshot{}, "", false},
		"flannel's config":           {Snapshot{Config: config, Entries: []Entry{flannels}}, "", false},
		"wiped, by memory":           {Snapshot{}, "s", true},
		"wiped, somebody settles":    {Snapshot{Settle: Versioned[Settle]{ModRevision: 7}}, "", true},
		"wiped, somebody is back":    {Snapshot{Entries: []Entry{flannels, held}}, "", true},
		"store gone, by memory":      {Snapshot{Config: config}, "s", true},
		"store gone, and a node":     {Snapshot{Config: config, Entries: []Entry{held}}, "", true},
		"store gone, and it settles": {Snapshot{Config: config, Settle: Versioned[Settle]{ModRevision: 7}}, "", true},
	} {
		no := func() bool { return false }
		me := self{Memory: Memory{UID: "me", Had: c.known}, local: func(netip.Addr) bool { return false }, flannel: no}
		d := decide(&c.s, me, func() (*conf.Network, error) { return nil, errNotJudged })
		if !strings.Contains(d.wait, "tenurectl init") || strings.Contains(d.wait, "--after-loss") != c.loss {
			t.Errorf("%s: it waits and says %q", name, d.wait)
		}
	}
}

// TestExhaustedNamesATombstone as nobody's.
func TestExhaustedNamesATombstone(t *testing.T) {
	n := network(t, `{"Network":"10.5.0.0/22","SubnetLen":24}`)
	s := &Snapshot{Entries: []Entry{{Subnets: v4("10.5.0.0/24"), Record: Record{Tenure: &Tenant{Node: "n1"}}}}}
	if text := exhausted(n, s, "n3", ""); !strings.Contains(text, "released from n1 by force") {
		t.Errorf("it says %q", text)
	}
}

// TestExhaustedCounts: of the reserved subnets those count that nobody holds, one
// by one, but for this node's own.
func TestExhaustedCounts(t *testing.T) {
	n := network(t, `{"Network":"10.5.0.0/21","SubnetLen":24}`)
	record := func(subnet, node string) Entry {
		return Entry{Subnets: v4(subnet), Record: Record{Tenure: &Tenant{Node: node, UID: node}}}
	}
	s := &Snapshot{Entries: []Entry{record("10.5.0.0/24", "n1"), record("10.5.1.0/24", "n2")}, Reservations: map[string]Versioned[Reservation]{}}
	for name, node := range map[string]string{"10.5.1.0-24": "n9", "10.5.2.0-24": "n9", "10.5.3.0-24": "n9", "10.5.4.0-24": "n8", "10.5.5.0-24": "n3", "10.6.0.0-24": "n9"} {
		s.Reservations[name] = Versioned[Reservation]{Value: Reservation{Node: node}}
	}
	const want = "no free subnet: of 8 in 10.5.0.0/21, 2 are held (n1, n2) and 3 more are reserved for others (n8, n9); next"
	if text := exhausted(n, s, "n3", "next"); text != want {
		t.Errorf("it says %q, want %q", text, want)
	}
}

// TestNextEndStands while its record does, and for a while.
func TestNextEndStands(t *testing.T) {
	now, dying := time.Now(), Entry{Subnets: v4("10.5.1.0/24"), Lease: 7}
	s := &Snapshot{Entries: []Entry{dying}}
	for name, c := range map[string]struct {
		n    nextEnd
		want bool
	}{
		"never counted":    {nextEnd{}, false},
		"nothing to name":  {nextEnd{at: now}, true},
		"there":            {nextEnd{at: now, whose: dying}, true},
		"old":              {nextEnd{at: now.Add(-countEvery), whose: dying}, false},
		"gone":             {nextEnd{at: now, whose: Entry{Subnets: v4("10.5.2.0/24"), Lease: 8}}, false},
		"taken by another": {nextEnd{at: now, whose: Entry{Subnets: v4("10.5.1.0/24"), Lease: 8}}, false},
	} {
		if got := c.n.stands(s, now); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestWaitersLetOthersGoFirst, but nobody waits who is not one of many.
func TestWaitersLetOthersGoFirst(t *testing.T) {
	e := NewEngine(Config{})
	if d := e.spread(); d != 0 {
		t.Errorf("with nothing amiss it waits %s", d)
	}
	e.problem(api.SeverityError, noFreeSubnet, "all are held", "")
	seen := map[time.Duration]bool{}
	for range 20 {
		d := e.spread()
		if d < 0 || d >= waitersSpread {
			t.Errorf("it waits %s, want less than %s", d, waitersSpread)
		}
		seen[d] = true
	}
	if len(seen) < 10 {
		t.Errorf("twenty waits are of %d lengths", len(seen))
	}
}

func v4(s string) Subnets { return Subnets{V4: netip.MustParsePrefix(s)} }
