package lease

import "fmt"

// Life is which store a node has come to know: the cluster's own identity
// (empty while there is no store key), etcd's cluster ID, and the highest
// revision seen in it. All three come from the header and the body of one
// linearizable KV answer; keep-alives and watch events carry a member's own
// revision, which may lag, and are never judged.
type Life struct {
	Store    string
	Cluster  uint64
	Revision int64
}

// Meeting is how an answer's store relates to the one that is known.
type Meeting int

// The five meetings of DESIGN §3.
const (
	// MetFirst: no store was known yet.
	MetFirst Meeting = iota
	// MetSame: the known store, not before what was seen of it.
	MetSame
	// MetBorn: the known prefix, whose store key has been written since.
	MetBorn
	// MetWentBack: the known store, but restored: another etcd cluster has
	// it, or its revision is lower than one seen before.
	MetWentBack
	// MetAnother: another store, or none where there was one.
	MetAnother
)

// Meet judges what an answer came from. It is pure.
func (l Life) Meet(now Life) Meeting {
	continues := now.Cluster == l.Cluster && now.Revision >= l.Revision
	switch {
	case l.Cluster == 0:
		return MetFirst
	case l.Store == "" && now.Store != "" && continues:
		return MetBorn
	case l.Store != now.Store:
		return MetAnother
	case !continues:
		return MetWentBack
	}
	return MetSame
}

// strange says that an answer, which is not to be judged yet, may come from
// another store or another age of it.
func (l Life) strange(now Life) bool {
	m := l.Meet(now)
	return m == MetAnother || m == MetWentBack
}

// Difference says in words what was known and what is there now.
func (l Life) Difference(now Life) string {
	switch {
	case l.Store != "" && now.Store == "":
		return fmt.Sprintf("the store %s is gone from etcd: it was wiped, or never restored", l.Store)
	case l.Store != now.Store:
		return fmt.Sprintf("etcd has the store %s where this node knew %s", orNone(now.Store), orNone(l.Store))
	case l.Cluster != now.Cluster:
		return fmt.Sprintf("the store %s is in another etcd cluster now (%x, before %x): it was restored", orNone(l.Store), now.Cluster, l.Cluster)
	}
	return fmt.Sprintf("the store %s is at revision %d, and was at %d before: it was restored from an older state", orNone(l.Store), now.Revision, l.Revision)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// life is the store of a whole list.
func (s *Snapshot) life() Life {
	return Life{Store: s.Store.Value.ID, Cluster: s.ClusterID, Revision: s.Revision}
}

// standing is how the record of a subnet stands to the node that held it last.
type standing int

const (
	// ours: the key, the lease and the ownership are the ones held.
	ours standing = iota
	// moved: this UID's key, but under another lease or of another epoch; a
	// restored store has one, and an own write whose answer was lost.
	moved
	// gone: no key, and none that overlaps.
	gone
	// earlier: the record of an owner whom this node is known to have
	// succeeded. Only a store that went back shows one.
	earlier
	// foreign: somebody else's.
	foreign
)

// stand is pure: how what a list shows relates to a holding. past are the
// owners before it.
func stand(h Holding, past []Transition, s *Snapshot) (standing, Entry) {
	own := h.record.Tenant()
	e, there := s.Entry(h.subnets)
	if !there {
		for _, other := range s.Entries {
			if other.Overlaps(h.subnets) {
				return foreign, other
			}
		}
		return gone, e
	}
	who := e.Tenant()
	switch {
	case e.Lease != 0 && h.contradicted(e) == "":
		return ours, e
	case e.Lease != 0 && who.UID == own.UID:
		return moved, e
	}
	for _, t := range past {
		if t.UID == who.UID && t.Epoch == who.Epoch && t.UID != "" {
			return earlier, e
		}
	}
	return foreign, e
}
