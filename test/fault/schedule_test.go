package fault

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// fault is one that strikes at a time and is healed a while later.
type fault struct {
	At, For time.Duration
	Kind    string
	// On is the node or member that it strikes, Other the second of two nodes;
	// empty where it strikes the store or the cluster.
	On, Other string

	needs []string // what no other fault may strike meanwhile, of a drawn one
}

func (f fault) String() string {
	on := f.On
	if f.Other != "" {
		on += "/" + f.Other
	}
	return strings.TrimSpace(fmt.Sprintf("%6.1fs for %4.1fs  %-16s %s", f.At.Seconds(), f.For.Seconds(), f.Kind, on))
}

func (f fault) ends() time.Duration { return f.At + f.For }

// schedule is everything about a run that is decided beforehand.
type schedule struct {
	// Name is that of a schedule that was written by hand, else empty.
	Name string
	Seed uint64
	// Time is when the last fault has been healed.
	Time time.Duration
	// Nodes is how many there are, Members how many members the store has, Pool
	// how many subnets the network has.
	Nodes, Members, Pool int
	Faults               []fault
}

func (s schedule) String() string {
	var b strings.Builder
	name := s.Name
	if name == "" {
		name = fmt.Sprintf("seed %d", s.Seed)
	}
	fmt.Fprintf(&b, "%s: %s, %d nodes, %d subnets, etcd of %d\n", name, s.Time, s.Nodes, s.Pool, s.Members)
	for _, f := range s.Faults {
		fmt.Fprintln(&b, " ", f)
	}
	return b.String()
}

// nodeName and memberName are the names of those numbered from 0; cloneName is
// the machine on which clones are started.
func nodeName(i int) string { return fmt.Sprintf("n%d", i+1) }

func memberName(i int) string { return fmt.Sprintf("m%d", i+1) }

const cloneName = "clone"

// proxied says whether the node with that number reaches etcd through proxies:
// every second one does. Its run directory is on a disk of its own, too.
func proxied(i int) bool { return i%2 == 1 }

// where is what a kind of fault strikes.
type where int

const (
	onNode    where = iota + 1 // any node
	onDirect                   // a node that reaches etcd itself
	onProxied                  // a node that reaches it through proxies
	onPair                     // two nodes
	onMember                   // a member of the store
	onStore                    // the store as a whole, all members
	onConfig                   // what the cluster has in common
	onClone                    // the machine beside the nodes
)

// kind is a kind of fault: what it strikes, how long it stands, and in stores of
// how many members it can be; 0 is any.
type kind struct {
	name        string
	on          where
	least, most time.Duration
	members     int
}

// The TTL of the runs is 5 s. What stands up to "below" costs nobody his lease,
// what stands longer than "beyond" does.
const (
	ttl    = 5 * time.Second
	short  = time.Second
	below  = 3 * time.Second
	beyond = 6500 * time.Millisecond
	long   = 9 * time.Second
)

// kinds are all that there are.
func kinds() []kind {
	return []kind{
		{"daemon-killed", onNode, short / 2, below, 0},
		{"daemon-dead", onNode, beyond, long, 0},
		{"daemon-paused", onNode, short, below, 0},
		{"daemon-hung", onNode, beyond, long, 0},
		{"state-lost", onNode, short / 2, below, 0},
		{"state-cloned", onNode, below, long, 0},
		{"rebooted", onDirect, short / 2, below, 0},
		{"etcd-cut", onNode, short, below, 0},
		{"etcd-away", onNode, beyond, long, 0},
		{"etcd-deaf", onNode, short, long, 0},
		{"etcd-mute", onNode, short, long, 0},
		{"lan-cut", onNode, short, long, 0},
		{"cable-cut", onNode, short, long, 0},
		{"nodes-cut", onPair, short, long, 0},
		{"node-one-way", onPair, short, long, 0},
		{"replies-lost", onProxied, below, long, 0},
		{"commits-late", onProxied, below, long, 0},
		{"renewals-late", onProxied, short, long, 0},
		{"acquire-late", onProxied, beyond + 2*time.Second, long + 2*time.Second, 0},
		{"events-lost", onProxied, below, long, 0},
		{"disk-full", onProxied, below, long, 0},
		{"foreign-write", onNode, beyond, long, 0},
		{"released", onNode, short, below, 0},
		{"answers-slow", onProxied, below, long, 0},
		{"proofs-lost", onProxied, below, long, 0},
		{"newcomer", onClone, beyond, long, 0},
		{"ttl-changed", onConfig, below, long, 0},
		{"compacted", onNode, below, long, 0},
		{"space-alarm", onStore, short, below, 0},
		{"store-hung", onStore, short, below, 0},
		{"store-away", onStore, beyond, long, 0},
		{"member-killed", onMember, short, long, 3},
		{"member-hung", onMember, short, long, 3},
		{"member-replaced", onMember, below, below, 3},
		{"leader-cut", onStore, short, long, 3},
		{"leader-moved", onStore, short / 2, short / 2, 3},
		{"leader-hung", onStore, beyond, long, 3},
		{"store-saved", onStore, short, short, 1},
		{"store-wiped", onStore, below, below, 1},
		{"store-restored", onStore, below, below, 1},
	}
}

