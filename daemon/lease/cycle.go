package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// etcd is the little of the client that a cycle needs.
type etcd interface {
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

	holding  Holding       // with the TTL, revision and record just read
	deadline time.Duration // CLOCK_BOOTTIME; set with proven
	t0       time.Duration
	store    Versioned[Store]
	revision int64
	cluster  uint64
}

// cycle keeps the lease alive and then proves that the key hangs on it. clock
// reads CLOCK_BOOTTIME; it is read once, before the first send: whatever
// happens afterwards, a stopped process included, can only make the deadline
// earlier than the lease's true end.
func cycle(ctx context.Context, c etcd, h Holding, clock func() time.Duration) verdict {
	t0 := clock()
	v := verdict{t0: t0, holding: h}

	ttl, err := keepAlive(ctx, c, h)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		v.lost = fmt.Sprintf("etcd does not know lease %x any more", int64(h.lease))
		return v
	}
	if err != nil {
		v.err = fmt.Errorf("keep lease %x alive: %w", int64(h.lease), err)
		return v
	}
	v.holding.ttl = ttl

	resp, err := commit(ctx, c, h.proof(), CallTimeout(ttl))
	if err != nil {
		v.err = fmt.Errorf("prove %s: %w", h.subnets, err)
		return v
	}
	v.revision, v.cluster = resp.Header.Revision, resp.Header.ClusterId
	entry, store := readProof(h, resp)
	v.store = store
	if v.lost = h.contradicted(entry); v.lost != "" {
		return v
	}
	if !resp.Succeeded {
		v.lost = "etcd answered that the key is not ours, and shows it as ours"
		return v
	}
	v.holding.mod, v.holding.record = entry.ModRevision, entry.Record
	v.deadline = Deadline(t0, ttl)
	v.proven = true
	return v
}

func keepAlive(ctx context.Context, c etcd, h Holding) (time.Duration, error) {
	// KeepAliveOnce retries inside without a pause; the context ends that.
	ctx, cancel := context.WithTimeout(ctx, CallTimeout(h.ttl))
	defer cancel()
	resp, err := c.KeepAliveOnce(ctx, h.lease)
	if err != nil {
		return 0, err
	}
	if resp.TTL <= 0 {
		return 0, rpctypes.ErrLeaseNotFound
	}
	return time.Duration(resp.TTL) * time.Second, nil
}

func commit(ctx context.Context, c etcd, f fenced, timeout time.Duration) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return c.Txn(ctx).If(f.cmps...).Then(f.then...).Else(f.other...).Commit()
}

// readProof takes the two reads of Holding.proof out of its answer.
func readProof(h Holding, resp *clientv3.TxnResponse) (Entry, Versioned[Store]) {
	m := newMirror(h.keys)
	for _, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			m.put(kv)
		}
	}
	s := m.snapshot(resp.Header.Revision, resp.Header.ClusterId)
	e, _ := s.Entry(h.subnets)
	return e, s.Store
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
			key, int64(e.Lease), e.Tenant().Node, e.PublicIP, int64(h.lease))
	case e.CreateRevision != h.create:
		return fmt.Sprintf("key %s was deleted and made again at revision %d", key, e.CreateRevision)
	case e.Tenant().UID != h.record.Tenant().UID, e.Tenant().Epoch != h.record.Tenant().Epoch:
		return fmt.Sprintf("key %s was overwritten at revision %d with the record of node %q at %s", key, e.ModRevision, e.Tenant().Node, e.PublicIP)
	}
	return ""
}
