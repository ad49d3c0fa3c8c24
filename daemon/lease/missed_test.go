package lease

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// mirrorOf is a mirror of keys below the prefix, each as "name@revision".
func mirrorOf(keys ...string) *mirror {
	m := newMirror(NewKeys(prefix))
	for _, key := range keys {
		var rev int64
		name, number, _ := strings.Cut(key, "@")
		_, _ = fmt.Sscan(number, &rev)
		m.put(clientv3KV(name, "{}", rev))
	}
	return m
}

// TestMissed: what a later list shows is missed only if the watch should have
// told it by the revision that it had reached.
func TestMissed(t *testing.T) {
	for _, c := range []struct {
		name       string
		seen, list *mirror
		puts, gone []string
	}{
		{"nothing", mirrorOf(), mirrorOf(), nil, nil},
		{"the same", mirrorOf("a@5", "b@10"), mirrorOf("a@5", "b@10"), nil, nil},
		{"later ones, on their way", mirrorOf("a@5"), mirrorOf("a@11", "b@12"), nil, nil},
		{"an update", mirrorOf("a@5", "b@6"), mirrorOf("a@10", "b@6"), []string{"a"}, nil},
		{"a new one", mirrorOf("b@6"), mirrorOf("a@7", "b@6"), []string{"a"}, nil},
		{"a deletion, missed or later", mirrorOf("a@5", "b@6"), mirrorOf("b@6"), nil, []string{"a"}},
		{"made again later", mirrorOf("a@5"), mirrorOf("a@12"), nil, nil},
	} {
		if puts, gone := c.seen.missed(c.list, 10); !slices.Equal(puts, c.puts) || !slices.Equal(gone, c.gone) {
			t.Errorf("%s: puts %v, gone %v; want %v, %v", c.name, puts, gone, c.puts, c.gone)
		}
	}
}

// TestO13 is etcd #18089 for the watch alone: two events do not come. The list
// that follows shows what they were about, counts one of each and says so in one
// line; lists that equal what the watch has said count nothing.
func TestO13(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	k := NewKeys(prefix)
	gone, changed := k.Subnet(v4("10.5.1.0/24")), k.Subnet(v4("10.5.2.0/24"))
	for _, key := range []string{gone, changed} {
		mustPut(t, c, key, recordOf("n2", "192.0.2.2", 1))
	}
	p := etcdproxy.Start(t, s.Endpoint)
	swallowed := []*etcdproxy.Rule{p.SwallowEvents(1, etcdproxy.EventOf(gone)), p.SwallowEvents(1, etcdproxy.EventOf(changed))}

	// Every watch begins behind the list before it.
	begun := make(chan int64, 100)
	p.Delay(etcdproxy.Always, etcdproxy.When(func(r *pb.WatchRequest) bool {
		if create := r.GetCreateRequest(); create != nil {
			begun <- create.StartRevision
		}
		return false
	}), etcdproxy.Request, 0)

	h := newHost(t, "n1", p.URL())
	shown := make(chan *Snapshot, 100)
	w := NewWatcher(etcdtest.Client(t, p.URL()), k, slogOf(h), func(s *Snapshot) { shown <- s }, func() {})
	w.resync, w.notice = 400*time.Millisecond, 200*time.Millisecond
	defer runs(t, w)()
	first := <-shown
	if from := <-begun; from != first.Revision+1 {
		t.Errorf("the watch begins at %d, the list is of %d", from, first.Revision)
	}
	if _, err := c.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	last := mustPut(t, c, changed, recordOf("n3", "192.0.2.3", 2))

	var now *Snapshot
	for now == nil || now.Revision < last || !now.Listed {
		select {
		case now = <-shown:
		case <-time.After(10 * time.Second):
			t.Fatal("no list follows")
		}
	}
	if from := <-begun; from != now.Revision+1 {
		t.Errorf("the watch begins anew at %d, the list is of %d", from, now.Revision)
	}
	if len(now.Entries) != 1 || now.Entries[0].Tenant().Node != "n3" {
		t.Errorf("the list shows %v", now.Entries)
	}
	for range 3 {
		<-shown
	}
	n := w.counts
	if swallowed[0].Hits() != 1 || swallowed[1].Hits() != 1 || n.missedDeletes.Load() != 1 || n.missedPuts.Load() != 1 {
		t.Errorf("%d and %d events were swallowed; counted are %d deletions, %d puts", swallowed[0].Hits(), swallowed[1].Hits(),
			n.missedDeletes.Load(), n.missedPuts.Load())
	}
	if lines := h.log.lines("missed events"); lines != 1 || h.log.lines(gone) != 1 || h.log.lines(changed) != 1 {
		t.Errorf("%d lines name what was missed", lines)
	}
}

// TestNothingIsMissedInABusyStore: while records come, change and go all the
// time, events are always on their way when a list is made, and none is missed.
func TestNothingIsMissedInABusyStore(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	k := NewKeys(prefix)
	p := etcdproxy.Start(t, s.Endpoint)
	w := NewWatcher(etcdtest.Client(t, p.URL()), k, slogOf(newHost(t, "n1", p.URL())), func(*Snapshot) {}, func() {})
	w.resync, w.notice = 20*time.Millisecond, 50*time.Millisecond
	stop := runs(t, w)
	const lists = 60
	for i := 0; p.Count(pb.KV_Range_FullMethodName) < lists; i++ {
		key := k.Subnet(v4(fmt.Sprintf("10.5.%d.0/24", i%4)))
		if i%3 == 2 {
			if _, err := c.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			continue
		}
		mustPut(t, c, key, recordOf("n2", "192.0.2.2", i))
	}
	stop()
	if puts, deletes := w.counts.missedPuts.Load(), w.counts.missedDeletes.Load(); puts+deletes != 0 {
		t.Errorf("%d puts and %d deletions are called missed", puts, deletes)
	}
}

