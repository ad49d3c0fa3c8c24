package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/tenure-cni/tenure/daemon/api"
)

// statusTimeout bounds the call: a daemon that lives answers in milliseconds.
const statusTimeout = 5 * time.Second

func newStatus(socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "what this node holds, whom it reaches and what is wrong", Args: cobra.NoArgs,
	}
	f := newForms(cmd, "table", "wide", "json", "yaml")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		s, err := askStatus(cmd.Context(), *socket)
		if err != nil {
			return err
		}
		err = f.show(cmd.OutOrStdout(), s, func(w io.Writer) error {
			if f.wide() {
				return printWide(w, s)
			}
			return printTable(w, s)
		})
		if err != nil {
			return err
		}
		if unhealthy(s) {
			return &exitError{exitStands, errQuiet}
		}
		return nil
	}
	return cmd
}

// askStatus asks the daemon; its error carries the exit code.
func askStatus(ctx context.Context, socket string) (*api.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	client := api.NewClient(socket)
	s, err := client.Status(ctx)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, failed(exitNotReached, "%w\nOnly root may ask: run it with sudo", err)
	case err != nil:
		return nil, failed(exitNotReached, "%w\nIs tenured running? Look at: systemctl status tenured; journalctl -u tenured", err)
	}
	return s, nil
}

// unhealthy: an error stands, or no pod could be added now.
func unhealthy(s *api.Status) bool {
	for _, p := range s.Problems {
		if p.Severity == api.SeverityError {
			return true
		}
	}
	return !s.Ready
}

func printJSON(w io.Writer, s any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}

// printWide is printTable and what is rarely looked for.
func printWide(out io.Writer, s *api.Status) error {
	if err := printTable(out, s); err != nil {
		return err
	}
	states, direct := map[string]int{}, 0
	for _, p := range s.Peers {
		states[p.State]++
		if p.Path == api.PathDirect {
			direct++
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) }
	line()
	line("version", s.Version)
	line("ready", fmt.Sprint(s.Ready))
	line("revision", fmt.Sprintf("%d of etcd", s.Etcd.Revision))
	line("peers", fmt.Sprintf("%d in etcd; in the kernel: %d programmed (%d by a plain route), %d pending; %d conflict, %d unreachable", len(s.Peers),
		states[api.PeerProgrammed], direct, states[api.PeerPending], states[api.PeerConflict], states[api.PeerUnreachable]))
	line("stranded", fmt.Sprintf("%d pods", len(s.Stranded)))
	return w.Flush()
}

// printTable is for the person at the terminal: what is wrong first.
func printTable(out io.Writer, s *api.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) }
	for _, p := range s.Problems {
		line(strings.ToUpper(p.Severity), p.Code, "since "+p.Since)
		line("", p.Text)
		line("", "→ "+p.Fix)
	}
	if len(s.Problems) > 0 {
		line()
	}
	line("node", fmt.Sprintf("%s (%s)", s.Node, s.UID))
	state := string(s.State)
	if s.Reason != "" {
		state += ": " + s.Reason
	}
	line("state", state)
	line("network", orNone(strings.TrimSpace(s.Network+" "+s.Network6)))
	line("subnet", orNone(strings.TrimSpace(s.Subnet+" "+s.Subnet6)))
	if s.Lease != nil {
		line("lease", fmt.Sprintf("%s, ttl %s, overlay %s, last proof %s, epoch %d", s.Lease.ID,
			time.Duration(s.Lease.TTLSeconds)*time.Second, closes(s.Lease.RemainingSeconds), ago(s.Lease.LastProofSecondsAgo), s.Lease.Epoch))
	}
	line("underlay", fmt.Sprintf("%s on %s, pod MTU %d", orNone(strings.TrimSpace(s.PublicIP+" "+s.PublicIP6)), orNone(s.Interface), s.MTU))
	line("addresses", fmt.Sprintf("%d used, %d cooling, %d in all", s.Addresses.Used, s.Addresses.Cooling, s.Addresses.Total))
	for _, e := range s.Etcd.Endpoints {
		line("etcd", strings.TrimSpace(e.URL+" "+e.Version)+" "+health(e))
	}
	if len(s.Peers) > 0 {
		line()
		line("PEER", "SUBNET", "ADDRESS", "EPOCH", "STATE", "")
		for _, p := range s.Peers {
			line(p.Node, p.Subnet, p.PublicIP, fmt.Sprint(p.Epoch), p.State, p.Reason)
		}
	}
	if len(s.Stranded) > 0 {
		line()
		strandedRows(line, s.Stranded)
	}
	return w.Flush()
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func health(e api.Endpoint) string {
	switch {
	case e.Since == "":
		return "not asked yet"
	case e.Healthy:
		return "healthy since " + e.Since
	}
	return "unhealthy since " + e.Since + ": " + e.Reason
}

func closes(s float64) string {
	if s <= 0 {
		return "closed"
	}
	return "closes in " + seconds(s)
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond).String()
}

func ago(s float64) string {
	if s < 0 {
		return "none yet"
	}
	return seconds(s) + " ago"
}
