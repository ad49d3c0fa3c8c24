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

// decision is what a node without a proven subnet does next.
type decision struct {
	resume  *Entry        // go on with this key
	claim   *Entry        // go on with this one if its address is silent
	network *conf.Network // acquire in this network
	wait    string        // or wait, and say this
	missing string        // why there is nothing to resume, where there was
}

// decide is pure: what etcd has, what the node remembers, and who it is.
//
// A key is taken up again only with this UID and this boot; or with this UID
// and a PublicIP that is on this machine (local) and that nobody else answers
// for, which is the machine after a reboot. A state directory that was copied,
// or a machine that was away while its subnet went to somebody else, finds a
// foreign UID, boot or address there and takes another subnet. So does a node
// whose key hangs on a lease that etcd has denied to know (dead). inForce is the
// config that was judged good, or why it was not.
func decide(s *Snapshot, m Memory, boot string, dead clientv3.LeaseID, local func(netip.Addr) bool, inForce func() (*conf.Network, error)) decision {
	d := decision{missing: missing(s, m)}
	if own := ownEntry(s, m, func(e Entry) bool { return e.Lease != dead && e.Tenant().Boot == boot }); own != nil {
		d.resume = own
		return d
	}
	d.claim = ownEntry(s, m, func(e Entry) bool { return e.Lease != dead && e.PublicIP.IsValid() && local(e.PublicIP) })
	switch {
	case s.Config.ModRevision == 0 && s.Store.ModRevision != 0:
		d.wait = "the network config is gone from etcd; run tenurectl init with the config it had"
		return d
	case s.Config.ModRevision == 0:
		d.wait = "the cluster has yet to be born: etcd has no network config; run tenurectl init --network CIDR"
		return d
	case s.Store.ModRevision == 0:
		d.wait = "the cluster has yet to be born: etcd has a network config but no store identity; run tenurectl init"
		return d
	case s.Settle != 0:
		d.wait = "the store is settling: nobody may acquire a subnet until every holder of an earlier life has shown itself or lapsed"
		return d
	}
	n, err := inForce()
	if err != nil {
		d.wait = "the network config in etcd is not usable: " + err.Error()
		return d
	}
	d.network = n
	return d
}

// ownEntry finds a key with this UID and a lease that also pleases. Of several,
// the one that is remembered.
func ownEntry(s *Snapshot, m Memory, pleases func(Entry) bool) *Entry {
	var own *Entry
	last, _ := m.Last()
	for _, e := range s.Entries {
		if e.Tenant().UID != m.UID || e.Lease == 0 || !pleases(e) {
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
	return fmt.Sprintf("%s is held by node %q at %s, under lease %s", last, e.Tenant().Node, e.PublicIP, leaseHex(e.Lease))
}

// exhausted says in words why nothing can be acquired.
func exhausted(n conf.Network, s *Snapshot, node string) string {
	holders := map[string]int{}
	for _, e := range s.Entries {
		name := e.Tenant().Node
		if name == "" {
			name = e.PublicIP.String()
		}
		holders[name]++
	}
	reserved := map[string]int{}
	for _, r := range s.Reservations {
		if r.Value.Node != node {
			reserved[r.Value.Node]++
		}
	}
	return fmt.Sprintf("no free subnet: of %d in %s, %d are held (%s) and %d reserved for others (%s)",
		n.SubnetCount(), networkName(n), len(s.Entries), names(holders), len(reserved), names(reserved))
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
