package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenure-cni/tenure/daemon/install"
	"github.com/tenure-cni/tenure/daemon/uninstall"
)

// uninstallTimeout is longer than that of all its steps.
const uninstallTimeout = 2 * time.Minute

func newUninstall(socket *string) *cobra.Command {
	var (
		o    uninstall.Options
		root string
	)
	cmd := &cobra.Command{
		Use: "uninstall", Short: "take Tenure off this node", Args: cobra.NoArgs,
		Long: `uninstall removes, in this order: the CNI configuration, so that no pod comes any
more; the subnet's lease (as leave does); the daemon; rules, overlay, bridge and
routes in the kernel; ledger, node.json and their directories; unit and programs.
Names and directories are those of the daemon's configuration file, where there
is one; a flag wins. Another instance than that file's needs its --config, or its
--name, --run-dir and --state-dir.

It refuses while pods have addresses. --with-pods goes on: they keep running
without network, and a stub in the plugins' place answers the DEL of each.
Where another instance uses them, programs and unit stay. What failed in the
middle can be run again.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLayout(o.Layout); err != nil {
				return err
			}
			root, err := hostRoot(root)
			if err != nil {
				return err
			}
			if root != "/" {
				return removeFiles(cmd, root, o.Layout, o.Purge)
			}
			if os.Geteuid() != 0 {
				return failed(exitUsage, "only root can take it off: run it with sudo")
			}
			o.Socket = *socket
			if err := toRemove(cmd, &o); err != nil {
				return err
			}
			return runUninstall(cmd, o)
		},
	}
	uninstallFlags(cmd.Flags(), &o, &root)
	return cmd
}

func uninstallFlags(fs *pflag.FlagSet, o *uninstall.Options, root *string) {
	layoutFlags(fs, &o.Layout, root)
	fs.StringVar(&o.Instance, "name", "tenure", "the daemon's --name")
	fs.StringVar(&o.RunDir, "run-dir", "/run/tenure", "the daemon's --run-dir")
	fs.StringVar(&o.StateDir, "state-dir", "/var/lib/tenure", "the daemon's --state-dir")
	fs.StringVar(&o.ConfDir, "cni-conf-dir", "/etc/cni/net.d", "`directory` of the runtime's CNI configurations")
	fs.BoolVar(&o.WithPods, "with-pods", false, "go on although pods still have addresses")
	fs.BoolVar(&o.KeepPrograms, "keep-programs", false, "leave programs, unit and configuration: a package manager removes them")
	fs.BoolVar(&o.Purge, "purge", false, "remove tenured's configuration file and the data of an embedded etcd too")
}

func runUninstall(cmd *cobra.Command, o uninstall.Options) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), uninstallTimeout)
	defer cancel()
	err := uninstall.Run(ctx, o, func(format string, args ...any) {
		_, _ = fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...)
	})
	switch {
	case errors.Is(err, uninstall.ErrPods):
		return failed(exitStands, "%w", err)
	case err != nil:
		return failed(exitStands, "%w\nRun it again once the cause is gone: it goes on from here", err)
	}
	return nil
}

// removeFiles takes the installation out of a tree that is no running host.
func removeFiles(cmd *cobra.Command, root string, l install.Layout, purge bool) error {
	var errs []error
	for _, f := range l.All("") {
		path := filepath.Join(root, f.Path)
		if f.Keep && !purge {
			if _, err := os.Stat(path); err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "left %s, which is yours; --purge removes it\n", path)
				errs = append(errs, err)
			}
			continue
		}
		err := os.Remove(path)
		switch {
		case err == nil:
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed %s\n", path)
		case errors.Is(err, os.ErrNotExist):
			err = nil
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return failed(exitStands, "%w", err)
	}
	return nil
}
