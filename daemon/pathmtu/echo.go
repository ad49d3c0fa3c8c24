package pathmtu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Types of messages, and lengths of headers in bytes.
const (
	echoRequest  = 8
	echoReply    = 0
	echoRequest6 = 128
	echoReply6   = 129
	icmpHeader   = 8
	ipHeader     = 20
	ipHeader6    = 40
)

// icmpFilter is the option of a raw socket that names, a bit each, the types
// it does not want (ICMP_FILTER of linux/icmp.h).
const icmpFilter = 1

// echo asks one peer. Raw sockets are for root and CAP_NET_RAW; the other kind
// that pings is shut to root too by the kernel's default.
type echo struct {
	fd  int
	six bool
	id  uint16
	seq uint16
}

// openEcho makes a socket from one address to another. Packets must not be
// fragmented; what the kernel hears of a smaller MTU on the way counts, as it
// does for pods.
func openEcho(from, to netip.Addr) (*echo, error) {
	e := &echo{six: to.Is6(), id: uint16(rand.Uint32())}
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	if e.six {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	var err error
	if e.fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol); err != nil {
		return nil, fmt.Errorf("open raw socket: %w", err)
	}
	if err := e.prepare(from, to); err != nil {
		e.close()
		return nil, fmt.Errorf("ask %s from %s: %w", to, from, err)
	}
	return e, nil
}

func (e *echo) prepare(from, to netip.Addr) error {
	if e.six {
		var only unix.ICMPv6Filter
		for i := range only.Data {
			only.Data[i] = ^uint32(0)
		}
		only.Data[echoReply6/32] &^= 1 << (echoReply6 % 32)
		return errors.Join(
			unix.SetsockoptICMPv6Filter(e.fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &only),
			unix.SetsockoptInt(e.fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO),
			unix.SetsockoptInt(e.fd, unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1),
			unix.Bind(e.fd, &unix.SockaddrInet6{Addr: from.As16()}),
			unix.Connect(e.fd, &unix.SockaddrInet6{Addr: to.As16()}))
	}
	return errors.Join(
		unix.SetsockoptInt(e.fd, unix.SOL_RAW, icmpFilter, ^(1<<echoReply)),
		unix.SetsockoptInt(e.fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO),
		unix.Bind(e.fd, &unix.SockaddrInet4{Addr: from.As4()}),
		unix.Connect(e.fd, &unix.SockaddrInet4{Addr: to.As4()}))
}

func (e *echo) close() { _ = unix.Close(e.fd) }

// ask sends one request of size bytes, IP header included, and waits for its
// answer.
func (e *echo) ask(size int, wait time.Duration) (answer, time.Duration) {
	e.seq++
	began := time.Now()
	if _, err := unix.Write(e.fd, e.request(size)); err != nil {
		return becauseOf(err), 0
	}
	b := make([]byte, size+ipHeader6)
	for {
		left := wait - time.Since(began)
		if left < time.Millisecond {
			return silence, 0
		}
		tv := unix.NsecToTimeval(left.Nanoseconds())
		if err := unix.SetsockoptTimeval(e.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return silence, 0
		}
		n, err := unix.Read(e.fd, b)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return becauseOf(err), 0
		}
		if e.mine(b[:n]) {
			return answered, time.Since(began)
		}
	}
}

// becauseOf is what an error of the socket says about the request.
func becauseOf(err error) answer {
	if errors.Is(err, unix.EMSGSIZE) {
		return tooLarge
	}
	return silence
}

// request is the message that makes a packet of that size. The kernel adds the
// IP header, and for IPv6 the checksum.
func (e *echo) request(size int) []byte {
	if e.six {
		b := make([]byte, max(size-ipHeader6, icmpHeader))
		b[0] = echoRequest6
		e.stamp(b)
		return b
	}
	b := make([]byte, max(size-ipHeader, icmpHeader))
	b[0] = echoRequest
	e.stamp(b)
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	return b
}

func (e *echo) stamp(b []byte) {
	binary.BigEndian.PutUint16(b[4:], e.id)
	binary.BigEndian.PutUint16(b[6:], e.seq)
}

// mine says whether a message answers the last request. Of IPv4 the IP header
// stands before it.
func (e *echo) mine(b []byte) bool {
	kind := byte(echoReply6)
	if !e.six {
		kind = echoReply
		if len(b) < ipHeader {
			return false
		}
		b = b[min(int(b[0]&0xf)*4, len(b)):]
	}
	return len(b) >= icmpHeader && b[0] == kind && binary.BigEndian.Uint16(b[4:]) == e.id && binary.BigEndian.Uint16(b[6:]) == e.seq
}

// checksum is the Internet's (RFC 1071) of a message whose own is zero.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
