package node

import (
	"context"
	"net/netip"
	"time"

	"github.com/tenure-cni/tenure/daemon/attach"
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
// gone. All other pods have that of their first address, which nobody needs to
// be told; but of the second one, whose next bearer has another.
func (n *Node) tellNeighbours(a ipam.Allocation, gone bool) {
	if n.cfg.Neighbours == nil || a.IPAM || a.MAC == "" && (gone || len(a.Addresses) < 2) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), announceTimeout)
	defer cancel()
	if gone {
		a.MAC = ""
	}
	w := n.want(a)
	for _, addr := range plain(a) {
		if a.MAC == "" && !gone && attach.MACFor(addr) == w.HardwareAddr() {
			continue
		}
		if err := n.cfg.Neighbours.Announce(ctx, w.Bridge, addr, w.HardwareAddr()); err != nil {
			n.cfg.Log.Warn("neighbours may know another MAC for a while", "container", a.ContainerID, "error", err)
		}
	}
}
