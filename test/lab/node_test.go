package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
)

// stand plays tenured, for the lab's own side of running it: it serves a
// status that is ready and says in it which flags it was given.
func stand(args []string) error {
	var socket string
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, "--socket="); ok {
			socket = v
		}
	}
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer cancel()
	_ = os.Remove(socket)
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "unix", socket)
	if err != nil {
		return err
	}
	fmt.Println("serving", socket)
	srv := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(api.Status{Ready: true, State: api.StateHeld, Reason: strings.Join(args, " ")})
	})}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func TestNodeRunsItsDaemon(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(self, filepath.Join(bin, "tenured")); err != nil {
		t.Fatal(err)
	}
	l, ctx := newLab(t, Options{Bin: bin})
	n := addNode(ctx, t, l, "n1")
	if err := errors.Join(n.Start(ctx, "--log-level=debug"), n.WaitReady(ctx)); err != nil {
		t.Fatal(err)
	}
	st, err := n.Status(ctx)
	if err != nil || !strings.Contains(st.Reason, "--node-name=n1") || !strings.HasSuffix(st.Reason, "--log-level=debug") {
		t.Errorf("flags: %+v, %v", st, err)
	}
	if inside, err := n.Exec(ctx, "ip", "netns", "identify", fmt.Sprint(n.Pid())); err != nil || strings.TrimSpace(inside) != n.Name() {
		t.Errorf("the daemon is in namespace %q, %v", inside, err)
	}
	if err := n.Start(ctx); err == nil {
		t.Error("a second daemon was started beside the first")
	}
	checkHang(ctx, t, n)
	checkEnds(ctx, t, n)
}

func checkHang(ctx context.Context, t *testing.T, n *Node) {
	t.Helper()
	if err := n.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := n.Status(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("status of a hung daemon: %v", err)
	}
	if err := n.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx); err != nil {
		t.Error(err)
	}
}

func checkEnds(ctx context.Context, t *testing.T, n *Node) {
	t.Helper()
	if err := n.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := errors.Join(n.Start(ctx), n.WaitReady(ctx)); err != nil {
		t.Fatal(err)
	}
	n.Kill()
	var exit *exec.ExitError
	if err := n.Wait(ctx); !errors.As(err, &exit) || exit.Exited() {
		t.Errorf("after Kill: %v, want death by signal", err)
	}
	if got := strings.Count(n.Logs(10), "serving"); got != 2 {
		t.Errorf("%d starts in the log, want 2:\n%s", got, n.Logs(10))
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := n.WaitState(short, "ready again", func(*api.Status) bool { return true }); err == nil ||
		!strings.Contains(err.Error(), "n1 ready again") || !strings.Contains(err.Error(), "serving") {
		t.Errorf("waiting for a dead daemon: %v, want what and the log", err)
	}
}
