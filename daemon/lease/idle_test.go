package lease

import (
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// TestManyWaitForFew: eight nodes wait for a subnet in a full network whose
// records change a hundred times. None of them lists everything for that; what
// they say follows all the same, and what comes free is taken at once, by one.
func TestManyWaitForFew(t *testing.T) {
	t.Parallel()
	const nodes, updates, least = 8, 100, 2 * time.Second
	s, c := cluster(t, fourSubnets)
	k := NewKeys(prefix)
	l, err := c.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	put := func(i int, name string) int64 {
		resp, err := c.Put(t.Context(), k.Subnet(v4(fmt.Sprintf("10.5.%d.0/24", i))), recordOf(name, fmt.Sprintf("192.0.2.%d", 100+i), 1), clientv3.WithLease(l.ID))
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.Revision
	}
	for i := range 4 {
		put(i, fmt.Sprintf("fake%d", i))
	}
	p := etcdproxy.Start(t, s.Endpoint)
	var all []*daemon
	for i := range nodes {
		h := newHost(t, fmt.Sprintf("n%d", i), p.URL())
		if i%2 == 0 {
			h.birth = []byte(fourSubnets) // it was born long ago
		}
		all = append(all, h.start())
	}
	full := func(v View) bool { return v.State == api.StateWaiting && hasProblem(v, noFreeSubnet) }
	for _, d := range all {
		d.wait("the network is full", full)
	}

	before, began := p.Count(pb.KV_Range_FullMethodName), time.Now()
	n := 0
	for ; n < updates || time.Since(began) < least; n++ {
		rev := put(n%4, fmt.Sprintf("renamed-%d", n))
		for _, d := range all {
			d.wait("the update", func(v View) bool { return v.Snapshot.Revision >= rev })
		}
	}
	last := fmt.Sprintf("renamed-%d", n-1)
	for _, d := range all {
		d.wait("it names the holders of now", func(v View) bool { return full(v) && strings.Contains(v.Reason, last) })
	}
	// Each may have listed once more than its own pace asks for.
	lists, most := p.Count(pb.KV_Range_FullMethodName)-before, nodes*(2+int(time.Since(began)/(lookEvery-retryWaiting)))
	t.Logf("%d updates, %d lists of %d nodes in %s", n, lists, nodes, time.Since(began).Round(time.Millisecond))
	if lists > most {
		t.Errorf("%d lists, want %d at most", lists, most)
	}

	began = time.Now()
	if _, err := c.Delete(t.Context(), k.Subnet(v4("10.5.2.0/24"))); err != nil {
		t.Fatal(err)
	}
	one := func() (held int) {
		for _, d := range all {
			if v := d.View(); v.State == api.StateHeld && v.Holding.Subnets() == v4("10.5.2.0/24") {
				held++
			}
		}
		return held
	}
	all[0].wait("one of them holds it", func(View) bool { return one() == 1 })
	if took := time.Since(began); took > lookEvery/2 {
		t.Errorf("held after %s", took)
	}
}

// TestIdleIsNotForEver: the watch alone is believed until the next pause would
// end after lookEvery; and a cluster that is to be born is not waited for.
func TestIdleIsNotForEver(t *testing.T) {
	_, e, _ := holder(t)
	e.held, e.waiting, e.snapshot = nil, "nothing yet", shown(20, true)
	for _, c := range []struct {
		ago   time.Duration
		birth string
		store int64
		want  bool
	}{
		{0, "", 1, true},
		{lookEvery - retryWaiting - time.Second, "", 1, true},
		{lookEvery - retryWaiting, "", 1, false},
		{0, fourSubnets, 1, true},
		{0, fourSubnets, 0, false},
	} {
		e.looked, e.cfg.Birth, e.snapshot.Store.ModRevision = time.Now().Add(-c.ago), nil, c.store
		if c.birth != "" {
			e.cfg.Birth = []byte(c.birth)
		}
		if _, idle := e.idle(t.Context()); idle != c.want {
			t.Errorf("%+v: idle %t", c, idle)
		}
	}
}
