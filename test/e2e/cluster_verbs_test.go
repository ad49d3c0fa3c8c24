package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// fourSubnets has one for each of three nodes, and one more.
const fourSubnets = `{"Network":"10.5.0.0/22","SubnetLen":24,"LeaseTTL":"20s"}`

// operator reaches the cluster as root on a node by its socket, and from elsewhere
// by etcd flags.
type operator struct {
	t      *testing.T
	c      *cluster.Cluster
	socket *lab.Node
}

func (w operator) bySocket(ctx context.Context, args ...string) cluster.Ran {
	w.t.Helper()
	return cluster.Run(ctx, w.t, w.socket, "tenurectl", append(args, "--socket="+w.socket.Socket)...)
}

func (w operator) byFlags(ctx context.Context, args ...string) cluster.Ran {
	w.t.Helper()
	return cluster.Run(ctx, w.t, w.c.Etcd.NS, "tenurectl", append(args, "--etcd-endpoints="+w.c.Etcd.URL())...)
}

// must runs a verb both ways, which has to end with the code and to print, or
// say, the text each time.
func (w operator) must(ctx context.Context, code int, text string, args ...string) {
	w.t.Helper()
	for way, r := range map[string]cluster.Ran{"socket": w.bySocket(ctx, args...), "flags": w.byFlags(ctx, args...)} {
		if r.Code != code || !strings.Contains(r.Out+r.Said, text) {
			w.t.Errorf("%v, by %s: %s, want exit code %d and %q", args, way, r, code, text)
		}
	}
}

// object runs a verb, which has to succeed, for what it prints as JSON and as YAML.
func object[T any](ctx context.Context, t *testing.T, run func(context.Context, ...string) cluster.Ran, args ...string) T {
	t.Helper()
	var v T
	for form, decode := range map[string]func([]byte) error{
		"yaml": func(b []byte) error { return yaml.UnmarshalStrict(b, new(T)) },
		"json": func(b []byte) error { return json.Unmarshal(b, &v) },
	} {
		r := run(ctx, append(args, "-o", form)...)
		if r.Code != 0 {
			t.Fatalf("%v -o %s: %s", args, form, r)
		}
		if err := decode([]byte(r.Out)); err != nil {
			t.Fatalf("%v -o %s: %v: %s", args, form, err, r.Out)
		}
	}
	return v
}

// TestClusterVerbs is an operator's round through a cluster, each verb through a
// node's socket and from a machine that has only etcd's address.
func TestClusterVerbs(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, fourSubnets, "n1", "n2")
	n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.AddNode(ctx, t, "n3")
	w := operator{t, c, n1}
	first, second := cluster.Status(ctx, t, n1).Subnet, cluster.Status(ctx, t, n2).Subnet

	seesLeases(ctx, w, first, second)
	if m := object[api.ClusterMap](ctx, t, w.bySocket, "map"); m.Counts != (api.SubnetCounts{Total: 4, Held: 2, Free: 2, Mine: 1}) {
		t.Errorf("the map counts %+v", m.Counts)
	}
	w.must(ctx, 0, "10.5.0.0  ", "map")
	w.must(ctx, 0, first, "history", "n1")
	w.must(ctx, 0, "the cluster was born before", "init", "--network-config", fourSubnets)
	told := follow(ctx, t, n1, second)

	// A reservation is for one node, and that one takes it.
	third := ""
	for _, s := range []string{"10.5.0.0/24", "10.5.1.0/24", "10.5.2.0/24", "10.5.3.0/24"} {
		if s != first && s != second {
			third = s
		}
	}
	w.must(ctx, 0, third, "reserve", third, "n3")
	w.must(ctx, 1, "--later", "reserve", second, "n3")
	w.must(ctx, 2, "not a subnet", "reserve", "10.9.0.0/24", "n3")
	cluster.Start(ctx, t, n3)
	if s := cluster.Status(ctx, t, n3).Subnet; s != third {
		t.Errorf("n3 holds %s, %s is reserved for it", s, third)
	}
	if r := w.bySocket(ctx, "unreserve", third); r.Code != 0 {
		t.Errorf("unreserve: %s", r)
	}
	w.must(ctx, 1, "not reserved", "unreserve", third)

	changesConfig(ctx, w, third)

	// n3's machine is off, and n2 leaves.
	n3.Kill()
	if r := object[api.Released](ctx, t, once(w.byFlags, "release", "n3", "--machine-is-off"), "release", "n3", "--machine-is-off"); r.Subnet != third || r.Node != "n3" || r.Until != nil {
		t.Errorf("released %+v", r)
	}
	w.must(ctx, 2, "no node and no subnet", "release", "n3", "--force")
	left := cluster.Run(ctx, t, n2, "tenurectl", "leave", "-o", "json", "--socket="+n2.Socket)
	if left.Code != 0 || !strings.Contains(left.Out, fmt.Sprintf(`"subnet": %q`, second)) {
		t.Errorf("leave: %s", left)
	}
	told(`"state":"ended"`, `"why":"given up"`)
	w.must(ctx, 0, "given up", "history", second)

	// Without the daemon there is only the other way.
	n1.Kill()
	if r := w.bySocket(ctx, "leases"); r.Code != 3 || !strings.Contains(r.Said, "--etcd-endpoints") {
		t.Errorf("leases by the socket of no daemon: %s, want exit code 3", r)
	}
	if r := w.byFlags(ctx, "leases"); r.Code != 0 || !strings.Contains(r.Out, first) {
		t.Errorf("leases by flags: %s", r)
	}
	c.Etcd.Kill()
	if r := w.byFlags(ctx, "reserve", third, "n3"); r.Code != 3 || !strings.Contains(r.Said, c.Etcd.URL()) {
		t.Errorf("reserve without etcd: %s, want exit code 3", r)
	}
}

