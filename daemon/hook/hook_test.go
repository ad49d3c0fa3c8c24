package hook

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// patience bounds every wait of these tests.
const patience = 10 * time.Second

// rig is a Hook whose list the test sets, and whose command is a script.
type rig struct {
	*Hook
	t   *testing.T
	dir string

	mu   sync.Mutex
	list []Stranding
	log  bytes.Buffer
}

// newRig writes the script, which finds its directory in $DIR.
func newRig(t *testing.T, script string, limits Limits) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir()}
	command := filepath.Join(r.dir, "command")
	if err := os.WriteFile(command, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.again(command, "boot", limits)
	return r
}

// again makes the Hook of the next daemon.
func (r *rig) again(command, boot string, limits Limits) {
	r.Hook = New(Config{
		Command: command, File: filepath.Join(r.dir, "memory.json"), Boot: boot, Node: "n1",
		Environ:    []string{"PATH=" + os.Getenv("PATH"), "DIR=" + r.dir, "TENURED_NAME=x", "NOTIFY_SOCKET=/run/x"},
		Strandings: r.now, Log: slog.New(slog.NewTextHandler(&lockedWriter{r}, nil)), Limits: limits,
	})
}

type lockedWriter struct{ r *rig }

func (w *lockedWriter) Write(b []byte) (int, error) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	return w.r.log.Write(b)
}

func (r *rig) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

func (r *rig) now() []Stranding {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

func (r *rig) set(list ...Stranding) {
	r.mu.Lock()
	r.list = list
	r.mu.Unlock()
	r.Changed()
}

// runs runs the Hook until stop, or the test, ends it.
func (r *rig) runs() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	r.t.Cleanup(stop)
	return stop
}

// until waits for a condition.
func (r *rig) until(what string, f func() bool) {
	r.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-deadline:
			r.t.Fatalf("%s: not within %s; the log is\n%s", what, patience, r.logged())
		case <-tick.C:
		}
	}
}

// lines are what the script wrote into a file.
func (r *rig) lines(name string) []string {
	b, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		return nil
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	slices.Sort(all)
	return all
}

func due(container string) Stranding {
	return Stranding{Pod: Pod{ContainerID: container, IfName: "eth0", Address: "10.5.34.2", Subnet: "10.5.34.0/24"},
		Due: true, NewSubnet: "10.5.35.0/24", Reason: "lost 10.5.34.0/24: taken"}
}

func notDue(container string) Stranding {
	s := due(container)
	s.Due = false
	return s
}

const noting = `echo "$1" >>"$DIR/ran"`

// quick are limits for tests of failures.
func quick() Limits { return Limits{Tries: 3, Pause: time.Millisecond} }

func TestOncePerPod(t *testing.T) {
	r := newRig(t, noting, Limits{})
	command := r.cfg.Command
	stop := r.runs()
	r.set(due("c1"), due("c2"), notDue("c3"))
	r.until("c1 and c2 are done", func() bool { return len(r.lines("ran")) == 2 && len(r.saved("boot")) == 2 })
	r.set(due("c1"), due("c2"), due("c3"))
	r.until("c3 is done too", func() bool { return len(r.saved("boot")) == 3 })
	stop()

	// The next daemon of this boot knows nothing yet, then everything.
	r.again(command, "boot", Limits{})
	r.set(notDue("c1"), notDue("c2"), notDue("c3"))
	stop = r.runs()
	r.set(due("c1"), due("c2"), due("c3"), due("c4"))
	r.until("c4 is done", func() bool { return len(r.saved("boot")) == 4 })
	if want := []string{"c1", "c2", "c3", "c4"}; !slices.Equal(r.lines("ran"), want) {
		t.Errorf("ran for %v, want %v", r.lines("ran"), want)
	}
	// A pod that has left is forgotten; its name may come again.
	r.set(due("c1"), due("c2"), due("c3"))
	r.until("c4 is forgotten", func() bool { return len(r.saved("boot")) == 3 })
	r.set(due("c4"))
	r.until("only c4 is remembered", func() bool { return slices.Equal(r.saved("boot"), []Pod{due("c4").Pod}) })
	stop()

	// After a reboot it is another c4.
	r.again(command, "next boot", Limits{})
	r.runs()
	r.until("c4 of the next boot is done", func() bool { return slices.Equal(r.saved("next boot"), []Pod{due("c4").Pod}) })
	if want := []string{"c1", "c2", "c3", "c4", "c4", "c4"}; !slices.Equal(r.lines("ran"), want) {
		t.Errorf("ran for %v, want %v", r.lines("ran"), want)
	}
	r.set()
	r.until("without pods there is no file", func() bool {
		_, err := os.Stat(r.cfg.File)
		return os.IsNotExist(err)
	})
}

