package field

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/lab/labtest"
	"github.com/tenure-cni/tenure/test/pki"
)

// embeddedCluster is a cluster whose etcd runs in the daemon of n1 and serves the other
// nodes over the underlay, in plain or with TLS.
type embeddedCluster struct {
	*cluster.Cluster
	t   *testing.T
	url string
	// dir has the PEM files of each node, by its name, and ca.crt; empty without
	// TLS.
	dir string
	ca  *pki.Authority
}

func embeddedIn(ctx context.Context, t *testing.T, secure bool, network string) *embeddedCluster {
	t.Helper()
	w := &embeddedCluster{Cluster: &cluster.Cluster{Lab: labtest.New(t, lab.Options{})}, t: t}
	for _, name := range []string{"n1", "n2", "n3"} {
		w.Nodes = append(w.Nodes, w.AddNode(ctx, t, name))
	}
	scheme := "http"
	if secure {
		scheme, w.dir = "https", t.TempDir()
		w.newAuthority("first")
		for _, n := range w.Nodes {
			w.issue(n, false)
			w.trust(n)
		}
	}
	w.url = scheme + "://" + w.Nodes[0].Addr.String() + ":2379"
	w.start(ctx, w.Nodes[0], "--new-cluster", "--network-config="+network)
	return w
}

func (w *embeddedCluster) newAuthority(name string) {
	w.ca = pki.New(w.t, filepath.Join(w.dir, name+".crt"))
}

// issue gives a node a certificate of the present authority.
func (w *embeddedCluster) issue(n *lab.Node, ended bool) {
	w.t.Helper()
	w.ca.Issue(w.t, filepath.Join(w.dir, n.Host), pki.Certificate{Subject: n.Host, Addrs: []netip.Addr{n.Addr}, Ended: ended})
}

// trust makes the present authority the one that a node goes by.
func (w *embeddedCluster) trust(n *lab.Node) {
	w.t.Helper()
	b, err := os.ReadFile(w.ca.File)
	if err == nil {
		err = os.WriteFile(filepath.Join(w.dir, "ca-"+n.Host+".crt"), b, 0o600)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// start runs the daemon of a node, n1's with the etcd.
func (w *embeddedCluster) start(ctx context.Context, n *lab.Node, more ...string) {
	w.t.Helper()
	if err := n.Start(ctx, append(w.flags(n), more...)...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *embeddedCluster) flags(n *lab.Node) []string {
	args := []string{"--etcd-endpoints=" + w.url}
	if n == w.Nodes[0] {
		args = append(args, "--etcd-embedded", "--etcd-embedded-listen="+w.url)
	}
	if w.dir != "" {
		at := filepath.Join(w.dir, n.Host)
		args = append(args, "--etcd-cafile="+filepath.Join(w.dir, "ca-"+n.Host+".crt"), "--etcd-certfile="+at+".crt", "--etcd-keyfile="+at+".key")
	}
	return args
}

// TestEmbedded is README's "--etcd-embedded survives restarts and serves other
// nodes over the underlay, with TLS files when given": its data, the leases and
// what everybody holds are the same after a restart of the daemon that it is in,
// and no packet is lost. It waits for its address, and says so; who shows no
// certificate is let in by none that has an authority.
func TestEmbedded(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "with TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := cluster.Context(t, 90*time.Second)
			w := embeddedIn(ctx, t, secure, cluster.Network)
			for _, n := range w.Nodes[1:] {
				w.start(ctx, n)
			}
			for _, n := range w.Nodes {
				cluster.WaitState(ctx, t, n, api.StateHeld)
			}
			cluster.WaitPeers(ctx, t, w.Nodes...)
			ring := cluster.NewRing(ctx, t, w.Nodes...)
			if secure {
				w.refusesStrangers(ctx)
			}

			w.restarts(ctx, ring)
			ring.Whole(ctx, t)
			if !secure {
				w.restartsWithoutAddress(ctx, ring)
			}
			cluster.WaitPeers(ctx, t, w.Nodes...)
		})
	}
}

// restarts the daemon with the etcd: everybody holds what it held, under the same
// lease.
func (w *embeddedCluster) restarts(ctx context.Context, ring *cluster.Ring) {
	w.t.Helper()
	began := time.Now()
	if err := w.Nodes[0].Stop(ctx); err != nil {
		w.t.Fatal(err)
	}
	if took := time.Since(began); took > 4*time.Second {
		w.t.Errorf("the daemon with the etcd took %s to stop", took)
	}
	w.start(ctx, w.Nodes[0])
	w.goesOn(ctx, ring)
}

// restartsWithoutAddress: the address comes after the daemon, as at a boot.
func (w *embeddedCluster) restartsWithoutAddress(ctx context.Context, ring *cluster.Ring) {
	w.t.Helper()
	n1 := w.Nodes[0]
	if err := n1.Stop(ctx); err != nil {
		w.t.Fatal(err)
	}
	cluster.Exec(ctx, w.t, n1.NS, "ip", "addr", "del", n1.Addr.String()+"/24", "dev", "eth0")
	w.start(ctx, n1)
	cluster.Wait(ctx, w.t, n1, "says that its etcd has no address", func(s *api.Status) bool {
		return strings.Contains(problem(s, "etcd-embedded").Text, "cannot assign requested address")
	})
	cluster.Exec(ctx, w.t, n1.NS, "ip", "addr", "add", n1.Addr.String()+"/24", "dev", "eth0")
	cluster.Exec(ctx, w.t, n1.NS, "ip", "route", "replace", "default", "via", "192.0.2.1")
	w.goesOn(ctx, ring)
}

func (w *embeddedCluster) goesOn(ctx context.Context, ring *cluster.Ring) {
	w.t.Helper()
	for i, n := range w.Nodes {
		s := cluster.Wait(ctx, w.t, n, "has etcd again", func(s *api.Status) bool {
			return s.State == api.StateHeld && len(s.Problems) == 0 && s.Etcd.Endpoints[0].Healthy
		})
		if s.Lease.ID != ring.Before[i].Lease.ID {
			w.t.Errorf("%s has lease %s, had %s", n.Host, s.Lease.ID, ring.Before[i].Lease.ID)
		}
	}
	ring.Same(ctx, w.t)
}

// refusesStrangers: without a certificate, or without the authority, there is no
// answer.
func (w *embeddedCluster) refusesStrangers(ctx context.Context) {
	w.t.Helper()
	n2 := w.Nodes[1]
	for what, drop := range map[string]string{"certificate": "--etcd-cert", "authority": "--etcd-ca"} {
		args := []string{"leases", "--etcd-endpoints=" + w.url}
		for _, f := range w.flags(n2)[1:] {
			if !strings.HasPrefix(f, drop) && (drop != "--etcd-cert" || !strings.HasPrefix(f, "--etcd-key")) {
				args = append(args, f)
			}
		}
		if r := cluster.Run(ctx, w.t, n2.NS, "tenurectl", args...); r.Code != 3 {
			w.t.Errorf("without the %s tenurectl is answered: %s", what, r)
		}
	}
	if r := cluster.Run(ctx, w.t, n2.NS, "tenurectl", append([]string{"leases"}, w.flags(n2)...)...); r.Code != 0 {
		w.t.Errorf("with both: %s", r)
	}
}
