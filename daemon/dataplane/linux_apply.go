package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Apply implements Kernel.
func (k *Linux) Apply(ctx context.Context, op Op) error {
	switch c := op.Change.(type) {
	case AddBridge, AddVxlan, DelLink, SetMAC, SetMTU, SetTxChecksum, SetUp, SetDown, SetPort, SetFlags, SetBridge, SetFree:
		return k.applyLink(op.Change)
	case AttachFence:
		index, err := k.index(c.Link)
		if err != nil {
			return err
		}
		return k.opts.Guard.Attach(ctx, index)
	case AttachUplink, DetachUplink:
		return k.applyUplink(ctx, c)
	case AllowToken:
		return k.opts.Guard.Allow(c.MAC, c.Subnet)
	case DenyToken:
		return k.opts.Guard.Deny(c.MAC)
	case SetSysctl:
		return k.ns.do(func() error { return os.WriteFile("/proc/sys/"+c.Path, []byte(c.Value), 0o644) })
	case SetRules:
		if c.Six {
			return k.tables6.apply(ctx, c.Tables)
		}
		return k.tables.apply(ctx, c.Tables)
	}
	return k.applyAddress(op.Change)
}

// applyUplink puts the fence on the host's own interface and takes it off. One
// that is gone needs no taking off.
func (k *Linux) applyUplink(ctx context.Context, change Change) error {
	switch c := change.(type) {
	case AttachUplink:
		index, err := k.index(c.Link)
		if err != nil {
			return err
		}
		return k.opts.Guard.AttachUplink(ctx, index)
	case DetachUplink:
		index, err := k.index(c.Link)
		if err != nil {
			return ignoreGone(err)
		}
		return k.opts.Guard.DetachUplink(ctx, index)
	}
	return fmt.Errorf("unknown change of an uplink: %s", change)
}

// reroute goes on past what fails: it is done when something else has failed.
func (k *Linux) reroute(c Reroute) error {
	var errs []error
	for _, r := range c.Set {
		errs = append(errs, k.setRoute(SetRoute{Route: r, Replace: true}))
	}
	for _, r := range c.Del {
		errs = append(errs, ignoreGone(k.onRoute(r, k.handle.RouteDel)))
	}
	return errors.Join(errs...)
}

// applyLink makes and changes devices.
func (k *Linux) applyLink(change Change) error {
	switch c := change.(type) {
	case AddBridge:
		return k.addLink(&netlink.Bridge{LinkAttrs: linkAttrs(c.Name, c.MAC, 0)})
	case AddVxlan:
		return k.addVxlan(c)
	case DelLink:
		return k.delLink(c.Link)
	case SetPort:
		return k.setPort(c)
	case SetFlags:
		return k.onLink(c.Link, func(l netlink.Link) error {
			return errors.Join(k.handle.LinkSetARPOn(l), k.handle.SetPromiscOff(l), k.endProtoDown(l.Attrs().Index))
		})
	case SetBridge:
		return k.onLink(c.Link, func(l netlink.Link) error { return k.setBridge(l.Attrs().Index) })
	case SetFree:
		return k.onLink(c.Link, k.handle.LinkSetNoMaster)
	case SetMAC:
		return k.onLink(c.Link, func(l netlink.Link) error {
			return k.handle.LinkSetHardwareAddr(l, net.HardwareAddr(c.MAC[:]))
		})
	case SetMTU:
		return k.onLink(c.Link, func(l netlink.Link) error { return k.handle.LinkSetMTU(l, c.MTU) })
	case SetTxChecksum:
		return k.setTxChecksum(c)
	case SetUp:
		return k.onLink(c.Link, k.handle.LinkSetUp)
	case SetDown:
		return k.onLink(c.Link, k.handle.LinkSetDown)
	}
	return fmt.Errorf("unknown change of a link: %s", change)
}

