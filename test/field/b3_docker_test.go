package field

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestB3Docker is the same outage where docker is the one who uses the subnet:
// its bridge was made from subnet.env, the node is given another subnet, and
// docker knows nothing of it. Right is: the file has flannel's form and is
// replaced as a whole with the new subnet; the node holds that and serves pods,
// also when it is started anew or loses its subnet once more, for a bridge that
// was made for it is no fault of the config; status names the bridge, its
// address and the subnet that is held, for as long as the bridge does not
// follow and no longer. Docker that is started with what docker-opts prints is
// on the node's own bridge, where other nodes reach it; what is left there from
// before the next change is named too.
func TestB3Docker(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	far := cluster.Pod(ctx, t, n2, "far")
	cluster.Serve(ctx, t, far.NS, port)
	ip := func(line string) {
		t.Helper()
		cluster.Exec(ctx, t, n1, "ip", strings.Fields(line)...)
	}

	first := cluster.Status(ctx, t, n1)
	env := subnetEnv(t, n1, first)
	ip("link add docker0 type bridge")
	ip("addr add " + env["FLANNEL_SUBNET"] + " dev docker0")
	ip("link set docker0 up mtu " + env["FLANNEL_MTU"])
	mismatch(ctx, t, n1, api.SeverityError, "docker0", env["FLANNEL_SUBNET"], cluster.Bridge)

	second := robbed(ctx, t, c, n1, first)
	if now := subnetEnv(t, n1, second)["FLANNEL_SUBNET"]; now == env["FLANNEL_SUBNET"] {
		t.Errorf("subnet.env still says %s", now)
	}
	stands := func(s *api.Status) {
		t.Helper()
		mismatch(ctx, t, n1, api.SeverityError, "docker0", env["FLANNEL_SUBNET"], s.Subnet)
		if now := cluster.Status(ctx, t, n1); !now.Ready || cluster.HasProblem(now, "config-refused") {
			t.Errorf("with docker's bridge on a subnet of before: ready %t, %+v", now.Ready, now.Problems)
		}
		addresses(ctx, t, n1, "young", s.Subnet)
	}
	stands(second)
	restart(ctx, t, n1)
	stands(cluster.WaitState(ctx, t, n1, api.StateHeld))
	third := robbed(ctx, t, c, n1, second)
	stands(third)
	if r := cluster.Run(ctx, t, n1, "tenurectl", "status", "--socket="+n1.Socket); r.Code != 1 || !strings.Contains(r.Out, "bridge-mismatch") {
		t.Errorf("tenurectl status: %s", r)
	}

	// Docker is started anew.
	ip("link del docker0")
	matched(ctx, t, n1)
	container := docked(ctx, t, n1, third, ip)
	cluster.Serve(ctx, t, container.NS, port)
	cluster.Seen(ctx, t, container.NS, far.IP, port, inside(third.Subnet, 200))
	cluster.Seen(ctx, t, far.NS, inside(third.Subnet, 200), port, far.IP)
	// As long as a look takes.
	cluster.Stays(ctx, t, 3*time.Second, "a container on the bridge is no problem", func() error { return unmatched(ctx, n1) })

	fourth := robbed(ctx, t, c, n1, third)
	mismatch(ctx, t, n1, api.SeverityError, "vdock on "+cluster.Bridge, third.Subnet, fourth.Subnet)
	cluster.Stays(ctx, t, 3*time.Second, "the port does not follow", func() error {
		if unmatched(ctx, n1) == nil {
			return fmt.Errorf("%s holds %s, and nothing is said of vdock any more", n1.Host, fourth.Subnet)
		}
		return nil
	})
	ip("link del vdock")
	matched(ctx, t, n1)
}

// robbed takes the node's subnet away for good, and waits until it holds
// another.
func robbed(ctx context.Context, t *testing.T, c *cluster.Cluster, n *lab.Node, before *api.Status) *api.Status {
	t.Helper()
	store := c.Store(t)
	store.Reserve(ctx, before.Subnet, "n9")
	store.Revoke(ctx, before.Lease.ID)
	s := held(ctx, t, n, before.Subnet)
	cluster.Eventually(ctx, t, 5*time.Second, "subnet.env follows", func() error {
		b, err := os.ReadFile(filepath.Join(n.RunDir, "subnet.env"))
		if err == nil && !strings.Contains(string(b), "FLANNEL_SUBNET="+inside(s.Subnet, 1).String()+"/24\n") {
			err = fmt.Errorf("it is %q", b)
		}
		return err
	})
	return s
}

