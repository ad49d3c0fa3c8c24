package fence

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var (
	// ErrUnsupported says that this kernel, or this process's privileges, do
	// not let the program be loaded. Nothing may be brought up without it.
	ErrUnsupported = errors.New("the fence cannot be loaded into this kernel")

	// ErrSuperseded says that the fence was closed, cut or given another
	// subnet after the cycle that wants to arm it had begun: what that cycle
	// has proven no longer counts.
	ErrSuperseded = errors.New("the fence was closed or changed in the meantime")

	// ErrNoSubnet says that there is no live subnet to open for.
	ErrNoSubnet = errors.New("the fence has no live subnet")

	// ErrClock says that this process's CLOCK_BOOTTIME is not the kernel's own,
	// which the program compares with: every deadline would be off by as much.
	ErrClock = errors.New("this process reads another CLOCK_BOOTTIME than the kernel")
)

// Generation counts what ends the claim of a cycle in flight. It is never 0.
type Generation uint64

// Options are what Open needs.
type Options struct {
	// Links names the devices on which an earlier process may have left the
	// filters. Names that do not exist are passed over. Nil is every device of
	// the namespace: an uplink need not be known yet, or may be another now.
	Links []string
	// Instance is the daemon's name. It keeps the filters of two daemons apart
	// that share an uplink.
	Instance string
	// NetNS is a descriptor of the network namespace of the devices, 0 for
	// the one the caller is in. It may be closed after Open.
	NetNS int
	// Log takes what is worth knowing and is no error. Nil is silence.
	Log *slog.Logger
}

// Fence is this process's hold on the kernel's half. All its methods may be
// called at the same time; writes to the maps go one after the other.
type Fence struct {
	log      *slog.Logger
	handle   uint32 // of our filters
	links    *netlink.Handle
	maps     *sharedMaps
	programs [forms][directions]loaded

	attaching sync.Mutex // held over netlink calls, so that Close never waits for them
	uplinks   map[int]bool

	mu         sync.Mutex // the one writer of the maps
	live       *live
	generation Generation
	tokens     map[[6]byte]netip.Prefix // what the kernel's map holds
}

// Open finds the maps of an earlier process through the filters on o.Links and
// goes on with them as they are: the deadline, the addresses and the tokens
// stand, and no frame is lost. Where there are none, or only ones of another
// layout, it makes new ones, closed. Nothing is attached yet. An error wraps
// ErrClock in a time namespace with an offset, and ErrUnsupported if maps or
// programs cannot be made here.
func Open(o Options) (*Fence, error) {
	f := &Fence{log: o.Log, handle: filterHandle(o.Instance), maps: &sharedMaps{}, uplinks: map[int]bool{}, generation: 1}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	if err := f.open(o); err != nil {
		return nil, errors.Join(err, f.Release())
	}
	return f, nil
}

func (f *Fence) open(o Options) error {
	if err := straightClock(TimeNamespaceOffset()); err != nil {
		return err
	}
	// Kernels before 5.11 count maps against RLIMIT_MEMLOCK. The library looks
	// once, when the process starts, whether this one does, and a kernel that
	// refuses then and later does not is taken for such a one. So a limit that
	// cannot be lifted is only half of an error.
	limit := rlimit.RemoveMemlock()
	if err := mayCreate(); err != nil {
		return fmt.Errorf("%w: %w%s", ErrUnsupported, errors.Join(err, limit), hint(err))
	}
	var err error
	if f.links, err = openLinks(o.NetNS); err != nil {
		return err
	}
	if err := f.find(o.Links); err != nil {
		return err
	}
	if err := f.complete(); err != nil {
		return fmt.Errorf("%w: %w%s", ErrUnsupported, err, hint(err))
	}
	return f.readTokens()
}