// once makes a verb that can be done only once answer alike in every form: the
// first call does it in JSON, and what it printed is given for both.
func once(run func(context.Context, ...string) cluster.Ran, args ...string) func(context.Context, ...string) cluster.Ran {
	var did *cluster.Ran
	return func(ctx context.Context, _ ...string) cluster.Ran {
		if did == nil {
			r := run(ctx, append(args, "-o", "json")...)
			did = &r
		}
		return *did // JSON is YAML too
	}
}

// seesLeases: both ways show both nodes; only by the socket one is "here".
func seesLeases(ctx context.Context, w operator, first, second string) {
	w.t.Helper()
	for way, run := range map[string]func(context.Context, ...string) cluster.Ran{"socket": w.bySocket, "flags": w.byFlags} {
		all := object[api.ClusterLeases](ctx, w.t, run, "leases")
		seen := map[string]api.ClusterLease{}
		for _, l := range all.Leases {
			seen[l.Node+" "+l.Subnet] = l
		}
		for name, subnet := range map[string]string{"n1": first, "n2": second} {
			l, ok := seen[name+" "+subnet]
			if !ok || l.State != api.SubnetHeld || l.Mine != (way == "socket" && name == "n1") || len(l.Odd) > 0 {
				w.t.Errorf("by %s: %s has %+v", way, name, l)
			}
			if l.TTLSeconds == nil || *l.TTLSeconds != 20 || *l.LastHeardSecondsAgo > 10 {
				w.t.Errorf("by %s: times of %s are %v", way, name, l.TTLSeconds)
			}
		}
	}
}

// follow runs history -f in the background and returns what waits until it has
// told a change in which all of the texts are.
func follow(ctx context.Context, t *testing.T, n *lab.Node, subnet string) func(texts ...string) {
	t.Helper()
	bin, err := lab.FindBin()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "followed")
	if _, err := n.Spawn(file, filepath.Join(bin, "tenurectl"), "history", "-f", subnet, "-o", "json", "--socket="+n.Socket); err != nil {
		t.Fatal(err)
	}
	told := func(texts ...string) {
		t.Helper()
		cluster.Eventually(ctx, t, 10*time.Second, "history -f tells", func() error {
			b, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(b)) {
				has := true
				for _, text := range texts {
					has = has && strings.Contains(line, text)
				}
				if has {
					return nil
				}
			}
			return fmt.Errorf("no line has %q: %s", texts, b)
		})
	}
	told(`"state":"held"`)
	return told
}

// changesConfig: what would orphan a holder is refused and reaches nobody; what
// is written is obeyed by the nodes.
func changesConfig(ctx context.Context, w operator, third string) {
	t := w.t
	t.Helper()
	w.must(ctx, 1, "ORPHANED", "config", "set", `{"Network":"10.5.4.0/22","SubnetLen":24,"LeaseTTL":"20s"}`, "--yes")
	w.must(ctx, 2, "host bits", "config", "set", `{"Network":"10.5.0.1/22"}`, "--yes")
	w.must(ctx, 2, "overlaps", "config", "set", `{"Network":"192.0.2.0/24","SubnetLen":28}`, "--yes")
	w.must(ctx, 2, "--yes", "config", "set", `{"Network":"10.5.0.0/16","SubnetLen":24,"LeaseTTL":"20s"}`) // nobody answers
	w.must(ctx, 0, "256 in all, 3 held, 0 reserved, 253 free", "config", "set", `{"Network":"10.5.0.0/16","SubnetLen":24,"LeaseTTL":"20s"}`, "--dry-run")
	for _, n := range w.c.Lab.Nodes() {
		if s := cluster.Status(ctx, t, n); s.Network != "10.5.0.0/22" || cluster.HasProblem(s, "config-refused") {
			t.Errorf("%s has %s with %v before anything was written", n.Host, s.Network, s.Problems)
		}
	}
	if r := w.bySocket(ctx, "config", "set", `{"Network":"10.5.0.0/16","SubnetLen":24,"LeaseTTL":"20s"}`, "--yes"); r.Code != 0 || !strings.Contains(r.Out, "is written") {
		t.Errorf("config set: %s", r)
	}
	for _, n := range w.c.Lab.Nodes() {
		cluster.Wait(ctx, t, n, "has the wider network", func(s *api.Status) bool { return s.Network == "10.5.0.0/16" && s.State == api.StateHeld })
	}
	r := cluster.RunEnv(ctx, t, w.c.Etcd.NS, []string{"EDITOR=sed -i s,20s,30s,"}, "tenurectl", "config", "edit", "--yes", "--etcd-endpoints="+w.c.Etcd.URL())
	if r.Code != 0 || !strings.Contains(r.Out, "LeaseTTL: 20s → 30s") {
		t.Errorf("config edit: %s", r)
	}
	for _, n := range w.c.Lab.Nodes() {
		cluster.Wait(ctx, t, n, "has the longer lease", func(s *api.Status) bool { return s.Lease != nil && s.Lease.TTLSeconds == 30 })
	}
	w.must(ctx, 0, `"LeaseTTL": "30s"`, "config", "get")
	w.must(ctx, 0, third, "leases")
}
