package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenure-cni/tenure/daemon/doctor"
)

// doctorTimeout bounds the command: it starts a handful of programs.
const doctorTimeout = time.Minute

func newDoctor(socket *string) *cobra.Command {
	var (
		o      doctor.Options
		config string
	)
	cmd := &cobra.Command{
		Use: "doctor", Short: "what this host lacks, and where daemon, ledger, kernel and CNI configuration differ", Args: cobra.NoArgs,
		Long: `doctor looks at this host: kernel and fence, devices, iptables, sysctls, the
kernel's tables, MTU, directories, CNI configuration. Where tenured runs, its
status is compared with its ledger and the kernel; without one, doctor says what
is missing before an installation. Names and directories are those of the daemon's
configuration file, where there is one; a flag wins.

It changes nothing. What has to be tried, it tries in a network namespace of its
own; that takes root. It exits 0 when there is nothing worse than a warning, 1
when there is.`,
	}
	f := newForms(cmd, "table", "json", "yaml")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		toLookAt(cmd, &o, *socket, config)
		ctx, cancel := context.WithTimeout(cmd.Context(), doctorTimeout)
		defer cancel()
		all := doctor.Judge(doctor.Observe(ctx, o))
		if err := f.show(cmd.OutOrStdout(), all, func(w io.Writer) error { return doctorTable(w, all) }); err != nil {
			return err
		}
		if doctor.Failed(all) {
			return &exitError{exitStands, errQuiet}
		}
		return nil
	}
	doctorFlags(cmd.Flags(), &o, &config)
	return cmd
}

// doctorFlags say where to look.
func doctorFlags(fs *pflag.FlagSet, o *doctor.Options, config *string) {
	fs.StringVar(config, "config", "/etc/tenure/tenured.yaml", "tenured's configuration `file`")
	fs.StringVar(&o.Instance, "name", "tenure", "the daemon's --name")
	fs.StringVar(&o.Underlay, "iface", "", "underlay `interface` (default the daemon's, else the default route's)")
	fs.StringVar(&o.RunDir, "run-dir", "/run/tenure", "the daemon's --run-dir")
	fs.StringVar(&o.StateDir, "state-dir", "/var/lib/tenure", "the daemon's --state-dir")
	fs.StringVar(&o.ConfDir, "cni-conf-dir", "/etc/cni/net.d", "`directory` of the runtime's CNI configurations")
	fs.StringVar(&o.BinDir, "cni-bin-dir", "/opt/cni/bin", "`directory` of the CNI plugins")
}

// doctorTable prints what is wrong with its evidence and repair, then what is
// well in a line each.
func doctorTable(out io.Writer, all []doctor.Finding) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) }
	for _, f := range all {
		if f.Severity == doctor.OK {
			line("ok", f.Code, f.Text)
			continue
		}
		line(strings.ToUpper(string(f.Severity)), f.Code, f.Text)
		if f.Evidence != "" {
			line("", "", f.Evidence)
		}
		if f.Fix != "" {
			line("", "", "→ "+f.Fix)
		}
	}
	return w.Flush()
}
