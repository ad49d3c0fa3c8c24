package fence

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/netnstest"
)

// node is one of two machines: a namespace with an underlay address, a vxlan
// device and addresses of pods, real and stranded, on its loopback.
type node struct {
	ns    *netnstest.NS
	h     *netlink.Handle
	mac   [6]byte
	index int // of the vxlan device
	fence *Fence
}

const (
	vxlan      = "vx0"
	underlay   = "under"
	patience   = 5 * time.Second
	overlayMTU = 1450
)

// twoNodes are n1 with subnet 10.5.1.0/24 and n2 with 10.5.2.0/24, joined by a
// veth, each with a Fence that knows the other and is not attached anywhere.
// A pod of n1 is stranded on 10.5.3.7. Nothing but the tests sends anything.
func twoNodes(t *testing.T) (n1, n2 *node) {
	t.Helper()
	needsRoot(t)
	n1, n2 = newNode(t, 1), newNode(t, 2)
	must(t, n1.h.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: underlay}, PeerName: underlay,
		PeerNamespace: netlink.NsFd(n2.ns.FD()),
	}))
	for i, n := range []*node{n1, n2} {
		n.up(t, underlay, fmt.Sprintf("192.0.2.%d/24", i+1))
		n.up(t, "lo", fmt.Sprintf("10.5.%d.7/32", i+1), fmt.Sprintf("198.51.100.%d/32", i+1))
		n.addVxlan(t, byte(i+1))
	}
	n1.up(t, "lo", "10.5.3.7/32")
	return n1, n2
}

func newNode(t *testing.T, i byte) *node {
	t.Helper()
	n := &node{ns: netnstest.New(t), mac: [6]byte{2, 0, 0, 0, 0, i}}
	h, err := netlink.NewHandleAt(netns.NsHandle(n.ns.FD()), unix.NETLINK_ROUTE)
	must(t, err)
	t.Cleanup(h.Close)
	n.h = h
	must(t, n.ns.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	}))
	n.fence = n.open(t)
	peer := 3 - i
	must(t, n.fence.Set(Subnets{V4: pfx(fmt.Sprintf("10.5.%d.0/24", i))}, cluster))
	must(t, n.fence.Allow([6]byte{2, 0, 0, 0, 0, peer}, pfx(fmt.Sprintf("10.5.%d.0/24", peer))))
	return n
}

// open is what a daemon does when it starts.
func (n *node) open(t *testing.T) *Fence {
	t.Helper()
	f, err := Open(Options{Links: []string{"none", vxlan}, NetNS: n.ns.FD()})
	must(t, err)
	t.Cleanup(func() { _ = f.Release() })
	return f
}

func (n *node) up(t *testing.T, name string, addresses ...string) netlink.Link {
	t.Helper()
	link, err := n.h.LinkByName(name)
	must(t, err)
	must(t, n.h.LinkSetUp(link))
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		must(t, err)
		must(t, n.h.AddrAdd(link, addr))
	}
	return link
}

// addVxlan makes the device and everything that leads to the other node.
func (n *node) addVxlan(t *testing.T, i byte) {
	t.Helper()
	peer := 3 - i
	under, err := n.h.LinkByName(underlay)
	must(t, err)
	must(t, n.h.LinkAdd(&netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: vxlan, MTU: overlayMTU, HardwareAddr: n.mac[:]},
		VxlanId:   1, Port: 8472, VtepDevIndex: under.Attrs().Index, SrcAddr: net.IPv4(192, 0, 2, i),
	}))
	n.index = n.up(t, vxlan, fmt.Sprintf("10.5.%d.0/32", i)).Attrs().Index
	peerMAC := net.HardwareAddr{2, 0, 0, 0, 0, peer}
	gateway := net.IPv4(10, 5, peer, 0)
	must(t, n.h.NeighSet(&netlink.Neigh{
		LinkIndex: n.index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: gateway, HardwareAddr: peerMAC,
	}))
	must(t, n.h.NeighSet(&netlink.Neigh{
		LinkIndex: n.index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
		IP: net.IPv4(192, 0, 2, peer), HardwareAddr: peerMAC,
	}))
	for _, dst := range []net.IPNet{
		{IP: gateway.To4(), Mask: net.CIDRMask(24, 32)},
		{IP: net.IPv4(198, 51, 100, peer).To4(), Mask: net.CIDRMask(32, 32)},
	} {
		must(t, n.h.RouteAdd(&netlink.Route{LinkIndex: n.index, Dst: &dst, Gw: gateway, Flags: int(netlink.FLAG_ONLINK)}))
	}
}

