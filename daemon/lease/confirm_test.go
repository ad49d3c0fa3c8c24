package lease

import (
	"fmt"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// TestConfirmation: few peers go at once, and so do many that go one by one; most
// of them together do not, from wherever they are counted.
func TestConfirmation(t *testing.T) {
	of := func(peers ...int) *Snapshot {
		s := shown(1, false)
		for _, i := range peers {
			s.Entries = append(s.Entries, Entry{Subnets: v4(fmt.Sprintf("10.5.%d.0/24", i)),
				Record: Record{Tenure: &Tenant{UID: fmt.Sprintf("u%d", i)}}})
		}
		return s
	}
	const confirms = -1
	type step struct {
		after time.Duration
		peers []int // that are shown; 0 is this node
		open  bool
	}
	all := []int{0, 1, 2, 3, 4, 5}
	for name, steps := range map[string][]step{
		"the first":             {{0, nil, false}, {0, all, false}},
		"two of five":           {{0, all, false}, {0, []int{0, 1, 2, 3}, false}},
		"two of two":            {{0, []int{0, 1, 2}, false}, {0, []int{0}, false}},
		"three of six":          {{0, []int{1, 2, 3, 4, 5, 6}, false}, {0, []int{1, 2, 3}, false}},
		"three of five":         {{0, all, false}, {0, []int{0, 1, 2}, true}},
		"all, and more in time": {{0, all, false}, {0, []int{0}, true}, {time.Hour, []int{0, 7}, true}},
		"this node counts not":  {{0, []int{0, 1, 2, 3, 4, 5, 6}, false}, {0, []int{1, 2, 3, 7}, false}},
		"back":                  {{0, all, false}, {0, []int{0}, true}, {time.Millisecond, all, false}, {0, []int{0, 1}, true}},
		"back one by one":       {{0, all, false}, {0, []int{0}, true}, {time.Millisecond, []int{0, 1, 2, 3}, true}, {time.Millisecond, all, false}},
		"some do not come back": {{0, all, false}, {0, []int{0}, true}, {time.Millisecond, []int{0, 1, 2, 3}, true}, {0, []int{confirms}, false}, {0, []int{0, 1, 2, 3}, false}},
		"in two halves":         {{0, all, false}, {0, []int{0, 1, 2, 3}, false}, {time.Millisecond, []int{0, 1}, true}},
		"one by one":            {{0, all, false}, {0, []int{0, 1, 2, 3}, false}, {2 * confirmAfter, []int{0, 1, 2}, false}, {2 * confirmAfter, []int{0, 1}, false}},
		"confirmed":             {{0, all, false}, {0, []int{0}, true}, {0, []int{confirms}, false}, {0, []int{0}, false}},
	} {
		var c confirmation
		now := time.Hour
		for i, s := range steps {
			now += s.after
			if len(s.peers) == 1 && s.peers[0] == confirms {
				c = c.confirmed()
			} else {
				c = c.shown(of(s.peers...), "u0", now)
			}
			if c.open != s.open {
				t.Errorf("%s, step %d: open %t, want %t", name, i, c.open, s.open)
			}
		}
	}
}

// fakes are records of nodes that do not run, all under one lease.
type fakes struct {
	t     *testing.T
	c     *clientv3.Client
	keys  Keys
	lease clientv3.LeaseID
}

// publishFakes puts them into 10.5.64.0/18.
func publishFakes(t *testing.T, c *clientv3.Client, n int) *fakes {
	t.Helper()
	f := &fakes{t: t, c: c, keys: NewKeys(prefix)}
	f.put(n)
	return f
}

// put publishes them, as often as it is called, in one transaction.
func (f *fakes) put(n int) {
	f.t.Helper()
	l, err := f.c.Grant(f.t.Context(), 600)
	if err != nil {
		f.t.Fatal(err)
	}
	f.lease = l.ID
	var ops []clientv3.Op
	for i := range n {
		key := f.keys.Subnet(v4(fmt.Sprintf("10.5.%d.0/24", 64+i)))
		ops = append(ops, clientv3.OpPut(key, recordOf(fmt.Sprintf("fake%d", i), fmt.Sprintf("192.0.2.%d", 100+i), 1), clientv3.WithLease(l.ID)))
	}
	if _, err := f.c.Txn(f.t.Context()).Then(ops...).Commit(); err != nil {
		f.t.Fatal(err)
	}
}

// revoke ends all of them at one revision.
func (f *fakes) revoke() {
	f.t.Helper()
	if _, err := f.c.Revoke(f.t.Context(), f.lease); err != nil {
		f.t.Fatal(err)
	}
}

// sixteenBits is a network in which a call to etcd lasts 3 s at most.
const sixteenBits = `{"Network":"10.5.0.0/16","LeaseTTL":"9s"}`

// TestMassDisappearance: most peers go at once. They may still hold their
// subnets until a list that was asked for a moment later lacks them too; while
// etcd is away there is none; and what is back by then has never been gone.
func TestMassDisappearance(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, sixteenBits)
	p := etcdproxy.Start(t, s.Endpoint)
	f := publishFakes(t, c, 4)
	h := newHost(t, "n1", p.URL())
	d := h.start()
	d.waitHeld()
	whole := func(v View) bool { return len(v.Snapshot.Entries) == 5 && !v.Settling }
	d.wait("all peers", whole)
	alone := func(v View) bool { return len(v.Snapshot.Entries) == 1 }
	lists := func() int { return p.Count(pb.KV_Range_FullMethodName) }

	before, began := lists(), time.Now()
	f.revoke()
	if v := d.wait("sees them gone", alone); !v.Settling || v.State != api.StateHeld || lists() != before {
		t.Errorf("settling %t, state %s, after %d lists", v.Settling, v.State, lists()-before)
	}
	d.wait("believes it", func(v View) bool { return alone(v) && !v.Settling })
	if took := time.Since(began); took < confirmAfter || lists() != before+1 {
		t.Errorf("believed after %s and %d lists", took, lists()-before)
	}

	f.put(4)
	d.wait("all peers again", whole)
	f.revoke()
	d.wait("sees them gone again", alone)
	p.Cut()
	began = time.Now()
	v := d.wait("the second list has failed", func(v View) bool { return !v.Settling || time.Since(began) > 3*time.Second+2*confirmAfter })
	if !v.Settling {
		t.Error("believed without a second list")
	}
	p.Restore()
	d.wait("believes it in the end", func(v View) bool { return alone(v) && !v.Settling })

	f.put(4)
	d.wait("all peers a third time", whole)
	f.revoke()
	f.put(4)
	began = time.Now()
	v = d.wait("are back", func(v View) bool { return alone(v) && !v.Settling || time.Since(began) > confirmAfter+confirmAfter/2 })
	if !whole(v) {
		t.Errorf("settling %t with %d records, want all peers", v.Settling, len(v.Snapshot.Entries))
	}
	if n := h.log.lines("most peers are gone"); n < 2 || n > 3 {
		t.Errorf("%d lines for three disappearances", n)
	}
}

