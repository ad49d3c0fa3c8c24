package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrFull says that a subnet has no address left, not even a cooling one.
	ErrFull = errors.New("no free address")
	// ErrUnavailable says that a named address, or an adopted allocation,
	// cannot be had; the text says why.
	ErrUnavailable = errors.New("address unavailable")
	// ErrTooSmall says that a subnet is invalid, or has no room for a pod
	// beside its gateway (/31, /32, /127, /128).
	ErrTooSmall = errors.New("subnet too small")
	// ErrNewerVersion says that the file was written by a later Tenure.
	ErrNewerVersion = errors.New("ledger is of a newer version")
)

// Origin says where the content of an opened ledger comes from. All but
// Loaded are empty ledgers: the caller may want to Adopt what the kernel has.
type Origin int

const (
	// Loaded is a file of this boot.
	Loaded Origin = iota
	// Fresh means that there was no file.
	Fresh
	// OldBoot means that the file was of an earlier boot and is dropped.
	OldBoot
	// Damaged means that the file could not be understood and was set aside.
	Damaged
)

// String is for logs.
func (o Origin) String() string {
	switch o {
	case Loaded:
		return "loaded"
	case Fresh:
		return "fresh"
	case OldBoot:
		return "old-boot"
	default:
		return "damaged"
	}
}

// Options are what a ledger depends on beside its path.
type Options struct {
	// Boot names the boot whose pods the ledger is about; not empty.
	Boot string
	// Cooldown is how long a released address is passed over while another
	// one is free; 0 for not at all.
	Cooldown time.Duration
	// Exclude lists ranges that are never given to a pod. Records that lie in
	// them already are kept.
	Exclude []netip.Prefix
	// Now is the wall clock, time.Now if nil.
	Now func() time.Time
	// Log may be nil.
	Log *slog.Logger
	// Took, unless it is nil, is called after each Allocate and Release with
	// when it began, the wait for the changes before it included.
	Took func(Change, time.Time)
	// Step is called between any two steps of a write with the name of the
	// place; nil outside tests.
	Step func(where string)
}

// Change is a kind of change to a ledger.
type Change int

const (
	// Allocated stands for Allocate.
	Allocated Change = iota
	// Released stands for Release.
	Released
)

// Ask is a wish for one address of a subnet.
type Ask struct {
	Subnet netip.Prefix
	// Want is the address to have, or the zero Addr for any.
	Want netip.Addr
}

// Usage counts the addresses of one subnet.
type Usage struct {
	// Total is how many a full subnet gives to pods, at most MaxUint64.
	Total uint64
	// Used counts held addresses, Cooling the ones released of late.
	Used, Cooling uint64
}

// Ledger is the record of who holds which address. It is safe for concurrent
// use; a reader never waits for the disk.
type Ledger struct {
	path     string
	boot     string
	cooldown time.Duration
	excluded []span
	now      func() time.Time
	log      *slog.Logger
	took     func(Change, time.Time)
	step     func(where string)

	current atomic.Pointer[state]

	mu    sync.Mutex // serialises changes; guards what is below
	dirty bool       // memory has a fact that the file lacks
	buf   []byte     // the last file content, its room is used again
	early pause      // of the log about addresses given before they were cool
}

// Open reads the ledger at path. The directory must exist by the first
// Allocate. A file of an earlier boot counts as empty, a damaged one is set
// aside with a warning; ErrNewerVersion and a file that cannot be read are
// errors, and leave it untouched.
func Open(path string, o Options) (*Ledger, Origin, error) {
	if o.Boot == "" {
		return nil, 0, errors.New("open ledger: no boot given")
	}
	l := &Ledger{path: path, boot: o.Boot, cooldown: o.Cooldown, excluded: mergeSpans(o.Exclude), now: o.Now, log: o.Log, took: o.Took, step: o.Step}
	if l.now == nil {
		l.now = time.Now
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if l.took == nil {
		l.took = func(Change, time.Time) {}
	}
	if err := sweep(path); err != nil {
		l.log.Warn("cannot tidy the ledger's directory", "error", err)
	}
	st, origin, err := l.load()
	if err != nil {
		return nil, 0, err
	}
	l.current.Store(st)
	return l, origin, nil
}

func (l *Ledger) load() (*state, Origin, error) {
	content, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return newState(), Fresh, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read ledger: %w", err)
	}
	st, boot, err := decode(content)
	switch {
	case errors.Is(err, ErrNewerVersion):
		return nil, 0, fmt.Errorf("read ledger %s: %w", l.path, err)
	case err != nil:
		aside, asideErr := setAside(l.path, l.now())
		l.log.Warn("the ledger is damaged, starting with an empty one", "path", l.path, "aside", aside,
			"error", errors.Join(err, asideErr))
		return newState(), Damaged, nil
	case boot != l.boot:
		return newState(), OldBoot, nil
	}
	return st, Loaded, nil
}

