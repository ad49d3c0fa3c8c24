package node

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/lease"
)

// Status is the node as an operator sees it.
func (n *Node) Status() *api.Status {
	v, _ := n.cfg.Tenancy.Changed()
	now := n.cfg.Clock()
	pods := n.cfg.Ledger.List()
	report := n.cfg.Plane.Report()
	s := &api.Status{
		Version: n.cfg.Version, Node: n.cfg.NodeName, UID: n.cfg.uid(v),
		State: n.state(v), Ready: v.InDate(now) && bridgeConflict(report) == "", Reason: v.Reason,
		Stranded: []api.Stranded{}, Peers: []api.Peer{}, Problems: []api.Problem{},
		Etcd: api.Etcd{Endpoints: n.cfg.Store.Endpoints()},
	}
	if v.Network != nil {
		s.Network, s.Network6 = prefixText(v.Network.Network), prefixText(v.Network.IPv6Network)
	}
	if v.Snapshot != nil {
		s.Etcd.Revision = v.Snapshot.Revision
	}
	u, ok := n.cfg.Underlay()
	if ok {
		s.PublicIP, s.PublicIP6, s.Interface, s.MTU = ownText(u.PublicIP, v.Network), ownText(u.PublicIP6, v.Network), u.Interface, u.PodMTU(v.Network)
	}
	n.addHolding(s, v, now)
	s.Stranded = append(s.Stranded, stranded(v, pods)...)
	s.Peers = append(s.Peers, peerStates(v, u, report)...)
	s.Problems = append(s.Problems, n.problems(v, report, len(pods), s.Stranded)...)
	return s
}

// problems are all that stand, each with since when.
func (n *Node) problems(v lease.View, report dataplane.Report, pods int, stranded []api.Stranded) []api.Problem {
	var all []api.Problem
	u, ok := n.cfg.Underlay()
	if err := n.cfg.UnderlayErr(); err != nil {
		all = append(all, problem("underlay-missing", api.SeverityError, err.Error(),
			"bring the interface up, or name another with --iface; this is tried again every few seconds"))
	}
	if ok {
		all = append(all, mtuProblems(u, v.Network)...)
	}
	all = append(all, v.Problems...)
	all = append(all, n.cfg.Store.Problems()...)
	all = append(all, planeProblems(report, pods)...)
	if len(stranded) > 0 {
		all = append(all, strandedProblem(stranded, v.LostWhy))
	}
	if failed := n.cfg.Hook.GivenUp(); len(failed) > 0 {
		all = append(all, hookProblem(failed))
	}
	if holes := n.holes(); ok && v.Network != nil && len(holes) > 0 {
		all = append(all, holeProblems(holes, peerStates(v, u, report), *v.Network, n.cfg.ClampMSS)...)
	}
	if n.cfg.Surroundings != nil {
		all = append(all, n.cfg.Surroundings()...)
	}
	n.since.stamp(all)
	return all
}

// noteProblems remembers since when each problem stands, asked or not. The rest
// of a status, thousands of peers, is made for who asks.
func (n *Node) noteProblems() {
	v, _ := n.cfg.Tenancy.Changed()
	pods := n.cfg.Ledger.List()
	n.problems(v, n.cfg.Plane.Report(), len(pods), stranded(v, pods))
}

// prefixText is "" for no network.
func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

// addressText is "" for no address.
func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// ownText is an address of this node as its record has it: "" also for one of a
// family that the network's pods have not.
func ownText(a netip.Addr, n *conf.Network) string {
	if n != nil && (a.Is4() && !n.EnableIPv4 || a.Is6() && !n.EnableIPv6) {
		return ""
	}
	return addressText(a)
}

// state is the tenancy's, but a node without pods has nothing to lose.
func (n *Node) state(v lease.View) api.State {
	if v.State == api.StateLost && len(n.cfg.Ledger.List()) == 0 {
		return api.StateWaiting
	}
	return v.State
}

