package field

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestM1 is plugins #59 and #102, flannel #936, cni #532 and kubernetes #78480:
// on a kernel without IPv6 every pod fails, for the lack of a setting that it
// does not need. Right is: IPv4 works in every part, out through masquerade, in
// through a port mapping and back to the pod itself; a config that asks for
// IPv6 is refused with the reason, and what runs goes on.
func TestM1(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	start := func(n *lab.Node) {
		t.Helper()
		without := []string{"unshare", "-m", "--propagation=slave", "sh", "-ec", `mount -t tmpfs none /proc/sys/net/ipv6; exec "$@"`, "sh"}
		if err := n.StartUnder(ctx, without); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.Nodes {
		start(n)
		cluster.WaitState(ctx, t, n, api.StateHeld)
	}
	cluster.WaitPeers(ctx, t, c.Nodes...)
	n1, n2 := c.Nodes[0], c.Nodes[1]
	if out := cluster.Exec(ctx, t, n1, "ls", fmt.Sprintf("/proc/%d/root/proc/sys/net/ipv6", n1.Pid())); out != "" {
		t.Fatalf("the daemon still sees %s", out)
	}
	p1 := cluster.Pod(ctx, t, n1, "p", lab.PodOptions{PortMappings: []lab.PortMapping{{HostPort: 8080, ContainerPort: port, Protocol: "tcp"}}})
	p2 := cluster.Pod(ctx, t, n2, "p")
	talks(ctx, t, p1, p2)
	cluster.Serve(ctx, t, p1.NS, port)
	cluster.Serve(ctx, t, c.Outside, port)
	cluster.Seen(ctx, t, p1.NS, c.OutsideAddr(), port, n1.Addr)
	cluster.Seen(ctx, t, p2.NS, p1.IP, port, p2.IP)
	if _, err := cluster.Ask(ctx, c.Outside, n1.Addr, 8080); err != nil {
		t.Errorf("through the port mapping: %v", err)
	}
	if _, err := cluster.Ask(ctx, p1.NS, n1.Addr, 8080); err != nil {
		t.Errorf("from the pod to itself through its port mapping: %v", err)
	}

	c.Store(t).Configure(ctx, `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`)
	newcomer := c.AddNode(ctx, t, "n3")
	start(newcomer)
	for _, n := range []*lab.Node{n1, newcomer} {
		s := cluster.Wait(ctx, t, n, "refuses the config", func(s *api.Status) bool { return cluster.HasProblem(s, "config-refused") })
		if text := fmt.Sprint(s.Problems); !strings.Contains(text, "IPv6") || s.Ready != (n == n1) {
			t.Errorf("%s: ready %t, problems %s, want the reason, and no more than before", n.Host, s.Ready, text)
		}
	}
	talks(ctx, t, p1, p2)
	if err := p1.Del(ctx); err != nil {
		t.Error(err)
	}
	cluster.Pod(ctx, t, n1, "again")
}
