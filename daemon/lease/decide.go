package lease

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
)

// self is who asks, and what is known of its machine.
type self struct {
	Memory
	node string
	boot string
	// dead are leases that count for nothing: etcd has denied to know one, or
	// its end was asked for and not confirmed.
	dead map[clientv3.LeaseID]bool
	// open says that the fence in the kernel is open now.
	open  bool
	local func(netip.Addr) bool
	// public are what this node announces, which may be translated on the way and
	// then is on no interface of it.
	public []netip.Addr
	// flannel says that a flannel device is up on this machine, running that
	// a daemon with this UID runs on it.
	flannel func() bool
	running func(uid string) bool
}

// decision is what a node without a proven subnet does next.
type decision struct {
	resume    *Entry        // go on with this key
	claim     *Entry        // go on with this one if its address is silent
	inherit   *Entry        // take this one over if its address is silent
	conflicts []Entry       // of holders that may be other machines under this node's name or UID
	network   *conf.Network // acquire in this network
	wait      string        // or wait, and say this
	missing   string        // why there is nothing to resume, where there was
}

// decide is pure: what etcd has, what the node remembers, and who it is.
//
// A key is taken up again only with this UID and this boot; or with this UID
// and an address (PublicIP, or PublicIPv6 where it is the only one) that is on
// this machine (local) and that nobody else answers for, which is the machine
// after a reboot. A key of this machine's earlier
// self, whose UID was lost with its state directory, or of the flannel that ran
// here, is inherited by a write. Everything else is left to lapse: a state
// directory that was copied, or a machine that was away while its subnet went
// to somebody else, finds a foreign UID, boot or address there. inForce is the
// config that was judged good, or why it was not.
func decide(s *Snapshot, me self, inForce func() (*conf.Network, error)) decision {
	d := decision{missing: missing(s, me.Memory)}
	settling := s.Settle.ModRevision != 0
	if !settling || me.open {
		if d.resume = ownEntry(s, me, func(e Entry) bool { return e.Tenant().Boot == me.boot }); d.resume != nil {
			return d
		}
	}
	if !settling {
		d.claim = ownEntry(s, me, func(e Entry) bool { return me.here(e) })
		d.inherit = find(s, me.inherits)
	}
	for _, e := range s.Entries {
		if me.conflicts(e) {
			d.conflicts = append(d.conflicts, e)
		}
	}
	switch {
	case s.Config.ModRevision == 0 && s.Store.ModRevision != 0:
		d.wait = "the network config is gone from etcd; run tenurectl init with the config it had"
	case s.Store.ModRevision == 0 && lived(s, me):
		d.wait = "etcd has no store identity"
		if s.Config.ModRevision == 0 {
			d.wait += " and no network config"
		}
		d.wait += ", and had them: it was wiped, or never restored; run tenurectl init --after-loss with the config it had"
	case s.Config.ModRevision == 0:
		d.wait = "the cluster has yet to be born: etcd has no network config; run tenurectl init --network CIDR"
	case s.Store.ModRevision == 0:
		d.wait = "the cluster has yet to be born: etcd has a network config but no store identity; run tenurectl init"
	case settling:
		d.wait, _ = settles(s)
	}
	if d.wait != "" {
		d.inherit = nil
		return d
	}
	n, err := inForce()
	if err != nil {
		d.wait, d.inherit = "the network config in etcd is not usable: "+err.Error(), nil
		return d
	}
	d.network = n
	return d
}

// lived says that the cluster had a life before, of which nodes may run still:
// this node knew it, or others have put back what they know.
func lived(s *Snapshot, me self) bool {
	return me.Had != "" || s.Settle.ModRevision != 0 || slices.ContainsFunc(s.Entries, func(e Entry) bool { return e.Tenure != nil })
}

// here says that the record's address is this machine's.
func (me self) here(e Entry) bool { return e.Address().IsValid() && me.local(e.Address()) }

