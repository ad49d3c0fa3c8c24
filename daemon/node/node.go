package node

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/hook"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/daemon/pathmtu"
	"github.com/tenure-cni/tenure/ipam"
)

// Tenancy is the subnet this node holds; *lease.Engine is one.
type Tenancy interface {
	// Changed returns the present view and a channel closed at the next change.
	Changed() (lease.View, <-chan struct{})
}

// Interfaces makes and removes pod interfaces; *attach.Attacher is one.
type Interfaces interface {
	Add(ctx context.Context, netns string, w attach.Want) (attach.Endpoint, error)
	Check(ctx context.Context, netns string, w attach.Want) ([]attach.Op, error)
	Del(ctx context.Context, hostName string) error
	// List returns the host ends of this instance, Gone whether one and the
	// pod's namespace are certainly no more.
	List(ctx context.Context) ([]attach.Found, error)
	Gone(ctx context.Context, hostName, netns string) (bool, error)
	// Borne returns the addresses inside the subnets that some pod's interface
	// bears, whoever made it.
	Borne(ctx context.Context, subnets []netip.Prefix) ([]netip.Prefix, error)
}

// Plane keeps the kernel as desired; *dataplane.Loop is one.
type Plane interface {
	Set(dataplane.Desired)
	WaitConverged(ctx context.Context) error

	Report() dataplane.Report
}

// Store tells about etcd's endpoints.
type Store interface {
	Endpoints() []api.Endpoint
	Problems() []api.Problem
}

// Hook acts on stranded pods; *hook.Hook is one.
type Hook interface {
	// Changed says that Strandings may list others than before. It returns at
	// once.
	Changed()
	// GivenUp lists the pods on which it has failed to act.
	GivenUp() []hook.Pod
}

// Config is what a Node works with; all fields but Flows, Neighbours and Step
// are required.
type Config struct {
	// Instance is --name.
	Instance string
	// NodeName is --node-name.
	NodeName string
	// UID is the node's identity at the start. The bridge's MAC stays with it;
	// the tenancy's View says what it is now.
	UID     string
	Version string
	// Prefix is --etcd-prefix: VTEP MACs depend on it.
	Prefix string
	// Clock reads CLOCK_BOOTTIME.
	Clock func() time.Duration
	// Underlay returns the interface and addresses that outer packets use; ok is
	// false while there is none for any of the pods' families.
	Underlay func() (u Underlay, ok bool)
	// UnderlayErr says what of it is missing; nil where nothing is.
	UnderlayErr func() error
	// Masq, MasqRandomFully, ForwardAccept, ClampMSS and TxChecksum are the flags
	// of these names.
	Masq, MasqRandomFully, ForwardAccept, ClampMSS, TxChecksum bool

	Tenancy Tenancy
	// GiveUp gives the subnet of the tenancy up.
	GiveUp     func(context.Context) error
	Ledger     *ipam.Ledger
	Interfaces Interfaces
	Plane      Plane
	Store      Store
	Hook       Hook
	// Flows may be nil: then no connections are forgotten. So may Neighbours:
	// then nobody is told.
	Flows      Flows
	Neighbours Neighbours
	// Holes are the ways to peers that lose large packets; nil for none.
	Holes func() []pathmtu.Hole
	// Forget is told which former networks have left nothing in the kernel; nil
	// is nobody.
	Forget func([]netip.Prefix)
	// Surroundings are problems of what others read and Tenure writes; nil for
	// none.
	Surroundings func() []api.Problem
	Log          *slog.Logger
	// Step is called between any two steps of a verb with the name of the
	// place; nil outside tests.
	Step func(where string)
}

// at tells a test where a verb is.
func (c Config) at(where string) {
	if c.Step != nil {
		c.Step(where)
	}
}

// uid is the identity as it is now: a clone takes a new one while it runs.
func (c Config) uid(v lease.View) string { return cmp.Or(v.UID, c.UID) }

// Node answers the CNI verbs. It is safe for concurrent use.
type Node struct {
	cfg     Config
	keys    keyLocks
	added   addedSince
	since   firstSeen
	changed chan struct{} // capacity 1: ledger or underlay changed, Desired may too

	mu     sync.Mutex
	ready  lease.Subnets // the subnet for which the bridge has been waited for
	lostAt time.Duration // when it was first seen that a subnet is lost and none held; 0: it is not so

	steering sync.Mutex
	steered  dataplane.Desired // what the data plane was told last
	linger   linger            // what of that only stays for a while
	cause    cause             // what that follows from
}

// New returns a Node that has done nothing yet. Run must run for its ADDs to
// find a bridge.
func New(cfg Config) *Node {
	return &Node{cfg: cfg, keys: keyLocks{m: map[ipam.Key]*keyLock{}}, changed: make(chan struct{}, 1)}
}

// Run keeps the data plane's Desired up to date, and says whom a lost subnet
// strands, until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	told := map[hook.Pod]bool{}
	for {
		v, changed := n.cfg.Tenancy.Changed()
		n.steer()
		n.noteLoss(v)
		told = n.announce(v, told)
		n.cfg.Hook.Changed()
		retry := time.NewTimer(n.poll())
		select {
		case <-ctx.Done():
			retry.Stop()
			return nil
		case <-changed:
		case <-n.changed:
		case <-retry.C:
			n.noteProblems()
		}
		retry.Stop()
	}
}

