package fence

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// live is the state object the program currently reads: a map of one entry,
// of which this process has the page mapped. Its addresses never change once
// the program can see it; only its deadline does, by one aligned 64-bit store.
// A write by system call would copy bytes, and the kernel promises no more of
// that copy than that all of them arrive.
type live struct {
	m        *ebpf.Map
	page     []byte
	deadline *atomic.Uint64
	subnets  Subnets
	network  Network
}

// newLive makes a state object that no program sees yet.
func newLive(subnets Subnets, network Network, deadline time.Duration) (*live, error) {
	m, err := ebpf.NewMap(stateSpec())
	if err != nil {
		return nil, fmt.Errorf("create map %s: %w", stateName, err)
	}
	if err := m.Put(uint32(0), encode(subnets, network, deadline)); err != nil {
		return nil, errors.Join(fmt.Errorf("fill map %s: %w", stateName, err), m.Close())
	}
	return openLive(m)
}

// errDamaged says that the state object holds what no fence writes.
var errDamaged = errors.New("addresses that are no prefix")

// openLive maps an existing state object. It takes m, also when it fails.
func openLive(m *ebpf.Map) (*live, error) {
	var s state
	if err := m.Lookup(uint32(0), &s); err != nil {
		return nil, errors.Join(fmt.Errorf("read map %s: %w", stateName, err), m.Close())
	}
	subnets, network, err := decode(s)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read map %s: %w: %w", stateName, errDamaged, err), m.Close())
	}
	page, err := unix.Mmap(m.FD(), 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map the memory of map %s: %w", stateName, err), m.Close())
	}
	return &live{
		m: m, page: page,
		deadline: (*atomic.Uint64)(unsafe.Pointer(&page[unsafe.Offsetof(s.Deadline)])),
		subnets:  subnets, network: network,
	}, nil
}

func (l *live) set(d time.Duration) { l.deadline.Store(uint64(max(d, 0))) }

// get clips what no Duration holds; only someone else can have written that.
func (l *live) get() time.Duration {
	return time.Duration(min(l.deadline.Load(), math.MaxInt64))
}

// cut sets the deadline to d unless it is earlier already, as the kernel
// compares them: unsigned.
func (l *live) cut(d time.Duration) {
	if uint64(max(d, 0)) < l.deadline.Load() {
		l.set(d)
	}
}

func (l *live) release() error {
	l.deadline = nil
	return errors.Join(unix.Munmap(l.page), l.m.Close())
}
