package lease

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/etcdtest"
)

// TestA6: a second machine under the same name, and a clone with the same UID,
// are refused while the first renews its lease; the first is not disturbed.
func TestA6(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(fourSubnets, "5s", "6s", 1))
	first := newHost(t, "n1", s.Endpoint)
	d := first.start()
	v := d.waitHeld()
	key := NewKeys(prefix).Subnet(v.Holding.Subnets())

	namesake, clone := newHost(t, "n1", s.Endpoint), newHost(t, "n1", s.Endpoint)
	namesake.boot, clone.boot = "another machine", "a third machine"
	namesake.address, clone.address = "192.0.2.12", "192.0.2.13"
	b, err := os.ReadFile(filepath.Join(first.dir, "node.json"))
	if err == nil {
		err = os.WriteFile(filepath.Join(clone.dir, "node.json"), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	var later []*daemon
	for _, h := range []*host{namesake, clone} {
		l := h.start()
		w := l.wait("refused", func(v View) bool { return v.State == api.StateRefused })
		if !strings.Contains(w.Reason, "192.0.2.11") || !hasProblem(w, "duplicate-node") {
			t.Errorf("refused for %q with %v, want the holder's address in it", w.Reason, w.Problems)
		}
		later = append(later, l)
	}
	// Two whole leases long: nobody gives in, nothing is written.
	until := time.Now().Add(12 * time.Second)
	for time.Now().Before(until) {
		for _, l := range later {
			if w := l.View(); w.Held {
				t.Fatalf("a later machine holds %s", w.Holding.Subnets())
			}
		}
		if n := first.fence.Get().Closed; n != 0 {
			t.Fatalf("the first one's fence was closed %d times", n)
		}
		etcdtest.Get(t, c, key)
	}
	if kv := etcdtest.Get(t, c, key).Kvs; len(kv) != 1 || kv[0].Version != 1 {
		t.Errorf("the first one's record was written: %v", kv)
	}
	d.stop()
	// Once it is gone one of them goes on, and the other is refused for that one.
	held := func() (n int) {
		for _, l := range later {
			if l.View().Held {
				n++
			}
		}
		return n
	}
	later[0].wait("one to go on", func(View) bool { return held() == 1 })
}

// TestLives: three intervals without renewal are an absence, two are not.
func TestLives(t *testing.T) {
	day := 24 * time.Hour
	for _, c := range []struct {
		r    renewed
		want bool
	}{
		{renewed{0, day}, true},
		{renewed{89 * time.Second, day}, true},
		{renewed{90 * time.Second, day}, false},
		{renewed{9 * time.Second, 10 * time.Second}, true},
		{renewed{}, false},
	} {
		if got := c.r.lives(); got != c.want {
			t.Errorf("renewed %s ago of %s: lives %t", c.r.ago, c.r.granted, got)
		}
	}
}

func TestTwins(t *testing.T) {
	entry := func(subnet, ip, node, uid string) Entry {
		return Entry{Subnets: Subnets{V4: netip.MustParsePrefix(subnet)}, Record: Record{PublicIP: netip.MustParseAddr(ip), Tenure: &Tenant{Node: node, UID: uid}}}
	}
	six := func(e Entry, ip string) Entry {
		a := netip.MustParseAddr(ip)
		e.PublicIPv6 = &a
		return e
	}
	own := Tenant{Node: "n1", UID: "u1"}
	me := entry("10.5.1.0/24", "192.0.2.1", "n1", "u1")
	for name, c := range map[string]struct {
		others []Entry
		want   []string
	}{
		"alone":                    {nil, nil},
		"two":                      {[]Entry{entry("10.5.2.0/24", "192.0.2.2", "n2", "u2")}, nil},
		"one address":              {[]Entry{entry("10.5.2.0/24", "192.0.2.1", "n2", "u2")}, []string{"192.0.2.1", "n1", "n2"}},
		"others' address":          {[]Entry{entry("10.5.2.0/24", "192.0.2.2", "n2", "u2"), entry("10.5.3.0/24", "192.0.2.2", "n3", "u3")}, []string{"192.0.2.2", "n2", "n3"}},
		"one name":                 {[]Entry{entry("10.5.2.0/24", "192.0.2.2", "n1", "u2")}, []string{"n1", "192.0.2.2"}},
		"own tombstone":            {[]Entry{entry("10.5.2.0/24", "192.0.2.1", "n1", "")}, nil},
		"one IPv6 address":         {[]Entry{six(entry("10.5.2.0/24", "192.0.2.2", "n2", "u2"), "2001:db8::2"), six(entry("10.5.3.0/24", "0.0.0.0", "n3", "u3"), "2001:db8::2")}, []string{"2001:db8::2", "n2", "n3"}},
		"IPv6 alike, not the same": {[]Entry{six(entry("10.5.2.0/24", "0.0.0.0", "n2", "u2"), "2001:db8::2"), six(entry("10.5.3.0/24", "0.0.0.0", "n3", "u3"), "2001:db8::3")}, nil},
		"one name, of IPv6 only":   {[]Entry{six(entry("10.5.2.0/24", "0.0.0.0", "n1", "u2"), "2001:db8::2")}, []string{"n1", "2001:db8::2"}},
		"a v6-only record":         {[]Entry{entry("10.5.2.0/24", "0.0.0.0", "n2", "u2"), entry("10.5.3.0/24", "0.0.0.0", "n3", "u3")}, nil},
	} {
		got := twins(&Snapshot{Entries: append([]Entry{me}, c.others...)}, own)
		if (got == "") != (len(c.want) == 0) {
			t.Errorf("%s: %q", name, got)
		}
		for _, w := range c.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q does not name %s", name, got, w)
			}
		}
	}
}