// TestDeletionOnItsWay: that a list lacks a key is a missed deletion only if it had
// gone by the revision that the watch had reached. Where etcd cannot say, it is
// none.
func TestDeletionOnItsWay(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	k := NewKeys(prefix)
	key := k.Subnet(v4("10.5.1.0/24"))
	put := mustPut(t, c, key, recordOf("n2", "192.0.2.2", 1))
	before := newMirror(k)
	if _, err := list(t.Context(), c, before, maxCall); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	deleted := put + 1
	mustPut(t, c, k.All()+"noise", "x")
	mustPut(t, c, k.All()+"noise", "y")

	for _, step := range []struct {
		reached, compact int64
		want             uint64
	}{
		{put, 0, 0},               // the watch has yet to tell
		{deleted, 0, 1},           // it should have
		{deleted, deleted + 1, 0}, // nobody can say
	} {
		w := NewWatcher(c, k, slogOf(newHost(t, "n1", s.Endpoint)), func(*Snapshot) {}, func() {})
		if step.compact > 0 {
			if _, err := c.Compact(t.Context(), step.compact); err != nil {
				t.Fatal(err)
			}
		}
		m := newMirror(k)
		snap, err := list(t.Context(), c, m, maxCall)
		if err != nil {
			t.Fatal(err)
		}
		w.seen = seen{mirror: before, cluster: snap.ClusterID, reached: step.reached}
		w.compare(t.Context(), m, snap)
		if got := w.counts.missedDeletes.Load(); got != step.want {
			t.Errorf("reached %d, compacted %d: %d deletions missed, want %d", step.reached, step.compact, got, step.want)
		}
		other := *snap
		other.ClusterID++
		w.compare(t.Context(), m, &other)
		if got := w.counts.missedDeletes.Load(); got != step.want {
			t.Error("another store's list is compared with this one's watch")
		}
	}
}

// TestCompactionBehindASlowReader is O1 for a watch that stands all the time: no byte
// of it arrives while more is written than etcd and the wire keep for it, and
// then the store is compacted. Right is: what is true then is listed, and the
// watch goes on from there.
func TestCompactionBehindASlowReader(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	k := NewKeys(prefix)
	gone, there := k.Subnet(v4("10.5.1.0/24")), k.Subnet(v4("10.5.2.0/24"))
	mustPut(t, c, gone, recordOf("n2", "192.0.2.2", 1))
	p := newProxy(t, s.Endpoint)
	h := newHost(t, "n1", "http://"+p.Addr())
	shown := make(chan *Snapshot, 5000)
	w := NewWatcher(etcdtest.Client(t, h.endpoint), k, slogOf(h), func(s *Snapshot) { shown <- s }, func() {})
	defer runs(t, w)()
	if first := <-shown; len(first.Entries) != 1 {
		t.Fatalf("the first list shows %v", first.Entries)
	}
	next := func(from int64) *Snapshot {
		t.Helper()
		for deadline := time.After(20 * time.Second); ; {
			select {
			case now := <-shown:
				if now.Revision >= from {
					return now
				}
			case <-deadline:
				t.Fatalf("nothing is shown of revision %d", from)
			}
		}
	}
	next(mustPut(t, c, k.All()+"noise", "the watch has begun"))

	p.Stall()
	// 24 MB: sockets and streams take in a few.
	const writers, each, size = 8, 30, 100_000
	var g errgroup.Group
	for i := range writers {
		g.Go(func() error {
			for range each {
				if _, err := c.Put(t.Context(), fmt.Sprintf("%snoise%d", k.All(), i), strings.Repeat("x", size)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	last := mustPut(t, c, there, recordOf("n3", "192.0.2.3", 1))
	if _, err := c.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	p.Restore()
	if now := next(last); !now.Listed || len(now.Entries) != 1 || now.Entries[0].Tenant().Node != "n3" {
		t.Errorf("shown is %v, listed %t", now.Entries, now.Listed)
	}
	if h.log.lines("compaction") != 1 {
		t.Errorf("%d lines about the compaction", h.log.lines("compaction"))
	}
	if now := next(mustPut(t, c, gone, recordOf("n4", "192.0.2.4", 1))); now.Listed || len(now.Entries) != 2 {
		t.Errorf("after the list the watch shows %v, listed %t", now.Entries, now.Listed)
	}
	if n := w.counts; n.missedDeletes.Load()+n.missedPuts.Load() != 0 {
		t.Error("what the watch could not tell any more is counted as missed")
	}
}

// runs starts a watcher; the function returned ends it and waits.
func runs(t *testing.T, w *Watcher) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	return func() { cancel(); <-done }
}

// mustPut returns the revision of the write.
func mustPut(t *testing.T, c *clientv3.Client, key, value string) int64 {
	t.Helper()
	resp, err := c.Put(t.Context(), key, value)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}
