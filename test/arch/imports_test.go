package arch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A pattern is an import path, or with "/..." at its end everything below it
// as well. "std" is the standard library.

func matches(path string, standard bool, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		base, tree := strings.CutSuffix(pattern, "/...")
		return pattern == "std" && standard || path == base || tree && strings.HasPrefix(path, base+"/")
	})
}

// own makes an import path of a directory of the module.
func own(dirs ...string) []string {
	for i, d := range dirs {
		dirs[i] = module + "/" + d
	}
	return dirs
}

// importRule says what a package may or must not import.
type importRule struct {
	packages []string // directories of the module
	// only is all that may be imported, nil for anything; never is what must
	// not, whatever only says.
	only, never []string
	// direct judges the package's own import lines instead of all it pulls in.
	direct bool
	why    string
}

const (
	etcdClient = "go.etcd.io/..."
	netlinkLib = "github.com/vishvananda/netlink/..."
	ebpfLib    = "github.com/cilium/ebpf/..."
	iptLib     = "github.com/coreos/go-iptables/..."
)

// leaves of the daemon: each knows one thing.
func leaves() []string {
	return own("daemon/lease", "daemon/fence", "daemon/dataplane", "daemon/attach", "daemon/hook", "daemon/flows", "daemon/pathmtu", "ipam")
}

func importRules() []importRule {
	rules := []importRule{
		{
			packages: []string{"plugins/tenure", "plugins/tenure-ipam", "plugins/shim"},
			only: append(own("plugins/shim", "daemon/api"), "std", "github.com/containernetworking/cni/...",
				"github.com/vishvananda/netns", "golang.org/x/sys/unix"),
			why: "the plugin is exec'd once per pod: an etcd or netlink client in it would triple its size and its start-up time (netns and x/sys are what cni itself pulls)",
		},
		{
			packages: []string{"daemon/lease"},
			never:    []string{netlinkLib, ebpfLib, iptLib, "github.com/vishvananda/netns"},
			why:      "whether a subnet is held must follow from etcd and the clock alone, never from the kernel's network state",
		},
		{
			packages: []string{"daemon/dataplane"},
			never:    []string{etcdClient},
			why:      "the data plane brings the kernel to what is desired; who desires it, and on whose word, is not its affair",
		},
		{
			packages: []string{"daemon/fence"},
			never:    []string{etcdClient},
			why:      "the fence must hold with etcd gone: it knows a deadline, not where that comes from",
		},
		{
			packages: []string{"daemon/attach"},
			never:    append(own("daemon/api"), etcdClient),
			why:      "attaching makes one interface as it is told: it needs no store and no wire format",
		},
		{
			packages: []string{"ipam"},
			only:     []string{"std", "github.com/google/renameio/v2/..."},
			why:      "addresses and their record are arithmetic and one file: they stay usable and testable without a network",
		},
		{
			packages: []string{"daemon/api"},
			only:     []string{"std", "github.com/containernetworking/cni/pkg/types/..."},
			why:      "the plugin links the wire's types; what they import it carries",
		},
		{
			packages: []string{"conf"},
			only: []string{"std", "github.com/containernetworking/cni/pkg/types/...", "github.com/spf13/pflag",
				"sigs.k8s.io/yaml/...", "go.yaml.in/yaml/..."},
			why: "reading a configuration contacts nobody",
		},
		{
			packages: []string{"daemon/node"}, direct: true,
			never: []string{etcdClient, netlinkLib, ebpfLib, iptLib, "net/http/...", "google.golang.org/grpc/..."},
			why:   "the use cases say in which order things happen; how, the leaves know",
		},
		{
			packages: []string{"daemon/doctor"},
			never:    append(own("daemon/lease", "daemon/node", "daemon/server", "daemon/hook"), etcdClient),
			why:      "the doctor looks at one host, with or without a daemon: it must work where etcd is the trouble",
		},
		{
			packages: []string{"daemon/server"},
			never:    append(leaves(), etcdClient, netlinkLib, ebpfLib, iptLib),
			why:      "the server hands bodies to use cases and decides nothing about pods",
		},
		{
			packages: []string{"test/ownership"},
			never:    append(leaves(), own("daemon/api", "daemon/node", "conf", "test/lab")...),
			why:      "a checker that decodes with the code that it judges believes what that code believes; and the tests of lease must be able to import it",
		},
	}
	for _, leaf := range leaves() {
		others := slices.DeleteFunc(leaves(), func(l string) bool { return l == leaf })
		rules = append(rules, importRule{packages: []string{strings.TrimPrefix(leaf, module+"/")}, never: others,
			why: "the leaves do not know each other, so that each can be changed and tested alone; node and tenured join them"})
	}
	return rules
}

