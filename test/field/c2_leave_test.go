package field

import (
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// TestC2Leave is the other half of C2: a node that is removed in good order
// makes room at once. Right is: the next node has the subnet in less than 2 s,
// with a higher fencing number; the one that left does not take part any more
// while its daemon runs, and gives pods no addresses.
func TestC2Leave(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c, n3 := full(ctx, t)
	n1 := c.Nodes[0]
	first := cluster.Status(ctx, t, n1)

	began := time.Now()
	if r := cluster.Run(ctx, t, n1, "tenurectl", "leave", "--socket="+n1.Socket); r.Code != 0 {
		t.Fatalf("tenurectl leave: %s", r)
	}
	s := within(ctx, t, time.Until(began.Add(2*time.Second)), n3, "is served", func(s *api.Status) bool { return s.State == api.StateHeld })
	if s.Subnet != first.Subnet || s.Lease.Epoch <= first.Lease.Epoch {
		t.Errorf("n3 holds %s in epoch %d, want %s after epoch %d", s.Subnet, s.Lease.Epoch, first.Subnet, first.Lease.Epoch)
	}
	t.Logf("served %s after the command began", time.Since(began).Round(time.Millisecond))
	noAddress(ctx, t, n1)
	store := c.Store(t)
	theirs := revision(ctx, t, store, first.Subnet)
	cluster.Stays(ctx, t, ttl, "n1 is out", func() error {
		if s, err := n1.Status(ctx); err == nil && s.State == api.StateHeld {
			return errHeld("by n1: " + s.Subnet)
		}
		return lives(n3)
	})
	if now := revision(ctx, t, store, first.Subnet); now != theirs {
		t.Errorf("the record of n3 has been written again: revision %d, was %d", now, theirs)
	}
	addresses(ctx, t, n3, "young", first.Subnet)
}
