package lease

import (
	"cmp"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/tenure-cni/tenure/conf"
)

// Candidate is a subnet that may be tried.
type Candidate struct {
	Subnets
	// Why says which rule of the order of choice brought it up, for the log
	// and the owner record.
	Why string
}

// Want is what the order of choice depends on besides the snapshot.
type Want struct {
	Node string
	UID  string
	// Last is the subnet this UID held last, zero if none.
	Last Subnets
	// LastFirst puts Last even before a reservation: the one immediate try
	// for the same subnet after a loss.
	LastFirst bool
	// Seed shuffles the never-owned subnets.
	Seed uint64
}

// Candidates yields every subnet that is free in the snapshot, in the order of
// choice of DESIGN §3: a reservation for this node; the subnet this UID held
// last, if nobody else has since; never-owned ones in random order; free ones,
// oldest released first. It is pure and holds no list of the address space.
func Candidates(n conf.Network, s *Snapshot, w Want) iter.Seq[Candidate] {
	t := newTaken(n, s, w.Node)
	return func(yield func(Candidate) bool) {
		tried := map[Subnets]bool{}
		offer := func(sub Subnets, why string) bool {
			if sub.IsZero() || tried[sub] || !t.free(sub) {
				return true
			}
			tried[sub] = true
			return yield(Candidate{sub, why})
		}
		stages := []func() bool{
			func() bool { return offerReserved(n, s, w, offer) },
			func() bool { return offerLast(n, s, w, offer) },
			func() bool { return offerNew(n, s, w, offer) },
			func() bool { return offerReleased(n, s, offer) },
		}
		if w.LastFirst {
			stages[0], stages[1] = stages[1], stages[0]
		}
		for _, stage := range stages {
			if !stage() {
				return
			}
		}
	}
}

type offerFunc func(Subnets, string) bool

func offerReserved(n conf.Network, s *Snapshot, w Want, offer offerFunc) bool {
	var mine []Subnets
	for name, r := range s.Reservations {
		if r.Value.Node != w.Node {
			continue
		}
		if sub, ok := gridSubnets(n, name); ok {
			mine = append(mine, sub)
		}
	}
	slices.SortFunc(mine, func(a, b Subnets) int { return cmp.Compare(a.Key(), b.Key()) })
	for _, sub := range mine {
		if !offer(sub, "reserved for this node") {
			return false
		}
	}
	return true
}

func offerLast(n conf.Network, s *Snapshot, w Want, offer offerFunc) bool {
	// Without an owner on record the store has forgotten this node, and knows
	// of nobody since.
	owner := s.Owners[w.Last.ownerKey()].Value.UID
	if w.Last.IsZero() || owner != w.UID && owner != "" {
		return true
	}
	// Only if it is still a subnet of the network as it is now.
	if sub, ok := gridSubnets(n, w.Last.ownerKey()); !ok || sub != w.Last {
		return true
	}
	return offer(w.Last, "held last by this node")
}

// offerNew walks the whole grid once, from a random start by a random stride
// that is coprime with its size.
func offerNew(n conf.Network, s *Snapshot, w Want, offer offerFunc) bool {
	count := n.SubnetCount()
	if count == 0 {
		return true
	}
	rng := rand.New(rand.NewPCG(w.Seed, w.Seed^0x9e3779b97f4a7c15))
	start, stride := rng.Uint64N(count), rng.Uint64N(count)
	for gcd(stride, count) != 1 {
		stride = (stride + 1) % count
		if count == 1 {
			break
		}
	}
	for i, at := uint64(0), start; i < count; i, at = i+1, (at+stride)%count {
		sub := subnetsAt(n, at)
		if s.Owners[sub.ownerKey()].Value.UID != "" {
			continue
		}
		if !offer(sub, "never owned") {
			return false
		}
	}
	return true
}

func offerReleased(n conf.Network, s *Snapshot, offer offerFunc) bool {
	type released struct {
		sub   Subnets
		owner Owner
	}
	var free []released
	for name, o := range s.Owners {
		if sub, ok := gridSubnets(n, name); ok {
			free = append(free, released{sub, o.Value})
		}
	}
	slices.SortFunc(free, func(a, b released) int {
		// Nobody writes down when a lease lapses, so an owner without Until
		// may have gone this instant: it comes after every known release.
		au, bu := a.owner.Until, b.owner.Until
		if az, bz := au.IsZero(), bu.IsZero(); az != bz {
			if az {
				return 1
			}
			return -1
		}
		return cmp.Or(au.Compare(bu), a.owner.Since.Compare(b.owner.Since), cmp.Compare(a.sub.Key(), b.sub.Key()))
	})
	for _, f := range free {
		if !offer(f.sub, "free again") {
			return false
		}
	}
	return true
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// subnetsAt is the pair of index i; the second family takes the same index.
func subnetsAt(n conf.Network, i uint64) Subnets {
	if !n.EnableIPv4 {
		return Subnets{V6: n.SubnetAt(i)}
	}
	return Subnets{V4: n.SubnetAt(i), V6: n.Subnet6At(i)}
}

// gridSubnets resolves an owner's or a reservation's name to the pair of the
// grid as configured now; false if it is not on it.
func gridSubnets(n conf.Network, name string) (Subnets, bool) {
	p, err := parseDashed(name)
	if err != nil {
		return Subnets{}, false
	}
	i, ok := n.IndexOf(p)
	if !ok {
		return Subnets{}, false
	}
	return subnetsAt(n, i), true
}

// taken answers "may this subnet be tried" in constant time for subnets of
// the configured length, and by a walk for the odd ones a network may hold.
type taken struct {
	exact map[netip.Prefix]bool
	odd   []netip.Prefix
}

func newTaken(n conf.Network, s *Snapshot, node string) taken {
	t := taken{exact: make(map[netip.Prefix]bool, len(s.Entries))}
	for _, e := range s.Entries {
		for _, p := range e.All() {
			t.add(n, p)
		}
	}
	for name, r := range s.Reservations {
		if p, err := parseDashed(name); err == nil && r.Value.Node != node {
			t.add(n, p)
		}
	}
	return t
}

func (t *taken) add(n conf.Network, p netip.Prefix) {
	bits := n.SubnetLen
	if p.Addr().Is6() {
		bits = n.IPv6SubnetLen
	}
	if p.Bits() == bits {
		t.exact[p] = true
		return
	}
	t.odd = append(t.odd, p)
}

func (t *taken) free(s Subnets) bool {
	for _, p := range s.All() {
		if t.exact[p] || slices.ContainsFunc(t.odd, p.Overlaps) {
			return false
		}
	}
	return true
}
