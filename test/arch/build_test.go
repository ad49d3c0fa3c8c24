package arch

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"fmt"
	"go/version"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// program is what "make build" leaves in bin/.
type program struct {
	name string
	// most is the largest size in bytes, 0 for any.
	most int64
	why  string
	// ask makes it print its version.
	ask []string
}

func programs() []program {
	const perPod = "it is read from disk and exec'd for every pod; 7 MB is skel, net/http and nothing else"
	return []program{
		{name: "tenure", most: 7 << 20, why: perPod, ask: []string{"--version"}},
		{name: "tenure-ipam", most: 7 << 20, why: perPod, ask: []string{"--version"}},
		{name: "tenured", ask: []string{"--version"}},
		{name: "tenurectl", ask: []string{"version"}},
	}
}

// bin is where the built programs are; a test without them fails.
func bin(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("TENURE_BIN"); dir != "" {
		return dir
	}
	dir, err := filepath.Abs(filepath.Join(root, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "tenured")); err != nil {
		if testing.Short() {
			t.Skip("needs the programs of make build")
		}
		t.Fatalf("run make build first: %v", err)
	}
	return dir
}

// tooLarge judges a file's size; "" is well.
func tooLarge(size, most int64) string {
	if most != 0 && size > most {
		return fmt.Sprintf("%d bytes, at most %d are allowed", size, most)
	}
	return ""
}

// dynamic: the kernel would start a linker for such a program.
func dynamic(segments []*elf.Prog) bool {
	return slices.ContainsFunc(segments, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

func TestProgramsAreSmallAndStatic(t *testing.T) {
	dir := bin(t)
	for _, p := range programs() {
		path := filepath.Join(dir, p.name)
		info, err := os.Stat(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if lack := tooLarge(info.Size(), p.most); lack != "" {
			t.Errorf("%s: %s\n\t%s", p.name, lack, p.why)
		}
		f, err := elf.Open(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if dynamic(f.Progs) {
			t.Errorf("%s wants a dynamic linker\n\tthe programs run on any distribution, in any container's file system", p.name)
		}
		_ = f.Close()
	}
	if tooLarge(7<<20+1, 7<<20) == "" {
		t.Error("no program would be too large")
	}
	if !dynamic([]*elf.Prog{{ProgHeader: elf.ProgHeader{Type: elf.PT_LOAD}}, {ProgHeader: elf.ProgHeader{Type: elf.PT_INTERP}}}) {
		t.Error("no program would be dynamic")
	}
}

// stopHook is what a tenured has in it that a test can make stop itself.
const stopHook = "TENURE_STOP_AT"

// tested says what of the tests' own is in a program; "" is nothing.
func tested(program []byte, info *debug.BuildInfo) string {
	for _, s := range info.Settings {
		if s.Key == "-tags" {
			return "it is built with the tags " + s.Value
		}
	}
	if bytes.Contains(program, []byte(stopHook)) {
		return "it has the hook " + stopHook
	}
	return ""
}

func TestProgramsHaveNoHookOfTests(t *testing.T) {
	dir := bin(t)
	for _, p := range programs() {
		path := filepath.Join(dir, p.name)
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		program, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if what := tested(program, info); what != "" {
			t.Errorf("%s: %s\n\tno daemon that is shipped may be made to stop itself", p.name, what)
		}
	}
	hook, err := os.ReadFile(filepath.Join(root, "daemon", "tenured", "stopat_on.go"))
	if err != nil || tested(hook, &debug.BuildInfo{}) == "" {
		t.Errorf("the hook is not called %s any more: %v", stopHook, err)
	}
	if tested(nil, &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "-tags", Value: "stopat"}}}) == "" {
		t.Error("no program would be built with tags")
	}
}

func TestProgramsCarryTheirVersion(t *testing.T) {
	dir := bin(t)
	stamped := map[string]string{}
	for _, p := range programs() {
		out, err := exec.Command(filepath.Join(dir, p.name), p.ask...).Output()
		if err != nil {
			t.Errorf("%s %s: %v", p.name, strings.Join(p.ask, " "), err)
			continue
		}
		name, v, ok := strings.Cut(strings.TrimSpace(string(out)), " ")
		if !ok || name != p.name || v == "" || strings.ContainsAny(v, " \n") {
			t.Errorf("%s prints %q, want its name and one version", p.name, out)
		}
		stamped[v] = p.name
	}
	if len(stamped) != 1 {
		t.Errorf("the programs are of different versions: %v", stamped)
	}
	// Without git, as in an unpacked archive, the Makefile has only "dev".
	if err := exec.Command("git", "-c", "safe.directory=*", "-C", root, "rev-parse", "HEAD").Run(); err == nil && stamped["dev"] != "" {
		t.Error("the version is dev although git knows better: the linker's -X names no variable that exists")
	}
}

// goMod is the part of go.mod that has rules.
type goMod struct {
	Go        string
	Toolchain string
	Replace   []struct {
		Old, New struct{ Path, Version string }
	}
}

const newestGo = "go1.26"

// faults of a go.mod that others have to build with.
func (m goMod) faults() []string {
	var all []string
	for _, v := range []string{"go" + m.Go, m.Toolchain} {
		if v != "" && version.Compare(version.Lang(v), newestGo) > 0 {
			all = append(all, fmt.Sprintf("it asks for %s, newer than %s", v, newestGo))
		}
	}
	for _, r := range m.Replace {
		if r.New.Version == "" {
			all = append(all, fmt.Sprintf("it replaces %s by the directory %s", r.Old.Path, r.New.Path))
		}
	}
	return all
}

func readGoMod(t *testing.T, file string) goMod {
	t.Helper()
	out, err := goTool("mod", "edit", "-json", file)
	if err != nil {
		t.Fatal(err)
	}
	var m goMod
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestGoModBuildsElsewhere(t *testing.T) {
	for _, file := range []string{"go.mod", "scripts/tools/cni/go.mod", "scripts/tools/lint/go.mod", "scripts/tools/pack/go.mod", "scripts/tools/vuln/go.mod"} {
		for _, fault := range readGoMod(t, file).faults() {
			t.Errorf("%s: %s\n\ta fresh clone must build with the Go the README asks for, and nothing beside it", file, fault)
		}
	}
	bad := filepath.Join(t.TempDir(), "go.mod")
	err := os.WriteFile(bad, []byte("module x\ngo 1.27\ntoolchain go1.28.1\nreplace a => ../a\nreplace b => c v1.0.0\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if got := readGoMod(t, bad).faults(); len(got) != 3 {
		t.Errorf("a go.mod with three faults has %q", got)
	}
}
