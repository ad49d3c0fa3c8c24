package lease

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Released says what Release did.
type Released struct {
	Subnets Subnets
	Node    string
	// Until is when the subnet can be had, at the latest; zero is now.
	Until time.Time
}

// Errors of Release.
var (
	ErrNoSuchHolder = errors.New("no node and no subnet of that name is on record")
	ErrReleased     = errors.New("it is released already, and free when its lease ends")
	ErrAmbiguous    = errors.New("more than one record is of that name")
	ErrLapsed       = errors.New("its lease has ended: the subnet is free already, or will be in a moment")
)

// Release takes the subnet away from another node by force: what is a node's
// name, or a subnet, as 10.5.34.0/24 or as its key has it, 10.5.34.0-24. The key is not deleted but becomes its own
// tombstone under a lease as long as the one it hung on, for the node's fence
// may be open as long. With machineIsOff, the operator's word that it cannot
// be, key and lease are deleted at once.
func Release(ctx context.Context, c *clientv3.Client, prefix, what string, machineIsOff bool) (Released, error) {
	k := NewKeys(prefix)
	for {
		s, err := list(ctx, c, newMirror(k), maxCall)
		if err != nil {
			return Released{}, err
		}
		entry, err := named(s, what)
		if err != nil {
			return Released{}, err
		}
		r := Released{Subnets: entry.Subnets, Node: entry.Tenant().Node}
		tomb := newLeaseID() // the tombstone's, if it becomes one
		f, err := releasing(ctx, c, k, entry, s, machineIsOff, tomb, &r)
		if err != nil {
			return Released{}, err
		}
		resp, err := commit(ctx, c, f, maxCall)
		if err != nil {
			return Released{}, fmt.Errorf("release %s: %w", entry.Subnets, err)
		}
		if resp.Succeeded {
			// On the old lease nothing hangs any more.
			return r, revoke(ctx, c, entry.Lease, maxCall)
		}
		// The record was written meanwhile: nothing hangs on the new lease.
		if err := revoke(ctx, c, tomb, maxCall); err != nil {
			return Released{}, err
		}
	}
}

// named finds the record that a person means.
func named(s *Snapshot, what string) (Entry, error) {
	subnet, subnetErr := netip.ParsePrefix(what)
	if subnetErr != nil {
		subnet, subnetErr = parseDashed(what) // as the key has it
	}
	var found []Entry
	for _, e := range s.Entries {
		if what != "" && e.Tenant().Node == what || subnetErr == nil && (e.V4 == subnet || e.V6 == subnet) {
			found = append(found, e)
		}
	}
	switch {
	case len(found) == 0:
		return Entry{}, fmt.Errorf("%q: %w", what, ErrNoSuchHolder)
	case len(found) > 1:
		return Entry{}, fmt.Errorf("%q: %w (%s and %s): name the subnet", what, ErrAmbiguous, found[0].Subnets, found[1].Subnets)
	}
	return found[0], nil
}

// releasing builds the write, and grants the tombstone's lease.
func releasing(ctx context.Context, c *clientv3.Client, k Keys, entry Entry, s *Snapshot, machineIsOff bool, tomb clientv3.LeaseID, r *Released) (fenced, error) {
	h, err := NewHolding(k, entry, 0)
	if err != nil {
		return fenced{}, err
	}
	o := s.Owners[entry.ownerKey()].Value
	o.Until, o.Why = time.Now().UTC(), "released by force"
	if machineIsOff {
		return h.leave(o), nil
	}
	if entry.Tenure != nil && entry.Tenure.UID == "" {
		return fenced{}, fmt.Errorf("%s: %w", entry.Subnets, ErrReleased)
	}
	old, err := askTime(ctx, c, entry.Lease, maxCall)
	if err != nil {
		return fenced{}, err
	}
	ttl := old.granted
	if ttl <= 0 {
		return fenced{}, fmt.Errorf("%s: %w", entry.Subnets, ErrLapsed)
	}
	if _, err := grant(ctx, c, tomb, ttl, maxCall); err != nil {
		return fenced{}, err
	}
	r.Until = time.Now().Add(ttl)
	return h.entomb(tomb, o)
}
