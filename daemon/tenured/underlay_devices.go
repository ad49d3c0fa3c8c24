package main

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/dataplane"
)

// device is a link as the choice of the underlay sees it.
type device struct {
	name       string
	index, mtu int
	up         bool
	loopback   bool
	// own says that it is of this instance: its bridge, a vxlan device or a
	// pod's interface.
	own bool
	// inner says that it is a bridge with nothing but pods, containers or
	// guests on it, as far as its ports tell.
	inner bool
	addrs []address
}

// address is one of a device's.
type address struct {
	ip netip.Addr
	// net is what lies on the link by the address's prefix length.
	net netip.Prefix
	// unfit says why it is never announced, "" if it may be.
	unfit string
}

// find is the device's address ip.
func (d device) find(ip netip.Addr) (address, bool) {
	i := slices.IndexFunc(d.addrs, func(a address) bool { return a.ip == ip })
	if i < 0 {
		return address{}, false
	}
	return d.addrs[i], true
}

// bears says whether the device has that address and may announce it.
func (d device) bears(ip netip.Addr) bool {
	a, ok := d.find(ip)
	return ok && a.unfit == ""
}

// fit are the addresses of one family that may be announced, in the kernel's
// order.
func (d device) fit(six bool) []address {
	var all []address
	for _, a := range d.addrs {
		if a.unfit == "" && a.ip.Is6() == six {
			all = append(all, a)
		}
	}
	return all
}

// unfit says in words which addresses of one family may not be announced, and
// why; "" if there are none. The one that IPv6 has on every link is not worth a
// word.
func (d device) unfit(six bool) string {
	var texts []string
	for _, a := range d.addrs {
		if a.unfit != "" && a.ip.Is6() == six && (!six || !a.ip.IsLinkLocalUnicast()) {
			texts = append(texts, fmt.Sprintf("%s is %s", a.ip, a.unfit))
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return " (" + strings.Join(texts, ", ") + ")"
}

// devices is pure: the links with their addresses, in the kernel's order.
func devices(instance string, links []netlink.Link, addrs []netlink.Addr) []device {
	all := make([]device, 0, len(links))
	at := make(map[int]int, len(links))
	for _, l := range links {
		a := l.Attrs()
		_, _, pods := attach.ParseAlias(a.Alias)
		at[a.Index] = len(all)
		all = append(all, device{
			name: a.Name, index: a.Index, mtu: a.MTU,
			up: a.Flags&net.FlagUp != 0, loopback: a.Flags&net.FlagLoopback != 0,
			own: pods || ownName(instance, a.Name), inner: l.Type() == "bridge",
		})
	}
	for _, l := range links {
		// A port that leads out of the machine makes the bridge one that does.
		if i, ok := at[l.Attrs().MasterIndex]; ok && !slices.Contains(innerPorts(), l.Type()) {
			all[i].inner = false
		}
	}
	for _, a := range addrs {
		i, ok := at[a.LinkIndex]
		if one, valid := addressOf(a); ok && valid {
			all[i].addrs = append(all[i].addrs, one)
		}
	}
	return all
}

// innerPorts are the kinds of links by which pods, containers and guests hang on
// a bridge.
func innerPorts() []string { return []string{"veth", "tun", "tuntap", "vxlan", "dummy", "ifb"} }

func addressOf(a netlink.Addr) (address, bool) {
	ip, ok := netip.AddrFromSlice(a.IP)
	if !ok {
		return address{}, false
	}
	ip = ip.Unmap()
	bits, _ := a.Mask.Size()
	one := address{ip: ip, net: netip.PrefixFrom(ip, bits).Masked(), unfit: dataplane.Unfit(ip, a.Scope, a.Flags)}
	if far, ok := farEnd(a); ok {
		one.net = far
	}
	return one, true
}

// ownName tells the devices of an instance: the bridge and the vxlan devices.
func ownName(instance, link string) bool {
	return link == instance+"0" || strings.HasPrefix(link, instance+".") || strings.HasPrefix(link, instance+"6.")
}
