package arch

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// uses calls f for every mention of a function or method, called or not.
func (c *code) uses(f func(id *ast.Ident, fn *types.Func)) {
	for _, file := range c.files {
		ast.Inspect(file, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				if fn, ok := c.info.Uses[id].(*types.Func); ok && fn.Pkg() != nil {
					f(id, fn)
				}
			}
			return true
		})
	}
}

func (c *code) file(n ast.Node) string { return c.fset.Position(n.Pos()).Filename }

// below reports whether path is base or lies below it.
func below(path, base string) bool { return path == base || strings.HasPrefix(path, base+"/") }

// writesAnywhere are the functions of etcd's client that build or make a write.
const writesAnywhere = "OpPut OpDelete Put Delete DeleteRange"

// etcdWrites finds writes to etcd outside the one file that may build them.
// Only the lease that this node itself has just granted is revoked, which
// deletes keys too, so that has one place as well.
func etcdWrites(c *code) []finding {
	var all []finding
	c.uses(func(id *ast.Ident, fn *types.Func) {
		if !below(fn.Pkg().Path(), "go.etcd.io/etcd") {
			return
		}
		file := c.file(id)
		switch {
		case slices.Contains(strings.Fields(writesAnywhere), fn.Name()) && !strings.HasSuffix(file, "/daemon/lease/txn.go"):
			all = append(all, c.at(id, "etcd's %s", fn.Name()))
		case strings.HasSuffix(fn.Name(), "Revoke") && !strings.HasSuffix(file, "/daemon/lease/acquire.go"):
			all = append(all, c.at(id, "etcd's %s", fn.Name()))
		}
	})
	return all
}

func TestWritesToEtcdAreBuiltInOnePlace(t *testing.T) {
	const rule = "every write to etcd compares what it believes in the same transaction: it is built in daemon/lease/txn.go; a lease, and all keys on it, is revoked in daemon/lease/acquire.go only"
	w := load(t)
	found := 0
	for _, p := range w.product() {
		c := w.check(t, p)
		report(t, rule, etcdWrites(c))
		c.uses(func(id *ast.Ident, fn *types.Func) {
			if fn.Name() == "OpPut" {
				found++
			}
		})
	}
	if found == 0 {
		t.Error("not even txn.go builds a write: the check looks in the wrong place")
	}
	mustFind(t, etcdWrites(w.snippet(t, `package p
import (
	"context"
	etcd "go.etcd.io/etcd/client/v3"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)
type held struct{ *etcd.Client }
type cache struct{}
func (cache) Put(string) {}
func f(ctx context.Context, c *etcd.Client, kv etcd.KV, h held, raw pb.KVClient) {
	_ = etcd.OpPut("k", "v")
	del := etcd.OpDelete
	_ = del
	_, _ = c.Put(ctx, "k", "v")
	_, _ = kv.Delete(ctx, "k")
	_, _ = h.Delete(ctx, "k")
	_, _ = raw.DeleteRange(ctx, nil)
	_, _ = c.Revoke(ctx, 1)
	_, _ = c.Get(ctx, "k")
	cache{}.Put("k")
}`)), "etcd's OpPut", "etcd's OpDelete", "etcd's Put", "etcd's Delete", "etcd's Delete", "etcd's DeleteRange", "etcd's Revoke")
}

// harmless are the package functions of netlink that may be used, with reason.
func harmless() map[string]string {
	return map[string]string{
		"NewHandleAt":     "takes the namespace",
		"NewHandle":       "opens a handle of the process's own namespace, at the start",
		"MakeHandle":      "arithmetic",
		"NewLinkAttrs":    "a value",
		"LinkDeserialize": "decodes a message that was received",
		"NewVeth":         "a value",
	}
}

// threadNetlink finds calls that act on whatever namespace the thread is in.
func threadNetlink(c *code) []finding {
	var all []finding
	ok := harmless()
	c.uses(func(id *ast.Ident, fn *types.Func) {
		if !below(fn.Pkg().Path(), "github.com/vishvananda/netlink") || fn.Signature().Recv() != nil {
			return
		}
		if _, known := ok[fn.Name()]; !known && fn.Pkg().Name() == "netlink" {
			all = append(all, c.at(id, "netlink.%s", fn.Name()))
		}
	})
	return all
}

