package attach

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The protocols' numbers in network order.
const (
	arp  = unix.ETH_P_ARP<<8&0xff00 | unix.ETH_P_ARP>>8
	ipv6 = unix.ETH_P_IPV6<<8&0xff00 | unix.ETH_P_IPV6>>8
)

// Announce tells the neighbours of an address, which are the host and the pods
// on the bridge, that the MAC belongs to it: they may have another one in
// mind. It is needed where a pod had or has a MAC other than MACFor.
func (a *Attacher) Announce(ctx context.Context, bridge string, addr netip.Addr, mac [6]byte) error {
	if err := a.announce(ctx, bridge, addr, mac); err != nil {
		return fmt.Errorf("announce %s on %s: %w", addr, bridge, err)
	}
	return nil
}

func (a *Attacher) announce(ctx context.Context, bridge string, addr netip.Addr, mac [6]byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h, err := openHandle(a.host)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := linkByName(h, bridge)
	if err != nil || link == nil {
		return errors.Join(err, ErrNoBridge)
	}
	index := link.Attrs().Index
	err = h.NeighDel(&netlink.Neigh{LinkIndex: index, IP: addr.AsSlice()})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("forget the neighbour: %w", err)
	}
	if !a.host.IsOpen() {
		return sendAnnouncement(index, addr, mac)
	}
	return ns.WithNetNSPath(fmt.Sprintf("/proc/self/fd/%d", a.host), func(ns.NetNS) error { return sendAnnouncement(index, addr, mac) })
}

// sendAnnouncement sends from the bridge to all its ports.
func sendAnnouncement(index int, addr netip.Addr, mac [6]byte) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	to := &unix.SockaddrLinklayer{Protocol: arp, Ifindex: index, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	var packet []byte
	if addr.Is4() {
		packet = announcement(addr, mac)
	} else {
		to.Protocol, to.Addr = ipv6, [8]byte{0x33, 0x33, 5: 1}
		packet = advertisement(addr, mac)
	}
	return errors.Join(unix.Sendto(fd, packet, 0, to), unix.Close(fd))
}

// announcement is an ARP request of the address for itself (RFC 5227), by
// which others bring what they know up to date.
func announcement(addr netip.Addr, mac [6]byte) []byte {
	b := make([]byte, 28)
	binary.BigEndian.PutUint16(b[0:], unix.ARPHRD_ETHER)
	binary.BigEndian.PutUint16(b[2:], unix.ETH_P_IP)
	b[4], b[5] = 6, 4
	binary.BigEndian.PutUint16(b[6:], 1) // request
	copy(b[8:14], mac[:])
	ip := addr.As4()
	copy(b[14:18], ip[:])
	copy(b[24:28], ip[:])
	return b
}

// advertisement is what ARP's announcement is for IPv6: an unsolicited
// neighbour advertisement to all on the link, which overrides what they know
// (RFC 4861, 4.4).
func advertisement(addr netip.Addr, mac [6]byte) []byte {
	from, to := addr.As16(), netip.IPv6LinkLocalAllNodes().As16()
	const header, length = 40, 32
	b := make([]byte, header+length)
	b[0] = 6 << 4
	binary.BigEndian.PutUint16(b[4:], length)
	b[6], b[7] = unix.IPPROTO_ICMPV6, 255
	copy(b[8:24], from[:])
	copy(b[24:40], to[:])
	body := b[header:]
	body[0], body[4] = 136, 0x20 // neighbour advertisement, override
	copy(body[8:24], from[:])
	body[24], body[25] = 2, 1 // the target's link-layer address, 8 bytes
	copy(body[26:32], mac[:])
	// The pseudo header is both addresses, the length and the protocol.
	sum := uint32(length + unix.IPPROTO_ICMPV6)
	for i := 8; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(body[2:], ^uint16(sum))
	return b
}
