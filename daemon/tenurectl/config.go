package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
)

func newConfig(socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "look at and change the cluster's network config", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigGet(socket), newConfigSet(socket), newConfigEdit(socket))
	return cmd
}

func newConfigGet(socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "get", Short: "print the network config", Args: cobra.NoArgs,
		Long: `get prints the network config: as it stands in etcd, or with -o wide with every
default filled in. What it prints as json can be given to config set.`,
	}
	r, f := newReach(cmd, socket), newForms(cmd, "json", "yaml", "table", "wide")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		return r.within(func(ctx context.Context, c *clientv3.Client) error {
			s, err := r.configured(ctx, c)
			if err != nil {
				return err
			}
			raw := s.Config.Value
			n, _, bad := conf.ParseNetwork(raw)
			if bad == nil && f.wide() {
				if raw, err = json.Marshal(n); err != nil {
					return failed(exitStands, "print: %w", err)
				}
			}
			if !json.Valid(raw) || f.table() {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), pretty(raw))
			} else {
				err = f.show(cmd.OutOrStdout(), json.RawMessage(raw), nil)
			}
			if err == nil && bad != nil {
				return failed(exitStands, "no node takes this config: %w\nRepair it: tenurectl config edit", bad)
			}
			return err
		})
	}
	return cmd
}

// pretty is JSON with a line for each value, or the text if it is none.
func pretty(raw []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, bytes.TrimSpace(raw), "", "  ") != nil {
		return string(raw)
	}
	return b.String()
}

// configured lists everything; that there is no config is an error.
func (r *reach) configured(ctx context.Context, c *clientv3.Client) (*lease.Snapshot, error) {
	s, err := lease.List(ctx, c, r.etcd.Prefix)
	if err == nil && s.Config.ModRevision == 0 {
		err = fmt.Errorf("%s: %w", r.etcd.Prefix, lease.ErrNotBorn)
	}
	return s, err
}

// change is a config that is about to be written.
type change struct {
	r   *reach
	f   *forms
	yes bool
	dry bool
}

// newChange gives a command what set and edit share.
func newChange(cmd *cobra.Command, socket *string) *change {
	ch := &change{r: newReach(cmd, socket), f: newForms(cmd, "table", "json", "yaml")}
	cmd.Flags().BoolVarP(&ch.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&ch.dry, "dry-run", false, "show what it would do, and write nothing")
	return ch
}

func newConfigSet(socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "set JSON|@FILE", Short: "replace the network config, after a look at what that does", Args: cobra.ExactArgs(1),
		Long: `set replaces the whole network config. First it shows what changes, what becomes
of every holder, and how many subnets are free before and after; then it asks.
What no node would take over is refused: a config with a fault (exit code 2), and
one that has no place for a subnet that somebody holds (exit code 1).`,
	}
	ch := newChange(cmd, socket)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := ch.f.check(); err != nil {
			return err
		}
		next, err := conf.ReadNetworkConfig(args[0])
		if err != nil {
			return &exitError{exitUsage, err}
		}
		return ch.r.within(func(ctx context.Context, c *clientv3.Client) error {
			s, err := ch.r.configured(ctx, c)
			if err != nil {
				return err
			}
			return ch.propose(c, s, next)
		})
	}
	return cmd
}

func newConfigEdit(socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "edit", Short: "change the network config in an editor", Args: cobra.NoArgs,
		Long: `edit opens the network config in $VISUAL, $EDITOR or vi, and goes on as config set
does. What was written is kept in a file where it is refused.`,
	}
	ch := newChange(cmd, socket)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := ch.f.check(); err != nil {
			return err
		}
		return ch.r.do(cmd.Context(), func(ctx context.Context, c *clientv3.Client) error {
			s, err := ch.r.configured(ctx, c)
			if err != nil {
				return err
			}
			file, err := edited(ctx, cmd, s.Config.Value)
			if err != nil {
				return err
			}
			next, err := os.ReadFile(file)
			if err != nil {
				return failed(exitStands, "read what was written: %w", err)
			}
			if err := ch.propose(c, s, bytes.TrimSpace(next)); err != nil {
				cmd.PrintErrln("tenurectl: what you wrote is kept: tenurectl config set @" + file)
				return err
			}
			return os.Remove(file)
		})
	}
	return cmd
}

// edited lets a person change the text, and names the file with the outcome.
func edited(ctx context.Context, cmd *cobra.Command, text []byte) (string, error) {
	f, err := os.CreateTemp("", "tenure-config-*.json")
	if err != nil {
		return "", failed(exitStands, "make a file to edit: %w", err)
	}
	_, err = f.WriteString(pretty(text) + "\n")
	if err := errors.Join(err, f.Close()); err != nil {
		return "", failed(exitStands, "write a file to edit: %w", err)
	}
	editor := os.Getenv("VISUAL")
	if editor == "" {
		editor = os.Getenv("EDITOR")
	}
	if editor == "" {
		editor = "vi"
	}
	// By a shell, as git does it: an editor may come with flags.
	e := exec.CommandContext(ctx, "sh", "-c", editor+` "$1"`, "sh", f.Name())
	e.Stdin, e.Stdout, e.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	if err := e.Run(); err != nil {
		return "", failed(exitStands, "the editor %q ended with %w; nothing is changed", editor, errors.Join(err, os.Remove(f.Name())))
	}
	return f.Name(), nil
}

