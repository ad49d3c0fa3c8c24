package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/tenure-cni/tenure/daemon/node"
)

// choice is all that the underlay follows from: what the flags ask for, what
// the network config needs, and what the kernel has. Its methods are pure.
type choice struct {
	// ifaces are --iface, public and public6 --public-ip.
	ifaces          []string
	public, public6 netip.Addr
	// need are the families that the pods have, as far as it is known.
	need families

	devices []device
	// toEtcd are the ways to the addresses of etcd in their order, up to the
	// first that there is a route to. unresolved says why there are none.
	toEtcd     []way
	unresolved error
	// announced is what this node announced last, also before a restart.
	announced []netip.Addr
	// defaults are the ways to the world, in the order of preference.
	defaults []way
	// sources are the IPv6 addresses that the kernel sends from, by the
	// device's index, where there are several.
	sources map[int]netip.Addr
	// before is what was chosen last.
	before node.Underlay
}

// families says which families of IP are meant.
type families struct{ v4, v6 bool }

func (f families) has(six bool) bool {
	if six {
		return f.v6
	}
	return f.v4
}

// count is how many of the families an underlay has.
func (f families) count(u node.Underlay) (n int) {
	if f.v4 && u.Local.IsValid() {
		n++
	}
	if f.v6 && u.Local6.IsValid() {
		n++
	}
	return n
}

// way is the kernel's answer by which device, and from which address, it sends
// to dst; link is 0 where there is no route, and err says why.
type way struct {
	dst  netip.Addr
	link int
	src  netip.Addr
	err  error
}

// choose is the underlay: by --iface patterns in their order, by --public-ip,
// or the interface that routes to etcd.
func (c choice) choose() (node.Underlay, error) {
	switch {
	case len(c.ifaces) > 0:
		return c.byPattern()
	case len(c.given()) > 0:
		return c.byAddress()
	}
	return c.byRoute()
}

// given are the addresses of --public-ip.
func (c choice) given() []netip.Addr {
	return slices.DeleteFunc([]netip.Addr{c.public, c.public6}, func(a netip.Addr) bool { return !a.IsValid() })
}

// wanted are the families that the network needs or an address was given for.
func (c choice) wanted() families {
	return families{v4: c.need.v4 || c.public.IsValid(), v6: c.need.v6 || c.public6.IsValid()}
}

// byPattern is the first of the links that --iface names which has what is
// wanted, else the first with a part of it. Together with --public-ip it is the
// one of them that has that address, on which outer packets then come from it;
// where none has it, it is translated on the way (1:1 NAT), and they come from
// the interface's own.
func (c choice) byPattern() (node.Underlay, error) {
	named, left := c.named()
	if d, n := c.bearing(named); n > 0 {
		return c.on(d, way{})
	}
	if text := c.awaited(named); text != "" {
		return node.Underlay{}, errors.New(text)
	}
	var best node.Underlay
	var near error
	for _, d := range named {
		found, err := c.on(d, way{})
		if err != nil {
			near = err
			continue
		}
		if best.Interface == "" || c.wanted().count(found) > c.wanted().count(best) {
			best = found
		}
	}
	switch {
	case best.Interface != "":
		return best, nil
	case near != nil:
		return node.Underlay{}, near
	case len(left) > 0:
		return node.Underlay{}, fmt.Errorf("no interface matches --iface %s but %s, a bridge of this machine's containers; if that is meant, give its whole name", strings.Join(c.ifaces, ", "), strings.Join(left, ", "))
	}
	return node.Underlay{}, fmt.Errorf("no interface matches --iface %s", strings.Join(c.ifaces, ", "))
}

// named are the links that --iface names, in the order of the patterns. None is
// our own; bridges of containers, which left names, are taken by their whole
// name only.
func (c choice) named() (named []device, left []string) {
	for _, pattern := range c.ifaces {
		for _, d := range c.devices {
			// Load has checked the patterns.
			if ok, _ := path.Match(pattern, d.name); !ok || d.own || d.loopback && pattern != d.name {
				continue
			}
			if c.contained(d) && pattern != d.name {
				left = append(left, d.name)
				continue
			}
			named = append(named, d)
		}
	}
	return named, left
}

// contained says that a device leads to this machine's own containers, and not
// to other nodes: the world is not reached by it either.
func (c choice) contained(d device) bool {
	return d.inner && !slices.ContainsFunc(c.defaults, func(w way) bool { return w.link == d.index })
}

