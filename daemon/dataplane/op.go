package dataplane

import (
	"fmt"
	"net/netip"
	"strings"
)

// Op is one idempotent change with its place in the order of things.
type Op struct {
	// Scope groups what depends on one another, as a slash-separated path:
	// when an operation fails, the later ones of the same pass whose scope is
	// its scope or lies below it are left out.
	Scope string
	// Change is what is to be done.
	Change Change
	// OnFail is done when Change fails, to be on the safe side; nil for none.
	OnFail Change
}

// String is the change in words; it serves logs and tests alike.
func (o Op) String() string { return o.Change.String() }

// Kind is the class that writes are counted by.
func (o Op) Kind() string {
	switch o.Change.(type) {
	case AttachFence, AttachUplink, DetachUplink:
		return "fence"
	case SetPort:
		return "port"
	case AddAddr, DelAddr:
		return "addr"
	case AllowToken, DenyToken:
		return "token"
	case SetFDB, DelFDB:
		return "fdb"
	case SetNeigh, DelNeigh:
		return "neigh"
	case SetRoute, DelRoute, Reroute:
		return "route"
	case SetSysctl:
		return "sysctl"
	case SetRules:
		return "rules"
	}
	return "link"
}

// Change is one of the types below. Its String is the change in words.
type Change interface{ fmt.Stringer }

// AddBridge creates a bridge, down, with its MAC from the first moment on.
type AddBridge struct {
	Name string
	MAC  MAC
}

// AddVxlan creates a vxlan device, down, with its MAC from the first moment on.
type AddVxlan struct {
	Name   string
	Tunnel Tunnel
	MAC    MAC
	MTU    int
}

// DelLink deletes a link and with it all that hangs on it.
type DelLink struct{ Link string }

// SetMAC changes a link's MAC. The kernel then forgets the link's neighbours,
// permanent ones too.
type SetMAC struct {
	Link string
	MAC  MAC
}

// SetMTU changes a link's MTU.
type SetMTU struct {
	Link string
	MTU  int
}

// SetTxChecksum turns on or off that checksums of what a link sends are left
// to the hardware.
type SetTxChecksum struct {
	Link string
	On   bool
}

// SetUp brings a link up.
type SetUp struct{ Link string }

// SetDown takes a link down. The kernel then drops its routes and neighbours.
type SetDown struct{ Link string }

// SetFlags turns ARP on, promiscuous mode off, and ends a protocol's hold on
// the carrier. When ARP was off the kernel then forgets the link's neighbours,
// permanent ones too.
type SetFlags struct{ Link string }

// SetBridge turns off what a bridge of ours never has: the spanning tree
// protocol, which lets no pod talk for half a minute, and the filter of VLANs.
type SetBridge struct{ Link string }

// SetFree takes a link out of the device that it was made a part of: what came
// in by it would be that device's.
type SetFree struct{ Link string }

// SetPort makes a link a port of the bridge, in hairpin mode, not isolated,
// with nothing switched off that a pod needs, and up.
type SetPort struct{ Link, Bridge string }

// AttachFence attaches the fence to both directions of a link.
type AttachFence struct{ Link string }

// AttachUplink attaches the fence, in its form for the host's own interface, to
// both directions of a link that direct routes lead through.
type AttachUplink struct{ Link string }

// DetachUplink takes it off again.
type DetachUplink struct{ Link string }

// AddAddr adds an address.
type AddAddr struct{ Addr Addr }

// DelAddr removes an address.
type DelAddr struct{ Addr Addr }

// AllowToken lets a VTEP MAC in.
type AllowToken struct {
	MAC    MAC
	Subnet netip.Prefix
}

// DenyToken shuts a VTEP MAC out.
type DenyToken struct{ MAC MAC }

// SetFDB makes the entry the one for its MAC.
type SetFDB struct{ FDB FDB }

// DelFDB removes a forwarding entry; an odd one with all others of its MAC.
type DelFDB struct{ FDB FDB }

// SetNeigh adds or replaces a permanent neighbour.
type SetNeigh struct {
	Neigh Neigh
	MAC   MAC
}

// DelNeigh removes a neighbour.
type DelNeigh struct{ Neigh Neigh }

// SetRoute adds a route.
type SetRoute struct {
	Route Route
	// Replace says that an older route of ours for the same prefix and metric
	// stands in its place. Without it the change fails when any route does.
	Replace bool
}

// DelRoute removes a route.
type DelRoute struct{ Route Route }

// Reroute sets routes in place of others of ours, and removes routes.
type Reroute struct{ Set, Del []Route }

// SetSysctl writes a value below /proc/sys.
type SetSysctl struct{ Path, Value string }

// SetRules edits iptables tables, or those of ip6tables, each of them in one
// step.
type SetRules struct {
	Six    bool
	Tables []TableEdit
}

