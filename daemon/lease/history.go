package lease

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
)

// Of is whose history is wanted: everybody's, a node's by name or UID, or that
// of the subnets that share addresses with a prefix.
type Of struct {
	node   string
	prefix netip.Prefix
}

// ParseOf reads a subnet, as people or as keys write it, an address, or else a
// node's name or UID. The empty text is everybody.
func ParseOf(text string) Of {
	if p, err := netip.ParsePrefix(text); err == nil {
		return Of{prefix: p.Masked()}
	}
	if p, err := parseDashed(text); err == nil {
		return Of{prefix: p}
	}
	if a, err := netip.ParseAddr(text); err == nil {
		return Of{prefix: netip.PrefixFrom(a, a.BitLen())}
	}
	return Of{node: text}
}

func (o Of) subnet(p netip.Prefix) bool { return !o.prefix.IsValid() || o.prefix.Overlaps(p) }

func (o Of) tenant(node, uid string) bool { return o.node == "" || o.node == node || o.node == uid }

// History is who held what and when, as the owners' records and the present
// records say, oldest first. It is pure.
func History(s *Snapshot, of Of) []api.Tenancy {
	current := map[string]Entry{}
	for _, e := range s.Entries {
		current[e.ownerKey()] = e
	}
	all := []api.Tenancy{}
	for name, o := range s.Owners {
		p, err := parseDashed(name)
		if err != nil || !of.subnet(p) {
			continue
		}
		past := append(slices.Clone(o.Value.History), o.Value.Transition)
		for i, t := range past {
			if !of.tenant(t.Node, t.UID) {
				continue
			}
			next := time.Time{}
			if i+1 < len(past) {
				next = past[i+1].Since
			}
			all = append(all, tenancyOf(p, t, next, current[name]))
		}
		delete(current, name)
	}
	for _, e := range current { // without an owner's record: flannel's, or somebody deleted it
		p := e.first4()
		if who := e.Tenant(); of.subnet(p) && of.tenant(who.Node, who.UID) {
			all = append(all, api.Tenancy{Subnet: p.String(), Node: who.Node, UID: who.UID, Epoch: who.Epoch, State: e.state(nil),
				Why: "no owner's record: " + e.holder()})
		}
	}
	slices.SortFunc(all, func(a, b api.Tenancy) int {
		return cmp.Or(a.Since.Compare(b.Since), comparePrefixes(a.Subnet, b.Subnet), cmp.Compare(a.Epoch, b.Epoch))
	})
	return all
}

// first4 is the subnet that the owner's key names.
func (s Subnets) first4() netip.Prefix {
	if s.V4.IsValid() {
		return s.V4
	}
	return s.V6
}

// tenancyOf is one transition of a subnet; next is when the one after it began,
// if there is one, and e the record that stands now, if one does.
func tenancyOf(p netip.Prefix, t Transition, next time.Time, e Entry) api.Tenancy {
	h := api.Tenancy{Subnet: p.String(), Node: t.Node, UID: t.UID, Epoch: t.Epoch, State: api.SubnetEnded, Since: t.Since, Why: t.Why}
	who := e.Tenant()
	switch {
	case e.CreateRevision != 0 && who.Epoch == t.Epoch && who.UID == t.UID:
		h.State = api.SubnetHeld
	case e.CreateRevision != 0 && who.Epoch == t.Epoch && e.tombstone():
		h.State = api.SubnetReleased
	case t.Until.IsZero() && !next.IsZero():
		h.EndedBefore = &next
	}
	if !t.Until.IsZero() {
		h.Until = &t.Until
	}
	return h
}

// Changed are the tenancies of now that were not so in old: what has happened
// between. It is pure.
func Changed(old, now []api.Tenancy) []api.Tenancy {
	type key struct {
		subnet, uid, node string
		epoch             int64
	}
	of := func(t api.Tenancy) key { return key{t.Subnet, t.UID, t.Node, t.Epoch} }
	was := make(map[key]api.Tenancy, len(old))
	for _, t := range old {
		was[of(t)] = t
	}
	var changed []api.Tenancy
	for _, t := range now {
		if before, known := was[of(t)]; !known || before.State != t.State || (before.Until == nil) != (t.Until == nil) {
			changed = append(changed, t)
		}
	}
	return changed
}

// Follow calls f with every snapshot of the prefix, the present one first, until
// ctx ends, or f returns an error, which it returns. Where etcd does not answer
// at first that is an error; later it waits, and the log says so.
func Follow(ctx context.Context, c *clientv3.Client, prefix string, log *slog.Logger, f func(*Snapshot) error) error {
	// A first list of its own: what is refused will not be granted by waiting.
	if _, err := List(ctx, c, prefix); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed error
	NewWatcher(c, NewKeys(prefix), log, func(s *Snapshot) {
		if failed == nil {
			if failed = f(s); failed != nil {
				cancel()
			}
		}
	}, func() {}).Run(ctx)
	return failed
}
