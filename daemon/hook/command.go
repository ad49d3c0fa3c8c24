package hook

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ran is what a run of the command did.
type ran struct {
	err    error
	output string
	took   time.Duration
}

// pipeWait is how long the output of a command that has ended is waited for:
// what it left behind in the background may hold it open for ever.
const pipeWait = 2 * time.Second

// run runs the command for one pod, without a shell. When its time is over or
// ctx ends, its process group is killed.
func (h *Hook) run(ctx context.Context, s Stranding) ran {
	// PR_SET_PDEATHSIG fires at the end of the thread that forked, and threads
	// of Go end with a goroutine that locked them: this one is kept.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := time.Now()
	timed, cancel := context.WithTimeout(ctx, h.cfg.Limits.Timeout)
	defer cancel()
	var out tail
	cmd := exec.CommandContext(timed, h.cfg.Command, s.ContainerID, s.IfName, s.Address, s.Subnet)
	cmd.Env, cmd.Dir = h.environ(s), "/"
	cmd.Stdout, cmd.Stderr = &out, &out
	// The daemon's death ends the command, so that the next daemon, which knows
	// of no run, does not start a second one beside it.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = pipeWait
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrWaitDelay): // ended well, but for its output
		err = nil
	case err != nil && ctx.Err() == nil && timed.Err() != nil:
		err = fmt.Errorf("%s did not end within %s and was killed: %w", h.cfg.Command, h.cfg.Limits.Timeout, err)
	case err != nil:
		err = fmt.Errorf("run %s: %w", h.cfg.Command, err)
	}
	return ran{err: err, output: out.String(), took: time.Since(began)}
}

// environ is what the command inherits and what it is told. The daemon's own
// settings, and the sockets on which systemd hears the daemon, are not its.
func (h *Hook) environ(s Stranding) []string {
	var env []string
	for _, kv := range h.cfg.Environ {
		name, _, _ := strings.Cut(kv, "=")
		switch prefix, _, _ := strings.Cut(name, "_"); prefix {
		case "TENURED", "TENURE", "NOTIFY", "WATCHDOG", "LISTEN":
		default:
			env = append(env, kv)
		}
	}
	return append(env,
		"TENURE_EVENT=pod-stranded",
		"TENURE_NODE="+h.cfg.Node,
		"TENURE_CONTAINER_ID="+s.ContainerID,
		"TENURE_IFNAME="+s.IfName,
		"TENURE_ADDRESS="+s.Address,
		"TENURE_LOST_SUBNET="+s.Subnet,
		"TENURE_SUBNET="+s.NewSubnet,
		"TENURE_REASON="+s.Reason,
	)
}

// tailSize is how much of a command's output gets to the log, in bytes.
const tailSize = 2048

// tail keeps the end of what is written to it. exec uses one goroutine for a
// writer that is both outputs.
type tail struct {
	b   []byte
	cut bool
}

// Write implements io.Writer and never fails.
func (t *tail) Write(b []byte) (int, error) {
	t.b = append(t.b, b...)
	if n := len(t.b) - tailSize; n > 0 {
		t.b, t.cut = append(t.b[:0], t.b[n:]...), true
	}
	return len(b), nil
}

// String is the end, in valid UTF-8.
func (t *tail) String() string {
	s := strings.TrimSpace(strings.ToValidUTF8(string(t.b), "?"))
	if t.cut {
		s = "…" + s
	}
	return s
}
