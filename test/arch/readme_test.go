package arch

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// argument finds the constant text that a call passes as the named parameter.
// ok is false where the function has no such parameter; known is false where
// the text is not known at compile time.
func (c *code) argument(call *ast.CallExpr, parameter string) (text string, known, ok bool) {
	sig, isFunc := c.info.TypeOf(call.Fun).(*types.Signature)
	if !isFunc {
		return "", false, false
	}
	for i := range sig.Params().Len() {
		p := sig.Params().At(i)
		if p.Name() != parameter || !types.Identical(p.Type(), types.Typ[types.String]) || i >= len(call.Args) {
			continue
		}
		text, known = c.text(call.Args[i])
		return text, known, true
	}
	return "", false, false
}

// text is the value of a constant expression.
func (c *code) text(e ast.Expr) (string, bool) {
	if v := c.info.Types[e].Value; v != nil && v.Kind() == constant.String {
		return constant.StringVal(v), true
	}
	return "", false
}

// callee is the function or method that is called, nil for a variable.
func (c *code) callee(call *ast.CallExpr) *types.Func {
	var id *ast.Ident
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	default:
		return nil
	}
	fn, _ := c.info.Uses[id].(*types.Func)
	return fn
}

func (c *code) calls(f func(*ast.CallExpr)) {
	for _, file := range c.files {
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				f(call)
			}
			return true
		})
	}
}

// flags are the names of all command line flags that a package defines.
func flags(c *code) (names []string, unknown []finding) {
	c.calls(func(call *ast.CallExpr) {
		fn := c.callee(call)
		if fn == nil || fn.Pkg() == nil || fn.Pkg().Path() != "github.com/spf13/pflag" || fn.Signature().Recv() == nil {
			return
		}
		if _, _, defines := c.argument(call, "usage"); !defines {
			return
		}
		if name, known, ok := c.argument(call, "name"); known {
			names = append(names, name)
		} else if ok {
			unknown = append(unknown, c.at(call, "a flag whose name is not a constant"))
		}
	})
	return names, unknown
}

// problemCodes are the codes of all problems, and findings of the doctor, that
// a package can report: the texts passed as a parameter "code", and set as the field Code of a Problem.
func problemCodes(c *code) (codes []string, unknown []finding) {
	note := func(e ast.Expr) {
		if text, known := c.text(e); known {
			codes = append(codes, text)
		} else if id, ok := e.(*ast.Ident); !ok || id.Name != "code" { // handed on
			unknown = append(unknown, c.at(e, "a problem's code that is not a constant"))
		}
	}
	for _, file := range c.files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				c.codeArgument(n, note)
			case *ast.CompositeLit:
				c.codeField(n, note)
			}
			return true
		})
	}
	return codes, unknown
}

func (c *code) codeArgument(call *ast.CallExpr, note func(ast.Expr)) {
	fn := c.callee(call)
	if fn == nil || fn.Pkg() == nil || !below(fn.Pkg().Path(), module) {
		return
	}
	params := fn.Signature().Params()
	for i := range params.Len() {
		if p := params.At(i); p.Name() == "code" && types.Identical(p.Type(), types.Typ[types.String]) {
			note(call.Args[i])
		}
	}
}

func (c *code) codeField(lit *ast.CompositeLit, note func(ast.Expr)) {
	named, ok := types.Unalias(c.info.TypeOf(lit)).(*types.Named)
	if !ok || named.Obj().Name() != "Problem" || named.Obj().Pkg().Path() != module+"/daemon/api" {
		return
	}
	for i, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if id, ok := kv.Key.(*ast.Ident); ok && id.Name == "Code" {
				note(kv.Value)
			}
		} else if i == 0 { // Code is the first field
			note(e)
		}
	}
}

// cniCodes are the numbers of the constants Code… of a package, by name.
func cniCodes(c *code) map[string]string {
	codes := map[string]string{}
	for id, obj := range c.info.Defs {
		k, ok := obj.(*types.Const)
		if ok && strings.HasPrefix(id.Name, "Code") && k.Val().Kind() == constant.Int {
			codes[id.Name] = k.Val().ExactString()
		}
	}
	return codes
}

// readme is the manual, as text to look things up in.
type readme string

// hasFlag: the flag stands somewhere with its dashes.
func (r readme) hasFlag(name string) bool {
	return regexp.MustCompile(`--` + regexp.QuoteMeta(name) + `($|[^\w-])`).MatchString(string(r))
}

// hasProblem: the code stands somewhere, set as code.
func (r readme) hasProblem(code string) bool { return strings.Contains(string(r), "`"+code+"`") }

// hasCNI: a table has a row about the number, or a line on CNI's error codes
// names it.
func (r readme) hasCNI(number string) bool {
	row, line := `\|[^|]*\b`+number+`\b[^|]*\|.*\|`, `.*\bCNI error codes?\b.*\b`+number+`\b`
	return regexp.MustCompile(`(?m)^(` + row + `|` + line + `)`).MatchString(string(r))
}

func readReadme(t *testing.T) readme {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return readme(b)
}

