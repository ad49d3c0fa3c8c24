package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
)

// leaveTimeout bounds a Leave; etcd may be away.
const leaveTimeout = 20 * time.Second

// Leave gives the node's subnet up. Pods that still have addresses are a reason
// to refuse, unless the caller wants them stranded.
func (n *Node) Leave(ctx context.Context, l *api.Leave) *api.Left {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	v, _ := n.cfg.Tenancy.Changed()
	left := &api.Left{}
	if v.Held {
		left.Subnet = v.Holding.Subnets().String()
	}
	if pods := len(n.cfg.Ledger.List()); pods > 0 && !l.WithPods {
		return &api.Left{Error: fmt.Sprintf("%d pod interfaces still have addresses of this node: drain it first; --with-pods leaves all the same and strands them", pods)}
	}
	if err := n.cfg.GiveUp(ctx); err != nil && !errors.Is(err, lease.ErrNothingHeld) {
		left.Error = err.Error()
	}
	n.cfg.Log.Info("left", "subnet", left.Subnet, "error", left.Error)
	return left
}
