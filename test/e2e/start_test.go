package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/lab/labtest"
)

// TestBirth starts a daemon before there is anything else: no etcd, then an
// etcd without a cluster. The daemon stays and says what it waits for, and
// tenurectl's exit codes tell the stages apart: 3 not reached, 1 reached and
// not well, 0 well, 2 not asked rightly.
func TestBirth(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	l := labtest.New(t, lab.Options{})
	n, err := l.AddNode(ctx, "n1")
	if err != nil {
		t.Fatal(err)
	}
	const url = "http://192.0.2.2:2379" // where the etcd will be
	l.SetEndpoints(url)
	ctl := func(want int, args ...string) string {
		t.Helper()
		r := cluster.Run(ctx, t, n, "tenurectl", args...)
		if r.Code != want {
			t.Errorf("tenurectl %s: %s, want exit code %d", strings.Join(args, " "), r, want)
		}
		return r.Out + r.Said
	}
	status := []string{"status", "--socket=" + n.Socket}
	birth := []string{"init", "--network=10.5.0.0/16", "--etcd-endpoints=" + url}
	usage := [][]string{
		{"no-such-command"}, {"status", "--no-such-flag"}, {"status", "-o", "xml"},
		{"init", "--etcd-endpoints=" + url}, {"init", "--network=10.5.0.1/16", "--etcd-endpoints=" + url},
		{"init", "--network-config={", "--etcd-endpoints=" + url}, {"init", "--network=10.5.0.0/16", "--etcd-endpoints=ftp://x"},
	}

	ctl(3, status...)
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s := cluster.Wait(ctx, t, n, "has asked etcd", func(s *api.Status) bool {
		return cluster.HasProblem(s, "etcd-unreachable") && len(s.Etcd.Endpoints) == 1 && s.Etcd.Endpoints[0].Since != ""
	})
	if e := s.Etcd.Endpoints[0]; s.Ready || s.State != api.StateStarting || e.URL != url || e.Healthy || !rfc3339(e.Since) {
		t.Errorf("without etcd: state %s, ready %t, endpoint %+v", s.State, s.Ready, e)
	}
	ctl(1, status...)
	ctl(3, birth...)
	for _, args := range usage {
		ctl(2, args...)
	}

	if _, err := l.StartEtcd(ctx); err != nil {
		t.Fatal(err)
	}
	s = cluster.WaitState(ctx, t, n, api.StateWaiting)
	if s.Ready || !strings.Contains(s.Reason, "born") || !strings.Contains(s.Reason, "tenurectl init") {
		t.Errorf("without a cluster: ready %t, reason %q", s.Ready, s.Reason)
	}
	ctl(1, status...)
	if a := cluster.Call(ctx, t, n, lab.CNICall{Verb: "STATUS"}); cluster.Code(a) != api.CodeNotReady {
		t.Errorf("STATUS without a cluster: %v, want code 50", a.Err)
	}

	if said := ctl(0, birth...); !strings.Contains(said, "is born") {
		t.Errorf("init said %q", said)
	}
	if said := ctl(0, birth...); !strings.Contains(said, "nothing is changed") {
		t.Errorf("the second init said %q", said)
	}
	cluster.WaitState(ctx, t, n, api.StateHeld)
	cluster.Pod(ctx, t, n, "p")
	ctl(0, status...)
	var got api.Status
	if err := json.Unmarshal([]byte(ctl(0, append(status, "-o", "json")...)), &got); err != nil ||
		!got.Ready || got.Addresses.Used != 1 || got.Lease == nil || len(got.Etcd.Endpoints) != 1 {
		t.Errorf("tenurectl status -o json (%v): %+v", err, got)
	}
}

func rfc3339(text string) bool {
	_, err := time.Parse(time.RFC3339, text)
	return err == nil
}

