package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestStartWhileSettling starts daemons while settle stands, which the operator
// puts on a born cluster. n1's overlay is open: it serves on. n2's has closed and
// its lease has ended: it has lost its subnet and says what it waits for. n3 is
// rebooted: so does it, without anything to lose. When settle is over both have
// the subnets that they had.
func TestStartWhileSettling(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, shortLease, "n1", "n2", "n3")
	n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	store := c.Store(t)
	ring := cluster.NewRing(ctx, t, n1)
	old := cluster.Pod(ctx, t, n2, "old")
	second, third := cluster.Status(ctx, t, n2), cluster.Status(ctx, t, n3)
	cut(ctx, t, n2, true)
	cluster.WaitState(ctx, t, n2, api.StateFenced)
	cluster.Eventually(ctx, t, 5*time.Second, "n2's lease has ended", func() error {
		if value, _, there := store.Holder(ctx, second.Subnet); there {
			return errStands(value)
		}
		return nil
	})

	const settle = 10 * time.Second
	began := time.Now()
	r := cluster.Run(ctx, t, c.Etcd.NS, "tenurectl", "init", "--after-loss", "--network-config="+shortLease, "--settle="+settle.String(), "--etcd-endpoints="+c.Etcd.URL())
	if r.Code != 0 || !strings.Contains(r.Out, "born before") || !strings.Contains(r.Out, "newcomers wait until settle ends, in 10s at most") {
		t.Errorf("init --after-loss on a born cluster: %s", r)
	}
	restartHere(ctx, t, n1)
	s := cluster.Wait(ctx, t, n1, "serves, and says that it settles", func(s *api.Status) bool {
		return s.State == api.StateHeld && s.Ready && cluster.HasProblem(s, "store-went-back")
	})
	if s.Subnet != ring.Before[0].Subnet || s.Lease.ID != ring.Before[0].Lease.ID {
		t.Errorf("n1 holds %s under %s, it held %s under %s", s.Subnet, s.Lease.ID, ring.Before[0].Subnet, ring.Before[0].Lease.ID)
	}
	says(ctx, t, n1, 0)
	cluster.Pod(ctx, t, n1, "young")

	restartHere(ctx, t, n2)
	cut(ctx, t, n2, false)
	s = cluster.WaitState(ctx, t, n2, api.StateLost)
	if s.Ready || len(s.Stranded) != 1 || s.Stranded[0].Address != old.IP.String() {
		t.Errorf("n2: ready %t, stranded %v", s.Ready, s.Stranded)
	}
	says(ctx, t, n2, api.CodeNotReadyLimited, "settling", second.Subnet)

	if err := n3.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n3.Start(ctx); err != nil {
		t.Fatal(err)
	}
	waitsAs(ctx, t, n3, "settling")
	says(ctx, t, n3, api.CodeNotReady, "settling")

	for n, was := range map[*lab.Node]*api.Status{n2: second, n3: third} {
		s := cluster.WaitState(ctx, t, n, api.StateHeld)
		if waited := time.Since(began); s.Subnet != was.Subnet || len(s.Stranded) != 0 || waited < settle-time.Second {
			t.Errorf("%s holds %s after %s, stranded %v; it held %s", n.Host, s.Subnet, waited, s.Stranded, was.Subnet)
		}
		says(ctx, t, n, 0)
	}
	cluster.WaitPeers(ctx, t, n1, n2, n3)
	cluster.Wait(ctx, t, n1, "is well", func(s *api.Status) bool { return cluster.Well(s) })
	ring.Whole(ctx, t)
	if err := lab.WaitPing(ctx, old, ring.Pods[0].IP); err != nil {
		t.Error(err)
	}
}

// says waits until STATUS answers with the code, 0 for well, and all the words.
func says(ctx context.Context, t *testing.T, n *lab.Node, code uint, words ...string) {
	t.Helper()
	cluster.Eventually(ctx, t, 5*time.Second, "STATUS of "+n.Host, func() error {
		a, err := n.CNI(ctx, lab.CNICall{Verb: "STATUS"})
		if err != nil {
			t.Fatal(err)
		}
		if cluster.Code(a) != code {
			return errStands(string(a.Stdout))
		}
		for _, w := range words {
			if !strings.Contains(a.Err.Msg, w) {
				return errStands(a.Err.Msg + ", without " + w)
			}
		}
		return nil
	})
}

// errStands is what stands where something else should.
type errStands string

func (e errStands) Error() string { return string(e) }
