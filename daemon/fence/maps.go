package fence

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The maps' names, at most 15 bytes. The number is the layout: a build that
// lays anything out differently counts it up and does not see the maps of the
// builds before it.
const (
	liveName   = "tenure_live_1"
	stateName  = "tenure_state_1"
	tokensName = "tenure_macs_1"
	dropsName  = "tenure_drops_1"
)

// maxTokens bounds the peers of one node.
const maxTokens = 16384

// mayCreate asks the kernel for a named map, in its own words. The library
// takes any refusal of its first such map for "this kernel knows no names" and
// remembers that for the life of the process: had it come first to a kernel
// that refuses and later does not, the maps would be nameless, and the next
// process would not find them.
func mayCreate() error {
	attr := struct {
		kind, keySize, valueSize, maxEntries, flags, inner, numa uint32
		name                                                     [unix.BPF_OBJ_NAME_LEN]byte
	}{kind: unix.BPF_MAP_TYPE_ARRAY, keySize: 4, valueSize: 4, maxEntries: 1}
	copy(attr.name[:], "tenure_try")
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return fmt.Errorf("create a map: %w", errno)
	}
	return unix.Close(int(fd))
}

// sharedMaps are what the programs share, over all devices and over restarts.
type sharedMaps struct {
	live   *ebpf.Map // one slot that holds the current state object
	tokens *ebpf.Map // sender's MAC → the subnet it speaks for
	drops  *ebpf.Map // Reason → count, per CPU
}

// stateSpec is a state object: an array of one state whose page a process may
// map. The kernel admits only objects of exactly this shape to the live map.
func stateSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: stateName, Type: ebpf.Array,
		KeySize: 4, ValueSize: stateSize, MaxEntries: 1,
		Flags: unix.BPF_F_MMAPABLE,
	}
}

func liveSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: liveName, Type: ebpf.ArrayOfMaps,
		KeySize: 4, ValueSize: 4, MaxEntries: 1,
		InnerMap: stateSpec(),
	}
}

// tokensSpec is not preallocated: most nodes have few peers.
func tokensSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: tokensName, Type: ebpf.Hash,
		KeySize: 6, ValueSize: tokenSize, MaxEntries: maxTokens,
		Flags: unix.BPF_F_NO_PREALLOC,
	}
}

func dropsSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: dropsName, Type: ebpf.PerCPUArray,
		KeySize: 4, ValueSize: 8, MaxEntries: uint32(reasons),
	}
}

// slot is one of the maps and what it must look like.
type slot struct {
	spec *ebpf.MapSpec
	m    **ebpf.Map
}

func (m *sharedMaps) slots() []slot {
	return []slot{{liveSpec(), &m.live}, {tokensSpec(), &m.tokens}, {dropsSpec(), &m.drops}}
}

// complete makes the maps that were not found.
func (m *sharedMaps) complete() error {
	for _, s := range m.slots() {
		if *s.m != nil {
			continue
		}
		made, err := ebpf.NewMap(s.spec)
		if err != nil {
			return fmt.Errorf("create map %s: %w", s.spec.Name, err)
		}
		*s.m = made
	}
	return nil
}

// adopt takes those maps of a program that are ours and still missing, by name
// and by shape. What it does not know it leaves alone.
func (m *sharedMaps) adopt(ids []ebpf.MapID) error {
	for _, id := range ids {
		found, err := ebpf.NewMapFromID(id)
		if err != nil {
			return fmt.Errorf("open map %d: %w", id, err)
		}
		took, err := m.take(found)
		if !took {
			err = errors.Join(err, found.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *sharedMaps) take(found *ebpf.Map) (bool, error) {
	info, err := found.Info()
	if err != nil {
		return false, fmt.Errorf("read what %s is: %w", found, err)
	}
	for _, s := range m.slots() {
		if *s.m == nil && info.Name == s.spec.Name && s.spec.Compatible(found) == nil {
			*s.m = found
			return true, nil
		}
	}
	return false, nil
}

// current opens the state object in the live map, nil if there is none.
func (m *sharedMaps) current() (*live, error) {
	var inner *ebpf.Map
	err := m.live.Lookup(uint32(0), &inner)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", liveName, err)
	}
	return openLive(inner)
}

// publish makes l what the programs read. The kernel answers only after every
// program that may still be reading the object before it has returned
// (a map of maps waits for an RCU grace period).
func (m *sharedMaps) publish(l *live) error {
	if err := m.live.Put(uint32(0), l.m); err != nil {
		return fmt.Errorf("put %s into map %s: %w", stateName, liveName, err)
	}
	return nil
}

func (m *sharedMaps) close() error {
	var errs []error
	for _, s := range m.slots() {
		if *s.m != nil {
			errs = append(errs, (*s.m).Close())
		}
	}
	return errors.Join(errs...)
}
