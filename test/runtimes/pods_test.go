package runtimes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

const (
	// podCount pods are made, so many at a time.
	podCount, atOnce = 20, 4
	// hostPort is the node's port that leads to the first pod.
	hostPort = 8088
	// outsidePort is served by a host that knows no pod.
	outsidePort = 7
)

// engine is what the tests want of a runtime.
type engine interface {
	// run makes a pod that serves its host name, which is name. Where publish
	// is not 0, that port of the node leads to the pod's servePort.
	run(ctx context.Context, name string, publish int) error
	// addrs are the pods' addresses as the runtime has them now.
	addrs(ctx context.Context, names ...string) (map[string]netip.Addr, error)
	// exec runs a program in the pod.
	exec(ctx context.Context, name string, argv ...string) (string, error)
	// remove ends the pod and leaves nothing of it.
	remove(ctx context.Context, name string) error
}

// pods are those of one engine on one machine.
type pods struct {
	t *testing.T
	c *cluster.Cluster
	m *machine
	engine
}

// names are those of all pods.
func names() []string {
	var all []string
	for i := range podCount {
		all = append(all, fmt.Sprintf("pod%d", i))
	}
	return all
}

// each calls f for every pod, a few at a time.
func (p *pods) each(ctx context.Context, what string, f func(context.Context, string) error) {
	p.t.Helper()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, name := range names() {
		g.Go(func() error {
			if err := f(ctx, name); err != nil {
				return fmt.Errorf("%s %s: %w", what, name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		p.t.Fatal(err)
	}
}

// fill makes all pods, the first with a port of the node.
func (p *pods) fill(ctx context.Context) map[string]netip.Addr {
	p.t.Helper()
	p.each(ctx, "run", func(ctx context.Context, name string) error {
		if name == names()[0] {
			return p.run(ctx, name, hostPort)
		}
		return p.run(ctx, name, 0)
	})
	return p.full(ctx)
}

// empty removes all pods and wants nothing left of them.
func (p *pods) empty(ctx context.Context) {
	p.t.Helper()
	if rules := p.mappings(ctx); len(rules) == 0 {
		p.t.Error("portmap has no rule while a port is mapped: what is looked for afterwards is not what it makes")
	}
	if links := p.hostEnds(ctx); len(links) != podCount {
		p.t.Errorf("%d interfaces of pods for %d pods: %v", len(links), podCount, links)
	}
	p.each(ctx, "remove", p.remove)
	if used := p.used(ctx); used != 0 {
		p.t.Errorf("%d addresses in use after the last pod went", used)
	}
	cluster.Eventually(ctx, p.t, 5*time.Second, "interfaces of pods gone", func() error {
		if left := p.hostEnds(ctx); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
	for what, left := range map[string][]string{
		"rules of portmap": p.mappings(ctx),
		"queued DELs":      p.files(filepath.Join(p.m.RunDir, "del")), "namespaces": p.inside(ctx, "/run/netns"),
		"cached results": p.inside(ctx, "/var/lib/cni/results"),
	} {
		if len(left) > 0 {
			p.t.Errorf("left after the last pod went: %s %v", what, left)
		}
	}
}

// full wants an address of the subnet for each pod, none twice, and traffic.
func (p *pods) full(ctx context.Context) map[string]netip.Addr {
	p.t.Helper()
	addrs := p.distinct(ctx)
	if used := p.used(ctx); used != podCount {
		p.t.Errorf("%d addresses in use for %d pods", used, podCount)
	}
	first, last := names()[0], names()[podCount-1]
	p.reach(ctx, first, last, addrs[last])
	p.reach(ctx, last, first, addrs[first])
	p.published(ctx, first)
	// Outside, the pod has the node's address.
	if out, err := p.exec(ctx, first, "nc", p.c.OutsideAddr().String(), fmt.Sprint(outsidePort)); err != nil || out != p.m.Addr.String() {
		p.t.Errorf("%s to the outside: answer %q, %v; want %s", first, out, err, p.m.Addr)
	}
	return addrs
}

// distinct are the addresses of all pods.
func (p *pods) distinct(ctx context.Context) map[string]netip.Addr {
	p.t.Helper()
	subnet, err := netip.ParsePrefix(cluster.Status(ctx, p.t, p.m.Node).Subnet)
	if err != nil {
		p.t.Fatal(err)
	}
	addrs, err := p.addrs(ctx, names()...)
	if err != nil || len(addrs) != podCount {
		p.t.Fatalf("%d addresses of %d pods: %v", len(addrs), podCount, err)
	}
	owner := map[netip.Addr]string{}
	for name, a := range addrs {
		if other, ok := owner[a]; ok {
			p.t.Errorf("%s and %s both have %s", other, name, a)
		}
		if !subnet.Contains(a) {
			p.t.Errorf("%s has %s, which is not in %s", name, a, subnet)
		}
		owner[a] = name
	}
	return addrs
}

// reach makes a pod ask another for its name.
func (p *pods) reach(ctx context.Context, from, to string, addr netip.Addr) {
	p.t.Helper()
	cluster.Eventually(ctx, p.t, 10*time.Second, from+" to "+to, func() error {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		// Not -T: with it, some static busyboxes crash.
		out, err := p.exec(ctx, from, "wget", "-q", "-O", "-", "http://"+netip.AddrPortFrom(addr, servePort).String())
		if err == nil && strings.TrimSpace(out) != to {
			err = fmt.Errorf("%q answered at %s", out, addr)
		}
		return err
	})
}

// published makes the outside host ask the node's port for the pod's name.
func (p *pods) published(ctx context.Context, name string) {
	p.t.Helper()
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return p.c.Outside.Dial(ctx, network, address)
		},
	}}
	url := "http://" + netip.AddrPortFrom(p.m.Addr, hostPort).String()
	cluster.Eventually(ctx, p.t, 10*time.Second, name+" behind the node's port", func() error {
		r, err := client.Get(url)
		if err != nil {
			return err
		}
		defer func() { _ = r.Body.Close() }()
		b, err := io.ReadAll(r.Body)
		if err == nil && strings.TrimSpace(string(b)) != name {
			err = fmt.Errorf("%q answered", b)
		}
		return err
	})
}

// used is what the operator's tool says.
func (p *pods) used(ctx context.Context) uint64 {
	p.t.Helper()
	r := cluster.Run(ctx, p.t, p.m.Node, "tenurectl", "status", "-o", "json", "--socket="+p.m.Socket)
	var s api.Status
	if err := json.Unmarshal([]byte(r.Out), &s); err != nil || r.Code != 0 {
		p.t.Fatalf("tenurectl status: %s %v", r, err)
	}
	return s.Addresses.Used
}

// hostEnds are the veths of the node, less its cable to the LAN.
func (p *pods) hostEnds(ctx context.Context) []string {
	p.t.Helper()
	var all []string
	for line := range strings.Lines(cluster.Exec(ctx, p.t, p.m.Node, "ip", "-o", "link", "show", "type", "veth")) {
		if name := strings.Fields(line)[1]; !strings.HasPrefix(name, "eth0@") {
			all = append(all, name)
		}
	}
	return all
}

// mappings are the rules that portmap made for pods; its empty chains stay.
func (p *pods) mappings(ctx context.Context) []string {
	p.t.Helper()
	var all []string
	for line := range strings.Lines(cluster.Exec(ctx, p.t, p.m.Node, "iptables-save", "-t", "nat")) {
		if strings.HasPrefix(line, ":CNI-DN-") || strings.HasPrefix(line, "-A CNI-HOSTPORT-DNAT") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// inside lists a directory as the machine sees it.
func (p *pods) inside(ctx context.Context, dir string) []string {
	p.t.Helper()
	out, err := p.m.Exec(ctx, "find", dir, "-mindepth", "1")
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.Fields(out)
}

// files lists a directory that need not be there.
func (p *pods) files(dir string) []string {
	p.t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return slices.DeleteFunc(all, func(name string) bool { return !strings.HasSuffix(name, ".json") })
}

// born makes a cluster of one node with a machine of it; no daemon runs.
func born(ctx context.Context, t *testing.T) (*cluster.Cluster, *machine) {
	t.Helper()
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	cluster.Serve(ctx, t, c.Outside, outsidePort)
	return c, newMachine(ctx, t, c.Nodes[0])
}
