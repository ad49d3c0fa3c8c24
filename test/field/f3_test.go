package field

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

const (
	hungAdds = 100
	// hungAdd and hungDel are what the documentation allows the plugin.
	hungAdd, hungDel = 30 * time.Second, 10 * time.Second
)

// TestF3 is containerd #4666, cni #567, kubernetes #65743, cri-o #6984 and
// containerd #9627: a plugin that never returns holds the runtime's lock, and
// the node goes NotReady for a reason that misleads. Right is: with a daemon
// that hangs each of 100 ADDs ends in time with "try again" and says who did
// not answer, a DEL succeeds and is kept for later, no process stays, and a
// daemon that goes on undoes or never begins what nobody waits for.
func TestF3(t *testing.T) {
	t.Parallel() // an ADD waits for half a minute
	ctx := cluster.Context(t, 2*time.Minute)
	n := cluster.New(ctx, t, cluster.Network, "n1").Nodes[0]
	gone := cluster.Pod(ctx, t, n, "gone")
	boxes := cluster.Sandboxes(ctx, t, n, "p", hungAdds)
	if err := n.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	g, during := errgroup.WithContext(ctx)
	g.Go(func() error {
		return cluster.Each(during, hungAdds, hungAdds, func(ctx context.Context, i int) error { return hungAddOf(ctx, n, boxes[i]) })
	})
	g.Go(func() error { return hungDelOf(during, n, gone) })
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if left := pluginsOf(t, n); len(left) != 0 {
		t.Errorf("processes that stay: %v", left)
	}
	if err := n.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	later := cluster.Pod(ctx, t, n, "later")
	cluster.Eventually(ctx, t, 20*time.Second, "nothing of the abandoned calls stays", func() error {
		return cluster.Only(ctx, n, later)
	})
	for _, box := range boxes {
		if addrs, err := cluster.PodAddrs(box, "eth0"); err != nil || len(addrs) != 0 {
			t.Errorf("%s, whose ADD failed, has %v (%v)", box.Pod, addrs, err)
		}
	}
	if err := later.Check(ctx); err != nil {
		t.Errorf("the later pod: %v", err)
	}
}

func hungAddOf(ctx context.Context, n *lab.Node, box *lab.Pod) error {
	began := time.Now()
	a, err := n.CNI(ctx, cluster.CallFor("ADD", box, "eth0"))
	if err != nil {
		return err
	}
	if took := time.Since(began); took > hungAdd {
		return fmt.Errorf("ADD of a hung daemon took %s", took)
	}
	if cluster.Code(a) != api.CodeTryAgain || !strings.Contains(a.Err.Msg, n.Socket) || len(a.Stderr) != 0 {
		return fmt.Errorf("ADD of a hung daemon: exit code %d, %s, %q, want code 11 and the daemon named", a.Exit, a.Stdout, a.Stderr)
	}
	return nil
}

func hungDelOf(ctx context.Context, n *lab.Node, pod *lab.Pod) error {
	began := time.Now()
	err := cluster.Delete(ctx, n, pod)
	if took := time.Since(began); took > hungDel {
		err = errors.Join(err, fmt.Errorf("DEL of a hung daemon took %s", took))
	}
	queued, wrong := os.ReadDir(filepath.Join(filepath.Dir(n.Socket), "del"))
	if len(queued) != 1 {
		err = errors.Join(err, wrong, fmt.Errorf("queued are %v, want one DEL", queued))
	}
	return err
}

// pluginsOf are the processes that a call of the node's has left. Not being
// able to read one says that it has ended.
func pluginsOf(t *testing.T, n *lab.Node) (left []string) {
	t.Helper()
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	netns := "CNI_NETNS=" + strings.TrimSuffix(n.Path(), n.Host)
	for _, path := range environs {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), netns) {
			left = append(left, filepath.Dir(path))
		}
	}
	return left
}
