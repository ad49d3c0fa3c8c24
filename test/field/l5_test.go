package field

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// onceWaited is more than one wait for the lock takes, which is 5 s, and less
// than the three that the first pass once made.
const onceWaited = 12 * time.Second

// TestL5 is flannel #988, #950, #824 and #1514, kubespray #3192, kubernetes
// #46103 and talos #2251: while others hold the lock of iptables, or where its
// file cannot be had, masquerading is given up for good and nobody is told.
// Right is: status says that the rules are not in and why, names the lock, and
// they come as soon as it can be had. Only the legacy kind has a lock.
func TestL5(t *testing.T) {
	for _, trouble := range []struct {
		name  string
		begin func(t *testing.T, lock string) (end func() error)
		says  string
	}{
		{"held", holdLock, "xtables lock"},
		{"directory", lockDirectory, "lock file"},
		{"unlockable", unlockable, "lock file"},
	} {
		t.Run(trouble.name, func(t *testing.T) {
			t.Parallel() // each waits, most of the time
			ctx := cluster.Context(t, 2*time.Minute)
			c := cluster.Born(ctx, t, cluster.Network, "n1")
			n := c.Nodes[0]
			lock := filepath.Join(n.Dir(), "xtables", "lock")
			n.Env = append(legacyHost(t, n), "XTABLES_LOCKFILE="+lock)
			end := trouble.begin(t, lock)
			began := time.Now()
			cluster.Start(ctx, t, n)
			s := cluster.Wait(ctx, t, n, "says that the lock cannot be had", func(s *api.Status) bool {
				return strings.Contains(problem(s, "data-plane").Text, trouble.says)
			})
			if p := problem(s, "data-plane"); p.Severity != "error" || p.Since == "" || p.Fix == "" {
				t.Errorf("the problem is %+v", p)
			}
			if took := time.Since(began); took > onceWaited {
				t.Errorf("status said so after %s: the lock was waited for more than once", took)
			}
			if cluster.Long(t) {
				cluster.Stays(ctx, t, 30*time.Second-time.Since(began), "the problem stands", func() error { return nil })
			}
			if got := legacyRules(ctx, t, n); strings.Contains(got, "TENURE-MASQ") {
				t.Errorf("the rules are in all the same:\n%s", got)
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			cluster.Wait(ctx, t, n, "has no fault any more", func(s *api.Status) bool { return !cluster.HasProblem(s, "data-plane") })
			if got := legacyRules(ctx, t, n); !strings.Contains(got, "TENURE-MASQ") || !strings.Contains(got, "TENURE-FWD") {
				t.Errorf("no problem stands, and the rules are\n%s", got)
			}
			pod := cluster.Pod(ctx, t, n, "p")
			cluster.Serve(ctx, t, c.Outside, port)
			cluster.Seen(ctx, t, pod.NS, c.OutsideAddr(), port, n.Addr)
		})
	}
}

// holdLock holds the lock as another program would.
func holdLock(t *testing.T, lock string) func() error {
	t.Helper()
	if err := os.Mkdir(filepath.Dir(lock), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return f.Close
}

// lockDirectory is what a volume mount makes of a file that is missing.
func lockDirectory(t *testing.T, lock string) func() error {
	t.Helper()
	if err := os.MkdirAll(lock, 0o755); err != nil {
		t.Fatal(err)
	}
	return func() error { return os.Remove(lock) }
}

// unlockable leaves out the directory, so that no file can be made.
func unlockable(_ *testing.T, lock string) func() error {
	return func() error { return os.Mkdir(filepath.Dir(lock), 0o755) }
}

// legacyHost gives the node an iptables of the legacy kind, as its
// administrator may have chosen; it returns the environment for that.
func legacyHost(t *testing.T, n *lab.Node) []string {
	t.Helper()
	bin := filepath.Join(n.Dir(), "sbin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-save", "-restore"} {
		for name, leadsTo := range map[string]string{
			"iptables" + suffix:        "/usr/sbin/iptables-legacy" + suffix,
			"iptables-nft" + suffix:    "/usr/sbin/iptables-nft" + suffix,
			"iptables-legacy" + suffix: "/usr/sbin/iptables-legacy" + suffix,
		} {
			if err := os.Symlink(leadsTo, filepath.Join(bin, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return []string{"PATH=" + bin + ":/usr/sbin:/sbin:/usr/bin:/bin"}
}

func legacyRules(ctx context.Context, t *testing.T, n *lab.Node) string {
	t.Helper()
	return cluster.Exec(ctx, t, n, "iptables-legacy-save")
}

// problem is the one of that code, or an empty one.
func problem(s *api.Status, code string) api.Problem {
	for _, p := range s.Problems {
		if p.Code == code {
			return p
		}
	}
	return api.Problem{}
}
