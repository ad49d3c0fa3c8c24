package field

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

const (
	givenUp = 200
	// givenUpAtOnce is how many ADDs run beside each other.
	givenUpAtOnce = 4
)

// TestF5 is containerd #5768, go-cni #60, kubernetes #86944 and #107371, and
// cilium #39370: the runtime gives up on an ADD, the DEL for it fails or never
// comes, and address and interface are lost. Right is: wherever in an ADD the
// plugin is killed, a DEL leaves nothing; where none comes and the sandbox goes,
// nothing is left within a minute either, and a pod that lives keeps what it has.
func TestF5(t *testing.T) {
	t.Parallel() // mostly waits for the collector
	ctx := cluster.Context(t, 2*time.Minute)
	chance := rand.New(rand.NewPCG(cluster.Seed(t), 5))
	n := cluster.New(ctx, t, cluster.Network, "n1").Nodes[0]
	witness := cluster.Pod(ctx, t, n, "witness")
	boxes := cluster.Sandboxes(ctx, t, n, "p", givenUp)
	longest := addTime(ctx, t, n, boxes[:20])
	delays := make([]time.Duration, givenUp)
	for i := range delays {
		delays[i] = time.Duration(chance.Int64N(int64(longest)))
	}

	var killed atomic.Int64
	if err := cluster.Each(ctx, givenUp, givenUpAtOnce, func(ctx context.Context, i int) error {
		call, giveUp := context.WithTimeout(ctx, delays[i])
		defer giveUp()
		// Beyond the time the plugin is killed; before it, it may have failed.
		if _, err := n.CNI(call, cluster.CallFor("ADD", boxes[i], "eth0")); errors.Is(err, context.DeadlineExceeded) {
			killed.Add(1)
		} else if err != nil {
			return err
		}
		if i%2 == 0 {
			return boxes[i].Vanish()
		}
		return cluster.Delete(ctx, n, boxes[i])
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d plugins were killed, within %s", killed.Load(), givenUp, longest)
	if killed.Load() < givenUp/4 {
		t.Error("most ADDs were over before: this says nothing")
	}
	cluster.Eventually(ctx, t, time.Minute, "nothing is left", func() error { return cluster.Only(ctx, n, witness) })
	for i, box := range boxes {
		if i%2 == 0 {
			continue
		}
		if addrs, err := cluster.PodAddrs(box, "eth0"); err != nil || len(addrs) != 0 {
			t.Errorf("after its DEL %s has %v (%v)", box.Pod, addrs, err)
		}
	}
	if err := witness.Check(ctx); err != nil {
		t.Errorf("the pod that lives: %v", err)
	}
}

// addTime is the longest that one of these ADDs takes, a few at a time.
func addTime(ctx context.Context, t *testing.T, n *lab.Node, boxes []*lab.Pod) time.Duration {
	t.Helper()
	var longest atomic.Int64
	if err := cluster.Each(ctx, len(boxes), givenUpAtOnce, func(ctx context.Context, i int) error {
		began := time.Now()
		_, a, err := cluster.Add(ctx, n, boxes[i])
		if err != nil || a.Exit != 0 {
			return fmt.Errorf("ADD of %s: %+v, %w", boxes[i].Pod, a, errors.Join(err, errors.New("it has to succeed")))
		}
		took := int64(time.Since(began))
		for old := longest.Load(); old < took && !longest.CompareAndSwap(old, took); old = longest.Load() {
		}
		return cluster.Delete(ctx, n, boxes[i])
	}); err != nil {
		t.Fatal(err)
	}
	return time.Duration(longest.Load())
}
