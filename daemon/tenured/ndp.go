package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Duplicate address detection for IPv6 (RFC 4862): a neighbour solicitation from
// the unspecified address for this node's own one. The kernel does the same when
// the address comes up, but not again for one that it has long had, and a machine
// that was off then hears nothing of it.
const (
	ipv6Header   = 40
	ndpLength    = ipv6Header + 24
	ndpHops      = 255 // of what comes from the link itself
	ndpSolicit   = 135
	ndpAdvertise = 136
)

// openNDP opens a socket that carries IPv6 packets of one link, without the
// Ethernet header. The kernel passes on the neighbour messages alone: a node's
// whole traffic would push them out of the socket's buffer. An answer goes to all
// nodes, to which every interface listens; somebody else's probe goes to the
// address's own group, of which the kernel is a member as long as it has the
// address.
func openNDP(ifindex int) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // nothing comes in before the filter
	if err != nil {
		return -1, fmt.Errorf("open packet socket: %w", err)
	}
	err = filterNDP(fd)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ipv6Protocol(), Ifindex: ifindex})
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("listen on packet socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// ipv6Protocol is ETH_P_IPV6 in network order.
func ipv6Protocol() uint16 {
	return binary.NativeEndian.Uint16([]byte{unix.ETH_P_IPV6 >> 8, unix.ETH_P_IPV6 & 0xff})
}

// filterNDP lets ICMPv6 types 135 and 136 pass, right behind the IPv6 header. A
// jump's Jt and Jf are how many instructions to leave out.
func filterNDP(fd int) error {
	const load, equal, end = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{
		{Code: load, K: 6},
		{Code: equal, K: unix.IPPROTO_ICMPV6, Jf: 3},
		{Code: load, K: ipv6Header},
		{Code: equal, K: ndpSolicit, Jt: 2},
		{Code: equal, K: ndpAdvertise, Jt: 1},
		{Code: end, K: 0},
		{Code: end, K: 1 << 16},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// sendSolicitation asks for ip with an empty sender address, so that nobody's
// cache is touched.
func sendSolicitation(fd int, dev *net.Interface, ip netip.Addr) error {
	target := ip.As16()
	to := &unix.SockaddrLinklayer{Protocol: ipv6Protocol(), Ifindex: dev.Index, Halen: 6}
	copy(to.Addr[:], []byte{0x33, 0x33, 0xff, target[13], target[14], target[15]})
	return unix.Sendto(fd, solicitation(ip), 0, to)
}

// solicitation is the IPv6 packet of a probe.
func solicitation(ip netip.Addr) []byte {
	b := make([]byte, ndpLength)
	target := ip.As16()
	b[0] = 6 << 4
	binary.BigEndian.PutUint16(b[4:], ndpLength-ipv6Header)
	b[6], b[7] = unix.IPPROTO_ICMPV6, ndpHops
	// From ::, to the target's group ff02::1:ffXX:XXXX.
	copy(b[24:], []byte{0xff, 0x02, 11: 0x01, 12: 0xff, 13: target[13], 14: target[14], 15: target[15]})
	b[ipv6Header] = ndpSolicit
	copy(b[ipv6Header+8:], target[:])
	binary.BigEndian.PutUint16(b[ipv6Header+2:], icmp6Sum(b))
	return b
}

// icmp6Sum is the checksum of the message of an IPv6 packet whose checksum field
// is zero: over the addresses, the length, the protocol and the message.
func icmp6Sum(b []byte) uint16 {
	sum := uint32(len(b)-ipv6Header) + unix.IPPROTO_ICMPV6
	for i := 8; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// claims6 says whether an IPv6 packet, of another machine on the link, shows that
// it uses ip, or is probing for it at this very moment.
func claims6(b []byte, ip netip.Addr) bool {
	if len(b) < ndpLength || b[0]>>4 != 6 || b[6] != unix.IPPROTO_ICMPV6 || b[7] != ndpHops || b[ipv6Header+1] != 0 {
		return false
	}
	want := ip.As16()
	target, from := b[ipv6Header+8:ipv6Header+24], b[8:24]
	switch b[ipv6Header] {
	case ndpAdvertise:
		return bytes.Equal(target, want[:])
	case ndpSolicit:
		probing := bytes.Equal(from, make([]byte, 16)) && bytes.Equal(target, want[:])
		return probing || bytes.Equal(from, want[:])
	}
	return false
}
