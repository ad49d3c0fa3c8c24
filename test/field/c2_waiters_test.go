package field

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// onlyOne is a pool of one subnet.
const onlyOne = `{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.1.0","LeaseTTL":"5s"}`

// TestC2Waiters: ten nodes wait for the one subnet there is. Right is: when it
// is given up one of them has it within 2 s, and the others do not fall upon
// etcd for it: most see that it is gone before they ask for anything, and go on
// as before.
func TestC2Waiters(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, onlyOne, "n1")
	n1 := c.Nodes[0]
	first := cluster.Status(ctx, t, n1)
	var waiters []*lab.Node
	for i := range 10 {
		waiters = append(waiters, c.AddNode(ctx, t, fmt.Sprintf("w%d", i)))
	}
	if err := cluster.Each(ctx, len(waiters), 3, func(ctx context.Context, i int) error { return waiters[i].Start(ctx) }); err != nil {
		t.Fatal(err)
	}
	for _, w := range waiters {
		cluster.Wait(ctx, t, w, "waits for a subnet", func(s *api.Status) bool {
			return s.State == api.StateWaiting && cluster.HasProblem(s, "no-free-subnet")
		})
	}

	before := asked(ctx, t, c)
	began := time.Now()
	if r := cluster.Run(ctx, t, n1, "tenurectl", "leave", "--socket="+n1.Socket); r.Code != 0 {
		t.Fatalf("tenurectl leave: %s", r)
	}
	var heir *lab.Node
	cluster.Eventually(ctx, t, time.Until(began.Add(2*time.Second)), "one of them is served", func() error {
		i := slices.IndexFunc(waiters, func(w *lab.Node) bool {
			s, err := w.Status(ctx)
			return err == nil && s.State == api.StateHeld && s.Subnet == first.Subnet
		})
		if i < 0 {
			return errors.New("all wait")
		}
		heir = waiters[i]
		return nil
	})
	t.Logf("%s was served %s after the command began", heir.Host, time.Since(began).Round(time.Millisecond))
	cluster.Stays(ctx, t, 3*time.Second, "the others wait on", func() error {
		for _, w := range waiters {
			s, err := w.Status(ctx)
			if err != nil {
				return err
			}
			if w != heir && (s.State != api.StateWaiting || !cluster.HasProblem(s, "no-free-subnet")) {
				return fmt.Errorf("%s is %s: %s", w.Host, s.State, s.Reason)
			}
		}
		return lives(heir)
	})
	now := asked(ctx, t, c)
	t.Logf("asked meanwhile, ten nodes together: leases %d, transactions %d, reads %d", now.grants-before.grants, now.txns-before.txns, now.ranges-before.ranges)
	if n := now.grants - before.grants; n < 1 || n > 5 {
		t.Errorf("ten waiting nodes asked for %d leases when one subnet was free, want a few", n)
	}
	// Each looks once for each of the two changes, and once because it waits.
	if n := now.ranges - before.ranges; n > 2*3*len(waiters) {
		t.Errorf("ten waiting nodes read %d times, want three times each or so", n)
	}
	for _, w := range waiters {
		if w == heir {
			continue
		}
		if s := cluster.Status(ctx, t, w); !strings.Contains(s.Reason, heir.Host) || strings.Contains(s.Reason, "(n1)") {
			t.Errorf("%s does not know who holds it now: %s", w.Host, s.Reason)
		}
	}
}

// questions are what etcd has been asked since it was started.
type questions struct{ grants, txns, ranges int }

func asked(ctx context.Context, t *testing.T, c *cluster.Cluster) questions {
	t.Helper()
	counts, err := c.Etcd.Requests(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return questions{counts["LeaseGrant"], counts["Txn"], counts["Range"]}
}

// sixSubnets is a pool of that many, under leases of 9 s.
const sixSubnets = `{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.6.0","LeaseTTL":"9s"}`

// TestC2Says: one subnet is held, one is a dead node's, one was released by
// force, and three are reserved for others. Right is: the node that waits says
// how many there are of each and by whom, and which lease ends next and when;
// it has that subnet then, and not before.
func TestC2Says(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, sixSubnets, "n1", "n2", "n3")
	n1, n2, n3, n4 := c.Nodes[0], c.Nodes[1], c.Nodes[2], c.AddNode(ctx, t, "n4")
	dead, gone := cluster.Status(ctx, t, n2), cluster.Status(ctx, t, n3)
	ctl := func(args ...string) {
		t.Helper()
		if r := cluster.Run(ctx, t, c.Etcd.NS, "tenurectl", append(args, "--etcd-endpoints="+c.Etcd.URL())...); r.Code != 0 {
			t.Fatalf("tenurectl %v: %s", args, r)
		}
	}
	held := []string{cluster.Status(ctx, t, n1).Subnet, dead.Subnet, gone.Subnet}
	for i, node := 1, "n9"; i <= 6; i++ {
		if subnet := fmt.Sprintf("10.5.%d.0/24", i); !slices.Contains(held, subnet) {
			ctl("reserve", subnet, node)
			node = map[string]string{"n9": "n8", "n8": "n9"}[node]
		}
	}

	// The dead one's lease is to end clearly before the others.
	n2.Kill()
	killed := time.Now()
	cluster.Wait(ctx, t, n1, "has renewed its lease since", func(s *api.Status) bool {
		return s.Lease != nil && s.Lease.LastProofSecondsAgo >= 0 && s.Lease.LastProofSecondsAgo < time.Since(killed).Seconds()-2
	})
	n3.Kill()
	ctl("release", "n3", "--force")
	if err := n4.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s := cluster.Wait(ctx, t, n4, "waits for a subnet", func(s *api.Status) bool { return cluster.HasProblem(s, "no-free-subnet") })
	for _, want := range []string{
		"of 6 in 10.5.0.0/16, 3 are held (n1, n2, nobody, released from n3 by force) and 3 more are reserved for others (n8, n9)",
		fmt.Sprintf(`the lease that ends next is that of %s, held by node "n2" at %s`, dead.Subnet, n2.Addr),
	} {
		if !strings.Contains(s.Reason, want) {
			t.Errorf("it says %q, want %q in it", s.Reason, want)
		}
	}
	_, after, _ := strings.Cut(s.Reason, "it ends at ")
	when, _, _ := strings.Cut(after, " ")
	ends, err := time.Parse(time.RFC3339, when)
	if err != nil {
		t.Fatalf("no time in %q: %v", s.Reason, err)
	}
	now := cluster.WaitState(ctx, t, n4, api.StateHeld)
	if now.Subnet != dead.Subnet {
		t.Errorf("n4 holds %s, want the dead node's %s", now.Subnet, dead.Subnet)
	}
	// etcd counts in whole seconds, and looks for ended leases twice in one.
	if d := time.Since(ends); d < -1500*time.Millisecond || d > 3*time.Second {
		t.Errorf("it was served %s after the time that it had named", d.Round(time.Millisecond))
	}
}
