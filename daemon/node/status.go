package node

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

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
		s.Network = v.Network.Network.String()
	}
	if v.Snapshot != nil {
		s.Etcd.Revision = v.Snapshot.Revision
	}
	u, ok := n.cfg.Underlay()
	if ok {
		s.PublicIP, s.Interface, s.MTU = u.PublicIP.String(), u.Interface, u.PodMTU(v.Network)
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
	if _, ok := n.cfg.Underlay(); !ok {
		all = append(all, problem("underlay-missing", api.SeverityError, n.cfg.UnderlayErr().Error(),
			"bring the interface up, or name another with --iface; this is tried again every few seconds"))
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
	if p := h.Subnets().V4; p.IsValid() {
		s.Subnet = p.String()
		u := n.cfg.Ledger.Usage(p)
		s.Addresses = api.Addresses{Total: u.Total, Used: u.Used, Cooling: u.Cooling}
	}
	if p := h.Subnets().V6; p.IsValid() {
		s.Subnet6 = p.String()
	}
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
			PublicIP: p.entry.PublicIP.String(), Epoch: p.entry.Tenant().Epoch, State: api.PeerPending}
		if tombstone(p.entry) {
			one.State, one.Reason = api.PeerUnreachable, p.reason
		} else if p.reason != "" {
			one.State, one.Reason = api.PeerConflict, p.reason
		} else if pr, ok := standing[p.Peer]; ok {
			one.State, one.Reason = string(pr.State), pr.Reason
		}
		all = append(all, one)
	}
	return append(all, keptPeers(all, r)...)
}

// keptPeers are those that only the kernel knows while etcd's list cannot be
// believed. A record that has come since is listed already.
func keptPeers(listed []api.Peer, r dataplane.Report) []api.Peer {
	var all []api.Peer
	for _, k := range r.Kept {
		one := api.Peer{Subnet: k.Peer.Subnet.String(), PublicIP: k.Peer.PublicIP.String(), State: string(k.State),
			Reason: "it has no record in etcd, which forgot or is settling; it is kept until a record overlaps its subnet, or until etcd has settled without it"}
		if k.Reason != "" {
			one.Reason += "; " + k.Reason
		}
		if !slices.ContainsFunc(listed, func(p api.Peer) bool { return p.Subnet == one.Subnet }) {
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
		case c.What == "parent":
			all = append(all, problem("underlay-missing", api.SeverityError, c.Text+"; no packet reaches another node",
				"bring the interface back, or name another with --iface; the overlay is rebuilt by itself"))
		case c.What == dataplane.ConflictNeighbours:
			all = append(all, problem("neighbour-limits", api.SeverityWarning, c.Text, dataplane.NeighbourFix(pods)))
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
