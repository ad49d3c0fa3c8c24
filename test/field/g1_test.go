package field

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// The row's numbers: how many ADDs there are, and when the daemon comes.
const (
	early    = 20
	comeUp   = 8 * time.Second
	addBound = 12 * time.Second // 10 s of waiting, and some for the work
)

// TestG1 is kubernetes #70202 and #65526, flannel #2253, cilium #33391 and
// amazon-vpc-cni #2384: at boot every pod fails because the plugin runs before
// the daemon is up, until someone restarts things. Right is: ADD waits for the
// daemon. Twenty that began 8 s before it all succeed; where it never comes
// they end within their bound with code 11, try again later, and a text that
// names the daemon and its socket.
func TestG1(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	late, never := c.Nodes[0], c.Nodes[1]
	var boxes []*lab.Pod
	for i := range early {
		boxes = append(boxes, cluster.Sandbox(ctx, t, late, fmt.Sprintf("early%d", i)))
	}
	lost := cluster.Sandbox(ctx, t, never, "lost")

	answers := make([]*lab.CNIAnswer, early)
	var none *lab.CNIAnswer
	var noneTook time.Duration
	var g sync.WaitGroup
	began := time.Now()
	for i, box := range boxes {
		g.Go(func() { answers[i] = cluster.Call(ctx, t, late, cluster.CallFor("ADD", box, "eth0")) })
	}
	g.Go(func() {
		none = cluster.Call(ctx, t, never, cluster.CallFor("ADD", lost, "eth0"))
		noneTook = time.Since(began)
	})
	select {
	case <-time.After(comeUp):
	case <-ctx.Done():
	}
	if err := late.Start(ctx); err != nil {
		t.Fatal(err)
	}
	g.Wait()

	addresses := map[string]bool{}
	for _, a := range answers {
		addresses[cluster.Result(t, a).IPs[0].Address.String()] = true
	}
	if len(addresses) != early {
		t.Errorf("%d ADDs have %d addresses: %v", early, len(addresses), addresses)
	}
	used(ctx, t, late, early)
	if cluster.Code(none) != api.CodeTryAgain || !strings.Contains(none.Err.Error(), never.Socket) || !strings.Contains(none.Err.Error(), "tenured") {
		t.Errorf("ADD where no daemon comes: %v, want code 11, the daemon and %s", none.Err, never.Socket)
	}
	if noneTook > addBound {
		t.Errorf("ADD where no daemon comes took %s", noneTook)
	}
}
