package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// probes is how often an address is asked for, and between how long each
	// time is listened.
	probes  = 3
	between = 300 * time.Millisecond
)

// probing is how a family asks who else has an address.
type probing struct {
	// open gives a packet socket on the link, without the Ethernet header.
	open func(ifindex int) (int, error)
	ask  func(fd int, dev *net.Interface, ip netip.Addr) error
	// claims says whether a packet that came from an Ethernet address is that of
	// another machine which uses ip, or is probing for it.
	claims func(packet []byte, from, own net.HardwareAddr, ip netip.Addr) bool
}

func probingFor(ip netip.Addr) probing {
	if ip.Is6() {
		return probing{openNDP, sendSolicitation, func(b []byte, from, own net.HardwareAddr, ip netip.Addr) bool {
			return !bytes.Equal(from, own) && claims6(b, ip)
		}}
	}
	return probing{openARP, sendProbe, func(b []byte, _, own net.HardwareAddr, ip netip.Addr) bool { return claims(b, own, ip) }}
}

// addressSilent probes for ip on a link. It is true if nobody else answered,
// false if somebody did. The link must be up; an error says nothing about ip.
func addressSilent(ctx context.Context, link string, ip netip.Addr) (bool, error) {
	dev, err := net.InterfaceByName(link)
	if err != nil {
		return false, fmt.Errorf("probe for %s: %w", ip, err)
	}
	p := probingFor(ip)
	fd, err := p.open(dev.Index)
	if err != nil {
		return false, fmt.Errorf("probe for %s on %s: %w", ip, link, err)
	}
	defer func() { _ = unix.Close(fd) }()
	for range probes {
		if err := p.ask(fd, dev, ip); err != nil {
			return false, fmt.Errorf("probe for %s on %s: %w", ip, link, err)
		}
		answered, err := p.hear(ctx, fd, dev, ip, time.Now().Add(between))
		if answered || err != nil {
			return false, err
		}
	}
	return true, nil
}

// hear listens until the deadline for another machine that says it has ip.
func (p probing) hear(ctx context.Context, fd int, dev *net.Interface, ip netip.Addr, until time.Time) (bool, error) {
	b := make([]byte, 256)
	for {
		left := time.Until(until)
		if left <= 0 || ctx.Err() != nil {
			return false, ctx.Err()
		}
		tv := unix.NsecToTimeval(left.Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return false, fmt.Errorf("listen for %s: %w", ip, err)
		}
		n, from, err := unix.Recvfrom(fd, b, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("listen for %s: %w", ip, err)
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && p.claims(b[:n], ll.Addr[:min(int(ll.Halen), len(ll.Addr))], dev.HardwareAddr, ip) {
			return true, nil
		}
	}
}
