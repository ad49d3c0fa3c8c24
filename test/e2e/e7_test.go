package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// countdown kills a process at a call of its own.
type countdown struct {
	mu         sync.Mutex
	pid        int // 0: nothing is counted
	seen, last int
}

// from counts from now on, and kills at the call of the number at, 0 for none.
func (c *countdown) from(pid, at int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pid, c.seen, c.last = pid, 0, at
}

// stop ends the counting, and says how many calls there were and whether one
// was the last.
func (c *countdown) stop() (seen int, killed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pid = 0
	return c.seen, c.last > 0 && c.seen >= c.last
}

// count is called ahead of each call.
func (c *countdown) count() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pid == 0 {
		return
	}
	if c.seen++; c.seen == c.last {
		_ = unix.Kill(c.pid, unix.SIGKILL)
	}
}

// fileCalls are those that open, make, write through, rename and remove files.
func fileCalls() string {
	return strings.Join(strings.Fields(fmt.Sprint(unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_MKDIRAT, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FTRUNCATE,
		unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_UNLINKAT)), ",")
}

// TestE7 is cilium #15446: an agent that is killed between two renames of its
// state loses the endpoint. Right is: killed ahead of whichever file-system call
// that an ADD or a DEL makes, counted one by one in the kernel, the next daemon
// finds the state before or after, no address both free and in use, and the call
// repeated succeeds. TestCrashAnywhere does so at the places that the source
// names, in all verbs.
func TestE7(t *testing.T) {
	ctx := cluster.Context(t, 3*time.Minute)
	var ways []crashWay
	for _, w := range crashes() {
		if w.name == "ADD" || w.name == "DEL" {
			ways = append(ways, w)
		}
	}
	c := cluster.Born(ctx, t, cluster.Network, "n0", "n1")
	var g sync.WaitGroup
	for i, w := range ways {
		g.Go(func() {
			t.Run(w.name, func(t *testing.T) {
				k := &counted{crash: newCrash(ctx, t, c.Nodes[i], w, "")}
				k.node.Kill()
				k.walk(ctx, t)
			})
		})
	}
	g.Wait()
}

// counted is a node whose daemon is killed at its file-system calls.
type counted struct {
	*crash
	gate *gate
}

// walk dies at the first call, at the second and so on, until the verb ends.
func (k *counted) walk(ctx context.Context, t *testing.T) {
	t.Helper()
	for at := 1; ; at++ {
		k.start(ctx, t)
		k.before(ctx, t, k.crash)
		k.gate.death.from(k.node.Pid(), at)
		k.act(ctx, t, k.crash)
		if seen, killed := k.gate.death.stop(); !killed {
			t.Logf("%s makes %d file-system calls", k.name, seen)
			if seen < 3 {
				t.Errorf("%s makes %d file-system calls: a file cannot be replaced by less", k.name, seen)
			}
			k.judge(ctx, t, "nowhere")
			return
		}
		if err := k.node.Wait(ctx); err == nil {
			t.Fatal("the daemon ended with code 0")
		}
		k.start(ctx, t)
		k.judge(ctx, t, fmt.Sprint("at file-system call ", at))
		k.node.Kill()
	}
}

// start starts a daemon behind a gate of its own.
func (k *counted) start(ctx context.Context, t *testing.T) {
	t.Helper()
	if slices.Contains(k.stopped(), k.node) {
		k.gate = newGate(t)
		k.gate.calls = fileCalls()
		if err := k.node.StartUnder(ctx, k.gate.wrapper(t)); err != nil {
			t.Fatal(err)
		}
	}
	cluster.WaitState(ctx, t, k.node, api.StateHeld)
}
