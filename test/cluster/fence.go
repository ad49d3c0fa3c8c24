package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// liveMap is the name of the map in whose one slot lies the state that the
// fence's programs read. The number in it is the layout that Read knows.
const liveMap = "tenure_live_1"

// tokensMap is the name of the map whose keys are the MACs that may send.
const tokensMap = "tenure_macs_1"

// Fence is a daemon's fence, looked at from outside. It can be read while the
// daemon stands still, and after its end.
type Fence struct{ live, tokens *ebpf.Map }

// OpenFence finds the fence of a running daemon among the maps that the process
// has open; it is let go when the test ends.
func OpenFence(t testing.TB, pid int) *Fence {
	t.Helper()
	f, err := FindFence(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// FindFence is OpenFence for who closes it himself: the error says what is in
// the way, for example that the daemon has not come so far yet.
func FindFence(pid int) (*Fence, error) {
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return nil, err
	}
	var f Fence
	for _, info := range infos {
		m, name, err := openMap(info)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("maps of process %d: %w", pid, err), f.Close())
		}
		switch {
		case name == liveMap && f.live == nil:
			f.live = m
		case name == tokensMap && f.tokens == nil:
			f.tokens = m
		case m != nil:
			if err := m.Close(); err != nil {
				return nil, errors.Join(err, f.Close())
			}
		}
	}
	if f.live == nil || f.tokens == nil {
		return nil, errors.Join(fmt.Errorf("process %d has no maps %s and %s open", pid, liveMap, tokensMap), f.Close())
	}
	return &f, nil
}

// Close lets it go; what is in the kernel stays.
func (f *Fence) Close() error { return errors.Join(f.live.Close(), f.tokens.Close()) }

// Tokens are the MACs whose frames are let in.
func (f *Fence) Tokens() ([]net.HardwareAddr, error) {
	var all []net.HardwareAddr
	var mac [6]byte
	var value []byte
	entries := f.tokens.Iterate()
	for entries.Next(&mac, &value) {
		all = append(all, net.HardwareAddr(slices.Clone(mac[:])))
	}
	return all, entries.Err()
}

// openMap opens the map that a line of the descriptor's description names, and says
// what it is called; nil if it is something else, or gone.
func openMap(info string) (m *ebpf.Map, name string, err error) {
	text, err := os.ReadFile(info)
	if errors.Is(err, os.ErrNotExist) {
		return nil, "", nil
	}
	for line := range strings.Lines(string(text)) {
		value, ok := strings.CutPrefix(line, "map_id:")
		if !ok {
			continue
		}
		id, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
		if err != nil {
			return nil, "", err
		}
		m, err := ebpf.NewMapFromID(ebpf.MapID(id))
		if errors.Is(err, os.ErrNotExist) {
			return nil, "", nil
		}
		if err != nil {
			return nil, "", err
		}
		what, err := m.Info()
		if err != nil {
			return nil, "", errors.Join(err, m.Close())
		}
		return m, what.Name, nil
	}
	return nil, "", err
}

// The state is the deadline, then base and mask of the network, then those of
// the subnet.
const networkAt, subnetAt, stateEnd = 8, 16, 24

// Read returns the IPv4 subnet that the fence lets through, and until when
// (CLOCK_BOOTTIME); 0 is closed.
func (f *Fence) Read() (subnet netip.Prefix, deadline time.Duration, err error) {
	b, err := f.state()
	if err != nil {
		return netip.Prefix{}, 0, err
	}
	deadline = time.Duration(min(binary.NativeEndian.Uint64(b[:networkAt]), math.MaxInt64))
	return prefixIn(b[subnetAt:]), deadline, nil
}

// Prolong sets the deadline behind the daemon's back: to the kernel it is then as
// in a guest whose clocks have all stood still.
func (f *Fence) Prolong(deadline time.Duration) error {
	var state *ebpf.Map
	if err := f.live.Lookup(uint32(0), &state); err != nil {
		return fmt.Errorf("read map %s: %w", liveMap, err)
	}
	defer func() { _ = state.Close() }()
	b, err := state.LookupBytes(uint32(0))
	if err == nil && len(b) < stateEnd {
		err = errors.ErrUnsupported
	}
	if err != nil {
		return fmt.Errorf("read the state in map %s: %w", liveMap, err)
	}
	binary.NativeEndian.PutUint64(b, uint64(deadline))
	if err := state.Put(uint32(0), b); err != nil {
		return fmt.Errorf("write the state in map %s: %w", liveMap, err)
	}
	return nil
}

// Network returns the IPv4 network that the fence goes by.
func (f *Fence) Network() (netip.Prefix, error) {
	b, err := f.state()
	if err != nil {
		return netip.Prefix{}, err
	}
	return prefixIn(b[networkAt:]), nil
}

func prefixIn(b []byte) netip.Prefix {
	const mask, end = 4, 8
	length := bits.OnesCount32(binary.NativeEndian.Uint32(b[mask:end]))
	return netip.PrefixFrom(netip.AddrFrom4([4]byte(b[:mask])), length)
}

func (f *Fence) state() ([]byte, error) {
	var state *ebpf.Map
	if err := f.live.Lookup(uint32(0), &state); err != nil {
		return nil, fmt.Errorf("read map %s: %w", liveMap, err)
	}
	defer func() { _ = state.Close() }()
	b, err := state.LookupBytes(uint32(0))
	if err != nil {
		return nil, fmt.Errorf("read the state in map %s: %w", liveMap, err)
	}
	if len(b) < stateEnd {
		return nil, fmt.Errorf("the state in map %s has %d bytes", liveMap, len(b))
	}
	return b, nil
}

// BootTime reads CLOCK_BOOTTIME, which every kernel has: the call cannot fail.
func BootTime() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
	return time.Duration(now.Nano())
}
