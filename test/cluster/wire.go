package cluster

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/lab"
)

// Wire counts the packets that come in by a device, by their source: those in
// the overlay by that of the packet inside.
type Wire struct {
	mu          sync.Mutex
	from, plain map[netip.Addr]int
}

// Sniff looks at a device, until the test ends. On the LAN the device to-n1 is
// the end of n1's cable: what comes in there is what n1 has sent.
func Sniff(t testing.TB, at *lab.NS, device string) *Wire {
	t.Helper()
	var raw *os.File
	err := at.Do(func() error {
		link, err := net.InterfaceByName(device)
		if err != nil {
			return fmt.Errorf("look at %s: %w", device, err)
		}
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, all)
		if err != nil {
			return fmt.Errorf("open packet socket: %w", err)
		}
		raw = os.NewFile(uintptr(fd), "wire "+device)
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return fmt.Errorf("leave out what goes out by %s: %w", device, err)
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &Wire{from: map[netip.Addr]int{}, plain: map[netip.Addr]int{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.read(raw)
	}()
	t.Cleanup(func() { _ = raw.Close(); <-done })
	return w
}

// From is how many packets with that source were seen in the overlay.
func (w *Wire) From(a netip.Addr) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.from[a]
}

// Plain is how many were seen outside of it.
func (w *Wire) Plain(a netip.Addr) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.plain[a]
}

func (w *Wire) read(raw *os.File) {
	buf := make([]byte, 2048)
	for {
		n, err := raw.Read(buf)
		if err != nil {
			return
		}
		w.note(buf[:n])
	}
}

func (w *Wire) note(packet []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if inner, ok := inside(packet); ok {
		if a, ok := source(inner); ok {
			w.from[a]++
		}
	} else if a, ok := source(packet); ok {
		w.plain[a]++
	}
}

// Lengths of headers without options.
const (
	ipv4Len  = 20
	ipv6Len  = 40
	udpLen   = 8
	vxlanLen = 8
	etherLen = 14
)

// source is the source address of a packet; false of what is no IP.
func source(packet []byte) (netip.Addr, bool) {
	switch {
	case len(packet) >= ipv4Len && packet[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(packet[12:16])), true
	case len(packet) >= ipv6Len && packet[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(packet[8:24])), true
	}
	return netip.Addr{}, false
}

// inside is what a packet has behind the frame in vxlan, which goes to UDP port
// 8472; false where it is no such packet.
func inside(outer []byte) ([]byte, bool) {
	udp := []byte{}
	switch {
	case len(outer) >= ipv4Len && outer[0]>>4 == 4 && outer[9] == unix.IPPROTO_UDP:
		udp = outer[min(int(outer[0]&0xf)*4, len(outer)):]
	case len(outer) >= ipv6Len && outer[0]>>4 == 6 && outer[6] == unix.IPPROTO_UDP:
		udp = outer[ipv6Len:]
	}
	if len(udp) < udpLen+vxlanLen+etherLen || binary.BigEndian.Uint16(udp[2:]) != 8472 {
		return nil, false
	}
	return udp[udpLen+vxlanLen+etherLen:], true
}
