package lease

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// Errors of Reserve, Unreserve and Configure.
var (
	ErrNotBorn        = errors.New("there is no network config in etcd; birth the cluster with tenurectl init, or give another --etcd-prefix")
	ErrNoSuchSubnet   = errors.New("not a subnet that a node can be given")
	ErrHeldByAnother  = errors.New("held by another node")
	ErrReserved       = errors.New("reserved for another node")
	ErrNotReserved    = errors.New("not reserved")
	ErrChangedBetween = errors.New("etcd was changed between look and write")
)

// tries bounds how often a write is built anew because what it compares has
// been changed meanwhile; a node writes its own key rarely.
const tries = 10

// Reserve keeps a subnet for the node of a name: nobody else may acquire it from
// now on, and that node acquires it before any other. Whoever holds it keeps it:
// unless later says that this is meant, one that another node holds is refused.
func Reserve(ctx context.Context, c *clientv3.Client, prefix, what, node string, later bool) (api.Reserved, error) {
	var r api.Reserved
	err := written(ctx, c, prefix, func(k Keys, s *Snapshot) (f fenced, err error) {
		var sub Subnets
		if sub, r, err = reserving(s, what, node, later); err != nil || !r.Changed {
			return fenced{}, err
		}
		return keepFor(k, sub, s, Reservation{Node: node}), nil
	})
	return r, err
}

// Unreserve takes a subnet's reservation away.
func Unreserve(ctx context.Context, c *clientv3.Client, prefix, what string) (api.Reserved, error) {
	var r api.Reserved
	err := written(ctx, c, prefix, func(k Keys, s *Snapshot) (fenced, error) {
		p, err := parseSubnet(what)
		if err != nil {
			return fenced{}, err
		}
		name := dashed(p)
		old, known := s.Reservations[name]
		if !known {
			return fenced{}, fmt.Errorf("%s: %w", p, ErrNotReserved)
		}
		r = api.Reserved{Subnet: p.String(), Node: old.Value.Node, Changed: true, Notes: []string{}}
		return dropReservation(k, name, old.ModRevision), nil
	})
	return r, err
}

// written lists, has a write built from that, and sends it, until nothing that
// it compares was changed between. An empty write is not sent.
func written(ctx context.Context, c *clientv3.Client, prefix string, build func(Keys, *Snapshot) (fenced, error)) error {
	for range tries {
		s, err := List(ctx, c, prefix)
		if err != nil {
			return err
		}
		f, err := build(NewKeys(prefix), s)
		if err != nil || len(f.then) == 0 {
			return err
		}
		resp, err := commit(ctx, c, f, maxCall)
		if err != nil {
			return fmt.Errorf("write to %s: %w", NewKeys(prefix).All(), err)
		}
		if resp.Succeeded {
			return nil
		}
	}
	return fmt.Errorf("%w, %d times: try again", ErrChangedBetween, tries)
}

// parseSubnet reads a subnet as people write it, or as its key has it.
func parseSubnet(what string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(what)
	if err != nil {
		p, err = parseDashed(what)
	}
	if err == nil && p != p.Masked() {
		err = fmt.Errorf("it has host bits set, the subnet is %s", p.Masked())
	}
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q: %w: %w", what, ErrNoSuchSubnet, err)
	}
	return p, nil
}

// reserving decides about a reservation and says when it will count. It is pure.
func reserving(s *Snapshot, what, node string, later bool) (Subnets, api.Reserved, error) {
	n, sub, err := onGrid(s, what)
	if err != nil {
		return Subnets{}, api.Reserved{}, err
	}
	r := api.Reserved{Subnet: sub.first(n).String(), Node: node, Notes: []string{}}
	old, known := s.Reservations[sub.ownerKey()]
	switch {
	case known && old.Value.Node == node:
		return sub, r, nil
	case known:
		return sub, r, fmt.Errorf("%s: %w, %q; tenurectl unreserve %s takes that away", r.Subnet, ErrReserved, old.Value.Node, r.Subnet)
	}
	r.Changed = true
	has := "" // what the node holds now
	for _, e := range s.Entries {
		switch {
		case e.Tenant().Node == node && !e.tombstone():
			has = e.String()
		case !e.Overlaps(sub):
		case e.tombstone():
			r.Notes = append(r.Notes, fmt.Sprintf("%s was taken from %s by force: %s can have it when its lease ends", e.Subnets, e.Tenant().Node, node))
		case !later:
			return sub, r, fmt.Errorf("%s: %w: %s has %s; --later reserves it for the time after that", r.Subnet, ErrHeldByAnother, e.holder(), e.Subnets)
		default:
			r.Notes = append(r.Notes, fmt.Sprintf("%s keeps %s for as long as it renews its lease; if it loses it, only %s can have it", e.holder(), e.Subnets, node))
		}
	}
	switch has {
	case "":
		r.Notes = append(r.Notes, fmt.Sprintf("no node %s holds a subnet now: it takes this one when it starts (its --node-name must be exactly that)", node))
	case sub.String():
		r.Notes = append(r.Notes, fmt.Sprintf("%s holds it: nobody else can have it after that either", node))
	default:
		r.Notes = append(r.Notes, fmt.Sprintf("%s holds %s and keeps it: it takes this one when it acquires anew (there: tenurectl leave, then restart tenured)", node, has))
	}
	return sub, r, nil
}

// onGrid resolves a subnet to the pair that a node would acquire.
func onGrid(s *Snapshot, what string) (conf.Network, Subnets, error) {
	if s.Config.ModRevision == 0 {
		return conf.Network{}, Subnets{}, ErrNotBorn
	}
	n, _, err := conf.ParseNetwork(s.Config.Value)
	if err != nil {
		return n, Subnets{}, fmt.Errorf("the network config in etcd is bad: %w", err)
	}
	p, err := parseSubnet(what)
	if err != nil {
		return n, Subnets{}, err
	}
	sub, ok := gridSubnets(n, dashed(p))
	if !ok {
		return n, Subnets{}, fmt.Errorf("%s: %w: the network is %s, from %s to %s", p, ErrNoSuchSubnet, networkName(n), n.SubnetAt(0), n.SubnetAt(n.SubnetCount()-1))
	}
	return n, sub, nil
}
