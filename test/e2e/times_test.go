package e2e

import (
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestVerbsAreTimed asks the metrics how often each part of each verb was done
// and how long that took: the parts lie within the call, and one does not count
// for another.
func TestVerbsAreTimed(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	if err := n.Start(ctx, lab.MetricsListen); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	pods := []*lab.Pod{cluster.Sandbox(ctx, t, n, "p1"), cluster.Sandbox(ctx, t, n, "p2")}
	began := time.Now()
	for _, verb := range []string{"ADD", "CHECK", "STATUS", "DEL"} {
		for _, p := range pods {
			if a := cluster.Call(ctx, t, n, cluster.CallFor(verb, p, "eth0")); a.Exit != 0 {
				t.Fatalf("%s: %v", verb, a.Err)
			}
		}
	}
	took := time.Since(began)
	times, err := n.Times(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for verb, parts := range map[string][]string{
		"ADD": {"ledger", "attach"}, "DEL": {"ledger", "attach"}, "CHECK": {"attach"}, "STATUS": nil,
	} {
		call := times[lab.VerbPart{Verb: verb, Part: "call"}]
		if call.Calls != len(pods) || call.Time <= 0 || call.Time > took {
			t.Errorf("%s: %+v, of %d calls that took %v with all others", verb, call, len(pods), took)
		}
		var within time.Duration
		for _, part := range parts {
			p := times[lab.VerbPart{Verb: verb, Part: part}]
			if p.Calls != len(pods) || p.Time <= 0 {
				t.Errorf("%s, %s: %+v, want %d calls", verb, part, p, len(pods))
			}
			within += p.Time
		}
		if within > call.Time {
			t.Errorf("the parts of %s took %v, the calls %v", verb, within, call.Time)
		}
	}
}