// applyAddress changes what stands on a device.
func (k *Linux) applyAddress(change Change) error {
	switch c := change.(type) {
	case AddAddr:
		return k.onLink(c.Addr.Link, func(l netlink.Link) error {
			if isSix(c.Addr.Prefix) {
				return k.addAddr6(l, c.Addr)
			}
			return k.handle.AddrReplace(l, &netlink.Addr{IPNet: ipNetOf(c.Addr.Prefix)})
		})
	case DelAddr:
		return ignoreGone(k.onLink(c.Addr.Link, func(l netlink.Link) error {
			return k.handle.AddrDel(l, &netlink.Addr{IPNet: ipNetOf(c.Addr.Prefix)})
		}))
	case SetFDB:
		return k.onNeigh(c.FDB.Link, fdbEntry(c.FDB), k.handle.NeighSet)
	case DelFDB:
		if c.FDB.Odd != "" {
			return ignoreGone(k.delWholeFDB(c.FDB))
		}
		return ignoreGone(k.onNeigh(c.FDB.Link, fdbEntry(c.FDB), k.handle.NeighDel))
	case SetNeigh:
		return k.onNeigh(c.Neigh.Link, neighbour(c.Neigh, c.MAC), k.handle.NeighSet)
	case DelNeigh:
		return ignoreGone(k.onNeigh(c.Neigh.Link, neighbour(c.Neigh, MAC{}), k.handle.NeighDel))
	case SetRoute:
		return k.setRoute(c)
	case DelRoute:
		return ignoreGone(k.onRoute(c.Route, k.handle.RouteDel))
	case Reroute:
		return k.reroute(c)
	}
	return fmt.Errorf("unknown change: %s", change)
}

// addAddr6 adds an IPv6 address, which is ours alone and needed at once, and so
// not looked for elsewhere. The kernel answers before it has made the route by
// which it knows the address for its own: who looked meanwhile would find it
// missing.
func (k *Linux) addAddr6(l netlink.Link, a Addr) error {
	if err := k.handle.AddrReplace(l, &netlink.Addr{IPNet: ipNetOf(a.Prefix), Flags: unix.IFA_F_NODAD}); err != nil {
		return err
	}
	for wait := time.Millisecond; wait < addrSettle; wait *= 2 {
		known, err := k.knowsAddr6(l.Attrs().Index, a.Prefix.Addr())
		if known || err != nil {
			return err
		}
		time.Sleep(wait)
	}
	return nil // the next pass sees whether it is there
}

// addrSettle bounds, together with as long before, the wait for an address.
const addrSettle = 500 * time.Millisecond

// knowsAddr6 says whether the kernel takes what comes for the address in.
func (k *Linux) knowsAddr6(index int, ip netip.Addr) (bool, error) {
	msgs, err := k.dumpRaw("routes", unix.RTM_GETROUTE, unix.RTM_NEWROUTE, &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET6}})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(msgs, func(m []byte) bool {
		r, table, ok := routeOf(m, map[int]string{index: "it"})
		return ok && table == unix.RT_TABLE_LOCAL && r.Type == RouteLocal && r.Link == "it" && r.Dst.Addr() == ip
	}), nil
}

// index returns a link's index, an error that is os.ErrNotExist without one.
func (k *Linux) index(name string) (int, error) {
	if i, ok := k.indexes[name]; ok {
		return i, nil
	}
	l, err := k.handle.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return 0, fmt.Errorf("link %s: %w", name, os.ErrNotExist)
	}
	if err != nil {
		return 0, fmt.Errorf("find link %s: %w", name, err)
	}
	return l.Attrs().Index, nil
}

func (k *Linux) onLink(name string, f func(netlink.Link) error) error {
	index, err := k.index(name)
	if err != nil {
		return err
	}
	return f(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index, Name: name}})
}

func linkAttrs(name string, mac MAC, mtu int) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name, a.HardwareAddr, a.MTU = name, net.HardwareAddr(mac[:]), mtu
	return a
}

func (k *Linux) addLink(l netlink.Link) error {
	delete(k.indexes, l.Attrs().Name)
	return k.handle.LinkAdd(l)
}

