package fence

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// cluster6 is the Network of the tests with both families.
var cluster6 = Network{V4: cluster.V4, V6: netip.MustParsePrefix("fd00:5::/48")}

func (n *node) subnets6() Subnets {
	i := n.mac[5]
	return Subnets{V4: pfx(fmt.Sprintf("10.5.%d.0/24", i)), V6: pfx(fmt.Sprintf("fd00:5:0:%d::/64", i))}
}

// sixToo gives two nodes IPv6 on the device name and on the underlay, and
// routes to each other's pods through name. The kernel's own talk (router
// solicitations, duplicate address detection) is switched off.
func sixToo(t *testing.T, name string, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		must(t, n.ns.Do(func() error {
			for _, conf := range []string{"lo", underlay, name} {
				for key, value := range map[string]string{"accept_dad": "0", "router_solicitations": "0", "accept_ra": "0", "disable_ipv6": "0"} {
					if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/"+key, []byte(value), 0); err != nil {
						return err
					}
				}
			}
			return nil
		}))
		i := n.mac[5]
		n.up(t, underlay, fmt.Sprintf("2001:db8::%d/64", i))
		n.up(t, "lo", fmt.Sprintf("fd00:5:0:%d::7/128", i), fmt.Sprintf("2001:db8:1::%d/128", i), "fd00:5:0:3::7/128")
		must(t, n.fence.Set(n.subnets6(), cluster6))
	}
	for _, n := range nodes {
		peer := 3 - n.mac[5]
		index := n.up(t, name).Attrs().Index
		via := net.ParseIP(fmt.Sprintf("2001:db8::%d", peer))
		if name == vxlan {
			via = net.ParseIP(fmt.Sprintf("fd00:5:0:%d::", peer))
			must(t, n.h.NeighSet(&netlink.Neigh{
				LinkIndex: index, Family: unix.AF_INET6, State: netlink.NUD_PERMANENT, IP: via, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, peer},
			}))
		}
		for _, dst := range []string{fmt.Sprintf("fd00:5:0:%d::/64", peer), fmt.Sprintf("2001:db8:1::%d/128", peer)} {
			to, err := netlink.ParseIPNet(dst)
			must(t, err)
			must(t, n.h.RouteAdd(&netlink.Route{LinkIndex: index, Dst: to, Gw: via, Flags: int(netlink.FLAG_ONLINK)}))
		}
	}
}

// blocks is drops where the kernel has things of its own to say: several
// packets, each of them dropped for the reason r, and none that arrives.
func blocks(t *testing.T, why string, f *Fence, r Reason, s *sink, c *net.UDPConn, dst string) {
	t.Helper()
	const packets = 5
	before, arrived := count(t, f)[r], s.count.Load()
	for i := range uint64(packets) {
		send(t, c, dst, s.port, i)
	}
	if !eventually(func() bool { return count(t, f)[r] >= before+packets }) {
		t.Errorf("%s: %d packets were dropped for %s, want %d", why, count(t, f)[r]-before, r, packets)
	}
	if n := s.count.Load() - arrived; n != 0 {
		t.Errorf("%s: %d packets arrived", why, n)
	}
}

// Inner packets of IPv6 are judged by the same deadline and by their own live
// subnet and Network.
func TestIPv6ThroughTheOverlay(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.attach(t)
	sixToo(t, vxlan, n1, n2)
	out, in := n2.sinkAt(t, "[::]:0"), n1.sinkAt(t, "[::]:0")
	pod, stranded, masqueraded := n1.sender(t, "fd00:5:0:1::7"), n1.sender(t, "fd00:5:0:3::7"), n1.sender(t, "2001:db8:1::1")
	remote := n2.sender(t, "fd00:5:0:2::7")

	blocks(t, "never armed, out", n1.fence, Closed, out, pod, "fd00:5:0:2::7")
	blocks(t, "never armed, in", n1.fence, Closed, in, remote, "fd00:5:0:1::7")
	n1.armFor(t, time.Minute)
	passes(t, "own pod", pod, out, "fd00:5:0:2::7")
	passes(t, "masqueraded", masqueraded, out, "fd00:5:0:2::7")
	passes(t, "for own pod", remote, in, "fd00:5:0:1::7")
	passes(t, "for an address outside Network", remote, in, "2001:db8:1::1")
	blocks(t, "stranded pod", n1.fence, Source, out, stranded, "fd00:5:0:2::7")
	to, err := netlink.ParseIPNet("fd00:5:0:9::/64")
	must(t, err)
	must(t, n2.h.RouteAdd(&netlink.Route{LinkIndex: n2.index, Dst: to, Gw: net.ParseIP("fd00:5:0:1::"), Flags: int(netlink.FLAG_ONLINK)}))
	blocks(t, "transit", n1.fence, Destination, in, remote, "fd00:5:0:9::7")
	must(t, n1.fence.Deny(n2.mac))
	blocks(t, "without a token", n1.fence, Token, in, remote, "fd00:5:0:1::7")
	must(t, n1.fence.Allow(n2.mac, pfx("10.5.2.0/24"))) // the key's first subnet stands for both
	passes(t, "with the token", remote, in, "fd00:5:0:1::7")

	n1.armFor(t, 0)
	for name, c := range map[string]*net.UDPConn{"own pod": pod, "masqueraded": masqueraded} {
		blocks(t, "past the deadline, "+name, n1.fence, Closed, out, c, "fd00:5:0:2::7")
	}
	blocks(t, "past the deadline, in", n1.fence, Closed, in, remote, "fd00:5:0:1::7")
}

// On the uplink neighbour discovery is the host's own and passes; what is
// within Network is fenced as in IPv4.
func TestIPv6OnTheUplink(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.index = n1.up(t, underlay).Attrs().Index
	must(t, n1.fence.AttachUplink(t.Context(), n1.index))
	sixToo(t, underlay, n1, n2)
	out, in := n2.sinkAt(t, "[::]:0"), n1.sinkAt(t, "[::]:0")
	pod, stranded, host := n1.sender(t, "fd00:5:0:1::7"), n1.sender(t, "fd00:5:0:3::7"), n1.sender(t, "2001:db8::1")
	remote := n2.sender(t, "fd00:5:0:2::7")

	passes(t, "host to host, shut", host, out, "2001:db8::2")
	passes(t, "host to pod, shut", host, out, "fd00:5:0:2::7")
	passes(t, "pod to host, shut", remote, in, "2001:db8::1")
	blocks(t, "pod to pod, shut", n1.fence, Closed, out, pod, "fd00:5:0:2::7")
	blocks(t, "pod to pod, shut, in", n1.fence, Closed, in, remote, "fd00:5:0:1::7")
	n1.armFor(t, time.Minute)
	passes(t, "pod to pod", pod, out, "fd00:5:0:2::7")
	passes(t, "pod to pod, in", remote, in, "fd00:5:0:1::7")
	blocks(t, "stranded pod to pod", n1.fence, Source, out, stranded, "fd00:5:0:2::7")
	n1.fence.Close()
	blocks(t, "pod to pod, shut again", n1.fence, Closed, out, pod, "fd00:5:0:2::7")
	passes(t, "host to host, shut again", host, out, "2001:db8::2")
}
