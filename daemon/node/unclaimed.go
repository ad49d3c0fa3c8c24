package node

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/tenure-cni/tenure/ipam"
)

// unclaimedNetwork and unclaimedContainer stand in the key of a record that is
// about nobody known. No runtime can mean it: names of networks and containers
// begin with a letter or a digit.
const (
	unclaimedNetwork   = "?"
	unclaimedContainer = "?"
)

// Unclaimed is the record of an address that is in use, nobody knows by whom:
// that of a pod of tenure-ipam after the ledger was lost. It keeps the address
// from being given out for as long as an interface bears it.
func Unclaimed(p netip.Prefix) ipam.Allocation {
	return ipam.Allocation{
		Key:       ipam.Key{Network: unclaimedNetwork, ContainerID: unclaimedContainer, IfName: p.Addr().String()},
		Addresses: []netip.Prefix{p}, IPAM: true,
	}
}

func isUnclaimed(a ipam.Allocation) bool {
	return a.Network == unclaimedNetwork && a.ContainerID == unclaimedContainer
}

// WithoutRecord are the addresses that no record holds.
func WithoutRecord(records []ipam.Allocation, borne []netip.Prefix) []netip.Prefix {
	taken := map[netip.Addr]bool{}
	for _, a := range records {
		for _, p := range a.Addresses {
			taken[p.Addr()] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(borne), func(p netip.Prefix) bool { return taken[p.Addr()] })
}

// unborne are the records of tenure-ipam whose address no interface bears any
// more: those of nobody known, and those whose namespace's path leads nowhere.
// While it leads to one, the plugin that asked may have yet to make the interface.
func (n *Node) unborne(ctx context.Context, records []ipam.Allocation) ([]ipam.Allocation, error) {
	var ours []ipam.Allocation
	var hosts []netip.Prefix
	var errs []error
	for _, a := range records {
		if !a.IPAM {
			continue
		}
		if !isUnclaimed(a) {
			gone, err := n.cfg.Interfaces.Gone(ctx, "", a.Netns)
			if errs = append(errs, err); !gone {
				continue
			}
		}
		ours = append(ours, a)
		for _, p := range a.Addresses {
			hosts = append(hosts, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
		}
	}
	if len(ours) == 0 {
		return nil, errors.Join(errs...)
	}
	borne, err := n.cfg.Interfaces.Borne(ctx, hosts)
	if err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	return slices.DeleteFunc(ours, func(a ipam.Allocation) bool {
		return slices.ContainsFunc(borne, func(p netip.Prefix) bool {
			return slices.ContainsFunc(a.Addresses, func(q netip.Prefix) bool { return p.Addr() == q.Addr() })
		})
	}), errors.Join(errs...)
}

// gone says that what a record, whose key is locked, is about is certainly no
// more.
func (n *Node) gone(ctx context.Context, a ipam.Allocation) (bool, error) {
	if a.IPAM {
		free, err := n.unborne(ctx, []ipam.Allocation{a})
		return len(free) == 1, err
	}
	return n.cfg.Interfaces.Gone(ctx, a.Host, a.Netns)
}