func TestOverlaps(t *testing.T) {
	entry := func(subnet, node string) Entry {
		return Entry{Subnets: Subnets{V4: netip.MustParsePrefix(subnet)}, Record: Record{PublicIP: netip.MustParseAddr("192.0.2.1"), Tenure: &Tenant{Node: node, UID: node}}}
	}
	for name, c := range map[string]struct {
		entries []Entry
		want    []string
	}{
		"none":          {nil, nil},
		"side by side":  {[]Entry{entry("10.5.1.0/24", "n1"), entry("10.5.2.0/24", "n2"), entry("10.5.0.0/24", "n3")}, nil},
		"a half":        {[]Entry{entry("10.5.1.0/24", "n1"), entry("10.5.1.128/25", "n2"), entry("10.5.2.0/24", "n3")}, []string{"n1", "n2"}},
		"around two":    {[]Entry{entry("10.5.0.0/24", "n1"), entry("10.5.1.0/24", "n2"), entry("10.5.0.0/23", "n3")}, []string{"n1", "n2", "n3"}},
		"after a gap":   {[]Entry{entry("10.5.0.0/22", "n1"), entry("10.5.1.0/24", "n2"), entry("10.5.3.0/24", "n3")}, []string{"n1", "n2", "n3"}},
		"the first two": {[]Entry{entry("10.5.0.0/24", "n1"), entry("10.5.0.0/25", "n2"), entry("10.5.9.0/24", "n3")}, []string{"n1", "n2"}},
	} {
		got := overlaps(&Snapshot{Entries: c.entries})
		for _, node := range []string{"n1", "n2", "n3"} {
			if named := strings.Contains(got, strconv.Quote(node)); named != slices.Contains(c.want, node) {
				t.Errorf("%s: %s is named %t in %q", name, node, named, got)
			}
		}
	}
}

// TestDuplicateIsReportedByBoth: somebody writes a record into the half of
// another node's subnet. Both nodes that are there say so, and the holder keeps
// what is his.
func TestDuplicateIsReportedByBoth(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := newHost(t, "n1", s.Endpoint)
	a, b := h.start(), newHost(t, "n2", s.Endpoint).start()
	v := a.waitHeld()
	b.waitHeld()
	half := Subnets{V4: netip.PrefixFrom(v.Holding.Subnets().V4.Addr(), 25)}
	put(t, c, NewKeys(prefix).Subnet(half), `{"PublicIP":"192.0.2.66","BackendType":"vxlan","Tenure":{"Node":"n3","UID":"x","Epoch":1}}`, clientv3.WithLease(granted(t, c)))
	for _, d := range []*daemon{a, b} {
		w := d.wait("overlapping-subnets", func(v View) bool { return hasProblem(v, "overlapping-subnets") })
		for _, p := range w.Problems {
			if p.Code == "overlapping-subnets" && (!strings.Contains(p.Text, `"n1"`) || !strings.Contains(p.Text, `"n3"`)) {
				t.Errorf("it says %q", p.Text)
			}
		}
	}
	if w := a.waitHeld(); w.Holding.LeaseID() != v.Holding.LeaseID() || h.fence.Get().Closed != 0 {
		t.Errorf("the holder was disturbed: lease %x, closed %d times", w.Holding.LeaseID(), h.fence.Get().Closed)
	}
}

