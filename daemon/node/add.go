package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/ipam"
)

// Time limits of the daemon's side, each below what the binary waits.
const (
	addTimeout = 25 * time.Second
	// tenancyWait is how long an ADD waits for the first answer of etcd.
	tenancyWait = 10 * time.Second
	// bridgeWait is how long it waits for the data plane after that.
	bridgeWait  = 10 * time.Second
	undoTimeout = 5 * time.Second
)

// Add answers ADD of the plugin tenure: deliver is called once, with the answer.
// When a result does not arrive, the ADD is undone.
func (n *Node) Add(ctx context.Context, r *api.Request, deliver func(*api.Response) error) {
	n.give(ctx, "ADD", r, deliver, n.add)
}

// undelivered is an answer for which there is nobody any more.
type undelivered struct{ error }

func (n *Node) give(ctx context.Context, verb string, r *api.Request, deliver func(*api.Response) error,
	add func(context.Context, *api.Request, func(json.RawMessage) error) error) {
	ctx, cancel := context.WithTimeout(ctx, addTimeout)
	defer cancel()
	err := add(ctx, r, func(result json.RawMessage) error {
		if err := deliver(&api.Response{Result: result}); err != nil {
			return undelivered{fmt.Errorf("the caller has gone without its answer: %w", err)}
		}
		return nil
	})
	if err == nil {
		return
	}
	resp := n.answer(verb, r, err)
	if e := (undelivered{}); !errors.As(err, &e) {
		_ = deliver(resp) // a failure leaves nothing to take back
	}
}

func (n *Node) add(ctx context.Context, r *api.Request, deliver func(json.RawMessage) error) error {
	c, err := parse(r)
	if err != nil {
		return err
	}
	prev, err := c.previous()
	if err != nil {
		return err
	}
	v, unlock, err := n.admit(ctx, c.key, n.awaitBridge)
	if err != nil {
		return err
	}
	defer unlock()

	n.cfg.at("before the address is on record")
	a, existed, err := n.allocate(c, v.Holding.Subnets(), attach.HostName(n.owner(c.key)))
	if err != nil {
		return err
	}
	if !existed {
		n.awaitFreed(ctx, a)
	}
	undo := func() {
		if !existed {
			n.undo(c.key)
		}
	}
	n.cfg.at("after the address was put on record")
	ep, err := n.attach(ctx, c.netns, a)
	if err != nil {
		undo()
		return fmt.Errorf("attach %s: %w", c.key, n.explain(err))
	}
	n.cfg.at("after the interface was made")
	// The same container may come in another sandbox: the interface has gone
	// there, the record follows.
	err = n.cfg.Ledger.Move(c.key, c.netns)
	if err == nil {
		err = n.still(ctx, v, existed)
	}
	if err != nil {
		undo()
		return err
	}
	result, err := n.result(c, prev, a, ep)
	if err == nil {
		n.tellNeighbours(a, false)
		n.cfg.at("before an ADD is answered")
		err = deliver(result)
	}
	if err != nil {
		undo()
	}
	return err
}

// explain adds to an error about the bridge what keeps the data plane from
// making it.
func (n *Node) explain(err error) error {
	if what := bridgeConflict(n.cfg.Plane.Report()); what != "" && errors.Is(err, attach.ErrNoBridge) {
		return fmt.Errorf("%w: %s; remove or rename it", err, what)
	}
	return err
}

// bridgeConflict says what stands in the bridge's place; "" if nothing does.
func bridgeConflict(r dataplane.Report) string {
	for _, c := range r.Conflicts {
		if c.What == dataplane.ConflictBridge {
			return c.Text
		}
	}
	return ""
}

// admit waits until the subnet is in date, then until the key is nobody
// else's: a DEL must not wait for etcd behind an ADD. The caller unlocks.
func (n *Node) admit(ctx context.Context, k ipam.Key, prepare func(context.Context, lease.View)) (lease.View, func(), error) {
	v, err := n.inDate(ctx)
	if err != nil {
		return v, nil, err
	}
	prepare(ctx, v)
	unlock, err := n.keys.lock(ctx, k)
	if err != nil {
		return v, nil, err
	}
	if v, _ = n.cfg.Tenancy.Changed(); !v.InDate(n.cfg.Clock()) {
		unlock()
		return v, nil, notHeld(v)
	}
	return v, func() { n.added.note(k); unlock(); n.touched() }, nil
}

// inDate waits for a holding whose deadline has not passed. While the daemon
// has yet to hear from etcd, or to prove anew what is in doubt, it waits; where
// it knows that there is nothing to be had now, it says why at once.
func (n *Node) inDate(ctx context.Context) (lease.View, error) {
	ctx, cancel := context.WithTimeout(ctx, tenancyWait)
	defer cancel()
	for {
		v, changed := n.cfg.Tenancy.Changed()
		if v.InDate(n.cfg.Clock()) {
			return v, nil
		}
		if v.State != api.StateStarting && v.State != api.StateLost && v.Doubt == "" {
			return v, notHeld(v)
		}
		select {
		case <-ctx.Done():
			return v, notHeld(v)
		case <-changed:
		}
	}
}

func notHeld(v lease.View) error {
	return cniError(api.CodeTryAgain, "this node may not give out addresses now: it is %s: %s; try again later, see tenurectl status", v.State, v.Reason)
}

