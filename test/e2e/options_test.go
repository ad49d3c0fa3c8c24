package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestFirewallOptions turns off each option about the firewall, at a restart:
// nothing of it is left, neither a chain nor a jump, and the others stay. Back
// on, everything is as it was.
func TestFirewallOptions(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	cluster.Pod(ctx, t, n, "p") // the rules are in by then
	whole := firewall(ctx, t, n)
	for _, chain := range []string{"TENURE-MASQ", "TENURE-FWD", "TENURE-RAW", "--random-fully"} {
		if !strings.Contains(whole, chain) {
			t.Fatalf("no %s among\n%s", chain, whole)
		}
	}
	for _, option := range []struct{ flag, goes string }{
		{"--ip-masq=false", "TENURE-MASQ"},
		{"--masq-random-fully=false", " --random-fully"},
		{"--forward-accept=false", "TENURE-FWD"},
	} {
		t.Run(option.flag, func(t *testing.T) {
			want := without(whole, option.goes)
			restartWith(ctx, t, n, option.flag)
			becomes(ctx, t, n, want)
			restartWith(ctx, t, n)
			becomes(ctx, t, n, whole)
		})
	}
	t.Run("--clamp-mss", func(t *testing.T) {
		restartWith(ctx, t, n, "--clamp-mss")
		cluster.Eventually(ctx, t, 10*time.Second, "segments are clamped", func() error {
			if now := firewall(ctx, t, n); strings.Count(now, "-j TENURE-MSS") != 1 || strings.Count(now, "-j TCPMSS") != 4 {
				return errors.New("there are\n" + now)
			}
			return nil
		})
		restartWith(ctx, t, n)
		becomes(ctx, t, n, whole)
	})
	restartWith(ctx, t, n, "--ip-masq=false", "--forward-accept=false")
	becomes(ctx, t, n, without(without(whole, "TENURE-MASQ"), "TENURE-FWD"))
}

// without is the rules less the lines of a chain, or less an option in one.
func without(rules, what string) string {
	if strings.HasPrefix(what, " ") {
		return strings.ReplaceAll(rules, what, "")
	}
	var b strings.Builder
	for line := range strings.Lines(rules) {
		if !strings.Contains(line, what) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// firewall is what of the node's rules bears our name.
func firewall(ctx context.Context, t *testing.T, n *lab.Node) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(cluster.Exec(ctx, t, n, "iptables-save")) {
		if line, _, _ = strings.Cut(strings.TrimSpace(line), " ["); strings.Contains(line, "TENURE-") {
			fmt.Fprintln(&b, line)
		}
	}
	return b.String()
}

func becomes(ctx context.Context, t *testing.T, n *lab.Node, want string) {
	t.Helper()
	cluster.Eventually(ctx, t, 10*time.Second, "rules are as wanted", func() error {
		if now := firewall(ctx, t, n); now != want {
			return errors.New("there are\n" + now + "want\n" + want)
		}
		return nil
	})
}

func restartWith(ctx context.Context, t *testing.T, n *lab.Node, args ...string) {
	t.Helper()
	if err := n.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(ctx, args...); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
}
