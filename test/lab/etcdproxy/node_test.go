package etcdproxy_test

import (
	"context"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// subnets is where a node's claim is put.
const subnets = "/tenure/network/subnets/"

// callTime is how long a daemon waits for an answer of etcd.
const callTime = 5 * time.Second

// TestBesideADaemon: on a node of the lab, between its daemon and the etcd of
// three members. The daemon's first acquire is committed and the answer lost;
// the node comes to hold a subnet all the same, and no other record is left
// of the attempt.
func TestBesideADaemon(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and network namespaces")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	c := cluster.BornOn(ctx, t, 3, cluster.Network, "n1")
	n := c.Nodes[0]
	p := etcdproxy.StartIn(ctx, t, n, "127.0.0.1:12379", c.EtcdMembers()[1].URL())
	r := p.DropReply(1, etcdproxy.PutsBelow(subnets), etcdproxy.Silence)
	began := time.Now()
	if err := n.Start(ctx, "--etcd-endpoints="+p.URL()); err != nil {
		t.Fatal(err)
	}
	s := cluster.WaitState(ctx, t, n, api.StateHeld)
	if took := time.Since(began); took < callTime-time.Second {
		t.Errorf("held after %s: the answer was not lost", took)
	}
	held := 0
	for _, e := range c.Store(t).History(ctx) {
		if etcdproxy.PutsBelow(subnets)("", &etcdserverpb.PutRequest{Key: e.Kv.Key}) {
			held++
		}
	}
	if r.Hits() != 1 || held != 1 || p.Count(etcdserverpb.KV_Txn_FullMethodName) == 0 {
		t.Errorf("the rule has fitted %d times, subnets were written %d times; requests: %v", r.Hits(), held, p.Counts())
	}
	if _, lease, exists := c.Store(t).Holder(ctx, s.Subnet); !exists || lease == 0 {
		t.Errorf("%s is not in etcd", s.Subnet)
	}
}
