package field

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// TestD3 is antrea #8239: a collector that ran at the start freed an address in
// use, for the pod was added a moment before the restart and not yet in the
// list that the collector took for the truth. Right is: a pod whose ADD ended 50
// ms before the daemon is killed keeps its address, while the next daemon gives
// out all there are; nobody has one twice, and what comes after the last fails.
func TestD3(t *testing.T) {
	network, total := `{"Network":"10.5.0.0/16","SubnetLen":26}`, 61
	if cluster.Long(t) {
		network, total = cluster.Network, 253
	}
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.New(ctx, t, network, "n1")
	n := c.Nodes[0]
	h := &handedOut{all: map[netip.Addr]string{}}
	young := h.add(ctx, t, n, "young", "")
	<-time.After(50 * time.Millisecond)
	n.Kill()
	cluster.Start(ctx, t, n)
	several(t, total-1, func(i int) { h.add(ctx, t, n, fmt.Sprint("p", i), "") })
	box := cluster.Sandbox(ctx, t, n, "more")
	if a := cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0")); cluster.Code(a) != api.CodeNoAddress {
		t.Errorf("the ADD after the last address: %v, want code %d", a.Err, api.CodeNoAddress)
	}
	used(ctx, t, n, uint64(total))
	again := cluster.Result(t, cluster.Call(ctx, t, n, cluster.CallFor("ADD", young, "eth0"))).IPs[0].Address.IP.String()
	if h.all[netip.MustParseAddr(again)] != "young" {
		t.Errorf("the pod from before the restart has %s now", again)
	}
}
