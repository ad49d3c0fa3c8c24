package field

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestG2 is flannel #418, #1353 and #510: there is no default route or no
// address yet when the daemon starts, for DHCP is slow or there is no way out,
// and it exits again and again, or lives on and does nothing. Right is: it
// waits, is not ready and says for what, by status and STATUS; once the network
// card is up and has an address it holds a subnet by itself, as the same
// process. It takes the interface that leads to etcd, which needs no default
// route, and none that was there before.
func TestG2(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	cluster.Start(ctx, t, n2)
	ip := func(line string) {
		t.Helper()
		cluster.Exec(ctx, t, n1, "ip", strings.Fields(line)...)
	}
	ip("link set eth0 down")
	ip("addr flush dev eth0")
	ip("link add other0 type veth peer name other1")
	ip("addr add 198.51.100.130/25 dev other0")
	ip("link set other0 up")
	ip("link set other1 up")
	start(ctx, t, n1, "--iface=")
	pid := n1.Pid()
	waits(ctx, t, n1)
	ip("link set eth0 up")
	slow := 3 * time.Second // as long as a look for the interface takes, and some more
	if cluster.Long(t) {
		slow = 20 * time.Second
	}
	cluster.Stays(ctx, t, slow, "the daemon waits", func() error {
		s, err := n1.Status(ctx)
		if err == nil && (s.Ready || s.Subnet != "") {
			err = fmt.Errorf("it is %+v", s)
		}
		return err
	})
	waits(ctx, t, n1)
	ip(fmt.Sprintf("addr add %s/24 dev eth0", n1.Addr))
	s := cluster.WaitState(ctx, t, n1, api.StateHeld)
	if routes := cluster.Exec(ctx, t, n1, "ip", "route", "show", "default"); routes != "" {
		t.Errorf("there is a default route: %s", routes)
	}
	if record, _, _ := c.Store(t).Holder(ctx, s.Subnet); !strings.Contains(record, fmt.Sprintf("%q", n1.Addr)) {
		t.Errorf("it announces %s, want %s in it", record, n1.Addr)
	}
	if n1.Pid() != pid || lives(n1) != nil {
		t.Errorf("the daemon was process %d and is %d: %v", pid, n1.Pid(), lives(n1))
	}
	cluster.WaitPeers(ctx, t, n1, n2)
	talks(ctx, t, cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p"))
	if s := cluster.Status(ctx, t, n1); unwell(s) {
		t.Errorf("problems: %+v", s.Problems)
	}
}

// waits wants the node to say, everywhere, that it has no underlay yet.
func waits(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	s := cluster.Wait(ctx, t, n, "says that it has no underlay", func(s *api.Status) bool {
		return cluster.HasProblem(s, "underlay-missing") && s.Reason != ""
	})
	if s.Ready || s.Subnet != "" {
		t.Errorf("without an underlay: ready %t, subnet %q", s.Ready, s.Subnet)
	}
	if a := cluster.Call(ctx, t, n, lab.CNICall{Verb: "STATUS"}); cluster.Code(a) != api.CodeNotReady || a.Err.Msg == "" {
		t.Errorf("STATUS: %v, want code 50 and a reason", a.Err)
	} else {
		t.Logf("it says %q, STATUS %q", s.Reason, a.Err.Msg)
	}
}
