package field

import (
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// TestD12 is calico/cni-plugin #908 and spiderpool #1045: a step of ADD after
// the first address fails, and that address leaks, or what was there before is
// taken away with it. Right is: an ADD whose interface cannot be made ends in
// one error with the counters as before; where the pod has its address from an
// earlier ADD, it keeps it. A family that is full is TestD12 of ipam.
func TestD12(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	box := cluster.Sandbox(ctx, t, n, "box")
	ip := func(line string) {
		t.Helper()
		cluster.Exec(ctx, t, box, "ip", strings.Fields(line)...)
	}
	fails := func(when string, left uint64) {
		t.Helper()
		for range 3 {
			if a := cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0")); cluster.Code(a) != api.CodeInterfaceExists {
				t.Errorf("ADD %s: %v, want code %d", when, a.Err, api.CodeInterfaceExists)
			}
		}
		used(ctx, t, n, left)
	}
	ip("link add eth0 type bridge")
	fails("of a pod that has an eth0", 0)
	ip("link del eth0")
	first := cluster.Result(t, cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0")))
	ip("link del eth0")
	ip("link add eth0 type bridge")
	fails("again, with another eth0 in its place", 1)
	ip("link del eth0")
	again := cluster.Result(t, cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0")))
	if was, is := first.IPs[0].Address.String(), again.IPs[0].Address.String(); was != is {
		t.Errorf("the pod has %s, it had %s", is, was)
	}
	if _, err := cluster.FindLink(ctx, n, first.Interfaces[1].Name); err != nil {
		t.Error(err)
	}
}
