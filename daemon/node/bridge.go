package node

import (
	"context"
	"errors"
	"time"

	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/ipam"
)

const (
	// bridgeBack is how long an ADD waits for a bridge that is not there: the
	// data plane makes one that somebody has deleted as soon as it hears of it.
	bridgeBack  = 2 * time.Second
	bridgeRetry = 20 * time.Millisecond
)

// attach makes the interface. Where there is no bridge it tries on for a
// while: few runtimes repeat an ADD, whatever its code says.
func (n *Node) attach(ctx context.Context, netns string, a ipam.Allocation) (attach.Endpoint, error) {
	until := time.NewTimer(bridgeBack)
	defer until.Stop()
	tick := time.NewTicker(bridgeRetry)
	defer tick.Stop()
	for {
		ep, err := n.cfg.Interfaces.Add(ctx, netns, n.want(a))
		if !errors.Is(err, attach.ErrNoBridge) || bridgeConflict(n.cfg.Plane.Report()) != "" {
			return ep, err
		}
		select {
		case <-tick.C:
		case <-until.C:
			return ep, err
		case <-ctx.Done():
			return ep, err
		}
	}
}
