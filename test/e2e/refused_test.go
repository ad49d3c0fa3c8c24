package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// repair bounds the wait for what the daemon puts right by itself.
const repair = 10 * time.Second

// TestRefused starts a daemon on a kernel that does not take the fence's
// program. It holds nothing, says why, brings no overlay up, and goes on by
// itself once the kernel takes it; and what it then made is found by the next
// process, with etcd away.
func TestRefused(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	gate := newGate(t)
	gate.refuse.Store(&refusal{command: -1, errno: unix.EPERM})
	if err := n.StartUnder(ctx, gate.wrapper(t)); err != nil {
		t.Fatal(err)
	}
	refused(ctx, t, n, "operation not permitted")
	gate.refuse.Store(&refusal{command: bpfProgLoad, errno: unix.EINVAL})
	refused(ctx, t, n, "Linux 5.8")
	if pid := n.Pid(); gate.asked.Load() == 0 || pid == 0 {
		t.Errorf("the kernel refused %d calls of process %d", gate.asked.Load(), pid)
	}

	gate.refuse.Store(nil)
	before := cluster.WaitState(ctx, t, n, api.StateHeld)
	wantLink(ctx, t, n, true)
	if a := cluster.Call(ctx, t, n, lab.CNICall{Verb: "STATUS"}); a.Err != nil {
		t.Errorf("STATUS after the kernel has come round: %v", a.Err)
	}

	n.Kill()
	cut(ctx, t, n, true)
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	after := cluster.WaitState(ctx, t, n, api.StateUnproven)
	if after.Subnet != before.Subnet || after.Lease == nil || after.Lease.RemainingSeconds <= 0 {
		t.Errorf("the next process found %s with %+v, want %s and time left", after.Subnet, after.Lease, before.Subnet)
	}
}

// refused wants the node refused for a reason that has the word, and without
// an overlay.
func refused(ctx context.Context, t *testing.T, n *lab.Node, word string) {
	t.Helper()
	s := cluster.Wait(ctx, t, n, "is refused for "+word, func(s *api.Status) bool {
		return s.State == api.StateRefused && strings.Contains(s.Reason, word)
	})
	if s.Ready || s.Subnet != "" || s.Lease != nil || !strings.Contains(s.Reason, "fence") {
		t.Errorf("a refused node: ready %t, subnet %q, lease %+v, reason %q", s.Ready, s.Subnet, s.Lease, s.Reason)
	}
	if a := cluster.Call(ctx, t, n, lab.CNICall{Verb: "STATUS"}); cluster.Code(a) != api.CodeNotReady {
		t.Errorf("STATUS of a refused node: %v, want code 50", a.Err)
	}
	box := cluster.Sandbox(ctx, t, n, fmt.Sprintf("box-%d", len(word)))
	if a := cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0")); cluster.Code(a) != api.CodeTryAgain {
		t.Errorf("ADD on a refused node: %v, want code 11", a.Err)
	}
	if r := cluster.Run(ctx, t, n, "tenurectl", "status", "--socket="+n.Socket); r.Code != 1 || !strings.Contains(r.Out, word) {
		t.Errorf("tenurectl status of a refused node: %s, want exit code 1 and %q", r, word)
	}
	wantLink(ctx, t, n, false)
}

// wantLink wants the vxlan device up, or not there at all.
func wantLink(ctx context.Context, t *testing.T, n *lab.Node, up bool) {
	t.Helper()
	cluster.Eventually(ctx, t, repair, "vxlan device", func() error {
		out, err := n.Exec(ctx, "ip", "-br", "link", "show", "type", "vxlan")
		if err != nil {
			return err
		}
		if up != strings.Contains(out, "UP") || !up && out != "" {
			return errors.New("devices: " + out)
		}
		return nil
	})
}

// TestRefusedAfterHeld restarts a daemon into a kernel that does not take the
// program any more. What an earlier process left with its filters passes until
// its deadline; if the filters are gone, the device goes down.
func TestRefusedAfterHeld(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	pod, far := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	cluster.Serve(ctx, t, far.NS, port)
	flow := cluster.StartFlow(ctx, t, pod.NS, far.NS, far.IP)
	flow.Runs(ctx, t)

	n1.Kill()
	gate := newGate(t)
	gate.refuse.Store(&refusal{command: -1, errno: unix.EPERM})
	if err := n1.StartUnder(ctx, gate.wrapper(t)); err != nil {
		t.Fatal(err)
	}
	cluster.WaitState(ctx, t, n1, api.StateRefused)
	flow.Runs(ctx, t)
	cluster.Exec(ctx, t, n1, "tc", "qdisc", "del", "dev", device, "clsact")
	cluster.Eventually(ctx, t, repair, "the device without a fence is down", func() error { return isUp(ctx, n1, false) })
	flow.Ends(ctx, t, repair)

	gate.refuse.Store(nil)
	cluster.WaitState(ctx, t, n1, api.StateHeld)
	flow.Runs(ctx, t)
}

// TestRefusedUplink is the same with direct routes: the uplink is the host's, so
// it is the routes that go.
func TestRefusedUplink(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, `{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	pod, far := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	flow := cluster.StartFlow(ctx, t, pod.NS, far.NS, far.IP)
	flow.Runs(ctx, t)

	n1.Kill()
	gate := newGate(t)
	gate.refuse.Store(&refusal{command: -1, errno: unix.EPERM})
	if err := n1.StartUnder(ctx, gate.wrapper(t)); err != nil {
		t.Fatal(err)
	}
	cluster.WaitState(ctx, t, n1, api.StateRefused)
	flow.Runs(ctx, t)
	cluster.Exec(ctx, t, n1, "ip", "route", "add", "198.51.100.64/26", "via", "192.0.2.1", "proto", "90") // of another instance, say
	cluster.Exec(ctx, t, n1, "tc", "qdisc", "del", "dev", "eth0", "clsact")
	cluster.Eventually(ctx, t, repair, "the routes without a fence are gone", func() error {
		out, err := n1.Exec(ctx, "ip", "route", "show", "proto", "90", "dev", "eth0")
		if err == nil && !strings.HasPrefix(out, "198.51.100.64/26 ") || strings.Count(out, "\n") != 1 {
			return errors.New("routes: " + out)
		}
		return err
	})
	flow.Ends(ctx, t, repair)

	gate.refuse.Store(nil)
	cluster.WaitState(ctx, t, n1, api.StateHeld)
	flow.Runs(ctx, t)
}

// device is the vxlan device of the cluster's network.
const device = "tenure.1"

// isUp is nil if the device is as wanted.
func isUp(ctx context.Context, n *lab.Node, want bool) error {
	out, err := n.Exec(ctx, "ip", "-o", "link", "show", "dev", device)
	if err != nil {
		return err
	}
	if want != strings.Contains(out, ",UP") {
		return errors.New(out)
	}
	return nil
}

// TestRefusedInAnotherTime starts a daemon whose CLOCK_BOOTTIME is not the
// kernel's own: its deadlines would be off by a day.
func TestRefusedInAnotherTime(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	if err := n.StartUnder(ctx, []string{"unshare", "--time", "--boottime=86400"}); err != nil {
		t.Fatal(err)
	}
	refused(ctx, t, n, "time namespace")
}