// byAddress is the underlay on the device that has what --public-ip says.
func (c choice) byAddress() (node.Underlay, error) {
	d, n := c.bearing(c.devices)
	if n == len(c.given()) {
		return c.on(d, way{})
	}
	for _, a := range c.given() {
		if text := c.absent(a); text != "" {
			return node.Underlay{}, fmt.Errorf("--public-ip %s %s", a, text)
		}
	}
	return node.Underlay{}, fmt.Errorf("--public-ip %s and %s are on two interfaces of this node, and it has one underlay; name that with --iface, and the other address is taken as translated on the way", c.public, c.public6)
}

// bearing is the first of the devices that has most of the addresses of
// --public-ip, and how many.
func (c choice) bearing(all []device) (device, int) {
	var best device
	most := 0
	for _, d := range all {
		n := 0
		for _, a := range c.given() {
			if d.bears(a) && !d.own && !d.loopback {
				n++
			}
		}
		if n > most {
			best, most = d, n
		}
	}
	return best, most
}

// awaited says which address of --public-ip is not to be taken for a translated
// one although it is on none of the devices named: it is on one and may not be
// announced now, or it was on one until a moment ago. IPv6 addresses go with the
// link, and come back later than it does.
func (c choice) awaited(named []device) string {
	for _, a := range c.given() {
		for _, d := range named {
			if one, ok := d.find(a); ok && one.unfit != "" {
				return fmt.Sprintf("--public-ip %s is on %s, but %s: no other node is told of it", a, d.name, one.unfit)
			}
		}
		if a == c.before.Local || a == c.before.Local6 {
			return fmt.Sprintf("--public-ip %s has gone from %s", a, c.before.Interface)
		}
	}
	return ""
}

// absent says why an address is not one that an interface could announce, ""
// if one could.
func (c choice) absent(ip netip.Addr) string {
	text := "is on no interface of this node; if it is translated on the way, give --iface too"
	for _, d := range c.devices {
		a, ok := d.find(ip)
		switch {
		case !ok || d.own:
		case d.loopback:
			text = fmt.Sprintf("is on %s, which leads to no other node; give --iface too", d.name)
		case a.unfit != "":
			text = fmt.Sprintf("is on %s, but %s: no other node is told of it", d.name, a.unfit)
		default:
			return ""
		}
	}
	return text
}

// byRoute is the device by which the kernel reaches etcd, or the world if etcd
// is on this very machine.
func (c choice) byRoute() (node.Underlay, error) {
	if len(c.toEtcd) == 0 {
		if d, a, ok := c.asBefore(); ok {
			return c.on(d, way{src: a})
		}
		return node.Underlay{}, fmt.Errorf("no etcd endpoint can be resolved, so its route is unknown; give --iface or --public-ip (%w)", c.unresolved)
	}
	for _, w := range c.toEtcd {
		d, routed := c.by(w)
		switch {
		case w.dst.IsLoopback() || c.has(w.dst) || routed && c.contained(d):
			return c.byDefault()
		case routed && d.own:
			return node.Underlay{}, fmt.Errorf("the route to %s goes through %s, which is Tenure's own; give --iface or --public-ip", w.dst, d.name)
		case routed:
			return c.on(d, w)
		}
	}
	return node.Underlay{}, noWay(c.toEtcd)
}

// asBefore is the device that has what this node announced last: after a restart
// with the name servers away it is all that is known, and the pods need it.
func (c choice) asBefore() (device, netip.Addr, bool) {
	for _, a := range c.announced {
		for _, d := range c.devices {
			if d.up && d.bears(a) && !d.own && !d.loopback {
				return d, a, true
			}
		}
	}
	return device{}, netip.Addr{}, false
}

// byDefault is the device that routes to the world.
func (c choice) byDefault() (node.Underlay, error) {
	for _, w := range c.defaults {
		if d, ok := c.by(w); ok && !d.own && !d.loopback {
			return c.on(d, w)
		}
	}
	return node.Underlay{}, fmt.Errorf("etcd is on this machine: %w", noWay(c.defaults))
}

