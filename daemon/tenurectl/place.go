package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/doctor"
	"github.com/tenure-cni/tenure/daemon/uninstall"
)

// place is where an instance of tenured is: what its flags of these names say.
// nil is not asked for.
type place struct {
	name, runDir, stateDir, confDir, socket, subnetFile *string
}

// readConfig reads the daemon's configuration file; one that is not there has
// nothing to say, and its error is that of os.Stat.
func readConfig(cmd *cobra.Command, file string) (conf.Daemon, error) {
	if _, err := os.Stat(file); err != nil {
		return conf.Daemon{}, err
	}
	return conf.Load([]string{"--config", file}, nil, cmd.ErrOrStderr())
}

// take takes over what the daemon's own configuration says, where no flag does.
// Socket and subnet file follow a run-dir that is given.
func (p place) take(cfg conf.Daemon, flags *pflag.FlagSet) {
	set := func(flag string, to *string, value string) {
		if to != nil && value != "" && !flags.Changed(flag) {
			*to = value
		}
	}
	set("name", p.name, cfg.Name)
	set("run-dir", p.runDir, cfg.RunDir)
	set("state-dir", p.stateDir, cfg.StateDir)
	if cfg.CNIConfFile != "" {
		set("cni-conf-dir", p.confDir, filepath.Dir(cfg.CNIConfFile))
	}
	set("subnet-file", p.subnetFile, filepath.Join(*p.runDir, "subnet.env"))
	switch {
	case !flags.Changed("run-dir"):
		set("socket", p.socket, cfg.Socket)
		set("subnet-file", p.subnetFile, cfg.SubnetFile)
	default:
		set("socket", p.socket, filepath.Join(*p.runDir, "tenured.sock"))
	}
}

// toRemove fills in what is to be removed. It is never guessed: a configuration
// that cannot be read, or is another instance's, would lead to a wrong one.
func toRemove(cmd *cobra.Command, o *uninstall.Options) error {
	flags := cmd.Flags()
	named := flags.Changed("run-dir") && flags.Changed("state-dir")
	cfg, err := readConfig(cmd, o.Layout.Config)
	_, missing := os.Stat(o.Layout.Config)
	switch {
	case err != nil && missing == nil && !named:
		return failed(exitUsage, "%s does not say what to remove: %w\nRepair it, or give --name, --run-dir, --state-dir and --cni-conf-dir", o.Layout.Config, err)
	case err != nil && flags.Changed("config") && !named:
		return failed(exitUsage, "--config %s: %w\nGive the daemon's, or --name, --run-dir, --state-dir and --cni-conf-dir", o.Layout.Config, err)
	}
	if other := cmp.Or(cfg.Name, "tenure"); flags.Changed("name") && o.Instance != other {
		if !named {
			return failed(exitUsage, "--name %s: give its --config, or its --run-dir and --state-dir too", o.Instance)
		}
		// The file, and the unit that names it, are the other one's.
		o.KeepPrograms = o.KeepPrograms || missing == nil
		o.Layout.Config = ""
	}
	place{&o.Instance, &o.RunDir, &o.StateDir, &o.ConfDir, &o.Socket, &o.SubnetFile}.take(cfg, flags)
	return nil
}

// whose fills in name and socket of the instance whose configuration that is. A
// faulty one is an error: another bridge's name would be a guess.
func whose(cmd *cobra.Command, config string, name, socket *string) error {
	cfg, err := readConfig(cmd, config)
	if err != nil && (cmd.Flag("config").Changed || !errors.Is(err, fs.ErrNotExist)) && !cmd.Flag("name").Changed {
		return failed(exitUsage, "%s does not say whose bridge it is: %w\nRepair it, or give --name", config, err)
	}
	if cmd.Flag("name").Changed && *name != cmp.Or(cfg.Name, "tenure") && !cmd.Flag("socket").Changed {
		return failed(exitUsage, "--name %s: give its --config or --socket too", *name)
	}
	var runDir string
	place{name: name, runDir: &runDir, socket: socket}.take(cfg, cmd.Flags())
	return nil
}

// toLookAt fills in where doctor looks. A configuration that cannot be read is
// said; doctor is there for hosts on which something is wrong.
func toLookAt(cmd *cobra.Command, o *doctor.Options, socket, config string) {
	o.Socket = socket
	cfg, err := readConfig(cmd, config)
	if err != nil && (cmd.Flag("config").Changed || !errors.Is(err, fs.ErrNotExist)) {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "tenurectl: %s does not say where to look: %v\n", config, err)
	}
	place{name: &o.Instance, runDir: &o.RunDir, stateDir: &o.StateDir, confDir: &o.ConfDir, socket: &o.Socket}.take(cfg, cmd.Flags())
}
