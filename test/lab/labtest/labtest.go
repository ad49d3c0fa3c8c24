// Package labtest makes labs for tests.
//
// It owns the guard and the clean-up that every test of real binaries wants:
// skip under -short, fail (never skip) where root or a binary is missing, show
// the daemons' logs when the test failed. It must not hold any helper that the
// demo or a bench would want too; those are in lab.
package labtest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/packaged"
)

// buildTime bounds the building of a lab.
const buildTime = 30 * time.Second

// New makes a lab that is closed when the test ends. Options.Bin is found when
// empty, Options.Etcd is then what the environment says (package packaged), and
// Options.Log goes to the test's log when nil.
func New(t testing.TB, opts lab.Options) *lab.Lab {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	if opts.Bin == "" {
		bin, err := lab.FindBin()
		if err != nil {
			t.Fatal(err)
		}
		opts.Bin = bin
	}
	if opts.Etcd == "" {
		opts.Etcd = packaged.Program()
	}
	if opts.Log == nil {
		opts.Log = writer{t}
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTime)
	defer cancel()
	l, err := lab.New(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			showLogs(t, l)
		}
		if err := l.Close(); err != nil {
			t.Errorf("close lab: %v", err)
		}
	})
	return l
}

// Cluster makes a lab with an etcd and the named nodes; no tenured runs yet.
func Cluster(t testing.TB, opts lab.Options, names ...string) (*lab.Lab, []*lab.Node) {
	t.Helper()
	l := New(t, opts)
	ctx, cancel := context.WithTimeout(context.Background(), buildTime)
	defer cancel()
	if _, err := l.StartEtcd(ctx); err != nil {
		t.Fatal(err)
	}
	nodes := make([]*lab.Node, len(names))
	for i, name := range names {
		n, err := l.AddNode(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		nodes[i] = n
	}
	return l, nodes
}

func showLogs(t testing.TB, l *lab.Lab) {
	t.Helper()
	for _, n := range l.Nodes() {
		if log := n.Logs(40); log != "" {
			t.Logf("end of the log of %s:\n%s", n.Host, log)
		}
	}
	for _, e := range l.EtcdMembers() {
		if b, err := os.ReadFile(e.LogFile()); err == nil && len(b) > 0 {
			t.Logf("end of the log of etcd on %s:\n%s", e.Addr, b[max(0, len(b)-4000):])
		}
	}
}

// writer is the test's log as an io.Writer.
type writer struct{ t testing.TB }

func (w writer) Write(b []byte) (int, error) {
	w.t.Helper()
	w.t.Logf("%s", b)
	return len(b), nil
}
