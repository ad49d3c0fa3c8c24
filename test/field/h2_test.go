package field

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// together is how many ADDs there are at once.
const together = 50

// TestH2 is containerd #3507 (plugins #366) and amazon-ecs-cni #90: the first
// pods, started in parallel, fail with "file exists" on the bridge or its
// address, for each plugin looks and then makes. Right is: one daemon makes the
// bridge. Of 50 ADDs at once without a bridge every one succeeds; there is one
// bridge with one gateway address then, and every pod reaches it.
func TestH2(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	gateway := inside(cluster.Status(ctx, t, n).Subnet, 1)
	var boxes []*lab.Pod
	for i := range together {
		boxes = append(boxes, cluster.Sandbox(ctx, t, n, fmt.Sprintf("b%d", i)))
	}
	for _, when := range []string{"first", "later"} {
		t.Run(when, func(t *testing.T) {
			answers := make([]*lab.CNIAnswer, together)
			cluster.Exec(ctx, t, n, "ip", "link", "del", cluster.Bridge)
			var g sync.WaitGroup
			for i, box := range boxes {
				g.Go(func() { answers[i], _ = n.CNI(ctx, cluster.CallFor("ADD", box, "eth0")) })
			}
			g.Wait()
			addresses := map[string]bool{}
			for i, a := range answers {
				if a == nil || a.Exit != 0 {
					t.Fatalf("ADD of %s: %+v", boxes[i].Pod, a)
				}
				addresses[cluster.Result(t, a).IPs[0].Address.String()] = true
			}
			if len(addresses) != together {
				t.Errorf("%d pods have %d addresses", together, len(addresses))
			}
			used(ctx, t, n, together)
			if names := bridges(ctx, t, n); len(names) != 1 || names[0] != cluster.Bridge {
				t.Errorf("bridges: %v", names)
			}
			onBridge(ctx, t, n, gateway.String()+"/24")
			for _, box := range boxes {
				if err := lab.Ping(ctx, box, gateway); err != nil {
					t.Error(err)
				}
				if a := cluster.Call(ctx, t, n, cluster.CallFor("DEL", box, "eth0")); a.Exit != 0 {
					t.Errorf("DEL: %v", a.Err)
				}
			}
		})
	}
}

func bridges(ctx context.Context, t *testing.T, n *lab.Node) (names []string) {
	t.Helper()
	var links []struct {
		Name string `json:"ifname"`
	}
	if err := json.Unmarshal([]byte(cluster.Exec(ctx, t, n, "ip", "-j", "link", "show", "type", "bridge")), &links); err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		names = append(names, l.Name)
	}
	return names
}
