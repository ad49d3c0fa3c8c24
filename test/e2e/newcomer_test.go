package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestBrokenFiveWays is what somebody does who has read README and nothing
// else: he breaks his node, one way after the other, and looks at status and
// doctor. Each break is named by one of them, with what to do about it, and
// after just that all is well again. (They are six by now.)
func TestBrokenFiveWays(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	// The daemon notices within a renewal that etcd has gone: every 5 s here.
	c := cluster.Born(ctx, t, `{"Network":"10.5.0.0/16","LeaseTTL":"20s"}`, "n1", "n2")
	b := newBreaker(ctx, t, c)
	for _, w := range b.ways(ctx) {
		whole := t.Run(w.name, func(t *testing.T) {
			w.breaks(t)
			fix := b.named(ctx, t, w.signs)
			if w.mends == nil {
				cluster.Exec(ctx, t, b.node, "sh", "-ec", fix)
			} else {
				w.mends(t)
			}
			b.well(ctx, t)
		})
		if !whole {
			return // one break at a time
		}
	}
}

// breaker is a node with a pod, whose peer has one too.
type breaker struct {
	*cluster.Cluster
	node      *lab.Node
	plugins   string
	near, far *lab.Pod
}

// breach is one of breaking a node.
type breach struct {
	name   string
	breaks func(t *testing.T)
	signs  []sign
	// mends does what the first sign's fix says; nil where that is a command
	// line and is run.
	mends func(t *testing.T)
}

// sign is what of a break is to be seen, in what status or doctor says.
type sign struct{ by, severity, code, text, fix string }

func newBreaker(ctx context.Context, t *testing.T, c *cluster.Cluster) *breaker {
	t.Helper()
	b := &breaker{Cluster: c, node: c.Nodes[0], plugins: pluginsOf(t)}
	b.start(ctx, t)
	cluster.Start(ctx, t, c.Nodes[1])
	cluster.WaitPeers(ctx, t, c.Nodes...)
	b.near, b.far = cluster.Pod(ctx, t, b.node, "near"), cluster.Pod(ctx, t, c.Nodes[1], "far")
	b.well(ctx, t)
	return b
}

// start starts the daemon as README's step 3 has it configured.
func (b *breaker) start(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := b.node.Start(ctx, "--cni-conf-file="+filepath.Join(b.node.CNIDir, "10-tenure.conflist")); err != nil {
		t.Fatal(err)
	}
	cluster.WaitState(ctx, t, b.node, api.StateHeld)
}

func (b *breaker) ways(ctx context.Context) []breach {
	other, ledger := filepath.Join(b.node.CNIDir, "05-other.conf"), filepath.Join(b.node.RunDir, "ledger.json")
	sh := func(line string) func(*testing.T) {
		return func(t *testing.T) {
			t.Helper()
			cluster.Exec(ctx, t, b.node, "sh", "-ec", line)
		}
	}
	// The daemon does not see it before it is done.
	unseen := func(line string) func(*testing.T) {
		return func(t *testing.T) {
			t.Helper()
			b.signal(t, syscall.SIGSTOP)
			defer b.signal(t, syscall.SIGCONT)
			cluster.Exec(ctx, t, b.node, "sh", "-ec", line)
		}
	}
	return []breach{
		{"etcd is stopped", func(t *testing.T) { succeeds(t, b.Etcd.Stop(ctx)) },
			[]sign{{"status", "error", "etcd-unreachable", "pods", "check that the endpoints"}, {"doctor", "error", "etcd-unreachable", "pods", "check that the endpoints"}},
			func(t *testing.T) { succeeds(t, b.Etcd.Start(ctx)) }},
		{"another configuration is first", sh(`echo '{"cniVersion":"0.4.0","name":"other","type":"bridge"}' >` + other),
			[]sign{{"doctor", "error", "cni-conf-order", "05-other.conf", "mv " + other}, {"status", "warning", "not-active-network", "05-other.conf", "mv " + other}}, nil},
		{"something else is called as the bridge", unseen("ip link del tenure0; ip link add tenure0 type veth peer name tenure-peer"),
			[]sign{{"status", "error", "foreign", "tenure0 is a veth and not a bridge", "ip link del tenure0"}, {"doctor", "error", "bridge", "tenure0", ""}},
			sh("ip link del tenure0")},
		{"a plugin of the conflist is missing", sh("rm " + b.plugins + "/portmap"),
			[]sign{{"doctor", "error", "cni-plugins", "portmap", b.plugins}}, sh("install -m 755 /dev/null " + b.plugins + "/portmap")},
		{"another vxlan device has VNI and port", unseen("ip link del tenure.1; ip link add others.1 type vxlan id 1 dstport 8472 local " + b.node.Addr.String() + " dev eth0; ip link set others.1 up"),
			[]sign{{"status", "error", "foreign", "others.1", "ip link del others.1"}, {"doctor", "error", "foreign", "others.1", "ip link del others.1"}},
			sh("ip link del others.1")},
		{"the ledger is spoilt", func(t *testing.T) { succeeds(t, os.WriteFile(ledger, []byte("{]"), 0o600)) },
			[]sign{{"doctor", "warning", "ledger", ledger, "systemctl restart tenured"}},
			func(t *testing.T) { succeeds(t, b.node.Stop(ctx)); b.start(ctx, t) }},
	}
}

