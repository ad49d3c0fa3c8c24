package lease

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrNothingHeld says that there was no subnet to give up.
var ErrNothingHeld = errors.New("this node holds no subnet")

// leftText is why a node that has left waits.
const leftText = "this node has given its subnet up (tenurectl leave); start tenured anew to join again"

// ask is something that the loop does for somebody else.
type ask struct {
	do   func(context.Context) error
	done chan error // capacity 1
}

// Leave gives the node's subnet up: the fence is closed, then key and lease are
// deleted, so that another node may have the subnet at once. Afterwards the
// engine waits until it is made anew. Where etcd does not answer before ctx
// ends the fence stays closed and the subnet lapses with its lease; the error
// says so. ErrNothingHeld if there was nothing to give up.
func (e *Engine) Leave(ctx context.Context) error {
	a := ask{done: make(chan error, 1), do: func(run context.Context) error {
		run, cancel := context.WithCancel(run)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		return e.leave(run)
	}}
	select {
	case e.asks <- a:
		return <-a.done
	case <-ctx.Done():
		return fmt.Errorf("leave: %w", ctx.Err())
	}
}

func (e *Engine) leave(ctx context.Context) error {
	t := e.tenancy()
	e.lose("given up by tenurectl leave")
	e.update(func() {
		e.left, e.started, e.waiting = true, true, leftText
	})
	if t != nil {
		e.condemn(t.lease) // a process after this one must not resume what is about to go
	}
	for pause := newPause(); ; {
		n, err := 0, e.shut()
		if err == nil {
			n, err = e.leaveAll(ctx, t)
		}
		if err == nil {
			err = e.abandon(ctx)
		}
		switch {
		case err == nil && n == 0 && t == nil:
			return ErrNothingHeld
		case err == nil:
			return nil
		case !wait(ctx, pause.NextBackOff()):
			return fmt.Errorf("the overlay is closed on this node, but etcd did not say that its key is deleted; it ends with its lease at the latest: %w", err)
		}
	}
}

// leaveAll deletes every key that is this very boot's, and says how many. The
// lease of what was held ends in any case, unless somebody else's key hangs on
// it: what deleted the key may have been a try whose answer was lost.
func (e *Engine) leaveAll(ctx context.Context, held *tenancy) (int, error) {
	s, err := e.list(ctx, maxCall)
	if err != nil {
		return 0, err
	}
	n, uid := 0, e.cfg.Memory.Get().UID
	for _, entry := range s.Entries {
		if who := entry.Tenant(); who.UID != uid || who.Boot != e.cfg.Boot || entry.Lease == 0 {
			continue
		}
		h, err := NewHolding(e.keys, entry, 0)
		if err == nil {
			err = e.giveUp(ctx, h, s, "given up")
		}
		if err != nil {
			return n, err
		}
		n++
	}
	if held != nil && n == 0 && !s.hangs(held.lease) {
		return n, e.end(ctx, held.lease)
	}
	return n, nil
}

// giveUp deletes an own key and ends its lease. No fence may be open for it.
func (e *Engine) giveUp(ctx context.Context, h Holding, s *Snapshot, why string) error {
	o := s.Owners[h.subnets.ownerKey()].Value
	if own := h.record.Tenant(); o.UID != own.UID || o.Epoch != own.Epoch {
		o = o.succeed(Transition{UID: own.UID, Node: own.Node, Epoch: own.Epoch, Since: time.Now().UTC()})
	}
	o.Until, o.Why = time.Now().UTC(), why
	f := h.leave(o)
	e.cfg.at("before the key is deleted")
	resp, err := commit(ctx, e.client, f, e.callTimeout())
	e.cfg.at("after the key was deleted")
	if err != nil {
		return fmt.Errorf("give %s up: %w", h.subnets, err)
	}
	if !resp.Succeeded {
		return fmt.Errorf("give %s up: %w", h.subnets, errLostRace)
	}
	e.log.Info("subnet given up", "subnet", h.subnets, "lease", leaseHex(h.lease), "why", why)
	return e.end(ctx, h.lease)
}

func (e *Engine) hasLeft() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.left
}
