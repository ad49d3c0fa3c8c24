package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The netlink library drops much of what the kernel says. This is the rest,
// read from the messages themselves.

// What the libraries have no name for.
const (
	filterSkipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	ndaNextHop      = 13     // NDA_NH_ID
)

// dumpRaw asks for a list and returns its messages.
func (k *Linux) dumpRaw(what string, request, answer uint16, data ...nl.NetlinkRequestData) ([][]byte, error) {
	return dump(what, func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(int(request), unix.NLM_F_DUMP)
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.raw}
		for _, d := range data {
			req.AddData(d)
		}
		return req.Execute(unix.NETLINK_ROUTE, answer)
	})
}

// withoutStats keeps the counters out of a list of links: they are most of it.
func withoutStats() nl.NetlinkRequestData {
	return nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(filterSkipStats))
}

// attrsIn calls f with each attribute in b.
func attrsIn(b []byte, f func(kind uint16, value []byte)) {
	for len(b) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&^uint16(unix.NLA_F_NESTED), b[unix.SizeofRtAttr:size])
		b = b[min((size+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1), len(b)):]
	}
}

// attrIn returns what lies at the end of a path of nested attributes, nil
// without one.
func attrIn(b []byte, path ...uint16) (found []byte) {
	attrsIn(b, func(kind uint16, value []byte) {
		if kind == path[0] {
			found = value
		}
	})
	if len(path) == 1 || found == nil {
		return found
	}
	return attrIn(found, path[1:]...)
}

// setting is an attribute with the value that we want it to have. A kernel
// that does not know the attribute does not say it, and behaves as wanted.
type setting struct {
	attr uint16
	name string
	want uint64
}

// oddIn names the settings in b that are not as wanted.
func oddIn(b []byte, settings []setting) string {
	var odd []string
	attrsIn(b, func(kind uint16, value []byte) {
		for _, s := range settings {
			if v := number(value); kind == s.attr && v != s.want {
				odd = append(odd, fmt.Sprintf("%s %d", s.name, v))
			}
		}
	})
	return strings.Join(odd, " ")
}

// number reads an attribute's value; one that is there without any counts as 1.
// What is longer than a number, such as an address, is 1 unless it is zero.
func number(b []byte) uint64 {
	switch len(b) {
	case 0:
		return 1
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(b))
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	}
	for _, v := range b {
		if v != 0 {
			return 1
		}
	}
	return 0
}

// vxlanSettings are what a vxlan device may have beside VNI, port, addresses
// and learning, each with the kernel's default: we set none.
func vxlanSettings() []setting {
	return []setting{
		{unix.IFLA_VXLAN_GROUP, "group", 0},
		{unix.IFLA_VXLAN_GROUP6, oddGroup6, 0},
		{unix.IFLA_VXLAN_TTL, "ttl", 0},
		{unix.IFLA_VXLAN_TTL_INHERIT, "ttl-inherit", 0},
		{unix.IFLA_VXLAN_TOS, "tos", 0},
		{unix.IFLA_VXLAN_LABEL, "flowlabel", 0},
		{unix.IFLA_VXLAN_DF, "df", 0},
		{unix.IFLA_VXLAN_AGEING, "ageing", 300},
		{unix.IFLA_VXLAN_LIMIT, "maxaddr", 0},
		{unix.IFLA_VXLAN_PORT_RANGE, "srcport", 0},
		{unix.IFLA_VXLAN_PROXY, "proxy", 0},
		{unix.IFLA_VXLAN_RSC, "rsc", 0},
		{unix.IFLA_VXLAN_L2MISS, "l2miss", 0},
		{unix.IFLA_VXLAN_L3MISS, "l3miss", 0},
		{unix.IFLA_VXLAN_UDP_CSUM, "udpcsum", 1},
		{unix.IFLA_VXLAN_UDP_ZERO_CSUM6_TX, "udp6zerocsumtx", 0},
		{unix.IFLA_VXLAN_UDP_ZERO_CSUM6_RX, "udp6zerocsumrx", 0},
		{unix.IFLA_VXLAN_REMCSUM_TX, "remcsumtx", 0},
		{unix.IFLA_VXLAN_REMCSUM_RX, "remcsumrx", 0},
		{unix.IFLA_VXLAN_REMCSUM_NOPARTIAL, "remcsumnopartial", 0},
		{unix.IFLA_VXLAN_GBP, "gbp", 0},
		{unix.IFLA_VXLAN_GPE, "gpe", 0},
		{unix.IFLA_VXLAN_COLLECT_METADATA, "external", 0},
		{unix.IFLA_VXLAN_VNIFILTER, "vnifilter", 0},
		{unix.IFLA_VXLAN_LOCALBYPASS, "localbypass", 1},
	}
}

