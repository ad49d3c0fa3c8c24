package field

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// smallPool has four subnets, under leases whose keep-alives are 30 s apart:
// what is noticed sooner, the watch has shown.
const smallPool = `{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.4.0"}`

// pool lists them.
func pool() []string { return []string{"10.5.1.0/24", "10.5.2.0/24", "10.5.3.0/24", "10.5.4.0/24"} }

// gap is how long the overlay of a node may be closed that was robbed of its
// key and can have its subnet back.
const gap = 2 * time.Second

// TestB6 is etcd #15247 and #12528: a lease is revoked by a former leader while
// its keep-alives are answered, and the client goes on as if nothing had
// happened; so it does when only the key is deleted. Right is: the loss is
// noticed at once, by the watch; no pod is given an address until the subnet is
// held again; where it is still free it is that same subnet, with the same
// fencing number and under a new lease; pods miss no packet but those of that
// gap, and those that stay on the node or leave the overlay not even these.
func TestB6(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.New(ctx, t, smallPool, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	here, beside, far := cluster.Pod(ctx, t, n1, "here"), cluster.Pod(ctx, t, n1, "beside"), cluster.Pod(ctx, t, n2, "far")
	cluster.Serve(ctx, t, c.Outside, port)
	cluster.Serve(ctx, t, beside.NS, port)
	flow := cluster.StartFlow(ctx, t, here.NS, far.NS, far.IP)
	flow.Runs(ctx, t)

	for name, rob := range map[string]func(*testing.T, *cluster.Store, *api.Status){
		"lease revoked": func(_ *testing.T, store *cluster.Store, s *api.Status) { store.Revoke(ctx, s.Lease.ID) },
		"key deleted":   func(t *testing.T, store *cluster.Store, s *api.Status) { deleteKey(ctx, t, store, s.Subnet) },
	} {
		t.Run(name, func(t *testing.T) {
			store := c.Store(t)
			before := cluster.Status(ctx, t, n1)
			began := time.Now()
			rob(t, store, before)
			heldAgain(ctx, t, gap, n1, before)
			flow.Runs(ctx, t)
			if d := time.Since(began); d > gap {
				t.Errorf("the flow runs again after %s, want %s at most", d, gap)
			}
			addresses(ctx, t, n1, "young-"+strconv.Itoa(int(before.Lease.Epoch)), before.Subnet)
		})
		t.Run(name+", and it may not be had", func(t *testing.T) {
			store := c.Store(t)
			before := cluster.Status(ctx, t, n1)
			for _, subnet := range pool() {
				store.Reserve(ctx, subnet, "n9")
			}
			rob(t, store, before)
			within(ctx, t, gap, n1, "knows of its loss", func(s *api.Status) bool { return s.State == api.StateLost })
			wire := cluster.Sniff(t, c.LAN, "to-n1")
			flow.Ends(ctx, t, gap)
			noAddress(ctx, t, n1)
			cluster.Seen(ctx, t, here.NS, beside.IP, port, here.IP)
			cluster.Seen(ctx, t, here.NS, c.OutsideAddr(), port, n1.Addr)
			if n := wire.From(here.IP); n != 0 {
				t.Errorf("%d packets with the pod's address left its node, which does not hold the subnet", n)
			}

			store.Unreserve(ctx, before.Subnet)
			began := time.Now()
			heldAgain(ctx, t, gap, n1, before)
			flow.Runs(ctx, t)
			if d := time.Since(began); d > gap {
				t.Errorf("the flow runs again after %s, want %s at most", d, gap)
			}
			if wire.From(here.IP) == 0 {
				t.Error("the look at the wire sees nothing at all")
			}
			for _, subnet := range pool() {
				store.Unreserve(ctx, subnet)
			}
		})
	}
	if owners := ownerRecords(ctx, t, c.Store(t)); owners != 2 {
		t.Errorf("%d subnets have ever been owned, want the two of the two nodes", owners)
	}
}

// TestB6Taken is the same kind with the key still there: put again without its
// lease (which a put without the option does silently), or overwritten with
// another node's record. Right is: such a key is not the node's any more and not
// free either, so it is never written to; the node takes another subnet at once
// and keeps its pods as stranded.
func TestB6Taken(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	cluster.Serve(ctx, t, c.Outside, port)
	for i, way := range []struct {
		name string
		put  func(t *testing.T, store *cluster.Store, s *api.Status)
	}{
		{"put without its lease", func(t *testing.T, store *cluster.Store, s *api.Status) {
			value, _, _ := store.Holder(ctx, s.Subnet)
			put(ctx, t, store, s.Subnet, value)
		}},
		{"foreign record", func(t *testing.T, store *cluster.Store, s *api.Status) {
			lease, err := store.Grant(ctx, 3600)
			if err != nil {
				t.Fatal(err)
			}
			put(ctx, t, store, s.Subnet, foreignRecord, clientv3.WithLease(lease.ID))
		}},
		{"foreign record under its lease", func(t *testing.T, store *cluster.Store, s *api.Status) {
			_, lease, _ := store.Holder(ctx, s.Subnet)
			put(ctx, t, store, s.Subnet, foreignRecord, clientv3.WithLease(lease))
		}},
		{"foreign record without a lease", func(t *testing.T, store *cluster.Store, s *api.Status) {
			put(ctx, t, store, s.Subnet, foreignRecord)
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			n, store := c.AddNode(ctx, t, fmt.Sprintf("v%d", i)), c.Store(t)
			cluster.Start(ctx, t, n)
			old, beside := cluster.Pod(ctx, t, n, "old"), cluster.Pod(ctx, t, n, "beside")
			cluster.Serve(ctx, t, beside.NS, port)
			before := cluster.Status(ctx, t, n)
			way.put(t, store, before)
			theirs := revision(ctx, t, store, before.Subnet)

			now := within(ctx, t, gap, n, "holds another subnet", func(s *api.Status) bool {
				return s.State == api.StateHeld && s.Subnet != before.Subnet
			})
			stranded(ctx, t, n, before.Subnet, []*lab.Pod{old, beside})
			addresses(ctx, t, n, "young", now.Subnet)
			cluster.Seen(ctx, t, old.NS, beside.IP, port, old.IP)
			cluster.Seen(ctx, t, old.NS, c.OutsideAddr(), port, n.Addr)
			if now := revision(ctx, t, store, before.Subnet); now != theirs {
				t.Errorf("the key that was taken has been written to: revision %d, was %d", now, theirs)
			}
			if err := n.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// foreignRecord is what a node that exists in etcd only publishes.
const foreignRecord = `{"PublicIP":"192.0.2.99","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:99:99"},` +
	`"Tenure":{"Node":"foreign","UID":"foreign","Boot":"foreign","Epoch":1}}`

func put(ctx context.Context, t *testing.T, store *cluster.Store, subnet, value string, opts ...clientv3.OpOption) {
	t.Helper()
	if _, err := store.Put(ctx, cluster.SubnetKey(subnet), value, opts...); err != nil {
		t.Fatal(err)
	}
}

func deleteKey(ctx context.Context, t *testing.T, store *cluster.Store, subnet string) {
	t.Helper()
	if _, err := store.Delete(ctx, cluster.SubnetKey(subnet)); err != nil {
		t.Fatal(err)
	}
}

// revision is that of the last write to a subnet's key, 0 without one.
func revision(ctx context.Context, t *testing.T, store *cluster.Store, subnet string) int64 {
	t.Helper()
	resp, err := store.Get(ctx, cluster.SubnetKey(subnet))
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return 0
	}
	return resp.Kvs[0].ModRevision
}

// ownerRecords is how many subnets have ever had an owner.
func ownerRecords(ctx context.Context, t *testing.T, store *cluster.Store) int64 {
	t.Helper()
	resp, err := store.Get(ctx, "/tenure/network/tenure/owners/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return resp.Count
}

// within is cluster.Wait with a shorter time.
func within(ctx context.Context, t *testing.T, d time.Duration, n *lab.Node, what string, want func(*api.Status) bool) *api.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return cluster.Wait(ctx, t, n, what, want)
}

// heldAgain waits up to d until the node has its subnet again, in the same epoch
// and under another lease.
func heldAgain(ctx context.Context, t *testing.T, d time.Duration, n *lab.Node, before *api.Status) {
	t.Helper()
	now := within(ctx, t, d, n, "holds a subnet under a new lease", func(s *api.Status) bool {
		return s.State == api.StateHeld && s.Lease.ID != before.Lease.ID
	})
	if now.Subnet != before.Subnet || now.Lease.Epoch != before.Lease.Epoch {
		t.Errorf("it holds %s in epoch %d, it held %s in epoch %d", now.Subnet, now.Lease.Epoch, before.Subnet, before.Lease.Epoch)
	}
	if len(now.Stranded) != 0 {
		t.Errorf("pods on the subnet are stranded: %+v", now.Stranded)
	}
}

// addresses adds a pod and makes sure that it has an address of the subnet.
func addresses(ctx context.Context, t *testing.T, n *lab.Node, pod, subnet string) {
	t.Helper()
	p := cluster.Pod(ctx, t, n, pod)
	if inside(subnet, 0) != inside(p.IP.String()+"/24", 0) {
		t.Errorf("pod %s has %s, want an address of %s", pod, p.IP, subnet)
	}
	if err := p.Del(ctx); err != nil {
		t.Error(err)
	}
}

// noAddress makes sure that the node gives no pod an address, and says so.
func noAddress(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	box := cluster.Sandbox(ctx, t, n, "refused")
	add := cluster.Call(ctx, t, n, cluster.CallFor("ADD", box, "eth0"))
	if cluster.Code(add) != api.CodeTryAgain {
		t.Errorf("ADD answers %v, want code 11", add.Err)
	}
	if a := cluster.Call(ctx, t, n, cluster.CallFor("DEL", box, "eth0")); a.Exit != 0 {
		t.Errorf("DEL: %v", a.Err)
	}
	if err := box.Vanish(); err != nil {
		t.Error(err)
	}
}
