package node

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/hook"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/ipam"
)

// stranded are the pods on subnets that are not held. While nothing is held
// for want of an answer, nobody is stranded: only a loss strands.
func stranded(v lease.View, pods []ipam.Allocation) []api.Stranded {
	if !v.Held && v.Former.IsZero() {
		return nil
	}
	var all []api.Stranded
	for _, a := range pods {
		for _, p := range a.Addresses {
			if !v.Held || !covers(v.Holding.Subnets(), p) {
				all = append(all, api.Stranded{Subnet: p.Masked().String(), ContainerID: a.ContainerID,
					IfName: a.IfName, Address: p.Addr().String()})
			}
		}
	}
	return all
}

func strandedProblem(all []api.Stranded, why string) api.Problem {
	text := fmt.Sprintf("%d pod addresses are on a subnet this node no longer holds; their overlay traffic is closed, local and masqueraded traffic goes on", len(all))
	if why != "" {
		text += "; lost " + why
	}
	return problem("stranded-pods", api.SeverityError, text,
		"restart these pods (drain the node); they get addresses of the new subnet")
}

// hookProblem names the pods that the operator's command was given up for.
func hookProblem(failed []hook.Pod) api.Problem {
	var pods []string
	for _, p := range failed {
		pods = append(pods, p.String())
	}
	slices.Sort(pods)
	return problem("on-stranded", api.SeverityWarning, "the command of --on-stranded failed too often and was given up for "+strings.Join(pods, ", "),
		"see the log for what it said; restart these pods by hand, or repair the command and restart tenured")
}

// isStranded says whether the pod has an address that is certainly not this
// node's to use any more.
func isStranded(v lease.View, a ipam.Allocation) bool {
	return v.Held && !addressesIn(a, v.Holding.Subnets()) || !v.Held && !v.Former.IsZero()
}

// outside is the part of an allocation that no held subnet covers, as the
// operator's command knows it; false if there is none.
func outside(v lease.View, a ipam.Allocation) (hook.Pod, bool) {
	var addresses, subnets []string
	for _, p := range a.Addresses {
		if !v.Held || !covers(v.Holding.Subnets(), p) {
			addresses, subnets = append(addresses, p.Addr().String()), append(subnets, p.Masked().String())
		}
	}
	return hook.Pod{ContainerID: a.ContainerID, IfName: a.IfName,
		Address: strings.Join(addresses, ","), Subnet: strings.Join(subnets, ",")}, len(addresses) > 0
}

// lossPatience is how long a node without any subnet may still get the one
// back that it lost; the first try takes less than a second.
const lossPatience = 10 * time.Second

// noteLoss notes since when a subnet is lost and none held.
func (n *Node) noteLoss(v lease.View) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case v.Held || v.Former.IsZero():
		n.lostAt = 0
	case n.lostAt == 0:
		n.lostAt = n.cfg.Clock()
	}
}

// decided says that the pods which are stranded will stay so: another subnet
// is held, or the loss has stood for a while. Who acts on a pod earlier might
// act on one that has its subnet back a moment later.
func (n *Node) decided(v lease.View) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return v.Held || !v.Former.IsZero() && n.lostAt != 0 && n.cfg.Clock()-n.lostAt >= lossPatience
}

// Strandings are the pods that are stranded or may be, for the operator's
// command. It is due where that is certain, and not while a call for the pod
// is at work: an ADD may be undone, a DEL takes the pod away.
func (n *Node) Strandings() []hook.Stranding {
	v, _ := n.cfg.Tenancy.Changed()
	decided := n.decided(v)
	var all []hook.Stranding
	for _, a := range n.cfg.Ledger.List() {
		p, ok := outside(v, a)
		if !ok {
			continue
		}
		s := hook.Stranding{Pod: p, Due: decided && !n.keys.busy(a.Key), Reason: lostWhy(v, p.Subnet)}
		if v.Held {
			s.NewSubnet = joined(v.Holding.Subnets())
		}
		all = append(all, s)
	}
	return all
}

func joined(s lease.Subnets) string {
	var all []string
	for _, p := range s.All() {
		all = append(all, p.String())
	}
	return strings.Join(all, ",")
}

// lostWhy says what happened to a subnet, as far as this process knows.
func lostWhy(v lease.View, subnet string) string {
	first, _, _ := strings.Cut(subnet, ",")
	if strings.HasPrefix(v.LostWhy, first) {
		return "lost " + v.LostWhy
	}
	return "lost " + subnet + " before this daemon started, or before it lost another one"
}

// announce logs each pod once that has become stranded and each that is so no
// more, and the last of them. told are those announced so far; it returns the
// next one.
func (n *Node) announce(v lease.View, told map[hook.Pod]bool) map[hook.Pod]bool {
	if !v.Held && v.Former.IsZero() {
		return told // nobody knows
	}
	now := map[hook.Pod]bool{}
	for _, a := range n.cfg.Ledger.List() {
		p, ok := outside(v, a)
		if !ok || !told[p] && n.keys.busy(a.Key) {
			continue
		}
		now[p] = true
		if !told[p] {
			n.cfg.Log.Warn("pod is stranded on a subnet this node no longer holds", "event", "pod-stranded",
				"container", p.ContainerID, "if", p.IfName, "address", p.Address, "subnet", p.Subnet, "reason", lostWhy(v, p.Subnet))
		}
	}
	for p := range told {
		if !now[p] {
			n.cfg.Log.Info("pod is stranded no more: it has left, or its subnet is held again", "event", "pod-not-stranded",
				"container", p.ContainerID, "if", p.IfName, "address", p.Address, "subnet", p.Subnet)
		}
	}
	if len(told) > 0 && len(now) == 0 {
		n.cfg.Log.Info("no pod is stranded any more", "event", "none-stranded")
	}
	return now
}
