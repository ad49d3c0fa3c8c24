package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	etcd "go.etcd.io/etcd/api/v3/version"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/packaged"
)

// TestEtcdVersion looks at what a node says of the etcd it has: each member's
// version, and a warning, with its cure, where that version is known to end
// leases which are kept alive. The warning takes nothing from the node: it
// holds, is ready, and status ends with 0.
func TestEtcdVersion(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	want := etcd.Version
	if program := packaged.Program(); program != "" {
		var err error
		if want, err = packaged.Version(program); err != nil {
			t.Fatal(err)
		}
	}
	c := cluster.BornOn(ctx, t, 3, cluster.Network, "n1")
	n := c.Nodes[0]
	cluster.Start(ctx, t, n)
	s := cluster.Wait(ctx, t, n, "has asked every member for its version", func(s *api.Status) bool {
		for _, e := range s.Etcd.Endpoints {
			if !e.Healthy {
				return false
			}
		}
		return len(s.Etcd.Endpoints) == 3
	})
	for _, e := range s.Etcd.Endpoints {
		if e.Version != want {
			t.Errorf("%s is said to run %q, it runs %s", e.URL, e.Version, want)
		}
	}
	if !s.Ready {
		t.Errorf("the node is not ready: %s", s.Reason)
	}
	r := cluster.Run(ctx, t, n, "tenurectl", "status", "--socket="+n.Socket)
	if r.Code != 0 {
		t.Errorf("status: %s", r)
	}
	if !lacksFixes(t, want) {
		if cluster.HasProblem(s, "etcd-version") {
			t.Errorf("etcd %s is said to have faults: %+v", want, s.Problems)
		}
		return
	}
	if !cluster.HasProblem(s, "etcd-version") {
		t.Fatalf("nothing is said of etcd %s: %+v", want, s.Problems)
	}
	for _, e := range s.Etcd.Endpoints {
		if word := e.URL + " runs " + want; !strings.Contains(r.Out, word) {
			t.Errorf("status does not say %q:\n%s", word, r.Out)
		}
	}
	for _, word := range []string{"etcd-version", "3.4.38"} {
		if !strings.Contains(r.Out, word) {
			t.Errorf("status does not say %q:\n%s", word, r.Out)
		}
	}
}

// lacksFixes is README's sentence about versions.
func lacksFixes(t *testing.T, version string) bool {
	t.Helper()
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil || major != 3 {
		t.Fatalf("version %q: %v", version, err)
	}
	switch minor {
	case 4:
		return patch < 38
	case 5:
		return patch < 23
	case 6:
		return patch < 5
	}
	return minor < 4
}
