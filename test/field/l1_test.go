package field

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestL1 is flannel #1668, #1834 and #808, firewalld #863 and #779: the rules
// are gone after a firewall has reloaded, and the loop that should repair them
// fails because the chain it wants to look for is missing. Right is: whatever
// is removed, one rule, a jump, a chain's content, a chain or everything, in
// each table, is back within 10 s, and when all is back nothing more is
// written.
func TestL1(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	pod := cluster.Pod(ctx, t, n, "p")
	cluster.Serve(ctx, t, c.Outside, port)
	whole := rules(ctx, t, n)
	if len(whole) < 8 {
		t.Fatalf("the node has these rules only: %q", whole)
	}
	for _, loss := range []struct{ name, commands string }{
		{"one rule", "-t nat -D TENURE-MASQ 1; -t filter -D TENURE-FWD 1"},
		{"jump", "-t nat -D POSTROUTING 1; -t filter -D FORWARD 1"},
		{"content of chains", "-t nat -F TENURE-MASQ; -t filter -F TENURE-FWD"},
		{"chains", "-t nat -D POSTROUTING 1; -t nat -F TENURE-MASQ; -t nat -X TENURE-MASQ; " +
			"-t filter -D FORWARD 1; -t filter -F TENURE-FWD; -t filter -X TENURE-FWD"},
		{"everything", "-t nat -F; -t nat -X; -t filter -F; -t filter -X; -t raw -F; -t raw -X"},
	} {
		t.Run(loss.name, func(t *testing.T) {
			for i, args := range strings.Split(loss.commands, "; ") {
				// The daemon may be faster than all but the first.
				if _, err := n.Exec(ctx, "iptables", append([]string{"-w"}, strings.Fields(args)...)...); err != nil && i == 0 {
					t.Fatal(err)
				}
			}
			cluster.Eventually(ctx, t, repairTime, "rules are back", func() error {
				if now := rules(ctx, t, n); !slices.Equal(now, whole) {
					return fmt.Errorf("there are\n%s\nwant\n%s", strings.Join(now, "\n"), strings.Join(whole, "\n"))
				}
				return nil
			})
			cluster.Seen(ctx, t, pod.NS, c.OutsideAddr(), port, n.Addr)
		})
	}
	passes := cluster.WritingPasses(n)
	cluster.Stays(ctx, t, 6*time.Second, "nothing is written", func() error { // a change would be seen within a second
		if now := cluster.WritingPasses(n); now != passes {
			return fmt.Errorf("%d more passes wrote:\n%s", now-passes, n.Logs(3))
		}
		return nil
	})
}

// rules are the lines of iptables-save that are ours, table by table.
func rules(ctx context.Context, t *testing.T, n *lab.Node) []string {
	t.Helper()
	var ours []string
	for line := range strings.Lines(cluster.Exec(ctx, t, n, "iptables-save")) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " [")
		if strings.HasPrefix(line, "*") || strings.Contains(line, "TENURE-") {
			ours = append(ours, line)
		}
	}
	return ours
}