func (n *node) attach(t *testing.T) {
	t.Helper()
	must(t, n.fence.Attach(t.Context(), n.index))
}

func (n *node) armFor(t *testing.T, d time.Duration) {
	t.Helper()
	must(t, n.fence.Arm(n.fence.Generation(), BootTime()+d))
}

// sender is a socket on n whose packets have the source src.
func (n *node) sender(t *testing.T, src string) *net.UDPConn {
	t.Helper()
	return n.listen(t, netip.AddrPortFrom(netip.MustParseAddr(src), 0))
}

func (n *node) listen(t *testing.T, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	network := "udp4"
	if at.Addr().Is6() {
		network = "udp6"
	}
	must(t, n.ns.Do(func() (err error) {
		c, err = net.ListenUDP(network, net.UDPAddrFromAddrPort(at))
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// sink counts what arrives on n, for any of its addresses, and remembers the
// number that the last packet carried.
type sink struct {
	port  uint16
	count atomic.Int64
	last  atomic.Uint64
}

func (n *node) sink(t *testing.T) *sink { return n.sinkAt(t, "0.0.0.0:0") }

func (n *node) sinkAt(t *testing.T, at string) *sink {
	t.Helper()
	c := n.listen(t, netip.MustParseAddrPort(at))
	must(t, setReadBuffer(c, 8<<20))
	s := &sink{port: uint16(c.LocalAddr().(*net.UDPAddr).Port)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64)
		for {
			k, err := c.Read(buf)
			if err != nil {
				return
			}
			if k == 8 {
				s.count.Add(1)
				s.last.Store(binary.BigEndian.Uint64(buf))
			}
		}
	}()
	t.Cleanup(func() { _ = c.Close(); <-done })
	return s
}

func setReadBuffer(c *net.UDPConn, size int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size)
	})
	return errors.Join(err, failed)
}

// send puts one numbered packet on its way. A drop on the way out may be told
// to the sender; that is not judged here.
func send(t *testing.T, c *net.UDPConn, dst string, port uint16, number uint64) {
	t.Helper()
	_, err := c.WriteToUDPAddrPort(binary.BigEndian.AppendUint64(nil, number), netip.AddrPortFrom(netip.MustParseAddr(dst), port))
	if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, os.ErrPermission) {
		t.Fatalf("send to %s: %v", dst, err)
	}
}

// passes wants a packet from c to arrive.
func passes(t *testing.T, why string, c *net.UDPConn, s *sink, dst string) {
	t.Helper()
	number := uint64(BootTime())
	send(t, c, dst, s.port, number)
	if !eventually(func() bool { return s.last.Load() == number }) {
		t.Errorf("%s: nothing arrived from %s at %s", why, c.LocalAddr(), dst)
	}
}

// drops wants act to be dropped by f for the reason r, exactly once, and
// nothing to arrive.
func drops(t *testing.T, why string, f *Fence, r Reason, s *sink, act func()) {
	t.Helper()
	before, arrived := count(t, f), s.count.Load()
	act()
	eventually(func() bool { return count(t, f)[r] > before[r] })
	after := count(t, f)
	for other := range reasons {
		want := before[other]
		if other == r {
			want++
		}
		if after[other] != want {
			t.Errorf("%s: %s counted %d drops, want %d", why, other, after[other]-before[other], want-before[other])
		}
	}
	if n := s.count.Load() - arrived; n != 0 {
		t.Errorf("%s: %d packets arrived", why, n)
	}
}

func count(t *testing.T, f *Fence) map[Reason]uint64 {
	t.Helper()
	n, err := f.Drops()
	must(t, err)
	return n
}

// eventually asks until the answer is yes or patience ends.
func eventually(ask func() bool) bool {
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-again.C {
		if ask() {
			return true
		}
	}
	return ask()
}

// inject puts a raw frame on n's vxlan device. It ends with the frame having
// left the device or having been dropped there.
func (n *node) inject(t *testing.T, fr []byte) {
	t.Helper()
	must(t, n.ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		defer func() { _ = unix.Close(fd) }()
		err = unix.Sendto(fd, fr, 0, &unix.SockaddrLinklayer{Ifindex: n.index, Halen: 6})
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("inject %x: %w", fr, err)
		}
		return nil
	}))
}
