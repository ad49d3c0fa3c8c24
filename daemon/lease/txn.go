package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// This file is the one place that builds writes. Every function in it returns
// a fenced: compares and operations that only make sense together. Nothing
// else in the project may call clientv3.OpPut or OpDelete, or Put and Delete
// of a client; a test looks for it.

// ErrNoLease says that a Holding was asked for with lease 0. LeaseValue == 0
// is true for a key that does not exist, so a proof with it would prove
// nothing.
var ErrNoLease = errors.New("lease ID is 0: such a holding could be \"proven\" by a key that does not exist")

// fenced is a transaction whose writes cannot be had without its compares.
type fenced struct {
	cmps  []clientv3.Cmp
	then  []clientv3.Op
	other []clientv3.Op // reads for the case that the compares fail
}

// Holding is a subnet key that can be proven: which key, which lease it hangs
// on, and the revision that created it. It is an immutable value.
type Holding struct {
	keys    Keys
	subnets Subnets
	lease   clientv3.LeaseID
	create  int64
	mod     int64
	ttl     time.Duration
	record  Record
}

// NewHolding takes what etcd answered about a key. It is a claim until a proof
// with its Cmps says otherwise; with lease 0 it is ErrNoLease.
func NewHolding(keys Keys, e Entry, ttl time.Duration) (Holding, error) {
	if e.Lease == 0 {
		return Holding{}, fmt.Errorf("%s: %w", keys.Subnet(e.Subnets), ErrNoLease)
	}
	if e.CreateRevision == 0 || e.IsZero() {
		return Holding{}, fmt.Errorf("%s: not a key that exists", keys.Subnet(e.Subnets))
	}
	return Holding{keys: keys, subnets: e.Subnets, lease: e.Lease, create: e.CreateRevision,
		mod: e.ModRevision, ttl: ttl, record: e.Record}, nil
}

// Subnets is what is held.
func (h Holding) Subnets() Subnets { return h.subnets }

// LeaseID is the etcd lease that the key hangs on, never 0.
func (h Holding) LeaseID() clientv3.LeaseID { return h.lease }

// TTL is the lease's time to live as etcd granted it; 0 before the first
// keep-alive of a restarted daemon.
func (h Holding) TTL() time.Duration { return h.ttl }

// Record is what the node publishes.
func (h Holding) Record() Record { return h.record }

// Epoch is the ownership's fencing number.
func (h Holding) Epoch() int64 { return h.record.Tenant().Epoch }

// Cmps prove the holding. A caller that writes to etcd on the strength of the
// subnet puts them into its own transaction.
func (h Holding) Cmps() []clientv3.Cmp {
	key := h.keys.Subnet(h.subnets)
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.LeaseValue(key), "=", h.lease),
		clientv3.Compare(clientv3.CreateRevision(key), "=", h.create),
	}
}

// proof asks whether the key is still ours, and reads it and the store's
// identity at the same revision.
func (h Holding) proof() fenced {
	reads := []clientv3.Op{clientv3.OpGet(h.keys.Subnet(h.subnets)), clientv3.OpGet(h.keys.Store())}
	return fenced{cmps: h.Cmps(), then: reads, other: reads}
}

// update publishes another record under the same lease, if nobody changed the
// key since it was read. The put names the lease: without it etcd would
// detach the key silently.
func (h Holding) update(r Record) fenced {
	key := h.keys.Subnet(h.subnets)
	return fenced{
		cmps: []clientv3.Cmp{
			clientv3.Compare(clientv3.LeaseValue(key), "=", h.lease),
			clientv3.Compare(clientv3.ModRevision(key), "=", h.mod),
		},
		then:  []clientv3.Op{clientv3.OpPut(key, r.encode(), clientv3.WithLease(h.lease))},
		other: []clientv3.Op{clientv3.OpGet(key)},
	}
}

// absent is the only compare that means "this key does not exist".
func absent(key string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
}

// asRead compares a key with what a list showed of it, "not there" included:
// the ModRevision of a key that does not exist is 0.
func asRead(key string, modRevision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", modRevision)
}

// acquire takes a free subnet under lease l. seen is the list in which it was
// free; the config, the store, the owner record and a reservation must still
// be as they were in it, and no settle may stand.
func acquire(k Keys, c Candidate, l clientv3.LeaseID, r Record, seen *Snapshot, o Owner) (fenced, error) {
	if l == 0 {
		return fenced{}, ErrNoLease
	}
	owner, err := json.Marshal(o)
	if err != nil {
		return fenced{}, fmt.Errorf("encode owner of %s: %w", c.Subnets, err)
	}
	name := c.ownerKey()
	key := k.Subnet(c.Subnets)
	return fenced{
		cmps: []clientv3.Cmp{
			absent(key),
			absent(k.Settle()),
			asRead(k.Owner(c.Subnets), seen.Owners[name].ModRevision),
			asRead(k.Reservation(c.Subnets), seen.Reservations[name].ModRevision),
			asRead(k.Config(), seen.Config.ModRevision),
			asRead(k.Store(), seen.Store.ModRevision),
		},
		then: []clientv3.Op{
			clientv3.OpPut(key, r.encode(), clientv3.WithLease(l)),
			clientv3.OpPut(k.Owner(c.Subnets), string(owner)),
		},
	}, nil
}

// birth writes config and store where there is neither.
func birth(k Keys, config []byte, s Store) (fenced, error) {
	store, err := json.Marshal(s)
	if err != nil {
		return fenced{}, fmt.Errorf("encode store: %w", err)
	}
	return fenced{
		cmps: []clientv3.Cmp{absent(k.Config()), absent(k.Store())},
		then: []clientv3.Op{clientv3.OpPut(k.Config(), string(config)), clientv3.OpPut(k.Store(), string(store))},
		other: []clientv3.Op{
			clientv3.OpGet(k.Config()), clientv3.OpGet(k.Store()),
		},
	}, nil
}

// adopt adds the store to a prefix that has a config only, flannel's.
func adopt(k Keys, configMod int64, s Store) (fenced, error) {
	store, err := json.Marshal(s)
	if err != nil {
		return fenced{}, fmt.Errorf("encode store: %w", err)
	}
	return fenced{
		cmps: []clientv3.Cmp{asRead(k.Config(), configMod), absent(k.Store())},
		then: []clientv3.Op{clientv3.OpPut(k.Store(), string(store))},
	}, nil
}

// reconfigure writes the config of a born cluster that has none any more.
func reconfigure(k Keys, storeMod int64, config []byte) fenced {
	return fenced{
		cmps: []clientv3.Cmp{absent(k.Config()), asRead(k.Store(), storeMod)},
		then: []clientv3.Op{clientv3.OpPut(k.Config(), string(config))},
	}
}
