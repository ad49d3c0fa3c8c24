package field

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestE1 is plugins #498: on a full disk empty reservation files pile up until
// the range is used up. Right is: with the ledger on a full file system of 1 MiB
// each of 300 ADDs fails with one error and leaves nothing, a DEL frees; once
// there is room that DEL gets to the file by itself, before any other call, and
// all addresses are to be had without anybody's work.
func TestE1(t *testing.T) {
	const total = 13
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.Born(ctx, t, tinySubnets, "n1")
	n := c.Nodes[0]
	small(t, n)
	cluster.Start(ctx, t, n)
	stays, goes := cluster.Pod(ctx, t, n, "stays"), cluster.Pod(ctx, t, n, "goes")
	before := cluster.Picture(ctx, t, n)
	filler := filled(t, n.RunDir)
	box := cluster.Sandbox(ctx, t, n, "refused")
	several(t, 300, func(i int) {
		call := cluster.CallFor("ADD", box, "eth0")
		call.ContainerID = fmt.Sprint("refused", i)
		if a, err := n.CNI(ctx, call); err != nil {
			t.Error(err)
		} else if cluster.Code(a) != api.CodeIO || !strings.Contains(a.Err.Msg, "no space left") {
			t.Errorf("ADD %d on a full disk: %v, want code %d", i, a.Err, api.CodeIO)
		}
	})
	used(ctx, t, n, 2)
	if after := cluster.Picture(ctx, t, n); after != before {
		t.Errorf("the kernel was\n%s\nand is\n%s", before, after)
	}
	if a := cluster.Call(ctx, t, n, cluster.CallFor("DEL", goes, "eth0")); a.Exit != 0 {
		t.Errorf("DEL on a full disk: %v", a.Err)
	}
	used(ctx, t, n, 1)

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(ctx, t, collected, "the DEL is on disk", func() error {
		b, err := os.ReadFile(filepath.Join(n.RunDir, "ledger.json"))
		if err == nil && strings.Contains(string(b), goes.ContainerID()) {
			err = fmt.Errorf("still on record:\n%s", b)
		}
		return err
	})
	n.Kill()
	cluster.Start(ctx, t, n)
	h := &handedOut{all: map[netip.Addr]string{}}
	h.note(t, stays.IP, "stays")
	several(t, total-1, func(i int) { h.add(ctx, t, n, fmt.Sprint("p", i), "") })
	used(ctx, t, n, total)
	if left := damaged(t, n); len(left) > 0 {
		t.Errorf("files were set aside: %v", left)
	}
}

// small puts the node's run directory on a file system of 1 MiB.
func small(t *testing.T, n *lab.Node) {
	t.Helper()
	if err := unix.Mount("tmpfs", n.RunDir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(n.RunDir, unix.MNT_DETACH) })
}

// filled fills the file system of a directory to the last byte.
func filled(t *testing.T, dir string) (filler string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if err = errors.Join(f.Close(), err); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
	return f.Name()
}

// damaged are the ledgers that were set aside.
func damaged(t *testing.T, n *lab.Node) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(n.RunDir, "ledger.json.damaged-*"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// mustCall is a call that has to succeed.
func mustCall(ctx context.Context, t *testing.T, n *lab.Node, call lab.CNICall) *lab.CNIAnswer {
	t.Helper()
	a := cluster.Call(ctx, t, n, call)
	if a.Exit != 0 {
		t.Fatalf("%s of %s: %v", call.Verb, call.ContainerID, a.Err)
	}
	return a
}