// bridgeSettings are those of a bridge that cut pods off for a while or for
// good. All of them are on or off, and off by default.
func bridgeSettings() []setting {
	return []setting{
		{unix.IFLA_BR_STP_STATE, "stp", 0},
		{unix.IFLA_BR_VLAN_FILTERING, "vlan_filtering", 0},
	}
}

// portSettings are those of a bridge's port that keep a pod from sending or
// from being found. SetPort sets all of them.
func portSettings() []setting {
	return []setting{
		{unix.IFLA_BRPORT_LEARNING, "learning", 1},
		{unix.IFLA_BRPORT_UNICAST_FLOOD, "flood", 1},
		{unix.IFLA_BRPORT_BCAST_FLOOD, "bcast_flood", 1},
		{unix.IFLA_BRPORT_MCAST_FLOOD, "mcast_flood", 1},
		{unix.IFLA_BRPORT_PROXYARP, "proxy_arp", 0},
		{unix.IFLA_BRPORT_NEIGH_SUPPRESS, "neigh_suppress", 0},
		{unix.IFLA_BRPORT_VLAN_TUNNEL, "vlan_tunnel", 0},
		{unix.IFLA_BRPORT_LOCKED, "locked", 0},
	}
}

// forwarding is the state of a bridge's port that lets packets pass.
const portForwarding = 3

// portOf reads how a link is plugged into a bridge. running says that the port
// and the bridge are, and so that the port should let packets pass.
func portOf(info []byte, running bool) Port {
	p := Port{
		Hairpin:  number(orZero(attrIn(info, unix.IFLA_BRPORT_MODE))) != 0,
		Isolated: number(orZero(attrIn(info, unix.IFLA_BRPORT_ISOLATED))) != 0,
		Odd:      oddIn(info, portSettings()),
	}
	if state := number(orZero(attrIn(info, unix.IFLA_BRPORT_STATE))); running && state != portForwarding {
		p.Odd = strings.TrimSpace(fmt.Sprintf("state %d %s", state, p.Odd))
	}
	return p
}

func orZero(b []byte) []byte {
	if b == nil {
		return []byte{0}
	}
	return b
}

// setPortInfo writes settings of a bridge's port in one request.
func (k *Linux) setPortInfo(index int, settings ...setting) error {
	info := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	for _, s := range settings {
		info.AddRtAttr(int(s.attr), []byte{byte(s.want)})
	}
	return k.setLink(unix.AF_BRIDGE, index, info)
}

