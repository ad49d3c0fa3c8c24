package packaged

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Variable names the etcd that tests shall use instead of their own.
const Variable = "TENURE_ETCD"

// againTime bounds one test that is run again.
const againTime = 5 * time.Minute

// Program is the etcd that tests shall use, an absolute path; empty is their
// own.
func Program() string { return os.Getenv(Variable) }

// Find looks for the distribution's etcd: bin/tools/etcd-packaged of the
// checkout that the working directory is in, else etcd in PATH.
func Find() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find a packaged etcd: %w", err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
			continue
		}
		if path, err := exec.LookPath(filepath.Join(dir, "bin", "tools", "etcd-packaged")); err == nil {
			return path, nil
		}
		break
	}
	if path, err := exec.LookPath("etcd"); err == nil {
		return path, nil
	}
	return "", errors.New("there is no packaged etcd: run scripts/deps test, which takes it out of Debian's package; elsewhere put an etcd of 3.4 or 3.5 into PATH")
}

// Version is what the program says that it is, such as 3.4.23.
func Version(program string) (string, error) {
	out, err := exec.Command(program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", program, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	version, ok := strings.CutPrefix(first, "etcd Version: ")
	if !ok {
		return "", fmt.Errorf("ask %s for its version: it says %q", program, first)
	}
	return version, nil
}

// Member is how one member of a store is started.
type Member struct {
	// Name, Dir, and the URLs for clients and for other members.
	Name, Dir, Client, Peer string
	// Cluster lists all members as name=peer URL; Token makes its ID.
	Cluster, Token string
	// Joins: the others run already, and have added it.
	Joins bool
	// CertFile and KeyFile are its own for clients, who must show one of
	// ClientCA; empty without TLS.
	CertFile, KeyFile, ClientCA string
}

// Flags are those of etcd's own program, as all since 3.4.15 know them. Nothing
// is synced to the disk.
func (m Member) Flags() []string {
	flags := []string{
		"--name=" + m.Name, "--data-dir=" + m.Dir,
		"--listen-client-urls=" + m.Client, "--advertise-client-urls=" + m.Client,
		"--listen-peer-urls=" + m.Peer, "--initial-advertise-peer-urls=" + m.Peer,
		"--initial-cluster=" + m.Cluster, "--initial-cluster-token=" + m.Token,
		"--unsafe-no-fsync", "--bcrypt-cost=4", "--logger=zap", "--log-level=warn",
	}
	if m.Joins {
		flags = append(flags, "--initial-cluster-state=existing")
	}
	if m.CertFile != "" {
		flags = append(flags, "--cert-file="+m.CertFile, "--key-file="+m.KeyFile, "--trusted-ca-file="+m.ClientCA, "--client-cert-auth")
	}
	return flags
}

// Again runs the named tests of the caller's package once more, each as a
// subtest and on the distribution's etcd. A name that is no test's, or one that
// skips, is a failure; so is a machine without such an etcd.
func Again(t *testing.T, names ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a packaged etcd")
	}
	etcd, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	version, err := Version(etcd)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s, version %s", etcd, version)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+name+"$", "-test.v", "-test.timeout="+againTime.String())
			cmd.Env = append(os.Environ(), Variable+"="+etcd)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "\n--- PASS: "+name+" ") || strings.Contains(string(out), "--- SKIP: ") {
				t.Errorf("on etcd %s: %v\n%s", version, err, out)
			}
		})
	}
}
