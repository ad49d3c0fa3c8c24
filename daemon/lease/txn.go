package lease

import (
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
	other []clientv3.Op // reads, for when the compares fail
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

// proof asks whether the key is still ours, and reads it, the store's identity
// and settle at the same revision.
func (h Holding) proof() fenced {
	reads := []clientv3.Op{clientv3.OpGet(h.keys.Subnet(h.subnets)), clientv3.OpGet(h.keys.Store()), clientv3.OpGet(h.keys.Settle())}
	return fenced{cmps: h.Cmps(), then: reads, other: reads}
}

// unchanged is what every write over the own key compares: it hangs on the
// lease, and nobody has written it since it was read.
func (h Holding) unchanged() []clientv3.Cmp {
	key := h.keys.Subnet(h.subnets)
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.LeaseValue(key), "=", h.lease),
		clientv3.Compare(clientv3.ModRevision(key), "=", h.mod),
	}
}

// update publishes another record under the same lease, if nobody changed the
// key since it was read. The put names the lease: without it etcd would
// detach the key silently.
func (h Holding) update(r Record) fenced {
	key := h.keys.Subnet(h.subnets)
	return fenced{
		cmps: h.unchanged(),
		then: []clientv3.Op{clientv3.OpPut(key, r.encode(), clientv3.WithLease(h.lease))},
	}
}

// rebind moves the own key to the lease to. While the store settles only a node
// whose fence is open may: nobody else's can be on this subnet. The fence must
// have been cut to what both leases allow before this is sent.
func (h Holding) rebind(to clientv3.LeaseID, open bool) (fenced, error) {
	if to == 0 {
		return fenced{}, ErrNoLease
	}
	key, cmps := h.keys.Subnet(h.subnets), h.unchanged()
	if !open {
		cmps = append(cmps, absent(h.keys.Settle()))
	}
	return fenced{
		cmps: cmps,
		then: []clientv3.Op{clientv3.OpPut(key, h.record.encode(), clientv3.WithLease(to))},
	}, nil
}

// takeOver makes the key of this machine's own earlier self, or of its flannel,
// the key of r under the lease to. h is that key as the list seen shows it. The
// fence must have been cut to what both leases allow before this is sent.
func (h Holding) takeOver(to clientv3.LeaseID, r Record, seen *Snapshot, o Owner) (fenced, error) {
	if to == 0 {
		return fenced{}, ErrNoLease
	}
	return fenced{
		cmps: append(h.unchanged(), absent(h.keys.Settle()),
			asRead(h.keys.Owner(h.subnets), seen.Owners[h.subnets.ownerKey()].ModRevision),
			asRead(h.keys.Config(), seen.Config.ModRevision),
			asRead(h.keys.Store(), seen.Store.ModRevision)),
		then: write(h.keys, h.subnets, to, r, o),
	}, nil
}

// retake writes the own key, as a restored store has it, under the lease that it
// hangs on there.
func (h Holding) retake(r Record, seen *Snapshot, o Owner) fenced {
	return fenced{
		cmps: append(h.unchanged(), asRead(h.keys.Owner(h.subnets), seen.Owners[h.subnets.ownerKey()].ModRevision)),
		then: write(h.keys, h.subnets, h.lease, r, o),
	}
}

// leave deletes the own key and notes in the owner record that it was given
// up. The fence must be closed before this is sent.
func (h Holding) leave(o Owner) fenced {
	key := h.keys.Subnet(h.subnets)
	return fenced{
		cmps: h.unchanged(),
		then: []clientv3.Op{clientv3.OpDelete(key), clientv3.OpPut(h.keys.Owner(h.subnets), encode(o))},
	}
}

// entomb puts another node's key under the lease to, which has the length of
// the one it hung on: the key is its own tombstone, and stands as long as the
// node that held it could still have its fence open.
func (h Holding) entomb(to clientv3.LeaseID, o Owner) (fenced, error) {
	if to == 0 {
		return fenced{}, ErrNoLease
	}
	tomb := h.record
	tenant := tomb.Tenant()
	tenant.UID = ""
	tomb.Tenure = &tenant
	return fenced{
		cmps: h.unchanged(),
		then: write(h.keys, h.subnets, to, tomb, o),
	}, nil
}

