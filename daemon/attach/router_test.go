package attach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/netnstest"
)

// TestNoRouterAmongPods: whoever says on the bridge that it is a router gets no
// packet of a pod, and no pod an address of its choice; of pods with IPv6 and of
// those without, which believe it else all the same.
func TestNoRouterAmongPods(t *testing.T) {
	b := newBench(t)
	liar := pretend(t, b)
	for name, addrs := range map[string]int{"both families": 2, "IPv4 alone": 1} {
		t.Run(name, func(t *testing.T) {
			pod, h := newPod(t)
			w := sample()
			w.Owner.ContainerID, w.Addrs, w.Gateways = strings.ReplaceAll(name, " ", "-"), w.Addrs[:addrs], w.Gateways[:addrs]
			_, err := b.attacher.Add(t.Context(), pod.Path(), w)
			must(t, err)
			hears := func(least int) {
				t.Helper()
				for limit := time.Now().Add(10 * time.Second); advertisementsAt(t, pod) < least; {
					if time.Now().After(limit) {
						t.Fatalf("%d advertisements have come in", advertisementsAt(t, pod))
					}
					liar.say(t)
				}
			}
			hears(2) // the first one has been acted on
			if got := believed(t, h); got != "" {
				t.Errorf("the pod believes in %s", got)
			}
			// That it is worth believing is seen where the pod wants it.
			must(t, pod.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/eth0/accept_ra", []byte("1"), 0) }))
			if hears(advertisementsAt(t, pod) + 2); believed(t, h) == "" {
				t.Error("nobody would have believed what was said")
			}
		})
	}
}

// believed is what a router told a pod: its default route, and an address.
func believed(t *testing.T, pod *netlink.Handle) string {
	t.Helper()
	var all []string
	routes, err := pod.RouteList(byName(t, pod, "eth0"), netlink.FAMILY_V6)
	must(t, err)
	for _, r := range routes {
		if r.Protocol == unix.RTPROT_RA || r.Gw.Equal(liarAddr().AsSlice()) {
			all = append(all, fmt.Sprintf("a route to %v via %s", r.Dst, r.Gw))
		}
	}
	addrs, err := pod.AddrList(byName(t, pod, "eth0"), netlink.FAMILY_V6)
	must(t, err)
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && liarPrefix().Contains(ip) {
			all = append(all, "address "+ip.String())
		}
	}
	return strings.Join(all, ", ")
}

// advertisementsAt is how many a namespace has taken in.
func advertisementsAt(t *testing.T, at *netnstest.NS) (n int) {
	t.Helper()
	must(t, at.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/snmp6")
		for line := range strings.Lines(string(b)) {
			if name, value, _ := strings.Cut(line, " "); name == "Icmp6InRouterAdvertisements" {
				_, err = fmt.Sscan(value, &n)
			}
		}
		return err
	}))
	return n
}

func liarAddr() netip.Addr { return addr("fe80::bad") }

func liarPrefix() netip.Prefix { return prefix("2001:db8:bad::/64") }

// liar is a pod that says it is a router.
type liar struct{ fd, link int }

// pretend makes the pod of the bench one.
func pretend(t *testing.T, b *bench) liar {
	t.Helper()
	b.add(t)
	eth0 := byName(t, b.pod, "eth0")
	must(t, b.pod.AddrAdd(eth0, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(liarAddr(), 64)), Flags: unix.IFA_F_NODAD, Scope: unix.RT_SCOPE_LINK}))
	l := liar{link: eth0.Attrs().Index}
	must(t, b.podNS.Do(func() (err error) {
		if l.fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(l.fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
			unix.Bind(l.fd, &unix.SockaddrInet6{ZoneId: uint32(l.link), Addr: liarAddr().As16()}))
	}))
	t.Cleanup(func() { _ = unix.Close(l.fd) })
	return l
}

// say sends a router advertisement to all nodes of the link: a default route by
// the sender, and a prefix to make an address in. The kernel adds the checksum.
func (l liar) say(t *testing.T) {
	t.Helper()
	const typeRA, lifetime, typePrefix, onLinkAutonomous = 134, 1800, 3, 0xc0
	m := []byte{typeRA, 0, 0, 0, 64, 0}
	m = binary.BigEndian.AppendUint16(m, lifetime)
	m = append(m, make([]byte, 8)...) // reachable time and retransmission: not said
	m = append(m, typePrefix, 4, byte(liarPrefix().Bits()), onLinkAutonomous)
	m = binary.BigEndian.AppendUint32(m, 2*lifetime)
	m = binary.BigEndian.AppendUint32(m, lifetime)
	m = append(m, make([]byte, 4)...)
	m = append(m, liarPrefix().Addr().AsSlice()...)
	must(t, unix.Sendto(l.fd, m, 0, &unix.SockaddrInet6{ZoneId: uint32(l.link), Addr: addr("ff02::1").As16()}))
}