// steer tells the data plane what is wanted now, if that is news.
func (n *Node) steer() {
	n.steering.Lock()
	defer n.steering.Unlock()
	u, ok := n.cfg.Underlay()
	if !ok {
		return
	}
	v, _ := n.cfg.Tenancy.Changed()
	pods := n.cfg.Ledger.List()
	cause := causeOf(v, u, pods, n.busy(pods), n.holes())
	if !n.linger.waits && reflect.DeepEqual(cause, n.cause) {
		n.cause = cause // a list may have made the same anew: the next look finds it by its address
		n.forget()
		return
	}
	d, wanted := Desired(v, u, pods, n.cfg)
	d = n.linger.keep(d, n.steered, v, u, n.cfg.Prefix, n.cfg.Clock())
	d.Bridge.Ports = atRest(d.Bridge.Ports, cause.busy)
	d.Clamp = clampTo(d.Clamp, cause.holes)
	switch {
	case !wanted:
		return
	case !reflect.DeepEqual(d, n.steered):
		n.cfg.Plane.Set(d)
		n.steered = d
	default:
		n.forget()
	}
	n.cause = cause
}

// cause is all that the data plane's Desired follows from. With thousands of
// peers to make it anew is work, and most often none of this has changed.
type cause struct {
	view     lease.View
	underlay Underlay
	pods     []ipam.Allocation
	busy     map[string]bool
	holes    []pathmtu.Hole
}

// causeOf leaves out of the view what passes by itself, and what is only told.
func causeOf(v lease.View, u Underlay, pods []ipam.Allocation, busy map[string]bool, holes []pathmtu.Hole) cause {
	v.State, v.Reason, v.Problems, v.Doubt = "", "", nil, ""
	v.Deadline, v.LastProof = 0, 0
	return cause{v, u, pods, busy, holes}
}

// forget tells whoever wants to know which former networks have left nothing in
// the kernel.
func (n *Node) forget() {
	d := n.steered
	if n.cfg.Forget != nil && len(d.Former) > 0 && cleared(d, n.cfg.Plane.Report()) {
		n.cfg.Forget(d.Former)
	}
}

// cleared says that there were networks before, and that nothing of them is in
// the kernel any more: bridge and all overlays were looked at, and no pod is left.
func cleared(d dataplane.Desired, r dataplane.Report) bool {
	return len(d.Former) > 0 && len(d.Outside) == 0 && d.Held() && d.AsFound == dataplane.Families{} && r.Converged && r.Err == nil
}

// underlayPoll is how soon a changed underlay is noticed.
const underlayPoll = 5 * time.Second

// poll is how soon to look again: what changes with time alone is not far off.
func (n *Node) poll() time.Duration {
	n.steering.Lock()
	defer n.steering.Unlock()
	if n.linger.waits {
		return prepareFor
	}
	return underlayPoll
}

// busy are the ports of pods that a call is at work on.
func (n *Node) busy(pods []ipam.Allocation) map[string]bool {
	busy := map[string]bool{}
	for _, a := range pods {
		if n.keys.busy(a.Key) {
			busy[a.Host] = true
		}
	}
	return busy
}

// atRest leaves out the ports that are busy: whoever makes one plugs it in, and
// what it has made so far needs no repair.
func atRest(ports []string, busy map[string]bool) []string {
	return slices.DeleteFunc(ports, func(port string) bool { return busy[port] })
}

// Touch tells Run that the underlay, or a way to a peer, changed.
func (n *Node) Touch() { n.touched() }

// touched tells Run that the ledger changed.
func (n *Node) touched() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// addedSince remembers for which keys an ADD has ended while a GC is at work:
// the GC's list of valid attachments is older, and says nothing about them.
type addedSince struct {
	mu   sync.Mutex
	gcs  int
	keys map[ipam.Key]bool
}

// begin is called ahead of a GC's first look at the records, the function it
// returns after its last.
func (s *addedSince) begin() (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gcs++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.gcs--; s.gcs == 0 {
			s.keys = nil
		}
	}
}

// note is called by an ADD before it unlocks its key.
func (s *addedSince) note(k ipam.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gcs == 0 {
		return
	}
	if s.keys == nil {
		s.keys = map[ipam.Key]bool{}
	}
	s.keys[k] = true
}

// has is asked with the key locked: no ADD of it is at work then.
func (s *addedSince) has(k ipam.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[k]
}

// keyLocks serialises the calls for one attachment.
type keyLocks struct {
	mu sync.Mutex
	m  map[ipam.Key]*keyLock
}

type keyLock struct {
	free  chan struct{} // holds one token while nobody has the lock
	users int
}

// busy says whether a call for the key is at work, or waits for another.
func (k *keyLocks) busy(key ipam.Key) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.m[key] != nil
}

// lock waits for the key and returns its release; the error is ctx's.
func (k *keyLocks) lock(ctx context.Context, key ipam.Key) (func(), error) {
	k.mu.Lock()
	l := k.m[key]
	if l == nil {
		l = &keyLock{free: make(chan struct{}, 1)}
		l.free <- struct{}{}
		k.m[key] = l
	}
	l.users++
	k.mu.Unlock()

	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.m, key)
		}
	}
	select {
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	case <-l.free:
		return func() { l.free <- struct{}{}; leave() }, nil
	}
}