func succeeds(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (b *breaker) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	succeeds(t, b.node.Signal(s))
}

// named waits until each sign is to be seen, and returns the fix of the first.
func (b *breaker) named(ctx context.Context, t *testing.T, signs []sign) (fix string) {
	t.Helper()
	cluster.Eventually(ctx, t, 20*time.Second, "the break is named", func() error {
		for i, s := range signs {
			code, all := b.look(ctx, t, s.by)
			f, ok := find(all, s)
			if !ok {
				return fmt.Errorf("%s does not say %+v, but %v", s.by, s, bad(all))
			}
			if want := exitWith(all); code != want || f.Fix == "" {
				return fmt.Errorf("exit code %d of %s, want %d, with %s", code, s.by, want, f)
			}
			if i == 0 {
				fix = f.Fix
			}
		}
		return nil
	})
	return fix
}

// exitWith is the exit code that findings lead to.
func exitWith(all []finding) int {
	for _, f := range all {
		if f.Severity == "error" {
			return 1
		}
	}
	return 0
}

func find(all []finding, s sign) (finding, bool) {
	for _, f := range all {
		if f.Code == s.code && f.Severity == s.severity && strings.Contains(f.Text+" "+f.Evidence, s.text) && strings.Contains(f.Fix, s.fix) {
			return f, true
		}
	}
	return finding{}, false
}

// look asks status or doctor.
func (b *breaker) look(ctx context.Context, t *testing.T, by string) (code int, all []finding) {
	t.Helper()
	if by == "doctor" {
		return doctor(ctx, t, b.node, b.plugins)
	}
	r := cluster.Run(ctx, t, b.node, "tenurectl", "status", "-o", "json", "--socket", b.node.Socket)
	var s struct {
		Problems []finding `json:"problems"`
	}
	if err := json.Unmarshal([]byte(r.Out), &s); err != nil {
		t.Fatalf("%v: %s", err, r)
	}
	return r.Code, s.Problems
}

// well waits until neither status nor doctor has anything to say, and the pods
// reach each other.
func (b *breaker) well(ctx context.Context, t *testing.T) {
	t.Helper()
	cluster.Eventually(ctx, t, 20*time.Second, "all is well", func() error {
		for _, by := range []string{"status", "doctor"} {
			if code, all := b.look(ctx, t, by); code != 0 || len(bad(all)) > 0 {
				return fmt.Errorf("%s: exit code %d, %v", by, code, bad(all))
			}
		}
		return lab.Ping(ctx, b.near.NS, b.far.IP)
	})
}
