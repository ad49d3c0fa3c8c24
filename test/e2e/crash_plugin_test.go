package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestPluginKilled kills the plugin while the daemon stands still: before it is
// heard, in the middle of an ADD, and when the answer is on its way.
func TestPluginKilled(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	n := cluster.Born(ctx, t, cluster.Network, "n1").Nodes[0]
	k := newCrash(ctx, t, n, crashWay{name: "plugin"}, tenuredThatStops(ctx, t))
	for _, stop := range []struct{ verb, place string }{
		{"ADD", ""},
		{"ADD", "before the address is on record"},
		{"ADD", "before the pair is made"},
		{"ADD", "before an ADD is answered"},
		{"DEL", ""},
		{"DEL", "before a DEL frees anything"},
		{"DEL", "before the address is freed"},
		{"DEL", "before a DEL is answered"},
	} {
		if stop.verb == "DEL" {
			k.must(ctx, t, "", "ADD", k.pod)
		}
		k.killPlugin(ctx, t, stop.verb, stop.place)
		cluster.Eventually(ctx, t, addTime, "an ADD is undone, a DEL is done or not begun", func() error {
			left, err := k.fits(ctx, t)
			if err == nil && stop.verb == "ADD" && len(left) != 1 {
				err = fmt.Errorf("on record: %v", left)
			}
			return err
		})
		// The runtime saw it fail, and deletes.
		k.must(ctx, t, "", "DEL", k.pod)
		if left := k.whole(ctx, t, "plugin killed "+stop.place); len(left) != 1 {
			t.Errorf("%s, plugin killed while the daemon stood %q: records %v, want the one of the pod that lives", stop.verb, stop.place, left)
		}
		k.isAdded(ctx, t, k.pod)
		k.must(ctx, t, "", "DEL", k.pod)
	}
}

// killPlugin kills a plugin whose daemon stands still at a place; "" is before
// it has read the call.
func (k *crash) killPlugin(ctx context.Context, t *testing.T, verb, place string) {
	t.Helper()
	v := &victim{node: k.node}
	if place == "" {
		signal(t, k.node, unix.SIGSTOP)
	} else {
		k.arrange(t, place, "")
	}
	call, kill := context.WithCancel(ctx)
	defer kill()
	ended := make(chan struct{})
	background(call, t, func(ctx context.Context) {
		defer close(ended)
		_, _ = k.node.CNI(ctx, cluster.CallFor(verb, k.pod, "eth0"))
	})
	if place == "" {
		cluster.Eventually(ctx, t, addTime, "the plugin has connected", func() error { return connected(ctx, k.node) })
	} else {
		cluster.Eventually(ctx, t, addTime, "the daemon stands still "+place, func() error {
			if !v.isStopped() {
				return errors.New("it runs")
			}
			return nil
		})
	}
	kill()
	<-ended
	signal(t, k.node, unix.SIGCONT)
}

// connected says whether a connection to the daemon's socket waits for it.
func connected(ctx context.Context, n *lab.Node) error {
	out, err := n.Exec(ctx, "ss", "-xlH")
	if err != nil {
		return err
	}
	for _, line := range strings.Split(out, "\n") {
		if f := strings.Fields(line); len(f) > 4 && f[4] == n.Socket && f[2] != "0" {
			return nil
		}
	}
	return errors.New("nobody waits: " + out)
}
