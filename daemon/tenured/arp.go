package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Duplicate address detection for IPv4 (RFC 5227): this node asks who has its
// own address. Nobody but another machine with that address answers.
const (
	arpProbes  = 3
	arpBetween = 300 * time.Millisecond
	arpLength  = 28
	arpRequest = 1
)

// addressSilent probes for ip on a link. It is true if nobody else answered,
// false if somebody did. The link must be up; an error says nothing about ip.
func addressSilent(ctx context.Context, link string, ip netip.Addr) (bool, error) {
	dev, err := net.InterfaceByName(link)
	if err != nil {
		return false, fmt.Errorf("probe for %s: %w", ip, err)
	}
	fd, err := openARP(dev.Index)
	if err != nil {
		return false, fmt.Errorf("probe for %s on %s: %w", ip, link, err)
	}
	defer func() { _ = unix.Close(fd) }()
	for range arpProbes {
		if err := sendProbe(fd, dev, ip); err != nil {
			return false, fmt.Errorf("probe for %s on %s: %w", ip, link, err)
		}
		answered, err := hearClaim(ctx, fd, dev, ip, time.Now().Add(arpBetween))
		if answered || err != nil {
			return false, err
		}
	}
	return true, nil
}

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

// hearClaim listens until the deadline for another machine that says it has ip.
func hearClaim(ctx context.Context, fd int, dev *net.Interface, ip netip.Addr, until time.Time) (bool, error) {
	b := make([]byte, 128)
	for {
		left := time.Until(until)
		if left <= 0 || ctx.Err() != nil {
			return false, ctx.Err()
		}
		tv := unix.NsecToTimeval(left.Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return false, fmt.Errorf("listen for %s: %w", ip, err)
		}
		n, _, err := unix.Recvfrom(fd, b, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("listen for %s: %w", ip, err)
		}
		if claims(b[:n], dev.HardwareAddr, ip) {
			return true, nil
		}
	}
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