func openLinks(fd int) (*netlink.Handle, error) {
	ns := netns.None()
	if fd != 0 {
		ns = netns.NsHandle(fd)
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

// complete makes whatever of maps, state object and programs is not there.
func (f *Fence) complete() error {
	if err := f.maps.complete(); err != nil {
		return err
	}
	l, err := f.maps.current()
	if errors.Is(err, errDamaged) {
		f.log.Error("fence: what an earlier process left is damaged, so it starts closed", "error", err)
		l, err = nil, nil
	}
	if err != nil {
		return err
	}
	if f.live = l; l == nil {
		if f.live, err = newLive(Subnets{}, Network{}, 0); err != nil {
			return err
		}
		if err := f.maps.publish(f.live); err != nil {
			return err
		}
	}
	for k := range forms {
		for d := range directions {
			if f.programs[k][d], err = load(k, d, f.maps); err != nil {
				return err
			}
		}
	}
	return nil
}

// hint adds what usually helps to an error of loading.
func hint(err error) string {
	switch {
	case errors.Is(err, os.ErrPermission):
		return " (it takes root, or CAP_BPF and CAP_NET_ADMIN, and a kernel that is not locked down)"
	case errors.Is(features.HaveProgramHelper(ebpf.SchedCLS, asm.FnKtimeGetBootNs), ebpf.ErrNotSupported):
		return " (bpf_ktime_get_boot_ns is missing: it takes Linux 5.8 or later)"
	}
	return ""
}

// Release gives back this process's descriptors. What is in the kernel stays
// and goes on by itself. No other method may be called afterwards.
func (f *Fence) Release() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	if f.live != nil {
		errs = append(errs, f.live.release())
	}
	for k := range forms {
		for d := range directions {
			if p := f.programs[k][d].prog; p != nil {
				errs = append(errs, p.Close())
			}
		}
	}
	errs = append(errs, f.maps.close())
	if f.links != nil {
		f.links.Close()
	}
	return errors.Join(errs...)
}

// Generation is what a cycle reads before it asks etcd anything, to hand it to
// Arm with what it has proven.
func (f *Fence) Generation() Generation {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.generation
}

// Close shuts the overlay at once and discards the cycle in flight, if any. It
// is one store to mapped memory: it cannot fail. It returns the generation
// that a new cycle arms with.
func (f *Fence) Close() Generation {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut(0)
	return f.generation
}

// CutTo brings the deadline forward to d, CLOCK_BOOTTIME since boot: it becomes
// the lesser of d and what it is, so an earlier one stays, and a closed fence
// stays closed. What is live does not change, and no frame is lost before d.
// The cycle in flight is discarded, because what it has proven may lie beyond
// d; only one that reads Generation after this can lengthen again. It is what
// comes before a key is put under another lease: until the new lease is proven,
// the deadline is the lesser of both. A negative d is a miscalculation: it
// closes the fence and is reported.
func (f *Fence) CutTo(d time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut(d)
	if d < 0 {
		return fmt.Errorf("cut the fence to %s: a deadline counts from boot and is never negative; it is closed", d)
	}
	return nil
}

// cut never lengthens. It supersedes whoever holds an older generation.
func (f *Fence) cut(d time.Duration) {
	f.generation++
	f.live.cut(d)
}

// Arm opens the overlay until the deadline d, CLOCK_BOOTTIME since boot, for
// the live subnet as it stands. It is absolute: one already past leaves the
// overlay shut, however late this is called. gen is what Generation gave
// before the cycle began; ErrSuperseded if it is not current any more,
// ErrNoSubnet if there is no live subnet.
func (f *Fence) Arm(gen Generation, d time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case gen != f.generation:
		return fmt.Errorf("arm the fence: %w", ErrSuperseded)
	case d < 0:
		return fmt.Errorf("arm the fence until %s: a deadline counts from boot and is never negative", d)
	case f.live.subnets.IsZero():
		return fmt.Errorf("arm the fence: %w", ErrNoSubnet)
	}
	f.live.set(d)
	return nil
}

// Set puts the live subnet and the Network in force. Another subnet shuts the
// overlay first, discards the cycle in flight and leaves it shut until Arm.
// Another Network for the same subnet lets the deadline stand: it was proven
// for that subnet, and both change hands in one step. The same pair again
// writes nothing. When Set returns, no frame is being judged by the old pair
// any more. After an error a new subnet is not in force, and a change of
// subnet has shut the overlay.
func (f *Fence) Set(subnets Subnets, network Network) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if subnets == f.live.subnets && network == f.live.network {
		return nil
	}
	if subnets != f.live.subnets {
		f.cut(0)
	}
	if err := check(subnets, network); err != nil {
		return fmt.Errorf("set the fence to subnet %s in %s: %w", subnets, network, err)
	}
	if err := f.replace(subnets, network); err != nil {
		return fmt.Errorf("set the fence to subnet %s in %s: %w", subnets, network, err)
	}
	return nil
}

// replace swaps the state object for a new one with the same deadline. The
// old one is closed once nobody reads it, so that a stray hold on it is void.
func (f *Fence) replace(subnets Subnets, network Network) error {
	next, err := newLive(subnets, network, f.live.get())
	if err != nil {
		return err
	}
	if err := f.maps.publish(next); err != nil {
		return errors.Join(err, next.release())
	}
	old := f.live
	f.live = next
	old.set(0)
	if err := old.release(); err != nil {
		f.log.Warn("fence: the replaced state object was not given back", "error", err)
	}
	return nil
}

// Deadline is the deadline in the kernel, CLOCK_BOOTTIME since boot; 0 is
// closed. After a restart it is what the earlier process has proven.
func (f *Fence) Deadline() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.live.get()
}

// Live reads from the kernel which subnet and Network are in force.
func (f *Fence) Live() (Subnets, Network, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var s state
	if err := f.live.m.Lookup(uint32(0), &s); err != nil {
		return Subnets{}, Network{}, fmt.Errorf("read map %s: %w", stateName, err)
	}
	subnets, network, err := decode(s)
	if err != nil {
		return Subnets{}, Network{}, fmt.Errorf("read map %s: %w", stateName, err)
	}
	return subnets, network, nil
}
