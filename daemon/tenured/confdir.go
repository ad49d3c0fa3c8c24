package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/cnidir"
)

// removeFormer removes what an earlier version has left beside the conflist
// under another number or extension: a runtime would read it too, or first.
// What differs in more is somebody's and stays.
func (d *daemon) removeFormer() error {
	dir, name := filepath.Split(d.cfg.CNIConfFile)
	files, err := cnidir.Read(dir)
	if err != nil {
		return fmt.Errorf("look for former configurations: %w", err)
	}
	for _, f := range cnidir.Former(files, name, d.cfg.Socket) {
		path := filepath.Join(dir, f.Name)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove former configuration: %w", err)
		}
		d.log.Info("former configuration removed", "file", path)
	}
	return nil
}

// notActive is the problem that a runtime takes another's configuration.
func (d *daemon) notActive() []api.Problem {
	if d.cfg.CNIConfFile == "" {
		return nil
	}
	dir, name := filepath.Split(d.cfg.CNIConfFile)
	files, err := cnidir.Read(dir)
	if err != nil {
		return nil // what others may not read no runtime reads
	}
	winner, ok := cnidir.Winner(files, name)
	if !ok || winner.Ours() && cmp.Or(winner.Socket, api.DefaultSocket) == d.cfg.Socket {
		return nil // somebody's own list, which leads to this daemon
	}
	path := filepath.Join(dir, winner.Name)
	return []api.Problem{{
		Code: "not-active-network", Severity: api.SeverityWarning,
		Text: fmt.Sprintf("Tenure is not the active network: %s (network %q) sorts before %s, and a runtime takes the first", path, winner.Network, name),
		Fix:  fmt.Sprintf("mv %s %s.off, unless it is meant to be first and hands pods on to Tenure", path, path),
	}}
}