func (k *Linux) addVxlan(c AddVxlan) error {
	parent, err := k.index(c.Tunnel.Parent)
	if err != nil {
		return err
	}
	return k.addLink(&netlink.Vxlan{
		LinkAttrs:    linkAttrs(c.Name, c.MAC, c.MTU),
		VxlanId:      c.Tunnel.VNI,
		Port:         c.Tunnel.Port,
		SrcAddr:      c.Tunnel.Local.AsSlice(),
		VtepDevIndex: parent,
		Learning:     c.Tunnel.Learning,
	})
}

func (k *Linux) delLink(name string) error {
	err := ignoreGone(k.onLink(name, k.handle.LinkDel))
	delete(k.indexes, name)
	return err
}

// endProtoDown gives a device its carrier back. Most devices cannot lose it in
// this way and refuse the request; the reasons keep the others from it.
func (k *Linux) endProtoDown(index int) error {
	reasons := nl.NewRtAttr(unix.IFLA_PROTO_DOWN_REASON|unix.NLA_F_NESTED, nil)
	reasons.AddRtAttr(unix.IFLA_PROTO_DOWN_REASON_MASK, nl.Uint32Attr(^uint32(0)))
	reasons.AddRtAttr(unix.IFLA_PROTO_DOWN_REASON_VALUE, nl.Uint32Attr(0))
	err := k.setLink(unix.AF_UNSPEC, index, reasons, nl.NewRtAttr(unix.IFLA_PROTO_DOWN, []byte{0}))
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// setBridge writes bridgeSettings. A kernel that cannot filter VLANs refuses to
// be told not to.
func (k *Linux) setBridge(index int) error {
	if err := k.setBridgeInfo(index, unix.IFLA_BR_STP_STATE, nl.Uint32Attr(0)); err != nil {
		return fmt.Errorf("turn the spanning tree protocol off: %w", err)
	}
	err := k.setBridgeInfo(index, unix.IFLA_BR_VLAN_FILTERING, []byte{0})
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("turn the filter of VLANs off: %w", err)
	}
	return nil
}

func (k *Linux) setBridgeInfo(index int, attr uint16, value []byte) error {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated(KindBridge))
	data := info.AddRtAttr(unix.IFLA_INFO_DATA|unix.NLA_F_NESTED, nil)
	data.AddRtAttr(int(attr), value)
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.raw}
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// setPort plugs a link into the bridge. Hairpin mode is a setting of the port
// and so is lost with it. A link that is gone, as a pod's may be by now, needs
// no plugging in; of a bridge that is gone the kernel says EINVAL.
func (k *Linux) setPort(c SetPort) error {
	bridge, err := k.index(c.Bridge)
	if err != nil {
		return err
	}
	return ignoreGone(k.onLink(c.Link, func(l netlink.Link) error {
		if err := k.handle.LinkSetMasterByIndex(l, bridge); err != nil {
			return fmt.Errorf("plug in: %w", err)
		}
		if err := k.setPortInfo(l.Attrs().Index, append(portSettings(),
			setting{attr: unix.IFLA_BRPORT_MODE, want: 1}, setting{attr: unix.IFLA_BRPORT_ISOLATED})...); err != nil {
			return fmt.Errorf("set hairpin mode and end isolation: %w", err)
		}
		if err := k.handle.LinkSetUp(l); err != nil {
			return err
		}
		// A port without carrier is opened by the kernel when that comes.
		err := k.setPortInfo(l.Attrs().Index, setting{attr: unix.IFLA_BRPORT_STATE, want: portForwarding})
		if err != nil && !errors.Is(err, unix.ENETDOWN) {
			return fmt.Errorf("open the port: %w", err)
		}
		return nil
	}))
}

func (k *Linux) onNeigh(link string, n *netlink.Neigh, f func(*netlink.Neigh) error) error {
	index, err := k.index(link)
	if err != nil {
		return err
	}
	n.LinkIndex = index
	return f(n)
}

