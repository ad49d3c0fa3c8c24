package attach

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

// A deletion is looked for at once, then after lookFirst, and ever later up to
// lookLast.
const (
	lookFirst = 50 * time.Microsecond
	lookLast  = 2 * time.Millisecond
)

// Del removes the pair whose host end bears hostName. It succeeds where there
// is none. ErrForeignHost says that the name is borne by a link that is not
// this instance's: it is left alone.
//
// It returns once neither end can be seen any more. The kernel says that it is
// done only when nobody can still be reading the memory of the device (it waits
// for RCU callbacks after it has let go of its lock): 15 to 25 ms later, and of
// no concern to whoever waits for a free name and a free address. Wait waits
// for that.
func (a *Attacher) Del(ctx context.Context, hostName string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("delete veth %s: %w", hostName, err)
	}
	h, err := openHandle(a.host)
	if err != nil {
		return fmt.Errorf("delete veth %s: %w", hostName, err)
	}
	defer h.Close()
	link, err := linkByName(h, hostName)
	if err != nil || link == nil {
		return err
	}
	if l := asLink(link); !l.isOurs(a.instance, hostName) {
		return fmt.Errorf("delete veth %s: %w: it is a %s with alias %q", hostName, ErrForeignHost, l.Kind, l.Alias)
	}
	a.at("before the interface is deleted")
	if err := a.unlink(ctx, h, link.Attrs()); err != nil {
		return fmt.Errorf("delete veth %s: %w", hostName, err)
	}
	return nil
}

// unlink has a link deleted and returns when h does not find it any more, or
// with what the kernel has against it.
func (a *Attacher) unlink(ctx context.Context, h *netlink.Handle, link *netlink.LinkAttrs) error {
	own, err := openHandle(a.host)
	if err != nil {
		return err
	}
	answer, done := make(chan error, 1), make(chan struct{})
	a.deletions.Go(func() {
		defer own.Close()
		answer <- deleteLink(own, link.Index)
		close(done)
		a.answered(link.Name, done)
	})
	for pause := lookFirst; ; pause = min(2*pause, lookLast) {
		select {
		case err := <-answer:
			return err
		case <-ctx.Done():
			a.noteOverdue(link.Name, done)
			return ctx.Err()
		case <-time.After(pause):
		}
		// While the deletion is under way the kernel holds the lock that this
		// question needs: what it does not find has wholly gone.
		if now, err := linkByName(h, link.Name); err == nil && (now == nil || now.Attrs().Index != link.Index) {
			return nil
		}
	}
}

// noteOverdue remembers a deletion that goes on without its caller.
func (a *Attacher) noteOverdue(hostName string, done chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-done:
		return
	default:
	}
	if a.overdue == nil {
		a.overdue = map[string]chan struct{}{}
	}
	a.overdue[hostName] = done
}

func (a *Attacher) answered(hostName string, done chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.overdue[hostName] == done {
		delete(a.overdue, hostName)
	}
}

// awaitOverdue waits until no deletion may come late upon what is to be made or
// found under the name.
func (a *Attacher) awaitOverdue(ctx context.Context, hostName string) error {
	a.mu.Lock()
	done := a.overdue[hostName]
	a.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wait returns when the kernel has answered every deletion.
func (a *Attacher) Wait() { a.deletions.Wait() }
