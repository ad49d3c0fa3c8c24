package install

import (
	"bytes"
	"io/fs"
	"path/filepath"

	"github.com/tenure-cni/tenure/conf"
)

// The programs.
const (
	Plugin     = "tenure"
	IPAMPlugin = "tenure-ipam"
	Daemon     = "tenured"
	Tool       = "tenurectl"
	// Unit is the name of the systemd unit.
	Unit = "tenured.service"
)

// Layout says where the files of an installation are. All are absolute paths
// of the host.
type Layout struct {
	// Prefix holds the daemon in sbin and the tool in bin.
	Prefix string
	// CNIBin is where the runtime looks for plugins.
	CNIBin string
	// UnitDir is where systemd looks for units; "" for no unit.
	UnitDir string
	// Config is the daemon's configuration file; "" for none.
	Config string
}

// File is one file to be put in place.
type File struct {
	Path string
	Mode fs.FileMode
	// From is the program to copy; with "" the file is Content.
	From    string
	Content []byte
	// Keep leaves a file that is there as it is: it is the operator's.
	Keep bool
}

// Plugins are the two programs that a runtime executes, from the directory
// from.
func (l Layout) Plugins(from string) []File {
	return []File{l.program(l.CNIBin, from, Plugin), l.program(l.CNIBin, from, IPAMPlugin)}
}

// All are the files in the order in which they are put: what others call
// comes before them.
func (l Layout) All(from string) []File {
	all := append(l.Plugins(from), l.program(filepath.Join(l.Prefix, "bin"), from, Tool), l.program(filepath.Join(l.Prefix, "sbin"), from, Daemon))
	if l.Config != "" {
		all = append(all, File{Path: l.Config, Mode: 0o644, Content: conf.SampleDaemon(), Keep: true})
	}
	if l.UnitDir != "" {
		all = append(all, File{Path: filepath.Join(l.UnitDir, Unit), Mode: 0o644, Content: l.unit()})
	}
	return all
}

func (l Layout) program(dir, from, name string) File {
	return File{Path: filepath.Join(dir, name), Mode: 0o755, From: filepath.Join(from, name)}
}

// unit is the shipped unit for the daemon and the configuration where they are.
func (l Layout) unit() []byte {
	unit := bytes.ReplaceAll(conf.Unit(), []byte("/usr/local/sbin/"), []byte(filepath.Join(l.Prefix, "sbin")+"/"))
	if l.Config == "" {
		return unit
	}
	return bytes.ReplaceAll(unit, []byte("/etc/tenure/tenured.yaml"), []byte(l.Config))
}