func (n *Node) addHolding(s *api.Status, v lease.View, now time.Duration) {
	if !v.Held {
		return
	}
	h := v.Holding
	s.Lease = &api.Lease{
		ID: strconv.FormatInt(int64(h.LeaseID()), 16), TTLSeconds: int64(h.TTL() / time.Second),
		RemainingSeconds: max(0, v.Deadline-now).Seconds(), LastProofSecondsAgo: -1, Epoch: h.Epoch(),
	}
	if v.LastProof != 0 {
		s.Lease.LastProofSecondsAgo = (now - v.LastProof).Seconds()
	}
	s.Subnet, s.Subnet6 = prefixText(h.Subnets().V4), prefixText(h.Subnets().V6)
	scarce := h.Subnets().V4 // each pod has an address of both: these end first
	if !scarce.IsValid() {
		scarce = h.Subnets().V6
	}
	u := n.cfg.Ledger.Usage(scarce)
	s.Addresses = api.Addresses{Total: u.Total, Used: u.Used, Cooling: u.Cooling}
}

func problem(code, severity, text, fix string) api.Problem {
	return api.Problem{Code: code, Severity: severity, Text: text, Fix: fix}
}

// firstSeen remembers since when each problem stands.
type firstSeen struct {
	mu sync.Mutex
	at map[string]string
}

// stamp fills in Since where it is empty, and forgets what stands no more.
func (f *firstSeen) stamp(all []api.Problem) {
	f.mu.Lock()
	defer f.mu.Unlock()
	standing := make(map[string]string, len(all))
	for i, p := range all {
		if p.Since == "" {
			p.Since = f.at[p.Code]
		}
		if p.Since == "" {
			p.Since = time.Now().UTC().Format(time.RFC3339)
		}
		all[i].Since, standing[p.Code] = p.Since, p.Since
	}
	f.at = standing
}

// peerStates joins what etcd announces with what the kernel has.
func peerStates(v lease.View, u Underlay, r dataplane.Report) []api.Peer {
	var all []api.Peer
	standing := make(map[dataplane.Peer]dataplane.PeerReport, len(r.Peers))
	for _, pr := range r.Peers {
		standing[pr.Peer] = pr
	}
	for _, p := range peers(v, u) {
		one := api.Peer{Node: p.entry.Tenant().Node, Subnet: p.entry.String(),
			PublicIP: addressText(p.entry.Address()), Epoch: p.entry.Tenant().Epoch}
		for i, way := range p.ways {
			part := wayState(way, p.entry, standing, r)
			if len(p.ways) > 1 && part.Reason != "" && unusable(p.entry) == "" {
				part.Reason = way.String() + ": " + part.Reason
			}
			one = worse(one, part, i == 0)
		}
		all = append(all, one)
	}
	return append(all, keptPeers(all, r)...)
}

// wayState is the standing of a peer in one family.
func wayState(way familyWay, e lease.Entry, standing map[dataplane.Peer]dataplane.PeerReport, r dataplane.Report) (part api.Peer) {
	pr, known := standing[way.Peer]
	if !known {
		pr, known = lingering(way.Peer, r)
	}
	switch {
	case tombstone(e) || way.far:
		part.State, part.Reason = api.PeerUnreachable, way.reason
	case way.reason != "":
		part.State, part.Reason = api.PeerConflict, way.reason
	case known:
		part.State, part.Reason, part.Path = string(pr.State), pr.Reason, pathOf(pr)
	default:
		part.State = api.PeerPending
	}
	return part
}

// worse is a peer with what there is to say of one more family: of its states
// the one that matters most, and every reason once.
func worse(p, part api.Peer, first bool) api.Peer {
	order := []string{api.PeerProgrammed, api.PeerPending, api.PeerUnreachable, api.PeerConflict}
	if first || slices.Index(order, part.State) > slices.Index(order, p.State) {
		p.State = part.State
	}
	if first || p.Path == "" {
		p.Path = part.Path
	}
	switch {
	case part.Reason == "" || part.Reason == p.Reason:
	case p.Reason == "":
		p.Reason = part.Reason
	default:
		p.Reason += "; " + part.Reason
	}
	return p
}

