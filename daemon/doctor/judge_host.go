package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

// oldest is the first kernel with bpf_ktime_get_boot_ns.
const (
	oldestMajor = 5
	oldestMinor = 8
)

// tooOld judges a release such as 6.1.0-18-amd64; what cannot be read is not.
func tooOld(release string) bool {
	fields := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	if len(fields) < 2 {
		return false
	}
	major, err := strconv.Atoi(fields[0])
	minor, err2 := strconv.Atoi(fields[1])
	return err == nil && err2 == nil && (major < oldestMajor || major == oldestMajor && minor < oldestMinor)
}

func (j *judge) daemon() {
	switch {
	case j.Status != nil:
		j.status()
	case j.SocketThere && !j.Root:
		j.info("daemon", "only root may ask tenured, so this looks at the host alone: run it with sudo", j.StatusErr)
	case j.SocketThere:
		j.found(Error, "daemon", "tenured does not answer, so this looks at the host alone", j.StatusErr,
			"systemctl status tenured; journalctl -u tenured")
	default:
		j.info("daemon", "no tenured runs here, so this looks at the host alone: what it lacks before an installation", j.Socket+" does not exist")
	}
}

// status hands on what the daemon says of itself.
func (j *judge) status() {
	s := j.Status
	for _, p := range s.Problems {
		j.all = append(j.all, Finding{p.Code, Severity(p.Severity), p.Text, "tenured says so since " + p.Since, p.Fix})
	}
	if !s.Ready {
		j.found(Error, "not-ready", "no pod can be added: "+s.Reason, "state "+string(s.State), "tenurectl status")
		return
	}
	j.ok("daemon", "tenured %s is %s and holds %s", s.Version, s.State, joined(j.held()))
}

func (j *judge) kernel() {
	if tooOld(j.Kernel) {
		j.found(Error, "kernel", fmt.Sprintf("the kernel is older than %d.%d and cannot run the fence", oldestMajor, oldestMinor), j.Kernel, "install a newer kernel and reboot")
	} else {
		j.ok("kernel", "%s", j.Kernel)
	}
	j.clock()
	t := j.Trials
	if t == nil {
		j.info("not-root", "kernel, firewall and ledger were not tried and read: that takes root", "")
		return
	}
	if t.Fence != "" {
		j.found(Error, "bpf", "the fence cannot be loaded: tenured would be refused here and serve no pod", t.Fence,
			"sysctl kernel.unprivileged_bpf_disabled; cat /sys/kernel/security/lockdown; run tenured as root or with CAP_BPF, CAP_NET_ADMIN")
	} else {
		j.ok("bpf", "the fence can be loaded and attached")
	}
	var missing, why []string
	for _, one := range []struct{ kind, err string }{{"bridge", t.Bridge}, {"veth", t.Veth}, {"vxlan", t.Vxlan}} {
		if one.err != "" {
			missing, why = append(missing, one.kind), append(why, one.kind+": "+one.err)
		}
	}
	if len(missing) > 0 {
		j.found(Error, "link-types", "devices that Tenure is made of cannot be made", strings.Join(why, "; "), "modprobe -a "+strings.Join(missing, " "))
		return
	}
	j.ok("link-types", "bridge, veth and vxlan devices can be made")
}

func (j *judge) clock() {
	if c := j.Clock; c.Err != "" || c.Offset != 0 {
		j.found(Error, "clock", "this runs in a time namespace whose boot clock is off, or may be; a tenured started here is refused",
			strings.TrimSpace(fmt.Sprintf("boottime %s %s", c.Offset, c.Err)), "cat /proc/self/timens_offsets; start tenured outside of the time namespace")
		return
	}
	j.ok("clock", "the boot clock is the kernel's own")
}

func (j *judge) firewall() {
	p := j.IPTables
	if p.Path == "" {
		j.found(Error, "iptables", "there is no iptables: pods get no masquerade and no way through a FORWARD policy of DROP", "not found in PATH", "apt-get install iptables")
		return
	}
	t := j.Trials
	if t == nil {
		j.ok("iptables", "%s, %s", p.Version, p.Path)
		return
	}
	switch {
	case t.Forward != "" || t.Masquerade != "":
		j.found(Error, "iptables", "iptables cannot make the rules that pods need", strings.TrimSpace(t.Forward+" "+t.Masquerade)+" ("+p.Version+")",
			"modprobe -a nf_nat xt_MASQUERADE xt_comment; update-alternatives --config iptables")
	case t.RandomFully != "":
		j.found(Warning, "iptables", "masquerade cannot use fully random ports; connections that start at one moment may be lost", t.RandomFully+" ("+p.Version+")",
			"apt-get install --only-upgrade iptables")
	default:
		j.ok("iptables", "%s, %s, with --random-fully", p.Version, p.Path)
	}
	if t.NoTrack != "" {
		j.found(Warning, "notrack", "the overlay's outer packets pass through connection tracking: slower, and one entry for each peer", t.NoTrack, "modprobe -a iptable_raw xt_CT")
		return
	}
	j.ok("notrack", "the overlay's outer packets can be kept out of connection tracking")
}

// Space that a directory should have left.
const (
	leastFree  = 16 << 20
	leastFiles = 256
)

func (j *judge) directories() {
	j.directory("run-dir", j.Run, func(d Directory) bool {
		if d.There && !d.Volatile {
			j.found(Warning, "run-dir", "the run directory outlives a boot; what is in it must not", d.Path+" is on a disk", "give --run-dir a directory on a tmpfs: /run/tenure")
		}
		return d.There && !d.Volatile
	})
	j.directory("state-dir", j.State, func(d Directory) bool {
		if d.There && d.Volatile {
			j.found(Warning, "state-dir", "the state directory is lost at every boot, and with it this node's identity", d.Path+" is in memory", "give --state-dir a directory on a disk: /var/lib/tenure")
		}
		return d.There && d.Volatile
	})
}

// directory judges what is asked of both; misplaced notes what is wrong with
// the place, if anything is.
func (j *judge) directory(code string, d Directory, misplaced func(Directory) bool) {
	space := fmt.Sprintf("%s: %d of %d MiB free, %d of %d inodes", d.Path, d.Free>>20, d.Total>>20, d.FreeFiles, d.Files)
	switch {
	case d.Path == "":
	case d.Err != "":
		j.found(Error, code, "a directory of tenured cannot be used", d.Err, "ls -ld "+d.Path)
	case d.ReadOnly:
		j.found(Error, code, "a directory of tenured lies on a file system that cannot be written", d.Path, "findmnt -T "+d.Path)
	case d.Free == 0 || d.Files > 0 && d.FreeFiles == 0:
		j.found(Error, code, "a directory of tenured is full: no pod can be added", space, "df -h "+d.Path+"; df -i "+d.Path)
	case d.Free < leastFree || d.Files > 0 && d.FreeFiles < leastFiles:
		j.found(Warning, code, "a directory of tenured is nearly full", space, "df -h "+d.Path+"; df -i "+d.Path)
	case misplaced(d):
	case !d.There:
		j.info(code, "the directory does not exist yet; tenured makes it", space)
	default:
		j.ok(code, "%s", space)
	}
}
