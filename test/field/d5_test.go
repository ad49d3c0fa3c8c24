package field

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestD5 is whereabouts #176 and spiderpool #2526: a pod of a stable name comes
// again, and the collector, which goes by the name, frees the address of the new
// sandbox. Right is: of two sandboxes under one name in CNI_ARGS only the dead
// one's address is freed, by the collector and by its late DEL.
func TestD5(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	named := func(verb string, p *lab.Pod) lab.CNICall {
		call := cluster.CallFor(verb, p, "eth0")
		call.Args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=" + p.ContainerID()
		return call
	}
	dead, live := cluster.Sandbox(ctx, t, n, "dead"), cluster.Sandbox(ctx, t, n, "live")
	first := cluster.Result(t, cluster.Call(ctx, t, n, named("ADD", dead))).IPs[0].Address.String()
	second := cluster.Result(t, cluster.Call(ctx, t, n, named("ADD", live))).IPs[0].Address.String()
	if first == second {
		t.Fatalf("both sandboxes have %s", first)
	}
	if err := dead.Vanish(); err != nil {
		t.Fatal(err)
	}
	lives := func(when string) {
		t.Helper()
		used(ctx, t, n, 1)
		if again := cluster.Result(t, cluster.Call(ctx, t, n, named("ADD", live))).IPs[0].Address.String(); again != second {
			t.Errorf("%s the living sandbox has %s, had %s", when, again, second)
		}
		if _, err := cluster.FindLink(ctx, live, "eth0"); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	cluster.Eventually(ctx, t, collected, "one address is free", func() error {
		if got := cluster.Status(ctx, t, n).Addresses.Used; got > 1 {
			return fmt.Errorf("%d addresses are in use", got)
		}
		return nil
	})
	lives("after the collector")
	if a := cluster.Call(ctx, t, n, named("DEL", dead)); a.Exit != 0 {
		t.Errorf("DEL of the dead one: %v", a.Err)
	}
	lives("after the dead one's DEL")
}
