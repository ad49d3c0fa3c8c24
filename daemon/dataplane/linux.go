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
	// IPTables is the iptables program; its -save and -restore are taken from
	// beside it. "" means "iptables" from the PATH.
	IPTables string
}

// Linux is the Kernel of a running machine. Its methods are to be called from
// one goroutine at a time, except Watch.
type Linux struct {
	opts   LinuxOptions
	ns     namespace
	handle *netlink.Handle
	tables *iptables
	// bridges is a socket of its own: the handle cannot list the settings of
	// all ports at once.
	bridges *nl.SocketHandle
	marker  *marker
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
		return nil, fmt.Errorf("open netlink socket for bridge ports: %w", err)
	}
	thread := namespace{opts.NetNS}
	marker := openMarker(thread, ns)
	return &Linux{
		opts:    opts,
		ns:      thread,
		handle:  handle,
		tables:  newIPTables(opts.Name, opts.IPTables, thread, marker),
		bridges: &nl.SocketHandle{Socket: socket},
		marker:  marker,
	}, nil
}

// Close closes the netlink sockets. What was written stays.
func (k *Linux) Close() {
	k.handle.Close()
	k.bridges.Close()
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
func (k *Linux) Read(ctx context.Context, rules bool) (State, error) {
	s := State{
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
	k.readSysctls(&s)
	if rules {
		r, err := k.tables.read(ctx)
		if err != nil {
			s.Faults = append(s.Faults, Fault{"rules", err.Error()})
		} else {
			s.Rules = &r
		}
	}
	return s, nil
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
	links, err := dump("links", k.handle.LinkList)
	if err != nil {
		return nil, err
	}
	names := make(map[int]string, len(links))
	k.indexes = make(map[string]int, len(links))
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		k.indexes[l.Attrs().Name] = l.Attrs().Index
	}
	for _, l := range links {
		s.Links[l.Attrs().Name] = linkOf(l, names)
	}
	return names, k.readPorts(s, names)
}

// readPorts reads how links are plugged into bridges, which the list of links
// does not say.
func (k *Linux) readPorts(s *State, names map[int]string) error {
	ports, err := dump("bridge ports", func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.bridges}
		req.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
		return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	})
	if err != nil {
		return err
	}
	for _, m := range ports {
		l, err := netlink.LinkDeserialize(&unix.NlMsghdr{Type: unix.RTM_NEWLINK}, m)
		if err != nil {
			return fmt.Errorf("decode a bridge port: %w", err)
		}
		info, name := l.Attrs().Protinfo, names[l.Attrs().Index]
		if link, ok := s.Links[name]; ok && info != nil && link.Master != "" {
			link.Port = Port{Hairpin: info.Hairpin, Isolated: info.Isolated}
			s.Links[name] = link
		}
	}
	return nil
}

func linkOf(l netlink.Link, names map[int]string) Link {
	a := l.Attrs()
	out := Link{
		Index:   a.Index,
		Kind:    l.Type(),
		MTU:     a.MTU,
		Up:      a.Flags&net.FlagUp != 0,
		Master:  names[a.MasterIndex],
		NoARP:   a.RawFlags&unix.IFF_NOARP != 0,
		Promisc: a.RawFlags&unix.IFF_PROMISC != 0,
	}
	copy(out.MAC[:], a.HardwareAddr)
	if v, ok := l.(*netlink.Vxlan); ok {
		out.Tunnel = Tunnel{
			VNI: v.VxlanId, Port: v.Port, Local: addrOf(v.SrcAddr),
			Parent: names[v.VtepDevIndex], Learning: v.Learning, Odd: oddVxlan(v),
		}
	}
	return out
}

// oddVxlan names settings of a vxlan device that we never make.
func oddVxlan(v *netlink.Vxlan) string {
	var odd []string
	note := func(set bool, name string) {
		if set {
			odd = append(odd, name)
		}
	}
	note(addrOf(v.Group).IsValid(), "group "+v.Group.String())
	note(v.TTL != 0, fmt.Sprintf("ttl %d", v.TTL))
	note(v.TOS != 0, fmt.Sprintf("tos %d", v.TOS))
	note(v.Limit != 0, fmt.Sprintf("maxaddr %d", v.Limit))
	note(v.Proxy, "proxy")
	note(v.RSC, "rsc")
	note(v.L2miss, "l2miss")
	note(v.L3miss, "l3miss")
	note(v.GBP, "gbp")
	note(v.FlowBased, "external")
	return strings.Join(odd, " ")
}