// TestSomeDoNotComeBack: most were missing and all but two are back. These go when
// a second list lacks them, not before, and not by a list that is of before.
func TestSomeDoNotComeBack(t *testing.T) {
	_, e, held := holder(t)
	peer := func(i int) Entry {
		return Entry{Subnets: v4(fmt.Sprintf("10.5.%d.0/24", 64+i)), Lease: 9, Record: Record{Tenure: &Tenant{UID: fmt.Sprint(i)}}}
	}
	settling := func(want bool, when string) {
		t.Helper()
		if got := e.View().Settling; got != want {
			t.Errorf("%s: settling %t", when, got)
		}
	}
	e.observe(shown(20, true, held.entry(), peer(0), peer(1), peer(2), peer(3)))
	e.observe(shown(21, false, held.entry()))
	e.observe(shown(23, false, held.entry(), peer(1), peer(3)))
	settling(true, "half are back")
	e.reread(shown(22, true, held.entry(), peer(1), peer(2), peer(3)))
	settling(true, "a list of before")
	e.reread(shown(23, true, held.entry(), peer(1), peer(3)))
	settling(false, "a list of now")
}

// TestFewGoAtOnce: without a second list, as ever.
func TestFewGoAtOnce(t *testing.T) {
	_, e, held := holder(t)
	peer := func(i int) Entry {
		return Entry{Subnets: v4(fmt.Sprintf("10.5.%d.0/24", 64+i)), Lease: 9, Record: Record{Tenure: &Tenant{UID: fmt.Sprint(i)}}}
	}
	e.observe(shown(20, true, held.entry(), peer(0), peer(1), peer(2), peer(3)))
	e.observe(shown(21, false, held.entry(), peer(1), peer(3)))
	if v := e.View(); v.Settling {
		t.Error("two of four are not believed to be gone")
	}
}

// TestOwnKeyGoesWithTheMass: the fence closes at once all the same.
func TestOwnKeyGoesWithTheMass(t *testing.T) {
	h, e, held := holder(t)
	peer := func(i int) Entry {
		return Entry{Subnets: v4(fmt.Sprintf("10.5.%d.0/24", 64+i)), Lease: 9, Record: Record{Tenure: &Tenant{UID: fmt.Sprint(i)}}}
	}
	e.observe(shown(20, true, held.entry(), peer(0), peer(1), peer(2)))
	e.observe(shown(21, false))
	if v := e.View(); v.Held || !v.Settling || h.fence.Get().Closed != 1 {
		t.Errorf("held %t, settling %t, fence closed %d times", v.Held, v.Settling, h.fence.Get().Closed)
	}
}

// TestMissingIsWhatAnEntryIsNotFoundOf: going through two lists side by side finds
// what looking for each by itself does, whatever the one has and the other lacks.
func TestMissingIsWhatAnEntryIsNotFoundOf(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		list := func(what string) *Snapshot {
			s := &Snapshot{}
			for _, i := range rapid.SliceOfN(rapid.IntRange(0, 12), 0, 12).Draw(t, what) { // one twice is written in two ways
				uid := rapid.SampledFrom([]string{"me", "you"}).Draw(t, "uid")
				s.Entries = append(s.Entries, Entry{Subnets: v4(fmt.Sprintf("10.5.%d.0/24", i)), Record: Record{Tenure: &Tenant{UID: uid}}})
			}
			slices.SortFunc(s.Entries, compareEntries)
			return s
		}
		base, now, want := list("base"), list("now"), 0
		for _, e := range base.Entries {
			if _, there := now.Entry(e.Subnets); !there && e.Tenant().UID != "me" {
				want++
			}
		}
		if got := (confirmation{base: base}).missing(now, "me"); got != want {
			t.Fatalf("%d missing, want %d: of %v there are %v", got, want, base.Entries, now.Entries)
		}
	})
}

// BenchmarkMissing is what one event costs where so many peers are known.
func BenchmarkMissing(b *testing.B) {
	list := func() *Snapshot {
		s := &Snapshot{}
		for i := range 5000 {
			s.Entries = append(s.Entries, Entry{Subnets: v4(fmt.Sprintf("10.%d.%d.0/24", 100+i>>8, i&255)), Record: Record{Tenure: &Tenant{UID: "you"}}})
		}
		slices.SortFunc(s.Entries, compareEntries)
		return s
	}
	c, now := confirmation{base: list()}, list()
	for b.Loop() {
		if c.missing(now, "me") != 0 {
			b.Fatal("they are all there")
		}
	}
}
