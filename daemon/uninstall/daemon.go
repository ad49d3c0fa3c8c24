package uninstall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// stopDaemon ends the process that listens on the socket: by systemd where it
// is a unit's, which would start it again, else by SIGTERM.
func (r *removal) stopDaemon(ctx context.Context) error {
	pid, err := listener(r.Socket)
	if err != nil {
		return fmt.Errorf("find the daemon's process: %w", err)
	}
	if pid == 0 {
		return nil
	}
	if unit := unitOf(ctx, pid); unit != "" {
		out, err := exec.CommandContext(ctx, "systemctl", "disable", "--now", unit).CombinedOutput()
		if err != nil {
			return fmt.Errorf("stop %s: %w: %s", unit, err, strings.TrimSpace(string(out)))
		}
		r.say("stopped and disabled %s", unit)
		return nil
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end tenured, process %d: %w", pid, err)
	}
	r.say("ended tenured, process %d", pid)
	return nil
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

// otherDaemons are processes that run the program at path.
func otherDaemons(path string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range all {
		exe, err := os.Readlink(link)
		if err != nil || strings.TrimSuffix(exe, " (deleted)") != path {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
