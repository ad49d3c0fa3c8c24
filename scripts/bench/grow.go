package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/test/lab"
)

// What a node has at most here. It has three pods and one peer before.
const (
	fewPods, manyPods   = 10, 250
	fewPeers, manyPeers = 3, 1000
)

// grow measures Tenure's vxlan beside the plain one with few pods and peers,
// with many pods, and with many peers besides.
func (f *field) grow(ctx context.Context, c *lab.EtcdCluster, t *table) (err error) {
	client, err := c.Client()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	resp, err := client.Grant(ctx, peersLease)
	if err != nil {
		return fmt.Errorf("lease of the peers: %w", err)
	}
	p := &publisher{client: client, lease: resp.ID, keys: lease.NewKeys(conf.DefaultEtcdPrefix)}
	pods := len(f.tenure.pods) - 1 // on the first host
	for _, step := range []struct{ pods, peers int }{{fewPods, fewPeers}, {manyPods, fewPeers}, {manyPods, manyPeers}} {
		for ; pods < step.pods; pods++ {
			if _, err := f.tenure.hosts[0].AddPod(ctx, fmt.Sprintf("more%d", pods), lab.PodOptions{}); err != nil {
				return err
			}
		}
		p.count = step.peers - 1 // the other host is one
		if err := p.publish(ctx, 1); err != nil {
			return err
		}
		for _, n := range f.tenure.hosts {
			if err := settled(ctx, n, step.peers); err != nil {
				return err
			}
		}
		row := fmt.Sprintf("%d pods, %d peers", step.pods, step.peers)
		paths := []path{f.plain.across(plainBeside(row)), f.tx(f.tenure, row, true)}
		if err := f.turns(ctx, t, paths, func(p path) error {
			return errors.Join(p.send(ctx, t, f.b.traffic.volume, 1), p.flood(t, f.b.traffic.packets), p.ask(t))
		}); err != nil {
			return fmt.Errorf("%s: %w", row, err)
		}
	}
	return nil
}

// plainBeside is the plain path at the same time.
func plainBeside(row string) string { return "plain, beside " + row }

// judge compares round by round, since the machine drifts.
func (f *field) judge(t, crowd *table) {
	add := func(what string, most float64, of, to, column string) {
		if t.has(of) && t.has(to) {
			f.b.goals = append(f.b.goals, goal{what + " (" + column + ")", most, t.paired(of, to, column)})
		}
	}
	for _, column := range []string{cpuPerGiB, ownPerGiB} {
		add("vxlan, of the plain path", 1.03, tenureVxlan, plainVxlan, column)
		add("vxlan without offload, of the plain path without", 1.03, tenureSlow, plainSlow, column)
		add("vxlan, of flannel's rules on such devices", 0.95, tenureVxlan, flannelVxlan, column)
		add("vxlan without offload, of flannel's rules without", 0.95, tenureSlow, flannelSlow, column)
		add("direct, of the raw underlay", 1.03, tenureDirectRow, rawRow, column)
		add("same node, of a bridge without rules", 1.03, tenureSame, plainSame, column)
		add("the fence, of vxlan without", 1.01, tenureVxlan, tenureOpen, column)
	}
	add("request and answer over vxlan, of the plain path", 1.03, tenureVxlan, plainVxlan, askCost)
	row := fmt.Sprintf("%d pods, %d peers", manyPods, manyPeers)
	few := fmt.Sprintf("%d pods, %d peers", fewPods, fewPeers)
	f.b.goals = append(f.b.goals, goal{"many pods and peers, of few, each of plain (" + ownPerGiB + ")", 1.03,
		crowd.paired(row, plainBeside(row), ownPerGiB) / crowd.paired(few, plainBeside(few), ownPerGiB)})
}
