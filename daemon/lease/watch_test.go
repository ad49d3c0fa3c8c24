package lease

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// TestWatcherTellsThatEtcdIsBack before anything that it shows then.
func TestWatcherTellsThatEtcdIsBack(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, fourSubnets)
	p := etcdproxy.Start(t, s.Endpoint)
	lost := p.DropReply(1, etcdproxy.Method(pb.KV_Range_FullMethodName), etcdproxy.Silence)
	var back atomic.Int64
	first := make(chan int64, 1)
	w := NewWatcher(etcdtest.Client(t, p.URL()), NewKeys(prefix), slogOf(newHost(t, "n1", p.URL())), func(*Snapshot) {
		select {
		case first <- back.Load():
		default:
		}
	}, func() { back.Add(1) })
	w.call = 200 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	if n := <-first; n != 1 || lost.Hits() != 1 {
		t.Errorf("told %d times before the first snapshot; %d lists lost", n, lost.Hits())
	}
}

// TestWatchTakesEveryAnswer: those that have piled up become few snapshots, and
// none of them is lost, also where there are more than one snapshot takes in.
func TestWatchTakesEveryAnswer(t *testing.T) {
	t.Parallel()
	const answers = 2*takeMost + 7
	k := NewKeys(prefix)
	events := make(chan clientv3.WatchResponse, answers)
	for i := range answers {
		kv := &mvccpb.KeyValue{Key: []byte(k.Reservation(v4("10.5." + string(rune('0'+i%10)) + ".0/24"))),
			Value: []byte(`{"Node":"n1"}`), ModRevision: int64(i + 1)}
		events <- clientv3.WatchResponse{Header: &pb.ResponseHeader{}, Events: []*clientv3.Event{{Type: clientv3.EventTypePut, Kv: kv}}}
	}
	var shown []*Snapshot
	w := NewWatcher(nil, k, slogOf(newHost(t, "n1", "")), func(s *Snapshot) { shown = append(shown, s) }, func() {})
	m := newMirror(k)
	for len(events) > 0 {
		left := len(events)
		w.shown = time.Time{} // long ago
		if again, err := w.take(m, events, <-events); again || err != nil {
			t.Fatalf("again %t, %v", again, err)
		}
		if took := left - len(events); shown[len(shown)-1].Revision != int64(answers-len(events)) || took > takeMost+1 {
			t.Errorf("revision %d after %d answers, %d of them taken at once", shown[len(shown)-1].Revision, answers-len(events), took)
		}
	}
	for name, r := range shown[len(shown)-1].Reservations {
		if r.ModRevision <= answers-10 {
			t.Errorf("%s is of revision %d, which was written over", name, r.ModRevision)
		}
	}
	if len(shown) != 3 {
		t.Errorf("%d snapshots of %d answers", len(shown), answers)
	}
}

// TestWhatCameBeforeTheEnd: events are shown although the answer after them ends
// the watch, by a compaction or by a fault.
func TestWhatCameBeforeTheEnd(t *testing.T) {
	t.Parallel()
	k := NewKeys(prefix)
	put := clientv3.WatchResponse{Header: &pb.ResponseHeader{ClusterId: 7}, Events: []*clientv3.Event{{Type: clientv3.EventTypePut,
		Kv: &mvccpb.KeyValue{Key: []byte(k.Config()), Value: []byte(fourSubnets), ModRevision: 5}}}}
	for name, last := range map[string]clientv3.WatchResponse{"compaction": {CompactRevision: 9}, "fault": {Canceled: true}} {
		var shown []*Snapshot
		w := NewWatcher(nil, k, slogOf(newHost(t, "n1", "")), func(s *Snapshot) { shown = append(shown, s) }, func() {})
		events := make(chan clientv3.WatchResponse, 1)
		events <- last
		again, err := w.take(newMirror(k), events, put)
		if again == (err != nil) || again != (last.CompactRevision != 0) {
			t.Errorf("%s: again %t, %v", name, again, err)
		}
		if len(shown) != 1 || shown[0].Revision != 5 || shown[0].ClusterID != 7 {
			t.Errorf("%s: %d snapshots", name, len(shown))
		}
	}
}

// TestListIsShownAtOnce: what the watch should have told is only counted, and
// nobody waits until etcd has said when it went.
func TestListIsShownAtOnce(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	k := NewKeys(prefix)
	key := k.Subnet(v4("10.5.1.0/24"))
	reached := mustPut(t, c, key, recordOf("n2", "192.0.2.2", 1))
	before := newMirror(k)
	old, err := list(t.Context(), c, before, maxCall)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	p := etcdproxy.Start(t, s.Endpoint)
	asked := p.Delay(etcdproxy.Always, etcdproxy.When(func(r *pb.RangeRequest) bool { return r.Revision != 0 }), etcdproxy.Request, time.Hour)
	shown := make(chan *Snapshot, 1)
	w := NewWatcher(etcdtest.Client(t, p.URL()), k, slogOf(newHost(t, "n1", p.URL())), func(s *Snapshot) { shown <- s }, func() {})
	w.seen = seen{mirror: before, cluster: old.ClusterID, reached: reached}
	w.call = time.Minute // of the question
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); _ = w.once(ctx) }()
	select {
	case now := <-shown:
		if len(now.Entries) != 0 {
			t.Errorf("the list shows %v", now.Entries)
		}
	case <-ctx.Done():
		t.Error("the list is not shown")
	}
	for asked.Hits() == 0 && wait(ctx, 10*time.Millisecond) {
	}
	if asked.Hits() == 0 {
		t.Error("etcd was not asked when the record went")
	}
	cancel()
	<-done
}