// Allocate gives k one address for each ask and records it before it returns.
// If k has a record already, that is returned unchanged and existed is true,
// whatever is asked. fill, which may be nil, completes the new record; what
// it does to Key, Addresses and Created is undone.
//
// Errors are ErrFull, ErrUnavailable, ErrTooSmall, or that of the disk; after
// any of them memory and file are as before.
func (l *Ledger) Allocate(k Key, asks []Ask, fill func(*Allocation)) (a Allocation, existed bool, err error) {
	defer l.took(Allocated, time.Now())
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.current.Load()
	if i, found := st.find(k); found {
		return st.records[i].clone(), true, nil
	}
	now := l.clock()
	st = st.clone()
	st.expire(now, l.cooldown)
	addresses, warm, err := l.pickAll(st, asks)
	if err != nil {
		return Allocation{}, false, fmt.Errorf("allocate for %s: %w", k, err)
	}
	a = Allocation{Key: k, Addresses: addresses, Created: now}
	if fill != nil {
		fill(&a)
		a.Key, a.Addresses, a.Created = k, addresses, now
	}
	if err := l.record(st, a); err != nil {
		return Allocation{}, false, fmt.Errorf("allocate for %s: %w", k, err)
	}
	for _, s := range warm {
		l.early.report(now, func(repeated int) {
			l.log.Warn("gave an address before its cool-down was over", "address", s.addr, "key", k,
				"released", s.released, "cooldown", l.cooldown, "repeated", repeated)
		})
	}
	return a.clone(), false, nil
}

// earlyPause is how long a ledger says nothing of a further early use: where
// pods come and go faster than addresses cool, each ADD is one.
const earlyPause = time.Minute

// pause counts what is not written because the same was written a moment before.
type pause struct {
	written time.Time
	quiet   int
}

// report writes, with the number of times that it did not, unless it has done
// so within the last minute. A clock that went back does not silence it.
func (p *pause) report(now time.Time, write func(repeated int)) {
	if since := now.Sub(p.written); since >= 0 && since < earlyPause {
		p.quiet++
		return
	}
	write(p.quiet)
	*p = pause{written: now}
}

// pickAll chooses an address for each ask and says which were still cooling.
func (l *Ledger) pickAll(st *state, asks []Ask) (addresses []netip.Prefix, warm []slot, err error) {
	for _, ask := range asks {
		p, err := newPool(ask.Subnet, l.excluded)
		if err != nil {
			return nil, nil, err
		}
		addr, s, err := st.pick(p, ask.Want.Unmap())
		if err != nil {
			return nil, nil, err
		}
		addresses = append(addresses, netip.PrefixFrom(addr, p.subnet.Bits()))
		if s.cooling() {
			warm = append(warm, s)
		}
	}
	return addresses, warm, nil
}

// Adopt records allocations that were found elsewhere, such as in the kernel
// after the file was lost. The pool's rules do not apply to what is a fact
// already. Adopting a record that is here changes nothing. All get to the file
// in one write: half of them in it would look like a whole ledger. When the disk
// refuses, they stand in memory, that is logged, and they get to the file with
// the next write that succeeds.
//
// The error joins those of allocations that are not put on record;
// ErrUnavailable says that the Key or an address stands in another record.
func (l *Ledger) Adopt(all ...Allocation) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	st, adopted := l.current.Load().clone(), 0
	var refused []error
	for _, a := range all {
		if i, found := st.find(a.Key); found && slices.Equal(st.records[i].Addresses, a.Addresses) {
			continue
		}
		if err := l.adopt(st, a.clone()); err != nil {
			refused = append(refused, fmt.Errorf("adopt %s: %w", a.Key, err))
			continue
		}
		adopted++
	}
	if adopted > 0 {
		l.keep(st, "what was found is not on disk yet", "records", adopted)
	}
	return errors.Join(refused...)
}

