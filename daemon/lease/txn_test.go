package lease

import (
	"context"
	"net/netip"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/test/etcdtest"
)

// granted makes a lease.
func granted(t *testing.T, c *clientv3.Client) clientv3.LeaseID {
	t.Helper()
	id := newLeaseID()
	if _, err := grant(t.Context(), c, id, time.Minute, maxCall); err != nil {
		t.Fatal(err)
	}
	return id
}

func put(t *testing.T, c *clientv3.Client, key, value string, opts ...clientv3.OpOption) {
	t.Helper()
	if _, err := c.Put(t.Context(), key, value, opts...); err != nil {
		t.Fatal(err)
	}
}

const anyRecord = `{"PublicIP":"192.0.2.9"}`

// TestAcquireComparesEverythingItReliesOn: whatever changes between the list
// and the transaction makes it fail, and nothing is written.
func TestAcquireComparesEverythingItReliesOn(t *testing.T) {
	_, c := cluster(t, fourSubnets)
	k := NewKeys(prefix)
	sub := Subnets{V4: netip.MustParsePrefix("10.5.1.0/24")}
	r := Record{PublicIP: netip.MustParseAddr("192.0.2.11")}
	try := func(t *testing.T, between func()) bool {
		t.Helper()
		seen, err := list(t.Context(), c, newMirror(k), maxCall)
		if err != nil {
			t.Fatal(err)
		}
		between()
		f, err := acquire(k, Candidate{Subnets: sub}, granted(t, c), r, seen, Owner{})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := commit(t.Context(), c, f, maxCall)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Succeeded
	}
	for name, between := range map[string]func(){
		"config":      func() { put(t, c, k.Config(), fourSubnets) },
		"store":       func() { put(t, c, k.Store(), `{"ID":"another"}`) },
		"reservation": func() { put(t, c, k.Reservation(sub), `{"Node":"other"}`) },
		"owner":       func() { put(t, c, k.Owner(sub), `{"UID":"other","Epoch":7}`) },
	} {
		if try(t, between) {
			t.Errorf("acquired although the %s changed after the list", name)
		}
	}
	put(t, c, k.Settle(), "x")
	if try(t, func() {}) {
		t.Error("acquired while settle stands")
	}
	if _, err := c.Delete(t.Context(), k.Settle()); err != nil {
		t.Fatal(err)
	}
	// A key without a lease: LeaseValue == 0 is true for it.
	put(t, c, k.Subnet(sub), anyRecord)
	if try(t, func() {}) {
		t.Error("acquired over a key that exists without a lease")
	}
	if _, err := c.Delete(t.Context(), k.Subnet(sub)); err != nil {
		t.Fatal(err)
	}
	if !try(t, func() {}) {
		t.Error("a free subnet was not acquired: the attempts above prove nothing")
	}
}

// holdingOn puts a key under a lease and returns what proves it.
func holdingOn(t *testing.T, c *clientv3.Client, lease clientv3.LeaseID) Holding {
	t.Helper()
	k := NewKeys(prefix)
	sub := Subnets{V4: netip.MustParsePrefix("10.5.2.0/24")}
	put(t, c, k.Subnet(sub), anyRecord, clientv3.WithLease(lease))
	kv := etcdtest.Get(t, c, k.Subnet(sub)).Kvs[0]
	h, err := NewHolding(k, Entry{Subnets: sub, Lease: lease, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func succeeds(t *testing.T, c *clientv3.Client, f fenced) bool {
	t.Helper()
	resp, err := commit(t.Context(), c, f, maxCall)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Succeeded
}

// TestProofTellsOneLifeOfAKeyFromTheNext: deleted and made again under the very
// same lease it is another tenancy.
func TestProofTellsOneLifeOfAKeyFromTheNext(t *testing.T) {
	_, c := cluster(t, fourSubnets)
	h := holdingOn(t, c, granted(t, c))
	if !succeeds(t, c, h.proof()) {
		t.Fatal("a holding that stands is not proven")
	}
	key := h.keys.Subnet(h.subnets)
	put(t, c, key, anyRecord, clientv3.WithLease(granted(t, c)))
	if succeeds(t, c, h.proof()) {
		t.Error("a key under another lease was proven")
	}
	if _, err := c.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if succeeds(t, c, h.proof()) {
		t.Error("a deleted key was proven")
	}
	put(t, c, key, anyRecord, clientv3.WithLease(h.lease))
	if succeeds(t, c, h.proof()) {
		t.Error("a key that was made again was proven")
	}
}

// TestUpdateYieldsToAnyoneElsesWrite and keeps the key on its lease.
func TestUpdateYieldsToAnyoneElsesWrite(t *testing.T) {
	_, c := cluster(t, fourSubnets)
	h := holdingOn(t, c, granted(t, c))
	key := h.keys.Subnet(h.subnets)
	if !succeeds(t, c, h.update(Record{PublicIP: netip.MustParseAddr("192.0.2.12")})) {
		t.Fatal("an update of what is held failed")
	}
	if kv := etcdtest.Get(t, c, key).Kvs[0]; clientv3.LeaseID(kv.Lease) != h.lease {
		t.Errorf("the update left the key on lease %x, want %x", kv.Lease, int64(h.lease))
	}
	if succeeds(t, c, h.update(Record{PublicIP: netip.MustParseAddr("192.0.2.13")})) {
		t.Error("an update went over a write that it had not read")
	}
}

// TestUnknownAcquireIsUndone: absent proves nothing, so the lease goes, and
// with it whatever the write may yet do.
func TestUnknownAcquireIsUndone(t *testing.T) {
	_, c := cluster(t, fourSubnets)
	k := NewKeys(prefix)
	sub := Subnets{V4: netip.MustParsePrefix("10.5.3.0/24")}
	a := attempt{client: c, keys: k, ttl: time.Minute, call: maxCall, lease: granted(t, c), silent: func(error) {},
		end: func(ctx context.Context, id clientv3.LeaseID) error { return revoke(ctx, c, id, maxCall) }}
	if _, err := a.resolve(t.Context(), Candidate{Subnets: sub}, errLostRace); err == nil {
		t.Error("an absent key was taken for one's own")
	}
	ttl, err := c.TimeToLive(t.Context(), a.lease)
	if err != nil || ttl.TTL != -1 {
		t.Errorf("the lease of an unknown acquire lives on: %+v, %v", ttl, err)
	}
	// Committed after all: read back, it is ours.
	a.lease = granted(t, c)
	put(t, c, k.Subnet(sub), anyRecord, clientv3.WithLease(a.lease))
	h, err := a.resolve(t.Context(), Candidate{Subnets: sub}, errLostRace)
	if err != nil || h.lease != a.lease {
		t.Errorf("an acquire that did commit: %v, %v", h, err)
	}
}
