package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestVerbs makes every CNI call as a runtime does, on one node.
func TestVerbs(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	n := cluster.New(ctx, t, cluster.Network, "n1").Nodes[0]
	for name, test := range map[string]func(context.Context, *testing.T, *lab.Node){
		"VERSION":       version,
		"STATUS":        status,
		"ADD again":     addAgain,
		"GC":            gc,
		"ADD elsewhere": addElsewhere,
	} {
		t.Run(name, func(t *testing.T) { test(ctx, t, n) })
	}
}

func versions() []string { return []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} }

func version(ctx context.Context, t *testing.T, n *lab.Node) {
	for _, plugin := range []string{"tenure", "tenure-ipam"} {
		a := cluster.Call(ctx, t, n, lab.CNICall{Plugin: plugin, Verb: "VERSION", Config: []byte(`{"cniVersion":"1.1.0"}`)})
		var got struct {
			Supported []string `json:"supportedVersions"`
		}
		if err := json.Unmarshal(a.Stdout, &got); err != nil || !slices.Equal(got.Supported, versions()) {
			t.Errorf("%s supports %v (%v), want %v", plugin, got.Supported, err, versions())
		}
	}
}

// status: 0 while held. 51 is in TestFence, 50 in TestBirth and test/field.
func status(ctx context.Context, t *testing.T, n *lab.Node) {
	if a := cluster.Call(ctx, t, n, lab.CNICall{Verb: "STATUS"}); a.Exit != 0 {
		t.Errorf("STATUS of a node that holds a subnet: %v", a.Err)
	}
}

func addAgain(ctx context.Context, t *testing.T, n *lab.Node) {
	box := cluster.Sandbox(ctx, t, n, "again")
	used := cluster.Status(ctx, t, n).Addresses.Used
	first := cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0"))
	cluster.Result(t, first)
	second := cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0"))
	if cluster.Result(t, second); string(first.Stdout) != string(second.Stdout) {
		t.Errorf("the second ADD answered\n%s, the first\n%s", second.Stdout, first.Stdout)
	}
	wantUsed(ctx, t, n, used+1)
	del(ctx, t, n, box)
	wantUsed(ctx, t, n, used)
}

// addElsewhere: the same container comes in a new sandbox while the old one
// is still there. It keeps its address, interface and record go with it.
func addElsewhere(ctx context.Context, t *testing.T, n *lab.Node) {
	old, box := cluster.Sandbox(ctx, t, n, "old"), cluster.Sandbox(ctx, t, n, "new")
	used := cluster.Status(ctx, t, n).Addresses.Used
	first := cluster.Result(t, cluster.Call(ctx, t, n, cluster.CallFor("ADD", old, "eth0")))
	call := cluster.CallFor("ADD", old, "eth0")
	call.Netns = box.Path()
	again := cluster.Result(t, cluster.Call(ctx, t, n, call))
	if first.IPs[0].Address.String() != again.IPs[0].Address.String() || again.Interfaces[2].Sandbox != box.Path() {
		t.Errorf("it had %v, and has %v in %s", first.IPs, again.IPs, again.Interfaces[2].Sandbox)
	}
	wantUsed(ctx, t, n, used+1)
	if _, err := cluster.FindLink(ctx, old, "eth0"); err == nil {
		t.Error("the old sandbox has its interface still")
	}
	if _, err := cluster.FindLink(ctx, box, "eth0"); err != nil {
		t.Errorf("the new sandbox: %v", err)
	}
	ledger := contents(t, []string{filepath.Join(filepath.Dir(n.Socket), "ledger.json")})
	if strings.Contains(ledger, old.Path()) || !strings.Contains(ledger, box.Path()) {
		t.Errorf("on record:\n%s\nwant the namespace %s", ledger, box.Path())
	}
	del(ctx, t, n, old)
	wantUsed(ctx, t, n, used)
}

