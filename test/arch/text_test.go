package arch

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// parseDir parses the named files of a package without types.
func parseDir(t *testing.T, fset *token.FileSet, dir string, names []string) []*ast.File {
	t.Helper()
	var files []*ast.File
	for _, name := range names {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// sleeps finds time.Sleep, whatever the file calls the package.
func sleeps(fset *token.FileSet, files []*ast.File) []finding {
	var all []finding
	for _, file := range files {
		name := importedAs(file, "time")
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == name && n.Sel.Name == "Sleep" {
					all = append(all, finding{place(fset, n), "time.Sleep"})
				}
			case *ast.Ident:
				if name == "." && n.Name == "Sleep" {
					all = append(all, finding{place(fset, n), "time.Sleep"})
				}
			}
			return true
		})
	}
	return all
}

// importedAs is the name by which the file knows the package; "" if it does
// not import it.
func importedAs(file *ast.File, path string) string {
	for _, i := range file.Imports {
		if i.Path.Value != `"`+path+`"` {
			continue
		}
		if i.Name != nil {
			return i.Name.Name
		}
		return path
	}
	return ""
}

func TestTestsDoNotSleep(t *testing.T) {
	const rule = "a sleep is too short on a slow machine and too long on a fast one; wait on the condition, with a deadline"
	w := load(t)
	for _, p := range w.own() {
		names := slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		if below(p.ImportPath, module+"/test") {
			names = append(names, p.GoFiles...)
		}
		report(t, rule, sleeps(w.fset, parseDir(t, w.fset, p.Dir, names)))
	}
	fset := token.NewFileSet()
	for source, want := range map[string]int{
		`package p; import "time"; func f() { time.Sleep(1); time.After(1) }`:                                          1,
		`package p; import clock "time"; func f() { clock.Sleep(1) }`:                                                  1,
		`package p; import . "time"; func f() { Sleep(1) }`:                                                            1,
		`package p; import "time"; type s struct{}; func (s) Sleep(time.Time) {}; func f() { s{}.Sleep(time.Time{}) }`: 0,
	} {
		f, err := parser.ParseFile(fset, "x_test.go", source, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := sleeps(fset, []*ast.File{f}); len(got) != want {
			t.Errorf("found %v in %s, want %d", got, source, want)
		}
	}
}

// undocumented says what a package lacks of its comment. The comment stands in
// doc.go, where a reader looks for it; a package of one file, or a small
// command's main.go, is read as a whole anyway.
func undocumented(name string, files map[string]*ast.File) string {
	var with []string
	for file, f := range files {
		if f.Doc != nil {
			with = append(with, file)
		}
	}
	switch {
	case len(with) == 0:
		return "no package comment"
	case len(with) > 1:
		slices.Sort(with)
		return "package comments in several files: " + strings.Join(with, ", ")
	case with[0] != "doc.go" && len(files) > 1 && (name != "main" || with[0] != "main.go"):
		return "the package comment is in " + with[0]
	}
	return ""
}

func TestPackagesAreDocumented(t *testing.T) {
	w := load(t)
	for _, p := range w.own() {
		files := map[string]*ast.File{}
		name := ""
		for i, f := range parseDir(t, w.fset, p.Dir, p.GoFiles) {
			files[p.GoFiles[i]], name = f, f.Name.Name
		}
		if lack := undocumented(name, files); lack != "" {
			t.Errorf("%s: %s\n\teach package says in doc.go what it owns, what it promises and what it must not import", p.ImportPath, lack)
		}
	}
	plain, documented := &ast.File{}, &ast.File{Doc: &ast.CommentGroup{}}
	for _, c := range []struct {
		name  string
		files map[string]*ast.File
		ok    bool
	}{
		{"p", map[string]*ast.File{"doc.go": documented, "a.go": plain}, true},
		{"p", map[string]*ast.File{"a.go": documented}, true},
		{"main", map[string]*ast.File{"main.go": documented, "a.go": plain}, true},
		{"p", map[string]*ast.File{"a.go": documented, "b.go": plain}, false},
		{"main", map[string]*ast.File{"a.go": documented, "main.go": plain}, false},
		{"p", map[string]*ast.File{"a.go": plain}, false},
		{"p", map[string]*ast.File{"a.go": documented, "doc.go": documented}, false},
	} {
		if got := undocumented(c.name, c.files); (got == "") != c.ok {
			t.Errorf("undocumented(%s, %v) = %q", c.name, c.files, got)
		}
	}
}

// workplace matches absolute paths that exist on the writer's machine only.
// It is put together so as not to match itself.
func workplace() *regexp.Regexp {
	return regexp.MustCompile(`(?m)(^|[^\w./$}-])/(wo` + `rk|tm` + `p|home/\w+|ro` + `ot)/`)
}

func TestNoWorkplaceInTheSources(t *testing.T) {
	const rule = "a path of somebody's machine means nothing on another"
	pattern := workplace()
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch rel, _ := filepath.Rel(root, path); {
		case d.IsDir() && (rel == ".git" || rel == "bin"):
			return fs.SkipDir
		case d.IsDir() || rel == ".git": // a file in a worktree
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil || bytes.IndexByte(b, 0) >= 0 {
			return err
		}
		seen++
		for _, at := range pattern.FindAllIndex(b, -1) {
			t.Errorf("%s:%d: %q\n\t%s", path, 1+bytes.Count(b[:at[0]], []byte("\n")), b[at[0]:at[1]], rule)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 100 {
		t.Errorf("only %d files were looked at", seen)
	}
	for text, want := range map[string]bool{
		"see /wo" + "rk/x": true, "\"/tm" + "p/x\"": true, "/tm" + "p/x": true, "cd /home/" + "me/src": true,
		"net/wo" + "rk/x": false, "$DIR/tm" + "p/x": false, "usr/tm" + "p/": false, "..." + "/wo" + "rk/": false,
	} {
		if got := pattern.MatchString(text); got != want {
			t.Errorf("pattern matches %q: %t, want %t", text, got, want)
		}
	}
}
