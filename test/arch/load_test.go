package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/tenure-cni/tenure"

// root is the checkout: tests run in their package's directory.
const root = "../.."

// listed is what "go list" says about one package.
type listed struct {
	ImportPath  string
	Dir         string
	Export      string // the compiler's file with the package's types
	Standard    bool
	GoFiles     []string
	TestGoFiles []string
	// XTestGoFiles are those of package foo_test.
	XTestGoFiles []string
	Imports      []string
}

// world is the module with all it needs.
type world struct {
	byPath map[string]*listed
	fset   *token.FileSet
	types  types.Importer
}

// load reads the world once. The flags are those of the running test, so that
// the compiler finds its work done.
func load(t *testing.T) *world {
	t.Helper()
	w, err := loadOnce()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

var loadOnce = sync.OnceValues(func() (*world, error) {
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,Standard,GoFiles,TestGoFiles,XTestGoFiles,Imports"}
	if raceEnabled {
		args = append(args, "-race")
	}
	out, err := goTool(append(args, "./...")...)
	if err != nil {
		return nil, err
	}
	w := &world{byPath: map[string]*listed{}, fset: token.NewFileSet()}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("decode go list: %w", err)
		}
		w.byPath[p.ImportPath] = &p
	}
	w.types = importer.ForCompiler(w.fset, "gc", func(path string) (io.ReadCloser, error) {
		p := w.byPath[path]
		if p == nil || p.Export == "" {
			return nil, fmt.Errorf("no compiled package %s", path)
		}
		return os.Open(p.Export)
	})
	return w, nil
})

func goTool(args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// deps is everything a package imports, directly or not, itself excluded.
func (w *world) deps(path string) map[string]bool {
	all := map[string]bool{}
	var visit func(string)
	visit = func(path string) {
		p := w.byPath[path]
		if p == nil {
			return // "C" and the standard library's vendored packages
		}
		for _, i := range p.Imports {
			if !all[i] {
				all[i] = true
				visit(i)
			}
		}
	}
	visit(path)
	return all
}

// own lists the module's packages below the given directories, or all.
func (w *world) own(below ...string) []*listed {
	var all []*listed
	for _, p := range w.byPath {
		dir, ours := strings.CutPrefix(p.ImportPath, module+"/")
		if ours && (len(below) == 0 || slices.ContainsFunc(below, func(b string) bool {
			return dir == b || strings.HasPrefix(dir, b+"/")
		})) {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *listed) int { return strings.Compare(a.ImportPath, b.ImportPath) })
	return all
}

// product are the directories of what is shipped.
func (w *world) product() []*listed { return w.own("conf", "daemon", "ipam", "plugins") }

// code is one type-checked package.
type code struct {
	path  string
	main  bool
	fset  *token.FileSet
	files []*ast.File
	info  *types.Info
}

// check parses and type-checks a package's own files, without tests.
func (w *world) check(t *testing.T, p *listed) *code {
	t.Helper()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(w.fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return w.checkFiles(t, p.ImportPath, files)
}

// snippet is a package of one file, for showing that a check can fail.
func (w *world) snippet(t *testing.T, source string) *code {
	t.Helper()
	f, err := parser.ParseFile(w.fset, "snippet.go", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return w.checkFiles(t, module+"/snippet", []*ast.File{f})
}

func (w *world) checkFiles(t *testing.T, path string, files []*ast.File) *code {
	t.Helper()
	c := &code{path: path, fset: w.fset, files: files, main: files[0].Name.Name == "main", info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
	}}
	if _, err := (&types.Config{Importer: w.types}).Check(path, w.fset, files, c.info); err != nil {
		t.Fatalf("type-check %s: %v", path, err)
	}
	return c
}

// finding is one place that breaks a rule.
type finding struct {
	where string // file:line, relative to the checkout
	what  string
}

func (f finding) String() string { return f.where + ": " + f.what }

func (c *code) at(n ast.Node, format string, args ...any) finding {
	return finding{place(c.fset, n), fmt.Sprintf(format, args...)}
}

func place(fset *token.FileSet, n ast.Node) string {
	pos := fset.Position(n.Pos())
	base, err := filepath.Abs(root)
	if err == nil {
		if rel, err := filepath.Rel(base, pos.Filename); err == nil && !strings.HasPrefix(rel, "..") {
			pos.Filename = rel
		}
	}
	return fmt.Sprintf("%s:%d", pos.Filename, pos.Line)
}

// report fails the test with every finding, under the rule and its reason.
func report(t *testing.T, rule string, all []finding) {
	t.Helper()
	for _, f := range all {
		t.Errorf("%s\n\t%s", f, rule)
	}
}

// mustFind shows that a check can fail.
func mustFind(t *testing.T, all []finding, want ...string) {
	t.Helper()
	var got []string
	for _, f := range all {
		got = append(got, f.what)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("on a snippet that breaks the rule the check found\n\t%q, want\n\t%q", got, want)
	}
}
