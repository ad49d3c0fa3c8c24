package field

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// precious is the content of a file that is not ours.
const precious = "precious"

// TestG3 is plugins #760 and lxd #296: the socket that a killed daemon left
// keeps the next one from starting. Right is: it is replaced, whatever its
// owner and mode have become, by one that is root's only. A second daemon
// beside a live one, on its directories or on its socket alone, ends with code
// 1 and leaves the first as it is. What is no socket is not deleted: the daemon
// ends with code 1 and names it.
func TestG3(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	c.Store(t).Reserve(ctx, own, "n1")
	cluster.Start(ctx, t, n)
	for name, spoil := range map[string]func() error{
		"as it was":      func() error { return nil },
		"another owner":  func() error { return os.Chown(n.Socket, 65534, 65534) },
		"another mode":   func() error { return os.Chmod(n.Socket, 0o777) },
		"no mode at all": func() error { return os.Chmod(n.Socket, 0) },
	} {
		t.Run("left over, "+name, func(t *testing.T) {
			n.Kill()
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			cluster.Start(ctx, t, n)
			var st unix.Stat_t
			if err := unix.Lstat(n.Socket, &st); err != nil || st.Mode != unix.S_IFSOCK|0o600 || st.Uid != 0 || st.Gid != 0 {
				t.Errorf("the socket has mode %o, owner %d:%d (%v), want a socket of root with 600", st.Mode, st.Uid, st.Gid, err)
			}
		})
	}
	t.Run("second", func(t *testing.T) { second(ctx, t, c) })
	for name, put := range map[string]func(path string) error{
		"regular file": func(path string) error { return os.WriteFile(path, []byte(precious), 0o640) },
		"directory":    func(path string) error { return os.Mkdir(path, 0o700) },
		"symlink": func(path string) error {
			return errors.Join(os.WriteFile(path+".target", []byte(precious), 0o600), os.Symlink(path+".target", path))
		},
		"dangling symlink":         func(path string) error { return os.Symlink("nowhere", path) },
		"symlink to a live socket": func(path string) error { return os.Symlink(n.Socket, path) },
	} {
		t.Run(name, func(t *testing.T) { isForeign(ctx, t, c, put) })
	}
	works(ctx, t, n, "last")
}

// daemonOn runs another daemon on the node until it ends, which has to be at
// once, with code 1.
func daemonOn(ctx context.Context, t *testing.T, c *cluster.Cluster, flags ...string) (said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	flags = append(flags, "--node-name=n1", "--iface=eth0", "--metrics-listen=", "--etcd-endpoints="+c.Etcd.URL())
	r := cluster.Run(ctx, t, c.Nodes[0], "tenured", flags...)
	if r.Code != 1 {
		t.Errorf("%s, want exit code 1", r)
	}
	return r.Said
}

func second(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	n, other := c.Nodes[0], t.TempDir()
	type first struct {
		Pid                int
		UID, Subnet, Lease string
		Epoch              int64
		Socket             uint64
	}
	look := func() first {
		s := cluster.WaitState(ctx, t, n, api.StateHeld)
		return first{n.Pid(), s.UID, s.Subnet, s.Lease.ID, s.Lease.Epoch, inode(t, n.Socket)}
	}
	before := look()
	for name, dirs := range map[string][]string{
		"same directories": {"--run-dir=" + n.RunDir, "--state-dir=" + n.StateDir},
		"same run-dir":     {"--run-dir=" + n.RunDir, "--state-dir=" + other + "/a"},
		"same state-dir":   {"--run-dir=" + other + "/b", "--state-dir=" + n.StateDir},
		"same socket":      {"--run-dir=" + other + "/c", "--state-dir=" + other + "/d", "--socket=" + n.Socket},
	} {
		t.Run(name, func(t *testing.T) {
			if said := daemonOn(ctx, t, c, dirs...); !strings.Contains(said, "another") {
				t.Errorf("it says %s, want that there is another", said)
			}
		})
	}
	if diff := cmp.Diff(before, look()); diff != "" {
		t.Errorf("the first one has changed (-before +after):\n%s", diff)
	}
	works(ctx, t, n, "beside")
}

// isForeign starts a daemon on a path where something else is.
func isForeign(ctx context.Context, t *testing.T, c *cluster.Cluster, put func(path string) error) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tenured.sock")
	if err := put(path); err != nil {
		t.Fatal(err)
	}
	before := inode(t, path)
	said := daemonOn(ctx, t, c, "--run-dir="+dir+"/run", "--state-dir="+dir+"/state", "--socket="+path)
	if !strings.Contains(said, path) || !strings.Contains(said, "no socket") {
		t.Errorf("it says %s, want %s and what is wrong with it", said, path)
	}
	if inode(t, path) != before {
		t.Errorf("%s is another file", path)
	}
	if b, err := os.ReadFile(path); err == nil && string(b) != precious {
		t.Errorf("%s holds %q", path, b)
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}