// inherits says whether a record is this machine's own from before its state
// was lost, or its flannel's. A daemon that lives is never inherited from, nor
// is a tombstone, whose UID is empty.
func (me self) inherits(e Entry) bool {
	if e.Lease == 0 || me.dead[e.Lease] || !me.here(e) {
		return false
	}
	if e.Tenure == nil {
		return !me.flannel()
	}
	who := *e.Tenure
	return who.UID != "" && who.UID != me.UID && who.Node == me.node && !me.running(who.UID)
}

// conflicts says whether another machine may hold the record under the name or
// the UID of this node. One that has this node's translated address is most
// likely of its last boot, and cannot be asked; it is left to lapse.
func (me self) conflicts(e Entry) bool {
	who := e.Tenant()
	if e.Address().IsValid() && slices.Contains(me.public, e.Address()) && !me.here(e) {
		return false
	}
	return e.Lease != 0 && who.UID != "" && !me.dead[e.Lease] && (who.UID == me.UID || who.Node == me.node)
}

// find is the first entry that pleases, in the order of their keys.
func find(s *Snapshot, pleases func(Entry) bool) *Entry {
	for _, e := range s.Entries {
		if pleases(e) {
			return &e
		}
	}
	return nil
}

// ownEntry finds a key with this UID and a lease that also pleases. Of several,
// the one that is remembered.
func ownEntry(s *Snapshot, me self, pleases func(Entry) bool) *Entry {
	var own *Entry
	last, _ := me.Last()
	for _, e := range s.Entries {
		if e.Tenant().UID != me.UID || e.Lease == 0 || me.dead[e.Lease] || !pleases(e) {
			continue
		}
		if own == nil || e.Subnets == last {
			own = &e
		}
	}
	return own
}

// missing says what became of the remembered subnet.
func missing(s *Snapshot, m Memory) string {
	last, ok := m.Last()
	if !ok {
		return "there is no subnet in memory"
	}
	e, there := s.Entry(last)
	if !there {
		return fmt.Sprintf("the key of %s is gone from etcd", last)
	}
	return fmt.Sprintf("%s is held by %s, under lease %s", last, e.holder(), leaseHex(e.Lease))
}

// holder names whose record it is.
func (e Entry) holder() string {
	who := e.Tenant()
	switch {
	case e.Tenure == nil && e.Address().IsValid():
		return fmt.Sprintf("flannel at %s", e.Address())
	case who.UID == "" && who.Node != "":
		return fmt.Sprintf("nobody (it was taken from node %q by force and waits for its lease to end)", who.Node)
	}
	return fmt.Sprintf("node %q at %s", who.Node, e.Address())
}

// exhausted says in words why nothing can be acquired. next says which lease
// ends next, or is empty.
func exhausted(n conf.Network, s *Snapshot, node, next string) string {
	holders := map[string]int{}
	for _, e := range s.Entries {
		name := e.Tenant().Node
		switch {
		case name == "":
			name = e.Address().String()
		case e.Tenant().UID == "":
			name = "nobody, released from " + name + " by force"
		}
		holders[name]++
	}
	reserved, kept := map[string]int{}, 0
	for name, r := range s.Reservations {
		sub, ok := gridSubnets(n, name)
		if _, held := s.Entry(sub); ok && !held && r.Value.Node != node {
			reserved[r.Value.Node]++
			kept++
		}
	}
	text := fmt.Sprintf("no free subnet: of %d in %s, %d are held (%s) and %d more are reserved for others (%s)",
		n.SubnetCount(), networkName(n), len(s.Entries), names(holders), kept, names(reserved))
	if next != "" {
		text += "; " + next
	}
	return text
}

// names lists a few of many.
func names(m map[string]int) string {
	const few = 5
	all := slices.Sorted(maps.Keys(m))
	if len(all) == 0 {
		return "none"
	}
	if len(all) > few {
		return strings.Join(all[:few], ", ") + fmt.Sprintf(" and %d more", len(all)-few)
	}
	return strings.Join(all, ", ")
}
