package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// disk is a small file system under the run directory of a node, with two pods
// on the node, one of which lives all the time.
type disk struct {
	*crash
	third  *lab.Pod // of a container of its own
	filler string
}

func newDisk(ctx context.Context, t *testing.T) *disk {
	t.Helper()
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	if err := unix.Mount("tmpfs", n.RunDir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(n.RunDir, unix.MNT_DETACH) })
	cluster.Start(ctx, t, n)
	d := &disk{crash: &crash{crashWay: crashWay{name: "disk"}, node: n}, filler: filepath.Join(n.RunDir, "filler")}
	d.witness = cluster.Pod(ctx, t, n, "witness")
	d.pod = cluster.Sandbox(ctx, t, n, "pod")
	d.third = cluster.Sandbox(ctx, t, n, "third")
	return d
}

func (d *disk) fill(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(d.filler, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func (d *disk) readOnly(t *testing.T, flags uintptr) {
	t.Helper()
	cluster.Eventually(context.Background(), t, addTime, "remount", func() error {
		return unix.Mount("", d.node.RunDir, "", unix.MS_REMOUNT|flags, "")
	})
}

// refuses says that an ADD fails with the disk's error and leaves nothing.
func (d *disk) refuses(ctx context.Context, t *testing.T, what string) {
	t.Helper()
	links := len(hostEnds(ctx, t, d.node))
	used := cluster.Status(ctx, t, d.node).Addresses.Used
	a := d.call(ctx, t, "", "ADD", d.third)
	if cluster.Code(a) != api.CodeIO || !strings.Contains(a.Err.Msg, what) || !strings.Contains(a.Err.Msg, "ledger.json") {
		t.Errorf("ADD: %v, want code %d, %q and the file's name", a.Err, api.CodeIO, what)
	}
	if got := cluster.Status(ctx, t, d.node).Addresses.Used; got != used || len(hostEnds(ctx, t, d.node)) != links {
		t.Errorf("a refused ADD left an address or an interface: %d used, were %d", got, used)
	}
}

// deletes says that a DEL frees whatever the disk does.
func (d *disk) deletes(ctx context.Context, t *testing.T) {
	t.Helper()
	d.must(ctx, t, "", "DEL", d.pod)
	if s := cluster.Status(ctx, t, d.node); s.Addresses.Used != 1 || len(hostEnds(ctx, t, d.node)) != 1 {
		t.Errorf("after DEL %d addresses are used, and there are the interfaces %v", s.Addresses.Used, hostEnds(ctx, t, d.node))
	}
}

// restart kills the daemon and starts the next one.
func (d *disk) restart(ctx context.Context, t *testing.T) {
	t.Helper()
	d.node.Kill()
	cluster.Start(ctx, t, d.node)
}

// healed says that everything fits together again, for good.
func (d *disk) healed(ctx context.Context, t *testing.T) {
	t.Helper()
	d.isAdded(ctx, t, d.third)
	d.whole(ctx, t, "healed")
	d.restart(ctx, t)
	d.whole(ctx, t, "healed and restarted")
	d.must(ctx, t, "", "DEL", d.third)
	if left := d.whole(ctx, t, "after DEL"); len(left) != 1 {
		t.Errorf("records %v, want the one of the pod that lives", left)
	}
}

// TestFullDisk has the run directory full: ADD is refused, DEL frees, also over
// a daemon that dies before the disk has room, and one that starts without a
// ledger gives no address of a living pod.
func TestFullDisk(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	d := newDisk(ctx, t)
	d.must(ctx, t, "", "ADD", d.pod)
	d.fill(t)
	d.refuses(ctx, t, "no space left")
	d.deletes(ctx, t)
	d.restart(ctx, t)
	d.deletes(ctx, t) // once more: unknown by now
	if err := os.Remove(filepath.Join(d.node.RunDir, "ledger.json")); err != nil {
		t.Fatal(err)
	}
	d.fill(t)
	d.restart(ctx, t)
	d.refuses(ctx, t, "no space left")
	if err := os.Remove(d.filler); err != nil {
		t.Fatal(err)
	}
	d.healed(ctx, t)
}

// TestReadOnlyDisk has the run directory become read-only. A daemon that starts
// there ends and says why: without its lock two could give out one address.
func TestReadOnlyDisk(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	d := newDisk(ctx, t)
	d.must(ctx, t, "", "ADD", d.pod)
	d.node.Kill() // its open files would keep the file system from being remounted
	d.readOnly(t, unix.MS_RDONLY)
	d.endsWith(ctx, t, "read-only file system")
	// So does the DEL, which nobody can take: the runtime repeats it.
	if a := d.call(ctx, t, "", "DEL", d.pod); cluster.Code(a) != api.CodeTryAgain || !strings.Contains(a.Err.Details, "read-only") {
		t.Errorf("DEL that nobody can take: %v", a.Err)
	}
	d.readOnly(t, 0)
	cluster.Start(ctx, t, d.node)
	d.deletes(ctx, t)
	d.healed(ctx, t)
}

// endsWith says that a daemon ends by itself, with code 1 and that text.
func (d *disk) endsWith(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	if err := d.node.Start(ctx); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := d.node.Wait(ctx); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("the daemon ended with %v, want code 1", err)
	}
	if log := d.node.Logs(3); !strings.Contains(log, text) {
		t.Errorf("the log does not say %q:\n%s", text, log)
	}
}
