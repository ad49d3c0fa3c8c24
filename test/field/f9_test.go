package field

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/lab/labtest"
)

// TestF9 is cni #628 and #859, Azure CNI #1690 and cilium #32168: a node is
// marked ready before its plugin can serve, or not ready without a reason; the
// presence of a file is the only signal there is. Right is: STATUS says 50
// with the reason in words while there is no daemon, no etcd, no cluster and
// no free subnet, 0 when an ADD would be served, 51 with the reason when the
// subnet is lost below running pods, and 50 again when the daemon is stopped.
// The conflist appears with the first lease and stays.
func TestF9(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	l := labtest.New(t, lab.Options{})
	c := &cluster.Cluster{Lab: l}
	n1 := c.AddNode(ctx, t, "n1")
	f := life{t: t, node: n1, conflist: filepath.Join(t.TempDir(), "net.d", "10-tenure.conflist")}
	o := newOperator(t, n1)
	flags := []string{"--cni-conf-file=" + f.conflist, "--on-stranded=" + o.command}
	const url = "http://192.0.2.2:2379" // where the etcd will be
	l.SetEndpoints(url)

	f.says(ctx, api.CodeNotReady, n1.Socket) // nobody has started it
	start(ctx, t, n1, flags...)
	f.says(ctx, api.CodeNotReady, "starting", url, "not answered")
	f.file(false)

	if _, err := l.StartEtcd(ctx); err != nil {
		t.Fatal(err)
	}
	f.says(ctx, api.CodeNotReady, "waiting", "tenurectl init")
	store := c.Store(t)
	store.Reserve(ctx, "10.5.1.0/24", "n2")
	store.Reserve(ctx, "10.5.2.0/24", "n9")
	c.Init(ctx, t, `{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.2.0"}`)
	cluster.Start(ctx, t, c.AddNode(ctx, t, "n2"))
	f.says(ctx, api.CodeNotReady, "waiting", "of 2 in", "n2", "n9")
	f.file(false)

	store.Unreserve(ctx, "10.5.2.0/24")
	f.says(ctx, 0)
	written := f.file(true)
	old := cluster.Pod(ctx, t, n1, "old")

	// The subnet goes and no other is free; then the same comes back. A
	// command that acts on stranded pods is not run meanwhile.
	store.Reserve(ctx, "10.5.2.0/24", "n9")
	store.Revoke(ctx, cluster.Status(ctx, t, n1).Lease.ID)
	f.says(ctx, api.CodeNotReadyLimited, "no free subnet", "lost 10.5.2.0/24", "stranded pod addresses: 1")
	if r := cluster.Run(ctx, t, n1, "tenurectl", "stranded", "-o", "ids", "--socket="+n1.Socket); r.Code != 1 || r.Out != old.ContainerID()+"\n" {
		t.Errorf("tenurectl stranded: %s", r)
	}
	store.Unreserve(ctx, "10.5.2.0/24")
	f.says(ctx, 0)
	if err := old.Check(ctx); err != nil {
		t.Errorf("CHECK after the subnet has come back: %v", err)
	}
	o.ran()

	stops := map[string]func() error{
		"stop": func() error { return n1.Stop(ctx) },
		"kill": func() error { n1.Kill(); return nil },
	}
	for name, stop := range stops {
		if err := stop(); err != nil {
			t.Fatal(name, err)
		}
		f.says(ctx, api.CodeNotReady, n1.Socket)
		if now := f.file(true); now != written {
			t.Errorf("after %s the conflist is\n%s, it was\n%s", name, now, written)
		}
		start(ctx, t, n1, flags...)
		f.says(ctx, 0)
	}

	// It comes up without etcd, with a subnet in date.
	if err := n1.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	cutEtcd(ctx, t, n1, true)
	start(ctx, t, n1, flags...)
	f.says(ctx, 0)
	cluster.WaitState(ctx, t, n1, api.StateUnproven)
}

func start(ctx context.Context, t *testing.T, n *lab.Node, flags ...string) {
	t.Helper()
	if err := n.Start(ctx, flags...); err != nil {
		t.Fatal(err)
	}
}

// life is a node as a runtime sees it: by STATUS and by a file.
type life struct {
	t        *testing.T
	node     *lab.Node
	conflist string
}

// says waits until STATUS answers with the code, 0 for well, and all the words.
func (f *life) says(ctx context.Context, code uint, words ...string) {
	f.t.Helper()
	cluster.Eventually(ctx, f.t, 15*time.Second, fmt.Sprintf("STATUS says %d", code), func() error {
		began := time.Now()
		a, err := f.node.CNI(ctx, lab.CNICall{Verb: "STATUS"})
		if err != nil {
			f.t.Fatal(err)
		}
		if took := time.Since(began); took > time.Second {
			f.t.Errorf("STATUS took %s", took)
		}
		if cluster.Code(a) != code {
			return said(a)
		}
		for _, w := range words {
			if !strings.Contains(a.Err.Msg, w) {
				return fmt.Errorf("without %q: %w", w, said(a))
			}
		}
		return nil
	})
}

// said is an answer as an error.
func said(a *lab.CNIAnswer) error {
	if a.Err == nil {
		return errors.New("it says that all is well")
	}
	return fmt.Errorf("it says: %w", a.Err)
}

// file returns the conflist, which is there or is not.
func (f *life) file(there bool) string {
	f.t.Helper()
	var b []byte
	cluster.Eventually(context.Background(), f.t, 5*time.Second, fmt.Sprintf("the conflist is there: %t", there), func() (err error) {
		b, err = os.ReadFile(f.conflist)
		if !there && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !there {
			f.t.Fatalf("there is a conflist before the first lease: %s", b)
		}
		return err
	})
	if there && (!json.Valid(b) || !strings.Contains(string(b), f.node.Socket)) {
		f.t.Errorf("the conflist is %s", b)
	}
	return string(b)
}