func TestReadmeNamesEveryFlag(t *testing.T) {
	w := load(t)
	seen := map[string]bool{}
	for _, p := range w.product() {
		names, unknown := flags(w.check(t, p))
		report(t, "a flag's name stands in the source as it stands in the manual", unknown)
		for _, name := range names {
			seen[name] = true
		}
	}
	for _, name := range []string{"config", "etcd-endpoints", "socket", "output", "network"} {
		if !seen[name] {
			t.Errorf("--%s is not among the flags found in the sources: the check looks in the wrong place", name)
		}
	}
	r := readReadme(t)
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if !r.hasFlag(name) {
			t.Errorf("README.md does not name --%s", name)
		}
	}
}

func TestReadmeNamesEveryCNICode(t *testing.T) {
	w := load(t)
	codes := cniCodes(w.check(t, w.byPath[module+"/daemon/api"]))
	if len(codes) < 10 {
		t.Errorf("only these codes were found: %v", codes)
	}
	r := readReadme(t)
	for _, name := range slices.Sorted(maps.Keys(codes)) {
		if !r.hasCNI(codes[name]) {
			t.Errorf("README.md says nothing about CNI code %s (%s)", codes[name], name)
		}
	}
}

// manualOf is the page that has the codes of a package: what the doctor finds
// has one of its own.
func manualOf(path string) string {
	if path == module+"/daemon/doctor" {
		return "docs/doctor.md"
	}
	return "README.md"
}

func TestManualNamesEveryProblem(t *testing.T) {
	w := load(t)
	pages := map[string]map[string]bool{}
	for _, p := range w.product() {
		codes, unknown := problemCodes(w.check(t, p))
		report(t, "a problem's code is a name that people look up: it stands in the source as it stands in the manual", unknown)
		page := manualOf(p.ImportPath)
		if pages[page] == nil {
			pages[page] = map[string]bool{}
		}
		for _, code := range codes {
			pages[page][code] = true
		}
	}
	for page, codes := range map[string][]string{
		"README.md":      {"etcd-unreachable", "stranded-pods", "no-free-subnet", "config-refused", "neighbour-limits"},
		"docs/doctor.md": {"cni-conf-order", "mtu"},
	} {
		for _, code := range codes {
			if !pages[page][code] {
				t.Errorf("%s is not among the codes found in the sources for %s: the check looks in the wrong place", code, page)
			}
		}
	}
	for _, page := range slices.Sorted(maps.Keys(pages)) {
		r := readme(readFile(t, page))
		for _, code := range slices.Sorted(maps.Keys(pages[page])) {
			if !r.hasProblem(code) {
				t.Errorf("%s does not name the problem `%s`", page, code)
			}
		}
	}
}

func TestReadmeChecksCanFail(t *testing.T) {
	w := load(t)
	c := w.snippet(t, `package p
import (
	"github.com/spf13/pflag"
	"github.com/tenure-cni/tenure/daemon/api"
)
const lost = "lost"
const CodeX, CodeY uint = 11, 104
func add(severity, code string) {}
func other(code uint) {}
func f(fs *pflag.FlagSet, s *string, dynamic string) {
	fs.StringVar(s, "one", "", "usage")
	fs.BoolP("two", "t", false, "usage")
	_ = fs.Int(dynamic, 1, "usage")
	_, _ = fs.GetString("three")
	add("error", lost)
	add("error", "gone")
	add("error", dynamic)
	other(CodeX)
	_ = api.Problem{Code: "here", Text: "text"}
	_ = api.Problem{dynamic, "", "", "", ""}
}
func g(code string) { add("error", code) }`)
	names, unknown := flags(c)
	if got, want := fmt.Sprint(names), "[one two]"; got != want {
		t.Errorf("flags: %s, want %s", got, want)
	}
	mustFind(t, unknown, "a flag whose name is not a constant")
	codes, unknown := problemCodes(c)
	if got, want := fmt.Sprint(codes), "[lost gone here]"; got != want {
		t.Errorf("problem codes: %s, want %s", got, want)
	}
	mustFind(t, unknown, "a problem's code that is not a constant", "a problem's code that is not a constant")
	if got, want := cniCodes(c), (map[string]string{"CodeX": "11", "CodeY": "104"}); !maps.Equal(got, want) {
		t.Errorf("CNI codes: %v, want %v", got, want)
	}

	r := readme("`--run-dir DIR` and --socket\nproblem `fenced`\n| CNI code | when |\n|---|---|\n| 1, 2, 4 | as the spec says |\n| `101` | wanted |\ncode 100 |\nCNI error codes 6 and 7\n")
	for what, got := range map[string]bool{
		"flag at the end of a line": r.hasFlag("socket"), "flag": r.hasFlag("run-dir"),
		"problem": r.hasProblem("fenced"), "one of several": r.hasCNI("2"), "as code": r.hasCNI("101"), "named in a line": r.hasCNI("7"),
	} {
		if !got {
			t.Errorf("%s: not found", what)
		}
	}
	for what, got := range map[string]bool{
		"half a flag": r.hasFlag("run"), "problem in prose": r.hasProblem("problem"),
		"code in prose": r.hasCNI("100"), "half a code": r.hasCNI("10"), "in a later column": r.hasCNI("3"),
	} {
		if got {
			t.Errorf("%s: found", what)
		}
	}
}
