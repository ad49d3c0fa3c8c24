package field

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// malformed are records of no node, by their key below subnets/.
func malformed(own string) map[string]string {
	all := map[string]string{}
	for i, value := range []string{
		"", "{", "null", "[]", `"text"`, "\x00\xff\xfe", `{"PublicIP":null}`, `{"PublicIP":7}`, `{"PublicIP":"192.0.2.256"}`,
		`{"PublicIP":"0.0.0.0","BackendType":"vxlan"}`, withMAC("192.0.2.77", "not a MAC"), withMAC("192.0.2.77", "02:00:00:00:00:00:00:01"),
		withMAC("192.0.2.77", "ff:ff:ff:ff:ff:ff"), withMAC("192.0.2.77", strings.Repeat("m", 100_000)), withMAC("192.0.2.77", ""),
		withMAC("fd00::77", "02:00:00:00:00:77"), withMAC("224.0.0.77", "02:00:00:00:00:77"), withMAC("127.0.0.1", "02:00:00:00:00:77"),
		`{"PublicIP":"192.0.2.77","BackendType":"carrier pigeon","BackendData":{"Pigeons":2}}`, `{"PublicIP":"192.0.2.77","BackendType":"vxlan","BackendData":null}`,
		`{"PublicIP":"192.0.2.77","BackendType":"vxlan","BackendData":{"VNI":"one"}}`,
		`{"PublicIP":"192.0.2.77","Tenure":{"Node":"` + strings.Repeat("n", 100_000) + `"}}`,
	} {
		// Above what the nodes of tests draw: none is the record of one of them.
		all[fmt.Sprintf("10.5.%d.0-24", 200+i)] = value
	}
	// Of the key the record may be as good as any.
	good := withMAC("192.0.2.78", "02:00:00:00:00:78")
	for _, key := range []string{
		"", "x", "10.5.130.1-24", "10.5.130.0-33", "10.5.130.0-24&", "\x00\x01\x1b[2J", strings.Repeat("k", 2000), "10.5.131.0-24/more",
		"0.0.0.0-0&FD00:5::-64", own, "0.0.0.0-0&" + strings.Replace(own, "/", "-", 1),
	} {
		all[key] = good
	}
	all["172.16.0.0-24"] = "unreadable, and of another network"
	return all
}

func withMAC(address, mac string) string {
	return fmt.Sprintf(`{"PublicIP":%q,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`, address, mac)
}

// TestO1Malformed: some thirty records that nobody can read come at once. Right
// is: they are named, in a text and a log of bounded length, their subnets count
// as taken, and nothing else changes: a node that runs keeps its subnet, a key
// that only looks like its own included; one that starts finds a subnet; the
// peers are programmed, and pods talk.
func TestO1Malformed(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	n1, n2, store := c.Nodes[0], c.Nodes[1], c.Store(t)
	if err := n1.Start(ctx, lab.MetricsListen); err != nil {
		t.Fatal(err)
	}
	before := cluster.WaitState(ctx, t, n1, api.StateHeld)
	use := cluster.Use(ctx, t, n1)

	var ops []clientv3.Op
	for key, value := range malformed(before.Subnet) {
		ops = append(ops, clientv3.OpPut("/tenure/network/subnets/"+key, value))
	}
	if _, err := store.Txn(ctx).Then(ops...).Commit(); err != nil {
		t.Fatal(err)
	}
	cluster.Wait(ctx, t, n1, "names them", func(s *api.Status) bool { return cluster.HasProblem(s, "bad-record") })
	cluster.Start(ctx, t, n2)
	cluster.WaitPeers(ctx, t, n1, n2)
	a, b := cluster.Pod(ctx, t, n1, "a"), cluster.Pod(ctx, t, n2, "b")
	cluster.StartFlow(ctx, t, a.NS, b.NS, b.IP).Runs(ctx, t)

	after := cluster.Status(ctx, t, n1)
	if after.State != api.StateHeld || after.Lease.ID != before.Lease.ID || after.Lease.Epoch != before.Lease.Epoch {
		t.Errorf("%s by lease %s, it was %s", after.State, after.Lease.ID, before.Lease.ID)
	}
	programmed := 0
	for _, s := range []*api.Status{after, cluster.WaitState(ctx, t, n2, api.StateHeld)} {
		for _, problem := range s.Problems {
			if len(problem.Text) > 2500 {
				t.Errorf("%s says %s in %d bytes", s.Node, problem.Code, len(problem.Text))
			}
		}
		for _, p := range s.Peers {
			switch {
			case p.State == api.PeerProgrammed:
				programmed++
			case p.State != api.PeerConflict || p.Reason == "":
				t.Errorf("%s has %s of %q as %s: %s", s.Node, p.Subnet, p.PublicIP, p.State, p.Reason)
			}
		}
	}
	if programmed != 2 {
		t.Errorf("%d peers are programmed, want each the other", programmed)
	}
	cluster.Flat(ctx, t, n1, use, cluster.Usage{Descriptors: 8, Threads: 8, Goroutines: 20, RSS: 32 << 20, Ledger: math.MaxInt32, Log: 8 << 10})
}