// propose shows what the config would do, asks, and writes it in the state in
// which it was judged; where that has changed it judges again.
func (ch *change) propose(c *clientv3.Client, s *lease.Snapshot, next []byte) error {
	asked := s.Config.ModRevision
	var shown api.ConfigEffect
	for range judgeAgain {
		if s.Config.ModRevision != asked {
			return failed(exitStands, "somebody else has changed the network config meanwhile: look at it again (tenurectl config get)")
		}
		e := lease.Effect(s, next, endpointsOf(ch.r.etcd))
		if err := ch.refuse(e); err != nil {
			return err
		}
		if sameConfig(s.Config.Value, next) {
			return ch.done(e, "nothing changes")
		}
		if ch.dry {
			return ch.done(e, "nothing is written (--dry-run)")
		}
		if !ch.yes && !sameEffect(e, shown) {
			if err := ch.ask(e); err != nil {
				return err
			}
		}
		shown = e
		// A time of its own: the person may have taken theirs.
		ctx, cancel := context.WithTimeout(ch.r.cmd.Context(), clusterTimeout)
		defer cancel()
		err := lease.Configure(ctx, c, ch.r.etcd.Prefix, s, next)
		if err == nil {
			e.Applied = true
			return ch.done(e, "the network config is written; nodes take it over within seconds, or say in their status why not")
		}
		if !errors.Is(err, lease.ErrChangedBetween) {
			return fmt.Errorf("%w\nLook whether it was written: tenurectl config get", err)
		}
		if s, err = ch.r.configured(ctx, c); err != nil {
			return err
		}
	}
	return failed(exitStands, "nodes write to etcd all the time: in %d tries nothing stood still long enough; try again", judgeAgain)
}

// judgeAgain bounds how often a config is judged anew because a node has
// acquired or changed a record between look and write.
const judgeAgain = 20

// sameEffect: what a person has agreed to stands, whoever renewed meanwhile.
func sameEffect(a, b api.ConfigEffect) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

// refuse prints why no node would take it.
func (ch *change) refuse(e api.ConfigEffect) error {
	if !e.Refused() {
		return nil
	}
	if err := ch.print(e, ""); err != nil {
		return err
	}
	if len(e.Faults) > 0 {
		return failed(exitUsage, "this network config is refused: %s", strings.Join(e.Faults, "; "))
	}
	return failed(exitStands, "this network config is refused: %d held subnets would have no place in it, so every node would go on with the old one", len(e.Orphaned))
}

func (ch *change) done(e api.ConfigEffect, text string) error {
	return ch.print(e, text)
}

func (ch *change) print(e api.ConfigEffect, text string) error {
	return ch.f.show(ch.r.cmd.OutOrStdout(), e, func(w io.Writer) error {
		if e.Applied && !ch.yes { // it was shown before it was asked
			_, err := fmt.Fprintln(w, text)
			return err
		}
		return effectText(w, e, text)
	})
}

// ask shows the effect on standard error where standard output is for a program.
func (ch *change) ask(e api.ConfigEffect) error {
	cmd, w := ch.r.cmd, ch.r.cmd.OutOrStdout()
	if !ch.f.table() {
		w = cmd.ErrOrStderr()
	}
	if err := effectText(w, e, ""); err != nil {
		return failed(exitStands, "print: %w", err)
	}
	cmd.PrintErr("Write it? [y/N] ")
	answer, err := readLine(cmd.Context(), cmd.InOrStdin())
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	if err != nil {
		return failed(exitUsage, "nobody answered, nothing is changed; --yes writes without asking")
	}
	return failed(exitStands, "nothing is changed")
}

// readLine waits for a line, or for ctx: an interrupt only ends that. The reader
// is left behind then, for the rest of the process, which is short.
func readLine(ctx context.Context, in io.Reader) (string, error) {
	type line struct {
		text string
		err  error
	}
	got := make(chan line, 1)
	go func() {
		text, err := bufio.NewReader(in).ReadString('\n')
		got <- line{text, err}
	}()
	select {
	case l := <-got:
		return l.text, l.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func effectText(w io.Writer, e api.ConfigEffect, text string) error {
	var b strings.Builder
	list := func(mark string, all []string) {
		for _, t := range all {
			fmt.Fprintln(&b, mark, t)
		}
	}
	list(" ", e.Changes)
	list("ERROR", e.Faults)
	for _, o := range e.Orphaned {
		fmt.Fprintf(&b, "ORPHANED %s of %s: %s\n", o.Subnet, orNone(o.Node), o.Why)
	}
	list("WARNING", e.Warnings)
	list("→", e.Notes)
	if e.Before != nil {
		fmt.Fprintln(&b, "subnets before:", countsText(*e.Before))
	}
	if e.After != nil {
		fmt.Fprintln(&b, "subnets after: ", countsText(*e.After))
	}
	if text != "" {
		fmt.Fprintln(&b, text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func countsText(c api.SubnetCounts) string {
	text := fmt.Sprintf("%d in all, %d held, %d reserved, %d free", c.Total, c.Held+c.Dying, c.Reserved, c.Free)
	if c.Outside > 0 {
		text += fmt.Sprintf("; %d more lie outside", c.Outside)
	}
	return text
}

// endpointsOf are etcd's addresses, where they are given as such: nodes refuse a
// network that covers them.
func endpointsOf(e conf.Etcd) []conf.Named {
	var all []conf.Named
	for _, text := range e.Endpoints {
		u, err := url.Parse(text)
		if err != nil {
			continue
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil {
			all = append(all, conf.Named{Prefix: netip.PrefixFrom(a, a.BitLen()), What: "etcd endpoint " + text})
		}
	}
	return all
}