// saved is the memory as a daemon of that boot would find it.
func (r *rig) saved(boot string) []Pod {
	all, err := load(r.cfg.File, boot)
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

// TestWhatTheCommandIsTold and what it is not.
func TestWhatTheCommandIsTold(t *testing.T) {
	r := newRig(t, `(echo "args $# $*"; env) >"$DIR/told.new"; mv "$DIR/told.new" "$DIR/told"; pwd; echo to standard error >&2`, Limits{})
	r.set(due("c1; echo $x"))
	r.runs()
	r.until("the command has run", func() bool { return strings.Contains(r.logged(), "has run") })
	told := r.lines("told")
	for _, want := range []string{
		"args 4 c1; echo $x eth0 10.5.34.2 10.5.34.0/24", "TENURE_EVENT=pod-stranded", "TENURE_NODE=n1",
		"TENURE_CONTAINER_ID=c1; echo $x", "TENURE_IFNAME=eth0", "TENURE_ADDRESS=10.5.34.2", "TENURE_LOST_SUBNET=10.5.34.0/24",
		"TENURE_SUBNET=10.5.35.0/24", "TENURE_REASON=lost 10.5.34.0/24: taken", "DIR=" + r.dir,
	} {
		if !slices.Contains(told, want) {
			t.Errorf("not told %q; told\n%s", want, strings.Join(told, "\n"))
		}
	}
	for _, line := range told {
		if strings.HasPrefix(line, "TENURED_") || strings.HasPrefix(line, "NOTIFY_") {
			t.Errorf("told %q, which is the daemon's own", line)
		}
	}
	if log := r.logged(); !strings.Contains(log, `output="/\nto standard error"`) || !strings.Contains(log, "event=on-stranded") {
		t.Errorf("the log is\n%s", log)
	}
}

// TestAPodThatHasGoneGetsNone: it left while others had their turn.
func TestAPodThatHasGoneGetsNone(t *testing.T) {
	r := newRig(t, noting+`; while [ ! -e "$DIR/go" ]; do sleep 0.01; done`, Limits{Parallel: 2})
	r.set(due("c1"), due("c2"), due("c3"), due("c4"))
	r.runs()
	r.until("two run", func() bool { return len(r.lines("ran")) == 2 })
	r.set(due("c1"), due("c2"), due("c4"))
	if err := os.WriteFile(filepath.Join(r.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.until("all are done", func() bool { return len(r.saved("boot")) == 3 })
	if want := []string{"c1", "c2", "c4"}; !slices.Equal(r.lines("ran"), want) {
		t.Errorf("ran for %v, want %v", r.lines("ran"), want)
	}
}

// TestAFailureIsTriedAgain a few times, and no more.
func TestAFailureIsTriedAgain(t *testing.T) {
	r := newRig(t, noting+`; [ "$1" = good ] || { echo no way; exit 7; }`, quick())
	r.set(due("bad"), due("good"))
	stop := r.runs()
	r.until("it is given up", func() bool { return len(r.GivenUp()) == 1 })
	r.Changed()
	if want := []string{"bad", "bad", "bad", "good"}; !slices.Equal(r.lines("ran"), want) {
		t.Errorf("ran for %v, want %v", r.lines("ran"), want)
	}
	if got := r.GivenUp(); got[0].ContainerID != "bad" {
		t.Errorf("given up for %v", got)
	}
	log := r.logged()
	for what, n := range map[string]int{"exit status 7": 3, `output="no way"`: 3, "try=1 again=1ms": 1, "try=2 again=2ms": 1, "given up": 1} {
		if got := strings.Count(log, what); got != n {
			t.Errorf("%q is in the log %d times, want %d:\n%s", what, got, n, log)
		}
	}
	stop()
	if got := r.saved("boot"); len(got) != 1 || got[0].ContainerID != "good" {
		t.Errorf("remembered as done: %v", got)
	}
	r.set(due("good"))
	r.runs()
	r.until("who has left is not given up any more", func() bool { return len(r.GivenUp()) == 0 })
}

// alive reports whether a process lives and is no zombie.
func alive(pid string) bool {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// hanging starts a process of its own and waits for it.
const hanging = `sleep 300 & echo $! >"$DIR/pid.new"; mv "$DIR/pid.new" "$DIR/pid"; ` + noting + `; wait`

func (r *rig) child() string {
	r.t.Helper()
	r.until("the command runs", func() bool { return len(r.lines("ran")) > 0 })
	pid := r.lines("pid")[0]
	r.t.Cleanup(func() {
		if n, err := strconv.Atoi(pid); err == nil && alive(pid) {
			_ = unix.Kill(n, unix.SIGKILL)
		}
	})
	if !alive(pid) {
		r.t.Errorf("process %s has ended by itself", pid)
	}
	return pid
}

// TestACommandThatHangs ends with all its processes when its time is over, and
// keeps nobody else from a turn.
func TestACommandThatHangs(t *testing.T) {
	r := newRig(t, hanging, Limits{Tries: 1, Timeout: 300 * time.Millisecond})
	r.set(due("c1"))
	r.runs()
	pid := r.child()
	r.until("it is given up", func() bool { return len(r.GivenUp()) == 1 })
	r.until("its process is gone", func() bool { return !alive(pid) })
	if !strings.Contains(r.logged(), "did not end within 300ms") {
		t.Errorf("the log is\n%s", r.logged())
	}
}

// TestItEndsWithTheDaemon: the daemon does not wait for it, no process stays,
// and the next daemon runs it again.
func TestItEndsWithTheDaemon(t *testing.T) {
	r := newRig(t, hanging, Limits{})
	r.set(due("c1"))
	stop := r.runs()
	pid := r.child()
	began := time.Now()
	stop()
	if took := time.Since(began); took > pipeWait {
		t.Errorf("the daemon's end took %s", took)
	}
	r.until("its process is gone", func() bool { return !alive(pid) })
	if got := r.saved("boot"); len(got) != 0 {
		t.Errorf("remembered as done: %v", got)
	}
	if len(r.GivenUp()) != 0 || !strings.Contains(r.logged(), "ended with the daemon") {
		t.Errorf("the log is\n%s", r.logged())
	}
}

// TestWhatIsLeftInTheBackground does not keep a command from having ended.
func TestWhatIsLeftInTheBackground(t *testing.T) {
	r := newRig(t, strings.TrimSuffix(hanging, "; wait"), Limits{})
	r.set(due("c1"))
	r.runs()
	r.child()
	r.until("it is done", func() bool { return len(r.saved("boot")) == 1 })
}

func TestNoSuchCommand(t *testing.T) {
	r := newRig(t, noting, quick())
	r.cfg.Command = filepath.Join(r.dir, "gone")
	r.set(due("c1"))
	r.runs()
	r.until("it is given up", func() bool { return len(r.GivenUp()) == 1 })
}

// TestADamagedMemory is told and replaced; leftovers of writes go.
func TestADamagedMemory(t *testing.T) {
	r := newRig(t, noting, Limits{})
	left := filepath.Join(r.dir, ".memory.json123")
	for _, f := range []string{r.cfg.File, left} {
		if err := os.WriteFile(f, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.set(due("c1"))
	r.runs()
	r.until("the command has run and is remembered", func() bool {
		done, err := load(r.cfg.File, "boot")
		return err == nil && len(done) == 1 && len(r.lines("ran")) == 1
	})
	if !strings.Contains(r.logged(), "is lost") {
		t.Errorf("the log is\n%s", r.logged())
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("leftover: %v", err)
	}
}

// TestAMemoryThatCannotBeWritten keeps nobody from a turn, is told once, and
// is written when that is possible again.
func TestAMemoryThatCannotBeWritten(t *testing.T) {
	r := newRig(t, noting, Limits{})
	r.cfg.File = filepath.Join(r.dir, "missing", "memory.json")
	r.set(due("c1"), due("c2"))
	r.runs()
	r.until("both have run", func() bool { return strings.Count(r.logged(), "has run") == 2 })
	r.until("it is told", func() bool { return strings.Contains(r.logged(), "not on disk") })
	if err := os.Mkdir(filepath.Dir(r.cfg.File), 0o700); err != nil {
		t.Fatal(err)
	}
	r.until("it is written", func() bool { r.Changed(); return len(r.saved("boot")) == 2 })
	if n := strings.Count(r.logged(), "not on disk"); n != 1 {
		t.Errorf("told %d times", n)
	}
}

// TestTake is the choice, as a table over the state of one pod.
func TestTake(t *testing.T) {
	now := time.Unix(1796000000, 0)
	for name, c := range map[string]struct {
		entry *entry
		due   bool
		room  int
		start bool
		wait  time.Duration
	}{
		"new":               {nil, true, 1, true, idle},
		"not due":           {nil, false, 1, false, idle},
		"no room":           {nil, true, 0, false, idle},
		"running":           {&entry{running: true}, true, 1, false, idle},
		"done":              {&entry{done: true}, true, 1, false, idle},
		"failed":            {&entry{tries: 1, next: now.Add(3 * time.Second)}, true, 1, false, 3 * time.Second},
		"failed, in time":   {&entry{tries: 1, next: now}, true, 1, true, idle},
		"given up":          {&entry{tries: 2, next: now}, true, 1, false, idle},
		"failed, not due":   {&entry{tries: 1, next: now.Add(time.Second)}, false, 1, false, idle},
		"failed, far ahead": {&entry{tries: 1, next: now.Add(time.Hour)}, true, 1, false, idle},
	} {
		t.Run(name, func(t *testing.T) {
			s := due("c1")
			s.Due = c.due
			b := book{}
			if c.entry != nil {
				b[s.Pod] = c.entry
			}
			start, wait := b.take([]Stranding{s}, c.room, now, 2)
			if (len(start) == 1) != c.start || wait != c.wait {
				t.Errorf("starts %v, waits %s", start, wait)
			}
			if c.start && !b[s.Pod].running {
				t.Error("it would be started twice")
			}
		})
	}
}

func TestTail(t *testing.T) {
	var out tail
	for i := range 10000 {
		if n, err := fmt.Fprintf(&out, "line %d\n", i); n == 0 || err != nil {
			t.Fatal(n, err)
		}
	}
	got := out.String()
	if len(got) > tailSize+len("…") || !strings.HasPrefix(got, "…") || !strings.HasSuffix(got, "line 9998\nline 9999") {
		t.Errorf("%d bytes, %.20q to %q", len(got), got, got[len(got)-20:])
	}
	if cap(out.b) > 2*(tailSize+100) {
		t.Errorf("it holds %d bytes", cap(out.b))
	}
	out = tail{}
	_, _ = out.Write([]byte{'a', 0xff, '\n'})
	if diff := cmp.Diff("a?", out.String()); diff != "" {
		t.Error(diff)
	}
}

// daemonIn makes this test binary the daemon of TestItEndsWithAKilledDaemon.
const daemonIn = "TENURE_TEST_DAEMON_IN"

// TestItEndsWithAKilledDaemon: nobody is left to end it then, and the next
// daemon would run a second one beside it.
func TestItEndsWithAKilledDaemon(t *testing.T) {
	if dir := os.Getenv(daemonIn); dir != "" {
		r := &rig{t: t, dir: dir}
		r.again(filepath.Join(dir, "command"), "boot", Limits{})
		r.set(due("c1"))
		_ = r.Run(context.Background())
		return
	}
	r := newRig(t, `echo $$ >"$DIR/pid"; `+noting+`; exec sleep 300`, Limits{})
	daemon := exec.Command(os.Args[0], "-test.run=^TestItEndsWithAKilledDaemon$")
	daemon.Env = append(os.Environ(), daemonIn+"="+r.dir)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill() })
	pid := r.child()
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = daemon.Wait() // that it was killed is no news
	r.until("its process is gone", func() bool { return !alive(pid) })
}
