package ipam

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Key says whose an allocation is: one interface of one container in one
// network.
type Key struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// String is for logs and errors.
func (k Key) String() string { return k.Network + "/" + k.ContainerID + "/" + k.IfName }

func (k Key) compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Network, o.Network), cmp.Compare(k.ContainerID, o.ContainerID), cmp.Compare(k.IfName, o.IfName))
}

// Allocation is what one Key holds. It is made and freed as a whole.
type Allocation struct {
	Key
	// Addresses holds one address per family, each with the length of its
	// subnet: Masked gives the subnet back.
	Addresses []netip.Prefix `json:"addresses"`
	// Netns is the path of the pod's network namespace, as the runtime gave it.
	Netns string `json:"netns,omitempty"`
	// Host is the name of the veth's host end.
	Host string `json:"host,omitempty"`
	// MAC is the pod interface's address where it was asked for; empty means
	// that it follows from the address.
	MAC string `json:"mac,omitempty"`
	// IPAM marks an allocation made for another plugin: the interface that
	// bears the address is not ours.
	IPAM bool `json:"ipam,omitempty"`
	// Created is when the record was made.
	Created time.Time `json:"created"`
}

// In reports whether the allocation holds an address of the subnet.
func (a Allocation) In(subnet netip.Prefix) bool {
	return slices.ContainsFunc(a.Addresses, func(p netip.Prefix) bool { return p.Masked() == subnet.Masked() })
}

func (a Allocation) clone() Allocation {
	a.Addresses = slices.Clone(a.Addresses)
	return a
}

// record is an allocation with its line in the file, encoded once: a write
// concerns one record, and the thousands beside it need not be encoded again.
type record struct {
	Allocation
	line []byte
}

// slot is an address that is not free: held, or cooling since it was released.
type slot struct {
	addr     netip.Addr
	released time.Time // zero while held
}

func (s slot) cooling() bool { return !s.released.IsZero() }

func findSlot(slots []slot, a netip.Addr) (int, bool) {
	return slices.BinarySearchFunc(slots, a, func(s slot, a netip.Addr) int { return s.addr.Compare(a) })
}

// state is a whole ledger as a value: a change is made on a clone, which takes
// the old one's place once it is on disk.
type state struct {
	records []*record                   // ascending by Key; shared with clones, never changed
	slots   []slot                      // ascending by address
	last    map[netip.Prefix]netip.Addr // by subnet: where the round robin stands
}

func newState() *state { return &state{last: map[netip.Prefix]netip.Addr{}} }

func (s *state) clone() *state {
	return &state{slices.Clone(s.records), slices.Clone(s.slots), maps.Clone(s.last)}
}

func (s *state) find(k Key) (int, bool) {
	return slices.BinarySearchFunc(s.records, k, func(r *record, k Key) int { return r.compare(k) })
}

// holder is who holds an address. It walks all records: only a refusal asks.
func (s *state) holder(a netip.Addr) string {
	for _, r := range s.records {
		if slices.ContainsFunc(r.Addresses, func(p netip.Prefix) bool { return p.Addr() == a }) {
			return r.String()
		}
	}
	return "nobody" // unreachable: every held slot has its record
}

// expire drops the slots that have cooled long enough. A release that lies in
// the future (the clock was set back) counts from now, or it would never end.
func (s *state) expire(now time.Time, cooldown time.Duration) {
	s.slots = slices.DeleteFunc(s.slots, func(sl slot) bool { return sl.cooling() && now.Sub(sl.released) >= cooldown })
	for i, sl := range s.slots {
		if sl.released.After(now) {
			s.slots[i].released = now
		}
	}
}

// insert adds a record. It returns ErrUnavailable, with nothing changed, if
// one of its addresses is held or the Key is taken.
func (s *state) insert(r *record) error {
	at, exists := s.find(r.Key)
	if exists {
		return fmt.Errorf("%w: %s already holds %v", ErrUnavailable, r.Key, s.records[at].Addresses)
	}
	for i, p := range r.Addresses {
		if j, found := findSlot(s.slots, p.Addr()); found && !s.slots[j].cooling() {
			return fmt.Errorf("%w: %s is held by %s", ErrUnavailable, p.Addr(), s.holder(p.Addr()))
		}
		if slices.ContainsFunc(r.Addresses[:i], func(q netip.Prefix) bool { return q.Addr() == p.Addr() }) {
			return fmt.Errorf("%w: %s names %s twice", ErrUnavailable, r.Key, p.Addr())
		}
	}
	for _, p := range r.Addresses {
		s.hold(p.Addr())
	}
	s.records = slices.Insert(s.records, at, r)
	return nil
}

func (s *state) hold(a netip.Addr) {
	i, found := findSlot(s.slots, a)
	if !found {
		s.slots = slices.Insert(s.slots, i, slot{})
	}
	s.slots[i] = slot{addr: a}
}

// remove takes a record out; its addresses cool from now on.
func (s *state) remove(k Key, now time.Time) (*record, bool) {
	at, exists := s.find(k)
	if !exists {
		return nil, false
	}
	r := s.records[at]
	s.records = slices.Delete(s.records, at, at+1)
	for _, p := range r.Addresses {
		i, _ := findSlot(s.slots, p.Addr())
		s.slots[i].released = now
	}
	return r, true
}

// oldestCooling is the slot of the pool that was released first.
func (s *state) oldestCooling(p pool) (slot, bool) {
	var oldest slot
	for _, sl := range s.within(p.hosts) {
		if sl.cooling() && !p.isExcluded(sl.addr) && (!oldest.cooling() || sl.released.Before(oldest.released)) {
			oldest = sl
		}
	}
	return oldest, oldest.cooling()
}

// within is the part of the slots that lies in a span.
func (s *state) within(sp span) []slot {
	from, _ := findSlot(s.slots, sp.first)
	to, found := findSlot(s.slots, sp.last)
	if found {
		to++
	}
	return s.slots[from:to]
}

// pick chooses an address and moves the round robin on. It marks nothing as
// held. warm is the slot's content where the address was still cooling.
func (s *state) pick(p pool, want netip.Addr) (addr netip.Addr, warm slot, err error) {
	if want.IsValid() {
		return s.pickNamed(p, want)
	}
	if a, ok := p.next(s.last[p.subnet], s.slots); ok {
		s.last[p.subnet] = a
		return a, slot{}, nil
	}
	if sl, ok := s.oldestCooling(p); ok {
		s.last[p.subnet] = sl.addr
		return sl.addr, sl, nil
	}
	return netip.Addr{}, slot{}, fmt.Errorf("%w: all %d addresses of %s are in use", ErrFull, p.size(), p.subnet)
}

// pickNamed leaves the round robin where it is: a pod that keeps asking for
// one address must not drag everybody else's along.
func (s *state) pickNamed(p pool, want netip.Addr) (netip.Addr, slot, error) {
	if why := p.refusal(want); why != "" {
		return netip.Addr{}, slot{}, fmt.Errorf("%w: %s cannot be given: %s", ErrUnavailable, want, why)
	}
	i, found := findSlot(s.slots, want)
	switch {
	case !found:
		return want, slot{}, nil
	case s.slots[i].cooling():
		return want, s.slots[i], nil
	default:
		return netip.Addr{}, slot{}, fmt.Errorf("%w: %s is held by %s", ErrUnavailable, want, s.holder(want))
	}
}
