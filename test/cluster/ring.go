package cluster

import (
	"context"
	"strings"
	"testing"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/lab"
)

// Ring is nodes with a pod each, of which each talks to the next, and how all
// was when it began.
type Ring struct {
	// Nodes, and what belongs to each: Pods, the Flows from its pod to the next
	// one's, and Before, its status at the beginning.
	Nodes  []*lab.Node
	Pods   []*lab.Pod
	Flows  []*Flow
	Before []*api.Status

	sent, writes []int
	kernel       []string
}

// NewRing adds the pods and waits until everybody talks.
func NewRing(ctx context.Context, t testing.TB, nodes ...*lab.Node) *Ring {
	t.Helper()
	r := &Ring{Nodes: nodes}
	for _, n := range nodes {
		r.Pods = append(r.Pods, Pod(ctx, t, n, "p"))
	}
	for i, p := range r.Pods {
		next := r.Pods[(i+1)%len(r.Pods)]
		r.Flows = append(r.Flows, StartFlow(ctx, t, p.NS, next.NS, next.IP))
	}
	for i, n := range nodes {
		r.Flows[i].Runs(ctx, t)
		r.Before = append(r.Before, Status(ctx, t, n))
		r.kernel = append(r.kernel, Picture(ctx, t, n))
		r.writes = append(r.writes, WritingPasses(n))
		r.sent = append(r.sent, r.Flows[i].Sent())
	}
	return r
}

// Back waits until every node holds its subnet in the store as it is now, by
// the same epoch and under a lease that this store has made.
func (r *Ring) Back(ctx context.Context, t testing.TB) {
	t.Helper()
	for i, n := range r.Nodes {
		Wait(ctx, t, n, "is back in the store", func(s *api.Status) bool {
			return s.State == api.StateHeld && s.Lease.ID != r.Before[i].Lease.ID
		})
	}
	r.Same(ctx, t)
}

// Same makes sure that every node holds what it held.
func (r *Ring) Same(ctx context.Context, t testing.TB) {
	t.Helper()
	for i, n := range r.Nodes {
		s, was := Status(ctx, t, n), r.Before[i]
		if s.Subnet != was.Subnet || s.Lease.Epoch != was.Lease.Epoch || s.UID != was.UID || len(s.Stranded) != 0 {
			t.Errorf("%s holds %s in epoch %d as %s, stranded %v; it held %s in epoch %d as %s",
				n.Host, s.Subnet, s.Lease.Epoch, s.UID, s.Stranded, was.Subnet, was.Lease.Epoch, was.UID)
		}
	}
}

// Untouched makes sure that nothing was written to any kernel, and no packet
// lost.
func (r *Ring) Untouched(ctx context.Context, t testing.TB) {
	t.Helper()
	for i, n := range r.Nodes {
		if now := Picture(ctx, t, n); now != r.kernel[i] {
			t.Errorf("the kernel of %s is\n%s\nit was\n%s", n.Host, now, r.kernel[i])
		}
		if now := WritingPasses(n); now != r.writes[i] {
			t.Errorf("the kernel of %s has been written to in %d passes", n.Host, now-r.writes[i])
		}
	}
	r.Whole(ctx, t)
}

// Whole makes sure that no flow has lost a datagram since the beginning.
func (r *Ring) Whole(ctx context.Context, t testing.TB) {
	t.Helper()
	for i, f := range r.Flows {
		f.Whole(ctx, t, r.sent[i])
	}
}

// WritingPasses is how many passes over the kernel have written something, by
// the log of the node's daemons.
func WritingPasses(n *lab.Node) int { return strings.Count(n.Logs(10000), "kernel brought in line") }
