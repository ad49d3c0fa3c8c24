package e2e

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
)

// TestWatchdog: the daemon tells its supervisor that it is up, and then that it
// lives, also with etcd away; not while it does not answer.
func TestWatchdog(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	path := filepath.Join(n.Dir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	var ready, lives atomic.Int64
	go func() {
		b := make([]byte, 4096)
		for {
			size, err := conn.Read(b)
			if err != nil {
				return
			}
			if strings.Contains(string(b[:size]), "READY=1") {
				ready.Add(1)
			}
			if strings.Contains(string(b[:size]), "WATCHDOG=1") {
				lives.Add(1)
			}
		}
	}()
	n.Env = []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=600000"}
	cluster.Start(ctx, t, n)
	more := func(what string) {
		t.Helper()
		before := lives.Load()
		cluster.Eventually(ctx, t, 5*time.Second, "it says that it lives, "+what, func() error {
			if lives.Load() < before+3 {
				return errors.New("not yet")
			}
			return nil
		})
	}
	more("once it is up")
	if ready.Load() != 1 {
		t.Errorf("told %d times that it is up", ready.Load())
	}
	c.Etcd.Kill()
	more("with etcd away")

	// A daemon that does not answer: its socket leads to somebody who is silent.
	silent, err := net.Listen("unix", filepath.Join(n.Dir(), "silent"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	cluster.Exec(ctx, t, n, "mv", n.Socket, n.Socket+".aside")
	cluster.Exec(ctx, t, n, "ln", "-s", filepath.Join(n.Dir(), "silent"), n.Socket)
	cluster.Eventually(ctx, t, 5*time.Second, "it is silent", func() error { return quiet(ctx, &lives, 600*time.Millisecond) })
	cluster.Exec(ctx, t, n, "mv", n.Socket+".aside", n.Socket)
	more("once it answers again")

	if err := n.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(ctx, t, 5*time.Second, "it is silent", func() error { return quiet(ctx, &lives, 600*time.Millisecond) })
	if err := n.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	more("once it goes on")
	cluster.Wait(ctx, t, n, "answers", func(s *api.Status) bool { return s.Lease != nil })
}

// quiet is nil if nothing is counted for d.
func quiet(ctx context.Context, count *atomic.Int64, d time.Duration) error {
	before := count.Load()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
	}
	if n := count.Load(); n != before {
		return errors.New("it still speaks")
	}
	return nil
}
