package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// crashWay is a call during which the daemon dies.
type crashWay struct {
	name string
	// before brings about what the call is made on; act makes it, and is told
	// nothing of its end; after makes it once more, or what a runtime makes
	// instead, and judges that.
	before, act, after crashStep
}

type crashStep func(ctx context.Context, t *testing.T, k *crash)

func crashes() []crashWay {
	return []crashWay{
		{"ADD", nothing, tries("", "ADD"), added},
		{"ADD and DEL", nothing, tries("", "ADD"), nothing},
		{"ADD that repairs", bent, tries("", "ADD"), added},
		{"ADD of a later sandbox", does("", "ADD"), adds, addedLater},
		{"ADD that is undone", taken, tries("", "ADD"), freed},
		{"DEL", does("", "ADD"), tries("", "DEL"), vanished},
		{"queued DEL", queued, starts, vanished},
		{"GC", does("", "ADD"), tries("", "GC"), collected("")},
		{"lost ledger", lost, starts, added},
		{"IPAM ADD", nothing, tries("tenure-ipam", "ADD"), does("tenure-ipam", "ADD")},
		{"IPAM DEL", does("tenure-ipam", "ADD"), tries("tenure-ipam", "DEL"), vanished},
		{"IPAM GC", does("tenure-ipam", "ADD"), tries("tenure-ipam", "GC"), collected("tenure-ipam")},
	}
}

func nothing(context.Context, *testing.T, *crash) {}

// tries makes a call that may end in whatever way.
func tries(plugin, verb string) crashStep {
	return func(ctx context.Context, t *testing.T, k *crash) { k.call(ctx, t, plugin, verb, k.pod) }
}

// does makes a call that has to succeed.
func does(plugin, verb string) crashStep {
	return func(ctx context.Context, t *testing.T, k *crash) { k.must(ctx, t, plugin, verb, k.pod) }
}

// added repeats the ADD; the interface is whole then.
func added(ctx context.Context, t *testing.T, k *crash) { k.isAdded(ctx, t, k.pod) }

func addedLater(ctx context.Context, t *testing.T, k *crash) { k.isAdded(ctx, t, k.other) }

func (k *crash) isAdded(ctx context.Context, t *testing.T, box *lab.Pod) {
	t.Helper()
	k.must(ctx, t, "", "ADD", box)
	if a := k.call(ctx, t, "", "CHECK", box); a.Exit != 0 {
		t.Errorf("%s: CHECK: %v", k.name, a.Err)
	}
	if err := lab.WaitPing(ctx, box, k.witness.IP); err != nil {
		t.Errorf("%s: %v", k.name, err)
	}
}

// adds is an ADD of the container's later sandbox.
func adds(ctx context.Context, t *testing.T, k *crash) { k.call(ctx, t, "", "ADD", k.other) }

// bent has an interface to which much was done.
func bent(ctx context.Context, t *testing.T, k *crash) {
	k.must(ctx, t, "", "ADD", k.pod)
	host := ""
	for _, e := range ledgerOf(t, k.node) {
		if e.ContainerID == k.pod.ContainerID() {
			host = e.Host
		}
	}
	// What else the host end has, the data plane may have put right before.
	sh(ctx, t, k.node, "ip link set "+host+" mtu 1300")
	sh(ctx, t, k.pod, "ip link set eth0 mtu 1300 address 0a:58:00:00:00:01 down", "ip addr flush dev eth0")
}

// taken has another interface under the name that is asked for.
func taken(ctx context.Context, t *testing.T, k *crash) {
	sh(ctx, t, k.pod, "ip link add eth0 type bridge")
}

// freed was never added.
func freed(ctx context.Context, t *testing.T, k *crash) {
	k.isGone(t)
	sh(ctx, t, k.pod, "ip link del eth0")
}

// vanished is a container without a record, whether the runtime asks again or not:
// its DEL was taken.
func vanished(_ context.Context, t *testing.T, k *crash) { k.isGone(t) }

func (k *crash) isGone(t *testing.T) {
	t.Helper()
	for _, e := range ledgerOf(t, k.node) {
		if e.ContainerID == k.pod.ContainerID() {
			t.Errorf("%s: still on record: %v", k.name, e)
		}
	}
}

// collected repeats the GC.
func collected(plugin string) crashStep {
	return func(ctx context.Context, t *testing.T, k *crash) {
		k.must(ctx, t, plugin, "GC", k.pod)
		k.isGone(t)
	}
}

// queued leaves the daemon down with a DEL for the next one.
func queued(ctx context.Context, t *testing.T, k *crash) {
	k.must(ctx, t, "", "ADD", k.pod)
	k.node.Kill()
	k.must(ctx, t, "", "DEL", k.pod)
}

// lost leaves the daemon down and no ledger.
func lost(ctx context.Context, t *testing.T, k *crash) {
	k.must(ctx, t, "", "ADD", k.pod)
	k.node.Kill()
	if err := os.Remove(filepath.Join(k.node.RunDir, "ledger.json")); err != nil {
		t.Fatal(err)
	}
}

// starts starts the daemon, and waits until it has come up or ended.
func starts(ctx context.Context, t *testing.T, k *crash) {
	if err := k.node.Start(ctx); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(ctx, t, addTime, "the daemon has come up, or has ended", func() error {
		if len(k.stopped()) > 0 {
			return nil
		}
		_, err := k.node.Status(ctx)
		return err
	})
}
