package uninstall

import (
	_ "embed" // the stub
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tenure-cni/tenure/daemon/cnidir"
	"github.com/tenure-cni/tenure/daemon/install"
)

// The compiler allows embedding in package variables only; nothing writes it.
//
//go:embed stub.sh
var stub []byte

// programs removes unit, configuration and programs, unless another instance
// needs them. Plugins that the runtime will call for pods become the stub.
func (r *removal) programs() error {
	if why := r.needed(); why != "" {
		r.say("programs, unit and %s stay: %s", r.Layout.Config, why)
		return nil
	}
	var errs []error
	all := r.Layout.All("")
	for i := len(all) - 1; i >= 0; i-- {
		f := all[i]
		name := filepath.Base(f.Path)
		switch {
		case f.Keep && !r.Purge:
			if _, err := os.Stat(f.Path); err == nil {
				r.say("left %s, which is yours; --purge removes it", f.Path)
			}
		case len(r.pods) > 0 && (name == install.Plugin || name == install.IPAMPlugin):
			errs = append(errs, r.putStub(f.Path))
		default:
			errs = append(errs, r.remove(f.Path))
		}
		if name == install.Unit {
			r.forgetUnit()
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove programs: %w", err)
	}
	return nil
}

func (r *removal) remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		r.say("removed %s", path)
		// Nobody's but ours, if nothing is in it.
		if dir := filepath.Dir(path); filepath.Base(dir) == "tenure" {
			_ = os.Remove(dir)
		}
	}
	return err
}

func (r *removal) putStub(path string) error {
	if _, err := os.Stat(path); err != nil {
		return nil // it was not there
	}
	_, err := install.Put("/", install.File{Path: path, Mode: 0o755, Content: stub})
	if err == nil {
		r.say("%s answers DEL for the %d pods that are left; remove it when they are gone", path, len(r.pods))
	}
	return err
}

// forgetUnit has systemd read its units again, where it runs.
func (r *removal) forgetUnit() {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return
	}
	if out, err := exec.Command("systemctl", "daemon-reload").CombinedOutput(); err != nil {
		r.say("systemctl daemon-reload: %v: %s", err, strings.TrimSpace(string(out)))
	}
}

// needed says why another instance needs the programs; "" where none does.
func (r *removal) needed() string {
	if pids := otherDaemons(); len(pids) > 0 {
		return fmt.Sprintf("process %d is another tenured", pids[0])
	}
	files, err := cnidir.Read(r.ConfDir)
	if err != nil {
		return err.Error()
	}
	for _, f := range files {
		if f.Ours() {
			return fmt.Sprintf("%s in %s leads to %s", f.Name, r.ConfDir, f.Socket)
		}
	}
	return ""
}