// TestBadSettings gives faults in every place settings can come from. All are
// named at once with their source, the exit code is 2, nothing is written.
func TestBadSettings(t *testing.T) {
	ctx := cluster.Context(t, 20*time.Second)
	l := labtest.New(t, lab.Options{})
	n, err := l.AddNode(ctx, "n1")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "tenured.yaml")
	if err := os.WriteFile(file, []byte("log-format: sideways\nno-such-setting: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := cluster.RunEnv(ctx, t, n, []string{"TENURED_ADDRESS_COOLDOWN=soon", "TENURED_NAME=far-too-long"}, "tenured",
		"--config="+file, "--run-dir="+dir+"/run", "--state-dir="+dir+"/state", "--socket=here", "--no-such-flag",
		"--metrics-listen=nowhere", "--etcd-endpoints=ftp://192.0.2.2", "--public-ip=here", "--exclude=10.5.1.1/24", "--on-stranded=/no/such/program",
		"--new-cluster", `--network-config={"Network":"10.5.0.1/16","SubnetLen":31,"LeaseTTL":"1s","Backend":{"VNI":0},"Colour":1}`)
	if r.Code != 2 {
		t.Errorf("exit code %d, want 2", r.Code)
	}
	for _, fault := range []string{
		"log-format", "no-such-setting", "TENURED_ADDRESS_COOLDOWN", "TENURED_NAME", "--socket", "--no-such-flag",
		"--metrics-listen", "--etcd-endpoints", "--public-ip", "--exclude", "--on-stranded",
		"Network", "SubnetLen", "LeaseTTL", "VNI", "Colour",
	} {
		if !strings.Contains(r.Said, fault) {
			t.Errorf("%s is not named", fault)
		}
	}
	if t.Failed() {
		t.Log(r.Said)
	}
	if names := entries(t, dir); !slices.Equal(names, []string{"tenured.yaml"}) {
		t.Errorf("written: %v", names)
	}
}

// twoSubnets is a network with room for two nodes.
const twoSubnets = `{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.2.0"}`

// TestReservation has two subnets and three nodes: one subnet is reserved for
// n2, so n1 gets the other, whatever the order. n3 waits and says who has
// what; it leaves a reserved subnet alone that nobody holds, and takes it once
// the reservation is gone.
func TestReservation(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, twoSubnets, "n1", "n2", "n3")
	n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	store := c.Store(t)
	store.Reserve(ctx, "10.5.2.0/24", "n2")
	cluster.Start(ctx, t, n1)
	if s := cluster.Status(ctx, t, n1); s.Subnet != "10.5.1.0/24" {
		t.Errorf("n1 holds %s, which is reserved for n2", s.Subnet)
	}
	if err := n3.Start(ctx); err != nil {
		t.Fatal(err)
	}
	waits(ctx, t, n3, "n1")
	cluster.Start(ctx, t, n2)
	s := cluster.Status(ctx, t, n2)
	if s.Subnet != "10.5.2.0/24" {
		t.Errorf("n2 holds %s, want the one reserved for it", s.Subnet)
	}
	waits(ctx, t, n3, "n2")
	box := cluster.Sandbox(ctx, t, n3, "refused")
	if a := cluster.Call(ctx, t, n3, cluster.CallFor("ADD", box, "eth0")); cluster.Code(a) != api.CodeTryAgain {
		t.Errorf("ADD without a subnet: %v, want code 11", a.Err)
	}
	n2.Kill()
	store.Revoke(ctx, s.Lease.ID)
	cluster.Stays(ctx, t, 2*time.Second, "the reserved subnet stays free", func() error {
		waits(ctx, t, n3, "n1")
		return nil
	})
	store.Unreserve(ctx, "10.5.2.0/24")
	if s := cluster.WaitState(ctx, t, n3, api.StateHeld); s.Subnet != "10.5.2.0/24" {
		t.Errorf("n3 holds %s", s.Subnet)
	}
	if s := cluster.Status(ctx, t, n3); cluster.HasProblem(s, "no-free-subnet") {
		t.Errorf("problems of a node that holds a subnet: %+v", s.Problems)
	}
}

// waits makes sure that the node has found nothing free and names a holder.
func waits(ctx context.Context, t *testing.T, n *lab.Node, holder string) {
	t.Helper()
	s := cluster.Wait(ctx, t, n, "names "+holder, func(s *api.Status) bool {
		return s.State == api.StateWaiting && strings.Contains(s.Reason, holder)
	})
	if s.Ready || s.Subnet != "" || !cluster.HasProblem(s, "no-free-subnet") || !strings.Contains(s.Reason, "of 2 in") {
		t.Errorf("a node without a subnet: ready %t, subnet %q, reason %q, problems %+v", s.Ready, s.Subnet, s.Reason, s.Problems)
	}
}
