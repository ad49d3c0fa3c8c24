package dataplane

import (
	"context"
	"net/netip"
)

// RouteProtocol marks our routes, as "proto 90" in the output of ip-route.
// The number is in the range that the kernel leaves to routing daemons and
// is listed neither in rt_protos nor by a routing suite.
const RouteProtocol = 90

// UnreachableMetric is the metric of the unreachable routes for the networks: the
// weakest of all, so that any other route for the same prefix is preferred.
const UnreachableMetric = 4278198272

// Families are address families, of which there are two.
type Families struct{ V4, V6 bool }

// of says whether a family is among them; six is IPv6.
func (f Families) of(six bool) bool { return f.V4 && !six || f.V6 && six }

// Kernel is the kernel as the Loop sees it. The implementations are Linux and
// fakekernel.Kernel; both pass one conformance suite.
type Kernel interface {
	// Read returns the current state. The firewall rules of a family are read
	// only when asked for, since that costs a process. An error means that
	// nothing can be said; parts that fail alone are in State.Faults.
	Read(ctx context.Context, rules Families) (State, error)
	// RulesMark tells states of the firewall apart, at next to no cost: while
	// it is the same, the rules are. "" where the kernel does not tell.
	RulesMark(ctx context.Context) string
	// Apply makes one change. It succeeds when the change is already made.
	Apply(ctx context.Context, op Op) error
	// Watch signals that something may have changed, at least once after each
	// change. The channel is closed when ctx is done and all is let go.
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// Guard is the fence as far as the data plane needs it. Its methods may be
// called from one goroutine at a time.
type Guard interface {
	// Attached reports whether our current program is attached to both
	// directions of the device, with nobody else's ahead of it.
	Attached(ctx context.Context, ifindex int) (bool, error)
	// Attach attaches the program, or replaces an older one atomically. A
	// device attached anew passes until the deadline that was proven last, and
	// no longer. If it fails, the device must be down.
	Attach(ctx context.Context, ifindex int) error
	// Uplinks returns the devices that the program is or was on in its form for
	// the host's own interface, which judges only packets within the pod
	// networks. One that is gone may be among them.
	Uplinks() ([]int, error)
	// AttachedUplink, AttachUplink and DetachUplink are about that form. Direct
	// routes must not exist before it is attached, nor after it is detached.
	AttachedUplink(ctx context.Context, ifindex int) (bool, error)
	AttachUplink(ctx context.Context, ifindex int) error
	DetachUplink(ctx context.Context, ifindex int) error
	// Tokens returns the VTEP MACs of peers that are let in, each with the
	// subnet it stands for.
	Tokens() (map[[6]byte]netip.Prefix, error)
	// Allow lets mac in for subnet.
	Allow(mac [6]byte, subnet netip.Prefix) error
	// Deny shuts mac out; it succeeds when mac is not let in.
	Deny(mac [6]byte) error
}