// lingering is the standing of a peer of which a way of before has stayed: there
// it has more than it needs now.
func lingering(p dataplane.Peer, r dataplane.Report) (dataplane.PeerReport, bool) {
	i := slices.IndexFunc(r.Peers, func(pr dataplane.PeerReport) bool {
		o := pr.Peer
		return o.Subnet == p.Subnet && o.PublicIP == p.PublicIP &&
			(o.MAC == p.MAC || p.MAC == dataplane.MAC{}) && (o.Direct == p.Direct || o.Direct)
	})
	if i < 0 {
		return dataplane.PeerReport{}, false
	}
	return r.Peers[i], true
}

// pathOf says how packets get to a peer that is programmed.
func pathOf(pr dataplane.PeerReport) string {
	switch {
	case pr.State != dataplane.PeerProgrammed:
		return ""
	case pr.Direct:
		return api.PathDirect
	}
	return api.PathVXLAN
}

// keptPeers are those that only the kernel knows while etcd's list cannot be
// believed. A record that has come since is listed already.
func keptPeers(listed []api.Peer, r dataplane.Report) []api.Peer {
	var all []api.Peer
	for _, k := range r.Kept {
		one := api.Peer{Subnet: k.Peer.Subnet.String(), PublicIP: k.Peer.PublicIP.String(), State: string(k.State), Path: pathOf(k),
			Reason: "it has no record in etcd, which forgot or is settling; it is kept until a record overlaps its subnet, or until etcd has settled without it"}
		if k.Reason != "" {
			one.Reason += "; " + k.Reason
		}
		if !slices.ContainsFunc(listed, func(p api.Peer) bool { return slices.Contains(strings.Split(p.Subnet, " & "), one.Subnet) }) {
			all = append(all, one)
		}
	}
	return all
}

// planeProblems says what the data plane could not do, with so many pods.
func planeProblems(r dataplane.Report, pods int) []api.Problem {
	var all []api.Problem
	if len(r.Faults) > 0 {
		var texts []string
		for _, f := range r.Faults {
			texts = append(texts, f.What+": "+f.Why)
		}
		all = append(all, problem("data-plane", api.SeverityError, strings.Join(texts, "; "),
			"see the log; this is tried again every few seconds"))
	}
	var fought []string
	for _, f := range r.Fights {
		fought = append(fought, f.String())
	}
	if len(fought) > 0 {
		all = append(all, problem("fought-over", api.SeverityWarning, strings.Join(fought, "; "),
			"find what does it, such as a network manager or a firewall, and have it leave Tenure's devices, routes and chains alone"))
	}
	var foreign, fixes []string
	severity := api.SeverityWarning
	for _, c := range r.Conflicts {
		switch {
		case c.Peer.IsValid(): // told with the peer
		case c.What == dataplane.ConflictIPv6:
			all = append(all, problem("data-plane", api.SeverityError, c.Text,
				"boot a kernel with IPv6 (without ipv6.disable=1), or give the cluster a network config without EnableIPv6"))
		case c.What == "parent":
			all = append(all, problem("underlay-missing", api.SeverityError, c.Text+"; no packet reaches another node",
				"bring the interface back, or name another with --iface; the overlay is rebuilt by itself"))
		case c.What == dataplane.ConflictNeighbours, c.What == dataplane.ConflictNeighbours6:
			all = append(all, problem("neighbour-limits", api.SeverityWarning, c.Text, dataplane.NeighbourFix(c.What == dataplane.ConflictNeighbours6, pods)))
		case c.What == dataplane.ConflictBridge, c.What == dataplane.ConflictOverlay:
			severity = api.SeverityError
			fixes = append(fixes, "ip link del "+c.Device)
			fallthrough
		default:
			foreign = append(foreign, c.Text)
		}
	}
	if len(foreign) > 0 {
		fix := "remove what clashes, or move it; Tenure leaves it alone"
		if len(fixes) > 0 {
			fix += ": " + strings.Join(fixes, "; ")
		}
		all = append(all, problem("foreign", severity, strings.Join(foreign, "; "), fix))
	}
	return all
}
