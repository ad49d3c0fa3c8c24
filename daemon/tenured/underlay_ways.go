package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
)

// resolveTimeout bounds the look-up of one etcd endpoint's name.
const resolveTimeout = 5 * time.Second

// ask fills in what the choice needs to hear from the kernel.
func (u *underlay) ask(ctx context.Context, c *choice) {
	sixFirst := c.need.v6 && !c.need.v4
	// Any address: nothing is sent, only the default route is asked for.
	world := []netip.Addr{netip.AddrFrom4([4]byte{1, 1, 1, 1}), netip.AddrFrom16([16]byte{0x20, 15: 1})}
	if sixFirst {
		slices.Reverse(world)
	}
	for _, dst := range world {
		c.defaults = append(c.defaults, u.way(dst, ""))
	}
	if len(c.ifaces) == 0 && len(c.given()) == 0 {
		c.toEtcd, c.unresolved = u.waysToEtcd(ctx, sixFirst)
	}
	c.sources = map[int]netip.Addr{}
	for _, d := range c.devices {
		if d.up && !d.own && len(d.fit(true)) > 1 {
			c.sources[d.index] = u.way(netip.AddrFrom16([16]byte{0x20, 15: 1}), d.name).src
		}
	}
}

// way asks the kernel, where oif is given for that device alone.
func (u *underlay) way(dst netip.Addr, oif string) way {
	routes, err := u.handle.RouteGetWithOptions(dst.AsSlice(), &netlink.RouteGetOptions{Oif: oif})
	if err != nil {
		return way{dst: dst, err: err}
	}
	if len(routes) == 0 {
		return way{dst: dst, err: errors.New("the kernel names none")}
	}
	src, _ := netip.AddrFromSlice(routes[0].Src)
	return way{dst: dst, link: routes[0].LinkIndex, src: src.Unmap()}
}

// waysToEtcd are those to the addresses of the endpoints, in their order, up to
// the first that there is a route to. A name may have addresses of both families:
// those of the other are looked up where there is no way by the one. The error
// says why there is none at all.
func (u *underlay) waysToEtcd(ctx context.Context, sixFirst bool) (ways []way, unresolved error) {
	networks := []string{"ip4", "ip6"}
	if sixFirst {
		slices.Reverse(networks)
	}
	for _, host := range endpointHosts(u.cfg.Etcd) {
		here, err := u.waysToHost(ctx, networks, host)
		unresolved = errors.Join(unresolved, err)
		if ways = append(ways, here...); len(here) > 0 && here[len(here)-1].link != 0 {
			return ways, nil
		}
	}
	return ways, unresolved
}

// waysToHost are those to one endpoint, in the order of the networks, up to the
// first that there is a route to.
func (u *underlay) waysToHost(ctx context.Context, networks []string, host string) (ways []way, unresolved error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	for _, network := range networks {
		ips, err := u.lookUp(ctx, network, host)
		unresolved = errors.Join(unresolved, err)
		for _, ip := range ips {
			w := u.way(ip, "")
			if ways = append(ways, w); w.link != 0 {
				return ways, nil
			}
		}
	}
	return ways, unresolved
}

// lookUp are the addresses of a host in one family, which an address has only
// in its own.
func (u *underlay) lookUp(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip = ip.Unmap().WithZone(""); ip.Is6() == (network == "ip6") {
			return []netip.Addr{ip}, nil
		}
		return nil, nil
	}
	ips, err := u.resolve(ctx, network, host)
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", host, err)
	}
	return ips, nil
}
