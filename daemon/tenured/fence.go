package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/fence"
)

// kernelRetry is the pause before another try to open the fence and the data
// plane.
const kernelRetry = 5 * time.Second

// openKernel tries until there are a fence and a data plane, or ctx ends.
// Meanwhile the node is refused, and what stands in the kernel without a fence
// is kept down.
func (d *daemon) openKernel(ctx context.Context) (*fence.Fence, *dataplane.Linux, error) {
	last := ""
	for {
		f, kernel, err := d.tryKernel()
		if err == nil {
			d.engine.Refuse("")
			return f, kernel, nil
		}
		if err := errors.Join(d.underlay.closeBare(), d.underlay.withdraw(d.podNetworks())); err != nil {
			d.log.Error("a device may be open without a fence", "error", err)
		}
		if err.Error() != last {
			d.log.Error("no subnet can be held; tried again every few seconds", "error", err)
			last = err.Error()
		}
		d.engine.Refuse(cannotHold(err) + last)
		t := time.NewTimer(kernelRetry)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, nil, ctx.Err()
		case <-t.C:
		}
	}
}

// cannotHold says what it is that this machine cannot do.
func cannotHold(err error) string {
	if errors.Is(err, errNoPlane) {
		return "this machine's network cannot be set up, so it may hold no subnet: "
	}
	return "this machine cannot fence its overlay, so it may hold no subnet: "
}

// errNoPlane says that the kernel cannot be asked or told anything.
var errNoPlane = errors.New("no netlink socket")

func (d *daemon) tryKernel() (*fence.Fence, *dataplane.Linux, error) {
	// Every device is looked at: which one an earlier process had as its uplink
	// need not be known.
	f, err := fence.Open(fence.Options{Instance: d.cfg.Name, Log: d.log})
	if err != nil {
		return nil, nil, err
	}
	kernel, err := dataplane.OpenLinux(dataplane.LinuxOptions{Name: d.cfg.Name, Guard: f})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%w: %w", errNoPlane, err), f.Release())
	}
	return f, kernel, nil
}

// closeBare sets those vxlan devices of this instance down that an earlier
// process has left and that have lost its filters: better no overlay than an
// open one. Those with their filters stay up; the kernel shuts them at their
// deadline.
func (u *underlay) closeBare() error {
	names, err := u.ownLinks()
	if err != nil || len(names) == 0 {
		return err
	}
	bare, err := fence.Bare(fence.Options{Links: names, Instance: u.cfg.Name})
	if err != nil {
		return fmt.Errorf("look for devices without the fence: %w", err)
	}
	links, err := u.links()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		if !slices.Contains(bare, l.Attrs().Name) || l.Attrs().Flags&net.FlagUp == 0 {
			continue
		}
		if err := u.handle.LinkSetDown(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: l.Attrs().Index}}); err != nil {
			errs = append(errs, fmt.Errorf("set device %s down, which has no fence: %w", l.Attrs().Name, err))
			continue
		}
		u.log.Warn("device has lost its fence and none can be attached: set down", "link", l.Attrs().Name)
	}
	return errors.Join(errs...)
}
