package dataplane

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Kinds of links, as the kernel names them.
const (
	KindBridge = "bridge"
	KindVxlan  = "vxlan"
)

// State is what the kernel holds, as far as it matters here. Everything in it
// was read in one go; nothing is remembered.
type State struct {
	// IPv6 says that the kernel has IPv6. Without it nothing of that family is
	// asked of it.
	IPv6 bool
	// Links are all links of the namespace, by name.
	Links map[string]Link
	// Addrs are the addresses of our devices.
	Addrs map[Addr]struct{}
	// Routes are the routes of the main table, and of the local table those
	// to addresses of our devices.
	Routes map[Route]struct{}
	// FDB are the static forwarding entries of our vxlan devices.
	FDB map[FDB]struct{}
	// Neighs are the permanent neighbours on our vxlan devices.
	Neighs map[Neigh]MAC
	// Fenced says of each of our vxlan devices whether the fence's current
	// program is attached both ways. A missing device means "not known".
	Fenced map[string]bool
	// Uplinks are the devices of the host that bear the fence in its form for
	// one, or bore it, each with whether the fence's current program is attached
	// both ways. nil means that it could not be read.
	Uplinks map[string]bool
	// TxChecksum says of each of our vxlan devices whether checksums of what it
	// sends are left to the hardware. A missing device means "not known".
	TxChecksum map[string]bool
	// Tokens are the VTEP MACs that the fence lets in, with their subnet.
	// nil means that they could not be read.
	Tokens map[MAC]netip.Prefix
	// Sysctls are values under /proc/sys, by path. A missing one was not
	// readable or belongs to a link that does not exist.
	Sysctls map[string]string
	// Rules and Rules6 are those of IPv4 and of IPv6, nil when they were not
	// asked for or could not be read.
	Rules, Rules6 *Rules
	// Faults are parts that could not be read; Plan leaves those parts alone.
	Faults []Fault
}

// Link is a network device.
type Link struct {
	Index int
	// Kind is the kernel's name of the type, "bridge", "veth", "device".
	Kind string
	MAC  MAC
	MTU  int
	// Up is the administrative state.
	Up bool
	// Master is the name of the bridge the link is a port of.
	Master string
	// Port is how the link is plugged in, the zero value without a Master.
	Port Port
	// NoARP and Promisc are flags that we never set: without ARP no pod is
	// found, and a promiscuous device costs each packet a copy.
	NoARP, Promisc bool
	// NoEthernet says that packets on the link begin with no Ethernet header, as on
	// a tunnel for IP alone: there the fence cannot judge them.
	NoEthernet bool
	// ProtoDown is the switch by which a program above the kernel takes a
	// device's carrier away. We never set it.
	ProtoDown bool
	// Odd names settings of a bridge that we never make and that cut pods off,
	// such as the spanning tree protocol.
	Odd string
	// Tunnel is set for vxlan devices.
	Tunnel Tunnel
}

// Port is what we set of a bridge's port. Hairpin lets a pod reach itself by a
// service; ports that are isolated do not reach one another.
type Port struct {
	Hairpin, Isolated bool
	// Odd names settings that keep packets from the pod, such as a port that
	// is blocked, or that does not learn.
	Odd string
}

// Tunnel is the part of a vxlan device that cannot be changed once it exists.
type Tunnel struct {
	VNI, Port int
	Local     netip.Addr
	// Parent is the name of the underlay interface.
	Parent   string
	Learning bool
	// Odd names settings that we never make, such as a multicast group.
	Odd string
}

// six says that the outer packets are of IPv6.
func (t Tunnel) six() bool { return t.Local.Is6() || strings.Contains(t.Odd, oddGroup6) }

// oddGroup6 begins the oddity of a device whose outer packets go to a group of
// IPv6.
const oddGroup6 = "group6"

// Addr is an address of a link.
type Addr struct {
	Link   string
	Prefix netip.Prefix
	// Odd says why the address cannot be used, such as "tentative": IPv6
	// looks for duplicates unless it is told not to. Ours are never so.
	Odd string
}

// RouteType is the kind of a route.
type RouteType string

// The types of routes we make; others are read as their number.
const (
	RouteUnicast     RouteType = "unicast"
	RouteUnreachable RouteType = "unreachable"
	// RouteLocal is the route in the table "local" that the kernel makes for
	// each address; only those of our devices are read.
	RouteLocal RouteType = "local"
)

// Route is a route of the main table, or of the local one if its type says so.
type Route struct {
	Dst netip.Prefix
	// Via is the gateway; invalid for a route without one.
	Via netip.Addr
	// Link is the outgoing device; "" without one or with several.
	Link   string
	Type   RouteType
	Metric uint32
	// Protocol says who made the route.
	Protocol uint8
	// Src is the source address of what the node itself sends; ours have none.
	Src netip.Addr
	// Onlink trusts Via to be a neighbour although no prefix says so.
	Onlink bool
	// LinkScope is set for routes to directly attached hosts.
	LinkScope bool
	// Odd names what we never make, such as several next hops or an MTU.
	Odd string
}

// FDB is one static forwarding entry of a vxlan device.
type FDB struct {
	Link string
	MAC  MAC
	Dst  netip.Addr
	// Odd names what we never make, such as another UDP port.
	Odd string
}

// Neigh is the key of one permanent neighbour.
type Neigh struct {
	Link string
	Addr netip.Addr
}

// Fault is a part of the kernel that could not be read or written, or a wish
// that cannot be met.
type Fault struct {
	// What is the part: "rules", "fence", "sysctl", "notrack" or an operation.
	What string
	// Why is the error for people.
	Why string
}

// Clone returns a deep copy.
func (s State) Clone() State {
	s.Links = maps.Clone(s.Links)
	s.Addrs = maps.Clone(s.Addrs)
	s.Routes = maps.Clone(s.Routes)
	s.FDB = maps.Clone(s.FDB)
	s.Neighs = maps.Clone(s.Neighs)
	s.Fenced = maps.Clone(s.Fenced)
	s.Uplinks = maps.Clone(s.Uplinks)
	s.TxChecksum = maps.Clone(s.TxChecksum)
	s.Tokens = maps.Clone(s.Tokens)
	s.Sysctls = maps.Clone(s.Sysctls)
	s.Faults = slices.Clone(s.Faults)
	s.Rules, s.Rules6 = cloneRules(s.Rules), cloneRules(s.Rules6)
	return s
}

func bridgeName(instance string) string { return instance + "0" }

// vxlanPrefix is what the names of an instance's vxlan devices begin with.
func vxlanPrefix(instance string, six bool) string {
	if six {
		return instance + "6."
	}
	return instance + "."
}

// ourVxlan reports whether name is one that a vxlan device of the instance
// bears, of either family.
func ourVxlan(instance, name string) bool {
	return ourVxlanOf(instance, name, false) || ourVxlanOf(instance, name, true)
}

// ourVxlanOf is the same for one family: the prefix and a number.
func ourVxlanOf(instance, name string, six bool) bool {
	digits, ok := strings.CutPrefix(name, vxlanPrefix(instance, six))
	if !ok {
		return false
	}
	_, err := strconv.ParseUint(digits, 10, 32)
	return err == nil
}
