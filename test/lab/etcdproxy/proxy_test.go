package etcdproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/lab"
)

const (
	// soon bounds what has to happen.
	soon = 10 * time.Second
	// patience is that of a client whose answer will not come.
	patience = 300 * time.Millisecond
)

// bench is an etcd with a proxy before it, and a client on each side.
type bench struct {
	*Proxy
	client, direct *clientv3.Client
}

func newBench(t *testing.T) *bench {
	t.Helper()
	s := etcdtest.Start(t)
	p := Start(t, s.Endpoint)
	return &bench{p, etcdtest.Client(t, p.URL()), s.Client(t)}
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// create puts the key through the proxy if it is absent, as an acquire does.
func (b *bench) create(ctx context.Context, key string) error {
	resp, err := b.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "x")).Commit()
	if err == nil && !resp.Succeeded {
		return fmt.Errorf("%s exists", key)
	}
	return err
}

// stored tells whether etcd has the key, asked behind the proxy.
func (b *bench) stored(t testing.TB, key string) bool {
	t.Helper()
	return len(etcdtest.Get(t, b.direct, key).Kvs) > 0
}

func (b *bench) awaitStored(t testing.TB, key string) {
	t.Helper()
	eventually(t, key+" is in etcd", func() bool { return b.stored(t, key) })
}

func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	if err := lab.Eventually(within(t, soon), what, func() error {
		if !so() {
			return errors.New("no")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// wantLoss makes sure that a client saw what a loss looks like.
func wantLoss(t testing.TB, how Loss, err error) {
	t.Helper()
	// Keep-alives give gRPC's error, all others the context's.
	ok := errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
	if how == Fail {
		ok = status.Code(err) == codes.Unavailable
	}
	if !ok {
		t.Errorf("the client got %v", err)
	}
}

func losses() map[string]Loss { return map[string]Loss{"fail": Fail, "silence": Silence} }

// patient is a context for a call that fails, or is to be given up.
func patient(t testing.TB, how Loss) context.Context {
	t.Helper()
	if how == Silence {
		return within(t, patience)
	}
	return within(t, soon)
}

func TestPassesAllCallsAndCountsThem(t *testing.T) {
	b := newBench(t)
	ctx := within(t, soon)
	lease, err := b.client.Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	events := b.client.Watch(ctx, "a")
	for range 2 {
		if _, err := b.client.Put(ctx, "a", "1", clientv3.WithLease(lease.ID)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.create(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	if err := b.create(ctx, "b"); err == nil {
		t.Error("a transaction succeeds although its compare is false")
	}
	for seen := 0; seen < 2; {
		resp := <-events
		if resp.Err() != nil {
			t.Fatal(resp.Err())
		}
		seen += len(resp.Events)
	}
	if _, err := b.client.KeepAliveOnce(ctx, lease.ID); err != nil {
		t.Error(err)
	}
	if _, err := b.client.KeepAliveOnce(ctx, 1); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Errorf("keep-alive of no lease: %v", err)
	}
	if _, err := b.client.Grant(ctx, 1e10); !errors.Is(err, rpctypes.ErrLeaseTTLTooLarge) {
		t.Errorf("grant for centuries: %v", err)
	}
	if resp, err := b.client.Status(ctx, b.URL()); err != nil || resp.Version == "" {
		t.Errorf("status: %v, %v", resp, err)
	}
	want := map[string]int{
		etcdserverpb.KV_Put_FullMethodName:               2,
		etcdserverpb.KV_Txn_FullMethodName:               2,
		etcdserverpb.KV_Range_FullMethodName:             0,
		etcdserverpb.Watch_Watch_FullMethodName:          1,
		etcdserverpb.Lease_LeaseGrant_FullMethodName:     2,
		etcdserverpb.Lease_LeaseKeepAlive_FullMethodName: 2,
	}
	for method, n := range want {
		if got := b.Count(method); got != n || b.Counts()[method] != n {
			t.Errorf("%s: counted %d, want %d", method, got, n)
		}
	}
}

func TestDropReplyCommits(t *testing.T) {
	for name, how := range losses() {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			r := b.DropReply(1, Puts("a"), how)
			if err := b.create(within(t, soon), "b"); err != nil {
				t.Errorf("a request that does not fit: %v", err)
			}
			wantLoss(t, how, b.create(patient(t, how), "a"))
			b.awaitStored(t, "a")
			if _, err := b.client.Put(within(t, soon), "a", "2"); err != nil {
				t.Errorf("after the rule is used up: %v", err)
			}
			if r.Hits() != 1 {
				t.Errorf("hits: %d", r.Hits())
			}
		})
	}
}

// TestDropReplyCommitsForAClientThatIsGone: the loss is not a matter of luck
// with the client's deadline.
func TestDropReplyCommitsForAClientThatIsGone(t *testing.T) {
	b := newBench(t)
	ctx, leave := context.WithCancel(within(t, soon))
	r := b.DropReply(1, Puts("a"), Silence)
	b.Delay(1, Puts("a"), Request, patience)
	done := make(chan error, 1)
	go func() { done <- b.create(ctx, "a") }()
	eventually(t, "the request has come", func() bool { return r.Hits() == 1 })
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	b.awaitStored(t, "a")
}

func TestDropReplyOfAnError(t *testing.T) {
	b := newBench(t)
	b.DropReply(1, Method(etcdserverpb.Lease_LeaseRevoke_FullMethodName), Silence)
	_, err := b.client.Revoke(within(t, patience), 1)
	wantLoss(t, Silence, err)
}

// TestDropReplyOfAKeepAlive: the message of a stream, which etcd's client asks
// for again by itself when the stream fails.
func TestDropReplyOfAKeepAlive(t *testing.T) {
	for name, how := range losses() {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			lease, err := b.client.Grant(within(t, soon), 60)
			if err != nil {
				t.Fatal(err)
			}
			r := b.DropReply(1, When(func(k *etcdserverpb.LeaseKeepAliveRequest) bool { return k.ID == int64(lease.ID) }), how)
			_, err = b.client.KeepAliveOnce(patient(t, how), lease.ID)
			asked := b.Count(etcdserverpb.Lease_LeaseKeepAlive_FullMethodName)
			switch {
			case r.Hits() != 1:
				t.Errorf("hits: %d", r.Hits())
			case how == Fail && (err != nil || asked != 2):
				t.Errorf("asked %d times: %v", asked, err)
			case how == Silence:
				wantLoss(t, how, err)
			}
		})
	}
}

func TestDelay(t *testing.T) {
	const d = time.Second
	for name, side := range map[string]Side{"request": Request, "reply": Reply} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			r := b.Delay(1, Puts("a"), side, d)
			done := make(chan error, 1)
			began := time.Now()
			go func() { done <- b.create(within(t, soon), "a") }()
			eventually(t, "the request has come", func() bool { return r.Hits() == 1 })
			if side == Reply {
				b.awaitStored(t, "a")
			} else if b.stored(t, "a") {
				t.Error("etcd has the key before the delay is over")
			}
			if err := <-done; err != nil || time.Since(began) < d {
				t.Errorf("answered after %s: %v", time.Since(began), err)
			}
		})
	}
}

