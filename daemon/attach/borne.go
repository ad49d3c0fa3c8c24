package attach

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Borne returns the addresses inside one of the subnets that an interface
// bears in a namespace to which a veth of the host leads, whoever made that
// veth: each once, ascending, with the length of its subnet. It asks the kernel
// by the namespace's number on the veth, so no path to it need be known, nor be
// in sight of this process. An error means that it cannot be told.
func (a *Attacher) Borne(ctx context.Context, subnets []netip.Prefix) ([]netip.Prefix, error) {
	h, err := openHandle(a.host)
	if err != nil {
		return nil, fmt.Errorf("look for pod addresses: %w", err)
	}
	defer h.Close()
	links, err := untorn(func() ([]netlink.Link, error) { return h.LinkList() })
	if err != nil {
		return nil, fmt.Errorf("look for pod addresses: list links: %w", err)
	}
	strict, err := openStrict(a.host)
	if err != nil {
		return nil, fmt.Errorf("look for pod addresses: %w", err)
	}
	defer strict.Close()
	var all []netip.Prefix
	for _, id := range namespacesBehind(links) {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("look for pod addresses: %w", err)
		}
		addrs, err := addressesIn(strict, id)
		if err != nil {
			return nil, fmt.Errorf("look for pod addresses in namespace number %d: %w", id, err)
		}
		all = append(all, inside(subnets, addrs)...)
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return slices.Compact(all), nil
}

// Served returns the subnets of the bridge's addresses; none if there is no
// such bridge.
func (a *Attacher) Served(ctx context.Context, bridge string) ([]netip.Prefix, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", bridge, err)
	}
	h, err := openHandle(a.host)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", bridge, err)
	}
	defer h.Close()
	link, err := linkByName(h, bridge)
	if err != nil || link == nil {
		return nil, err
	}
	addrs, err := untorn(func() ([]netlink.Addr, error) { return h.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", bridge, err)
	}
	var all []netip.Prefix
	for _, found := range addrs {
		addr, ok := netip.AddrFromSlice(found.IP)
		if bits, _ := found.Mask.Size(); ok && !addr.IsLinkLocalUnicast() {
			all = append(all, netip.PrefixFrom(addr.Unmap(), bits).Masked())
		}
	}
	return all, nil
}

// namespacesBehind are the numbers, by the host's count, of the namespaces
// that hold the other ends of veths.
func namespacesBehind(links []netlink.Link) (ids []int) {
	for _, l := range links {
		if id := l.Attrs().NetNsID; l.Type() == kindVeth && id >= 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// inside gives the addresses that lie in a subnet the length of the smallest
// such.
func inside(subnets []netip.Prefix, addrs []netip.Addr) (all []netip.Prefix) {
	for _, a := range addrs {
		bits := -1
		for _, s := range subnets {
			if s.Contains(a) {
				bits = max(bits, s.Bits())
			}
		}
		if bits >= 0 {
			all = append(all, netip.PrefixFrom(a, bits))
		}
	}
	return all
}

// openStrict returns a socket on which the kernel heeds what a dump asks for.
func openStrict(at netns.NsHandle) (*nl.SocketHandle, error) {
	s, err := nl.GetNetlinkSocketAt(at, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	wait := unix.NsecToTimeval(answerTimeout.Nanoseconds())
	if err := errors.Join(unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1),
		s.SetReceiveTimeout(&wait), s.SetSendTimeout(&wait)); err != nil {
		s.Close()
		return nil, fmt.Errorf("set up netlink socket: %w", err)
	}
	return &nl.SocketHandle{Socket: s}, nil
}

// addressesIn lists the addresses in the namespace of that number; none where it
// has gone meanwhile, or belongs to a machine around this one, whose kernel
// keeps it from us.
func addressesIn(socket *nl.SocketHandle, namespace int) ([]netip.Addr, error) {
	msgs, err := untorn(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: socket}
		req.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
		id := binary.NativeEndian.AppendUint32(nil, uint32(namespace))
		req.AddData(nl.NewRtAttr(unix.IFA_TARGET_NETNSID, id))
		return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EACCES) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var all []netip.Addr
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfAddrmsg:])
		if err != nil {
			return nil, fmt.Errorf("decode an address: %w", err)
		}
		if addr, ok := ownAddress(attrs); ok {
			all = append(all, addr)
		}
	}
	return all, nil
}

// ownAddress is the interface's own one: IFA_ADDRESS is the other side's where
// both are given.
func ownAddress(attrs []syscall.NetlinkRouteAttr) (addr netip.Addr, ok bool) {
	for _, kind := range []uint16{unix.IFA_LOCAL, unix.IFA_ADDRESS} {
		for _, attr := range attrs {
			if attr.Attr.Type == kind {
				addr, ok = netip.AddrFromSlice(attr.Value)
				return addr.Unmap(), ok
			}
		}
	}
	return netip.Addr{}, false
}
