package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/lease"
)

// bridges is what others make of this node's subnet: bridges of their own with
// addresses of the pod network, such as docker's, and ports on ours. Neither
// follows when the node gets another subnet.
type bridges struct {
	ours  string // our bridge's name
	mu    sync.Mutex
	borne []borne
	ports map[int]port // foreign ones on our bridge, by index
}

// borne is an address that a bridge of somebody else has.
type borne struct {
	Bridge string
	Prefix netip.Prefix // with its host bits
}

// port is a device on our bridge that Tenure did not put there.
type port struct {
	Name string
	// Since is the subnet that was held when it was first seen.
	Since lease.Subnets
}

// look takes in what the kernel has, while live is held.
func (b *bridges) look(links []netlink.Link, addrs []netlink.Addr, live lease.Subnets) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.borne = bridgeAddresses(links, addrs, b.ours)
	b.ports = foreignPorts(links, b.ours, live, b.ports)
}

// bridgeAddresses is pure: the addresses of bridges that are not ours.
func bridgeAddresses(links []netlink.Link, addrs []netlink.Addr, ours string) []borne {
	names := map[int]string{}
	for _, l := range links {
		if a := l.Attrs(); l.Type() == "bridge" && a.Name != ours {
			names[a.Index] = a.Name
		}
	}
	var all []borne
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if bits, _ := a.Mask.Size(); ok && names[a.LinkIndex] != "" && !ip.IsLinkLocalUnicast() {
			all = append(all, borne{names[a.LinkIndex], netip.PrefixFrom(ip.Unmap(), bits)})
		}
	}
	slices.SortFunc(all, func(a, b borne) int {
		return cmp.Or(cmp.Compare(a.Bridge, b.Bridge), a.Prefix.Addr().Compare(b.Prefix.Addr()))
	})
	return all
}

// foreignPorts is pure: the ports on our bridge that are not ours, each with
// the subnet under which it was seen first. While nothing is held no port is
// new: what it was made for is not known.
func foreignPorts(links []netlink.Link, ours string, live lease.Subnets, known map[int]port) map[int]port {
	master := -1
	for _, l := range links {
		if l.Attrs().Name == ours {
			master = l.Attrs().Index
		}
	}
	all := map[int]port{}
	for _, l := range links {
		a := l.Attrs()
		if _, _, mine := attach.ParseAlias(a.Alias); mine || a.MasterIndex != master {
			continue
		}
		if old, ok := known[a.Index]; ok {
			all[a.Index] = port{a.Name, old.Since}
		} else if !live.IsZero() {
			all[a.Index] = port{a.Name, live}
		}
	}
	return all
}

// problems says which of them are not on the subnet that is held.
func (b *bridges) problems(v lease.View, former []lease.Subnets, file string) []api.Problem {
	if !v.Held || v.Network == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return mismatches(b.borne, b.ports, b.ours, v.Holding.Subnets(), former, *v.Network, file)
}

// mismatches is pure: the bridges and ports that stand on another subnet than
// the one held, or beside ours on that one. This is an outage for what is on
// them, or on ours; with an address of the network that this node never held it
// becomes one when a node leases that subnet. doctor judges the same.
func mismatches(all []borne, ports map[int]port, ours string, live lease.Subnets, former []lease.Subnets, n conf.Network, file string) []api.Problem {
	var texts []string
	severity := api.SeverityWarning
	say := func(outage bool, format string, args ...any) {
		texts = append(texts, fmt.Sprintf(format, args...))
		if outage {
			severity = api.SeverityError
		}
	}
	for _, b := range all {
		switch p := b.Prefix.Masked(); {
		case b.Prefix.IsSingleIP():
		case overlap(p, live):
			say(true, "%s has %s, of the subnet that %s has: packets for what is on one of them go to the other", b.Bridge, b.Prefix, ours)
		case slices.ContainsFunc(former, func(s lease.Subnets) bool { return overlap(p, s) }):
			say(true, "%s has %s, of a subnet that this node held before, and holds %s now: what is on %s reaches no other node", b.Bridge, b.Prefix, live, b.Bridge)
		case overlap(p, networkOf(n)):
			say(false, "%s has %s, of the pod network, and this node holds %s: what is on %s reaches no other node, and the node that leases that subnet is not reached from here", b.Bridge, b.Prefix, live, b.Bridge)
		}
	}
	since := map[string][]string{}
	for _, p := range ports {
		if p.Since != live {
			since[p.Since.String()] = append(since[p.Since.String()], p.Name)
		}
	}
	for old, names := range since {
		slices.Sort(names)
		say(true, "%s on %s, which others put there, are from when this node held %s: with addresses of that subnet they reach no other node; it holds %s now", strings.Join(names, ", "), ours, old, live)
	}
	if len(texts) == 0 {
		return nil
	}
	slices.Sort(texts)
	return []api.Problem{{Code: "bridge-mismatch", Severity: severity, Text: strings.Join(texts, "; "),
		Fix: "start what uses the subnet anew, with the present one: docker with the options that tenurectl docker-opts prints, and without bip and bridge in its daemon.json; others with what " + file + " says"}}
}

func overlap(p netip.Prefix, s lease.Subnets) bool {
	return slices.ContainsFunc(s.All(), p.Overlaps)
}

func networkOf(n conf.Network) lease.Subnets { return lease.Subnets{V4: n.Network, V6: n.IPv6Network} }
