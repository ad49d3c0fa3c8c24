package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// LinuxOptions say which kernel a Linux works on.
type LinuxOptions struct {
	// Name is the instance; only its devices are read in full.
	Name string
	// Guard is the fence.
	Guard Guard
	// NetNS is a file descriptor of the network namespace, which must stay
	// open; 0 means the one the process lives in.
	NetNS int
	// IPTables is the iptables program; its -save and -restore, and those of
	// ip6tables, are taken from beside it. "" means "iptables" from the PATH.
	IPTables string
}

// Linux is the Kernel of a running machine. Its methods are to be called from
// one goroutine at a time, except Watch.
type Linux struct {
	opts   LinuxOptions
	ns     namespace
	handle *netlink.Handle
	// tables are iptables and, for the other family, ip6tables.
	tables, tables6 *iptables
	// raw is a socket of its own, for what the handle cannot list or change.
	raw    *nl.SocketHandle
	marker *marker
	// indexes are the links as last read; a name that is not there is asked
	// of the kernel.
	indexes map[string]int
}

// OpenLinux opens netlink sockets. The caller closes the Linux.
func OpenLinux(opts LinuxOptions) (*Linux, error) {
	ns := netns.None()
	if opts.NetNS != 0 {
		ns = netns.NsHandle(opts.NetNS)
	}
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	socket, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("open a second netlink socket: %w", err)
	}
	thread := namespace{opts.NetNS}
	marker := openMarker(thread, ns)
	return &Linux{
		opts:    opts,
		ns:      thread,
		handle:  handle,
		tables:  &iptables{instance: opts.Name, program: opts.IPTables, ns: thread, marker: marker},
		tables6: &iptables{six: true, instance: opts.Name, program: opts.IPTables, ns: thread, marker: marker},
		raw:     &nl.SocketHandle{Socket: socket},
		marker:  marker,
	}, nil
}

// Close closes the netlink sockets. What was written stays.
func (k *Linux) Close() {
	k.handle.Close()
	k.raw.Close()
	k.marker.close()
}

// RulesMark implements Kernel.
func (k *Linux) RulesMark(context.Context) string {
	mark, err := k.marker.mark()
	if err != nil {
		return ""
	}
	return k.tables.resolved() + " " + mark
}

// Read implements Kernel.
func (k *Linux) Read(ctx context.Context, rules Families) (State, error) {
	s := State{
		IPv6:    HasIPv6(),
		Links:   map[string]Link{},
		Addrs:   map[Addr]struct{}{},
		Routes:  map[Route]struct{}{},
		FDB:     map[FDB]struct{}{},
		Neighs:  map[Neigh]MAC{},
		Fenced:  map[string]bool{},
		Sysctls: map[string]string{},
	}
	names, err := k.readLinks(&s)
	if err != nil {
		return State{}, err
	}
	if err := k.readAddrs(&s, names); err != nil {
		return State{}, err
	}
	if err := k.readRoutes(&s, names); err != nil {
		return State{}, err
	}
	if err := k.readNeighs(&s, names); err != nil {
		return State{}, err
	}
	k.readFence(ctx, &s)
	k.readUplinks(ctx, &s, names)
	k.readTxChecksum(&s)
	k.readSysctls(&s)
	if rules.V4 {
		s.Rules = readRules(ctx, k.tables, &s)
	}
	if rules.V6 && s.IPv6 {
		s.Rules6 = readRules(ctx, k.tables6, &s)
	}
	return s, nil
}

// HasIPv6 says whether the kernel has IPv6. It may have been built without, or
// started with it switched off.
func HasIPv6() bool {
	_, err := os.Stat("/proc/sys/" + ipForward6)
	return err == nil
}

func readRules(ctx context.Context, t *iptables, s *State) *Rules {
	r, err := t.read(ctx)
	if err != nil {
		s.Faults = append(s.Faults, Fault{"rules", err.Error()})
		return nil
	}
	return &r
}

// dumpTries bounds how often an interrupted dump is read again.
const dumpTries = 10

