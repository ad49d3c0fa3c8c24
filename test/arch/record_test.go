package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// guard is a test that a page tells to run: its package's directory and its name.
type guard struct{ dir, test string }

// guards are the commands of a table's rows; a row without one in the usual form is
// returned as it is.
func guards(page string) (all []guard, odd []string) {
	command := regexp.MustCompile("\\| `go test \\./([a-z0-9/]+) -run '\\^([A-Za-z0-9_]+)\\$'` \\|$")
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		m := command.FindStringSubmatch(line)
		switch {
		case m != nil && strings.Count(line, " | ") == 2:
			all = append(all, guard{m[1], m[2]})
		case strings.Contains(line, "go test ./") && strings.HasPrefix(line, "|"):
			odd = append(odd, line)
		}
	}
	return all, odd
}

// testsIn are the tests and fuzz targets of one directory.
func testsIn(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && (strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz")) {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}

// TestTrackRecord: every bug in test/README.md has a command that runs a test which
// is there.
func TestTrackRecord(t *testing.T) {
	all, odd := guards(readFile(t, filepath.Join("test", "README.md")))
	if len(all) < 100 || len(odd) > 0 {
		t.Errorf("%d commands, and these rows have none: %q", len(all), odd)
	}
	for _, g := range all {
		if !slices.Contains(testsIn(t, g.dir), g.test) {
			t.Errorf("%s has no %s", g.dir, g.test)
		}
	}
	some, odd := guards("| a | b | `go test ./ipam -run '^TestModel$'` |\n| a | `go test ./ipam -run '^TestModel$'` |\n| a | b | `go test ./ipam -run TestModel` |\n")
	if len(some) != 1 || len(odd) != 2 || slices.Contains(testsIn(t, "ipam"), "TestNobody") {
		t.Errorf("found are %v, odd are %q", some, odd)
	}
}
