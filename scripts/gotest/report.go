package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// event is one line of "go test -json", see "go doc test2json".
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
}

// report turns events into lines for people.
type report struct {
	w io.Writer
	// pending is the output of what runs: a package and a test, or the package
	// alone, or a build.
	pending                 map[string]*strings.Builder
	passed, failed, skipped int
	broken                  int // packages that failed without a failed test
	failedIn                map[string]bool
}

func newReport(w io.Writer) *report {
	return &report{w: w, pending: map[string]*strings.Builder{}, failedIn: map[string]bool{}}
}

// read consumes all of "go test -json". A line that is no event is printed as
// it is: the go command has things to say too.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				r.print(line)
			} else {
				r.handle(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) handle(e event) {
	key := e.Package + "\x00" + e.Test
	switch e.Action {
	case "build-output":
		r.print(e.Output)
	case "output":
		r.output(key, e)
	case "pass", "fail", "skip":
		out := r.take(key)
		if e.Test == "" {
			r.packageDone(e, out)
		} else {
			r.testDone(e, out)
		}
	}
}

// output keeps what a test prints until its end is known. Of a package's own
// lines the verdict is printed at once and the rest kept.
func (r *report) output(key string, e event) {
	if e.Test == "" && (strings.HasPrefix(e.Output, "ok ") || strings.HasPrefix(e.Output, "FAIL\t") || strings.HasPrefix(e.Output, "?  ")) {
		r.print(e.Output)
		return
	}
	b := r.pending[key]
	if b == nil {
		b = new(strings.Builder)
		r.pending[key] = b
	}
	b.WriteString(e.Output)
}

func (r *report) take(key string) string {
	b := r.pending[key]
	if b == nil {
		return ""
	}
	delete(r.pending, key)
	return b.String()
}

func (r *report) testDone(e event, out string) {
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
		r.failedIn[e.Package] = true
		r.print(out)
	case "skip":
		r.skipped++
		r.print(out)
	}
}

// packageDone counts a package that failed although each of its tests passed:
// it did not build, its TestMain failed, it ended in the middle, timed out, or
// had a race after the tests.
func (r *report) packageDone(e event, out string) {
	if e.Action != "fail" {
		return
	}
	r.print(out)
	// A test that was cut off has no verdict of its own, but its last words.
	for key := range r.pending {
		if strings.HasPrefix(key, e.Package+"\x00") {
			r.failed++
			r.failedIn[e.Package] = true
			r.print(r.take(key))
		}
	}
	if !r.failedIn[e.Package] {
		r.broken++
	}
}

func (r *report) print(s string) { _, _ = io.WriteString(r.w, s) }

// good says whether every test ran and passed, and there was one.
func (r *report) good() bool {
	return r.passed > 0 && r.failed == 0 && r.broken == 0 && r.skipped == 0
}

func (r *report) close() {
	if r.broken > 0 {
		_, _ = fmt.Fprintf(r.w, "%d packages failed outside of any test\n", r.broken)
	}
	if r.skipped > 0 {
		_, _ = fmt.Fprintln(r.w, "FAIL: tests were skipped, which counts as a failure")
	}
	_, _ = fmt.Fprintf(r.w, "%d passed, %d failed, %d skipped\n", r.passed, r.failed+r.broken, r.skipped)
}
