package doctor

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/cnidir"
)

func (j *judge) cni() {
	c := j.CNI
	first := slices.IndexFunc(c.Files, cnidir.File.Ours)
	const shipped = "the shipped configuration"
	needed := map[string]string{"tenure": shipped, "portmap": shipped}
	switch {
	case c.ConfErr != "":
		j.found(Warning, "cni-conf", "the runtime's configurations cannot be read", c.ConfErr, "give --cni-conf-dir the directory that the runtime reads")
	case first < 0:
		j.found(j.absence(), "cni-conf", "no configuration here leads pods to Tenure", c.ConfDir+": "+orNone(c.Files), "start tenured with --cni-conf-file="+filepath.Join(c.ConfDir, "10-tenure.conflist"))
	default:
		j.order(first)
		needed = map[string]string{}
		for _, t := range append(slices.Clone(c.Files[first].Types), c.Files[first].IPAM) {
			if t != "" {
				needed[t] = c.Files[first].Name
			}
		}
	}
	for _, f := range c.Files {
		if f.Err != "" {
			j.found(Warning, "cni-conf", "a configuration cannot be read; a runtime may stop at it", f.Name+": "+f.Err, c.aside(f))
		}
	}
	j.plugins(needed, first >= 0)
}

// absence of a conflist is the rule before the daemon has a lease.
func (j *judge) absence() Severity {
	if j.Status == nil {
		return Info
	}
	return Warning
}

func orNone(files []cnidir.File) string {
	var names []string
	for _, f := range files {
		names = append(names, f.Name)
	}
	if len(names) == 0 {
		return "no file"
	}
	return strings.Join(names, ", ")
}

// aside is the command after which no runtime reads the file.
func (c CNI) aside(f cnidir.File) string {
	path := filepath.Join(c.ConfDir, f.Name)
	return "mv " + path + " " + path + ".off"
}

// order: a runtime takes the file that sorts first, and no other.
func (j *judge) order(first int) {
	c, ours := j.CNI, j.CNI.Files[first]
	if first > 0 {
		winner := c.Files[0]
		j.found(Error, "cni-conf-order", fmt.Sprintf("Tenure is not the active network: %s (network %q) sorts before %s, and a runtime takes the first", winner.Name, winner.Network, ours.Name),
			c.ConfDir+": "+orNone(c.Files), c.aside(winner))
	} else {
		j.ok("cni-conf-order", "%s is the first in %s", ours.Name, c.ConfDir)
	}
	for _, f := range c.Files[first+1:] {
		if f.Ours() && f.Network == ours.Network {
			j.found(Warning, "cni-conf-twice", "two configurations are of Tenure; the later one is not used, perhaps left by an upgrade", ours.Name+" and "+f.Name, "rm "+filepath.Join(c.ConfDir, f.Name))
		}
	}
	if j.Status != nil && ours.Socket != "" && ours.Socket != j.Socket {
		j.found(Warning, "cni-conf", "the configuration calls another socket than the one that was asked here", ours.Socket+", not "+j.Socket, "tenurectl doctor --socket "+ours.Socket)
	}
}

// plugins judges what is to be run for each pod; used says that a runtime does.
func (j *judge) plugins(needed map[string]string, used bool) {
	var missing, why []string
	for _, name := range sortedKeys(needed) {
		if !j.CNI.Programs[name] {
			missing, why = append(missing, name), append(why, name+" (for "+needed[name]+")")
		}
	}
	if len(missing) == 0 {
		j.ok("cni-plugins", "%s in %s", strings.Join(sortedKeys(needed), ", "), j.CNI.BinDir)
		return
	}
	severity, text := Error, "plugins are missing, so every ADD fails"
	if !used {
		severity, text = Warning, "plugins are still missing; without them every ADD will fail"
	}
	j.found(severity, "cni-plugins", text, strings.Join(why, ", ")+" not in "+j.CNI.BinDir, install(missing, j.CNI.BinDir))
}

func install(missing []string, dir string) string {
	var all []string
	if slices.ContainsFunc(missing, func(m string) bool { return strings.HasPrefix(m, "tenure") }) {
		all = append(all, "tenurectl install --from DIR (or reinstall the package)")
	}
	for _, m := range missing {
		if !strings.HasPrefix(m, "tenure") {
			all = append(all, fmt.Sprintf("apt-get install containernetworking-plugins && cp /usr/lib/cni/%s %s/", m, dir))
		}
	}
	return strings.Join(all, "; ")
}

// records compares the ledger with the interfaces in the kernel, and the
// daemon's word with the file that other programs read.
func (j *judge) records() {
	if j.LedgerErr != "" {
		j.found(Warning, "ledger", "the ledger cannot be read; tenured goes on with what it remembers, writes the file anew at the next change, and at its start makes it again from the pods' interfaces",
			j.LedgerErr, "systemctl restart tenured; journalctl -u tenured")
	}
	j.announced()
	if j.Ledger == nil {
		return
	}
	odd := j.odd()
	var gone, strangers []string
	for _, r := range j.Ledger {
		if odd[r.Host] && (j.Early == nil || j.Early[r.Host]) {
			gone = append(gone, fmt.Sprintf("%s of container %s, %v", r.Host, r.Container, r.Addresses))
			delete(odd, r.Host)
		}
	}
	for _, name := range sortedKeys(odd) {
		if o, addrs, ok := attach.ParseAlias(j.Links[name].Alias); ok && (j.Early == nil || j.Early[name]) {
			strangers = append(strangers, fmt.Sprintf("%s of container %s, %v", name, o.ContainerID, addrs))
		}
	}
	if len(gone) > 0 {
		j.found(Warning, "interface-missing", "pods on record have no interface in the kernel; where their namespace is gone too, tenured frees them within seconds",
			strings.Join(gone, "; "), "restart those pods: crictl stopp CONTAINER")
	}
	if len(strangers) > 0 {
		j.found(Warning, "interface-unknown", "pod interfaces in the kernel are not on record; tenured removes them, or takes them back at its start",
			strings.Join(strangers, "; "), "systemctl restart tenured")
	}
	if len(gone)+len(strangers) == 0 {
		j.ok("ledger", "%d pods on record, each with its interface", len(j.Ledger))
	}
}

// odd are the host ends that stand in the ledger and not in the kernel, or in
// the kernel and not in the ledger.
func (f Facts) odd() map[string]bool {
	odd, known := map[string]bool{}, map[string]bool{}
	for _, r := range f.Ledger {
		known[r.Host] = true
		if _, there := f.Links[r.Host]; r.Host != "" && !there {
			odd[r.Host] = true
		}
	}
	for name, l := range f.Links {
		if o, _, ok := attach.ParseAlias(l.Alias); ok && o.Instance == f.Instance && !known[name] {
			odd[name] = true
		}
	}
	return odd
}

// announced compares the subnet of each family that is held with that in
// subnet.env.
func (j *judge) announced() {
	if j.Status == nil {
		return
	}
	for _, s := range j.held() {
		file := j.Announced
		if s.Addr().Is6() {
			file = j.Announced6
		}
		if file.IsValid() && file.Masked() != s {
			j.found(Warning, "subnet-env", "subnet.env names another subnet than the one held", fmt.Sprintf("%s, held %s", file, s), "journalctl -u tenured")
		}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
