package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/tenure-cni/tenure/conf"
)

// TestManualPages: both name every flag and command there is, and where man is
// installed it reads them without a complaint.
func TestManualPages(t *testing.T) {
	dir := t.TempDir()
	if code := run(t.Context(), []string{"man", dir}, os.Stdout, os.Stderr); code != exitOK {
		t.Fatalf("tenurectl man: exit code %d", code)
	}
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	has := func(name, page string, fs *pflag.FlagSet) {
		t.Helper()
		fs.VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && !strings.Contains(page, `\fB\-\-`+escape(f.Name)+`\fR`) {
				t.Errorf("%s lacks --%s", name, f.Name)
			}
		})
	}
	has("tenured.8", read("tenured.8"), conf.Flags())
	page := read("tenurectl.8")
	for _, c := range newRoot().Commands() {
		if c.Hidden || !c.IsAvailableCommand() {
			continue
		}
		has("tenurectl.8", page, c.LocalFlags())
		if !strings.Contains(page, "\n.SS tenurectl "+escape(c.Name())) {
			t.Errorf("tenurectl.8 lacks the command %s", c.Name())
		}
	}
	if strings.Contains(page, "completion") && strings.Contains(page, "autocompletion script") {
		t.Error("tenurectl.8 explains completion at length")
	}
	if groff, err := exec.LookPath("groff"); err == nil {
		for _, name := range []string{"tenured.8", "tenurectl.8"} {
			out, err := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z", filepath.Join(dir, name)).CombinedOutput()
			if err != nil || len(out) > 0 {
				t.Errorf("groff %s: %v\n%s", name, err, out)
			}
		}
	}
}

func TestEscape(t *testing.T) {
	const in, want = ".a-b\n'c \\d\ne.f…", `\&.a\-b` + "\n" + `\&'c \ed` + "\ne.f" + `\[u2026]`
	if got := escape(in); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
