package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/test/lab"
)

// historyTime bounds the wait for a store that takes a write.
const historyTime = 20 * time.Second

// prefix is where the cluster lies in etcd.
const prefix = "/tenure/network/"

// SubnetKey is the key whose holder is the subnet's tenant.
func SubnetKey(subnet string) string { return prefix + "subnets/" + dashed(subnet) }

func dashed(subnet string) string { return strings.ReplaceAll(subnet, "/", "-") }

// Store is the cluster's etcd, read and written as an outsider.
type Store struct {
	*clientv3.Client
	t testing.TB
}

// Store opens a client that is closed when the test ends. It must not be
// opened before the etcd runs.
func (c *Cluster) Store(t testing.TB) *Store {
	t.Helper()
	return c.StoreOn(t, c.EtcdMembers()...)
}

// StoreOn is Store by some of its members alone.
func (c *Cluster) StoreOn(t testing.TB, members ...*lab.Etcd) *Store {
	t.Helper()
	var urls []string
	for _, e := range members {
		urls = append(urls, e.URL())
	}
	client, err := c.LAN.EtcdClient(urls...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return &Store{client, t}
}

// History is every event of every key since the store's first revision, in
// order. It must not have been compacted.
func (s *Store) History(ctx context.Context) []*clientv3.Event {
	s.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The end is known by a key of our own. A write that seems to fail may have
	// been made, so another one does no harm.
	const end = "/history-read"
	var last int64
	Eventually(ctx, s.t, historyTime, "the end of the history is marked", func() error {
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		put, err := s.Put(short, end, "")
		if err == nil {
			last = put.Header.Revision
		}
		return err
	})
	var all []*clientv3.Event
	for resp := range s.Watch(clientv3.WithRequireLeader(ctx), "", clientv3.WithPrefix(), clientv3.WithRev(1)) {
		if err := resp.Err(); err != nil {
			s.t.Fatalf("read the history: %v", err)
		}
		for _, e := range resp.Events {
			if all = append(all, e); e.Kv.ModRevision == last {
				return all
			}
		}
	}
	s.t.Fatalf("the history ends before revision %d: %v", last, ctx.Err())
	return nil
}

// Holder is the record of a subnet as it stands, and the lease it hangs on;
// false if there is none.
func (s *Store) Holder(ctx context.Context, subnet string) (value string, lease clientv3.LeaseID, exists bool) {
	s.t.Helper()
	resp, err := s.Get(ctx, SubnetKey(subnet))
	if err != nil {
		s.t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return "", 0, false
	}
	return string(resp.Kvs[0].Value), clientv3.LeaseID(resp.Kvs[0].Lease), true
}

// Configure writes the network config.
func (s *Store) Configure(ctx context.Context, network string) {
	s.t.Helper()
	if _, err := s.Put(ctx, prefix+"config", network); err != nil {
		s.t.Fatal(err)
	}
}

// Reserve keeps a subnet for a node.
func (s *Store) Reserve(ctx context.Context, subnet, node string) {
	s.t.Helper()
	if _, err := s.Put(ctx, reservation(subnet), fmt.Sprintf(`{"Node":%q}`, node)); err != nil {
		s.t.Fatal(err)
	}
}

// Unreserve takes a reservation away.
func (s *Store) Unreserve(ctx context.Context, subnet string) {
	s.t.Helper()
	if _, err := s.Delete(ctx, reservation(subnet)); err != nil {
		s.t.Fatal(err)
	}
}

func reservation(subnet string) string { return prefix + "tenure/reservations/" + dashed(subnet) }

// Revoke ends a lease, which status names in hexadecimal.
func (s *Store) Revoke(ctx context.Context, lease string) {
	s.t.Helper()
	id, err := strconv.ParseInt(lease, 16, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.Client.Revoke(ctx, clientv3.LeaseID(id)); err != nil {
		s.t.Fatal(err)
	}
}

// Peer is a node that exists in etcd only.
type Peer struct {
	Subnet   netip.Prefix
	PublicIP netip.Addr
	MAC      string
}

// FakePeer is number i of many, with a subnet of 10.5.200.0/21 and up.
func FakePeer(i int) Peer {
	return Peer{
		Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(200 + i), 0}), 24),
		PublicIP: netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)}),
		MAC:      fmt.Sprintf("02:00:00:00:00:%02x", i),
	}
}

// Publish writes the peer's record, under a lease of an hour as a node would
// have.
func (s *Store) Publish(ctx context.Context, p Peer) {
	s.t.Helper()
	if err := p.Publish(ctx, s.Client); err != nil {
		s.t.Fatal(err)
	}
}

// Publish is Store.Publish by any client, which may meet a store that is not
// whole.
func (p Peer) Publish(ctx context.Context, c *clientv3.Client) error {
	lease, err := c.Grant(ctx, 3600)
	if err != nil {
		return err
	}
	value := fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q},`+
		`"Tenure":{"Node":"fake-%s","UID":"fake-%s","Boot":"fake","Epoch":1}}`, p.PublicIP, p.MAC, p.Subnet.Addr(), p.Subnet.Addr())
	_, err = c.Put(ctx, SubnetKey(p.Subnet.String()), value, clientv3.WithLease(lease.ID))
	return err
}

// Withdraw deletes the peer's record.
func (s *Store) Withdraw(ctx context.Context, p Peer) {
	s.t.Helper()
	if _, err := s.Delete(ctx, SubnetKey(p.Subnet.String())); err != nil {
		s.t.Fatal(err)
	}
}

// Compact forgets everything before the present revision.
func (s *Store) Compact(ctx context.Context) {
	s.t.Helper()
	resp, err := s.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.Client.Compact(ctx, resp.Header.Revision); err != nil {
		s.t.Fatal(err)
	}
}

// Same makes sure that a subnet's record has the same value, lease and origin
// at every revision since it was made.
func (s *Store) Same(ctx context.Context, subnet string) {
	s.t.Helper()
	key := SubnetKey(subnet)
	now, err := s.Get(ctx, key)
	if err != nil {
		s.t.Fatal(err)
	}
	if len(now.Kvs) == 0 {
		s.t.Fatalf("nobody holds %s", subnet)
	}
	kv := now.Kvs[0]
	for rev := kv.CreateRevision; rev <= now.Header.Revision; rev++ {
		then, err := s.Get(ctx, key, clientv3.WithRev(rev))
		if err != nil {
			s.t.Fatal(err)
		}
		if len(then.Kvs) == 0 || string(then.Kvs[0].Value) != string(kv.Value) || then.Kvs[0].Lease != kv.Lease {
			s.t.Errorf("at revision %d the record of %s is %v, now it is %v", rev, subnet, then.Kvs, kv)
		}
	}
}