// imported is what a rule judges, in order.
func imported(w *world, pkg string, direct bool) []string {
	var all []string
	if direct {
		all = append(all, w.byPath[pkg].Imports...)
	} else {
		for path := range w.deps(pkg) {
			all = append(all, path)
		}
	}
	slices.Sort(all)
	return all
}

// broken lists the imports that a rule forbids.
func (r importRule) broken(w *world, pkg string) []string {
	var all []string
	for _, path := range imported(w, pkg, r.direct) {
		p := w.byPath[path]
		// What go list does not show is vendored inside the standard library.
		standard := p == nil || p.Standard
		if r.only != nil && !matches(path, standard, r.only) || matches(path, standard, r.never) {
			all = append(all, path)
		}
	}
	return all
}

func TestImports(t *testing.T) {
	w := load(t)
	for _, r := range importRules() {
		for _, dir := range r.packages {
			pkg := module + "/" + dir
			if w.byPath[pkg] == nil {
				t.Errorf("rule about %s: there is no such package", dir)
				continue
			}
			for _, path := range r.broken(w, pkg) {
				t.Errorf("%s imports %s%s\n\tit must not: %s", dir, path, via(w, pkg, path), r.why)
			}
		}
	}
}

// via names the import that brings path in, if pkg does not itself.
func via(w *world, pkg, path string) string {
	if slices.Contains(w.byPath[pkg].Imports, path) {
		return ""
	}
	for _, i := range w.byPath[pkg].Imports {
		if w.byPath[i] != nil && w.deps(i)[path] {
			return fmt.Sprintf(" (through %s)", i)
		}
	}
	return ""
}

func TestImportRulesCanFail(t *testing.T) {
	w := load(t)
	lease := module + "/daemon/lease"
	for name, r := range map[string]importRule{
		"only":      {only: []string{"std"}},
		"never":     {never: []string{etcdClient}},
		"direct":    {never: []string{etcdClient}, direct: true},
		"std":       {never: []string{"std"}},
		"exact":     {never: []string{"go.etcd.io/etcd/client/v3"}},
		"only+own":  {only: []string{"std", etcdClient}},
		"transport": {never: []string{"google.golang.org/grpc/..."}},
	} {
		if len(r.broken(w, lease)) == 0 {
			t.Errorf("rule %q finds nothing in %s", name, lease)
		}
	}
	for name, r := range map[string]importRule{
		"anything":    {},
		"not a tree":  {never: []string{"go.etcd.io"}},
		"half a name": {never: []string{"go.etcd.io/et/..."}},
	} {
		if got := r.broken(w, lease); len(got) > 0 {
			t.Errorf("rule %q forbids %v", name, got)
		}
	}
	if deps := w.deps(module + "/daemon/tenured"); !deps["github.com/cilium/ebpf/asm"] || !deps["google.golang.org/grpc"] {
		t.Error("deps does not follow imports: tenured has ebpf and grpc in it")
	}
}

func TestProductImportsNoTestCode(t *testing.T) {
	w := load(t)
	for _, p := range w.product() {
		for path := range w.deps(p.ImportPath) {
			if matches(path, false, []string{"testing", module + "/test/...", module + "/scripts/..."}) {
				t.Errorf("%s imports %s%s\n\twhat is shipped carries no test code", p.ImportPath, path, via(w, p.ImportPath, path))
			}
		}
	}
}