// dump reads a list of the kernel. A list that changed while it was read may
// lack entries that stood there all the time, so it is read again.
func dump[T any](what string, list func() ([]T, error)) ([]T, error) {
	var err error
	for range dumpTries {
		var out []T
		if out, err = list(); err == nil {
			return out, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return nil, fmt.Errorf("list %s: %w", what, err)
}

// readLinks returns the names by index.
func (k *Linux) readLinks(s *State) (map[int]string, error) {
	msgs, err := k.dumpRaw("links", unix.RTM_GETLINK, unix.RTM_NEWLINK, nl.NewIfInfomsg(unix.AF_UNSPEC), withoutStats())
	if err != nil {
		return nil, err
	}
	links := make([]netlink.Link, len(msgs))
	names := make(map[int]string, len(msgs))
	k.indexes = make(map[string]int, len(msgs))
	for i, m := range msgs {
		if links[i], err = deserializeLink(m); err != nil {
			return nil, fmt.Errorf("decode a link: %w", err)
		}
		a := links[i].Attrs()
		names[a.Index], k.indexes[a.Name] = a.Name, a.Index
	}
	for i, l := range links {
		s.Links[l.Attrs().Name] = linkOf(l, msgs[i], names)
	}
	return names, k.readPorts(s, names)
}

// readPorts reads how links are plugged into bridges, which the list of links
// does not say.
func (k *Linux) readPorts(s *State, names map[int]string) error {
	msgs, err := k.dumpRaw("bridge ports", unix.RTM_GETLINK, unix.RTM_NEWLINK, nl.NewIfInfomsg(unix.AF_BRIDGE))
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, m := range msgs {
		if len(m) < unix.SizeofIfInfomsg {
			continue
		}
		msg := nl.DeserializeIfInfomsg(m)
		name := names[int(msg.Index)]
		link, ok := s.Links[name]
		info := attrIn(m[unix.SizeofIfInfomsg:], unix.IFLA_PROTINFO)
		if ok && info != nil && link.Master != "" {
			seen[name] = true
			running := msg.Flags&unix.IFF_RUNNING != 0 && link.Up && s.Links[link.Master].Up
			link.Port = portOf(info, running)
			s.Links[name] = link
		}
	}
	k.leftBridge(s, seen)
	return nil
}

// leftBridge puts right what has changed between the two lists: a port that the
// second one lacks has gone with its pod, and needs no plugging in. A device of
// our own has only left the bridge.
func (k *Linux) leftBridge(s *State, ports map[string]bool) {
	for name, l := range s.Links {
		if s.Links[l.Master].Kind != KindBridge || ports[name] {
			continue
		}
		if l.Master = ""; ourVxlan(k.opts.Name, name) {
			s.Links[name] = l
		} else {
			delete(s.Links, name)
		}
	}
}

func linkOf(l netlink.Link, m []byte, names map[int]string) Link {
	a := l.Attrs()
	out := Link{
		Index:   a.Index,
		Kind:    l.Type(),
		MTU:     a.MTU,
		Up:      a.Flags&net.FlagUp != 0,
		Master:  names[a.MasterIndex],
		NoARP:   a.RawFlags&unix.IFF_NOARP != 0,
		Promisc: a.RawFlags&unix.IFF_PROMISC != 0,
		// The kernel's type of hardware; a loopback device has the header too.
		NoEthernet: a.EncapType != "ether" && a.EncapType != "loopback",
	}
	copy(out.MAC[:], a.HardwareAddr)
	m = m[unix.SizeofIfInfomsg:]
	out.ProtoDown = number(orZero(attrIn(m, unix.IFLA_PROTO_DOWN))) != 0
	switch v := l.(type) {
	case *netlink.Bridge:
		out.Odd = oddIn(attrIn(m, unix.IFLA_LINKINFO, unix.IFLA_INFO_DATA), bridgeSettings())
	case *netlink.Vxlan:
		out.Tunnel = Tunnel{
			VNI: v.VxlanId, Port: v.Port, Local: addrOf(v.SrcAddr),
			Parent: names[v.VtepDevIndex], Learning: v.Learning,
			Odd: oddIn(attrIn(m, unix.IFLA_LINKINFO, unix.IFLA_INFO_DATA), vxlanSettings()),
		}
	}
	return out
}

func (k *Linux) readAddrs(s *State, names map[int]string) error {
	family := netlink.FAMILY_V4
	if s.IPv6 {
		family = netlink.FAMILY_ALL
	}
	addrs, err := dump("addresses", func() ([]netlink.Addr, error) { return k.handle.AddrList(nil, family) })
	if err != nil {
		return err
	}
	for _, a := range addrs {
		name := names[a.LinkIndex]
		if p, ok := prefixOf(a.IPNet); ok && k.ours(name) {
			s.Addrs[Addr{name, p, oddAddr(a.Flags)}] = struct{}{}
		}
	}
	return nil
}

// oddAddr says why an address cannot be used, or is not used by choice.
func oddAddr(flags int) string {
	switch {
	case flags&unix.IFA_F_DADFAILED != 0:
		return "dadfailed"
	case flags&unix.IFA_F_TENTATIVE != 0:
		return "tentative"
	case flags&unix.IFA_F_DEPRECATED != 0:
		return "deprecated"
	}
	return ""
}

func (k *Linux) readRoutes(s *State, names map[int]string) error {
	var msgs [][]byte
	for _, family := range families(s.IPv6) {
		// The kernel lists all tables whatever is asked for.
		some, err := k.dumpRaw("routes", unix.RTM_GETROUTE, unix.RTM_NEWROUTE, &nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})
		if err != nil {
			return err
		}
		msgs = append(msgs, some...)
	}
	s.Routes = make(map[Route]struct{}, len(msgs))
	for _, m := range msgs {
		r, table, ok := routeOf(m, names)
		switch {
		case !ok:
		case table == unix.RT_TABLE_MAIN:
			if r.Type == RouteLocal {
				r.Type = "type-2" // by somebody's hand, and not where such ones belong
			}
			s.Routes[r] = struct{}{}
		case table == unix.RT_TABLE_LOCAL && r.Type == RouteLocal && k.ours(r.Link):
			s.Routes[r] = struct{}{}
		}
	}
	return nil
}

// ours says whether a link bears a name of ours.
func (k *Linux) ours(name string) bool {
	return name == bridgeName(k.opts.Name) || ourVxlan(k.opts.Name, name)
}

// readNeighs reads the permanent neighbours and the static forwarding entries
// of our vxlan devices. The kernel itself makes NOARP neighbours for multicast
// addresses; those are no business of ours.
func (k *Linux) readNeighs(s *State, names map[int]string) error {
	var neighs []rawNeigh
	for _, family := range families(s.IPv6) {
		some, err := k.readRawNeighs("neighbours", family)
		if err != nil {
			return err
		}
		neighs = append(neighs, some...)
	}
	entries, err := k.readRawNeighs("forwarding entries", unix.AF_BRIDGE)
	if err != nil {
		return err
	}
	s.Neighs, s.FDB = make(map[Neigh]MAC, len(neighs)), make(map[FDB]struct{}, len(entries))
	ours := map[int]string{}
	for index, name := range names {
		if ourVxlan(k.opts.Name, name) {
			ours[index] = name
		}
	}
	for _, n := range neighs {
		if name, ok := ours[n.index]; ok && n.state&netlink.NUD_PERMANENT != 0 {
			s.Neighs[Neigh{name, n.dst}] = n.mac
		}
	}
	for _, n := range entries {
		// Others are those of a bridge that the device is a port of.
		if name, ok := ours[n.index]; ok && n.flags&netlink.NTF_SELF != 0 && n.state&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 {
			s.FDB[FDB{name, n.mac, n.dst, n.odd}] = struct{}{}
		}
	}
	return nil
}

func (k *Linux) readFence(ctx context.Context, s *State) {
	for name, l := range s.Links {
		if l.Kind != KindVxlan || !ourVxlan(k.opts.Name, name) {
			continue
		}
		attached, err := k.opts.Guard.Attached(ctx, l.Index)
		if err != nil {
			s.Faults = append(s.Faults, Fault{"fence", fmt.Sprintf("look at the fence of %s: %v", name, err)})
			continue
		}
		s.Fenced[name] = attached
	}
	tokens, err := k.opts.Guard.Tokens()
	if err != nil {
		s.Faults = append(s.Faults, Fault{"fence", fmt.Sprintf("read the fence's tokens: %v", err)})
		return
	}
	s.Tokens = make(map[MAC]netip.Prefix, len(tokens))
	for mac, subnet := range tokens {
		s.Tokens[mac] = subnet
	}
}

// families are those that the kernel is asked for.
func families(six bool) []uint8 {
	if six {
		return []uint8{unix.AF_INET, unix.AF_INET6}
	}
	return []uint8{unix.AF_INET}
}

// readUplinks asks of the devices that the fence knows whether it is on them.
func (k *Linux) readUplinks(ctx context.Context, s *State, names map[int]string) {
	known, err := k.opts.Guard.Uplinks()
	uplinks := map[string]bool{}
	for _, index := range known {
		if name, ok := names[index]; ok {
			uplinks[name] = false
		}
	}
	for name := range uplinks {
		if err != nil {
			break
		}
		uplinks[name], err = k.opts.Guard.AttachedUplink(ctx, s.Links[name].Index)
	}
	if err != nil {
		s.Faults = append(s.Faults, Fault{"fence", fmt.Sprintf("look at the fence of the uplink: %v", err)})
		return
	}
	s.Uplinks = uplinks
}

// readSysctls reads the forwarding switches of the namespace, of our devices
// and of the interfaces below them, how sources are checked there, the settings
// of IPv6, and the limits of the neighbour tables.
func (k *Linux) readSysctls(s *State) {
	paths := []string{ipForward, NeighbourLimit(false), NeighbourLimit(true), sendRedirects("all")}
	if s.IPv6 {
		paths = append(paths, k.sysctls6(s)...)
	}
	for name, l := range s.Links {
		if name == bridgeName(k.opts.Name) {
			paths = append(paths, forwardingOf(name), sendRedirects(name))
		}
		if l.Kind == KindVxlan && ourVxlan(k.opts.Name, name) {
			paths = append(paths, forwardingOf(name), forwardingOf(l.Tunnel.Parent),
				reversePathOf(name), reversePathOf(l.Tunnel.Parent), reversePathOf("all"))
		}
	}
	for name := range s.Uplinks {
		paths = append(paths, forwardingOf(name), reversePathOf(name), reversePathOf("all"))
	}
	err := k.ns.do(func() error {
		for _, path := range paths {
			b, err := os.ReadFile("/proc/sys/" + path)
			if errors.Is(err, os.ErrNotExist) {
				continue // the link has gone meanwhile, or not the first namespace
			}
			if err != nil {
				return err
			}
			s.Sysctls[path] = strings.TrimSpace(string(b))
		}
		return nil
	})
	if err != nil {
		s.Faults = append(s.Faults, Fault{"sysctl", fmt.Sprintf("read forwarding switches: %v", err)})
	}
}

// sysctls6 are the settings of IPv6 on our devices, and whether those links
// listen to routers that have routes from one.
func (k *Linux) sysctls6(s *State) []string {
	paths := []string{ipForward6}
	for name, l := range s.Links {
		vxlan := l.Kind == KindVxlan && ourVxlanOf(k.opts.Name, name, true)
		if !vxlan && (l.Kind != KindBridge || name != bridgeName(k.opts.Name)) {
			continue
		}
		for _, setting := range settings6() {
			paths = append(paths, sysctl6(name, setting.name))
		}
	}
	for r := range s.Routes {
		if r.Protocol == protocolRA && r.Link != "" {
			paths = append(paths, sysctl6(r.Link, acceptRA))
		}
	}
	return paths
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	if a.IsUnspecified() {
		return netip.Addr{}
	}
	return a.Unmap()
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	bits, size := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits), ok && size == a.Unmap().BitLen()
}

func ipNetOf(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
