package lease

import (
	"testing"

	"github.com/tenure-cni/tenure/daemon/api"
)

// TestEngineCounts: what metrics tell of the engine's work is what it did.
func TestEngineCounts(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	p := newProxy(t, s.Endpoint)
	d := newHost(t, "n1", "http://"+p.Addr()).start()
	v := d.waitHeld()
	first := d.Counts()
	if first.Cycles[CycleProven] == 0 || first.Proofs != first.Cycles[CycleProven] || first.Cycles[CycleDenied] != 0 {
		t.Errorf("after the first proof: %+v", first)
	}
	// The subnet was taken by one transaction, and each proof is one too.
	if got := first.Transactions[TxnSucceeded]; got < 2 || got < first.Proofs+1 || first.Transactions[TxnRefused] != 0 {
		t.Errorf("transactions after the first proof: %+v", first)
	}

	p.Cut()
	d.wait("unproven", func(v View) bool { return v.State == api.StateUnproven })
	away := d.Counts()
	if away.Cycles[CycleUnanswered] == 0 || away.Proofs < first.Proofs {
		t.Errorf("with etcd away: %+v", away)
	}
	// With the lease gone, the look at the store or a cycle denies it, and the
	// subnet is taken anew.
	if _, err := c.Revoke(t.Context(), v.Holding.LeaseID()); err != nil {
		t.Fatal(err)
	}
	p.Restore()
	d.wait("held again", func(w View) bool { return w.State == api.StateHeld && w.Holding.LeaseID() != v.Holding.LeaseID() })
	after := d.Counts()
	if after.Proofs <= away.Proofs || after.Transactions[TxnSucceeded] < away.Transactions[TxnSucceeded]+2 {
		t.Errorf("no proof, or no acquisition, since etcd is back: %+v, before %+v", after, away)
	}
}

// TestCycleIsCountedByItsVerdict, each in one place.
func TestCycleIsCountedByItsVerdict(t *testing.T) {
	var e Engine
	e.counts.cycle(verdict{proven: true})
	e.counts.cycle(verdict{lost: "gone"})
	e.counts.cycle(verdict{lost: "gone"})
	e.counts.cycle(verdict{err: errSettling})
	got := e.Counts()
	if got.Cycles[CycleProven] != 1 || got.Cycles[CycleDenied] != 2 || got.Cycles[CycleUnanswered] != 1 {
		t.Errorf("cycles %v", got.Cycles)
	}
}