// awaitBridge waits until the data plane is complete, for the first pods of a
// subnet only. What is missing after that time, the iptables program for
// instance, does not keep pods from starting: if it is the bridge, attaching
// says so.
func (n *Node) awaitBridge(ctx context.Context, v lease.View) {
	held := v.Holding.Subnets()
	n.mu.Lock()
	ready := n.ready == held
	n.mu.Unlock()
	if ready {
		return
	}
	n.steer() // Run may not have heard of this subnet yet
	ctx, cancel := context.WithTimeout(ctx, bridgeWait)
	defer cancel()
	err := n.cfg.Plane.WaitConverged(ctx)
	if errors.Is(err, context.Canceled) {
		return // the caller has gone
	}
	if err != nil {
		n.cfg.Log.Warn("data plane not complete, pods are added all the same", "subnet", held, "error", err)
	}
	n.mu.Lock()
	n.ready = held
	n.mu.Unlock()
}

// allocate puts one address per family on record.
func (n *Node) allocate(c call, held lease.Subnets, host string) (ipam.Allocation, bool, error) {
	asks, err := c.asks(held)
	if err != nil {
		return ipam.Allocation{}, false, err
	}
	a, existed, err := n.cfg.Ledger.Allocate(c.key, asks, func(a *ipam.Allocation) {
		a.Netns, a.Host, a.IPAM = c.netns, host, host == ""
		if c.conf.MAC != [6]byte{} {
			a.MAC = dataplane.MAC(c.conf.MAC).String()
		}
	})
	if err != nil {
		return a, existed, fmt.Errorf("address for %s: %w", c.key, err)
	}
	if a.IPAM != (host == "") {
		return a, existed, cniError(api.CodeInvalidConfig, "%s has an address already, by the other of the plugins tenure and tenure-ipam; one network uses one of them", c.key)
	}
	return a, existed, nil
}

// still makes sure that the caller waits for the answer and that the address
// is still this node's to give. An address that was given before is only
// described again.
func (n *Node) still(ctx context.Context, before lease.View, existed bool) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the caller has gone: %w", err)
	}
	if existed {
		return nil
	}
	// The key may have moved to another lease; the ownership must be the same.
	now := n.settled(ctx, undoTimeout)
	if !now.InDate(n.cfg.Clock()) || now.Holding.Epoch() != before.Holding.Epoch() ||
		now.Holding.Subnets() != before.Holding.Subnets() {
		return notHeld(now)
	}
	return nil
}

// settled is the view without a doubt, for which the next proof is waited for,
// but not for longer than d.
func (n *Node) settled(ctx context.Context, d time.Duration) lease.View {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		v, changed := n.cfg.Tenancy.Changed()
		if v.Doubt == "" {
			return v
		}
		select {
		case <-ctx.Done():
			return v
		case <-changed:
		}
	}
}

// undo takes back what an ADD has done so far, on a context of its own: the
// caller's may have ended, which is a reason for it.
func (n *Node) undo(k ipam.Key) {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	n.cfg.at("before an ADD is undone")
	if err := n.cfg.Interfaces.Del(ctx, attach.HostName(n.owner(k))); err != nil && !errors.Is(err, attach.ErrForeignHost) {
		// The record stays with the link: the DEL that follows frees both.
		n.cfg.Log.Error("undo of ADD failed", "key", k, "error", err)
		return
	}
	n.cfg.at("before the address of an undone ADD is freed")
	if a, ok := n.cfg.Ledger.Get(k); ok {
		n.freed(a)
	}
	n.cfg.Ledger.Release(k)
	n.touched()
}

func (n *Node) owner(k ipam.Key) attach.Owner {
	return attach.Owner{Instance: n.cfg.Instance, Network: k.Network, ContainerID: k.ContainerID, IfName: k.IfName}
}

// want is the interface that an allocation stands for.
func (n *Node) want(a ipam.Allocation) attach.Want {
	w := attach.Want{Owner: n.owner(a.Key), Addrs: a.Addresses, Bridge: bridgeName(n.cfg.Instance)}
	for _, p := range a.Addresses {
		w.Gateways = append(w.Gateways, ipam.Gateway(p.Masked()))
	}
	// Also where only an address is missing: the kernel's own is too great.
	if u, _ := n.cfg.Underlay(); u.MTU > 0 {
		w.MTU = u.PodMTU(n.network())
	}
	if mac, err := parseMAC(a.MAC); err == nil {
		w.MAC = mac
	}
	return w
}

// answer logs a failed call once and puts it into the wire's form.
func (n *Node) answer(verb string, r *api.Request, err error) *api.Response {
	if err == nil {
		return &api.Response{}
	}
	e := toCNI(err)
	n.cfg.Log.Warn(verb+" failed", "container", r.ContainerID, "if", r.IfName, "code", e.Code, "error", e.Msg)
	return &api.Response{Error: e}
}

// parseMAC reads what allocate wrote; "" is the zero MAC.
func parseMAC(s string) (lease.MAC, error) {
	var m lease.MAC
	return m, m.UnmarshalText([]byte(s))
}

// addressesIn reports whether every address lies in a held subnet.
func addressesIn(a ipam.Allocation, held lease.Subnets) bool {
	for _, p := range a.Addresses {
		if !covers(held, p) {
			return false
		}
	}
	return true
}

func covers(held lease.Subnets, p netip.Prefix) bool {
	for _, s := range held.All() {
		if s == p.Masked() {
			return true
		}
	}
	return false
}

// addresses lists them for people.
func addresses(a ipam.Allocation) string {
	var all []string
	for _, p := range a.Addresses {
		all = append(all, p.Addr().String())
	}
	return strings.Join(all, ", ")
}
