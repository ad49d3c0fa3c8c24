package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenure-cni/tenure/daemon/install"
)

// systemdUnits is where an administrator's units are.
const systemdUnits = "/etc/systemd/system"

// layoutFlags are where the files of an installation are.
func layoutFlags(fs *pflag.FlagSet, l *install.Layout, root *string) {
	fs.StringVar(root, "root", "/", "`directory` that stands for / (an image, a package's tree)")
	fs.StringVar(&l.Prefix, "prefix", "/usr/local", "`directory` of tenured (in sbin) and tenurectl (in bin)")
	fs.StringVar(&l.CNIBin, "cni-bin-dir", "/opt/cni/bin", "`directory` of the CNI plugins")
	fs.StringVar(&l.UnitDir, "unit-dir", systemdUnits, "`directory` of the systemd unit; empty for none")
	fs.StringVar(&l.Config, "config", "/etc/tenure/tenured.yaml", "tenured's configuration `file`; empty for none")
}

// checkLayout: a relative path would mean something else to every reader.
func checkLayout(l install.Layout) error {
	for name, dir := range map[string]string{"prefix": l.Prefix, "cni-bin-dir": l.CNIBin, "unit-dir": l.UnitDir, "config": l.Config} {
		if dir != "" && !filepath.IsAbs(dir) || dir == "" && (name == "prefix" || name == "cni-bin-dir") {
			return failed(exitUsage, "--%s %q is no absolute path", name, dir)
		}
	}
	return nil
}

// hostRoot is --root as an absolute path, "/" also where it is the host's root
// under another name: that is a live host and no tree.
func hostRoot(root string) (string, error) {
	if root == "" {
		return "", failed(exitUsage, "--root is empty: is a variable not set? / is this host")
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return "", failed(exitUsage, "--root: %w", err)
	}
	tree, err := os.Stat(root)
	if err != nil {
		return root, nil // there is none yet
	}
	if host, err := os.Stat("/"); err == nil && os.SameFile(tree, host) {
		return "/", nil
	}
	return root, nil
}

func newInstall() *cobra.Command {
	var (
		layout      install.Layout
		root, from  string
		pluginsOnly bool
	)
	cmd := &cobra.Command{
		Use: "install", Short: "put programs, unit and a first configuration in place, or newer ones", Args: cobra.NoArgs,
		Long: `install copies tenured, tenurectl and the two CNI plugins from the directory it
lies in itself to where a node expects them, with a systemd unit and, where there
is none yet, a configuration to be edited.

Each file is replaced by a rename: whoever executes or reads one meanwhile gets
the old one or the new one. What fails leaves the old one. Nothing is started,
stopped or restarted: an upgrade takes effect with systemctl restart tenured, at
no cost for the pods. The CNI configuration is tenured's to write, once it holds
a subnet (cni-conf-file).`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLayout(layout); err != nil {
				return err
			}
			root, err := hostRoot(root)
			if err != nil {
				return err
			}
			if from == "" {
				self, err := os.Executable()
				if err != nil {
					return failed(exitStands, "find the programs to install: %w; give --from", err)
				}
				from = filepath.Dir(self)
			}
			if _, err := os.Stat(filepath.Join(from, install.Plugin)); errors.Is(err, os.ErrNotExist) {
				return failed(exitUsage, "%s does not hold the four programs: give --from, or run the tenurectl that lies beside them", from)
			}
			files := layout.All(from)
			if pluginsOnly {
				files = layout.Plugins(from)
			} else if layout.UnitDir == systemdUnits && root == "/" && !isDir(systemdUnits) {
				layout.UnitDir = ""
				files = layout.All(from)
			}
			return putAll(cmd, root, files)
		},
	}
	layoutFlags(cmd.Flags(), &layout, &root)
	cmd.Flags().StringVar(&from, "from", "", "`directory` of the four programs (default: where tenurectl itself lies)")
	cmd.Flags().BoolVar(&pluginsOnly, "plugins-only", false, "only tenure and tenure-ipam: the rest runs in a container")
	return cmd
}

func putAll(cmd *cobra.Command, root string, files []install.File) error {
	for _, f := range files {
		done, err := install.Put(root, f)
		if err != nil {
			return failed(exitStands, "%w\nThe files named above it are in place; run it again once the cause is gone", err)
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%-9s  %s\n", done, filepath.Join(root, f.Path)); err != nil {
			return failed(exitStands, "print: %w", err)
		}
	}
	return nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
