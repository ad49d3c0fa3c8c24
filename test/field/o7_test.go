package field

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestO7 is flannel #829: certificates that were renewed on disk were not picked
// up, and after a year the lease was lost. Right is: while the files are half
// there a node connects with what it read last; the next connection after that
// uses the new pair and the new authority; a server that shows another chain
// first, or one that has expired, is named in words; and through all of it
// nobody's subnet, lease or traffic changes. When a certificate ends is in
// status and metrics.
func TestO7(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, 90*time.Second)
	w := embeddedIn(ctx, t, true, cluster.Network)
	n1, n2 := w.Nodes[0], w.Nodes[1]
	w.Nodes = w.Nodes[:2]
	w.start(ctx, n2, lab.MetricsListen)
	for _, n := range w.Nodes {
		cluster.WaitState(ctx, t, n, api.StateHeld)
	}
	cluster.WaitPeers(ctx, t, w.Nodes...)
	ring := cluster.NewRing(ctx, t, w.Nodes...)
	w.tellsWhenTheyEnd(ctx, n2)

	// Half a pair and half an authority, while the server is restarted.
	whole := w.halve(n2)
	w.restarts(ctx, ring)
	for file, b := range whole {
		w.write(file, b)
	}

	// The server has a new chain before the node has.
	w.newAuthority("second")
	w.issue(n1, false)
	w.trust(n1)
	w.restart(ctx, n1)
	cluster.Wait(ctx, t, n2, "says that it does not know the authority", func(s *api.Status) bool {
		return strings.Contains(problem(s, "etcd-unreachable").Text, "signed by an authority that is not in --etcd-cafile") && s.State == api.StateUnproven
	})
	w.trust(n2) // the authority alone: the server does not take the old certificate
	cluster.Wait(ctx, t, n2, "says that its own certificate is not taken", func(s *api.Status) bool {
		return strings.Contains(problem(s, "etcd-unreachable").Text, "does not take the certificate of --etcd-certfile")
	})
	w.issue(n2, false)
	w.goesOn(ctx, ring)

	// The server's has expired, and is renewed without a restart.
	w.issue(n1, true)
	w.restart(ctx, n1)
	for _, n := range w.Nodes {
		cluster.Wait(ctx, t, n, "says that the certificate has expired", func(s *api.Status) bool {
			return strings.Contains(problem(s, "etcd-unreachable").Text, "etcd's certificate has expired")
		})
	}
	if s := cluster.Status(ctx, t, n1); problem(s, "certificate-expires").Severity != api.SeverityError {
		t.Errorf("n1's own certificate has expired, its problems are %v", s.Problems)
	}
	w.issue(n1, false)
	w.goesOn(ctx, ring)
	ring.Whole(ctx, t)
}

func (w *embeddedCluster) restart(ctx context.Context, n *lab.Node) {
	w.t.Helper()
	if err := n.Stop(ctx); err != nil {
		w.t.Fatal(err)
	}
	w.start(ctx, n)
}

// halve cuts the files of a node in two, and returns what they were.
func (w *embeddedCluster) halve(n *lab.Node) map[string][]byte {
	w.t.Helper()
	whole := map[string][]byte{}
	for _, file := range []string{"ca-" + n.Host + ".crt", n.Host + ".crt", n.Host + ".key"} {
		b, err := os.ReadFile(filepath.Join(w.dir, file))
		if err != nil {
			w.t.Fatal(err)
		}
		whole[file] = b
		w.write(file, b[:len(b)/2])
	}
	return whole
}

func (w *embeddedCluster) write(file string, b []byte) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, file), b, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// tellsWhenTheyEnd: metrics have it for both files. In status it is when little
// of a certificate's life is left.
func (w *embeddedCluster) tellsWhenTheyEnd(ctx context.Context, n *lab.Node) {
	w.t.Helper()
	_, page, err := n.Page(ctx, "/metrics")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, flag := range []string{"etcd-cafile", "etcd-certfile"} {
		if !strings.Contains(page, `tenure_certificate_remaining_seconds{flag="`+flag+`"} `) {
			w.t.Errorf("no metric says when the certificate of --%s ends", flag)
		}
	}
}
