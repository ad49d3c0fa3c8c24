package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/fence"
)

// podNetworks are those that were in force on this node, as it remembers them.
func (d *daemon) podNetworks() []netip.Prefix {
	m := d.memory.Get()
	all := slices.Clone(m.Networks)
	if n, _, err := conf.ParseNetwork(m.Config); err == nil {
		all = append(all, n.Network, n.IPv6Network)
	}
	return slices.DeleteFunc(all, func(p netip.Prefix) bool { return !p.IsValid() })
}

// announced is what the record of this node's last subnet says.
func (d *daemon) announced() []netip.Addr {
	if held := d.memory.Get().Held; held != nil {
		return held.Record.Addresses()
	}
	return nil
}

// withdraw removes the direct routes that an earlier process has left on devices
// of the host that have lost their filters: better no route than an open one.
// Those on a device with its filters stay; the kernel shuts them at their
// deadline.
func (u *underlay) withdraw(networks []netip.Prefix) error {
	routes, err := u.directRoutes(networks)
	if err != nil || len(routes) == 0 {
		return err
	}
	links, err := u.links()
	if err != nil {
		return err
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	var uplinks []string
	for _, r := range routes {
		uplinks = append(uplinks, names[r.LinkIndex])
	}
	bare, err := fence.Bare(fence.Options{Links: uplinks, Instance: u.cfg.Name})
	if err != nil {
		return fmt.Errorf("look for uplinks without the fence: %w", err)
	}
	var errs []error
	for _, r := range routes {
		if !slices.Contains(bare, names[r.LinkIndex]) {
			continue
		}
		if err := u.handle.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("withdraw route %s, whose device has no fence: %w", r.Dst, err))
			continue
		}
		u.log.Warn("uplink has lost its fence and none can be attached: route withdrawn", "link", names[r.LinkIndex], "route", r.Dst)
	}
	return errors.Join(errs...)
}

// directRoutes are this instance's, by their networks.
func (u *underlay) directRoutes(networks []netip.Prefix) ([]netlink.Route, error) {
	links, err := u.links()
	if err != nil {
		return nil, err
	}
	own := map[int]bool{}
	for _, l := range links {
		own[l.Attrs().Index] = u.own(l.Attrs().Name)
	}
	list, err := whole(func() ([]netlink.Route, error) {
		return u.handle.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: dataplane.RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return slices.DeleteFunc(list, func(r netlink.Route) bool {
		if r.Gw == nil || r.LinkIndex == 0 || own[r.LinkIndex] || r.Dst == nil {
			return true
		}
		dst, _ := netip.AddrFromSlice(r.Dst.IP)
		return !slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(dst.Unmap()) })
	}), nil
}