func (k *Linux) readAddrs(s *State, names map[int]string) error {
	addrs, err := dump("addresses", func() ([]netlink.Addr, error) {
		return k.handle.AddrList(nil, netlink.FAMILY_V4)
	})
	if err != nil {
		return err
	}
	for _, a := range addrs {
		name := names[a.LinkIndex]
		if p, ok := prefixOf(a.IPNet); ok && (name == bridgeName(k.opts.Name) || ourVxlan(k.opts.Name, name)) {
			s.Addrs[Addr{name, p}] = struct{}{}
		}
	}
	return nil
}

func (k *Linux) readRoutes(s *State, names map[int]string) error {
	routes, err := dump("routes", func() ([]netlink.Route, error) {
		return k.handle.RouteList(nil, netlink.FAMILY_V4)
	})
	if err != nil {
		return err
	}
	for _, r := range routes {
		if dst, ok := prefixOf(r.Dst); ok {
			s.Routes[routeOf(r, dst, names)] = struct{}{}
		}
	}
	return nil
}

func routeOf(r netlink.Route, dst netip.Prefix, names map[int]string) Route {
	out := Route{
		Dst:       dst,
		Via:       addrOf(r.Gw),
		Link:      names[r.LinkIndex],
		Type:      RouteType(fmt.Sprintf("type-%d", r.Type)),
		Metric:    uint32(r.Priority),
		Protocol:  uint8(r.Protocol),
		Onlink:    r.Flags&int(netlink.FLAG_ONLINK) != 0,
		LinkScope: r.Scope == netlink.SCOPE_LINK,
	}
	switch r.Type {
	case unix.RTN_UNICAST:
		out.Type = RouteUnicast
	case unix.RTN_UNREACHABLE:
		out.Type = RouteUnreachable
	}
	switch {
	case len(r.MultiPath) > 0:
		out.Odd = fmt.Sprintf("with %d next hops", len(r.MultiPath))
	case r.Tos != 0:
		out.Odd = fmt.Sprintf("tos %d", r.Tos)
	case r.Via != nil:
		out.Odd = "via another family"
	}
	return out
}

// readNeighs reads the permanent neighbours and the static forwarding entries
// of our vxlan devices. The kernel itself makes NOARP neighbours for multicast
// addresses; those are no business of ours.
func (k *Linux) readNeighs(s *State, names map[int]string) error {
	neighs, err := dump("neighbours", func() ([]netlink.Neigh, error) {
		return k.handle.NeighList(0, netlink.FAMILY_V4)
	})
	if err != nil {
		return err
	}
	entries, err := dump("forwarding entries", func() ([]netlink.Neigh, error) {
		return k.handle.NeighList(0, unix.AF_BRIDGE)
	})
	if err != nil {
		return err
	}
	for _, n := range neighs {
		name := names[n.LinkIndex]
		if ourVxlan(k.opts.Name, name) && n.State&netlink.NUD_PERMANENT != 0 {
			s.Neighs[Neigh{name, addrOf(n.IP)}] = macOf(n.HardwareAddr)
		}
	}
	for _, n := range entries {
		name := names[n.LinkIndex]
		if ourVxlan(k.opts.Name, name) && n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 {
			s.FDB[FDB{name, macOf(n.HardwareAddr), addrOf(n.IP)}] = struct{}{}
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

// readSysctls reads the forwarding switches of the namespace, of our devices
// and of the interfaces below them, and the limit of the neighbour table.
func (k *Linux) readSysctls(s *State) {
	paths := []string{ipForward, NeighbourLimitPath}
	for name, l := range s.Links {
		if name == bridgeName(k.opts.Name) {
			paths = append(paths, forwardingOf(name))
		}
		if l.Kind == KindVxlan && ourVxlan(k.opts.Name, name) {
			paths = append(paths, forwardingOf(name), forwardingOf(l.Tunnel.Parent))
		}
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

func macOf(hw net.HardwareAddr) (m MAC) {
	copy(m[:], hw)
	return m
}

func ipNetOf(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
