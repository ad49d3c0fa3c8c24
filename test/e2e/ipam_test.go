package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestReferenceBridge has the reference plugin bridge make the interface, on
// Tenure's own bridge, with an address from tenure-ipam: the pod reaches other
// nodes and the world, and its address is free after DEL.
func TestReferenceBridge(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	far := cluster.Pod(ctx, t, n2, "far")
	near := cluster.Pod(ctx, t, n1, "near") // makes sure that the bridge is there
	sandbox, err := n1.Sandbox(ctx, "ref", lab.PodOptions{})
	if err != nil {
		t.Fatal(err)
	}
	call := lab.CNICall{Plugin: "tools/bridge", Verb: "ADD", ContainerID: "ref", Netns: sandbox.Path(), IfName: "eth0",
		Config: fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"ref","type":"bridge","bridge":"tenure0","isDefaultGateway":true,
			"ipam":{"type":"tenure-ipam","tenure":{"socket":%q}}}`, n1.Socket)}
	if a := cluster.Call(ctx, t, n1, call); a.Exit != 0 {
		t.Fatalf("ADD: %v %s", a.Err, a.Stdout)
	}
	for _, to := range []*lab.Pod{near, far} {
		if err := lab.WaitPing(ctx, sandbox, to.IP); err != nil {
			t.Error(err)
		}
	}
	if err := lab.WaitPing(ctx, sandbox, c.OutsideAddr()); err != nil {
		t.Error(err)
	}
	if s := cluster.Status(ctx, t, n1); s.Addresses.Used != 2 {
		t.Errorf("%d addresses used, want 2", s.Addresses.Used)
	}
	call.Verb = "DEL"
	if a := cluster.Call(ctx, t, n1, call); a.Exit != 0 {
		t.Errorf("DEL: %v %s", a.Err, a.Stdout)
	}
	if s := cluster.Status(ctx, t, n1); s.Addresses.Used != 1 {
		t.Errorf("%d addresses used after DEL, want 1", s.Addresses.Used)
	}
}

// TestLostLedger takes the ledger away under living pods: it is made again from
// the interfaces before anybody is served, and no address is given twice.
func TestLostLedger(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n1 := c.Nodes[0]
	taken := map[string]bool{}
	for i := range 5 {
		taken[cluster.Pod(ctx, t, n1, fmt.Sprint("p", i)).IP.String()] = true
	}
	n1.Kill()
	if err := os.Remove(filepath.Join(n1.RunDir, "ledger.json")); err != nil {
		t.Fatal(err)
	}
	if err := n1.Start(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if ip := cluster.Pod(ctx, t, n1, fmt.Sprint("q", i)).IP.String(); taken[ip] {
			t.Errorf("%s was given to a second pod", ip)
		}
	}
	if s := cluster.Status(ctx, t, n1); s.Addresses.Used != 10 {
		t.Errorf("%d addresses used, want 10", s.Addresses.Used)
	}
}