// TestStormOfSingleAnswers: what the client hands over one by one becomes a
// snapshot every takeGap and not one each; what comes alone is shown at once, and
// the last of a storm when the gap is over.
func TestStormOfSingleAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const answers, apart = 1000, time.Millisecond
		k := NewKeys(prefix)
		events := make(chan clientv3.WatchResponse)
		began, shown := time.Now(), map[int64]time.Duration{}
		w := NewWatcher(nil, k, slog.New(slog.DiscardHandler), func(s *Snapshot) { shown[s.Revision] = time.Since(began) }, func() {})
		go func() {
			defer close(events)
			for i := range answers {
				kv := &mvccpb.KeyValue{Key: []byte(k.Reservation(v4("10.5.0.0/24"))), Value: []byte(`{"Node":"n1"}`), ModRevision: int64(i + 1)}
				events <- clientv3.WatchResponse{Header: &pb.ResponseHeader{}, Events: []*clientv3.Event{{Type: clientv3.EventTypePut, Kv: kv}}}
				<-time.After(apart)
			}
			<-time.After(time.Second)
		}()
		m := newMirror(k)
		for resp := range events {
			if again, err := w.take(m, events, resp); again || err != nil {
				t.Fatalf("again %t, %v", again, err)
			}
		}
		if n, most := len(shown), int(answers*apart/takeGap)+2; n > most {
			t.Errorf("%d snapshots of %d answers, want %d at most", n, answers, most)
		}
		if at, ok := shown[1]; !ok || at != 0 {
			t.Errorf("the first, which came alone, was shown after %s (%t)", at, ok)
		}
		if at, late := shown[answers], answers*apart+takeGap; at == 0 || at > late {
			t.Errorf("the last was shown after %s, want by %s", at, late)
		}
	})
}

// TestWatcherNoticesSilence: a watch whose stream stands but carries nothing is
// noticed, from its beginning or later; what changes meanwhile is shown all the
// same, and once it speaks again that is told.
func TestWatcherNoticesSilence(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	k := NewKeys(prefix)
	p := etcdproxy.Start(t, s.Endpoint)
	shown, quiet := make(chan *Snapshot, 1024), make(chan bool, 16)
	h := newHost(t, "n1", p.URL())
	w := NewWatcher(etcdtest.Client(t, p.URL()), k, slogOf(h), func(s *Snapshot) { shown <- s }, func() {})
	w.quiet, w.onQuiet = 200*time.Millisecond, func(silent bool) { quiet <- silent }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	mute := p.MuteWatches(etcdproxy.Always)
	go func() { defer close(done); w.Run(ctx) }()
	defer func() { cancel(); <-done }()

	changed := func(how string) {
		t.Helper()
		put, err := c.Put(ctx, k.Reservation(v4("10.5.1.0/24")), `{"Node":"n1"}`)
		if err != nil {
			t.Fatal(err)
		}
		for deadline := time.After(10 * time.Second); ; {
			select {
			case s := <-shown:
				if s.Revision >= put.Header.Revision {
					return
				}
			case <-deadline:
				t.Fatalf("%s: a change is not shown; %d messages were lost", how, mute.Hits())
			}
		}
	}
	told := func(silent bool) {
		t.Helper()
		select {
		case got := <-quiet:
			if got != silent {
				t.Fatalf("told that it is silent: %t, want %t", got, silent)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("not told that it is silent: %t", silent)
		}
	}
	told(true)
	changed("never begun")
	mute.Remove()
	told(false)
	changed("speaks")
	mute = p.MuteWatches(etcdproxy.Always)
	changed("silent later")
	told(true)
	lists := p.Count(pb.KV_Range_FullMethodName)
	for wait(ctx, 10*time.Millisecond) && p.Count(pb.KV_Range_FullMethodName) < lists+2 {
	}
	mute.Remove()
	told(false)
	changed("speaks again")
	if n := h.log.lines("the watch is silent"); n != 2 {
		t.Errorf("%d lines for two silences", n)
	}
}

// TestQuietWatchStays: silence alone is no fault. etcd begins another watch on its
// stream, and nothing is listed again.
func TestQuietWatchStays(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, fourSubnets)
	p := etcdproxy.Start(t, s.Endpoint)
	w := NewWatcher(etcdtest.Client(t, p.URL()), NewKeys(prefix), slogOf(newHost(t, "n1", p.URL())), func(*Snapshot) {}, func() {})
	w.quiet, w.onQuiet = 100*time.Millisecond, func(silent bool) { t.Errorf("told that it is silent: %t", silent) }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	const create, questions = 1, 10
	for deadline := time.Now().Add(20 * time.Second); p.Count(pb.Watch_Watch_FullMethodName) < create+questions; {
		if time.Now().After(deadline) {
			t.Fatalf("requests: %v", p.Counts())
		}
		wait(ctx, 10*time.Millisecond)
	}
	if n := p.Count(pb.KV_Range_FullMethodName); n != 1 {
		t.Errorf("listed %d times", n)
	}
}

// TestWatcherIsWoken: who knows that etcd is back does not wait for the next
// attempt.
func TestWatcherIsWoken(t *testing.T) {
	t.Parallel()
	w := NewWatcher(nil, NewKeys(prefix), slogOf(newHost(t, "n1", "")), func(*Snapshot) {}, func() {})
	done := make(chan struct{})
	go func() { defer close(done); w.rest(t.Context(), time.Minute) }()
	w.Wake()
	w.Wake() // does not block
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("it waits on")
	}
}
