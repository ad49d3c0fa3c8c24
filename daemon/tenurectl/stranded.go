package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tenure-cni/tenure/daemon/api"
)

func newStranded(socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "stranded", Short: "the pods on subnets that this node no longer holds", Args: cobra.NoArgs,
		Long: "stranded lists the pods of this node that sit on a subnet it no longer holds.\n" +
			"It exits 0 when there is none, 1 when there are some, 3 when that cannot be told.",
	}
	f := newForms(cmd, "table", "json", "yaml", "ids")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		s, err := askStatus(cmd.Context(), *socket)
		if err != nil {
			return err
		}
		if unknown(s) {
			return failed(exitNotReached, "whether pods are stranded is not known yet: the node is %s: %s", s.State, s.Reason)
		}
		all := s.Stranded
		if all == nil {
			all = []api.Stranded{} // an array, also where there is nothing
		}
		err = f.show(cmd.OutOrStdout(), all, func(w io.Writer) error {
			if f.form == "ids" {
				return strandedIDs(w, all)
			}
			return strandedTable(w, all)
		})
		if err != nil {
			return err
		}
		if len(all) > 0 {
			return &exitError{exitStands, errQuiet}
		}
		return nil
	}
	cmd.Flag("output").Usage += " (one container ID a line)"
	return cmd
}

// unknown: a daemon that has not heard of its subnet cannot say who lost it.
// That is not to be taken for "none".
func unknown(s *api.Status) bool {
	return s.Lease == nil && len(s.Stranded) == 0 && (s.State == api.StateStarting || s.State == api.StateRefused)
}

// strandedIDs prints each container once, for a shell's loop.
func strandedIDs(w io.Writer, all []api.Stranded) error {
	seen := map[string]bool{}
	for _, p := range all {
		if seen[p.ContainerID] {
			continue
		}
		seen[p.ContainerID] = true
		if _, err := fmt.Fprintln(w, p.ContainerID); err != nil {
			return err
		}
	}
	return nil
}

func strandedTable(out io.Writer, all []api.Stranded) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, "no pod is stranded")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	strandedRows(func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) }, all)
	return w.Flush()
}

// strandedRows are the same in status.
func strandedRows(line func(cells ...string), all []api.Stranded) {
	line("STRANDED", "SUBNET", "CONTAINER", "INTERFACE")
	for _, p := range all {
		line(p.Address, p.Subnet, p.ContainerID, p.IfName)
	}
}
