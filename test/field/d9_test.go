package field

import (
	"context"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestD9 is plugins #327 and #164: a second ADD for the same container leaks
// an address, and the DEL of one interface frees the address of the other,
// because the key lacks the interface's name. Right is: the second ADD answers
// with the same address, each interface has its own, a DEL frees its own only,
// and at the end nothing is left.
func TestD9(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	box := cluster.Sandbox(ctx, t, n, "box")
	add := func(ifName string) string {
		t.Helper()
		a := cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, ifName))
		return cluster.Result(t, a).IPs[0].Address.String()
	}
	del := func(ifName string, left uint64) {
		t.Helper()
		if a := cluster.Call(ctx, t, n, cluster.CallFor("DEL", box, ifName)); a.Exit != 0 {
			t.Errorf("DEL of %s: %v", ifName, a.Err)
		}
		used(ctx, t, n, left)
	}

	first := add("eth0")
	if again := add("eth0"); again != first {
		t.Errorf("the second ADD of eth0 answers %s, the first %s", again, first)
	}
	used(ctx, t, n, 1)
	if other := add("eth1"); other == first {
		t.Errorf("eth1 has %s, the address of eth0", other)
	}
	used(ctx, t, n, 2)

	del("eth1", 1)
	if link, err := cluster.FindLink(ctx, box, "eth0"); err != nil || len(link.Addrs) != 1 || link.Addrs[0] != first {
		t.Errorf("after DEL of eth1, eth0 is %+v (%v), want %s on it", link, err, first)
	}
	if again := add("eth0"); again != first {
		t.Errorf("after DEL of eth1, ADD of eth0 answers %s, want %s", again, first)
	}
	del("eth0", 0)
	del("eth0", 0)
	if _, err := cluster.FindLink(ctx, box, "eth0"); err == nil {
		t.Error("eth0 is still there")
	}
}

// used makes sure that so many addresses are on record.
func used(ctx context.Context, t *testing.T, n *lab.Node, want uint64) {
	t.Helper()
	if got := cluster.Status(ctx, t, n).Addresses.Used; got != want {
		t.Errorf("%d addresses are in use, want %d", got, want)
	}
}
