package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/lab"
)

// nodes starts three daemons, the first with etcd inside.
func (d *demo) nodes(ctx context.Context) error {
	d.pods = map[string]*lab.Pod{}
	for _, n := range []struct {
		node **lab.Node
		name string
	}{{&d.n1, "n1"}, {&d.n2, "n2"}, {&d.n3, "n3"}} {
		var err error
		if *n.node, err = d.lab.AddNode(ctx, n.name); err != nil {
			return err
		}
	}
	url := fmt.Sprintf("http://%s:2379", d.n1.Addr)
	d.lab.SetEndpoints(url)
	if err := d.n1.Start(ctx, "--etcd-embedded", "--etcd-embedded-listen="+url, "--new-cluster", "--network-config="+network); err != nil {
		return err
	}
	for _, n := range []*lab.Node{d.n2, d.n3} {
		if err := n.Start(ctx); err != nil {
			return err
		}
	}
	var err error
	if d.etcd, err = d.n1.EtcdClient(url); err != nil {
		return err
	}
	for _, n := range []*lab.Node{d.n1, d.n2, d.n3} {
		if err := d.step("node "+n.Host+" at "+n.Addr.String(), func() (string, error) { return d.ready(ctx, n) }); err != nil {
			return err
		}
	}
	return nil
}

// ready waits for the node and says what it holds.
func (d *demo) ready(ctx context.Context, n *lab.Node) (string, error) {
	if err := n.WaitReady(ctx); err != nil {
		return "", err
	}
	s, err := n.Status(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("holds %s under lease %s, epoch %d", s.Subnet, s.Lease.ID, s.Lease.Epoch), nil
}

// addPod has cnitool add a pod.
func (d *demo) addPod(ctx context.Context, n *lab.Node, name string, opts lab.PodOptions) error {
	full := n.Host + "." + name
	return d.step("cnitool add "+full, func() (string, error) {
		p, err := n.AddPod(ctx, name, opts)
		if err != nil {
			return "", err
		}
		d.pods[full] = p
		return p.IP.String(), nil
	})
}

// final checks that whoever should reach whom does, and prints the table.
func (d *demo) final(ctx context.Context) error {
	if err := d.step("every pod reaches every other", func() (string, error) {
		count := 0
		for from, p := range d.pods {
			for to, q := range d.pods {
				if from == to {
					continue
				}
				if err := lab.WaitPing(ctx, p, q.IP); err != nil {
					return "", fmt.Errorf("%s → %s: %w", from, to, err)
				}
				count++
			}
		}
		return fmt.Sprintf("%d pairs", count), nil
	}); err != nil {
		return err
	}
	return d.table(ctx)
}

func (d *demo) table(ctx context.Context) error {
	_, _ = fmt.Fprintf(d.out, "\n%-5s %-11s %-14s %-9s %-17s %-11s %-14s %s\n", "NODE", "ADDRESS", "SUBNET", "STATE", "LEASE", "EPOCH", "PEERS", "PODS")
	for _, n := range d.lab.Nodes() {
		var s *api.Status
		// The data plane follows etcd within a moment.
		err := lab.Eventually(ctx, n.Host+" has programmed its peers", func() (err error) {
			if s, err = n.Status(ctx); err != nil {
				return err
			}
			return programmed(s)
		})
		if err != nil {
			return err
		}
		var pods []string
		for name, p := range d.pods {
			if p.Node == n {
				pods = append(pods, name+"="+p.IP.String())
			}
		}
		slices.Sort(pods)
		_, _ = fmt.Fprintf(d.out, "%-5s %-11s %-14s %-9s %-17s %-11d %-14s %s\n", s.Node, s.PublicIP, s.Subnet, s.State,
			s.Lease.ID, s.Lease.Epoch, fmt.Sprintf("%d programmed", len(s.Peers)), strings.Join(pods, " "))
	}
	return nil
}

func programmed(s *api.Status) error {
	if len(s.Peers) != 3 {
		return fmt.Errorf("%d peers, want 3", len(s.Peers))
	}
	for _, p := range s.Peers {
		if p.State != api.PeerProgrammed {
			return fmt.Errorf("peer %s is %s: %s", p.Node, p.State, p.Reason)
		}
	}
	return nil
}

func subnetOf(ctx context.Context, n *lab.Node) (netip.Prefix, error) {
	s, err := n.Status(ctx)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.ParsePrefix(s.Subnet)
}