// write puts a subnet's key under a lease, and whose it is beside it. The lease
// is never 0: without one etcd would detach the key silently.
func write(k Keys, s Subnets, l clientv3.LeaseID, r Record, o Owner) []clientv3.Op {
	return []clientv3.Op{
		clientv3.OpPut(k.Subnet(s), r.encode(), clientv3.WithLease(l)),
		clientv3.OpPut(k.Owner(s), encode(o)),
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
	return fenced{
		cmps: append(free(k, c.Subnets, seen), absent(k.Settle()),
			asRead(k.Reservation(c.Subnets), seen.Reservations[c.ownerKey()].ModRevision)),
		then: write(k, c.Subnets, l, r, o),
	}, nil
}

// free compares that nobody has the subnet, and that owner, config and store
// are as the list seen shows them, absent ones included.
func free(k Keys, s Subnets, seen *Snapshot) []clientv3.Cmp {
	return []clientv3.Cmp{
		absent(k.Subnet(s)),
		asRead(k.Owner(s), seen.Owners[s.ownerKey()].ModRevision),
		asRead(k.Config(), seen.Config.ModRevision),
		asRead(k.Store(), seen.Store.ModRevision),
	}
}

// reassert puts the own key back into a store that forgot it, under lease l.
// It needs no settle to be over and no config to exist: the fence of whoever
// sends it is open, so nobody else's can be on this subnet.
func (h Holding) reassert(l clientv3.LeaseID, seen *Snapshot, o Owner) (fenced, error) {
	if l == 0 {
		return fenced{}, ErrNoLease
	}
	return fenced{
		cmps: free(h.keys, h.subnets, seen),
		then: write(h.keys, h.subnets, l, h.record, o),
	}, nil
}

// settle makes everybody wait for as long as l lives, in the store as it was
// seen.
func settle(k Keys, l clientv3.LeaseID, v Settle, seen *Snapshot) (fenced, error) {
	f, err := settleOver(k, l, v, 0)
	f.cmps = append(f.cmps, asRead(k.Store(), seen.Store.ModRevision))
	return f, err
}

// settleOver does so in the place of the settle that stood when it was read, 0
// if none did.
func settleOver(k Keys, l clientv3.LeaseID, v Settle, stands int64) (fenced, error) {
	if l == 0 {
		return fenced{}, ErrNoLease
	}
	return fenced{
		cmps: []clientv3.Cmp{asRead(k.Settle(), stands)},
		then: []clientv3.Op{clientv3.OpPut(k.Settle(), encode(v), clientv3.WithLease(l))},
	}, nil
}

// with is one transaction of two.
func (f fenced) with(o fenced) fenced {
	f.cmps, f.then = append(f.cmps, o.cmps...), append(f.then, o.then...)
	return f
}

// birth writes config and store where there is neither, with a settle or none.
func birth(k Keys, config []byte, s Store, settle fenced) fenced {
	return fenced{
		cmps:  []clientv3.Cmp{absent(k.Config()), absent(k.Store())},
		then:  []clientv3.Op{clientv3.OpPut(k.Config(), string(config)), clientv3.OpPut(k.Store(), encode(s))},
		other: []clientv3.Op{clientv3.OpGet(k.Config()), clientv3.OpGet(k.Store())},
	}.with(settle)
}

// adopt adds the store to a prefix that has a config only, flannel's.
func adopt(k Keys, configMod int64, s Store, settle fenced) fenced {
	return fenced{
		cmps: []clientv3.Cmp{asRead(k.Config(), configMod), absent(k.Store())},
		then: []clientv3.Op{clientv3.OpPut(k.Store(), encode(s))},
	}.with(settle)
}

// reconfigure writes the config of a born cluster that has none any more.
func reconfigure(k Keys, storeMod int64, config []byte, settle fenced) fenced {
	return fenced{
		cmps: []clientv3.Cmp{absent(k.Config()), asRead(k.Store(), storeMod)},
		then: []clientv3.Op{clientv3.OpPut(k.Config(), string(config))},
	}.with(settle)
}

// configure writes another config into the store as it was seen: nobody has
// changed config or store since, and no subnet's key was written, so that nobody
// holds what the config was not judged against. Who acquires later compares the
// config.
func configure(k Keys, seen *Snapshot, config []byte) fenced {
	return fenced{
		cmps: []clientv3.Cmp{
			asRead(k.Config(), seen.Config.ModRevision),
			asRead(k.Store(), seen.Store.ModRevision),
			clientv3.Compare(clientv3.ModRevision(k.subnets()), "<", seen.Revision+1).WithPrefix(),
		},
		then: []clientv3.Op{clientv3.OpPut(k.Config(), string(config))},
	}
}

// keepFor reserves a subnet for a node while reservation, config and the subnet's
// own key are as the list seen shows them.
func keepFor(k Keys, s Subnets, seen *Snapshot, r Reservation) fenced {
	held, _ := seen.Entry(s)
	return fenced{
		cmps: []clientv3.Cmp{
			asRead(k.Reservation(s), seen.Reservations[s.ownerKey()].ModRevision),
			asRead(k.Config(), seen.Config.ModRevision),
			asRead(k.Subnet(s), held.ModRevision),
		},
		then: []clientv3.Op{clientv3.OpPut(k.Reservation(s), encode(r))},
	}
}

// dropReservation deletes a reservation, by its name, as it was read.
func dropReservation(k Keys, name string, mod int64) fenced {
	key := k.reservations() + name
	return fenced{
		cmps: []clientv3.Cmp{asRead(key, mod)},
		then: []clientv3.Op{clientv3.OpDelete(key)},
	}
}