func noWay(ways []way) error {
	var to []string
	var errs []error
	for _, w := range ways {
		err := w.err
		if err == nil { // it was there a moment ago, or is none to other nodes
			err = fmt.Errorf("that to %s is by no interface of other nodes", w.dst)
		}
		to, errs = append(to, w.dst.String()), append(errs, err)
	}
	return fmt.Errorf("no route to %s, so no interface to announce; give --iface or --public-ip (%w)", strings.Join(to, " or "), errors.Join(errs...))
}

// by is the device of a way.
func (c choice) by(w way) (device, bool) {
	i := slices.IndexFunc(c.devices, func(d device) bool { return w.link != 0 && d.index == w.link })
	if i < 0 {
		return device{}, false
	}
	return c.devices[i], true
}

// has says whether an address is this machine's, fit to be announced or not.
func (c choice) has(ip netip.Addr) bool {
	return slices.ContainsFunc(c.devices, func(d device) bool { _, ok := d.find(ip); return ok })
}

// on is the underlay on one device, towards w where that is the reason for it:
// its address of either family, and what is announced in its place.
func (c choice) on(d device, w way) (node.Underlay, error) {
	if !d.up {
		return node.Underlay{}, fmt.Errorf("interface %s is down", d.name)
	}
	u := node.Underlay{Interface: d.name, MTU: d.mtu}
	if a, ok := d.pick(false, c.public, w.src); ok {
		u.PublicIP, u.Local, u.Net = cmp.Or(c.public, a.ip), a.ip, a.net
	}
	if a, ok := d.pick(true, c.public6, c.before.Local6, w.src, c.sources[d.index]); ok {
		u.PublicIP6, u.Local6, u.Net6 = cmp.Or(c.public6, a.ip), a.ip, a.net
	}
	if !u.Local.IsValid() && !u.Local6.IsValid() {
		return node.Underlay{}, fmt.Errorf("interface %s has no address that it can announce%s%s", d.name, d.unfit(false), d.unfit(true))
	}
	return u, nil
}

// pick is the first of the preferred addresses that the device may announce,
// else its first of that family. The kernel's choice of source can be one that
// it may not: an address on its way out, or of the other family. An IPv6 address
// in use stays while it can: the kernel prefers the youngest of several alike,
// which is no reason to tell all nodes of another.
func (d device) pick(six bool, prefer ...netip.Addr) (address, bool) {
	all := d.fit(six)
	for _, ip := range prefer {
		for _, a := range all {
			if a.ip == ip {
				return a, true
			}
		}
	}
	if len(all) == 0 {
		return address{}, false
	}
	return all[0], true
}

// lacks says in words which address of the families needed an underlay has not,
// and what to do about it; nil if it has them all. It is pure.
func (c choice) lacks(u node.Underlay, need families) error {
	for _, six := range []bool{false, true} {
		family, local, public := "IPv4", u.Local, c.public
		if six {
			family, local, public = "IPv6", u.Local6, c.public6
		}
		if local.IsValid() || !need.has(six) {
			continue
		}
		i := slices.IndexFunc(c.devices, func(d device) bool { return d.name == u.Interface })
		why := ""
		if i >= 0 {
			why = c.devices[i].unfit(six)
		}
		do := "give it one that lasts, or name another interface with --iface"
		if public.IsValid() {
			do = fmt.Sprintf("outer packets to be announced as from %s need one to come from; %s", public, do)
		}
		return fmt.Errorf("interface %s has no %s address that it can announce%s, and the pods' %s needs one: %s", u.Interface, family, why, family, do)
	}
	return nil
}

// keep is pure: what was found once stays in use while there is nothing in its
// place. An address that DHCP takes away comes back in a moment, or another one
// does. An interface that is gone, of those there are, keeps no family from
// another one.
func keep(before, found node.Underlay, need families, devices []device) node.Underlay {
	lost4 := need.v4 && before.Local.IsValid() && !found.Local.IsValid()
	lost6 := need.v6 && before.Local6.IsValid() && !found.Local6.IsValid()
	stands := slices.ContainsFunc(devices, func(d device) bool { return d.name == before.Interface })
	if (lost4 || lost6) && before.Interface != found.Interface && stands {
		return before
	}
	if lost4 {
		found.PublicIP, found.Local, found.Net = before.PublicIP, before.Local, before.Net
	}
	if lost6 {
		found.PublicIP6, found.Local6, found.Net6 = before.PublicIP6, before.Local6, before.Net6
	}
	return found
}
