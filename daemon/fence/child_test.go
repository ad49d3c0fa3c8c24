package fence

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// childRole makes the test binary a daemon that knows nothing but the fence,
// for what needs a process of its own: to be stopped, killed, or elsewhere in
// time.
const childRole = "TENURE_FENCE_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childRole) != "" {
		os.Exit(serveChild(os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

// serveChild opens the fence on the vxlan device of the namespace it is in, and
// then does as each line says. Every answer is one line.
func serveChild(in io.Reader, out io.Writer) int {
	f, err := Open(Options{Links: []string{vxlan}})
	answer := func(err error) {
		if err != nil {
			fmt.Fprintln(out, strings.ReplaceAll(err.Error(), "\n", "; "))
			return
		}
		fmt.Fprintln(out, "ok")
	}
	answer(err)
	if err != nil {
		return 1
	}
	var until time.Duration
	gen := f.Generation()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		word, arg, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "compute": // as a cycle that has its answer does
			after, err := time.ParseDuration(arg)
			gen, until = f.Generation(), BootTime()+after
			answer(err)
		case "arm":
			answer(f.Arm(gen, until))
		default:
			answer(errors.New("what is " + word + "?"))
		}
	}
	return 0
}

// child is such a process.
type child struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// start runs a child in n's namespace, behind the words of wrapper.
func (n *node) start(t *testing.T, wrapper ...string) *child {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	argv := append(wrapper, self)
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), childRole+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, n.ns.Do(cmd.Start))
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &child{cmd: cmd, in: in, out: bufio.NewScanner(out)}
}

// answer is the child's next line.
func (c *child) answer(t *testing.T) string {
	t.Helper()
	if !c.out.Scan() {
		t.Fatalf("the child ended without an answer: %v", c.out.Err())
	}
	return c.out.Text()
}

func (c *child) say(t *testing.T, line string) {
	t.Helper()
	_, err := fmt.Fprintln(c.in, line)
	must(t, err)
}

func (c *child) does(t *testing.T, line string) {
	t.Helper()
	c.say(t, line)
	if got := c.answer(t); got != "ok" {
		t.Fatalf("%s: %s", line, got)
	}
}

// signal returns once the child has stopped, if that is what it is sent.
func (c *child) signal(t *testing.T, sig unix.Signal) {
	t.Helper()
	must(t, c.cmd.Process.Signal(sig))
	if sig == unix.SIGSTOP && !eventually(func() bool { return c.state(t) == "T" }) {
		t.Fatalf("the child is in state %s", c.state(t))
	}
}

func (c *child) state(t *testing.T) string {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	must(t, err)
	_, after, _ := strings.Cut(string(stat), ") ")
	state, _, _ := strings.Cut(after, " ")
	return state
}

// pastDeadline waits until now is at or after the deadline.
func pastDeadline(t *testing.T, d time.Duration) {
	t.Helper()
	if !eventually(func() bool { return BootTime() >= d }) {
		t.Fatalf("the deadline %s is far away", d)
	}
}

// A daemon that is stopped between computing F and writing it, for longer than
// F is ahead, writes what is past. Stopped after writing it, the kernel shuts
// without it. Killed, what it wrote stays in force, both ways.
func TestStoppedDaemon(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.attach(t)
	daemon := n1.start(t)
	if got := daemon.answer(t); got != "ok" {
		t.Fatal(got)
	}
	c, s := n1.sender(t, "10.5.1.7"), n2.sink(t)
	number := uint64(0)
	shut := func(why string) {
		t.Helper()
		number++
		drops(t, why, n1.fence, Closed, s, func() { send(t, c, "10.5.2.7", s.port, number) })
	}

	const ahead = 300 * time.Millisecond
	daemon.does(t, "compute "+ahead.String())
	until := BootTime() + ahead
	daemon.signal(t, unix.SIGSTOP)
	daemon.say(t, "arm")
	pastDeadline(t, until)
	shut("stopped before it wrote the deadline")
	daemon.signal(t, unix.SIGCONT)
	if got := daemon.answer(t); got != "ok" {
		t.Fatalf("arm: %s", got)
	}
	if d := n1.fence.Deadline(); d == 0 || d > until {
		t.Errorf("it wrote the deadline %s, want the one from before, at most %s", d, until)
	}
	shut("it wrote the deadline too late")

	daemon.does(t, "compute 1500ms")
	daemon.does(t, "arm")
	daemon.signal(t, unix.SIGSTOP)
	passes(t, "stopped after it wrote the deadline", c, s, "10.5.2.7")
	pastDeadline(t, n1.fence.Deadline())
	shut("stopped past the deadline")
	daemon.signal(t, unix.SIGCONT)

	daemon.does(t, "compute 1500ms")
	daemon.does(t, "arm")
	daemon.signal(t, unix.SIGKILL)
	_ = daemon.cmd.Wait()
	passes(t, "killed before the deadline", c, s, "10.5.2.7")
	pastDeadline(t, n1.fence.Deadline())
	shut("killed, past the deadline")
}

// In a time namespace the process's clock is not the program's: a deadline
// from it would be off by as much. Nothing is opened, and the error says so.
func TestAnotherClockIsRefused(t *testing.T) {
	n1, _ := twoNodes(t)
	n1.attach(t)
	for _, tc := range []struct{ offset, want string }{
		{"-3", ErrClock.Error()}, {"86400", ErrClock.Error()}, {"0", "ok"},
	} {
		got := n1.start(t, "unshare", "--time", "--boottime", tc.offset, "--fork", "--kill-child").answer(t)
		if !strings.Contains(got, tc.want) {
			t.Errorf("%s s off: got %q, want %q", tc.offset, got, tc.want)
		}
	}
	if err := straightClock(0, errors.New("not readable")); !errors.Is(err, ErrClock) {
		t.Errorf("an offset that cannot be read: %v", err)
	}
}
