package uninstall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/fence"
)

// passes bounds how often the kernel is looked at: the second pass finds
// nothing unless somebody else works there.
const passes = 3

// kernel removes everything of the instance, reading after writing.
func (r *removal) kernel(ctx context.Context) error {
	k, err := dataplane.OpenLinux(dataplane.LinuxOptions{Name: r.Instance, Guard: noFence{r.Instance}})
	if err != nil {
		return fmt.Errorf("clean the kernel: %w", err)
	}
	defer k.Close()
	rules := dataplane.Families{V4: true, V6: slices.ContainsFunc(r.networks, func(n netip.Prefix) bool { return n.Addr().Is6() })}
	var last error
	for range passes {
		state, err := k.Read(ctx, rules)
		if err != nil {
			return fmt.Errorf("clean the kernel: %w", err)
		}
		ops, left := dataplane.Removal(r.Instance, r.networks, state)
		if len(ops) == 0 {
			for _, c := range left {
				r.say("%s", c.Text)
			}
			return errors.Join(last, unread(state, rules))
		}
		last = nil
		for _, op := range ops {
			if err := k.Apply(ctx, op); err != nil {
				last = errors.Join(last, fmt.Errorf("clean the kernel: %s: %w", op, err))
				continue
			}
			r.say("%s", op)
		}
	}
	return errors.Join(last, errors.New("clean the kernel: somebody makes anew what is removed: is another tenured running under this name?"))
}

// unread: rules that were not seen were not removed.
func unread(s dataplane.State, asked dataplane.Families) error {
	if s.Rules != nil && (s.Rules6 != nil || !s.IPv6 || !asked.V6) {
		return nil
	}
	for _, f := range s.Faults {
		if f.What == "rules" {
			return fmt.Errorf("clean the firewall: %s", f.Why)
		}
	}
	return nil
}

// noFence stands for the fence where devices are only removed, and the filters
// on the host's own.
type noFence struct{ instance string }

var _ dataplane.Guard = noFence{}

func (noFence) Attached(context.Context, int) (bool, error)  { return false, nil }
func (noFence) Attach(context.Context, int) error            { return errors.ErrUnsupported }
func (noFence) Tokens() (map[[6]byte]netip.Prefix, error)    { return nil, nil }
func (noFence) Allow(mac [6]byte, subnet netip.Prefix) error { return errors.ErrUnsupported }
func (noFence) Deny(mac [6]byte) error                       { return errors.ErrUnsupported }

func (n noFence) Uplinks() ([]int, error) {
	return fence.Uplinks(fence.Options{Instance: n.instance})
}

func (noFence) AttachedUplink(context.Context, int) (bool, error) { return true, nil }

func (noFence) AttachUplink(context.Context, int) error { return errors.ErrUnsupported }

func (n noFence) DetachUplink(_ context.Context, ifindex int) error {
	return fence.RemoveUplink(fence.Options{Instance: n.instance}, ifindex)
}
