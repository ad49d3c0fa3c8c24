package field

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestE9 is Azure CNI #638: the state file is deleted with pods running, and
// their addresses are given to others. Right is: everything that Tenure keeps on
// disk is deleted under 30 pods, whose interfaces Tenure, the reference bridge
// and ptp have made; the next daemon knows all their addresses by the kernel
// before it answers the first of 200 ADDs, and none is given twice. What it
// could not know the owner of is free again once no interface bears it.
func TestE9(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	h := &handedOut{all: map[netip.Addr]string{}}
	several(t, 24, func(i int) { h.add(ctx, t, n, fmt.Sprint("own", i), "") })
	var others []*lab.Pod
	for i := range 6 {
		others = append(others, h.add(ctx, t, n, fmt.Sprint("other", i), []string{"bridge", "ptp"}[i%2]))
	}
	n.Kill()
	for _, dir := range []string{n.RunDir, n.StateDir} {
		emptied(t, dir)
	}
	cluster.Start(ctx, t, n)
	used(ctx, t, n, 30)
	several(t, 200, func(i int) { h.add(ctx, t, n, fmt.Sprint("new", i), "") })
	used(ctx, t, n, 230)

	for _, p := range others[:4] { // two of each kind
		if err := p.Vanish(); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Eventually(ctx, t, collected, "the addresses that nobody bears are free", func() error {
		if got := cluster.Status(ctx, t, n).Addresses.Used; got != 226 {
			return fmt.Errorf("%d addresses are in use, want 226", got)
		}
		return nil
	})
}

// collected is two looks of the daemon for what is dead, and some time on a
// busy machine.
const collected = 20 * time.Second

// emptied removes what is in a directory.
func emptied(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

// several runs f for 0 to n-1, some at a time.
func several(t *testing.T, n int, f func(i int)) {
	t.Helper()
	const atOnce = 8
	var g sync.WaitGroup
	turns := make(chan int)
	for range atOnce {
		g.Go(func() {
			for i := range turns {
				f(i)
			}
		})
	}
	for i := range n {
		turns <- i
	}
	close(turns)
	g.Wait()
}

// handedOut is who has which address.
type handedOut struct {
	mu  sync.Mutex
	all map[netip.Addr]string
}

// add makes a pod by a plugin, empty for tenure itself, whose address must be
// nobody's else.
func (h *handedOut) add(ctx context.Context, t *testing.T, n *lab.Node, name, plugin string) *lab.Pod {
	t.Helper()
	box, err := n.Sandbox(ctx, name, lab.PodOptions{})
	if err != nil {
		t.Error(err)
		return nil
	}
	a, err := n.CNI(ctx, callOf(n, "ADD", box, plugin))
	if err != nil {
		t.Error(err)
		return box
	}
	if a.Exit != 0 {
		t.Errorf("ADD of %s: %v", name, a.Err)
		return box
	}
	addr := cluster.Result(t, a).IPs[0].Address.IP.String()
	h.note(t, netip.MustParseAddr(addr), name)
	return box
}

func (h *handedOut) note(t *testing.T, addr netip.Addr, name string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if other := h.all[addr]; other != "" {
		t.Errorf("%s was given to %s, and %s has it", addr, name, other)
	}
	h.all[addr] = name
}

// callOf is a call for eth0 of a plugin of the reference kind, with an address
// of tenure-ipam, or of tenure itself.
func callOf(n *lab.Node, verb string, box *lab.Pod, plugin string) lab.CNICall {
	call := cluster.CallFor(verb, box, "eth0")
	if plugin != "" {
		more := ""
		if plugin == "bridge" {
			more = `"bridge":"tenure0","isDefaultGateway":true,`
		}
		call.Plugin = "tools/" + plugin
		call.Config = fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":%q,"type":%q,%s"ipam":{"type":"tenure-ipam","tenure":{"socket":%q}}}`,
			strings.ToLower(plugin), plugin, more, n.Socket)
	}
	return call
}
