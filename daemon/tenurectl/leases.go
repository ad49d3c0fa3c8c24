package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
)

// askTimes bounds how long etcd is asked for the leases' times; what it has not
// said by then is shown as unknown.
const askTimes = 5 * time.Second

func newLeases(socket *string) *cobra.Command {
	var times bool
	cmd := &cobra.Command{
		Use: "leases", Short: "every node of the cluster: its subnet, its lease, and what is odd about it", Args: cobra.NoArgs,
		Long: `leases lists every record in etcd: node, subnet, address, ownership number, how
much is left of the lease, how long ago it was renewed last, and what is odd.

It exits 0 when nothing worse than a warning stands for the whole cluster, 1 when
an error does.`,
	}
	r, f := newReach(cmd, socket), newForms(cmd, "table", "wide", "json", "yaml")
	cmd.Flags().BoolVar(&times, "ttl", true, "ask etcd what is left of every lease; false is quicker in a large cluster")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		return r.within(func(ctx context.Context, c *clientv3.Client) error {
			s, left, err := r.look(ctx, c, times)
			if err != nil {
				return err
			}
			all := lease.ClusterLeases(s, r.etcd.Prefix, left, r.uid)
			if err := f.show(cmd.OutOrStdout(), all, func(w io.Writer) error { return leasesTable(w, all, f.wide()) }); err != nil {
				return err
			}
			if unhealthyCluster(all.Problems) {
				return &exitError{exitStands, errQuiet}
			}
			return nil
		})
	}
	return cmd
}

// look lists everything, and with times asks for the leases' too. That those
// are not known is no error, but said.
func (r *reach) look(ctx context.Context, c *clientv3.Client, times bool) (*lease.Snapshot, lease.Times, error) {
	s, err := lease.List(ctx, c, r.etcd.Prefix)
	if err != nil || !times {
		return s, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimes)
	defer cancel()
	left, err := lease.AskTimes(ctx, c, s)
	if err != nil {
		r.cmd.PrintErrln("tenurectl: warning: the time left is known of", len(left), "leases only:", err)
	}
	return s, left, nil
}

func unhealthyCluster(all []api.Problem) bool {
	for _, p := range all {
		if p.Severity == api.SeverityError {
			return true
		}
	}
	return false
}

func leasesTable(w io.Writer, all api.ClusterLeases, wide bool) error {
	return rows(w, func(line func(cells ...string)) {
		for _, p := range all.Problems {
			line(strings.ToUpper(p.Severity), p.Code, p.Text)
			line("", "", "→ "+p.Fix)
		}
		if len(all.Problems) > 0 {
			line()
		}
		if len(all.Leases) == 0 {
			line("no node holds a subnet")
			return
		}
		head := []string{"NODE", "SUBNET", "ADDRESS", "EPOCH", "STATE", "TIME LEFT", "LAST HEARD", "ODD"}
		if wide {
			head = append(head[:7:7], "TTL", "LEASE", "UID", "ODD")
		}
		line(head...)
		for _, l := range all.Leases {
			line(leaseRow(l, wide)...)
		}
	})
}

func leaseRow(l api.ClusterLease, wide bool) []string {
	node, heard := l.Node, "?"
	if node == "" {
		node = "-"
	}
	if l.Mine {
		node += " (here)"
	}
	if l.LastHeardSecondsAgo != nil {
		heard = secs(l.LastHeardSecondsAgo) + " ago"
	}
	subnet := strings.TrimSpace(l.Subnet + " " + l.Subnet6)
	cells := []string{node, subnet, l.PublicIP, fmt.Sprint(l.Epoch), string(l.State), secs(l.RemainingSeconds), heard}
	if wide {
		cells = append(cells, secs(l.TTLSeconds), l.Lease, l.UID)
	}
	return append(cells, strings.Join(l.Odd, "; "))
}

func newMap(socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "map", Short: "the cluster's address space, subnet by subnet", Args: cobra.NoArgs,
		Long: `map draws the pod network as a grid, one character for a subnet, in order of
address: held, reserved, dying, free, and this node's. In a large network one
character stands for several subnets, as the legend says; -o wide draws more of
them one by one. -o json lists those that are not free.`,
	}
	r, f := newReach(cmd, socket), newForms(cmd, "table", "wide", "json", "yaml")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		return r.within(func(ctx context.Context, c *clientv3.Client) error {
			s, left, err := r.look(ctx, c, true)
			if err != nil {
				return err
			}
			if s.Config.ModRevision == 0 {
				return failed(exitStands, "%s: %w", r.etcd.Prefix, lease.ErrNotBorn)
			}
			n, _, err := conf.ParseNetwork(s.Config.Value)
			if err != nil {
				return failed(exitStands, "the network config in etcd is bad: %w\nRepair it: tenurectl config edit", err)
			}
			m := lease.NewMap(n, s, left, r.uid)
			return f.show(cmd.OutOrStdout(), m.ClusterMap, func(w io.Writer) error {
				most := cellsUsual
				if f.wide() {
					most = cellsWide
				}
				return drawMap(w, m, most, coloured(w))
			})
		})
	}
	return cmd
}
