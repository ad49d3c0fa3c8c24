package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/google/renameio/v2"
	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Memory is <state-dir>/node.json: who this node is and what it remembers.
// Everything but the UID is a hint: it says which key to ask etcd about, and
// is never written over what etcd answers.
type Memory struct {
	Version int `json:"version"`
	// UID is the node's identity; it is made once and kept.
	UID string `json:"uid"`
	// ProductUUID is the machine's own; where it differs, the state directory
	// was copied to another machine and a new UID is made.
	ProductUUID string `json:"productUUID,omitempty"`
	// Boot is the boot in which Held was last proven.
	Boot string `json:"boot,omitempty"`
	// Held is the subnet held last, nil before the first.
	Held *MemoryOfHolding `json:"held,omitempty"`
	// Former are the subnets held before Held, the latest last: others may have
	// made bridges for them.
	Former []string `json:"former,omitempty"`
	// Moving is the lease that Held's key was asked to move to, and has not
	// been seen to.
	Moving *MemoryOfMove `json:"moving,omitempty"`
	// Dead are leases whose end was asked for and not confirmed: a key that
	// hangs on one may go at any time, and is never resumed.
	Dead []clientv3.LeaseID `json:"dead,omitempty"`
	// Store is the identity of the store last believed.
	Store string `json:"store,omitempty"`
	// Had is the last store that there was, also while there is none.
	Had string `json:"had,omitempty"`
	// ClusterID is etcd's own identity, as in the header of that answer.
	ClusterID uint64 `json:"clusterID,omitempty"`
	// Revision is the highest one seen in that store.
	Revision int64 `json:"revision,omitempty"`
	// Config is the last good network config.
	Config json.RawMessage `json:"config,omitempty"`
	// Networks were in force on this node before Config's, newest last: what the
	// kernel has of them is this node's.
	Networks []netip.Prefix `json:"networks,omitempty"`
}

// MemoryOfHolding is what is needed to ask about a Holding again.
type MemoryOfHolding struct {
	Subnet         string           `json:"subnet"`
	Lease          clientv3.LeaseID `json:"lease"`
	CreateRevision int64            `json:"createRevision"`
	ModRevision    int64            `json:"modRevision"`
	TTLSeconds     int64            `json:"ttlSeconds"`
	// Term is etcd's raft term from before Lease was asked for, 0 if unknown.
	Term   uint64 `json:"term,omitempty"`
	Record Record `json:"record"`
	// Past are the owners before this node, as the owner record has them.
	Past []Transition `json:"past,omitempty"`
}

// MemoryOfMove is a move that a process has begun.
type MemoryOfMove struct {
	Lease      clientv3.LeaseID `json:"lease"`
	TTLSeconds int64            `json:"ttlSeconds"`
	Term       uint64           `json:"term,omitempty"` // as MemoryOfHolding.Term
}

// memoryVersion is the form this code writes.
const memoryVersion = 1

// ErrNewerMemory says that a later Tenure wrote node.json.
var ErrNewerMemory = errors.New("written by a later version of Tenure")

// OpenMemory reads node.json in dir, or makes it: with a UID of its own where
// there is none, or where the machine is another one than the file says. A
// damaged file is set aside and replaced, which costs the node its subnet but
// never somebody else's. The error is of the file system, or ErrNewerMemory.
func OpenMemory(dir, productUUID string) (*MemoryFile, error) {
	f := &MemoryFile{path: filepath.Join(dir, "node.json")}
	b, err := os.ReadFile(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", f.path, err)
	default:
		if err := f.load(b); err != nil {
			return nil, err
		}
	}
	if f.m.UID != "" && (f.m.ProductUUID == productUUID || productUUID == "" || f.m.ProductUUID == "") {
		return f, nil
	}
	f.m = Memory{UID: uuid.NewString(), ProductUUID: productUUID, Config: f.m.Config, Networks: f.m.Networks}
	return f, f.Save(f.m)
}

// MemoryFile is node.json. It is safe for concurrent use.
type MemoryFile struct {
	path string
	mu   sync.Mutex
	m    Memory
	// SetAside is where a damaged file went, empty if there was none.
	SetAside string
}

func (f *MemoryFile) load(b []byte) error {
	var m Memory
	err := json.Unmarshal(b, &m)
	if err == nil {
		_, err = m.encode() // some times can be read and not be written
	}
	if err != nil || m.UID == "" {
		f.SetAside = f.path + ".damaged"
		if err := os.Rename(f.path, f.SetAside); err != nil {
			return fmt.Errorf("set damaged %s aside: %w", f.path, err)
		}
		return nil
	}
	if m.Version > memoryVersion {
		return fmt.Errorf("%s has version %d, this Tenure knows %d: %w", f.path, m.Version, memoryVersion, ErrNewerMemory)
	}
	f.m = m
	return nil
}

// Get is what is remembered.
func (f *MemoryFile) Get() Memory {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.m
}

// Update is Save of what change makes of what is remembered.
func (f *MemoryFile) Update(change func(Memory) Memory) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.saveLocked(change(f.m))
}

// Save writes m durably and atomically; what Get returns changes even if the
// disk refuses, for the running process knows better than the file.
func (f *MemoryFile) Save(m Memory) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.saveLocked(m)
}

func (f *MemoryFile) saveLocked(m Memory) error {
	m.Version = memoryVersion
	f.m = m
	b, err := m.encode()
	if err != nil {
		return fmt.Errorf("encode %s: %w", f.path, err)
	}
	if err := renameio.WriteFile(f.path, b, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", f.path, err)
	}
	return nil
}

// encode is the file's content.
func (m Memory) encode() ([]byte, error) {
	b, err := json.MarshalIndent(m, "", "  ")
	return append(b, '\n'), err
}

// remember keeps a holding for the next start.
func (m Memory) remember(h Holding, boot string) Memory {
	m.Boot = boot
	if last, key := m.Held, h.subnets.Key(); last != nil && last.Subnet != key {
		m.Former = slices.DeleteFunc(append(slices.Clone(m.Former), last.Subnet), func(old string) bool { return old == key })
		m.Former = m.Former[max(0, len(m.Former)-mostFormer):]
	}
	m.Held = &MemoryOfHolding{Subnet: h.subnets.Key(), Lease: h.lease, CreateRevision: h.create,
		ModRevision: h.mod, TTLSeconds: int64(h.ttl.Seconds()), Record: h.record}
	return m
}

// mostFormer is how many subnets of before are remembered.
const mostFormer = 16

// Before are the subnets that this node held before the last one, at most 16.
func (m Memory) Before() []Subnets {
	var all []Subnets
	for _, key := range m.Former {
		if s, err := ParseSubnets(key); err == nil {
			all = append(all, s)
		}
	}
	return all
}

// Last is the subnet held last; false if there is none or it cannot be read.
func (m Memory) Last() (Subnets, bool) {
	if m.Held == nil {
		return Subnets{}, false
	}
	s, err := ParseSubnets(m.Held.Subnet)
	return s, err == nil
}
