package field

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestO11 is etcd #9992 and #11309, and k3s #4787: the store's file has reached
// its quota, etcd raises its space alarm, and nothing can be written in the
// whole cluster. Right is: nodes that hold a subnet keep their lease and serve
// pods for as long as it lasts, also one whose daemon is started anew, which
// goes on under its live lease; both say that the store is full, and what to do.
// A new node waits, and says the same in words. Nobody asks etcd more often than
// usual. When the alarm is cleared the new node holds a subnet within seconds,
// and nobody speaks of it any more.
func TestO11(t *testing.T) {
	t.Parallel()
	rounds := 3
	if cluster.Long(t) {
		rounds = 10
	}
	ctx := cluster.Context(t, time.Minute+time.Duration(rounds)*ttl)
	c := cluster.New(ctx, t, cluster.ShortLease, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	far := cluster.Pod(ctx, t, n2, "far")
	flow := cluster.StartFlow(ctx, t, cluster.Pod(ctx, t, n1, "near").NS, far.NS, far.IP)
	flow.Runs(ctx, t)
	from := flow.Sent()
	first, second := cluster.Status(ctx, t, n1), cluster.Status(ctx, t, n2)

	spaceAlarm(ctx, t, c, pb.AlarmRequest_ACTIVATE)
	began := time.Now()
	restart(ctx, t, n2)
	n3 := c.AddNode(ctx, t, "n3")
	if err := n3.Start(ctx); err != nil {
		t.Fatal(err)
	}
	waitsFor(ctx, t, n3, "store is full")
	s := cluster.WaitState(ctx, t, n2, api.StateHeld)
	if s.Subnet != second.Subnet || s.Lease.ID != second.Lease.ID || s.Lease.Epoch != second.Lease.Epoch {
		t.Errorf("started anew, n2 holds %s under lease %s in epoch %d; it held %s under %s in %d",
			s.Subnet, s.Lease.ID, s.Lease.Epoch, second.Subnet, second.Lease.ID, second.Lease.Epoch)
	}
	for _, n := range []*lab.Node{n1, n2} {
		told := cluster.Wait(ctx, t, n, "names the alarm", func(s *api.Status) bool { return cluster.HasProblem(s, "etcd-space") })
		saysFull(t, told, "etcd-space", api.SeverityWarning)
	}
	told := cluster.Status(ctx, t, n3)
	saysFull(t, told, "etcd-refuses", api.SeverityError)
	noAddress(ctx, t, n3)

	grants, pods, lines := granted(ctx, t, c), 0, strings.Count(n3.Logs(10000), "\n")
	measured := time.Now()
	for ; time.Since(began) < time.Duration(rounds)*ttl; pods++ {
		for _, n := range []*lab.Node{n1, n2} {
			addresses(ctx, t, n, fmt.Sprintf("p%d", pods), cluster.Status(ctx, t, n).Subnet)
		}
		cluster.Stays(ctx, t, 500*time.Millisecond, "both hold", func() error {
			for n, was := range map[*lab.Node]*api.Status{n1: first, n2: second} {
				s, err := n.Status(ctx)
				if err != nil {
					return err
				}
				if s.State != api.StateHeld || !s.Ready || s.Lease.ID != was.Lease.ID || s.Subnet != was.Subnet {
					return fmt.Errorf("%s is %s, ready %t, with %s under %s: %s", n.Host, s.State, s.Ready, s.Subnet, s.Lease.ID, s.Reason)
				}
			}
			return lives(n3)
		})
	}
	if n, d := granted(ctx, t, c)-grants, time.Since(measured); n > int(d/(2*time.Second))+1 {
		t.Errorf("n3 asked for a lease %d times in %s, want once in a few seconds", n, d.Round(time.Millisecond))
	}
	if n := strings.Count(n3.Logs(10000), "\n") - lines; n > 2 {
		t.Errorf("n3 wrote %d lines meanwhile:\n%s", n, n3.Logs(n))
	}
	flow.Whole(ctx, t, from)

	spaceAlarm(ctx, t, c, pb.AlarmRequest_DEACTIVATE)
	cleared := time.Now()
	within(ctx, t, 7*time.Second, n3, "holds a subnet", func(s *api.Status) bool { return s.State == api.StateHeld })
	t.Logf("%d pods on each node under the alarm; the new node held a subnet %s after its end", pods, time.Since(cleared).Round(time.Millisecond))
	for _, n := range c.Lab.Nodes() {
		cluster.Wait(ctx, t, n, "is well", func(s *api.Status) bool { return s.State == api.StateHeld && len(s.Problems) == 0 })
	}
	cluster.WaitPeers(ctx, t, c.Lab.Nodes()...)
	flow.Whole(ctx, t, from)
}

// saysFull wants a problem that says in words that the store is full, and how to
// have it take writes again.
func saysFull(t *testing.T, s *api.Status, code, severity string) {
	t.Helper()
	for _, p := range s.Problems {
		if p.Code != code {
			continue
		}
		for _, fix := range []string{"compact", "defrag", "alarm disarm"} {
			if !strings.Contains(p.Fix, fix) {
				t.Errorf("%s: the fix %q does not name %q", s.Node, p.Fix, fix)
			}
		}
		if p.Severity != severity || !strings.Contains(p.Text, "store is full") {
			t.Errorf("%s: %s %q, want %s and the words", s.Node, p.Severity, p.Text, severity)
		}
		return
	}
	t.Errorf("%s does not say %s: %+v", s.Node, code, s.Problems)
}

// spaceAlarm raises or clears the alarm at etcd, as it does itself where its
// quota is reached.
func spaceAlarm(ctx context.Context, t *testing.T, c *cluster.Cluster, action pb.AlarmRequest_AlarmAction) {
	t.Helper()
	maintenance := pb.NewMaintenanceClient(c.Store(t).ActiveConnection())
	if _, err := maintenance.Alarm(ctx, &pb.AlarmRequest{Action: action, Alarm: pb.AlarmType_NOSPACE}); err != nil {
		t.Fatal(err)
	}
}

// granted is how often etcd has been asked for a lease since it was started.
func granted(ctx context.Context, t *testing.T, c *cluster.Cluster) int {
	t.Helper()
	counts, err := c.Etcd.Requests(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return counts["LeaseGrant"]
}
