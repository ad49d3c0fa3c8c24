package uninstall

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenure-cni/tenure/daemon/install"
)

// TestUnitOfNobody: where nobody listens the instance's own unit is stopped
// and disabled, and another's is not. systemctl is a script here.
func TestUnitOfNobody(t *testing.T) {
	for what, c := range map[string]struct{ instance, config, runDir, want string }{
		"the first":             {"tenure", "/etc/tenure/tenured.yaml", "/run/tenure", "disable --now tenured.service"},
		"a second":              {"b", "/etc/tenure/b.yaml", "/run/b", "disable --now tenured-b.service"},
		"another configuration": {"c", "/etc/tenure/tenured", "/run/c", ""},
		"by its directory":      {"d", "", "/run/d", "disable --now tenured-d.service"},
		"another directory":     {"c", "", "/run/tenure", ""},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			log := filepath.Join(dir, "log")
			script := `#!/bin/sh
case "$*" in
"show "*" tenured.service") echo "{ path=/s/tenured ; argv[]=/s/tenured --config /etc/tenure/tenured.yaml ; ignore_errors=no ; pid=0 }" ;;
"show "*" tenured-b.service") echo "{ path=/s/tenured ; argv[]=/s/tenured --config=/etc/tenure/b.yaml ; ignore_errors=no ; pid=0 }" ;;
"show "*" tenured-d.service") echo "{ path=/s/tenured ; argv[]=/s/tenured --run-dir /run/d ; ignore_errors=no ; pid=0 }" ;;
show*) echo ;;
*) echo "$*" >>` + log + ` ;;
esac
`
			if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			r := &removal{Options: Options{Instance: c.instance, Socket: filepath.Join(dir, "none.sock"), RunDir: c.runDir, Layout: install.Layout{Config: c.config}},
				say: func(string, ...any) {}}
			if err := r.stopDaemon(t.Context()); err != nil {
				t.Fatal(err)
			}
			did, _ := os.ReadFile(log)
			if got := strings.TrimSpace(string(did)); got != c.want {
				t.Errorf("systemctl did %q, want %q", got, c.want)
			}
		})
	}
}

// TestOtherDaemon: a tenured from another directory needs the plugins as well.
func TestOtherDaemon(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	if sleep, err = filepath.EvalSymlinks(sleep); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	b, err := os.ReadFile(sleep)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, install.Daemon), b, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, install.Daemon), "60")
	if filepath.Base(sleep) != "sleep" { // one program of many names
		cmd.Args[0] = "sleep"
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	found := fmt.Sprint(otherDaemons())
	if !strings.Contains(strings.NewReplacer("[", " ", "]", " ").Replace(found), fmt.Sprintf(" %d ", cmd.Process.Pid)) {
		t.Errorf("found %s, and not process %d", found, cmd.Process.Pid)
	}
	r := &removal{Options: Options{ConfDir: dir, Layout: install.Layout{Prefix: "/usr"}}}
	if why := r.needed(); why == "" {
		t.Error("the programs would be removed")
	}
}

func TestContainerOf(t *testing.T) {
	id, outer := strings.Repeat("0a", 32), strings.Repeat("b", 64)
	for groups, want := range map[string]string{
		"0::/system.slice/tenured.service\n": "",
		"0::/\n":                             "",
		"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + id + ".scope\n":        "cri-containerd-" + id + ".scope",
		"12:cpu:/kubepods/besteffort/pod1/" + id + "\n1:name=systemd:/kubepods/" + id:     id,
		"0::/docker/" + outer + "/kubepods/pod1/" + id + "\n":                             id,
		"0::/machine.slice/libpod-" + id + ".scope/container\n":                           "libpod-" + id + ".scope",
		"0::/user.slice/user-1000.slice/session-3.scope\n1:name=systemd:/user.slice/0a0a": "",
	} {
		if got := containerOf(groups); got != want {
			t.Errorf("%q is in %q, want %q", groups, got, want)
		}
	}
}
