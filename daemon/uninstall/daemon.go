package uninstall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/install"
)

// stopDaemon ends the process that listens on the socket: by systemd where it
// is a unit's, which would start it again, else by SIGTERM. The instance's unit
// is disabled also where nobody listens: it may be about to, or at the next boot.
func (r *removal) stopDaemon(ctx context.Context) error {
	pid, err := listener(r.Socket)
	if err != nil {
		return fmt.Errorf("find the daemon's process: %w", err)
	}
	if pid != 0 {
		if unit := unitOf(ctx, pid); unit != "" {
			return r.disable(ctx, unit)
		}
		if err := unix.Kill(pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end tenured, process %d: %w", pid, err)
		}
		r.say("ended tenured, process %d", pid)
	}
	if unit := r.ownUnit(ctx); unit != "" {
		return r.disable(ctx, unit)
	}
	return nil
}

func (r *removal) disable(ctx context.Context, unit string) error {
	out, err := exec.CommandContext(ctx, "systemctl", "disable", "--now", unit).CombinedOutput()
	if err != nil {
		return fmt.Errorf("stop %s: %w: %s", unit, err, strings.TrimSpace(string(out)))
	}
	r.say("stopped and disabled %s", unit)
	return nil
}

// ownUnit is the unit that starts this instance, "" for none or without
// systemd. A unit's name does not tell whose it is, its command does.
func (r *removal) ownUnit(ctx context.Context) string {
	for _, unit := range []string{install.Unit, "tenured-" + r.Instance + ".service"} {
		out, err := exec.CommandContext(ctx, "systemctl", "show", "-p", "ExecStart", "--value", unit).Output()
		if err == nil && starts(string(out), r.Layout.Config, r.RunDir) {
			return unit
		}
	}
	return ""
}

// starts tells whether the command, as systemctl shows it, starts the instance
// of that configuration or, without one, of that run-dir.
func starts(command, config, runDir string) bool {
	want, value := "--config", config
	if config == "" {
		want, value = "--run-dir", runDir
	}
	_, argv, _ := strings.Cut(command, "argv[]=")
	argv, _, _ = strings.Cut(argv, " ; ")
	words := strings.Fields(argv)
	for i, w := range words {
		if w == want+"="+value || w == want && i+1 < len(words) && words[i+1] == value {
			return true
		}
	}
	return false
}

// refuseContainer: what runs the container of the daemon starts it anew, and
// that undoes what is done here.
func (r *removal) refuseContainer() error {
	pid, err := listener(r.Socket)
	if err != nil {
		return fmt.Errorf("find the daemon's process: %w", err)
	}
	if pid == 0 {
		return nil
	}
	theirs, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	ours, _ := os.ReadFile("/proc/self/cgroup")
	in := containerOf(string(theirs))
	if pid == 1 { // seen from inside
		in = "this one"
	} else if in == containerOf(string(ours)) {
		in = ""
	}
	if in != "" {
		return fmt.Errorf("tenured, process %d, runs in a container (%s), and would be started there again: take this node out of its DaemonSet first, then run this on the host once the pod is gone", pid, in)
	}
	return nil
}

// containerOf is the control group of the innermost container as a process's
// list of groups tells it, "" where the process is in none. Runtimes name it by
// the 64 digits of the container's ID.
func containerOf(groups string) string {
	all := regexp.MustCompile(`[^/\n]*[0-9a-f]{64}[^/\n]*`).FindAllString(groups, -1)
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}

// listener is the process that listens on a socket, 0 for none.
func listener(socket string) (int, error) {
	conn, err := net.Dial("unix", socket)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	ctlErr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	switch {
	case ctlErr != nil:
		return 0, ctlErr
	case err != nil:
		return 0, err
	case cred.Pid == 0:
		return 0, errors.New("it runs in a process namespace that cannot be seen from here: stop it there first")
	}
	return int(cred.Pid), nil
}

// unitOf is the service whose main process it is, "" for none: a process can
// be in the control group of a service that is not its own.
func unitOf(ctx context.Context, pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		unit := filepath.Base(strings.TrimSpace(line))
		if !strings.HasSuffix(unit, ".service") {
			continue
		}
		out, err := exec.CommandContext(ctx, "systemctl", "show", "-p", "MainPID", "--value", unit).Output()
		if err == nil && strings.TrimSpace(string(out)) == strconv.Itoa(pid) {
			return unit
		}
	}
	return ""
}

// otherDaemons are processes on this host that are a tenured, wherever their
// program lies: each needs the plugins. What is in another network namespace
// is another node's.
func otherDaemons() (pids []int) {
	here, _ := os.Readlink("/proc/self/ns/net")
	all, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range all {
		exe, err := os.Readlink(link)
		if err != nil || filepath.Base(strings.TrimSuffix(exe, " (deleted)")) != install.Daemon {
			continue
		}
		if ns, err := os.Readlink(filepath.Join(filepath.Dir(link), "ns", "net")); err != nil || ns != here {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