// setLink changes a link in a way that the library cannot.
func (k *Linux) setLink(family, index int, attrs ...nl.NetlinkRequestData) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.raw}
	msg := nl.NewIfInfomsg(family)
	msg.Index = int32(index)
	req.AddData(msg)
	for _, a := range attrs {
		req.AddData(a)
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// rawNeigh is a neighbour or a forwarding entry.
type rawNeigh struct {
	index int
	state uint16
	flags uint8
	mac   MAC
	dst   netip.Addr
	// odd names what our entries never have.
	odd string
}

// readRawNeighs lists the neighbours of a family.
func (k *Linux) readRawNeighs(what string, family uint8) ([]rawNeigh, error) {
	msgs, err := k.dumpRaw(what, unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, &netlink.Ndmsg{Family: family})
	if err != nil {
		return nil, err
	}
	out := make([]rawNeigh, 0, len(msgs))
	for _, m := range msgs {
		if len(m) >= unix.SizeofNdMsg {
			out = append(out, neighOf(m))
		}
	}
	return out, nil
}

func neighOf(m []byte) rawNeigh {
	n := rawNeigh{
		index: int(int32(binary.NativeEndian.Uint32(m[4:]))),
		state: binary.NativeEndian.Uint16(m[8:]),
		flags: m[10],
	}
	attrsIn(m[unix.SizeofNdMsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.NDA_DST:
			n.dst = addrOf(value)
		case unix.NDA_LLADDR:
			copy(n.mac[:], value)
		case unix.NDA_PORT:
			if len(value) == 2 {
				n.note("port %d", binary.BigEndian.Uint16(value))
			}
		case unix.NDA_VNI:
			n.note("vni %d", number(value))
		case unix.NDA_SRC_VNI:
			n.note("src_vni %d", number(value))
		case unix.NDA_IFINDEX:
			n.note("via %d", number(value))
		case ndaNextHop:
			n.note("nhid %d", number(value))
		}
	})
	return n
}

func (n *rawNeigh) note(format string, v any) {
	n.odd = strings.TrimSpace(n.odd + " " + fmt.Sprintf(format, v))
}

// routeOf decodes a route and says which table it is in. ok is false for what
// the kernel only remembers for itself.
func routeOf(m []byte, names map[int]string) (r Route, table uint32, ok bool) {
	if len(m) < unix.SizeofRtMsg || m[0] != unix.AF_INET && m[0] != unix.AF_INET6 {
		return r, 0, false
	}
	six := m[0] == unix.AF_INET6
	flags := binary.NativeEndian.Uint32(m[8:])
	table = uint32(m[4])
	r = Route{Type: routeType(m[7]), Protocol: m[5], LinkScope: m[6] == unix.RT_SCOPE_LINK, Onlink: flags&unix.RTNH_F_ONLINK != 0}
	dst, odd := netip.IPv4Unspecified(), ""
	if six {
		dst = netip.IPv6Unspecified()
	}
	if m[3] != 0 {
		odd = fmt.Sprintf("tos %d", m[3])
	}
	attrsIn(m[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(value)
		case unix.RTA_OIF:
			r.Link = names[int(number(value))]
		case unix.RTA_GATEWAY:
			r.Via = addrOf(value)
		case unix.RTA_PRIORITY:
			r.Metric = uint32(number(value))
		case unix.RTA_PREFSRC:
			r.Src = addrOf(value)
		case unix.RTA_TABLE:
			table = uint32(number(value))
		case unix.RTA_MULTIPATH:
			odd = fmt.Sprintf("with %d next hops", nextHops(value))
		case unix.RTA_VIA:
			odd = "via another family"
		case unix.RTA_ENCAP_TYPE:
			odd = "encap"
		case unix.RTA_METRICS:
			odd = "with metrics"
		case unix.RTA_FLOW:
			odd = "with a realm"
		}
	})
	r.Dst, r.Odd = netip.PrefixFrom(dst, int(m[1])), odd
	if six && r.Type == RouteUnreachable {
		r.Link = "" // the loopback interface, for form's sake
	}
	return r, table, flags&unix.RTM_F_CLONED == 0 && dst.Is6() == six && r.Dst.IsValid()
}

func routeType(kind byte) RouteType {
	switch kind {
	case unix.RTN_UNICAST:
		return RouteUnicast
	case unix.RTN_UNREACHABLE:
		return RouteUnreachable
	case unix.RTN_LOCAL:
		return RouteLocal
	}
	return RouteType(fmt.Sprintf("type-%d", kind))
}

// nextHops counts the next hops in an attribute.
func nextHops(b []byte) (n int) {
	for len(b) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtNexthop {
			break
		}
		n++
		b = b[min((size+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1), len(b)):]
	}
	return n
}

// deserializeLink decodes one message of a list of links.
func deserializeLink(m []byte) (netlink.Link, error) {
	return netlink.LinkDeserialize(&unix.NlMsghdr{Type: unix.RTM_NEWLINK}, m)
}
