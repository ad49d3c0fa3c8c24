package dataplane_test

import (
	"net/netip"
	"os/exec"
	"testing"

	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/test/netnstest"
)

// pod plugs a namespace into the machine's bridge.
func (m *machine) pod(t *testing.T, address, gateway string) *machine {
	t.Helper()
	p := &machine{ns: netnstest.New(t)}
	m.sh(t, "ip link add pod0 type veth peer name eth0 netns %s", p.ns.Path())
	m.sh(t, "ip link set pod0 master %s up", bridge)
	p.sh(t, "ip link set eth0 up; ip addr add %s/24 dev eth0; ip route add default via %s", address, gateway)
	return p
}

// pings reports whether an answer comes; the first packet may be lost to ARP.
func (m *machine) pings(address string) bool {
	return m.ns.Do(func() error {
		return exec.Command("ping", "-c", "3", "-i", "0.1", "-W", "1", address).Run()
	}) == nil
}

// TestLinuxL8Traffic sends packets between two nodes and out of the network,
// past a FORWARD policy of DROP and behind the policies of others.
func TestLinuxL8Traffic(t *testing.T) {
	eachIPTables(t, func(t *testing.T, iptables string) {
		a := linuxMachine(t, iptables)
		b := a.far
		b.kernel = b.openKernel(t, iptables)
		wantA, wantB := twoNodes()
		for _, m := range []*machine{a, b} {
			m.sh(t, "%s -w -P FORWARD DROP", iptables)
		}
		a.converge(t, wantA)
		b.converge(t, wantB)
		podA := a.pod(t, "10.5.34.7", "10.5.34.1")
		podB := b.pod(t, "10.5.35.7", "10.5.35.1")
		check := func(when string, from *machine, to string, want bool) {
			t.Helper()
			if got := from.pings(to); got != want {
				t.Errorf("%s: ping %s: %v, want %v", when, to, got, want)
			}
		}
		check("pod to pod", podA, "10.5.35.7", true)
		check("pod to pod", podB, "10.5.34.7", true)
		check("node to remote pod", a, "10.5.35.7", true)
		check("pod to the outside, masqueraded", podA, "192.0.2.2", true)

		a.sh(t, "%s -w -N POLICY; %[1]s -w -A POLICY -s 10.5.34.7 -j DROP; %[1]s -w -I FORWARD -j POLICY", iptables)
		check("dropped by a policy ahead", podA, "10.5.35.7", false)
		a.sh(t, "%s -w -F POLICY", iptables)
		check("policy lifted", podA, "10.5.35.7", true)

		// The kernel keeps neighbours of its own for multicast addresses.
		a.sh(t, "ping -c 1 -W 1 -I %s 224.0.0.1 || true", overlay)
		if ops := a.converge(t, wantA); len(ops) > 0 {
			t.Errorf("traffic alone made it write\n%s", text(ops))
		}

		wantA.ForwardAccept = false
		a.converge(t, wantA)
		check("option off under DROP", podA, "10.5.35.7", false)
	})
}

// twoNodes are 10.5.34 at 192.0.2.1 and 10.5.35 at 192.0.2.2.
func twoNodes() (a, b dataplane.Desired) {
	at := func(n int, ip string) dataplane.Peer {
		p := peer(n)
		p.PublicIP = addr(ip)
		return p
	}
	a = node34(at(35, "192.0.2.2"))
	b = node34(at(34, "192.0.2.1"))
	b.Bridge.MAC, b.Bridge.Gateways = mac(1001), []netip.Prefix{prefix("10.5.35.1/24")}
	b.Overlays[0].Local, b.Overlays[0].MAC, b.Overlays[0].Addr = addr("192.0.2.2"), mac(35), prefix("10.5.35.0/32")
	return a, b
}
