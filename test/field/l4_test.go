package field

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestL4 is flannel #2237 and #836: the daemon empties its chains when it ends
// or before it fills them, so each restart is an outage for what pods send out;
// others complain that a stop leaves rules behind. Right is: through ten
// restarts, an upgrade and a changed rule no new connection fails; a stop
// removes nothing, and a start that finds what it wants writes nothing.
func TestL4(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	cluster.Exec(ctx, t, n, "iptables", "-w", "-P", "FORWARD", "DROP") // so the FORWARD rules count too
	cluster.Start(ctx, t, n)
	pod := cluster.Pod(ctx, t, n, "p")
	cluster.Serve(ctx, t, c.Outside, port)
	cluster.Seen(ctx, t, pod.NS, c.OutsideAddr(), port, n.Addr)
	whole, passes := rules(ctx, t, n), cluster.WritingPasses(n)

	finish := connect(ctx, t, c, pod)
	for i := range 10 {
		stopStart(ctx, t, n, whole)
		cluster.Pod(ctx, t, n, fmt.Sprintf("p%d", i)) // the rules have been looked at by then
	}
	n.Program = copyOf(t, n)
	stopStart(ctx, t, n, whole)
	cluster.Pod(ctx, t, n, "upgraded")
	if now := cluster.WritingPasses(n); now != passes {
		t.Errorf("restarts that found everything in place made %d passes that wrote:\n%s", now-passes, n.Logs(5))
	}
	stopStart(ctx, t, n, whole, "--masq-random-fully=false")
	cluster.Eventually(ctx, t, repairTime, "the rule is another", func() error {
		if slices.Equal(rules(ctx, t, n), whole) {
			return fmt.Errorf("it is as before")
		}
		return nil
	})
	stopStart(ctx, t, n, nil)
	cluster.Eventually(ctx, t, repairTime, "the rule is back", func() error {
		if now := rules(ctx, t, n); !slices.Equal(now, whole) {
			return fmt.Errorf("there are %q", now)
		}
		return nil
	})
	finish()
}

// stopStart stops the daemon, looks whether all rules stand, and starts it again.
func stopStart(ctx context.Context, t *testing.T, n *lab.Node, whole []string, args ...string) {
	t.Helper()
	if err := n.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if now := rules(ctx, t, n); whole != nil && !slices.Equal(now, whole) {
		t.Errorf("after a stop there are %q, want %q", now, whole)
	}
	if err := n.Start(ctx, args...); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
}

// copyOf is the daemon's program at another place, as an upgrade has it.
func copyOf(t *testing.T, n *lab.Node) string {
	t.Helper()
	bin, err := lab.FindBin()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(bin, "tenured"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(n.Dir(), "tenured-2")
	if err := os.WriteFile(file, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// connectEvery is the pause between two new connections.
const connectEvery = 5 * time.Millisecond

// connect has the pod make new connections to the outside until the returned
// function is called; that one makes sure that none failed.
func connect(ctx context.Context, t *testing.T, c *cluster.Cluster, pod *lab.Pod) (finish func()) {
	t.Helper()
	var g sync.WaitGroup
	var mu sync.Mutex
	var failed []error
	made := 0
	stop := make(chan struct{})
	one := func() {
		seen, err := cluster.Ask(ctx, pod.NS, c.OutsideAddr(), port)
		if err == nil && seen != pod.Node.Addr {
			err = fmt.Errorf("seen as %s", seen)
		}
		mu.Lock()
		defer mu.Unlock()
		if made++; err != nil {
			failed = append(failed, err)
		}
	}
	g.Go(func() {
		tick := time.NewTicker(connectEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				g.Go(one)
			case <-stop:
				return
			}
		}
	})
	var once sync.Once
	end := func() { once.Do(func() { close(stop) }); g.Wait() }
	t.Cleanup(end)
	return func() {
		t.Helper()
		end()
		t.Logf("%d connections", made)
		if len(failed) > 0 {
			t.Errorf("%d of %d connections failed, the first: %v", len(failed), made, failed[0])
		}
	}
}