// delWholeFDB deletes all that a MAC has: that is what no destination means.
func (k *Linux) delWholeFDB(f FDB) error {
	index, err := k.index(f.Link)
	if err != nil {
		return err
	}
	req := nl.NewNetlinkRequest(unix.RTM_DELNEIGH, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.raw}
	req.AddData(&netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(index), Flags: netlink.NTF_SELF})
	req.AddData(nl.NewRtAttr(unix.NDA_LLADDR, f.MAC[:]))
	_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func fdbEntry(f FDB) *netlink.Neigh {
	return &netlink.Neigh{
		Family:       unix.AF_BRIDGE,
		State:        netlink.NUD_PERMANENT,
		Flags:        netlink.NTF_SELF,
		IP:           f.Dst.AsSlice(),
		HardwareAddr: net.HardwareAddr(f.MAC[:]),
	}
}

func neighbour(n Neigh, mac MAC) *netlink.Neigh {
	out := &netlink.Neigh{State: netlink.NUD_PERMANENT, IP: n.Addr.AsSlice()}
	if mac != (MAC{}) {
		out.HardwareAddr = net.HardwareAddr(mac[:])
	}
	return out
}

// setRoute never replaces a route unless the plan saw one of ours there: a
// route of others that came since makes it fail.
func (k *Linux) setRoute(c SetRoute) error {
	err := k.onRoute(c.Route, k.handle.RouteAdd)
	switch {
	case c.Replace && errors.Is(err, unix.EEXIST):
		return k.onRoute(c.Route, k.handle.RouteReplace)
	case c.Replace && errors.Is(err, unix.EINVAL) && c.Route.Via.Is6() && c.Route.Dst.Contains(c.Route.Via):
		return k.replaceAround(c.Route)
	}
	return err
}

// replaceAround replaces a route whose next hop lies in its own destination, as
// one through the overlay does. IPv6 takes a next hop only where no route leads to
// it through another device, and the one to be replaced may: so for this moment
// the next hop has a route of its own. To delete first would leave a hole.
func (k *Linux) replaceAround(r Route) error {
	hop := Route{Dst: netip.PrefixFrom(r.Via, r.Via.BitLen()), Link: r.Link, Type: RouteUnicast, Metric: r.Metric, Protocol: r.Protocol}
	if err := k.onRoute(hop, k.handle.RouteAdd); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make the way to the next hop: %w", err)
	}
	err := k.onRoute(r, k.handle.RouteReplace)
	return errors.Join(err, ignoreGone(k.onRoute(hop, k.handle.RouteDel)))
}

func (k *Linux) onRoute(r Route, f func(*netlink.Route) error) error {
	out := &netlink.Route{
		Dst:      ipNetOf(r.Dst),
		Gw:       r.Via.AsSlice(),
		Table:    unix.RT_TABLE_MAIN,
		Type:     unix.RTN_UNICAST,
		Priority: int(r.Metric),
		Protocol: netlink.RouteProtocol(r.Protocol),
	}
	if r.Type == RouteUnreachable {
		out.Type = unix.RTN_UNREACHABLE
	}
	if r.Type == RouteLocal {
		out.Type, out.Table, out.Scope = unix.RTN_LOCAL, unix.RT_TABLE_LOCAL, netlink.SCOPE_HOST
	}
	if r.Src.IsValid() {
		out.Src = r.Src.AsSlice()
	}
	if r.Onlink {
		out.Flags = int(netlink.FLAG_ONLINK)
	}
	if r.LinkScope {
		out.Scope = netlink.SCOPE_LINK
	}
	if r.Link != "" {
		index, err := k.index(r.Link)
		if err != nil {
			return err
		}
		out.LinkIndex = index
	}
	return f(out)
}

// ignoreGone makes a change succeed when what it is about, and should not be or
// need not be, is gone. The kernel says so in a way that depends on the table.
func ignoreGone(err error) error {
	for _, gone := range []error{
		os.ErrNotExist, unix.ENODEV, unix.ESRCH, unix.EADDRNOTAVAIL,
	} {
		if errors.Is(err, gone) {
			return nil
		}
	}
	return err
}
