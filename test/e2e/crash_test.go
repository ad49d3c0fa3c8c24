package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestCrashAnywhere kills a daemon at every place of the pod side that a call
// comes to, and starts it again: what the call was about is as before it or on
// record with its interface, the call repeated ends as if nothing had been, and
// a DEL leaves nothing. A pod that lives beside it keeps its address, which
// nobody else is given.
func TestCrashAnywhere(t *testing.T) {
	ctx := cluster.Context(t, 3*time.Minute)
	program := tenuredThatStops(ctx, t)
	var names []string
	for i := range crashes() {
		names = append(names, fmt.Sprintf("n%d", i))
	}
	c := cluster.Born(ctx, t, cluster.Network, names...)
	passed := &passages{all: podPlaces(t), by: map[string][]string{}}
	t.Run("by", func(t *testing.T) {
		// All at once: a daemon that starts mostly waits.
		var g sync.WaitGroup
		for i, w := range crashes() {
			g.Go(func() {
				t.Run(w.name, func(t *testing.T) { newCrash(ctx, t, c.Nodes[i], w, program).walk(ctx, t, passed) })
			})
		}
		g.Wait()
	})
	for _, place := range passed.all {
		if len(passed.by[place]) == 0 {
			t.Errorf("no call of the test comes to the place %q", place)
		}
	}
}

// passages are all places, and by which calls the daemon came there.
type passages struct {
	all []string
	mu  sync.Mutex
	by  map[string][]string
}

func (p *passages) note(place, way string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.by[place] = append(p.by[place], way)
}

// podPlaces reads the places out of the source of what an ADD goes through.
func podPlaces(t *testing.T) []string {
	t.Helper()
	return placesIn(t, "../../daemon/node/*.go", "../../daemon/attach/*.go", "../../ipam/*.go")
}

// crash is a node whose daemon is killed on one way.
type crash struct {
	crashWay
	node     *lab.Node
	triggers string   // directory
	witness  *lab.Pod // lives all the time
	pod      *lab.Pod // what the call is about
	other    *lab.Pod // the same container's later sandbox
}

func newCrash(ctx context.Context, t *testing.T, n *lab.Node, w crashWay, program string) *crash {
	t.Helper()
	k := &crash{crashWay: w, node: n, triggers: t.TempDir()}
	n.Program, n.Env = program, []string{"TENURE_STOP_AT=" + k.triggers}
	cluster.Start(ctx, t, n)
	k.witness = cluster.Pod(ctx, t, n, "witness")
	k.pod = cluster.Sandbox(ctx, t, n, "pod")
	k.other = cluster.Sandbox(ctx, t, n, "other")
	return k
}

// walk finds the places that the way comes to, and dies at each.
func (k *crash) walk(ctx context.Context, t *testing.T, passed *passages) {
	t.Helper()
	k.before(ctx, t, k)
	for _, place := range passed.all {
		k.arrange(t, place, "note")
	}
	k.act(ctx, t, k)
	cluster.Start(ctx, t, k.stopped()...)
	cluster.WaitState(ctx, t, k.node, api.StateHeld)
	var mine []string
	for _, place := range passed.all {
		if k.disarm(t, place) {
			mine = append(mine, place)
			passed.note(place, k.name)
		}
	}
	k.judge(ctx, t, "nowhere")
	for _, place := range mine {
		k.before(ctx, t, k)
		k.arrange(t, place, "kill")
		k.act(ctx, t, k)
		if !k.disarm(t, place) {
			t.Fatalf("the daemon did not come to the place %q once more", place)
		}
		if err := k.node.Wait(ctx); err == nil {
			t.Fatalf("killed %s the daemon ended with code 0", place)
		}
		cluster.Start(ctx, t, k.node)
		k.judge(ctx, t, place)
	}
}

// stopped is the node, if its daemon does not run.
func (k *crash) stopped() []*lab.Node {
	select {
	case <-k.node.Process().Done():
		return []*lab.Node{k.node}
	default:
		return nil
	}
}

func (k *crash) arrange(t *testing.T, place, how string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(k.triggers, place), []byte(how), 0o600); err != nil {
		t.Fatal(err)
	}
}

// disarm takes a trigger away; true if the daemon has done so.
func (k *crash) disarm(t *testing.T, place string) bool {
	t.Helper()
	err := os.Remove(filepath.Join(k.triggers, place))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err != nil
}