// TestClockGap: after a suspend, or a step of the wall clock, nothing is served
// before a proof that was asked for afterwards; the deadline is not touched.
func TestClockGap(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]Clocks{
		"suspend":         {Boot: time.Hour, Real: time.Hour},
		"clock ahead":     {Real: time.Hour},
		"clock behind":    {Real: -time.Hour},
		"one day behind":  {Real: -24 * time.Hour},
		"slewed, no jump": {Real: 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := cluster(t, strings.Replace(fourSubnets, "5s", "60s", 1))
			p := newProxy(t, s.Endpoint)
			h := newHost(t, "n1", "http://"+p.Addr())
			var mu sync.Mutex
			var offset Clocks
			h.clocks = func() Clocks {
				mu.Lock()
				defer mu.Unlock()
				now := bootClock()
				return Clocks{Boot: now + offset.Boot, Mono: now + offset.Mono, Real: now + offset.Real}
			}
			d := h.start()
			v := d.waitHeld()
			p.Stall()
			f, _ := h.fence.Deadline()
			mu.Lock()
			offset = jump
			mu.Unlock()
			w := d.View()
			if jumped := name != "slewed, no jump"; jumped != (w.Doubt != "") || w.InDate(bootClock()) == jumped {
				t.Fatalf("doubt %q, in date %t", w.Doubt, w.InDate(bootClock()))
			}
			if now, _ := h.fence.Deadline(); now != f {
				t.Errorf("the deadline moved from %s to %s", f, now)
			}
			p.Restore()
			w = d.wait("served again", func(w View) bool { return w.InDate(bootClock()) })
			if w.Holding.LeaseID() != v.Holding.LeaseID() || h.fence.Get().Closed != 0 {
				t.Errorf("lease %x, closed %d times", w.Holding.LeaseID(), h.fence.Get().Closed)
			}
			if n := h.log.lines("clock gap"); n > 1 {
				t.Errorf("%d warnings for one jump", n)
			}
		})
	}
}

// TestClockOff: a wall clock a day off from etcd's changes nothing at all.
func TestClockOff(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		s, _ := cluster(t, fourSubnets)
		h := newHost(t, "n1", s.Endpoint)
		h.clocks = func() Clocks {
			return Clocks{Boot: bootClock(), Mono: bootClock(), Real: time.Duration(time.Now().Add(off).UnixNano())}
		}
		d := h.start()
		d.waitHeld()
		stop := h.openAllAlong()
		first := d.View().LastProof
		d.wait("four more proofs", func(v View) bool { return v.LastProof > first+6*time.Second })
		stop()
		if n := h.log.lines("clock gap"); n != 0 {
			t.Errorf("%d warnings", n)
		}
	}
}