// subnetEnv reads the file as a program does that was made for flannel's, which
// writes these four lines for IPv4, and nothing else.
func subnetEnv(t *testing.T, n *lab.Node, s *api.Status) map[string]string {
	t.Helper()
	path := filepath.Join(n.RunDir, "subnet.env")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err != nil || st.Mode() != fs.FileMode(0o644) {
		t.Errorf("mode %v, %v, want one that docker's unit may read", st.Mode(), err)
	}
	env, lines := map[string]string{}, bufio.NewScanner(f)
	var names []string
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), "=")
		names, env[name] = append(names, name), value
	}
	if got := strings.Join(names, " "); got != "FLANNEL_NETWORK FLANNEL_SUBNET FLANNEL_MTU FLANNEL_IPMASQ" {
		t.Errorf("subnet.env has %s", got)
	}
	want := fmt.Sprintf("%s/24 in %s, %d true", inside(s.Subnet, 1), s.Network, s.MTU)
	if got := fmt.Sprintf("%s in %s, %s %s", env["FLANNEL_SUBNET"], env["FLANNEL_NETWORK"], env["FLANNEL_MTU"], env["FLANNEL_IPMASQ"]); got != want {
		t.Errorf("subnet.env says %q, want %q", got, want)
	}
	return env
}

// docked is a container as docker makes it that was started with what
// docker-opts prints: on the bridge, with an address of the CIDR, by hand.
func docked(ctx context.Context, t *testing.T, n *lab.Node, s *api.Status, ip func(string)) *lab.Pod {
	t.Helper()
	r := cluster.Run(ctx, t, n, "tenurectl", "docker-opts", "--output=json", "--socket="+n.Socket)
	var opts struct {
		Bridge    string
		FixedCIDR string `json:"fixed-cidr"`
		MTU       int
	}
	if err := json.Unmarshal([]byte(r.Out), &opts); err != nil || r.Code != 0 {
		t.Fatalf("docker-opts: %v, %s", err, r)
	}
	if opts.Bridge != cluster.Bridge || opts.FixedCIDR != s.Subnet || opts.MTU != s.MTU {
		t.Errorf("docker-opts says %+v, the node holds %s, MTU %d", opts, s.Subnet, s.MTU)
	}
	box := cluster.Sandbox(ctx, t, n, "docked")
	ip("link add vdock type veth peer name eth0 netns " + box.Path())
	ip(fmt.Sprintf("link set vdock master %s up mtu %d", opts.Bridge, opts.MTU))
	for _, line := range []string{
		fmt.Sprintf("addr add %s/24 dev eth0", inside(opts.FixedCIDR, 200)),
		fmt.Sprintf("link set eth0 up mtu %d", opts.MTU), "link set lo up",
		"route add default via " + inside(opts.FixedCIDR, 1).String(),
	} {
		cluster.Exec(ctx, t, box, "ip", strings.Fields(line)...)
	}
	return box
}

// mismatch waits until status says so, in these words.
func mismatch(ctx context.Context, t *testing.T, n *lab.Node, severity string, words ...string) {
	t.Helper()
	within(ctx, t, 5*time.Second, n, fmt.Sprintf("names %s of %q", severity, words), func(s *api.Status) bool {
		for _, p := range s.Problems {
			if p.Code != "bridge-mismatch" || p.Severity != severity || !strings.Contains(p.Fix, "docker-opts") {
				continue
			}
			all := true
			for _, w := range words {
				all = all && strings.Contains(p.Text, w)
			}
			return all
		}
		return false
	})
}

// matched waits until status says so no more.
func matched(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	cluster.Eventually(ctx, t, 5*time.Second, "nothing differs from the subnet", func() error { return unmatched(ctx, n) })
}

func unmatched(ctx context.Context, n *lab.Node) error {
	s, err := n.Status(ctx)
	if err == nil && cluster.HasProblem(s, "bridge-mismatch") {
		err = fmt.Errorf("problems: %+v", s.Problems)
	}
	return err
}
