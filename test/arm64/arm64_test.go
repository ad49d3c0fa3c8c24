package arm64

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// emulator runs one program for arm64; the kernel stays this machine's.
const emulator = "qemu-aarch64-static"

const root = "../.."

// crossed is a go command for arm64. There is no C compiler for it, and so no
// race detector.
func crossed(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	if testing.Short() {
		t.Skip("needs " + emulator + " and compiles for another machine")
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	return cmd
}

// decoders are the packages that read what kernels, runtimes and files say.
func decoders() []string {
	return []string{"./conf", "./daemon/api", "./daemon/attach", "./daemon/dataplane", "./daemon/fence", "./daemon/hook", "./ipam", "./plugins/shim"}
}

// TestDecoders: netlink messages, the fence's state, ledgers, configurations and
// calls are read on arm64 as here. Each fuzz target tries its seeds, and what was
// found once.
func TestDecoders(t *testing.T) {
	args := append([]string{"test", "-buildvcs=false", "-count=1", "-vet=off", "-short", "-exec", emulator,
		"-run", "^Fuzz|^TestLayout$|^TestStateRoundTrip$|^TestDecodeDamaged$|^TestTokenRoundTrip$"}, decoders()...)
	out, err := crossed(t, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("on arm64: %v\n%s", err, out)
	}
	for _, p := range decoders() {
		if !bytes.Contains(out, []byte("/"+strings.TrimPrefix(p, "./")+"\t")) || bytes.Contains(out, []byte("[no tests to run]")) {
			t.Errorf("%s: nothing was run:\n%s", p, out)
		}
	}
}

// TestPlugin: what is run for every pod is built for arm64, static, and answers
// a runtime.
func TestPlugin(t *testing.T) {
	program := filepath.Join(t.TempDir(), "tenure")
	if out, err := crossed(t, "build", "-trimpath", "-buildvcs=false", "-o", program, "./plugins/tenure").CombinedOutput(); err != nil {
		t.Fatalf("build for arm64: %v\n%s", err, out)
	}
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if f.Machine != elf.EM_AARCH64 || f.Section(".interp") != nil {
		t.Errorf("it is for %s, with a linker: %t", f.Machine, f.Section(".interp") != nil)
	}
	cmd := exec.CommandContext(t.Context(), emulator, program)
	cmd.Env, cmd.Stdin = []string{"CNI_COMMAND=VERSION"}, strings.NewReader(`{"cniVersion":"1.1.0"}`)
	out, err := cmd.Output()
	if err != nil || !bytes.Contains(out, []byte(`"supportedVersions"`)) {
		t.Errorf("VERSION: %v, %s", err, out)
	}
}
