package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
)

func newHistory(socket *string) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "history [SUBNET|ADDRESS|NODE]", Short: "who held a subnet, or what a node held: when, and why it changed", Args: cobra.MaximumNArgs(1),
		Long: `history prints who held what, oldest first, from the owners' records in etcd,
which keep the last nine owners of each subnet. It takes a subnet or a larger
network, an address, a node's name or UID; without any, it prints everything.

Nobody writes down when a lease ends: then the end is given as "before" the next
owner, or not at all. With --follow it goes on and prints what changes, one line
(with -o json, one object) for each change, until it is interrupted.`,
		ValidArgsFunction: complete(socket, offerSubnets|offerNodes),
	}
	r, f := newReach(cmd, socket), newForms(cmd, "table", "wide", "json", "yaml")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on, and print what changes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(); err != nil {
			return err
		}
		of := lease.ParseOf(strings.Join(args, ""))
		if follow {
			return r.do(cmd.Context(), func(ctx context.Context, c *clientv3.Client) error {
				return r.follow(ctx, c, of, f)
			})
		}
		return r.within(func(ctx context.Context, c *clientv3.Client) error {
			s, err := lease.List(ctx, c, r.etcd.Prefix)
			if err != nil {
				return err
			}
			all := lease.History(s, of)
			if len(all) == 0 && f.table() {
				cmd.PrintErrln("tenurectl: nothing is on record of that")
			}
			return f.show(cmd.OutOrStdout(), all, func(w io.Writer) error { return historyTable(w, all, f.wide()) })
		})
	}
	return cmd
}

// follow prints the history and then what changes. An interrupt is its end, and
// no error.
func (r *reach) follow(ctx context.Context, c *clientv3.Client, of lease.Of, f *forms) error {
	var old []api.Tenancy
	out, first := r.cmd.OutOrStdout(), true
	log := slog.New(slog.NewTextHandler(r.cmd.ErrOrStderr(), nil))
	err := lease.Follow(ctx, c, r.etcd.Prefix, log, func(s *lease.Snapshot) error {
		now := lease.History(s, of)
		fresh := lease.Changed(old, now)
		old = now
		if first && f.table() {
			first = false
			return historyTable(out, fresh, f.wide())
		}
		for _, t := range fresh {
			if err := followed(out, t, f); err != nil {
				return failed(exitStands, "print: %w", err)
			}
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// followed prints one change as a line, or as a document.
func followed(w io.Writer, t api.Tenancy, f *forms) error {
	switch f.form {
	case "json":
		return json.NewEncoder(w).Encode(t)
	case "yaml":
		if _, err := fmt.Fprintln(w, "---"); err != nil {
			return err
		}
		return printYAML(w, t)
	}
	_, err := fmt.Fprintln(w, strings.Join(tenancyRow(t, f.wide()), "  "))
	return err
}

func historyTable(w io.Writer, all []api.Tenancy, wide bool) error {
	return rows(w, func(line func(cells ...string)) {
		head := []string{"SINCE", "UNTIL", "SUBNET", "NODE", "EPOCH", "STATE", "WHY"}
		if wide {
			head = append(head[:6:6], "UID", "WHY")
		}
		line(head...)
		for _, t := range all {
			line(tenancyRow(t, wide)...)
		}
	})
}

func tenancyRow(t api.Tenancy, wide bool) []string {
	until := "?"
	switch {
	case t.Until != nil:
		until = when(*t.Until)
	case t.State == api.SubnetHeld:
		until = "-"
	case t.EndedBefore != nil:
		until = "before " + when(*t.EndedBefore)
	}
	node := t.Node
	if node == "" {
		node = "-"
	}
	cells := []string{when(t.Since), until, t.Subnet, node, fmt.Sprint(t.Epoch), string(t.State)}
	if wide {
		cells = append(cells, t.UID)
	}
	return append(cells, t.Why)
}
