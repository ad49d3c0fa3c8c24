package node

import (
	"context"

	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/ipam"
)

// Check answers CHECK: the interface is as ADD left it when there is nothing
// that ADD would do again.
func (n *Node) Check(ctx context.Context, r *api.Request) *api.Response {
	ctx, cancel := context.WithTimeout(ctx, addTimeout)
	defer cancel()
	return n.answer("CHECK", r, n.check(ctx, r))
}

func (n *Node) check(ctx context.Context, r *api.Request) error {
	c, a, prev, err := n.recorded(r)
	if err != nil {
		return err
	}
	want := n.want(a)
	want.MTU = 0 // the underlay's may have changed since; a pod keeps what it was given
	if mac, ok := macIn(prev, c.key.IfName); ok {
		want.MAC = mac // of a plugin behind us in the chain, such as tuning
	}
	ops, err := n.cfg.Interfaces.Check(ctx, c.netns, want)
	if err != nil {
		return fmt.Errorf("check %s: %w", c.key, err)
	}
	if len(ops) > 0 {
		var texts []string
		for _, op := range ops {
			texts = append(texts, op.String())
		}
		return cniError(api.CodeCheckDiffers, "%s is not as ADD left it; to restore it: %s", c.key, strings.Join(texts, "; "))
	}
	return n.notStranded(a)
}

// notStranded is the last question of a CHECK.
func (n *Node) notStranded(a ipam.Allocation) error {
	if v, _ := n.cfg.Tenancy.Changed(); isStranded(v, a) {
		return cniError(api.CodeCheckStranded, "%s has %s, which is not in this node's subnet (%s) any more: the pod is stranded, its overlay traffic is closed; restart it",
			a.Key, addresses(a), v.Holding.Subnets())
	}
	return nil
}

// recorded finds the allocation that a CHECK is about, and the result that the
// runtime remembers; nil if it gave none.
func (n *Node) recorded(r *api.Request) (call, ipam.Allocation, *current.Result, error) {
	c, err := parse(r)
	if err != nil {
		return c, ipam.Allocation{}, nil, err
	}
	a, ok := n.cfg.Ledger.Get(c.key)
	if !ok {
		return c, a, nil, cniError(api.CodeCheckDiffers, "%s has no address on record: it was never added, or has been deleted", c.key)
	}
	prev, err := c.previous()
	if err != nil {
		return c, a, nil, err
	}
	return c, a, prev, promised(prev, a)
}

// promised compares the result that the runtime remembers with the record.
func promised(prev *current.Result, a ipam.Allocation) error {
	if prev == nil {
		return nil
	}
	for _, p := range a.Addresses {
		if !slices.ContainsFunc(prev.IPs, func(ip *current.IPConfig) bool { return equal(ip.Address, ipNet(p)) }) {
			return cniError(api.CodeCheckDiffers, "%s is on record with %s, which its result does not name", a.Key, p)
		}
	}
	return nil
}

// macIn is the MAC that a result has for an interface of the pod.
func macIn(prev *current.Result, ifName string) (lease.MAC, bool) {
	if prev == nil {
		return lease.MAC{}, false
	}
	for _, i := range prev.Interfaces {
		if i.Name == ifName && i.Sandbox != "" {
			mac, err := net.ParseMAC(i.Mac)
			if err == nil && len(mac) == len(lease.MAC{}) {
				return lease.MAC(mac), true
			}
		}
	}
	return lease.MAC{}, false
}

func equal(a, b net.IPNet) bool { return a.IP.Equal(b.IP) && a.Mask.String() == b.Mask.String() }

// Ready answers STATUS: nothing where an ADD would be served now.
func (n *Node) Ready(ctx context.Context, r *api.Request) *api.Response {
	if _, err := parse(r); err != nil {
		return &api.Response{Error: toCNI(err)}
	}
	v := n.settled(ctx, doubtWait) // a proof takes milliseconds: no reason to call the node not ready
	what := bridgeConflict(n.cfg.Plane.Report())
	switch {
	case v.InDate(n.cfg.Clock()) && what != "":
		return &api.Response{Error: &types.Error{Code: api.CodeNotReady, Msg: "tenured cannot serve pods: " + what}}
	case v.InDate(n.cfg.Clock()):
		return &api.Response{}
	case v.State == api.StateFenced, n.state(v) == api.StateLost:
		text := readyText(n.state(v), v.Reason) + n.whatIsCut(v)
		return &api.Response{Error: &types.Error{Code: api.CodeNotReadyLimited, Msg: text}}
	}
	return &api.Response{Error: &types.Error{Code: api.CodeNotReady, Msg: readyText(n.state(v), v.Reason)}}
}

// doubtWait is how much of STATUS's second may be spent on a proof.
const doubtWait = 300 * time.Millisecond

// whatIsCut says what the reason does not, once it is about what the node
// waits for: which subnet was lost, and how many pods sit on it.
func (n *Node) whatIsCut(v lease.View) string {
	text := ""
	if !v.Held && v.LostWhy != "" && !strings.Contains(v.Reason, v.LostWhy) {
		text += "; lost " + v.LostWhy
	}
	if all := stranded(v, n.cfg.Ledger.List()); len(all) > 0 {
		text += fmt.Sprintf("; stranded pod addresses: %d, see tenurectl stranded", len(all))
	}
	return text
}

func readyText(s api.State, reason string) string {
	return fmt.Sprintf("tenured cannot serve pods: it is %s: %s", s, reason)
}