// TestDelayEndsWithTheClient: a request that its client has given up does not
// reach etcd, which is what tells a delay from a late commit. It is tried
// often, since the end of the wait and of the call to etcd are a race.
func TestDelayEndsWithTheClient(t *testing.T) {
	const times = 30
	b := newBench(t)
	r := b.Delay(times, PutsBelow("a/"), Request, time.Hour)
	for i := range times {
		wantLoss(t, Silence, b.create(within(t, patience/10), fmt.Sprintf("a/%d", i)))
	}
	if err := b.create(within(t, soon), "b"); err != nil || r.Hits() != times {
		t.Errorf("after the delayed ones: %v; hits: %d", err, r.Hits())
	}
	for i := range times {
		if key := fmt.Sprintf("a/%d", i); b.stored(t, key) {
			t.Errorf("%s is stored", key)
		}
	}
}

func TestCommitLate(t *testing.T) {
	for name, how := range losses() {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			r := b.CommitLate(1, PutsBelow("a/"), how)
			wantLoss(t, how, b.create(patient(t, how), "a/1"))
			if err := b.create(within(t, soon), "a/2"); err != nil {
				t.Errorf("a request more than the rule counts: %v", err)
			}
			b.Cut() // it is not the client's connection that carries it
			if b.stored(t, "a/1") {
				t.Error("it is in etcd before Release")
			}
			if err := r.Release(within(t, soon)); err != nil || !b.stored(t, "a/1") {
				t.Errorf("Release: %v; stored: %t", err, b.stored(t, "a/1"))
			}
		})
	}
}

// TestCommitLateOfAKeepAlive prolongs a lease whose holder has long given up.
func TestCommitLateOfAKeepAlive(t *testing.T) {
	b := newBench(t)
	lease, err := b.client.Grant(within(t, soon), 60)
	if err != nil {
		t.Fatal(err)
	}
	left := func() int64 {
		resp, err := b.direct.TimeToLive(within(t, soon), lease.ID)
		if err != nil {
			t.Fatal(err)
		}
		return resp.TTL
	}
	r := b.CommitLate(1, Method(etcdserverpb.Lease_LeaseKeepAlive_FullMethodName), Silence)
	_, err = b.client.KeepAliveOnce(within(t, patience), lease.ID)
	wantLoss(t, Silence, err)
	eventually(t, "the lease grows old", func() bool { return left() < 59 })
	if err := r.Release(within(t, soon)); err != nil || left() < 59 {
		t.Errorf("Release: %v; %d seconds are left", err, left())
	}
}

