package field

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
	promise "github.com/tenure-cni/tenure/test/ownership"
)

// witness looks at fences and at the store for as long as a test lasts.
type witness struct {
	recorder *promise.Recorder
	sampler  *promise.Sampler
	stop     func()

	mu    sync.Mutex
	found []error
	looks int
}

// judged begins to collect what end judges. The store is best one of members that
// do not hang.
func judged(ctx context.Context, t *testing.T, c *cluster.Cluster, store *cluster.Store) *witness {
	t.Helper()
	recorder, err := promise.Record(ctx, store.Client, "/tenure/network")
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{recorder: recorder, sampler: promise.NewSampler(10 * time.Millisecond)}
	looking, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	var stops []func()
	for _, n := range c.Nodes {
		f := cluster.OpenFence(t, n.Pid())
		stops = append(stops, w.sampler.Watch(n.Host, f.Read))
		all.Go(func() { w.compare(looking, n, f, store) })
	}
	w.stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
		for _, stop := range stops {
			stop()
		}
	})
	t.Cleanup(w.stop)
	return w
}

// compare holds a node's deadline against what the leader says of the lease on
// which its key hangs, again and again.
func (w *witness) compare(ctx context.Context, n *lab.Node, f *cluster.Fence, store *cluster.Store) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		subnet, deadline, err := f.Read()
		if err == nil && deadline > cluster.BootTime() {
			w.note(n, deadline, ends(ctx, store, subnet))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// ends is when the subnet's key ends at the latest if nobody renews its lease; 0
// if that cannot be known now.
func ends(ctx context.Context, store *cluster.Store, subnet netip.Prefix) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	resp, err := store.Get(ctx, cluster.SubnetKey(subnet.String()))
	if err != nil || len(resp.Kvs) == 0 {
		return 0 // the history shows it
	}
	left, err := store.TimeToLive(ctx, clientv3.LeaseID(resp.Kvs[0].Lease))
	if err != nil || left.TTL < 0 || left.RaftTerm != resp.Header.RaftTerm { // an old leader tells old tales
		return 0
	}
	return cluster.BootTime() + time.Duration(left.TTL+1)*time.Second // it counts whole seconds
}

func (w *witness) note(n *lab.Node, deadline, end time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if end == 0 {
		return
	}
	if w.looks++; deadline > end {
		w.found = append(w.found, fmt.Errorf("%s: its fence is open until %s, %s after the end of its key", n.Host, deadline, deadline-end))
	}
}

// end judges.
func (w *witness) end(ctx context.Context, t *testing.T) {
	t.Helper()
	w.stop()
	history, foreign, err := w.recorder.Stop(ctx)
	if err != nil {
		t.Fatal(err)
	}
	samples := w.sampler.Samples()
	for _, v := range promise.Judge(promise.Evidence{Prefix: "/tenure/network", History: history, Foreign: foreign, Samples: samples}) {
		t.Error(v)
	}
	if len(w.found) > 0 {
		t.Errorf("%d times of %d: %v", len(w.found), w.looks, errors.Join(w.found[0], w.found[len(w.found)-1]))
	}
	t.Logf("%d deadlines compared with leases, %d looks at fences", w.looks, len(samples))
}
