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
	const ipLen = 20
	w.mu.Lock()
	defer w.mu.Unlock()
	if source, ok := innerSource(packet); ok {
		w.from[source]++
	} else if len(packet) >= ipLen && packet[0]>>4 == 4 {
		w.plain[netip.AddrFrom4([4]byte(packet[12:16]))]++
	}
}

// innerSource takes the source address out of an IPv4 packet inside of vxlan,
// which goes to UDP port 8472.
func innerSource(outer []byte) (netip.Addr, bool) {
	const udpLen, vxlanLen, etherLen, ipLen = 8, 8, 14, 20
	if len(outer) < ipLen || outer[0]>>4 != 4 || outer[9] != unix.IPPROTO_UDP {
		return netip.Addr{}, false
	}
	udp := outer[int(outer[0]&0xf)*4:]
	if len(udp) < udpLen+vxlanLen+etherLen+ipLen || binary.BigEndian.Uint16(udp[2:]) != 8472 {
		return netip.Addr{}, false
	}
	ether := udp[udpLen+vxlanLen:]
	if binary.BigEndian.Uint16(ether[12:]) != unix.ETH_P_IP {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(ether[etherLen+12 : etherLen+16])), true
}