// config is the plugin's configuration in a version, with more members.
func config(n *lab.Node, version, more string) []byte {
	return fmt.Appendf(nil, `{"cniVersion":%q,"name":"tenure","type":"tenure","tenure":{"socket":%q}%s}`, version, n.Socket, more)
}

func del(ctx context.Context, t *testing.T, n *lab.Node, box *lab.Pod) {
	t.Helper()
	if a := cluster.Call(ctx, t, n, cluster.CallFor("DEL", box, "eth0")); a.Exit != 0 {
		t.Errorf("DEL of %s: %v", box.Pod, a.Err)
	}
}

func wantUsed(ctx context.Context, t *testing.T, n *lab.Node, want uint64) {
	t.Helper()
	if got := cluster.Status(ctx, t, n).Addresses.Used; got != want {
		t.Errorf("%d addresses are in use, want %d", got, want)
	}
}

// gc: no list and null are no empty list, and remove nothing.
func gc(ctx context.Context, t *testing.T, n *lab.Node) {
	used := cluster.Status(ctx, t, n).Addresses.Used
	var boxes []*lab.Pod
	for i := range 3 {
		box := cluster.Sandbox(ctx, t, n, fmt.Sprintf("gc%d", i))
		cluster.Result(t, cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0")))
		boxes = append(boxes, box)
	}
	kept := fmt.Sprintf(`{"containerID":%q,"ifname":"eth0"}`, boxes[1].ContainerID())
	for _, step := range []struct {
		list string
		left uint64
	}{
		{``, 3},
		{`,"cni.dev/valid-attachments":null`, 3},
		{`,"cni.dev/valid-attachments":[` + kept + `]`, 1},
		{`,"cni.dev/attachments":[` + kept + `]`, 1},
		{`,"cni.dev/valid-attachments":[]`, 0},
	} {
		a := cluster.Call(ctx, t, n, lab.CNICall{Verb: "GC", Config: config(n, "1.1.0", step.list)})
		if a.Exit != 0 {
			t.Errorf("GC with %q: %v", step.list, a.Err)
		}
		wantUsed(ctx, t, n, used+step.left)
		_, err := cluster.FindLink(ctx, boxes[1], "eth0")
		if alive := err == nil; alive != (step.left > 0) {
			t.Errorf("after GC with %q the kept pod has its interface: %t", step.list, alive)
		}
		if _, err := cluster.FindLink(ctx, boxes[0], "eth0"); (err == nil) != (step.left == 3) {
			t.Errorf("after GC with %q the first pod has its interface: %t", step.list, err == nil)
		}
	}
}

// TestSocketRemoved: a daemon whose socket was removed by a cleaner of /run is
// not cut off from its callers for longer than a few seconds.
func TestSocketRemoved(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	n := cluster.New(ctx, t, cluster.Network, "n1").Nodes[0]
	pod, pid := cluster.Pod(ctx, t, n, "p"), n.Pid()
	if err := os.Remove(n.Socket); err != nil {
		t.Fatal(err)
	}
	del(ctx, t, n, pod) // meets nobody: it is queued
	cluster.Eventually(ctx, t, 20*time.Second, "the daemon listens again, and the DEL is done", func() error {
		s, err := n.Status(ctx)
		if err == nil && s.Addresses.Used != 0 {
			err = fmt.Errorf("%d addresses are in use", s.Addresses.Used)
		}
		return err
	})
	if names := entries(t, filepath.Join(filepath.Dir(n.Socket), "del")); len(names) != 0 || n.Pid() != pid {
		t.Errorf("queued %v; the daemon was %d and is %d", names, pid, n.Pid())
	}
	cluster.Pod(ctx, t, n, "next")
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	found, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range found {
		names = append(names, e.Name())
	}
	return names
}

// contents reads files into one text.
func contents(t *testing.T, files []string) string {
	t.Helper()
	var b strings.Builder
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s:\n%s\n", f, content)
	}
	return b.String()
}
