package field

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

const (
	// orphans is how many pods go while there is no daemon.
	orphans = 10
	// delBound is how long a DEL may take then.
	delBound = 5 * time.Second
)

// TestF1 is cilium #22067 and #40931, antrea #829, #4326 and #3384, kube-ovn
// #4304 and whereabouts #546: while the daemon is down, or after it has
// restarted, DEL fails and pods stay in their last throes, or it succeeds and
// the address leaks. Right is: DEL succeeds within 5 s, as soon as it is safely
// on disk; the next daemon does what is queued before it serves the first ADD;
// the addresses are free, and cool down as any others. A daemon that has
// restarted knows its pods, and one that ends before them, as when the node
// shuts down, loses no DEL.
func TestF1(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	f := &without{n, filepath.Join(filepath.Dir(n.Socket), "del")}

	for name, end := range map[string]func(){
		"stopped": func() { stop(ctx, t, n) },
		"killed":  func() { n.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			pods := f.pods(ctx, t, name)
			end()
			for _, p := range pods[:orphans/2] { // as of a runtime that takes the namespace away first
				vanish(t, p)
			}
			f.deletes(ctx, t, pods...)
			f.deletes(ctx, t, pods[1:3]...)
			if queued := f.queued(t); len(queued) != orphans {
				t.Errorf("%d DELs are queued: %v, want %d", len(queued), queued, orphans)
			}
			box := cluster.Sandbox(ctx, t, n, name+"-next")
			var next *lab.CNIAnswer
			var g sync.WaitGroup
			g.Go(func() { next = cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0")) })
			start(ctx, t, n)
			g.Wait()
			ip := cluster.Result(t, next).IPs[0].Address.IP.String()
			used(ctx, t, n, 1)
			f.gone(ctx, t, pods)
			for _, p := range pods {
				if p.IP.String() == ip {
					t.Errorf("%s is given out again at once, it should cool down", ip)
				}
			}
			f.deletes(ctx, t, box)
			used(ctx, t, n, 0)
		})
	}
	t.Run("restarted between", func(t *testing.T) {
		pod := cluster.Pod(ctx, t, n, "between")
		stop(ctx, t, n)
		cluster.Start(ctx, t, n)
		f.deletes(ctx, t, pod)
		used(ctx, t, n, 0)
		f.gone(ctx, t, []*lab.Pod{pod})
	})
	t.Run("shut down before its pods", func(t *testing.T) {
		pods := f.pods(ctx, t, "down")
		ended := make(chan error, 1)
		go func() { ended <- n.Stop(ctx) }()
		f.deletes(ctx, t, pods...)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		cluster.Start(ctx, t, n)
		used(ctx, t, n, 0)
		f.gone(ctx, t, pods)
	})
}

// without is a node whose daemon comes and goes, and its queue of DELs.
type without struct {
	node  *lab.Node
	queue string
}

func (f *without) pods(ctx context.Context, t *testing.T, name string) (pods []*lab.Pod) {
	t.Helper()
	for i := range orphans {
		pods = append(pods, cluster.Pod(ctx, t, f.node, fmt.Sprintf("%s%d", name, i)))
	}
	return pods
}

// deletes has a DEL for each of the pods, all at once.
func (f *without) deletes(ctx context.Context, t *testing.T, pods ...*lab.Pod) {
	t.Helper()
	var g sync.WaitGroup
	for _, p := range pods {
		g.Go(func() {
			began := time.Now()
			if a, err := f.node.CNI(ctx, cluster.CallFor("DEL", p, "eth0")); err != nil || a.Exit != 0 || len(a.Stdout) > 0 {
				t.Errorf("DEL of %s: %v %+v", p.Pod, err, a)
			}
			if took := time.Since(began); took > delBound {
				t.Errorf("DEL of %s took %s", p.Pod, took)
			}
		})
	}
	g.Wait()
}

func (f *without) queued(t *testing.T) (names []string) {
	t.Helper()
	found, err := os.ReadDir(f.queue)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range found {
		names = append(names, e.Name())
	}
	return names
}

// gone makes sure that nothing is left of the pods.
func (f *without) gone(ctx context.Context, t *testing.T, pods []*lab.Pod) {
	t.Helper()
	if queued := f.queued(t); len(queued) > 0 {
		t.Errorf("still queued: %v", queued)
	}
	for _, p := range pods {
		if host := p.Result.Interfaces[1].Name; linkThere(ctx, f.node, host) {
			t.Errorf("%s's interface %s is still there", p.Pod, host)
		}
	}
}

func linkThere(ctx context.Context, n lab.Execer, name string) bool {
	_, err := cluster.FindLink(ctx, n, name)
	return err == nil
}

func vanish(t *testing.T, p *lab.Pod) {
	t.Helper()
	if err := p.Vanish(); err != nil {
		t.Fatal(err)
	}
}