func TestMeet(t *testing.T) {
	known := Life{"s1", 7, 100}
	for name, c := range map[string]struct {
		known, now Life
		want       Meeting
	}{
		"nothing known":               {Life{}, Life{"s1", 7, 3}, MetFirst},
		"later":                       {known, Life{"s1", 7, 101}, MetSame},
		"the same revision":           {known, known, MetSame},
		"a lower revision":            {known, Life{"s1", 7, 99}, MetWentBack},
		"another cluster ID":          {known, Life{"s1", 8, 200}, MetWentBack},
		"another store":               {known, Life{"s2", 7, 200}, MetAnother},
		"another store and cluster":   {known, Life{"s2", 8, 1}, MetAnother},
		"no store":                    {known, Life{"", 8, 1}, MetAnother},
		"store deleted":               {known, Life{"", 7, 101}, MetAnother},
		"born":                        {Life{"", 7, 100}, Life{"s1", 7, 101}, MetBorn},
		"unborn still":                {Life{"", 7, 100}, Life{"", 7, 101}, MetSame},
		"born in another cluster":     {Life{"", 7, 100}, Life{"s1", 8, 101}, MetAnother},
		"unborn and gone back":        {Life{"", 7, 100}, Life{"", 7, 50}, MetWentBack},
		"born at an earlier revision": {Life{"", 7, 100}, Life{"s1", 7, 50}, MetAnother},
	} {
		if got := c.known.Meet(c.now); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestTwoNewcomersOfOneName find it free at the same instant. The one that commits
// first stays; the other gives its subnet back before its fence has opened.
func TestTwoNewcomersOfOneName(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(wide, "5s", "60s", 1))
	var both sync.WaitGroup
	both.Add(2)
	var hosts []*host
	var daemons []*daemon
	for range 2 {
		h := newHost(t, "n1", s.Endpoint)
		var at steps
		at.on("before the acquire", func() { both.Done(); both.Wait() })
		h.step = at.reached
		hosts, daemons = append(hosts, h), append(daemons, h.start())
	}
	states := func() (held, refused int) {
		for i, d := range daemons {
			switch d.View().State {
			case api.StateHeld:
				held = i
			case api.StateRefused:
				refused = i
			default:
				return 0, 0
			}
		}
		return held, refused
	}
	eventually(t, "one to hold a subnet, and the other to be refused", func() bool { a, b := states(); return a != b })
	held, refused := states()
	first := daemons[held].View().Holding
	if f := hosts[refused].fence.Get(); f.Deadline != 0 || !f.Live.IsZero() {
		t.Errorf("the second one's fence was open for %s", f.Live)
	}
	ev := <-c.Watch(t.Context(), first.keys.subnets(), clientv3.WithPrefix(), clientv3.WithRev(1))
	if kv := ev.Events[0].Kv; clientv3.LeaseID(kv.Lease) != first.lease {
		t.Errorf("%s was first, under %x, and %s under %x is held", kv.Key, kv.Lease, first.subnets, int64(first.lease))
	}
	daemons[held].calm(c)
}

// TestEveryHolderOfTheNameIsLookedAt: one that is gone hides none that lives.
func TestEveryHolderOfTheNameIsLookedAt(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	gone := Entry{Subnets: v4("10.5.0.0/24"), Lease: 4711, Record: Record{Tenure: &Tenant{Node: "n1", UID: "gone"}}}
	lives := Entry{Subnets: v4("10.5.3.0/24"), Lease: granted(t, c), Record: Record{Tenure: &Tenant{Node: "n1", UID: "lives"}}}
	for name, others := range map[string][]Entry{"first": {lives, gone}, "last": {gone, lives}, "gone": {gone}} {
		e := newHost(t, "n1", "http://192.0.2.1:2379").engine()
		e.client = c
		_, free := e.identified(t.Context(), others)
		if v := e.View(); free != (name == "gone") || hasProblem(v, duplicateNode) == free {
			t.Errorf("%s: free to go on %t, %s because %q", name, free, v.State, v.Reason)
		}
	}
}

// TestCloneTakesANewIdentity once the machine that it is a copy of is gone.
func TestCloneTakesANewIdentity(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(fourSubnets, "5s", "60s", 1))
	first := newHost(t, "n1", s.Endpoint)
	d := first.start()
	v := d.waitHeld()
	clone := newHost(t, "n1", s.Endpoint)
	clone.boot, clone.dir = "another machine", t.TempDir()
	if err := os.CopyFS(clone.dir, os.DirFS(first.dir)); err != nil {
		t.Fatal(err)
	}
	later := clone.start()
	later.wait("refused", func(v View) bool { return v.State == api.StateRefused })
	d.stop()
	if _, err := c.Revoke(t.Context(), v.Holding.LeaseID()); err != nil {
		t.Fatal(err)
	}
	w := later.waitHeld()
	if old := v.Holding.Record().Tenant().UID; w.Holding.Record().Tenant().UID == old || w.UID == old || later.cfg.Memory.Get().UID != w.UID {
		t.Errorf("the clone holds %s as %s, the other machine was %s", w.Holding.Subnets(), w.UID, old)
	}
}

// TestEndsNext names the lease that ends first, wherever it stands in the list.
func TestEndsNext(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	at := func(subnet string, ttl time.Duration) Entry {
		id := newLeaseID()
		if _, err := grant(t.Context(), c, id, ttl, maxCall); err != nil {
			t.Fatal(err)
		}
		return Entry{Subnets: v4(subnet), Lease: id, Record: Record{Tenure: &Tenant{Node: "n2", UID: "you"}}}
	}
	soon, later := at("10.5.1.0/24", time.Minute), at("10.5.2.0/24", time.Hour)
	for _, entries := range [][]Entry{{soon, later}, {later, soon}, {{Subnets: v4("10.5.3.0/24")}, soon}} {
		e := newHost(t, "n1", "http://192.0.2.1:2379").engine()
		e.client = c
		if text := e.endsNext(t.Context(), &Snapshot{Entries: entries}); !strings.Contains(text, "10.5.1.0/24") {
			t.Errorf("it says %q", text)
		}
	}
}
