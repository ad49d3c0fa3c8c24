package node

import (
	"context"
	"encoding/json"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/ipam"
)

// IPAMAdd answers ADD of the plugin tenure-ipam: an address, no interface.
// deliver is as for Add.
func (n *Node) IPAMAdd(ctx context.Context, r *api.Request, deliver func(*api.Response) error) {
	n.give(ctx, "IPAM ADD", r, deliver, n.ipamAdd)
}

func (n *Node) ipamAdd(ctx context.Context, r *api.Request, deliver func(json.RawMessage) error) error {
	c, err := parse(r)
	if err != nil {
		return err
	}
	if refused := c.refuseBypass(); refused != nil {
		return refused
	}
	v, unlock, err := n.admit(ctx, c.key, func(context.Context, lease.View) {})
	if err != nil {
		return err
	}
	defer unlock()
	n.cfg.at("before the address of tenure-ipam is on record")
	a, existed, err := n.allocate(c, v.Holding.Subnets(), "")
	if err != nil {
		return err
	}
	if !existed {
		n.awaitFreed(ctx, a)
	}
	result, err := ipamResult(c, a)
	if err == nil {
		err = n.cfg.Ledger.Move(c.key, c.netns)
	}
	if err == nil {
		err = n.still(ctx, v, existed)
	}
	if err == nil {
		n.cfg.at("before an ADD of tenure-ipam is answered")
		err = deliver(result)
	}
	if err != nil && !existed {
		n.cfg.Ledger.Release(c.key)
	}
	return err
}

// IPAMDel answers DEL of tenure-ipam: the address is free again.
func (n *Node) IPAMDel(ctx context.Context, r *api.Request) *api.Response {
	return n.answer("IPAM DEL", r, n.del(ctx, r, n.free))
}

// IPAMCheck answers CHECK of tenure-ipam: the address is on record, in the
// runtime's result, and in the subnet that the node holds.
func (n *Node) IPAMCheck(_ context.Context, r *api.Request) *api.Response {
	_, a, _, err := n.recorded(r)
	if err == nil {
		err = n.notStranded(a)
	}
	return n.answer("IPAM CHECK", r, err)
}

// IPAMGC frees what the runtime does not list.
func (n *Node) IPAMGC(ctx context.Context, r *api.Request) *api.Response {
	return n.answer("IPAM GC", r, n.gc(ctx, r, func(a ipam.Allocation) bool { return a.IPAM }, n.free))
}
