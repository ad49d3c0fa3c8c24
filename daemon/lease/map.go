package lease

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// Run is a stretch of subnets that stand alike, From being the number of the
// first one, as [conf.Network.SubnetAt] counts.
type Run struct {
	From, Count uint64
	State       api.SubnetState
	Mine        bool
}

// Map is how every subnet of the network stands.
type Map struct {
	api.ClusterMap
	Config conf.Network
	// Runs are the stretches that are not free, in order.
	Runs []Run
}

// NewMap counts and orders what the snapshot shows of the network n. uid is the
// own node's, or empty. A record counts by its subnet of the first family. It is
// pure.
func NewMap(n conf.Network, s *Snapshot, times Times, uid string) Map {
	m := Map{Config: n, ClusterMap: api.ClusterMap{Network: networkName(n), SubnetLen: n.SubnetLen, Subnets: []api.MappedSubnet{}}}
	if !n.EnableIPv4 {
		m.SubnetLen = n.IPv6SubnetLen
	}
	m.Counts.Total = n.SubnetCount()
	m.First, m.Last = n.SubnetAt(0).String(), n.SubnetAt(m.Counts.Total-1).String()
	var marks []mark
	held := map[netip.Prefix]bool{}
	put := func(p netip.Prefix, r Run) {
		first, past, ok := n.Span(p)
		if !ok {
			m.Counts.Outside++
			return
		}
		r.From, r.Count = first, past-first
		marks = append(marks, mark{r, true}, mark{r, false})
	}
	for _, e := range s.Entries {
		who, p := e.Tenant(), e.first(n)
		mine := uid != "" && who.UID == uid
		m.Subnets = append(m.Subnets, api.MappedSubnet{Subnet: p.String(), State: e.state(times), Node: who.Node,
			ReservedFor: s.Reservations[e.ownerKey()].Value.Node, Mine: mine})
		put(p, Run{State: e.state(times), Mine: mine})
		held[p] = true
	}
	for name, r := range s.Reservations {
		p, err := parseDashed(name)
		if err != nil || held[p] {
			continue
		}
		m.Subnets = append(m.Subnets, api.MappedSubnet{Subnet: p.String(), State: api.SubnetReserved, ReservedFor: r.Value.Node})
		put(p, Run{State: api.SubnetReserved})
	}
	slices.SortFunc(m.Subnets, func(a, b api.MappedSubnet) int { return comparePrefixes(a.Subnet, b.Subnet) })
	m.Runs = sweep(marks)
	m.count()
	return m
}

// first is the subnet of the family that the network counts by.
func (s Subnets) first(n conf.Network) netip.Prefix {
	if n.EnableIPv4 && s.V4.IsValid() || !s.V6.IsValid() {
		return s.V4
	}
	return s.V6
}

func (m *Map) count() {
	c := &m.Counts
	c.Free = c.Total
	for _, r := range m.Runs {
		c.Free -= r.Count
		if r.Mine {
			c.Mine += r.Count
		}
		switch r.State {
		case api.SubnetReserved:
			c.Reserved += r.Count
		case api.SubnetDying, api.SubnetReleased:
			c.Dying += r.Count
		default:
			c.Held += r.Count
		}
	}
}

// mark is where a run begins or ends.
type mark struct {
	run    Run
	begins bool
}

func (m mark) at() uint64 {
	if m.begins {
		return m.run.From
	}
	return m.run.From + m.run.Count
}

// weight orders what lies on one subnet: what matters most is shown.
func (r Run) weight() int {
	switch {
	case r.Mine:
		return 3
	case r.State == api.SubnetDying || r.State == api.SubnetReleased:
		return 2
	case r.State == api.SubnetReserved:
		return 0
	}
	return 1
}

// sweep makes runs that do not overlap of those that may: records of any length
// lie over each other and over reservations.
func sweep(marks []mark) []Run {
	slices.SortFunc(marks, func(a, b mark) int { return cmp.Compare(a.at(), b.at()) })
	var runs []Run
	var open [4][]Run // by weight
	for i := 0; i < len(marks); {
		at := marks[i].at()
		for ; i < len(marks) && marks[i].at() == at; i++ {
			w := marks[i].run.weight()
			if marks[i].begins {
				open[w] = append(open[w], marks[i].run)
			} else {
				k := slices.Index(open[w], marks[i].run) // no run is empty: it has begun
				open[w] = slices.Delete(open[w], k, k+1)
			}
		}
		if i == len(marks) {
			break
		}
		for w := len(open) - 1; w >= 0; w-- {
			if len(open[w]) > 0 {
				top := open[w][len(open[w])-1]
				runs = append(runs, Run{From: at, Count: marks[i].at() - at, State: top.State, Mine: top.Mine})
				break
			}
		}
	}
	return runs
}