// plan draws a schedule; the same arguments give the same one.
func plan(seed uint64, length time.Duration, nodes int) schedule {
	chance := rand.New(rand.NewPCG(seed, 0))
	s := schedule{Seed: seed, Time: length, Nodes: nodes, Members: 3, Pool: nodes}
	if chance.IntN(3) == 0 {
		s.Members = 1
	}
	if chance.IntN(2) == 0 {
		s.Pool = 2 * nodes
	}
	var deck []kind
	for at := time.Second / 2; at < length; {
		if len(deck) == 0 {
			deck = fits(kinds(), s.Members)
			chance.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
			if s.Members == 1 { // what only such a store can have comes early
				deck = early(deck, "store-saved", "store-restored", "store-wiped")
			}
		}
		i, f := s.next(chance, deck, at)
		if i < 0 { // a moment later there may be room
			at += 100 * time.Millisecond
			continue
		}
		deck = slices.Delete(deck, i, i+1)
		s.Faults = append(s.Faults, f)
		at += time.Duration(chance.Int64N(int64(1500 * time.Millisecond)))
	}
	return s
}

// next is the first of the deck for which there is room, and where it was; -1 if
// there is none.
func (s schedule) next(chance *rand.Rand, deck []kind, at time.Duration) (int, fault) {
	for i, k := range deck {
		if f := s.draw(chance, k, at); f.ends() <= s.Time && s.room(f) {
			return i, f
		}
	}
	return -1, fault{}
}

// early puts kinds into the front of the deck, every third.
func early(deck []kind, names ...string) []kind {
	for i, name := range names {
		at := slices.IndexFunc(deck, func(k kind) bool { return k.name == name })
		k := deck[at]
		deck = slices.Insert(slices.Delete(deck, at, at+1), 3*i, k)
	}
	return deck
}

// fits are the kinds that a store of so many members can have.
func fits(all []kind, members int) []kind {
	return slices.DeleteFunc(slices.Clone(all), func(k kind) bool { return k.members != 0 && k.members != members })
}

// draw is a fault of that kind, whether there is room for it or not.
func (s schedule) draw(chance *rand.Rand, k kind, at time.Duration) fault {
	f := fault{At: at.Round(100 * time.Millisecond), Kind: k.name}
	f.For = (k.least + time.Duration(chance.Int64N(int64(k.most-k.least)+1))).Round(100 * time.Millisecond)
	switch k.on {
	case onNode:
		f.On = nodeName(chance.IntN(s.Nodes))
	case onDirect:
		f.On = nodeName(chance.IntN((s.Nodes+1)/2) * 2)
	case onProxied:
		f.On = nodeName(chance.IntN(s.Nodes/2)*2 + 1)
	case onPair:
		i := chance.IntN(s.Nodes)
		f.On, f.Other = nodeName(i), nodeName((i+1+chance.IntN(s.Nodes-1))%s.Nodes)
	case onMember:
		f.On = memberName(chance.IntN(s.Members))
	case onClone:
		f.On = cloneName
	}
	f.needs = needs(k, f)
	return f
}

// room says whether a fault can stand beside those that are planned: not too
// many at once, one on a machine at a time, and one on the store.
func (s schedule) room(f fault) bool {
	beside := 0 // faults that stand at the same time
	if f.Kind == "store-restored" && !slices.ContainsFunc(s.Faults, func(o fault) bool { return o.Kind == "store-saved" && o.ends() < f.At }) {
		return false // there would be nothing to restore
	}
	for _, o := range s.Faults {
		// What was healed needs a moment before the same machine is struck again.
		if f.At > o.ends()+short/2 || o.At > f.ends()+short/2 {
			continue
		}
		beside++
		if slices.ContainsFunc(f.needs, func(w string) bool { return slices.Contains(o.needs, w) }) {
			return false
		}
	}
	return beside < 2+s.Nodes/3
}

// needs names what a fault of that kind has for itself.
func needs(k kind, f fault) []string {
	var all []string
	switch k.on {
	case onMember, onStore:
		all = append(all, "store")
	case onConfig:
		all = append(all, "config")
	default:
		all = append(all, f.On)
		if f.Other != "" {
			all = append(all, f.Other)
		}
	}
	switch f.Kind {
	case "state-cloned":
		all = append(all, cloneName, "memory")
	case "state-lost", "commits-late", "replies-lost", "newcomer", "store-wiped", "store-restored":
		// A newcomer in the moment in which a store has forgotten is one of the
		// limits under which the promise stands (README).
		all = append(all, "memory")
	case "released", "foreign-write":
		all = append(all, "keys")
	}
	return all
}
