package node

import (
	"context"
	"net/netip"

	"github.com/tenure-cni/tenure/ipam"
)

// Flows forgets the connections of addresses that nobody has any more;
// *flows.Forgetter is one.
type Flows interface {
	// Forget returns at once.
	Forget(addrs ...netip.Addr)
	// Await waits, not for long, until the connections of those addresses are
	// forgotten that were to be.
	Await(ctx context.Context, addrs ...netip.Addr)
}

// freed is called when an allocation is about to be released, and its pod is gone:
// first, so that whoever gets the address next waits.
func (n *Node) freed(a ipam.Allocation) {
	n.tellNeighbours(a, true)
	if n.cfg.Flows != nil {
		n.cfg.Flows.Forget(plain(a)...)
	}
}

// awaitFreed is called before an address that was free comes into use.
func (n *Node) awaitFreed(ctx context.Context, a ipam.Allocation) {
	if n.cfg.Flows != nil {
		n.cfg.Flows.Await(ctx, plain(a)...)
	}
}

func plain(a ipam.Allocation) (addrs []netip.Addr) {
	for _, p := range a.Addresses {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}
