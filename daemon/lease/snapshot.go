package lease

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
)

// Entry is one subnet key as etcd has it.
type Entry struct {
	Subnets
	Record
	Lease          clientv3.LeaseID
	CreateRevision int64
	ModRevision    int64
}

// Versioned is a value with the revision of its last change; 0 is absent.
type Versioned[T any] struct {
	Value       T
	ModRevision int64
}

// Snapshot is everything under the prefix at one revision. It is immutable.
type Snapshot struct {
	// Revision is the store's, from the header of the answer; after events it
	// is that of the latest one.
	Revision int64
	// ClusterID is etcd's own, from the same header.
	ClusterID uint64
	// Term is etcd's raft term from the header of a list, else 0.
	Term uint64
	// Config is the raw network config; it is judged where it is used.
	Config Versioned[[]byte]
	Store  Versioned[Store]
	Settle Versioned[Settle] // ModRevision 0 = absent
	// Listed says that this is a linearizable list, and not a list with later
	// events: only then is its Revision the store's.
	Listed bool
	// Entries are the subnet keys, sorted by name.
	Entries      []Entry
	Owners       map[string]Versioned[Owner]       // by ownerKey
	Reservations map[string]Versioned[Reservation] // by ownerKey
	// Faults are the keys that could not be read, named for status.
	Faults []string
}

// compareEntries orders by name; of two keys for the same subnet the one that can
// be read comes first, and is found.
func compareEntries(a, b Entry) int {
	c := cmp.Compare(a.Key(), b.Key())
	switch {
	case c != 0 || a.unread() == b.unread():
		return c
	case b.unread():
		return -1
	}
	return 1
}

// Entry finds the record of exactly these subnets.
func (s *Snapshot) Entry(sub Subnets) (Entry, bool) {
	i, ok := slices.BinarySearchFunc(s.Entries, sub.Key(), func(e Entry, k string) int {
		return cmp.Compare(e.Key(), k)
	})
	if !ok {
		return Entry{}, false
	}
	return s.Entries[i], true
}

// hangs says whether any subnet key is under the lease.
func (s *Snapshot) hangs(id clientv3.LeaseID) bool {
	return slices.ContainsFunc(s.Entries, func(e Entry) bool { return e.Lease == id })
}

// MaxEpoch is the highest epoch seen for the subnets, in records or owners.
func (s *Snapshot) MaxEpoch(sub Subnets) int64 {
	o := s.Owners[sub.ownerKey()].Value
	highest := o.Epoch
	for _, t := range o.History {
		highest = max(highest, t.Epoch)
	}
	if e, ok := s.Entry(sub); ok {
		highest = max(highest, e.Tenant().Epoch)
	}
	return highest
}

// mirror is the watched range, decoded once per change. It is not safe for
// concurrent use; the snapshots it makes are.
type mirror struct {
	keys  Keys
	order []*item // by key, kept so: every event makes a snapshot
}

// item is one decoded key. A value that cannot be decoded still counts: its
// subnet is taken, its reservation is somebody else's.
type item struct {
	key   string
	name  string // of an Entry, owner or reservation: its part of the key
	mod   int64
	value any // Entry or Versioned[...]; nil for a foreign key
	fault string
}

// How much is said of a key that cannot be read, and of the reason, in bytes:
// both may be of any length, and quote what stands in etcd.
const (
	keyMost = 120
	whyMost = 160
)

func newMirror(k Keys) *mirror { return &mirror{keys: k} }

// reset replaces everything by one list.
func (m *mirror) reset(kvs []*mvccpb.KeyValue) {
	m.order = make([]*item, 0, len(kvs))
	for _, kv := range kvs {
		m.put(kv)
	}
}

func (m *mirror) put(kv *mvccpb.KeyValue) {
	v, err := m.parse(kv)
	it := &item{key: string(kv.Key), mod: kv.ModRevision, value: v}
	if err != nil {
		it.fault = conf.Short(it.key, keyMost) + ": " + conf.Short(err.Error(), whyMost)
	}
	if e, ok := v.(Entry); ok {
		it.name = e.Key()
	} else {
		it.name = it.key[strings.LastIndexByte(it.key, '/')+1:]
	}
	at, found := m.find(it.key)
	if !found {
		m.order = slices.Insert(m.order, at, it)
	}
	m.order[at] = it
}

