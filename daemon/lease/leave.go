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
	if t == nil {
		return ErrNothingHeld
	}
	for pause := newPause(); ; {
		s, err := list(ctx, e.client, newMirror(e.keys), maxCall)
		if err == nil {
			err = e.leaveAs(ctx, *t, s)
		}
		if err == nil {
			return e.abandon(ctx)
		}
		if !wait(ctx, pause.NextBackOff()) {
			return fmt.Errorf("%s is closed on this node, but etcd did not say that its key is deleted; it ends with its lease at the latest, in %s: %w", t.subnets, t.ttl, err)
		}
	}
}

// leaveAs deletes the key if it is still the holding's; a key that is not is
// nobody's to give up.
func (e *Engine) leaveAs(ctx context.Context, t tenancy, s *Snapshot) error {
	entry, there := s.Entry(t.subnets)
	mine := there && entry.Tenant().UID == t.record.Tenant().UID
	if !mine || entry.Lease != t.lease && (e.moving == nil || entry.Lease != e.moving.lease) {
		return nil
	}
	h, err := NewHolding(e.keys, entry, t.ttl)
	if err != nil {
		return err
	}
	return e.giveUp(ctx, h, s, "given up")
}

// giveUp deletes an own key and ends its lease. No fence may be open for it.
func (e *Engine) giveUp(ctx context.Context, h Holding, s *Snapshot, why string) error {
	o := s.Owners[h.subnets.ownerKey()].Value
	if own := h.record.Tenant(); o.UID != own.UID || o.Epoch != own.Epoch {
		o = o.succeed(Transition{UID: own.UID, Node: own.Node, Epoch: own.Epoch, Since: time.Now().UTC()})
	}
	o.Until, o.Why = time.Now().UTC(), why
	f, err := h.leave(o)
	if err != nil {
		return err
	}
	resp, err := commit(ctx, e.client, f, maxCall)
	if err != nil {
		return fmt.Errorf("give %s up: %w", h.subnets, err)
	}
	if !resp.Succeeded {
		return fmt.Errorf("give %s up: %w", h.subnets, errLostRace)
	}
	e.log.Info("subnet given up", "subnet", h.subnets, "lease", leaseHex(h.lease), "why", why)
	return revoke(ctx, e.client, h.lease, maxCall)
}

func (e *Engine) hasLeft() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.left
}
