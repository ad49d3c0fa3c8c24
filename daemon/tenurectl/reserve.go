package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
)

func newReserve(socket *string) *cobra.Command {
	var later bool
	cmd := &cobra.Command{
		Use: "reserve SUBNET NODE", Short: "keep a subnet for one node", Args: cobra.ExactArgs(2),
		Long: `reserve keeps a subnet for the node of that name: nobody else is given it from
now on, and that node takes it before any other when it acquires one. A node that
holds another subnet keeps that.

A subnet that another node holds is refused; with --later it is reserved for the
time after that: its holder keeps it for as long as it renews its lease.`,
		ValidArgsFunction: complete(socket, offerSubnets, offerNodes),
	}
	r, f := newReach(cmd, socket), newForms(cmd, "table", "json", "yaml")
	cmd.Flags().BoolVar(&later, "later", false, "also where another node holds the subnet now")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(); err != nil {
			return err
		}
		if args[1] == "" {
			return failed(exitUsage, "the node's name is empty")
		}
		return r.within(func(ctx context.Context, c *clientv3.Client) error {
			did, err := lease.Reserve(ctx, c, r.etcd.Prefix, args[0], args[1], later)
			if err != nil {
				return err
			}
			text := "is reserved for"
			if !did.Changed {
				text = "was reserved before for"
			}
			return f.show(cmd.OutOrStdout(), did, func(w io.Writer) error { return reservedText(w, did, text) })
		})
	}
	return cmd
}

func newUnreserve(socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "unreserve SUBNET", Short: "take a reservation away: anybody may be given the subnet", Args: cobra.ExactArgs(1),
		ValidArgsFunction: complete(socket, offerSubnets),
	}
	r, f := newReach(cmd, socket), newForms(cmd, "table", "json", "yaml")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(); err != nil {
			return err
		}
		return r.within(func(ctx context.Context, c *clientv3.Client) error {
			did, err := lease.Unreserve(ctx, c, r.etcd.Prefix, args[0])
			if err != nil {
				return err
			}
			return f.show(cmd.OutOrStdout(), did, func(w io.Writer) error { return reservedText(w, did, "is no longer reserved for") })
		})
	}
	return cmd
}

func reservedText(w io.Writer, r api.Reserved, text string) error {
	_, err := fmt.Fprintln(w, r.Subnet, text, r.Node)
	for _, n := range r.Notes {
		if err == nil {
			_, err = fmt.Fprintln(w, "  "+n)
		}
	}
	return err
}
