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

// Duplicate address detection for IPv4 (RFC 5227): this node asks who has its
// own address. Nobody but another machine with that address answers.
const (
	arpLength  = 28
	arpRequest = 1
)

// openARP opens a socket that carries ARP packets of one link, without the
// Ethernet header.
func openARP(ifindex int) (int, error) {
	const proto = unix.ETH_P_ARP<<8&0xff00 | unix.ETH_P_ARP>>8 // network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return -1, fmt.Errorf("open packet socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: ifindex}); err != nil {
		return -1, errors.Join(fmt.Errorf("bind packet socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// sendProbe asks for ip with an empty sender address, so that nobody's cache
// is touched.
func sendProbe(fd int, dev *net.Interface, ip netip.Addr) error {
	to := &unix.SockaddrLinklayer{Protocol: unix.ETH_P_ARP<<8&0xff00 | unix.ETH_P_ARP>>8, Ifindex: dev.Index, Halen: 6}
	copy(to.Addr[:], net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	return unix.Sendto(fd, arpPacket(dev.HardwareAddr, ip), 0, to)
}

func arpPacket(from net.HardwareAddr, ip netip.Addr) []byte {
	b := make([]byte, arpLength)
	binary.BigEndian.PutUint16(b[0:], 1) // Ethernet
	binary.BigEndian.PutUint16(b[2:], unix.ETH_P_IP)
	b[4], b[5] = 6, 4
	binary.BigEndian.PutUint16(b[6:], arpRequest)
	copy(b[8:14], from)
	target := ip.As4()
	copy(b[24:28], target[:])
	return b
}

// claims says whether an ARP packet comes from another machine that uses ip,
// or that is probing for it at this very moment.
func claims(b []byte, own net.HardwareAddr, ip netip.Addr) bool {
	if len(b) < arpLength || b[4] != 6 || b[5] != 4 || bytes.Equal(b[8:14], own) {
		return false
	}
	want := ip.As4()
	if bytes.Equal(b[14:18], want[:]) {
		return true
	}
	probing := binary.BigEndian.Uint16(b[6:]) == arpRequest && bytes.Equal(b[14:18], make([]byte, 4))
	return probing && bytes.Equal(b[24:28], want[:])
}