func TestReleaseSaysWhatEtcdRefused(t *testing.T) {
	b := newBench(t)
	r := b.CommitLate(1, Method(etcdserverpb.Lease_LeaseRevoke_FullMethodName), Silence)
	_, err := b.client.Revoke(within(t, patience), 1)
	wantLoss(t, Silence, err)
	if err := r.Release(within(t, soon)); !errors.Is(rpctypes.Error(unjoin(err)), rpctypes.ErrLeaseNotFound) {
		t.Errorf("Release: %v", err)
	}
}

// unjoin is the only error of a joined one.
func unjoin(err error) error {
	if many, ok := err.(interface{ Unwrap() []error }); ok && len(many.Unwrap()) == 1 {
		return many.Unwrap()[0]
	}
	return err
}

func TestWhatIsNotReleasedIsNeverSent(t *testing.T) {
	b := newBench(t)
	r := b.CommitLate(Always, Puts("a"), Fail)
	for range 2 {
		wantLoss(t, Fail, b.create(within(t, soon), "a"))
	}
	r.Remove()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if b.stored(t, "a") || r.Hits() != 2 {
		t.Errorf("stored: %t, hits %d", b.stored(t, "a"), r.Hits())
	}
}

func TestCommitAbandoned(t *testing.T) {
	b := newBench(t)
	r := b.CommitAbandoned(1, Puts("a"))
	ctx, leave := context.WithCancel(within(t, soon))
	done := make(chan error, 1)
	go func() { done <- b.create(ctx, "a") }()
	eventually(t, "the request has come", func() bool { return r.Hits() == 1 })
	if b.stored(t, "a") {
		t.Error("it is in etcd while its client waits")
	}
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	b.awaitStored(t, "a")
}

func TestCutStallRestore(t *testing.T) {
	b := newBench(t)
	put := func(d time.Duration) error { // not a read, which etcd's client repeats
		_, err := b.client.Put(within(t, d), "a", "x")
		return err
	}
	if err := put(soon); err != nil {
		t.Fatal(err)
	}
	b.Cut()
	if err := put(patience); err == nil {
		t.Error("a call passes while cut")
	}
	if err := b.listen(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a new connection while cut: %v, want a reset", err)
	}
	b.Restore()
	eventually(t, "calls pass again", func() bool { return put(time.Second) == nil })
	b.Stall()
	wantLoss(t, Silence, put(patience))
	if err := b.listen(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a new connection while stalled: %v, want silence", err)
	}
	b.Restore()
	if err := put(soon); err != nil {
		t.Errorf("after the stall: %v", err)
	}
}

// listen connects and waits for a first byte, which an HTTP/2 server sends
// unasked.
func (b *bench) listen() error {
	c, err := net.Dial("tcp", strings.TrimPrefix(b.URL(), "http://"))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}

func TestSwallowEvents(t *testing.T) {
	b := newBench(t)
	events := b.client.Watch(within(t, soon), "", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if resp := <-events; !resp.Created {
		t.Fatalf("the watch begins with %+v", resp)
	}
	r := b.SwallowEvents(1, EventOf("a"))
	// The first a is lost, its neighbour in the same response is not.
	if _, err := b.direct.Txn(within(t, soon)).Then(clientv3.OpPut("b", "1"), clientv3.OpPut("a", "1")).Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.direct.Put(within(t, soon), "a", "2"); err != nil {
		t.Fatal(err)
	}
	var seen []string
	for len(seen) == 0 || seen[len(seen)-1] != "a=2" {
		resp, ok := <-events
		if !ok || resp.Err() != nil {
			t.Fatalf("after %v: %v", seen, resp.Err())
		}
		for _, e := range resp.Events {
			seen = append(seen, fmt.Sprintf("%s=%s", e.Kv.Key, e.Kv.Value))
		}
	}
	if fmt.Sprint(seen) != "[b=1 a=2]" || r.Hits() != 1 {
		t.Errorf("seen: %v, hits %d", seen, r.Hits())
	}
}

// TestSwallowedEventLeavesItsHeader: the client takes the revision for seen.
func TestSwallowedEventLeavesItsHeader(t *testing.T) {
	b := newBench(t)
	events := b.client.Watch(within(t, soon), "a", clientv3.WithCreatedNotify())
	<-events
	b.SwallowEvents(1, EventOf("a"))
	put, err := b.direct.Put(within(t, soon), "a", "1")
	if err != nil {
		t.Fatal(err)
	}
	if resp := <-events; len(resp.Events) != 0 || !resp.IsProgressNotify() || resp.Header.Revision != put.Header.Revision {
		t.Errorf("the response is %+v", resp)
	}
}

func TestStartRefusesEndpoints(t *testing.T) {
	for _, endpoint := range []string{"", "127.0.0.1:2379", "https://127.0.0.1:2379", "http://127.0.0.1", "http://[::1"} {
		if c, err := connect(endpoint, nil); err == nil {
			_ = c.Close()
			t.Errorf("%q was accepted", endpoint)
		}
	}
}
