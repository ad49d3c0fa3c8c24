package node

import (
	"context"
	"encoding/json"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/ipam"
)

// IPAMAdd answers ADD of the plugin tenure-ipam: an address, no interface.
func (n *Node) IPAMAdd(ctx context.Context, r *api.Request) *api.Response {
	ctx, cancel := context.WithTimeout(ctx, addTimeout)
	defer cancel()
	result, err := n.ipamAdd(ctx, r)
	return n.answer("IPAM ADD", r, result, err)
}

func (n *Node) ipamAdd(ctx context.Context, r *api.Request) (json.RawMessage, error) {
	c, err := parse(r)
	if err != nil {
		return nil, err
	}
	if refused := c.refuseBypass(); refused != nil {
		return nil, refused
	}
	v, unlock, err := n.admit(ctx, c.key, func(context.Context, lease.View) {})
	if err != nil {
		return nil, err
	}
	defer unlock()
	n.cfg.at("before the address of tenure-ipam is on record")
	a, existed, err := n.allocate(c, v.Holding.Subnets(), "")
	if err != nil {
		return nil, err
	}
	result, err := ipamResult(c, a)
	if err == nil {
		err = n.cfg.Ledger.Move(c.key, c.netns)
	}
	if err == nil {
		err = n.still(ctx, v, existed)
	}
	if err != nil {
		if !existed {
			n.cfg.Ledger.Release(c.key)
		}
		return nil, err
	}
	n.cfg.at("before an ADD of tenure-ipam is answered")
	return result, nil
}

// IPAMDel answers DEL of tenure-ipam: the address is free again.
func (n *Node) IPAMDel(ctx context.Context, r *api.Request) *api.Response {
	return n.answer("IPAM DEL", r, nil, n.del(ctx, r, n.free))
}

// IPAMCheck answers CHECK of tenure-ipam: the address is on record, in the
// runtime's result, and in the subnet that the node holds.
func (n *Node) IPAMCheck(_ context.Context, r *api.Request) *api.Response {
	_, a, _, err := n.recorded(r)
	if err == nil {
		err = n.notStranded(a)
	}
	return n.answer("IPAM CHECK", r, nil, err)
}

// IPAMGC frees what the runtime does not list.
func (n *Node) IPAMGC(ctx context.Context, r *api.Request) *api.Response {
	return n.answer("IPAM GC", r, nil, n.gc(ctx, r, func(a ipam.Allocation) bool { return a.IPAM }, n.free))
}
