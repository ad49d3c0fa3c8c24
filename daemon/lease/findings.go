package lease

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// findings are what is odd in a snapshot. They are looked for once, since views
// are asked for with every pod.
type findings struct {
	of       *Snapshot
	own      Tenant
	problems problems
}

func (e *Engine) findingsLocked(v View) problems {
	own := v.Holding.Record().Tenant()
	if e.found.of != v.Snapshot || e.found.own != own {
		e.found = findings{v.Snapshot, own, oddities(v.Snapshot, own)}
	}
	return e.found.problems
}

// oddities is pure: what is odd in a snapshot, to a node that holds a subnet as
// own, or holds none.
func oddities(s *Snapshot, own Tenant) problems {
	all := problems{}
	if text := twins(s, own); text != "" {
		all.show(duplicateNode, api.SeverityError, text, "give each machine a --node-name and a --public-ip of its own; a record of a machine that is gone ends with its lease", time.Time{})
	}
	if text := overlaps(s); text != "" {
		all.show("overlapping-subnets", api.SeverityError, text, "no Tenure node acquires a subnet that overlaps another: find out who wrote the later record, and stop it", time.Time{})
	}
	if text, since := settles(s); text != "" {
		all.show(storeWentBack, api.SeverityError, text, "nothing: it ends by itself", since)
	}
	if keys := endless(s); keys != "" {
		all.show("endless-record", api.SeverityWarning, "records without a lease never end: "+keys, "delete the keys that nobody owns, or keep them as reservations", time.Time{})
	}
	if len(s.Faults) > 0 {
		all.show("bad-record", api.SeverityWarning, "skipped in etcd: "+few(s.Faults, "; "), "look at the named keys with etcdctl get, and find out who wrote them; delete those that are no node's", time.Time{})
	}
	return all
}

// twins names the nodes of a snapshot that share an address, and those that
// have this node's name, while it holds a subnet. It is pure.
func twins(s *Snapshot, own Tenant) string {
	var texts []string
	at := map[netip.Addr]int{}
	shared := map[netip.Addr][]string{}
	says := func(e Entry) string { return fmt.Sprintf("%s (%s)", nodeName(e), e.Subnets) }
	for i, e := range s.Entries {
		who := e.Tenant()
		if e.Tenure != nil && who.UID == "" {
			continue // a tombstone
		}
		if who.Node == own.Node && who.UID != own.UID && own.UID != "" {
			texts = append(texts, fmt.Sprintf("another machine, at %s with %s, has this node's name %q", e.Address(), e.Subnets, own.Node))
		}
		for _, a := range e.Addresses() {
			first, known := at[a]
			switch {
			case !known:
				at[a] = i
			case len(shared[a]) == 0:
				shared[a] = []string{says(s.Entries[first]), says(e)}
			default:
				shared[a] = append(shared[a], says(e))
			}
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(shared), netip.Addr.Compare) {
		texts = append(texts, fmt.Sprintf("%s is announced by %s", a, few(shared[a], " and ")))
	}
	return few(texts, "; ")
}

func nodeName(e Entry) string {
	if n := e.Tenant().Node; n != "" {
		return conf.Short(n, nameMost)
	}
	return "flannel"
}

// overlaps names the records whose subnets share addresses.
func overlaps(s *Snapshot) string {
	var texts []string
	for _, c := range clashes(s) {
		a, b := s.Entries[c[0]], s.Entries[c[1]]
		texts = append(texts, fmt.Sprintf("%s of %s overlaps %s of %s", a.Subnets, a.holder(), b.Subnets, b.holder()))
	}
	return few(texts, "; ")
}

// clashes are the pairs of entries, by their places, whose subnets share
// addresses.
func clashes(s *Snapshot) [][2]int {
	type claim struct {
		subnet netip.Prefix
		entry  int
	}
	var all []claim
	for i, e := range s.Entries {
		for _, p := range e.All() {
			all = append(all, claim{p, i})
		}
	}
	slices.SortFunc(all, func(a, b claim) int {
		return cmp.Or(a.subnet.Addr().Compare(b.subnet.Addr()), cmp.Compare(a.subnet.Bits(), b.subnet.Bits()))
	})
	var pairs [][2]int
	for i, last := 1, 0; i < len(all); i++ {
		// In this order a subnet lies in the last one before it that lies in no
		// other, or in none.
		if !all[last].subnet.Overlaps(all[i].subnet) {
			last = i
			continue
		}
		pairs = append(pairs, [2]int{all[last].entry, all[i].entry})
	}
	return pairs
}

// settles says why nobody may acquire, and since when; "" if settle does not
// stand.
func settles(s *Snapshot) (text string, since time.Time) {
	if s.Settle.ModRevision == 0 {
		return "", time.Time{}
	}
	by := "somebody" // who put it by hand
	if v := s.Settle.Value; v.Node != "" {
		by = fmt.Sprintf("%s at %s: %s", v.Node, v.Since.UTC().Format(time.RFC3339), v.Why)
	}
	return fmt.Sprintf("the store is settling (begun by %s): what is held is served on, and nobody acquires a subnet until every holder of an earlier life has shown itself or lapsed", by), s.Settle.Value.Since
}

// endless names the subnets whose records hang on no lease.
func endless(s *Snapshot) string {
	var keys []string
	for _, e := range s.Entries {
		if e.Lease == 0 {
			keys = append(keys, e.String())
		}
	}
	return few(keys, ", ")
}
