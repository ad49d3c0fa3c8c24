package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// storePrefix is where the cluster lies in etcd.
const storePrefix = "/tenure/network/"

// TestDeletedKeys deletes keys by hand under nodes that run: the config, the
// store's identity, and everything. Whatever is gone, what is held is held on,
// pods lose no packet, and newcomers wait until tenurectl init has said the word
// that status names; a config with another LeaseTTL moves every holder to it.
func TestDeletedKeys(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.New(ctx, t, shortLease, "n1", "n2")
	newcomer := c.AddNode(ctx, t, "n3")
	store := c.Store(t)
	ring := cluster.NewRing(ctx, t, c.Nodes...)
	remove := func(key string, opts ...clientv3.OpOption) {
		t.Helper()
		if _, err := store.Delete(ctx, key, opts...); err != nil {
			t.Fatal(err)
		}
	}
	all := func(what string, want func(*api.Status) bool) {
		t.Helper()
		for _, n := range ring.Nodes {
			cluster.Wait(ctx, t, n, what, func(s *api.Status) bool { return s.State == api.StateHeld && want(s) })
		}
	}
	init := func(config, said string, args ...string) {
		t.Helper()
		r := cluster.Run(ctx, t, c.Etcd.NS, "tenurectl", append([]string{"init", "--network-config=" + config, "--etcd-endpoints=" + c.Etcd.URL()}, args...)...)
		if r.Code != 0 || !strings.Contains(r.Out, said) {
			t.Errorf("init %v: %s, want %q in it", args, r, said)
		}
	}
	problem := func(code string) func(*api.Status) bool {
		return func(s *api.Status) bool { return cluster.HasProblem(s, code) }
	}

	remove(storePrefix + "config")
	all("misses the config", problem("config-missing"))
	if err := newcomer.Start(ctx); err != nil {
		t.Fatal(err)
	}
	waitsAs(ctx, t, newcomer, "the network config is gone")
	const longer = `{"Network":"10.5.0.0/16","LeaseTTL":"10s"}`
	init(longer, "it is written again")
	all("has moved to the new lease", func(s *api.Status) bool { return s.Lease.TTLSeconds == 10 && cluster.Well(s) })
	third := cluster.WaitState(ctx, t, newcomer, api.StateHeld)
	if third.Lease.TTLSeconds != 10 {
		t.Errorf("the newcomer has a lease of %d s", third.Lease.TTLSeconds)
	}
	if r := cluster.Run(ctx, t, newcomer, "tenurectl", "leave", "--socket="+newcomer.Socket); r.Code != 0 {
		t.Errorf("leave: %s", r)
	}
	ring.Whole(ctx, t)

	for _, gone := range []struct {
		what string
		opts []clientv3.OpOption
		text string
		said string
	}{
		{"tenure/store", nil, "no store identity", "the store's identity is added"},
		{"", []clientv3.OpOption{clientv3.WithPrefix()}, "tenurectl init --after-loss", "the cluster is born"},
	} {
		began := time.Now()
		remove(storePrefix+gone.what, gone.opts...)
		all("knows what is gone", func(s *api.Status) bool {
			return cluster.HasProblem(s, "store-went-back") && cluster.HasProblem(s, "store-missing")
		})
		restartHere(ctx, t, newcomer)
		waitsAs(ctx, t, newcomer, gone.text)
		init(longer, gone.said, "--after-loss")
		waitsAs(ctx, t, newcomer, "settling")
		s := cluster.WaitState(ctx, t, newcomer, api.StateHeld)
		if waited := time.Since(began); waited < 9*time.Second {
			t.Errorf("without %q a newcomer was served after %s", gone.what, waited)
		}
		if s.Subnet == ring.Before[0].Subnet || s.Subnet == ring.Before[1].Subnet {
			t.Errorf("the newcomer holds %s, which is another's", s.Subnet)
		}
		all("has settled", func(s *api.Status) bool { return cluster.Well(s) })
		if r := cluster.Run(ctx, t, newcomer, "tenurectl", "leave", "--socket="+newcomer.Socket); r.Code != 0 {
			t.Errorf("leave: %s", r)
		}
	}
	ring.Same(ctx, t)
	ring.Whole(ctx, t)
}

// waitsAs waits until the node waits, and gives that reason.
func waitsAs(ctx context.Context, t *testing.T, n *lab.Node, reason string) {
	t.Helper()
	cluster.Wait(ctx, t, n, "waits and says "+reason, func(s *api.Status) bool {
		return s.State == api.StateWaiting && strings.Contains(s.Reason, reason)
	})
}

// restartHere kills the daemon and starts it again.
func restartHere(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	n.Kill()
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
}
