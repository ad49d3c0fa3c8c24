package lease

import (
	"context"
	"errors"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// The ends of a cycle.
const (
	// CycleProven: etcd says that the subnet is this node's.
	CycleProven = "proven"
	// CycleDenied: etcd answered, and says that it is not.
	CycleDenied = "denied"
	// CycleUnanswered: nothing was concluded.
	CycleUnanswered = "unanswered"
)

// The ends of a transaction.
const (
	// TxnSucceeded: what it compared was so, and what it writes is written.
	TxnSucceeded = "succeeded"
	// TxnRefused: etcd answered that something is not as it compared.
	TxnRefused = "refused"
	// TxnUnanswered: no answer; it may have been committed.
	TxnUnanswered = "unanswered"
)

// Counts is what an Engine has done since it was made. Every end is in it, also
// one that has not come about yet.
type Counts struct {
	// Cycles are by their end.
	Cycles map[string]uint64
	// Proofs are the cycles on whose word the fence was armed.
	Proofs uint64
	// Transactions are by their end. One that its own asker gave up, since
	// another answer had come, is in none.
	Transactions map[string]uint64
	// Missed are the events that etcd's watch did not tell of and a list found,
	// by their kind.
	Missed map[string]uint64
}

// counters are Counts while they change.
type counters struct {
	proven, denied, unanswered              atomic.Uint64
	armed                                   atomic.Uint64
	txnSucceeded, txnRefused, txnUnanswered atomic.Uint64
	missedPuts, missedDeletes               atomic.Uint64
}

// Counts may be called from anywhere at any time.
func (e *Engine) Counts() Counts {
	c := &e.counts
	return Counts{
		Cycles: map[string]uint64{CycleProven: c.proven.Load(), CycleDenied: c.denied.Load(), CycleUnanswered: c.unanswered.Load()},
		Proofs: c.armed.Load(),
		Transactions: map[string]uint64{TxnSucceeded: c.txnSucceeded.Load(), TxnRefused: c.txnRefused.Load(),
			TxnUnanswered: c.txnUnanswered.Load()},
		Missed: map[string]uint64{MissedPut: c.missedPuts.Load(), MissedDelete: c.missedDeletes.Load()},
	}
}

// cycle counts one by its verdict.
func (c *counters) cycle(v verdict) {
	switch {
	case v.proven:
		c.proven.Add(1)
	case v.lost != "":
		c.denied.Add(1)
	default:
		c.unanswered.Add(1)
	}
}

// txn counts one by its answer.
func (c *counters) txn(resp *clientv3.TxnResponse, err error) {
	switch {
	case err != nil:
		c.txnUnanswered.Add(1)
	case resp.Succeeded:
		c.txnSucceeded.Add(1)
	default:
		c.txnRefused.Add(1)
	}
}

// counted is a client's KV whose transactions are counted.
type counted struct {
	clientv3.KV
	counts *counters
}

// Txn implements clientv3.KV.
func (k counted) Txn(ctx context.Context) clientv3.Txn {
	return countedTxn{k.KV.Txn(ctx), ctx, k.counts}
}

type countedTxn struct {
	clientv3.Txn
	ctx    context.Context // of the question, to tell one that was given up
	counts *counters
}

func (t countedTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	return countedTxn{t.Txn.If(cs...), t.ctx, t.counts}
}

func (t countedTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	return countedTxn{t.Txn.Then(ops...), t.ctx, t.counts}
}

func (t countedTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	return countedTxn{t.Txn.Else(ops...), t.ctx, t.counts}
}

// Commit implements clientv3.Txn.
func (t countedTxn) Commit() (*clientv3.TxnResponse, error) {
	resp, err := t.Txn.Commit()
	if err == nil || !errors.Is(t.ctx.Err(), context.Canceled) {
		t.counts.txn(resp, err)
	}
	return resp, err
}
