package field

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestM4AddressMissing is row M4 for a node of which one address is missing when
// its daemon starts again: it has gone, or it is there and not one to announce.
// Right is: the other family has its peers, its pods and its repairs as ever, of
// the one that lacks its address nothing is taken away, and status names it.
func TestM4AddressMissing(t *testing.T) {
	for name, c := range map[string]struct {
		backend string
		gone    bool
	}{
		"gone": {"", true}, "deprecated": {"", false}, "deprecated, plain routes": {`,"Backend":{"Type":"host-gw"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := cluster.Context(t, 2*time.Minute)
			cl := cluster.BornIn(ctx, t, lab.Options{IPv6: true}, fmt.Sprintf(dualNetwork, c.backend), "n1", "n2", "n3")
			n1, n2, n3 := cl.Nodes[0], cl.Nodes[1], cl.Nodes[2]
			cluster.Start(ctx, t, n1, n2)
			cluster.WaitPeers(ctx, t, n1, n2)
			p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
			reaches(ctx, t, p1, p2.IP, p2.IP6)
			flows := []*cluster.Flow{cluster.StartFlow(ctx, t, p1.NS, p2.NS, p2.IP)}
			if !c.gone {
				flows = append(flows, cluster.StartFlow(ctx, t, p1.NS, p2.NS, p2.IP6))
			}
			var sent []int
			for _, f := range flows {
				f.Runs(ctx, t)
				sent = append(sent, f.Sent())
			}
			whole := func() {
				t.Helper()
				for i, f := range flows {
					f.Runs(ctx, t)
					f.Whole(ctx, t, sent[i])
				}
			}
			held := cluster.Status(ctx, t, n1)
			address := func(line string) {
				t.Helper()
				cluster.Exec(ctx, t, n1, "ip", strings.Fields(fmt.Sprintf("addr "+line, n1.Addr6.String()+"/64 dev eth0"))...)
			}

			stop(ctx, t, n1)
			if c.gone {
				address("del %s")
			} else {
				address("change %s preferred_lft 0")
			}
			if err := n1.Start(ctx); err != nil {
				t.Fatal(err)
			}
			s := cluster.Wait(ctx, t, n1, "holds, and names the address", func(s *api.Status) bool {
				return s.State == api.StateHeld && s.Ready && cluster.HasProblem(s, "underlay-missing")
			})
			if s.Subnet != held.Subnet || s.Lease.ID != held.Lease.ID || len(s.Problems) != 1 || !strings.Contains(s.Problems[0].Text, "eth0 has no IPv6 address") {
				t.Errorf("status %+v, want only that IPv6 lacks its address", s)
			}
			cluster.Start(ctx, t, n3)
			p3, q1 := cluster.Pod(ctx, t, n3, "p"), cluster.Pod(ctx, t, n1, "q")
			for _, p := range []*lab.Pod{p1, q1} {
				reaches(ctx, t, p, p2.IP, p3.IP)
			}
			reaches(ctx, t, q1, p1.IP6)
			third := cluster.Status(ctx, t, n3).Subnet
			cluster.Exec(ctx, t, n1, "ip", "route", "del", third)
			reaches(ctx, t, p1, p3.IP)
			whole()

			if c.gone {
				address("add %s nodad")
			} else {
				address("change %s preferred_lft forever")
			}
			cluster.Wait(ctx, t, n1, "is well", cluster.Well)
			cluster.WaitPeers(ctx, t, n1, n2, n3)
			for _, p := range []*lab.Pod{p1, q1} {
				reaches(ctx, t, p, p2.IP, p2.IP6, p3.IP, p3.IP6)
			}
			whole()
		})
	}
}

// reaches waits until a pod gets answers from all of the addresses.
func reaches(ctx context.Context, t *testing.T, from *lab.Pod, to ...netip.Addr) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, repairTime)
	defer cancel()
	for _, a := range to {
		if err := lab.WaitPing(ctx, from, a); err != nil {
			t.Fatal(err)
		}
	}
}

// TestM4AddressMissingAtBoot: after a boot nothing is in the kernel, and the
// family that has its address is made from nothing.
func TestM4AddressMissingAtBoot(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.BornIn(ctx, t, lab.Options{IPv6: true}, fmt.Sprintf(dualNetwork, ""), "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	cluster.Start(ctx, t, n1, n2)
	cluster.WaitPeers(ctx, t, n1, n2)
	p2, held := cluster.Pod(ctx, t, n2, "p"), cluster.Status(ctx, t, n1)
	if err := n1.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	// A host announces its card when it boots, which the lab's does not.
	cluster.Exec(ctx, t, c.LAN, "ip", "neigh", "flush", "dev", "lan0")
	cluster.Exec(ctx, t, n1, "ip", "addr", "del", n1.Addr6.String()+"/64", "dev", "eth0")
	if err := n1.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s := cluster.Wait(ctx, t, n1, "holds, and names the address", func(s *api.Status) bool {
		return s.State == api.StateHeld && s.Ready && cluster.HasProblem(s, "underlay-missing")
	})
	if s.Subnet != held.Subnet || s.Subnet6 != held.Subnet6 {
		t.Errorf("it holds %s and %s, had %s and %s", s.Subnet, s.Subnet6, held.Subnet, held.Subnet6)
	}
	p1, q1 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n1, "q")
	reaches(ctx, t, p1, p2.IP, q1.IP, q1.IP6)
	cluster.Exec(ctx, t, n1, "ip", "addr", "add", n1.Addr6.String()+"/64", "dev", "eth0", "nodad")
	cluster.Wait(ctx, t, n1, "is well", cluster.Well)
	reaches(ctx, t, p1, p2.IP6)
}
