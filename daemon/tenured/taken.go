package main

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// taken are the networks that pods must not share: those of the interfaces, and
// the addresses of etcd, also where it goes by a name. A name server is none of
// them, for it may be a pod.
func (u *underlay) taken() ([]conf.Named, error) {
	all, err := u.takenByLinks()
	if err != nil {
		return nil, err
	}
	add := func(ip netip.Addr, what string) {
		one := conf.Named{Prefix: netip.PrefixFrom(ip, ip.BitLen()), What: what}
		if !ip.IsLoopback() && !slices.ContainsFunc(all, func(n conf.Named) bool { return n.Prefix == one.Prefix }) {
			all = append(all, one)
		}
	}
	for _, host := range endpointHosts(u.cfg.Etcd) {
		if ip, err := netip.ParseAddr(host); err == nil {
			add(ip.Unmap().WithZone(""), "etcd endpoint "+host)
		}
	}
	if u.reached != nil {
		for _, ip := range u.reached() {
			add(ip, "etcd at "+ip.String())
		}
	}
	return all, nil
}

func (u *underlay) takenByLinks() ([]conf.Named, error) {
	links, err := u.links()
	if err != nil {
		return nil, err
	}
	names := make(map[int]string, len(links))
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	addrs, err := u.allAddresses()
	if err != nil {
		return nil, err
	}
	var all []conf.Named
	for _, a := range addrs {
		name := names[a.LinkIndex]
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok || ip.IsLoopback() || ip.Is6() && ip.IsLinkLocalUnicast() || name == "" || u.own(name) {
			continue
		}
		bits, _ := a.Mask.Size()
		all = append(all, conf.Named{Prefix: netip.PrefixFrom(ip.Unmap(), bits).Masked(), What: "interface " + name})
		if far, ok := farEnd(a); ok {
			all = append(all, conf.Named{Prefix: far, What: "the far end of interface " + name})
		}
	}
	return all, nil
}

func (u *underlay) allAddresses() ([]netlink.Addr, error) {
	addrs, err := whole(func() ([]netlink.Addr, error) { return u.handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return addrs, nil
}

// lookAtTaken says whether something has changed since it was called last that
// taken depends on. It is cheap, for it is asked every few seconds.
func (u *underlay) lookAtTaken() (news bool) {
	addrs, err := u.allAddresses()
	if err != nil {
		return false
	}
	var now []string
	for _, a := range addrs {
		if a.IP.To4() == nil && a.IP.IsLinkLocalUnicast() {
			continue // each pod's interface has one
		}
		now = append(now, fmt.Sprint(a.LinkIndex, a.IPNet, a.Peer))
	}
	if u.reached != nil {
		now = append(now, fmt.Sprint(u.reached()))
	}
	news = !slices.Equal(now, u.last)
	u.last = now
	return news
}

// farEnd is what a point-to-point link leads to.
func farEnd(a netlink.Addr) (netip.Prefix, bool) {
	if a.Peer == nil {
		return netip.Prefix{}, false
	}
	ip, ok := netip.AddrFromSlice(a.Peer.IP)
	bits, _ := a.Peer.Mask.Size()
	return netip.PrefixFrom(ip.Unmap(), bits).Masked(), ok
}

// resolvConf is where the resolver's library looks.
const resolvConf = "/etc/resolv.conf"

// nameServers are those that this machine asks; none where the file cannot be
// read.
func nameServers(file string) []netip.Addr {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return serversIn(string(text))
}

// serversIn reads the servers out of resolv.conf, without those of this machine.
func serversIn(text string) []netip.Addr {
	var all []netip.Addr
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if ip, err := netip.ParseAddr(words[1]); err == nil && !ip.IsLoopback() {
			all = append(all, ip.Unmap().WithZone(""))
		}
	}
	return all
}

// nameServerProblems names the name servers that the pod network covers. One that
// is a pod is well there; with any other the machine loses all names.
func (d *daemon) nameServerProblems(n *conf.Network) []api.Problem {
	if n == nil {
		return nil
	}
	var networks, covered []string
	for _, network := range []netip.Prefix{n.Network, n.IPv6Network} {
		for _, ip := range nameServers(d.underlay.resolv) {
			if network.Contains(ip) {
				networks, covered = append(networks, network.String()), append(covered, ip.String())
			}
		}
	}
	if len(covered) == 0 {
		return nil
	}
	return []api.Problem{{Code: "name-server-covered", Severity: api.SeverityWarning,
		Text: fmt.Sprintf("the pod network %s covers %s, a name server in %s: unless it is a pod or on a link of this node, no name can be looked up here", strings.Join(slices.Compact(networks), " and "), strings.Join(covered, ", "), resolvConf),
		Fix:  "name another server in " + resolvConf + ", or give the cluster another network"}}
}