func TestNetlinkGoesThroughHandles(t *testing.T) {
	const rule = "a package-level netlink function acts on the namespace of whatever thread the goroutine happens to run on; use a handle"
	w := load(t)
	for _, p := range w.product() {
		report(t, rule, threadNetlink(w.check(t, p)))
	}
	mustFind(t, threadNetlink(w.snippet(t, `package p
import nl "github.com/vishvananda/netlink"
func f(h *nl.Handle) {
	_, _ = nl.LinkByName("eth0")
	list := nl.LinkList
	_ = list
	_, _ = h.LinkList()
	_ = nl.NewLinkAttrs()
}`)), "netlink.LinkByName", "netlink.LinkList")
}

// inits finds functions that run before main.
func inits(c *code) []finding {
	var all []finding
	for _, file := range c.files {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				all = append(all, c.at(f, "func init"))
			}
		}
	}
	return all
}

// mayVary are the package variables that are no errors, with reason.
func mayVary() map[string]string {
	return map[string]string{
		"conf.sampleConflist":    "the compiler embeds files in variables only; nobody writes it",
		"conf.sampleDaemon":      "as the one above",
		"conf.unit":              "as the one above",
		"daemon/uninstall.stub":  "as the one above",
		"daemon/server.states":   "the values of a label, a constant in all but the language",
		"daemon/node.bypassing":  "a constant in all but the language",
		"daemon/tenured.fixedIn": "a constant in all but the language",
	}
}

// variables finds package variables other than sentinel errors, interface
// assertions, a main's version and what is allowed.
func variables(c *code) []finding {
	var all []finding
	allowed := mayVary()
	for _, file := range c.files {
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, spec := range g.Specs {
				for _, id := range spec.(*ast.ValueSpec).Names {
					_, known := allowed[c.member(id)]
					if known || id.Name == "_" || c.main && id.Name == "version" || c.sentinel(id) {
						continue
					}
					all = append(all, c.at(id, "var %s", id.Name))
				}
			}
		}
	}
	return all
}

// member names a package's member with its directory.
func (c *code) member(id *ast.Ident) string {
	return strings.TrimPrefix(c.path, module+"/") + "." + id.Name
}

// sentinel: of type error, and named like one.
func (c *code) sentinel(id *ast.Ident) bool {
	obj := c.info.Defs[id]
	named := strings.HasPrefix(id.Name, "err") || strings.HasPrefix(id.Name, "Err")
	return named && obj != nil && types.Identical(obj.Type(), types.Universe.Lookup("error").Type())
}

// panics finds calls of panic, outside commands.
func panics(c *code) []finding {
	var all []finding
	for _, file := range c.files {
		ast.Inspect(file, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && !c.main && c.info.Uses[id] == types.Universe.Lookup("panic") {
				all = append(all, c.at(id, "panic"))
			}
			return true
		})
	}
	return all
}

func TestNothingHappensOnItsOwn(t *testing.T) {
	w := load(t)
	for _, p := range w.own() {
		c := w.check(t, p)
		report(t, "nothing runs because it was imported; pass values in", inits(c))
		report(t, "a package variable is shared by everything in the process, two instances and every test included; pass it in (sentinel errors, a command's version and the list in mayVary excepted)", variables(c))
		report(t, "a panic ends the daemon of every pod on the node; return an error", panics(c))
	}
	c := w.snippet(t, `package p
import "errors"
var ErrGone, errHere error = errors.New("gone"), errors.New("here")
var count, table = 0, map[string]int{}
var version = "dev"
var _ error = ErrGone
var errs []error
func init() {}
type T struct{}
func (T) init() {}
func f() { panic("no"); _ = recover() }
func g(panic func(string)) { panic("a parameter of that name") }
func h() { var local = 1; _ = local }
`)
	mustFind(t, inits(c), "func init")
	mustFind(t, variables(c), "var count", "var table", "var version", "var errs")
	mustFind(t, panics(c), "panic")
	command := w.snippet(t, "package main\nvar version, other = \"dev\", 1\nfunc main() { panic(other) }")
	mustFind(t, variables(command), "var other")
	mustFind(t, panics(command))
}

func TestAllowListIsInUse(t *testing.T) {
	w := load(t)
	unused := mayVary()
	for _, p := range w.own() {
		c := w.check(t, p)
		for id, obj := range c.info.Defs {
			if v, ok := obj.(*types.Var); ok && v.Parent() == v.Pkg().Scope() {
				delete(unused, c.member(id))
			}
		}
	}
	for name := range unused {
		t.Errorf("mayVary allows %s, which does not exist any more", name)
	}
}
