package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// options say what is run. dir is the module's root.
type options struct {
	dir, only string
	each      time.Duration
	atOnce    int
	out       io.Writer
}

// run builds each package that has targets, then runs them.
func run(ctx context.Context, o options) error {
	all, err := targets(o.dir)
	if err != nil {
		return err
	}
	module, err := goCommand(ctx, o.dir, "list", "-m")
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "fuzz")
	if err != nil {
		return fmt.Errorf("make a directory for the programs: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	began := time.Now()
	chosen, programs, err := build(ctx, o, all, strings.TrimSpace(module), work)
	if err != nil {
		return err
	}
	built := time.Since(began)
	var one sync.Mutex
	var found []error
	var group errgroup.Group
	group.SetLimit(max(o.atOnce, 1))
	for _, t := range chosen {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			said, err := fuzz(ctx, o, t, programs[t.dir], filepath.Join(work, "cache"))
			one.Lock()
			defer one.Unlock()
			if err != nil {
				found = append(found, fmt.Errorf("%s: %w\n%s", t, err, said))
				return nil
			}
			_, err = fmt.Fprintf(o.out, "%-40s %s\n", t, lastLine(said))
			return err
		})
	}
	if err := errors.Join(group.Wait(), errors.Join(found...)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.out, "%d targets, %s each, %d at once: built in %s, run in %s, nothing found\n", len(chosen), o.each, max(o.atOnce, 1),
		built.Round(time.Second), (time.Since(began) - built).Round(time.Second))
	return err
}

// build makes one program of each package's tests. Only the module's own packages
// count which way they go; all others come from the cache of builds, where those
// are that "make build" has made, with -trimpath.
func build(ctx context.Context, o options, all []target, module, work string) (chosen []target, programs map[string]string, err error) {
	programs = map[string]string{}
	for _, t := range all {
		if !strings.Contains(t.String(), o.only) {
			continue
		}
		chosen = append(chosen, t)
		if programs[t.dir] != "" {
			continue
		}
		programs[t.dir] = filepath.Join(work, strings.ReplaceAll(t.dir, "/", "-")+".test")
		if _, err := goCommand(ctx, o.dir, "test", "-c", "-trimpath", "-o", programs[t.dir], "-gcflags="+module+"/...=-d=libfuzzer", "./"+t.dir); err != nil {
			return nil, nil, err
		}
	}
	if len(chosen) == 0 {
		return nil, nil, fmt.Errorf("no target of %d has %q in its name", len(all), o.only)
	}
	return chosen, programs, nil
}

func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out), nil
}

// errBlind says that a program was built without what shows the way of an input.
var errBlind = errors.New("it does not see which way an input takes")

// slack is what a target may take beside its time: for its seeds, and for making
// what it finds as short as possible.
const slack = 2 * time.Minute

// fuzz runs one target in its package's directory, where its corpus is.
func fuzz(ctx context.Context, o options, t target, program, cache string) (said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.each+slack)
	defer cancel()
	// Tests that wait for a deadline may run beside it.
	cmd := exec.CommandContext(ctx, "nice", program, "-test.run=^$", "-test.fuzz=^"+t.name+"$", "-test.fuzztime="+o.each.String(),
		"-test.fuzzminimizetime=5s", "-test.fuzzcachedir="+filepath.Join(cache, t.dir), "-test.parallel=1")
	cmd.Dir = filepath.Join(o.dir, t.dir)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	// The program ends its worker itself.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil && ctx.Err() == nil && endedLate(out) {
		err = nil
	}
	if err == nil && bytes.Contains(out, []byte("without coverage guidance")) {
		err = errBlind
	}
	return string(out), err
}

// endedLate says that nothing was found, and that the package testing took the end
// of its own time for a failure: it does on a busy machine now and then.
func endedLate(out []byte) bool {
	return regexp.MustCompile(`(?m)^--- FAIL: \S+ \(\S+\)\n +context deadline exceeded$`).Match(out) && !bytes.Contains(out, []byte("Failing input"))
}

// lastLine is what the program said of its work.
func lastLine(said string) string {
	last := ""
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "fuzz: elapsed") {
			last = strings.TrimSpace(strings.TrimPrefix(line, "fuzz: "))
		}
	}
	return last
}
