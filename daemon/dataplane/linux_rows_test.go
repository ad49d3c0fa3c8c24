package dataplane_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/dataplane"
)

// Rows of the list of field bugs of which the whole experiment lies here.

// many wants that many peers in 10.0.0.0/8.
func many(n int) dataplane.Desired {
	want := node34()
	want.Networks = []netip.Prefix{prefix("10.0.0.0/8")}
	for i := range n {
		want.Peers = append(want.Peers, dataplane.Peer{
			Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + i>>8), byte(i), 0}), 24),
			PublicIP: netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}),
			MAC:      mac(i + 2000),
		})
	}
	return want
}

// TestLinuxI5OnlyWhatIsMissing takes things away among a thousand peers, as a
// link flap or a restart of the network does: all is back within five seconds,
// and no more is written than was missing.
func TestLinuxI5OnlyWhatIsMissing(t *testing.T) {
	needsRoot(t)
	const peers = 1000
	m, want := linuxMachine(t, ""), many(peers)
	loop := m.run(t, want, dataplane.Options{})
	before := m.look(t)
	for _, c := range []struct {
		script string
		writes uint64
	}{
		{"ip route del 10.100.36.0/24", 1},
		{"ip neigh del 10.100.36.0 dev tenure.1", 1},
		{"bridge fdb del 0a:58:00:00:07:f4 dev tenure.1", 1},
		{"ip link set tenure.1 down; ip link set tenure.1 up", 2 * peers},
		{"ip addr flush dev tenure.1", 2*peers + 1},
		{"ip link set up0 down; ip link set up0 up", 0},
	} {
		writes := loop.Report().TotalWrites()
		m.sh(t, "%s", c.script)
		took := m.untilPlanEmpty(t, want)
		sameState(t, before, m.look(t))
		waitNextPass(t, loop)
		waitConverged(t, loop)
		if n := loop.Report().TotalWrites() - writes; n != c.writes {
			t.Errorf("%s: %d writes, want %d", c.script, n, c.writes)
		}
		t.Logf("%4d ms  %s", took.Milliseconds(), c.script)
	}
}

// TestLinuxJ1MACIsKept changes the MAC of the devices up to half a second after
// each time they appear, as a device manager does: at the end of each run it is
// the one that peers were told.
func TestLinuxJ1MACIsKept(t *testing.T) {
	needsRoot(t)
	m, want := linuxMachine(t, ""), node34(peer(35))
	loop := m.run(t, want, dataplane.Options{})
	before := m.look(t)
	runs, longest := 8, 100
	if os.Getenv("TENURE_LONG") == "1" {
		runs, longest = 100, 500
	}
	for range runs {
		link := []string{overlay, bridge}[rand.IntN(2)]
		m.sh(t, "ip link del %s; until ip link set %[1]s address 02:00:00:00:99:99 2>/dev/null; do :; done; sleep 0.%03d; ip link set %[1]s address 02:00:00:00:99:98",
			link, rand.IntN(longest))
		m.untilPlanEmpty(t, want)
		waitNextPass(t, loop)
		waitConverged(t, loop)
		sameState(t, before, m.look(t))
		if t.Failed() {
			return
		}
	}
}

// TestLinuxL3NoRulesOfTheOtherFamily: on a host with both families a node that
// has IPv4 only makes no IPv6 rules, and comes to rest at once.
func TestLinuxL3NoRulesOfTheOtherFamily(t *testing.T) {
	eachIPTables(t, func(t *testing.T, iptables string) {
		m := linuxMachine(t, iptables)
		m.sh(t, "test ! -e /proc/sys/net/ipv6 || ip -6 addr add 2001:db8::1/64 dev up0 nodad || true")
		loop := m.run(t, node34(peer(35)), quick())
		writes := loop.Report().TotalWrites()
		for range 20 {
			waitNextPass(t, loop)
		}
		if n := loop.Report().TotalWrites() - writes; n != 0 {
			t.Errorf("%d writes with nothing to do", n)
		}
		saved := m.sh(t, "%s-save || true", strings.Replace(iptables, "iptables", "ip6tables", 1))
		if strings.Contains(saved, "TENURE") {
			t.Errorf("IPv6 rules:\n%s", saved)
		}
	})
}

// TestLinuxP1LoopUnderChurn starts a loop, and lets it repair, while links and
// addresses come and go: it converges, and writes nothing but what is missing.
func TestLinuxP1LoopUnderChurn(t *testing.T) {
	needsRoot(t)
	m, want := linuxMachine(t, ""), many(200)
	m.sh(t, "for i in $(seq 100); do echo link add many$i type bridge; done | ip -batch -")
	var stop atomic.Bool
	var changes atomic.Int64
	done := make(chan struct{})
	churner := m.openKernel(t, "")
	go func() {
		defer close(done)
		for n := 0; !stop.Load(); n++ {
			name := fmt.Sprintf("churn%d", n%10)
			a := dataplane.Addr{Link: name, Prefix: prefix("198.51.100.1/24")}
			cs := []dataplane.Change{dataplane.AddBridge{Name: name, MAC: mac(7)}, dataplane.SetUp{Link: name}}
			for range 30 {
				cs = append(cs, dataplane.AddAddr{Addr: a}, dataplane.DelAddr{Addr: a})
			}
			for _, c := range append(cs, dataplane.DelLink{Link: name}) {
				if churner.Apply(context.Background(), dataplane.Op{Change: c}) == nil {
					changes.Add(1)
				}
			}
			<-time.After(2 * time.Millisecond)
		}
	}()
	start := time.Now()
	loop := m.run(t, want, dataplane.Options{})
	for range 5 {
		writes := loop.Report().TotalWrites()
		m.sh(t, "ip route del 10.100.36.0/24")
		m.untilPlanEmpty(t, want)
		waitNextPass(t, loop)
		waitConverged(t, loop)
		if n := loop.Report().TotalWrites() - writes; n != 1 {
			t.Errorf("%d writes for one lost route", n)
		}
	}
	stop.Store(true)
	<-done
	t.Logf("%.0f changes per second", float64(changes.Load())/time.Since(start).Seconds())
}
