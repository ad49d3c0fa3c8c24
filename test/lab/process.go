package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// launcher starts processes from one thread that lives as long as the lab.
// PR_SET_PDEATHSIG fires when the parent *thread* ends, and threads of Go end
// with the goroutine that locked them: a child started anywhere else could be
// killed by an unrelated goroutine's end.
type launcher struct {
	work chan func()
	quit chan struct{}
	done chan struct{}
}

// errClosed says that the lab has been closed.
var errClosed = errors.New("the lab is closed")

func newLauncher() *launcher {
	l := &launcher{work: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
	go l.serve()
	return l
}

func (l *launcher) serve() {
	defer close(l.done)
	runtime.LockOSThread()
	for {
		select {
		case f := <-l.work:
			f()
		case <-l.quit:
			return
		}
	}
}

func (l *launcher) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	select {
	case l.work <- func() { result <- cmd.Start() }:
		return <-result
	case <-l.done:
		return errClosed
	}
}

// close ends the thread, and with it every child still alive. It is called
// once.
func (l *launcher) close() {
	close(l.quit)
	<-l.done
}

// Process is a program that the lab started. Its methods may be called from
// any goroutine.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of cmd.Wait; read after done
}

// command prepares argv to run inside the namespace ns.
func (l *Lab) command(ctx context.Context, ns string, argv ...string) *exec.Cmd {
	// "ip netns exec" replaces itself by the program, so the pid is the
	// program's, and shows it the /sys of the namespace.
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", ns}, argv...)...)
	cmd.Env = environment()
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if l.opts.Detached {
		cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// environment is the caller's, less what would steer the programs under test.
func environment() []string {
	env := []string{"LC_ALL=C"}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "TENURED_") || strings.HasPrefix(name, "CNI_") || name == "PATH" || strings.HasPrefix(name, "LC_") {
			continue
		}
		env = append(env, kv)
	}
	return append(env, "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin:/usr/bin:/bin")
}

// spawn starts a program that goes on in the background; what it prints is
// appended to logFile.
func (l *Lab) spawn(ns, logFile string, argv ...string) (*Process, error) {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", argv[0], err)
	}
	defer func() { _ = out.Close() }()
	cmd := l.command(context.Background(), ns, argv...)
	cmd.Stdout, cmd.Stderr = out, out
	return l.track(cmd)
}

// track starts cmd and keeps it in the lab's books until it ends.
func (l *Lab) track(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, done: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("start %s: %w", strings.Join(cmd.Args, " "), errClosed)
	}
	if err := l.launch.start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", strings.Join(cmd.Args, " "), err)
	}
	l.procs[p] = struct{}{}
	go func() {
		p.err = cmd.Wait()
		l.mu.Lock()
		delete(l.procs, p)
		l.mu.Unlock()
		close(p.done)
	}()
	if err := recordChild(l.id, cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()
		return nil, err
	}
	return p, nil
}

// Pid is the program's process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends sig to the program alone. After SIGSTOP it waits until every
// thread of it has stopped, which on a busy machine takes a while. The error is
// os.ErrProcessDone when it has ended.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil || sig != unix.SIGSTOP {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	return Eventually(ctx, fmt.Sprintf("process %d to stop", p.Pid()), p.stopped)
}

// stopWait bounds how long the threads of a stopped program may go on.
const stopWait = 10 * time.Second

// stopped is nil when no thread of the program runs.
func (p *Process) stopped() error {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid()))
	if err != nil {
		return err
	}
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return err
		}
		// The state follows the name, which is in parentheses and may hold any.
		if _, after, ok := strings.Cut(string(b[bytes.LastIndexByte(b, ')'):]), ") "); !ok || !strings.HasPrefix(after, "T") {
			return fmt.Errorf("%s: %s", task, bytes.TrimSpace(b))
		}
	}
	return nil
}

// Wait waits for the program's end. The error is ctx's, or the *exec.ExitError
// of a program that ended otherwise than with code 0.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("wait for process %d: %w", p.Pid(), ctx.Err())
	}
}

// Stop asks the program to end with SIGTERM and waits; when ctx ends first, or
// after 10 s without a deadline, it is killed and that is an error.
func (p *Process) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := p.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop process %d: %w", p.Pid(), err)
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("process %d did not end on SIGTERM and was killed: %w", p.Pid(), ctx.Err())
	}
}

// Kill ends the program with SIGKILL, as a crash would, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// killGroup ends the program and what it started.
func (p *Process) killGroup() {
	_ = unix.Kill(-p.Pid(), unix.SIGKILL)
	<-p.done
}

// run executes argv inside ns and waits for it.
func (l *Lab) run(ctx context.Context, ns string, stdin io.Reader, argv ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := l.command(ctx, ns, argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	return l.finish(ctx, cmd, &stdout, &stderr)
}

// finish starts a prepared command that writes to the two buffers, waits for
// it and words its failure.
func (l *Lab) finish(ctx context.Context, cmd *exec.Cmd, stdout, stderr *bytes.Buffer) (string, error) {
	if err := l.launch.start(cmd); err != nil {
		return "", fmt.Errorf("start %s: %w", strings.Join(cmd.Args, " "), err)
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		said := strings.TrimSpace(stderr.String())
		if said == "" {
			said = strings.TrimSpace(stdout.String())
		}
		return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, said)
	}
	return stdout.String(), nil
}