func (l *Ledger) adopt(st *state, a Allocation) error {
	if err := a.validate(); err != nil {
		return err
	}
	if a.Created.IsZero() {
		a.Created = l.clock()
	}
	a.Created = a.Created.UTC().Round(0) // as a reload would give it back
	r, err := newRecord(a)
	if err != nil {
		return err
	}
	return st.insert(r)
}

// Move notes that what k holds is in another network namespace now. Where it is
// there already, or k holds nothing, nothing is written. Errors are those of
// the disk; after one memory and file are as before.
func (l *Ledger) Move(k Key, netns string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.current.Load()
	i, found := st.find(k)
	if !found || st.records[i].Netns == netns {
		return nil
	}
	a := st.records[i].clone()
	a.Netns = netns
	r, err := newRecord(a)
	if err == nil {
		st = st.clone()
		st.records[i] = r // a new one: the old state still has the other
		err = l.save(st)
	}
	if err != nil {
		return fmt.Errorf("move %s: %w", k, err)
	}
	return nil
}

// Release frees what k holds; its addresses begin to cool. It does not fail:
// when the disk refuses, the release stands in memory, is logged, and gets to
// the file with the next write that succeeds, Flush among them.
func (l *Ledger) Release(k Key) (a Allocation, existed bool) {
	defer l.took(Released, time.Now())
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.current.Load().clone()
	r, existed := st.remove(k, l.clock())
	if !existed && !l.dirty {
		return Allocation{}, false
	}
	l.keep(st, "a release is not on disk yet", "key", k)
	if !existed {
		return Allocation{}, false
	}
	return r.clone(), true
}

// Flush writes what the disk has refused so far, and nothing if there is no
// such thing: a daemon that is killed before the next change would not know of
// it. Whoever calls it does so every few seconds; only success is logged, for
// the failure was when it came.
func (l *Ledger) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.dirty {
		return
	}
	if err := l.save(l.current.Load()); err == nil {
		l.log.Info("what the disk refused is written now", "path", l.path)
	}
}

// Get returns what k holds.
func (l *Ledger) Get(k Key) (Allocation, bool) {
	st := l.current.Load()
	i, found := st.find(k)
	if !found {
		return Allocation{}, false
	}
	return st.records[i].clone(), true
}

// List returns all allocations, ascending by network, container and interface.
func (l *Ledger) List() []Allocation {
	st := l.current.Load()
	all := make([]Allocation, len(st.records))
	for i, r := range st.records {
		all[i] = r.clone()
	}
	return all
}

// Usage counts the addresses of a subnet; all zero for one without room.
func (l *Ledger) Usage(subnet netip.Prefix) Usage {
	p, err := newPool(subnet, l.excluded)
	if err != nil {
		return Usage{}
	}
	u := Usage{Total: p.size()}
	now := l.clock()
	for _, s := range l.current.Load().within(p.hosts) {
		switch {
		case !s.cooling():
			u.Used++
		case now.Sub(s.released) < l.cooldown:
			u.Cooling++
		}
	}
	return u
}

// record puts an allocation into st and makes st the current state, on disk
// and in memory, or leaves both alone.
func (l *Ledger) record(st *state, a Allocation) error {
	if err := a.validate(); err != nil {
		return err
	}
	r, err := newRecord(a)
	if err != nil {
		return err
	}
	if err := st.insert(r); err != nil {
		return err
	}
	return l.save(st)
}

// save writes st and, once that is done, makes it the current state.
func (l *Ledger) save(st *state) error {
	buf, err := st.encode(l.buf[:0], l.boot)
	if err != nil {
		return err
	}
	l.buf = buf
	l.at("before the ledger is written")
	if err := write(l.path, buf, func() { l.at("before the ledger is replaced") }); err != nil {
		return err
	}
	l.at("after the ledger was replaced")
	l.dirty = false
	l.current.Store(st)
	return nil
}

// keep makes a fact the current state, whatever the disk says.
func (l *Ledger) keep(st *state, text string, about ...any) {
	if err := l.save(st); err != nil {
		l.log.Error(text, append(about, "error", err)...)
		l.dirty = true
		l.current.Store(st)
	}
}

// at tells a test where a write is; see Options.Step.
func (l *Ledger) at(where string) {
	if l.step != nil {
		l.step(where)
	}
}

// clock is the wall clock as the file keeps it: in UTC, without the monotonic
// reading that a restart would lose.
func (l *Ledger) clock() time.Time { return l.now().UTC().Round(0) }