func (c AddBridge) String() string {
	return fmt.Sprintf("link add %s bridge mac %s", c.Name, c.MAC)
}
func (c AddVxlan) String() string {
	return fmt.Sprintf("link add %s vxlan %s mac %s%s", c.Name, c.Tunnel, c.MAC, mtuText(c.MTU))
}
func (c DelLink) String() string { return "link del " + c.Link }
func (c SetMAC) String() string  { return fmt.Sprintf("link set %s mac %s", c.Link, c.MAC) }
func (c SetMTU) String() string  { return fmt.Sprintf("link set %s mtu %d", c.Link, c.MTU) }
func (c SetTxChecksum) String() string {
	return fmt.Sprintf("link set %s tx-checksum %s", c.Link, onOff(c.On))
}
func (c SetUp) String() string   { return fmt.Sprintf("link set %s up", c.Link) }
func (c SetDown) String() string { return fmt.Sprintf("link set %s down", c.Link) }
func (c SetFlags) String() string {
	return fmt.Sprintf("link set %s arp on promisc off protodown off", c.Link)
}
func (c SetBridge) String() string {
	return fmt.Sprintf("link set %s stp off vlan_filtering off", c.Link)
}
func (c SetFree) String() string     { return fmt.Sprintf("link set %s nomaster", c.Link) }
func (c SetPort) String() string     { return fmt.Sprintf("port set %s on %s", c.Link, c.Bridge) }
func (c AttachFence) String() string { return "fence attach " + c.Link }
func (c AttachUplink) String() string {
	return "fence attach " + c.Link + " as uplink"
}
func (c DetachUplink) String() string {
	return "fence detach " + c.Link + " as uplink"
}
func (c Reroute) String() string {
	return fmt.Sprintf("reroute: set %d routes, del %d", len(c.Set), len(c.Del))
}
func (c AddAddr) String() string { return "addr add " + c.Addr.String() }
func (c DelAddr) String() string { return "addr del " + c.Addr.String() }
func (c AllowToken) String() string {
	return fmt.Sprintf("token allow %s for %s", c.MAC, c.Subnet)
}
func (c DenyToken) String() string { return "token deny " + c.MAC.String() }
func (c SetFDB) String() string    { return "fdb set " + c.FDB.String() }
func (c DelFDB) String() string    { return "fdb del " + c.FDB.String() }
func (c SetNeigh) String() string {
	return fmt.Sprintf("neigh set %s lladdr %s dev %s", c.Neigh.Addr, c.MAC, c.Neigh.Link)
}
func (c DelNeigh) String() string {
	return fmt.Sprintf("neigh del %s dev %s", c.Neigh.Addr, c.Neigh.Link)
}
func (c SetRoute) String() string  { return "route set " + c.Route.String() }
func (c DelRoute) String() string  { return "route del " + c.Route.String() }
func (c SetSysctl) String() string { return fmt.Sprintf("sysctl %s = %s", c.Path, c.Value) }
func (c SetRules) String() string {
	parts := make([]string, len(c.Tables))
	for i, t := range c.Tables {
		parts[i] = t.String()
	}
	if c.Six {
		return "rules6 " + strings.Join(parts, "; ")
	}
	return "rules " + strings.Join(parts, "; ")
}

// String prints a in the manner of ip-address.
func (a Addr) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s dev %s %s", a.Prefix, a.Link, a.Odd))
}

// String prints f in the manner of bridge-fdb.
func (f FDB) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s dst %s dev %s %s", f.MAC, f.Dst, f.Link, f.Odd))
}

// String prints t in the manner of ip-link.
func (t Tunnel) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "vni %d port %d", t.VNI, t.Port)
	if t.Local.IsValid() {
		fmt.Fprintf(&b, " local %s", t.Local)
	}
	if t.Parent != "" {
		fmt.Fprintf(&b, " dev %s", t.Parent)
	}
	if !t.Learning {
		b.WriteString(" nolearning")
	}
	if t.Odd != "" {
		b.WriteString(" " + t.Odd)
	}
	return b.String()
}

// String prints r in the manner of ip-route.
func (r Route) String() string {
	var b strings.Builder
	if r.Type != RouteUnicast {
		b.WriteString(string(r.Type) + " ")
	}
	b.WriteString(r.Dst.String())
	if r.Via.IsValid() {
		fmt.Fprintf(&b, " via %s", r.Via)
	}
	if r.Link != "" {
		fmt.Fprintf(&b, " dev %s", r.Link)
	}
	if r.Metric != 0 {
		fmt.Fprintf(&b, " metric %d", r.Metric)
	}
	fmt.Fprintf(&b, " proto %d", r.Protocol)
	if r.LinkScope {
		b.WriteString(" scope link")
	}
	if r.Src.IsValid() {
		fmt.Fprintf(&b, " src %s", r.Src)
	}
	if r.Onlink {
		b.WriteString(" onlink")
	}
	if r.Odd != "" {
		b.WriteString(" " + r.Odd)
	}
	return b.String()
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func mtuText(mtu int) string {
	if mtu == 0 {
		return ""
	}
	return fmt.Sprintf(" mtu %d", mtu)
}
