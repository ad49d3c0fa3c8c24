package field

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestH9 is plugins #858, cni #88 and amazon-vpc-cni #3628: an address that is
// used again is unreachable for ten seconds or for ever, for its neighbours go
// on with the MAC of the pod that had it. Right is: the first echo request that
// the node itself, a pod beside it and a pod of another node send to the new
// pod is answered within a second. The MAC follows from the address; where one
// of the two pods had asked for a MAC of its own, the new one is announced.
func TestH9(t *testing.T) {
	const mac = "02:00:00:00:00:42"
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	ask := map[string]lab.Execer{
		"the node": n1, "a pod beside it": cluster.Pod(ctx, t, n1, "sibling"), "a pod of another node": cluster.Pod(ctx, t, n2, "remote"),
	}
	first := cluster.Pod(ctx, t, n1, "first", lab.PodOptions{MAC: mac})
	ip := first.IP
	for i, next := range []lab.PodOptions{
		{Args: "IP=" + ip.String()},
		{IPs: []string{ip.String() + "/24"}, MAC: mac},
		{IPs: []string{ip.String() + "/24"}, MAC: "02:00:00:00:00:43"},
		{Args: "IP=" + ip.String()},
		{Args: "IP=" + ip.String()},
	} {
		answered(ctx, t, first, ask)
		if err := first.Del(ctx); err != nil {
			t.Fatal(err)
		}
		first = cluster.Pod(ctx, t, n1, fmt.Sprintf("next%d", i), next)
		if first.IP != ip {
			t.Fatalf("the next pod has %s, want %s", first.IP, ip)
		}
		answered(ctx, t, first, ask)
	}
}

// answered asks the pod once from everywhere at the same time.
func answered(ctx context.Context, t *testing.T, pod *lab.Pod, from map[string]lab.Execer) {
	t.Helper()
	var g sync.WaitGroup
	for name, at := range from {
		g.Go(func() {
			if err := lab.Ping(ctx, at, pod.IP); err != nil {
				t.Errorf("%s asks %s, which is %+v: %v", name, pod.Pod, pod.Result.Interfaces[2], err)
			}
		})
	}
	g.Wait()
}
