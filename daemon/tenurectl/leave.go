package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

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
	}
	f := newForms(cmd, "table", "json", "yaml")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), leaveTimeout)
		defer cancel()
		left, err := api.NewClient(*socket).Leave(ctx, api.Leave{WithPods: withPods})
		if err != nil {
			return failed(exitNotReached, "%w\nOnly a running tenured can close its overlay first: start it, or use tenurectl release once the machine is off", err)
		}
		if left.Error != "" {
			return failed(exitStands, "%s", left.Error)
		}
		text := left.Subnet + " is given up; this node takes none until tenured is started anew"
		if left.Subnet == "" {
			text = "this node held no subnet, and takes none until tenured is started anew"
		}
		return f.show(cmd.OutOrStdout(), left, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, text)
			return err
		})
	}
	cmd.Flags().BoolVar(&withPods, "with-pods", false, "leave although pods still have addresses: they are stranded")
	return cmd
}

func newRelease(socket *string) *cobra.Command {
	var force, off bool
	cmd := &cobra.Command{
		Use:   "release NODE|SUBNET (--force | --machine-is-off)",
		Short: "take the subnet of a dead node away, without its help",
		Long: `release --force marks the subnet as nobody's for as long as the kernel of the
node that held it may keep its overlay open: one more LeaseTTL from now. Then it
is free.

--machine-is-off, with --force or without, frees it at once. It is your word that
the machine does not run and will not run again with its present state: if it
does, two nodes may use one subnet until its lease would have ended.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: complete(socket, offerSubnets|offerNodes),
	}
	r, f := newReach(cmd, socket), newForms(cmd, "table", "json", "yaml")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(); err != nil {
			return err
		}
		if !force && !off {
			return failed(exitUsage, "give --force to free the subnet when the node's overlay has closed by itself, or --machine-is-off to free it now")
		}
		return r.within(func(ctx context.Context, c *clientv3.Client) error {
			did, err := lease.Release(ctx, c, r.etcd.Prefix, args[0], off)
			if err != nil {
				return err
			}
			object := api.Released{Subnet: did.Subnets.String(), Node: did.Node}
			text := "free now"
			if !did.Until.IsZero() {
				object.Until, text = &did.Until, "nobody's until "+when(did.Until)+", then free"
			}
			return f.show(cmd.OutOrStdout(), object, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s, which node %q held, is %s\n", object.Subnet, object.Node, text)
				return err
			})
		})
	}
	cmd.Flags().BoolVar(&force, "force", false, "take it away; it is free after one more LeaseTTL")
	cmd.Flags().BoolVar(&off, "machine-is-off", false, "the machine is off for certain: free it at once")
	return cmd
}
