package lease

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/test/etcdtest"
)

// alone is an etcd that is cut off: its only other member is nowhere.
func alone(t *testing.T) *etcdtest.Server {
	t.Helper()
	s := etcdtest.Start(t)
	c := s.Client(t)
	if _, err := c.MemberAdd(t.Context(), []string{"http://127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		resp, err := c.Status(t.Context(), s.Endpoint)
		if err == nil && resp.Leader == 0 {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("it still has a leader: %+v, %v", resp, err)
		}
		wait(t.Context(), 20*time.Millisecond)
	}
}

// TestMemberWithoutLeader: whichever call comes to a member that is cut off is
// answered by another one, and at once; where there is no other it is put again
// now and then.
func TestMemberWithoutLeader(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, tenSeconds)
	cut := alone(t)
	c, err := Dial(conf.Etcd{Endpoints: []string{cut.Endpoint, s.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	id := newLeaseID()
	if _, err := grant(t.Context(), c, id, time.Minute, maxCall); err != nil {
		t.Fatal(err)
	}
	k := NewKeys(prefix)
	// Each is made as often as that the member has it in its turn.
	for name, call := range map[string]func(context.Context) error{
		"list": func(ctx context.Context) error { _, err := list(ctx, c, newMirror(k), maxCall); return err },
		"grant": func(ctx context.Context) error {
			_, err := grant(ctx, c, newLeaseID(), time.Minute, maxCall)
			return err
		},
		"keep-alive": func(ctx context.Context) error { _, err := keepAlive(ctx, asking{c}, id, patient(maxCall)); return err },
		"write": func(ctx context.Context) error {
			_, err := c.Txn(ctx).Then(clientv3.OpPut("/written", "", clientv3.WithLease(id))).Commit()
			return err
		},
	} {
		for range 4 {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), maxCall)
			err := call(ctx)
			cancel()
			if took := time.Since(began); err != nil || took > maxCall/4 {
				t.Errorf("%s after %s: %v", name, took, err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), maxCall)
	defer cancel()
	if resp, err := c.Status(ctx, cut.Endpoint); err != nil || resp.Leader != 0 {
		t.Errorf("asked about itself it says %+v, %v", resp, err)
	}
}

// TestNoMemberWithLeader: a call is put again now and then, until its time is over.
func TestNoMemberWithLeader(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	c, err := Dial(conf.Etcd{Endpoints: []string{alone(t).Endpoint}}, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			calls.Add(1)
			return invoke(ctx, method, req, reply, cc, opts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for name, call := range map[string]func(context.Context) error{
		"read":  func(ctx context.Context) error { _, err := c.Get(ctx, "/any"); return err },
		"write": func(ctx context.Context) error { _, err := c.Put(ctx, "/any", ""); return err },
	} {
		calls.Store(0)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := call(ctx)
		cancel()
		if n, took := calls.Load(), time.Since(began); err == nil || took < time.Second || n < 5 || n > 25 {
			t.Errorf("%s: put %d times within %s: %v", name, n, took, err)
		}
	}
}
