package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tenure-cni/tenure/daemon/uninstall"
)

// TestToRemove: a configuration that does not say it, or says another's, is no
// reason to remove the instance of the defaults. Nothing is removed here.
func TestToRemove(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "--config=" + path
	}
	faulty := file("faulty.yaml", "run-dir: [\n")
	b := file("b.yaml", "name: b\nrun-dir: /run/b\nstate-dir: /var/lib/b\ncni-conf-file: /etc/b/10-b.conflist\n")
	missing := "--config=" + filepath.Join(dir, "none.yaml")
	for what, c := range map[string]struct {
		args []string
		want string // instance, run-dir, state-dir, socket; "" and "found" are usage errors
	}{
		"the config's":             {[]string{b}, "b /run/b /var/lib/b /run/b/tenured.sock"},
		"the config's, by name":    {[]string{b, "--name=b"}, "b /run/b /var/lib/b /run/b/tenured.sock"},
		"a flag wins":              {[]string{b, "--state-dir=/s"}, "b /run/b /s /run/b/tenured.sock"},
		"a faulty config":          {[]string{faulty}, ""},
		"a faulty config, half":    {[]string{faulty, "--run-dir=/r"}, ""},
		"a faulty config, named":   {[]string{faulty, "--name=b", "--run-dir=/r", "--state-dir=/s"}, "b /r /s /r/tenured.sock"},
		"a faulty config, found":   {[]string{faulty}, "found"},
		"a missing config":         {[]string{missing}, ""},
		"a missing config, named":  {[]string{missing, "--run-dir=/r", "--state-dir=/s"}, "tenure /r /s /r/tenured.sock"},
		"another name":             {[]string{b, "--name=c"}, ""},
		"another name, no config":  {[]string{"--config=", "--name=c", "--run-dir=/r"}, ""},
		"another name, its places": {[]string{"--config=", "--name=c", "--run-dir=/r", "--state-dir=/s", "--socket=/x"}, "c /r /s /x"},
	} {
		t.Run(what, func(t *testing.T) {
			var o uninstall.Options
			var root string
			cmd := &cobra.Command{}
			cmd.Flags().StringVar(&o.Socket, "socket", "", "")
			uninstallFlags(cmd.Flags(), &o, &root)
			if err := cmd.ParseFlags(c.args); err != nil {
				t.Fatal(err)
			}
			if c.want == "found" { // by the default, without the flag
				cmd.Flag("config").Changed, c.want = false, ""
			}
			err := toRemove(cmd, &o)
			var exit *exitError
			switch {
			case c.want == "" && (!errors.As(err, &exit) || exit.code != exitUsage):
				t.Errorf("%v, would remove %+v", err, o)
			case c.want != "" && err != nil:
				t.Error(err)
			case c.want != "":
				if got := strings.Join([]string{o.Instance, o.RunDir, o.StateDir, o.Socket}, " "); got != c.want {
					t.Errorf("would remove %s, want %s", got, c.want)
				}
			}
		})
	}
}

// TestHostRoot: the host's root is the host under each of its names.
func TestHostRoot(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/", link); err != nil {
		t.Fatal(err)
	}
	for root, want := range map[string]string{"/": "/", "//": "/", "/.": "/", "/usr/..": "/", link: "/", dir + "/": dir, dir + "/new": dir + "/new"} {
		if got, err := hostRoot(root); err != nil || got != want {
			t.Errorf("%q is %q, %v, want %q", root, got, err, want)
		}
	}
	for _, verb := range []string{"install", "uninstall"} {
		if code, out, _ := ran(t.Context(), verb, "--root=", "--prefix="+dir, "--cni-bin-dir="+dir, "--unit-dir=", "--config="); code != exitUsage || out != "" {
			t.Errorf("%s with an empty --root: exit code %d: %s", verb, code, out)
		}
	}
	t.Chdir(dir)
	if got, err := hostRoot("tree"); err != nil || got != filepath.Join(dir, "tree") {
		t.Errorf("a relative root is %q, %v", got, err)
	}
}

// TestUninstallTree: the operator's configuration in a tree is kept as on a host.
func TestUninstallTree(t *testing.T) {
	root := t.TempDir()
	config, unit := filepath.Join(root, "etc/tenure/tenured.yaml"), filepath.Join(root, "units/tenured.service")
	for _, path := range []string{config, unit} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	there := func(path string) bool { _, err := os.Stat(path); return err == nil }
	args := []string{"uninstall", "--root", root, "--unit-dir=/units"}
	if code, out, said := ran(t.Context(), args...); code != exitOK || !there(config) || there(unit) {
		t.Errorf("exit code %d, configuration %t, unit %t: %s%s", code, there(config), there(unit), out, said)
	}
	if code, out, said := ran(t.Context(), append(args, "--purge")...); code != exitOK || there(config) {
		t.Errorf("--purge: exit code %d, configuration %t: %s%s", code, there(config), out, said)
	}
}