func (m *mirror) remove(key string) {
	if at, found := m.find(key); found {
		m.order = slices.Delete(m.order, at, at+1)
	}
}

func (m *mirror) find(key string) (int, bool) {
	return slices.BinarySearchFunc(m.order, key, func(it *item, key string) int { return cmp.Compare(it.key, key) })
}

func (m *mirror) parse(kv *mvccpb.KeyValue) (any, error) {
	key := string(kv.Key)
	switch {
	case key == m.keys.Config():
		return Versioned[[]byte]{kv.Value, kv.ModRevision}, nil
	case key == m.keys.Store():
		s, err := decode[Store]("store", kv.Value)
		return Versioned[Store]{s, kv.ModRevision}, err
	case key == m.keys.Settle():
		// Whatever it says, it stands.
		v, _ := decode[Settle]("settle", kv.Value)
		return Versioned[Settle]{v, kv.ModRevision}, nil
	case strings.HasPrefix(key, m.keys.owners()):
		return parseBeside[Owner]("owner", strings.TrimPrefix(key, m.keys.owners()), kv)
	case strings.HasPrefix(key, m.keys.reservations()):
		return parseBeside[Reservation]("reservation", strings.TrimPrefix(key, m.keys.reservations()), kv)
	case strings.HasPrefix(key, m.keys.subnets()):
		return parseEntry(strings.TrimPrefix(key, m.keys.subnets()), kv)
	}
	return nil, nil // somebody else's key under our prefix
}

// parseBeside reads what stands beside a subnet's key, under the subnet's own name
// only: owners/x/10.5.1.0-24 must not be taken for the owner of 10.5.1.0/24.
func parseBeside[T any](what, name string, kv *mvccpb.KeyValue) (any, error) {
	p, err := parseDashed(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if own := dashed(p); name != own {
		return nil, fmt.Errorf("%s: the key of %s is %s", what, p, own)
	}
	v, err := decode[T](what, kv.Value)
	// Some times can be read and not be written, and an owner's are written again
	// with the next one's.
	if err == nil && encode(v) == "" {
		var none T
		v, err = none, fmt.Errorf("%s: it has a time that cannot be written", what)
	}
	return Versioned[T]{v, kv.ModRevision}, err
}

func parseEntry(name string, kv *mvccpb.KeyValue) (any, error) {
	sub, err := ParseSubnets(name)
	if err != nil {
		return nil, err
	}
	e := Entry{Subnets: sub, Lease: clientv3.LeaseID(kv.Lease), CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision}
	if name != sub.Key() {
		// Another key for the same subnet: it must not be taken for the one that
		// its tenant holds.
		return e, fmt.Errorf("the key of %s is %s", sub, sub.Key())
	}
	e.Record, err = DecodeRecord(kv.Value)
	return e, err
}

// unread says that the record could not be read: of the entry only the subnet,
// which counts as taken, and the lease are known.
func (e Entry) unread() bool {
	return !e.PublicIP.IsValid() && (e.PublicIPv6 == nil || !e.PublicIPv6.IsValid())
}

// snapshot assembles what the mirror holds.
func (m *mirror) snapshot(revision int64, cluster uint64) *Snapshot {
	s := &Snapshot{Revision: revision, ClusterID: cluster,
		Owners: make(map[string]Versioned[Owner], len(m.order)/2), Reservations: map[string]Versioned[Reservation]{},
		Entries: make([]Entry, 0, len(m.order)/2)}
	sorted, last := true, ""
	for _, it := range m.order {
		if it.fault != "" {
			s.Faults = append(s.Faults, it.fault)
		}
		switch v := it.value.(type) {
		case Versioned[[]byte]:
			s.Config = v
		case Versioned[Store]:
			s.Store = v
		case Versioned[Settle]:
			s.Settle = v
		case Versioned[Owner]:
			s.Owners[it.name] = v
		case Versioned[Reservation]:
			s.Reservations[it.name] = v
		case Entry:
			s.Entries = append(s.Entries, v)
			sorted, last = sorted && last < it.name, it.name
		}
	}
	if !sorted { // somebody wrote a key in capitals, or in another way
		slices.SortFunc(s.Entries, compareEntries)
	}
	return s
}
