package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

const (
	// cyclesAtOnce is how many runtimes' workers there are.
	cyclesAtOnce = 4
	// sampled is how many ADDs at either end a median is taken of.
	sampled = 100
)

// TestCycles adds and deletes containers without end, each under an id of its
// own: what the daemon needs of the machine stays what it was after the first
// of them, and so does, in the long form, the time of an ADD.
func TestCycles(t *testing.T) {
	count, warm := 300, 100
	if cluster.Long(t) {
		// The daemon has seen every address of the subnet cool by then.
		count, warm = 10_000, 1000
	}
	ctx := cluster.Context(t, time.Hour)
	nodes := cluster.Born(ctx, t, cluster.Network, "n1", "n2").Nodes
	w, fresh := newCycles(ctx, t, nodes[0], count+sampled), newCycles(ctx, t, nodes[1], sampled)
	w.start(ctx, t)
	w.run(ctx, t, 0, warm)
	before := cluster.Use(ctx, t, w.node)
	began := time.Now()
	w.run(ctx, t, warm, count)
	t.Logf("a cycle every %s, ADD took %s at first and %s at last", time.Since(began)/time.Duration(count-warm),
		median(w.took[:sampled]), median(w.took[count-sampled:count]))
	cluster.Flat(ctx, t, w.node, before, more())

	// The machine may be busier now than it was: beside the last ADDs of this
	// daemon there are the first of another one.
	fresh.start(ctx, t)
	for i := range sampled {
		w.run(ctx, t, count+i, count+i+1)
		fresh.run(ctx, t, i, i+1)
	}
	last, first := median(w.took[count:]), median(fresh.took)
	t.Logf("ADD takes %s, and %s of a daemon that was just started", last, first)
	if cluster.Long(t) && last > first+first/2 {
		t.Errorf("ADD takes %s now, and %s of a daemon that was just started", last, first)
	}
}

func newCycles(ctx context.Context, t *testing.T, n *lab.Node, count int) *cycles {
	t.Helper()
	w := &cycles{node: n, took: make([]time.Duration, count), boxes: make(chan *lab.Pod, cyclesAtOnce)}
	for _, box := range cluster.Sandboxes(ctx, t, n, "p", cyclesAtOnce) {
		w.boxes <- box
	}
	return w
}

func (w *cycles) start(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := w.node.Start(ctx, lab.MetricsListen); err != nil {
		t.Fatal(err)
	}
	cluster.WaitState(ctx, t, w.node, api.StateHeld)
}

// cycles are workers that take turns at the sandboxes.
type cycles struct {
	node  *lab.Node
	took  []time.Duration // of each ADD
	boxes chan *lab.Pod
}

func (w *cycles) run(ctx context.Context, t *testing.T, from, to int) {
	t.Helper()
	if err := cluster.Each(ctx, to-from, cyclesAtOnce, func(ctx context.Context, i int) error { return w.cycle(ctx, from+i) }); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Only(ctx, w.node); err != nil {
		t.Error(err)
	}
}

func (w *cycles) cycle(ctx context.Context, i int) error {
	box := <-w.boxes
	defer func() { w.boxes <- box }()
	for _, verb := range []string{"ADD", "DEL"} {
		call := cluster.CallFor(verb, box, "eth0")
		call.ContainerID = fmt.Sprint("cycle-", i)
		began := time.Now()
		a, err := w.node.CNI(ctx, call)
		if err != nil {
			return err
		}
		if a.Exit != 0 {
			return fmt.Errorf("%s of %s: %w", verb, call.ContainerID, a.Err)
		}
		if verb == "ADD" {
			w.took[i] = time.Since(began)
		}
	}
	return nil
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// more is by how much usage may grow between two looks at an idle daemon. Go
// keeps threads that waited in the kernel, at most one a call; the collector
// of garbage lets the heap double between its runs. A leak of one thing in a
// hundred cycles, or of half a kilobyte in each, is beyond it in the long form,
// and of one in each cycle already in the short one.
func more() cluster.Usage {
	return cluster.Usage{
		Descriptors: 8, Threads: 2*cyclesAtOnce + 4, Goroutines: 8, RSS: 12 << 20,
		Ledger: 253 * 80, // a line for each address that cools
		Log:    16 << 10, // some lines a minute
	}
}
