package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/ipam"
)

// delTimeout is below what the binary waits before it queues the DEL.
const delTimeout = 7 * time.Second

// Del answers DEL of the plugin tenure. It needs neither the namespace nor a
// result of ADD: the key names the host end of the veth, and removing that end
// removes both.
func (n *Node) Del(ctx context.Context, r *api.Request) *api.Response {
	return n.answer("DEL", r, n.del(ctx, r, n.remove))
}

// del parses what there is to parse and frees the key.
// caller is the context of whoever waits for it; work that has begun is
// finished even if nobody waits any more.
func (n *Node) del(caller context.Context, r *api.Request, free func(context.Context, ipam.Key) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(caller), delTimeout)
	defer cancel()
	c, err := parse(r)
	if err != nil {
		// The key is all that a DEL needs. Without the network's name nothing
		// of ours can be meant, and to fail would have it repeated for ever.
		c.key.Network = nameOf(r.Config)
		n.cfg.Log.Warn("DEL goes on with a faulty configuration", "key", c.key, "error", err)
	}
	unlock, err := n.keys.lock(ctx, c.key)
	if err != nil {
		return err
	}
	defer unlock()
	if err := caller.Err(); err != nil {
		// It has queued the DEL by now; the pod may have been added again.
		return fmt.Errorf("the caller has gone: %w", err)
	}
	n.cfg.at("before a DEL frees anything")
	err = free(ctx, c.key)
	n.cfg.at("before a DEL is answered")
	return err
}

// nameOf reads the network's name out of a configuration that is not right
// otherwise; "" if there is none.
func nameOf(config []byte) string {
	var c struct {
		Name string `json:"name"`
	}
	_ = json.Unmarshal(config, &c)
	return c.Name
}

// remove deletes the interface, then frees the address. The key must be locked.
func (n *Node) remove(ctx context.Context, k ipam.Key) error {
	if err := n.cfg.Interfaces.Del(ctx, attach.HostName(n.owner(k))); err != nil && !errors.Is(err, attach.ErrForeignHost) {
		return fmt.Errorf("detach %s: %w", k, err)
	}
	return n.release(k, false)
}

// free releases an address of tenure-ipam. The key must be locked.
func (n *Node) free(_ context.Context, k ipam.Key) error { return n.release(k, true) }

// release frees an address that the same plugin allocated: what the other one
// gave is still in use.
func (n *Node) release(k ipam.Key, byIPAM bool) error {
	if a, ok := n.cfg.Ledger.Get(k); ok && a.IPAM == byIPAM {
		n.cfg.at("before the address is freed")
		n.freed(a)
		n.cfg.Ledger.Release(k)
		n.touched()
	}
	return nil
}

// GC answers GC: every attachment of the network that the runtime does not
// list is removed. Without a list, which is not an empty one, nothing is; nor
// is what was added after the call had come in.
func (n *Node) GC(ctx context.Context, r *api.Request) *api.Response {
	return n.answer("GC", r, n.gc(ctx, r, func(a ipam.Allocation) bool { return !a.IPAM }, n.remove))
}

func (n *Node) gc(ctx context.Context, r *api.Request, ours func(ipam.Allocation) bool, free func(context.Context, ipam.Key) error) error {
	defer n.added.begin()()
	c, err := parse(r)
	if err != nil {
		return err
	}
	if c.conf.Attachments == nil {
		n.cfg.Log.Info("GC without a list of valid attachments removes nothing", "network", c.conf.Name)
		return nil
	}
	valid := map[types.GCAttachment]bool{}
	for _, a := range *c.conf.Attachments {
		valid[a] = true
	}
	var errs []error
	for _, a := range n.cfg.Ledger.List() {
		if a.Network != c.conf.Name || !ours(a) || valid[types.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName}] {
			continue
		}
		errs = append(errs, n.collect(ctx, a.Key, free))
	}
	return errors.Join(errs...)
}

func (n *Node) collect(ctx context.Context, k ipam.Key, free func(context.Context, ipam.Key) error) error {
	unlock, err := n.keys.lock(ctx, k)
	if err != nil {
		return err
	}
	defer unlock()
	if n.added.has(k) {
		n.cfg.Log.Info("GC leaves an attachment that was added after its list was made", "key", k)
		return nil
	}
	n.cfg.Log.Info("GC removes an attachment the runtime does not list", "key", k)
	n.cfg.at("before GC frees an attachment")
	err = free(ctx, k)
	n.cfg.at("after GC freed an attachment")
	return err
}
