package field

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// TestB7Member is the first experiment of the same reports: one member of three
// hangs for three TTLs, whichever carries the node's watch and keep-alives among
// them. Right is: no subnet is lost, and no deadline comes nearer than one
// renewal allows, because what the hung member does not answer is asked of
// another in good time.
func TestB7Member(t *testing.T) {
	ctx := cluster.Context(t, 3*time.Minute)
	c := cluster.BornOn(ctx, t, 3, cluster.ShortLease, "n1", "n2")
	cluster.Start(ctx, t, c.Nodes...)
	before := map[string]*api.Status{}
	for _, n := range c.Nodes {
		before[n.Host] = cluster.WaitState(ctx, t, n, api.StateHeld)
	}
	members := c.EtcdMembers()
	if !cluster.Long(t) { // one of them, another one each time
		i := cluster.Seed(t) % uint64(len(members))
		members = members[i : i+1]
	}
	for i, member := range members {
		if err := member.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		least := ttl
		cluster.Stays(ctx, t, 3*ttl, fmt.Sprintf("both nodes hold while member %d hangs", i+1), func() error {
			for _, n := range c.Nodes {
				if err := holds(ctx, n, before[n.Host]); err != nil {
					return err
				}
				s := cluster.Status(ctx, t, n)
				least = min(least, time.Duration(s.Lease.RemainingSeconds*float64(time.Second)))
			}
			return nil
		})
		t.Logf("member %d hung for %s: the nearest deadline was %s away", i+1, 3*ttl, least)
		if err := member.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
}
