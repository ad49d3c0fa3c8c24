package shim_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const maxBinary = 7 << 20

// build compiles a plugin as it is shipped.
func build(t *testing.T, plugin string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), plugin)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "github.com/tenure-cni/tenure/plugins/"+plugin)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", plugin, err, out)
	}
	return bin
}

// printed is whatever a plugin can print.
type printed struct {
	CNIVersion        string   `json:"cniVersion"`
	SupportedVersions []string `json:"supportedVersions"`
	Code              uint     `json:"code"`
	Msg               string   `json:"msg"`
}

// run executes the plugin with exactly env; standard output must be empty or
// one JSON object, standard error must be empty.
func run(t *testing.T, bin string, env map[string]string, stdin string) (int, printed) {
	t.Helper()
	cmd := exec.Command(bin)
	cmd.Env = []string{}
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin = strings.NewReader(stdin)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if stderr.Len() > 0 {
		t.Errorf("on standard error: %s", stderr.String())
	}
	var p printed
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &p); err != nil {
			t.Fatalf("%q on standard output is not JSON: %v", out.String(), err)
		}
	}
	return cmd.ProcessState.ExitCode(), p
}

// TestBinary is row F12 on the built plugins: odd and missing parameters.
func TestBinary(t *testing.T) {
	for _, plugin := range []string{"tenure", "tenure-ipam"} {
		bin := build(t, plugin)
		t.Run(plugin+"/size", func(t *testing.T) {
			info, err := os.Stat(bin)
			if err != nil || info.Size() > maxBinary {
				t.Fatalf("%d bytes, at most %d; err %v", info.Size(), maxBinary, err)
			}
		})
		t.Run(plugin+"/version", func(t *testing.T) {
			code, p := run(t, bin, map[string]string{"CNI_COMMAND": "VERSION"}, "not even JSON")
			want := printed{CNIVersion: "1.1.0", SupportedVersions: []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}}
			if diff := cmp.Diff(want, p); diff != "" || code != 0 {
				t.Fatalf("exit %d, %s", code, diff)
			}
		})
		t.Run(plugin+"/odd", func(t *testing.T) { odd(t, bin) })
	}
}

func odd(t *testing.T, bin string) {
	socket := newSocket(t)
	d := listen(t, socket, say(`{"result":{"cniVersion":"1.0.0"}}`))
	section := fmt.Sprintf(`"tenure":{"socket":%q}`, socket)
	stdin := func(version string) string {
		return fmt.Sprintf(`{"cniVersion":%q,"name":"net","type":"tenure",%s,"ipam":{"type":"tenure-ipam",%s}}`, version, section, section)
	}
	env := func(command string, change ...string) map[string]string {
		e := map[string]string{
			"CNI_COMMAND": command, "CNI_CONTAINERID": "c1", "CNI_NETNS": "/proc/self/ns/net",
			"CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin",
		}
		for i := 0; i < len(change); i += 2 {
			e[change[i]] = change[i+1]
			if change[i+1] == "-" {
				delete(e, change[i])
			}
		}
		return maps.Clone(e)
	}
	long := strings.Repeat("a", 200)
	for _, c := range []struct {
		name  string
		env   map[string]string
		stdin string
		code  uint
	}{
		// The namespace is the plugin's own: judging that is the daemon's part.
		{"add", env("ADD"), stdin("1.0.0"), 0},
		{"del", env("DEL"), stdin("1.0.0"), 0},
		{"del without namespace", env("DEL", "CNI_NETNS", "-"), stdin("1.0.0"), 0},
		{"no command", env("", "CNI_COMMAND", "-"), stdin("1.0.0"), 4},
		{"unknown command", env("FLY"), stdin("1.0.0"), 4},
		{"no id", env("ADD", "CNI_CONTAINERID", "-"), stdin("1.0.0"), 4},
		{"empty id", env("DEL", "CNI_CONTAINERID", ""), stdin("1.0.0"), 4},
		{"long id", env("ADD", "CNI_CONTAINERID", long), stdin("1.0.0"), 4},
		{"climbing id", env("ADD", "CNI_CONTAINERID", "../../etc/x"), stdin("1.0.0"), 4},
		{"climbing id in DEL", env("DEL", "CNI_CONTAINERID", "../x"), stdin("1.0.0"), 4},
		{"no interface", env("ADD", "CNI_IFNAME", "-"), stdin("1.0.0"), 4},
		{"long interface", env("ADD", "CNI_IFNAME", "abcdefghijklmnop"), stdin("1.0.0"), 4},
		{"slash in interface", env("ADD", "CNI_IFNAME", "a/b"), stdin("1.0.0"), 4},
		{"no namespace", env("ADD", "CNI_NETNS", "-"), stdin("1.0.0"), 4},
		{"long namespace", env("ADD", "CNI_NETNS", "/"+strings.Repeat(long, 21)), stdin("1.0.0"), 4},
		{"empty stdin", env("ADD"), "", 6},
		{"garbage", env("ADD"), "\x00\xff{{{", 6},
		{"a list", env("DEL"), "[]", 6},
		{"no name", env("ADD"), `{"cniVersion":"1.0.0"}`, 7},
		{"climbing name", env("ADD"), `{"cniVersion":"1.0.0","name":"../x"}`, 7},
		{"unknown version", env("ADD"), stdin("9.9.9"), 1},
		{"unknown version in DEL", env("DEL"), stdin("0.2.0"), 1},
		{"version no version", env("CHECK"), stdin("new"), 6},
		{"CHECK too old", env("CHECK"), stdin("0.3.1"), 1},
		{"GC too old", env("GC"), stdin("1.0.0"), 1},
		{"STATUS too old", env("STATUS"), stdin("0.4.0"), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(d.seen())
			exit, p := run(t, bin, c.env, c.stdin)
			if p.Code != c.code || (exit == 0) != (c.code == 0) {
				t.Fatalf("exit %d, %+v, want code %d", exit, p, c.code)
			}
			if c.code != 0 && (p.CNIVersion == "" || p.Msg == "") {
				t.Errorf("%+v lacks cniVersion or msg", p)
			}
			if called := len(d.seen()) > before; called != (c.code == 0) {
				t.Errorf("daemon called: %v", called)
			}
		})
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(socket), "*"))
	if diff := cmp.Diff([]string{socket}, left); diff != "" || err != nil {
		t.Errorf("files were left: %s, %v", diff, err)
	}
}
