package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/ipam"
)

const (
	// lookEvery is the time between two looks for what is dead.
	lookEvery = 5 * time.Second
	// lookWait bounds the wait for a key: whoever has it locked is alive.
	lookWait = time.Second
)

// Collect frees, until ctx ends, what is provably dead: the address of a pod
// whose interface and namespace are gone, for which no DEL came. It takes the
// kernel's word only, at two looks and a third with the key locked. It also
// removes interfaces of ours that no record knows: their addresses may be
// given to others. And it has the ledger write what a full disk refused.
//
// When in doubt it keeps. The interfaces of tenure-ipam's addresses are another
// plugin's: such an address is free once no interface behind a veth bears it
// and its namespace's path leads nowhere.
func (n *Node) Collect(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	seen, last := sight{}, ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		n.cfg.Ledger.Flush()
		var err error
		if seen, err = n.look(ctx, seen); err != nil && err.Error() != last && ctx.Err() == nil {
			n.cfg.Log.Warn("cannot look for pods that are gone, trying on", "error", err)
		}
		last = fmt.Sprint(err)
	}
}

// sight is what one look found dead.
type sight struct {
	records map[mark]bool
	links   map[attach.Owner]bool
}

// mark tells a record from a later one under the same key, such as that of a
// sandbox which took the place of a dead one.
type mark struct {
	key     ipam.Key
	created time.Time
	netns   string
}

func markOf(a ipam.Allocation) mark { return mark{a.Key, a.Created, a.Netns} }

// look compares records and kernel, and collects what before saw dead too.
// Of what it could not look at, two new looks are needed.
func (n *Node) look(ctx context.Context, before sight) (sight, error) {
	now := sight{map[mark]bool{}, map[attach.Owner]bool{}}
	records := n.cfg.Ledger.List() // first: a record is older than its link
	found, err := n.cfg.Interfaces.List(ctx)
	if err != nil {
		return sight{}, err
	}
	// Whoever works on a record is alive.
	idle := slices.DeleteFunc(slices.Clone(records), func(a ipam.Allocation) bool { return n.keys.busy(a.Key) })
	var errs []error // of which nothing can be told stays, and keeps nothing else
	for _, a := range WithoutInterface(idle, found) {
		gone, err := n.cfg.Interfaces.Gone(ctx, a.Host, a.Netns)
		errs = append(errs, err)
		if m := markOf(a); gone {
			now.records[m] = true
			if before.records[m] {
				n.collectRecord(ctx, m)
			}
		}
	}
	unborne, err := n.unborne(ctx, idle)
	errs = append(errs, err)
	for _, a := range unborne {
		m := markOf(a)
		now.records[m] = true
		if before.records[m] {
			n.collectRecord(ctx, m)
		}
	}
	for _, f := range withoutRecord(records, found) {
		if n.keys.busy(KeyOf(f.Owner)) {
			continue
		}
		now.links[f.Owner] = true
		if before.links[f.Owner] {
			n.collectLink(ctx, f)
		}
	}
	return now, errors.Join(errs...)
}

// KeyOf is the record's key of whoever owns an interface.
func KeyOf(o attach.Owner) ipam.Key {
	return ipam.Key{Network: o.Network, ContainerID: o.ContainerID, IfName: o.IfName}
}

// WithoutInterface are the records of pod interfaces that are not among those
// found in the kernel, neither by their name nor, if somebody has renamed them,
// by their owner. Addresses of tenure-ipam have no interface of ours.
func WithoutInterface(records []ipam.Allocation, found []attach.Found) []ipam.Allocation {
	names, owners := map[string]bool{}, map[ipam.Key]bool{}
	for _, f := range found {
		names[f.HostName], owners[KeyOf(f.Owner)] = true, true
	}
	var all []ipam.Allocation
	for _, a := range records {
		if !a.IPAM && a.Host != "" && !names[a.Host] && !owners[a.Key] {
			all = append(all, a)
		}
	}
	return all
}

// withoutRecord are the host ends that no record knows. One with an address of
// another record is left to people: who of the two is right cannot be told.
// So is one that was renamed.
func withoutRecord(records []ipam.Allocation, found []attach.Found) []attach.Found {
	keys, taken := map[ipam.Key]bool{}, map[netip.Addr]bool{}
	for _, a := range records {
		keys[a.Key] = true
		for _, p := range a.Addresses {
			taken[p.Addr()] = true
		}
	}
	var all []attach.Found
	for _, f := range found {
		shared := slices.ContainsFunc(f.Addrs, func(p netip.Prefix) bool { return taken[p.Addr()] })
		if !keys[KeyOf(f.Owner)] && !shared && f.HostName == attach.HostName(f.Owner) {
			all = append(all, f)
		}
	}
	return all
}

// collectRecord frees what a record holds, if nothing has changed now that
// nobody else can work on its key.
func (n *Node) collectRecord(ctx context.Context, m mark) {
	unlock, ok := n.lockSoon(ctx, m.key)
	if !ok {
		return
	}
	defer unlock()
	a, ok := n.cfg.Ledger.Get(m.key)
	if !ok || markOf(a) != m {
		return
	}
	if gone, err := n.gone(ctx, a); err != nil || !gone {
		return
	}
	n.freed(a)
	n.cfg.Ledger.Release(m.key)
	n.touched()
	text := "freed the address of a pod whose namespace is gone, for which no DEL came"
	if isUnclaimed(a) {
		text = "freed an address that no record told of, and that no pod has any more"
	}
	n.cfg.Log.Info(text, "event", "collected",
		"container", a.ContainerID, "if", a.IfName, "address", addresses(a), "netns", a.Netns)
}

// collectLink removes an interface that no record knows.
func (n *Node) collectLink(ctx context.Context, f attach.Found) {
	unlock, ok := n.lockSoon(ctx, KeyOf(f.Owner))
	if !ok {
		return
	}
	defer unlock()
	if len(withoutRecord(n.cfg.Ledger.List(), []attach.Found{f})) == 0 {
		return
	}
	if err := n.cfg.Interfaces.Del(ctx, f.HostName); err != nil {
		n.cfg.Log.Warn("a pod interface that no record knows stays", "link", f.HostName, "container", f.Owner.ContainerID, "error", err)
		return
	}
	n.cfg.Log.Warn("removed a pod interface that no record knows", "event", "collected",
		"link", f.HostName, "container", f.Owner.ContainerID, "if", f.Owner.IfName, "addresses", f.Addrs)
}

// lockSoon locks a key, if it need not wait for long.
func (n *Node) lockSoon(ctx context.Context, k ipam.Key) (func(), bool) {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	unlock, err := n.keys.lock(ctx, k)
	return unlock, err == nil
}
