package main

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/tenure-cni/tenure/test/lab"
)

// serviceIP stands for a ClusterIP; it is on no interface.
const serviceIP = "198.51.100.200"

// paths adds pods and sends packets along every path there is.
func (d *demo) paths(ctx context.Context) error {
	web := lab.PodOptions{PortMappings: []lab.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}}}
	for _, p := range []struct {
		node *lab.Node
		name string
		opts lab.PodOptions
	}{{d.n1, "a", lab.PodOptions{}}, {d.n1, "b", lab.PodOptions{}}, {d.n2, "web", web}, {d.n3, "a", lab.PodOptions{}}, {d.n3, "b", lab.PodOptions{}}} {
		if err := d.addPod(ctx, p.node, p.name, p.opts); err != nil {
			return err
		}
	}
	a, b, remote := d.pods["n1.a"], d.pods["n1.b"], d.pods["n2.web"]
	for _, p := range []struct {
		what string
		from lab.Execer
		to   netip.Addr
	}{
		{"pod → pod on one node", a, b.IP},
		{"pod → pod across nodes", a, remote.IP},
		{"and the other way", remote, a.IP},
		{"pod → its own node", a, d.n1.Addr},
		{"pod → another node", a, d.n2.Addr},
		{"node → remote pod", d.n1, remote.IP},
	} {
		if err := d.step(p.what, func() (string, error) { return p.to.String() + " answers", lab.WaitPing(ctx, p.from, p.to) }); err != nil {
			return err
		}
	}
	if err := d.step("pod → outside, masqueraded", func() (string, error) { return d.masqueraded(ctx, a) }); err != nil {
		return err
	}
	stop, err := serve(ctx, remote.NS, "80")
	if err != nil {
		return err
	}
	defer stop()
	if err := d.step("outside → port 8080 of n2, mapped to its pod", func() (string, error) {
		return ask(ctx, d.lab.Outside, d.n2.Addr.String()+":8080")
	}); err != nil {
		return err
	}
	return d.step("pod on n1 → service address → pod on n2 (DNAT and masquerade, as kube-proxy does)", func() (string, error) {
		if err := d.service(ctx, d.n1, remote.IP); err != nil {
			return "", err
		}
		return ask(ctx, a.NS, serviceIP+":80")
	})
}

// masqueraded has the outside say whose address it sees.
func (d *demo) masqueraded(ctx context.Context, from *lab.Pod) (string, error) {
	stop, err := serve(ctx, d.lab.Outside, "80")
	if err != nil {
		return "", err
	}
	defer stop()
	saw, err := ask(ctx, from.NS, d.lab.OutsideAddr().String()+":80")
	if err != nil {
		return "", err
	}
	if want := "the server saw " + from.Node.Addr.String(); saw != want {
		return "", fmt.Errorf("%s, want the node's address %s", saw, from.Node.Addr)
	}
	return saw, nil
}

// service writes the rules that kube-proxy would for a ClusterIP with one
// endpoint: mark, rewrite the destination, masquerade what is marked.
func (d *demo) service(ctx context.Context, n *lab.Node, endpoint netip.Addr) error {
	for _, rule := range [][]string{
		{"-N", "KUBE-SVC"},
		{"-A", "KUBE-SVC", "-j", "MARK", "--set-xmark", "0x4000/0x4000"},
		{"-A", "KUBE-SVC", "-p", "tcp", "-j", "DNAT", "--to-destination", endpoint.String() + ":80"},
		{"-I", "PREROUTING", "-d", serviceIP, "-p", "tcp", "--dport", "80", "-j", "KUBE-SVC"},
		{"-I", "OUTPUT", "-d", serviceIP, "-p", "tcp", "--dport", "80", "-j", "KUBE-SVC"},
		{"-I", "POSTROUTING", "-m", "mark", "--mark", "0x4000/0x4000", "-j", "MASQUERADE"},
	} {
		if _, err := n.Exec(ctx, "iptables", append([]string{"-w", "-t", "nat"}, rule...)...); err != nil {
			return err
		}
	}
	return nil
}