// judge looks at what a daemon that was killed at a place left, ends the call
// as a runtime would, and looks again.
func (k *crash) judge(ctx context.Context, t *testing.T, place string) {
	t.Helper()
	k.whole(ctx, t, "killed "+place)
	k.after(ctx, t, k)
	k.whole(ctx, t, "killed "+place+", then the call once more")
	for _, plugin := range []string{"", "tenure-ipam"} {
		k.must(ctx, t, plugin, "DEL", k.pod)
	}
	if left := k.whole(ctx, t, "killed "+place+", then DEL"); len(left) != 1 {
		t.Errorf("%s, killed %s: after DEL there are the records %v, want the one of the pod that lives", k.name, place, left)
	}
	if a := k.call(ctx, t, "", "CHECK", k.witness); a.Exit != 0 {
		t.Errorf("%s, killed %s: CHECK of the pod that lives: %v", k.name, place, a.Err)
	}
}

// entry is a record of the ledger.
type entry struct {
	ContainerID string
	Addresses   []string
	Host        string
	IPAM        bool
}

// whole says what does not fit together.
func (k *crash) whole(ctx context.Context, t *testing.T, when string) []entry {
	t.Helper()
	all, err := k.fits(ctx, t)
	if err != nil {
		t.Errorf("%s, %s: %v", k.name, when, err)
	}
	return all
}

// fits looks for records without an interface, interfaces without a record, and
// one address twice.
func (k *crash) fits(ctx context.Context, t *testing.T) ([]entry, error) {
	t.Helper()
	all, links := ledgerOf(t, k.node), hostEnds(ctx, t, k.node)
	seen := map[string]bool{}
	var errs []error
	for _, e := range all {
		for _, a := range e.Addresses {
			if seen[a] {
				errs = append(errs, fmt.Errorf("%s is on record twice", a))
			}
			seen[a] = true
		}
		if !e.IPAM && !slices.Contains(links, e.Host) {
			errs = append(errs, fmt.Errorf("%s has %v on record, and no interface %s", e.ContainerID, e.Addresses, e.Host))
		}
		links = slices.DeleteFunc(links, func(l string) bool { return l == e.Host })
	}
	if len(links) > 0 {
		errs = append(errs, fmt.Errorf("interfaces %v without a record", links))
	}
	if !slices.ContainsFunc(all, func(e entry) bool { return e.ContainerID == k.witness.ContainerID() }) {
		errs = append(errs, errors.New("the pod that lives is not on record"))
	}
	if s := cluster.Status(ctx, t, k.node); int(s.Addresses.Used) != len(all) {
		errs = append(errs, fmt.Errorf("status counts %d addresses, the file has %v", s.Addresses.Used, all))
	}
	return all, errors.Join(errs...)
}

// ledgerOf reads the records out of the node's file.
func ledgerOf(t *testing.T, n *lab.Node) []entry {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(n.RunDir, "ledger.json"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Allocations []entry }
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatalf("ledger: %v\n%s", err, b)
	}
	return doc.Allocations
}

// hostEnds are the host's ends of pod interfaces.
func hostEnds(ctx context.Context, t *testing.T, n *lab.Node) (names []string) {
	t.Helper()
	out, err := n.Exec(ctx, "ip", "-o", "link", "show", "type", "veth")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], "ten") {
			name, _, _ := strings.Cut(f[1], "@")
			names = append(names, name)
		}
	}
	return names
}

// call makes a call of the container's, with the namespace of a sandbox.
func (k *crash) call(ctx context.Context, t *testing.T, plugin, verb string, box *lab.Pod) *lab.CNIAnswer {
	t.Helper()
	call := cluster.CallFor(verb, box, "eth0")
	call.Plugin = plugin
	if box == k.other {
		call.ContainerID = k.pod.ContainerID()
	}
	valid := ""
	if verb == "GC" {
		call.ContainerID, call.Netns, call.IfName = "", "", ""
		valid = fmt.Sprintf(`,"cni.dev/valid-attachments":[{"containerID":%q,"ifname":"eth0"}]`, k.witness.ContainerID())
	}
	tenure := fmt.Sprintf(`"type":"tenure","tenure":{"socket":%q}`, k.node.Socket)
	if plugin != "" {
		tenure = fmt.Sprintf(`"type":"bridge","ipam":{"type":"tenure-ipam","tenure":{"socket":%q}}`, k.node.Socket)
	}
	call.Config = fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"tenure",%s%s}`, tenure, valid)
	return cluster.Call(ctx, t, k.node, call)
}

// must is a call that has to succeed.
func (k *crash) must(ctx context.Context, t *testing.T, plugin, verb string, box *lab.Pod) {
	t.Helper()
	if a := k.call(ctx, t, plugin, verb, box); a.Exit != 0 {
		t.Fatalf("%s: %s %s: %v", k.name, plugin, verb, a.Err)
	}
}

// sh runs commands that have to succeed.
func sh(ctx context.Context, t *testing.T, where lab.Execer, commands ...string) {
	t.Helper()
	for _, c := range commands {
		f := strings.Fields(c)
		if _, err := where.Exec(ctx, f[0], f[1:]...); err != nil {
			t.Fatal(err)
		}
	}
}
