package fence

import (
	"fmt"
)

// Reason is why the program dropped a frame. The values index the counters in
// the kernel and are part of the maps' layout.
type Reason uint32

// The reasons, in the order in which a frame meets them.
const (
	// Closed: the deadline has passed, or was never set.
	Closed Reason = iota
	// Protocol: not a whole, untagged IPv4 or IPv6 frame.
	Protocol
	// Token: the sender's MAC is not a current one of any peer.
	Token
	// Source: sent with a source inside Network that is not in the live subnet.
	Source
	// Destination: received for a destination inside Network that is not in
	// the live subnet.
	Destination

	reasons // how many there are
)

// String is the reason as metrics and status name it.
func (r Reason) String() string {
	switch r {
	case Closed:
		return "closed"
	case Protocol:
		return "protocol"
	case Token:
		return "token"
	case Source:
		return "source"
	case Destination:
		return "destination"
	}
	return fmt.Sprintf("reason %d", uint32(r))
}

// Drops reads how many frames the program has dropped for each reason since
// the maps were made, over all devices, both directions and all CPUs. A frame
// that the kernel still holds as one large segment counts once.
func (f *Fence) Drops() (map[Reason]uint64, error) {
	drops := make(map[Reason]uint64, reasons)
	for r := Reason(0); r < reasons; r++ {
		var perCPU []uint64
		if err := f.maps.drops.Lookup(uint32(r), &perCPU); err != nil {
			return nil, fmt.Errorf("read the count of drops for %s: %w", r, err)
		}
		for _, n := range perCPU {
			drops[r] += n
		}
	}
	return drops, nil
}
