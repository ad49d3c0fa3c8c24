package node

import (
	"context"
	"net/netip"
	"time"

	"github.com/tenure-cni/tenure/ipam"
)

// Neighbours are told which MAC an address has; *attach.Attacher does it.
type Neighbours interface {
	Announce(ctx context.Context, bridge string, addr netip.Addr, mac [6]byte) error
}

// announceTimeout bounds it: the packet is for convenience.
const announceTimeout = time.Second

// tellNeighbours tells the neighbours what a pod's addresses have come to mean: with
// a MAC of its own while it is there, with that of the address when it has
// gone. All other pods have the address's, which nobody needs to be told.
func (n *Node) tellNeighbours(a ipam.Allocation, gone bool) {
	if n.cfg.Neighbours == nil || a.MAC == "" || a.IPAM {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), announceTimeout)
	defer cancel()
	if gone {
		a.MAC = ""
	}
	w := n.want(a)
	for _, addr := range plain(a) {
		if err := n.cfg.Neighbours.Announce(ctx, w.Bridge, addr, w.HardwareAddr()); err != nil {
			n.cfg.Log.Warn("neighbours may know another MAC for a while", "container", a.ContainerID, "error", err)
		}
	}
}
