package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
)

// leaveTimeout is longer than the daemon's own.
const leaveTimeout = 25 * time.Second

func newLeave(socket *string) *cobra.Command {
	var withPods bool
	cmd := &cobra.Command{
		Use: "leave", Short: "give this node's subnet up, for another node to have at once", Args: cobra.NoArgs,
		Long: `leave closes the overlay in this node's kernel, then deletes the node's key and
lease in etcd: another node may have the subnet at once. The daemon then waits
until it is started anew; stop it to take the node away.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), leaveTimeout)
			defer cancel()
			left, err := api.NewClient(*socket).Leave(ctx, api.Leave{WithPods: withPods})
			if err != nil {
				return failed(exitNotReached, "%w\nOnly a running tenured can close its overlay first: start it, or use tenurectl release once the machine is off", err)
			}
			if left.Error != "" {
				return failed(exitStands, "%s", left.Error)
			}
			if left.Subnet == "" {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "this node held no subnet, and takes none until tenured is started anew")
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is given up; this node takes none until tenured is started anew\n", left.Subnet)
			return err
		},
	}
	cmd.Flags().BoolVar(&withPods, "with-pods", false, "leave although pods still have addresses: they are stranded")
	return cmd
}

func newRelease() *cobra.Command {
	var (
		etcd       conf.Etcd
		force, off bool
	)
	cmd := &cobra.Command{
		Use:   "release NODE|SUBNET --force [--machine-is-off]",
		Short: "take the subnet of a dead node away, without its help",
		Long: `release --force marks the subnet as nobody's for as long as the kernel of the
node that held it may keep its overlay open: one more LeaseTTL from now. Then it
is free.

--machine-is-off, with --force or without, frees it at once. It is your word that the machine does not run
and will not run again with its present state: if it does, two nodes may use one
subnet until its lease would have ended.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !force && !off {
				return failed(exitUsage, "give --force to free the subnet when the node's overlay has closed by itself, or --machine-is-off to free it now")
			}
			if err := etcd.Check().Err(); err != nil {
				return &exitError{exitUsage, err}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), initTimeout)
			defer cancel()
			return release(ctx, cmd, etcd, args[0], off)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "take it away; it is free after one more LeaseTTL")
	cmd.Flags().BoolVar(&off, "machine-is-off", false, "the machine is off for certain: free it at once")
	etcd.AddFlags(cmd.Flags())
	return cmd
}

// releaseCode: what there is nothing to release of is a mistake of the caller's.
func releaseCode(err error) int {
	if errors.Is(err, lease.ErrNoSuchHolder) || errors.Is(err, lease.ErrAmbiguous) || errors.Is(err, lease.ErrReleased) {
		return exitUsage
	}
	return exitNotReached
}

func release(ctx context.Context, cmd *cobra.Command, etcd conf.Etcd, what string, off bool) error {
	client, err := lease.Dial(etcd)
	if err != nil {
		return &exitError{exitNotReached, err}
	}
	defer func() { _ = client.Close() }()
	r, err := lease.Release(ctx, client, etcd.Prefix, what, off)
	if err != nil {
		return failed(releaseCode(err), "%w", err)
	}
	when := "free now"
	if !r.Until.IsZero() {
		when = "nobody's until " + r.Until.UTC().Format(time.RFC3339) + ", then free"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s, which node %q held, is %s\n", r.Subnets, r.Node, when)
	return err
}
