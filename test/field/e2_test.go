package field

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestE2 is cni #1055, containerd #8197, amazon-vpc-cni #2283 and k3s #6185:
// after a loss of power a record is a file of zero length; DEL fails for ever,
// and the pod is stuck. Right is: whatever became of the ledger, with the
// daemon down or under one that runs, a DEL exits 0 and the next daemon starts,
// sets what it cannot read aside with one warning, frees what was deleted, and
// gives no address of a pod that lives to another, be it Tenure's own or one
// of the reference bridge.
func TestE2(t *testing.T) {
	ctx := cluster.Context(t, 3*time.Minute)
	c := cluster.New(ctx, t, littleSubnets, "n1")
	s := &spoilt{node: c.Nodes[0], h: &handedOut{all: map[netip.Addr]string{}}}
	s.h.add(ctx, t, s.node, "lives", "")
	s.h.add(ctx, t, s.node, "bridged", "bridge")
	for _, w := range []struct {
		name    string
		running bool // the daemon, while the file is spoilt
		aside   int
		spoil   func(ledger []byte, container string) []byte
	}{
		{"of zero length", false, 1, func([]byte, string) []byte { return nil }},
		{"of half length", false, 1, func(b []byte, _ string) []byte { return b[:len(b)/2] }},
		{"full of zeros", false, 1, func(b []byte, _ string) []byte { return make([]byte, len(b)) }},
		{"of another container", false, 0, func(b []byte, id string) []byte {
			return bytes.ReplaceAll(b, []byte(id), []byte("another"))
		}},
		{"of another boot", false, 0, func(b []byte, _ string) []byte {
			return bytes.Replace(b, []byte(`"boot":"`), []byte(`"boot":"x`), 1)
		}},
		{"of zero length under a daemon that runs", true, 0, func([]byte, string) []byte { return nil }},
	} {
		t.Run(w.name, func(t *testing.T) { s.round(ctx, t, w.running, w.aside, w.spoil) })
	}
}

// spoilt is a node with two pods that live, and room for three more.
type spoilt struct {
	node *lab.Node
	h    *handedOut
	pods int
}

func (s *spoilt) round(ctx context.Context, t *testing.T, running bool, aside int, spoil func([]byte, string) []byte) {
	t.Helper()
	n := s.node
	s.pods++
	pod := cluster.Pod(ctx, t, n, fmt.Sprint("pod", s.pods))
	if !running {
		n.Kill()
	}
	path, before := filepath.Join(n.RunDir, "ledger.json"), n.Logs(10000)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, spoil(b, pod.ContainerID()), 0o600); err != nil {
		t.Fatal(err)
	}
	mustCall(ctx, t, n, cluster.CallFor("DEL", pod, "eth0"))
	if running {
		n.Kill()
	}
	cluster.Start(ctx, t, n)
	if got := len(damaged(t, n)); got != aside {
		t.Errorf("%d ledgers are set aside, want %d", got, aside)
	}
	if got := strings.Count(strings.TrimPrefix(n.Logs(10000), before), "the ledger is damaged"); got != aside {
		t.Errorf("%d warnings, want %d", got, aside)
	}
	for _, name := range damaged(t, n) {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	// Under another's name the address is kept for as long as its namespace
	// lives: when in doubt, keep.
	if err := pod.Vanish(); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(ctx, t, collected, "the deleted pod's address is free", func() error {
		if got := cluster.Status(ctx, t, n).Addresses.Used; got != 2 {
			return fmt.Errorf("%d addresses are in use, want 2", got)
		}
		return nil
	})
	s.full(ctx, t)
}

// full has the subnet given out to its end, and back.
func (s *spoilt) full(ctx context.Context, t *testing.T) {
	t.Helper()
	var more []*lab.Pod
	for i := range 3 {
		p := cluster.Pod(ctx, t, s.node, fmt.Sprint("more", i))
		if other := s.h.all[p.IP]; other != "" {
			t.Errorf("%s of the pod %s was given to another", p.IP, other)
		}
		more = append(more, p)
	}
	box := cluster.Sandbox(ctx, t, s.node, "none")
	if a := cluster.Call(ctx, t, s.node, cluster.CallFor("ADD", box, "eth0")); cluster.Code(a) != api.CodeNoAddress {
		t.Errorf("ADD on a full subnet: %v, want code %d", a.Err, api.CodeNoAddress)
	}
	if err := box.Vanish(); err != nil {
		t.Fatal(err)
	}
	for _, p := range more {
		if err := p.Del(ctx); err != nil {
			t.Fatal(err)
		}
	}
}
