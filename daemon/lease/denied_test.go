package lease

import (
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/etcdtest"
)

// TestKeepAliveProvesNothing: etcd before 3.7 renews a lease for whoever names
// it, with a user or without. So a node that lost its role renews on, and that
// must not move its deadline: the fence closes in time, while the lease may
// stand for as long as the daemon runs. With its role the node goes on where it
// was, under that lease or, where etcd let it end, under another.
func TestKeepAliveProvesNothing(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t)
	const secret = "correct horse"
	user := func(name, password string) conf.Etcd {
		t.Helper()
		file := filepath.Join(t.TempDir(), name)
		if err := writeFile(file, password); err != nil {
			t.Fatal(err)
		}
		return conf.Etcd{Endpoints: []string{s.Endpoint}, Prefix: prefix, Username: name, PasswordFile: file}
	}
	c := s.Client(t)
	if _, err := Init(t.Context(), c, prefix, []byte(fourSubnets)); err != nil {
		t.Fatal(err)
	}
	enableUsers(t, conf.Etcd{Endpoints: []string{s.Endpoint}}, secret)
	root, err := Dial(user("root", "of the test"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	h := newHost(t, "n1", s.Endpoint)
	h.via = user("tenure", secret)
	d := h.start()
	v := d.waitHeld()

	if _, err := root.UserRevokeRole(t.Context(), "tenure", "tenure"); err != nil {
		t.Fatal(err)
	}
	revoked := bootClock()
	w := d.wait("fenced", func(v View) bool { return v.State == api.StateFenced })
	if f, _ := h.fence.Deadline(); f > revoked+w.Holding.TTL()-Margin(w.Holding.TTL()) {
		t.Errorf("the fence is open until %s, which is more than one lease after %s, when the role was lost", f, revoked)
	}
	// Long enough for what is not renewed to have ended.
	at := bootClock()
	d.wait("a lease later, and still fenced or lost", func(v View) bool {
		if v.State != api.StateFenced && v.State != api.StateLost {
			t.Errorf("state %s without the role", v.State)
		}
		return bootClock() > at+w.Holding.TTL()
	})
	left, err := root.TimeToLive(t.Context(), v.Holding.LeaseID())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the lease has %d s left", left.TTL)

	if _, err := root.UserGrantRole(t.Context(), "tenure", "tenure"); err != nil {
		t.Fatal(err)
	}
	w = d.waitHeld()
	if left.TTL > 0 && w.Holding.LeaseID() != v.Holding.LeaseID() {
		t.Errorf("held under lease %x, the one that stood all along is %x", w.Holding.LeaseID(), v.Holding.LeaseID())
	}
	if w.Holding.Subnets() != v.Holding.Subnets() {
		t.Errorf("it holds %s, it held %s, which nobody else has had", w.Holding.Subnets(), v.Holding.Subnets())
	}
	resp, err := root.Get(t.Context(), NewKeys(prefix).Subnet(w.Holding.Subnets()))
	if err != nil || len(resp.Kvs) != 1 || clientv3.LeaseID(resp.Kvs[0].Lease) != w.Holding.LeaseID() {
		t.Errorf("the key is %v (%v), want it under %x", resp, err, w.Holding.LeaseID())
	}
}
