package lease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// etcd is the little of the client that a cycle needs.
type etcd interface {
	// KeepAliveOnce asks once; see asking.
	KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error)
	Txn(ctx context.Context) clientv3.Txn
}

// verdict is what one cycle concluded.
type verdict struct {
	// proven: the key is ours, as of a question sent at t0.
	proven bool
	// lost: etcd answered, and the answer is that the subnet is not ours.
	lost string
	// err: nothing was concluded, and why.
	err error
	// denied: the lease is not known where it was renewed, and yet the key hangs
	// on it. A member says so that has fallen behind and believes that it leads.
	denied bool

	holding  Holding       // with the TTL, revision and record just read
	deadline time.Duration // CLOCK_BOOTTIME; set with proven
	t0       time.Duration
	// answered says that the proof was answered, whatever it said: then entry
	// is the key, and the rest the store's, all at one revision.
	answered bool
	entry    Entry
	life     Life
	term     uint64 // etcd's raft term
	settle   int64  // ModRevision of the settle that stands, 0 if none does
}

// step tells a test between which two lines a cycle is; see Config.Step.
type step func(string)

func (s step) at(where string) {
	if s != nil {
		s(where)
	}
}

// cycle keeps the lease alive and then proves that the key hangs on it. clock
// reads CLOCK_BOOTTIME; it is read once, before the first send: whatever
// happens afterwards, a stopped process included, can only make the deadline
// earlier than the lease's true end.
//
// "Lease not found" alone concludes nothing, for it may come from a store that
// was wiped or restored; the proof that follows tells which store it was.
func cycle(ctx context.Context, c etcd, h Holding, clock func() time.Duration, s step) verdict {
	s.at("before t0")
	t0 := clock()
	v := verdict{t0: t0, holding: h}

	s.at("before the keep-alive")
	ttl, err := keepAlive(ctx, c, h.lease, h.ttl)
	s.at("after the keep-alive")
	unknown := errors.Is(err, rpctypes.ErrLeaseNotFound)
	if err != nil && !unknown {
		v.err = fmt.Errorf("keep lease %x alive: %w", int64(h.lease), err)
		return v
	}
	if !unknown {
		v.holding.ttl = ttl
	}

	s.at("before the proof")
	call := CallTimeout(v.holding.ttl)
	resp, err := hedged(ctx, call, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return commit(ctx, c, h.proof(), call)
	})
	s.at("after the proof")
	if err != nil {
		v.err = fmt.Errorf("prove %s: %w", h.subnets, err)
		return v
	}
	v.read(resp)
	if v.lost = h.contradicted(v.entry); v.lost != "" {
		return v
	}
	switch {
	case unknown && resp.Succeeded:
		v.denied = true
		v.err = fmt.Errorf("a member of etcd does not know lease %x, on which the key hangs", int64(h.lease))
	case !resp.Succeeded:
		v.lost = "etcd answered that the key is not ours, and shows it as ours"
	default:
		v.holding.mod, v.holding.record = v.entry.ModRevision, v.entry.Record
		v.deadline = Deadline(t0, ttl)
		v.proven = true
	}
	return v
}

// read takes what the proof read.
func (v *verdict) read(resp *clientv3.TxnResponse) {
	s := reads(v.holding.keys, resp)
	v.answered = true
	v.entry, _ = s.Entry(v.holding.subnets)
	v.life, v.settle, v.term = s.life(), s.Settle.ModRevision, resp.Header.RaftTerm
}

// keepAlive renews a lease of about ttl and returns its length as granted.
func keepAlive(ctx context.Context, c etcd, id clientv3.LeaseID, ttl time.Duration) (time.Duration, error) {
	return hedged(ctx, CallTimeout(ttl), func(ctx context.Context) (time.Duration, error) {
		for pause := newPause(); ; {
			resp, err := c.KeepAliveOnce(ctx, id)
			switch {
			case err == nil && resp.TTL <= 0:
				return 0, rpctypes.ErrLeaseNotFound
			case err == nil:
				return time.Duration(resp.TTL) * time.Second, nil
			case !unavailable(err) || !wait(ctx, pause.NextBackOff()):
				return 0, err
			}
		}
	})
}

// unavailable says that the connection or the server is not there at the moment.
func unavailable(err error) bool {
	var said rpctypes.EtcdError
	if errors.As(err, &said) {
		return said.Code() == codes.Unavailable
	}
	return status.Code(err) == codes.Unavailable
}

// asking is a client whose KeepAliveOnce asks once. The client's own asks again
// and again without a pause, hundreds of times a second, where etcd or what
// stands before it refuses at once.
type asking struct{ *clientv3.Client }

// KeepAliveOnce renews a lease by one question, on a stream of its own: what
// comes back on it is the answer to this question. Where etcd did not take the
// token it is put again.
func (a asking) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	var resp *clientv3.LeaseKeepAliveResponse
	err := unlessLapsed(ctx, func() (err error) {
		resp, err = a.ask(ctx, id)
		return err
	})
	return resp, err
}

func (a asking) ask(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, err := clientv3.RetryLeaseClient(a.Client).LeaseKeepAlive(ctx, grpc.WaitForReady(true))
	if err == nil {
		err = stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)})
	}
	if err != nil && !errors.Is(err, io.EOF) { // EOF: the stream has ended, and Recv says why
		return nil, clientv3.ContextError(ctx, err)
	}
	resp, err := stream.Recv()
	if err != nil {
		return nil, clientv3.ContextError(ctx, err)
	}
	return &clientv3.LeaseKeepAliveResponse{ResponseHeader: resp.GetHeader(), ID: id, TTL: resp.TTL}, nil
}

func commit(ctx context.Context, c etcd, f fenced, timeout time.Duration) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return c.Txn(ctx).If(f.cmps...).Then(f.then...).Else(f.other...).Commit()
}

// contradicted says in words what stands where our key should: nothing, a key
// of another life or lease, or a record that somebody else wrote under ours. It
// is "" if the key is ours.
func (h Holding) contradicted(e Entry) string {
	key := h.keys.Subnet(h.subnets)
	switch {
	case e.CreateRevision == 0:
		return fmt.Sprintf("key %s is gone from etcd", key)
	case e.Lease != h.lease:
		return fmt.Sprintf("key %s now hangs on lease %x of node %q at %s, not on ours (%x)",
			key, int64(e.Lease), e.Tenant().Node, e.Address(), int64(h.lease))
	case e.CreateRevision != h.create:
		return fmt.Sprintf("key %s was deleted and made again at revision %d", key, e.CreateRevision)
	case e.Tenant().UID != h.record.Tenant().UID, e.Tenant().Epoch != h.record.Tenant().Epoch:
		return fmt.Sprintf("key %s was overwritten at revision %d with the record of node %q at %s", key, e.ModRevision, e.Tenant().Node, e.Address())
	}
	return ""
}
