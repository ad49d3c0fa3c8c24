package dataplane_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/dataplane"
)

// What only the real kernel can show.

// run starts a Loop over the machine and waits until want is met.
func (m *machine) run(t *testing.T, want dataplane.Desired, opts dataplane.Options) *dataplane.Loop {
	t.Helper()
	loop := dataplane.New(m.kernel, testLog(t), opts)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- loop.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	loop.Set(want)
	waitConverged(t, loop)
	return loop
}

func waitConverged(t *testing.T, loop *dataplane.Loop) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := loop.WaitConverged(ctx); err != nil {
		t.Fatal(err)
	}
}

// look reads through the second handle, since the first is the Loop's.
func (m *machine) look(t *testing.T) dataplane.State {
	t.Helper()
	s, err := m.vandal.Read(context.Background(), dataplane.Families{V4: true, V6: true})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// untilPlanEmpty waits until nothing is missing and returns how long it took.
func (m *machine) untilPlanEmpty(t *testing.T, want dataplane.Desired) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		ops, _ := dataplane.Plan(want, m.look(t))
		if len(ops) == 0 {
			return time.Since(start)
		}
		if time.Since(start) > 10*time.Second {
			t.Fatalf("after 10 s still to do:\n%s", text(ops))
		}
		<-time.After(20 * time.Millisecond)
	}
}

// quick makes the timers short, for damage of which no notice tells.
func quick() dataplane.Options {
	return dataplane.Options{
		Settle: 10 * time.Millisecond, MinGap: 20 * time.Millisecond,
		Backstop: 100 * time.Millisecond, RulesEvery: 100 * time.Millisecond, RulesLook: 20 * time.Millisecond,
	}
}

func eachIPTables(t *testing.T, f func(t *testing.T, iptables string)) {
	needsRoot(t)
	for _, iptables := range []string{"iptables-nft", "iptables-legacy"} {
		t.Run(iptables, func(t *testing.T) { f(t, iptables) })
	}
}

// TestLinuxI4L1Vandalism does what operators and their tools do, and wants all
// of it back, the same as before, and then silence.
func TestLinuxI4L1Vandalism(t *testing.T) {
	eachIPTables(t, func(t *testing.T, iptables string) {
		m := linuxMachine(t, iptables)
		want := node34(peer(35), peer(36), peer(37))
		loop := m.run(t, want, quick())
		before := m.look(t)
		for _, script := range []string{
			"ip link del tenure.1",
			"ip link del tenure0",
			"ip link set tenure.1 down; ip link set tenure.1 up",
			"ip link set tenure0 down",
			"ip addr flush dev tenure.1",
			"ip addr flush dev tenure0",
			"ip route flush proto 90",
			"ip route del 10.5.36.0/24",
			"ip neigh flush dev tenure.1 nud permanent",
			"ip neigh del 10.5.36.0 dev tenure.1",
			"bridge fdb del 0a:58:00:00:00:24 dev tenure.1 dst 192.0.2.36",
			"bridge fdb append 00:00:00:00:00:00 dev tenure.1 dst 192.0.2.98; bridge fdb append 00:00:00:00:00:00 dev tenure.1 dst 192.0.2.99",
			"ip link set tenure.1 address 02:00:00:00:00:99",
			"ip link set tenure0 address 02:00:00:00:00:99 mtu 1300",
			"ip link del tenure.1; ip link add tenure.1 type vxlan id 1 dstport 8472 dev up0 || true", // the loop may be faster
			"echo 0 > /proc/sys/net/ipv4/ip_forward",
			"echo 0 > /proc/sys/net/ipv4/conf/tenure0/forwarding",
			"echo 0 > /proc/sys/net/ipv4/conf/up0/forwarding",
			// The loop may be faster than the second half of these too.
			"IPT -t nat -F; IPT -t nat -X || true",
			"IPT -t filter -F; IPT -t filter -X || true",
			"IPT -t raw -F; IPT -t raw -X || true",
			"IPT -t nat -F TENURE-MASQ",
			"IPT -t nat -D TENURE-MASQ 2",
			"IPT -t nat -I TENURE-MASQ -j MASQUERADE",
			"IPT -t nat -A TENURE-MASQ -s 10.5.0.0/16 -d 10.5.0.0/16 -j RETURN",
			"IPT -D FORWARD 1",
			"IPT -I FORWARD -j TENURE-FWD",
			"IPT -t raw -D OUTPUT 1",
		} {
			writes := loop.Report().TotalWrites()
			m.sh(t, "%s", strings.ReplaceAll(script, "IPT", iptables+" -w"))
			took := m.untilPlanEmpty(t, want)
			sameState(t, before, m.look(t))
			if t.Failed() {
				t.Fatalf("not the same after: %s", script)
			}
			waitNextPass(t, loop)
			waitConverged(t, loop)
			if loop.Report().TotalWrites() == writes {
				t.Errorf("the loop wrote nothing after: %s", script)
			}
			t.Logf("%4d ms  %s", took.Milliseconds(), script)
		}
		writes := loop.Report().TotalWrites()
		for range 5 {
			waitNextPass(t, loop)
		}
		if now := loop.Report().TotalWrites(); now != writes {
			t.Errorf("%d writes with nothing to do", now-writes)
		}
	})
}

func waitNextPass(t *testing.T, loop *dataplane.Loop) {
	t.Helper()
	select {
	case <-loop.Changed():
	case <-time.After(10 * time.Second):
		t.Fatal("no pass in 10 s")
	}
}

// TestLinuxAllAtOnceWithDefaults: the ten seconds hold with the timers as
// shipped.
func TestLinuxAllAtOnceWithDefaults(t *testing.T) {
	needsRoot(t)
	m := linuxMachine(t, "")
	want := node34(peer(35), peer(36))
	loop := m.run(t, want, dataplane.Options{})
	before := m.look(t)
	m.sh(t, `ip link del tenure.1; ip addr flush dev tenure0; ip route flush proto 90
		echo 0 > /proc/sys/net/ipv4/ip_forward
		for t in nat filter raw; do iptables -w -t $t -F; iptables -w -t $t -X; done`)
	m.untilPlanEmpty(t, want)
	waitConverged(t, loop)
	sameState(t, before, m.look(t))
}

// TestLinuxI4ParentGoesAndComesBack: the overlay goes with its parent; until
// that is back the peers are pending, not lost.
func TestLinuxI4ParentGoesAndComesBack(t *testing.T) {
	needsRoot(t)
	m := linuxMachine(t, "")
	want := node34(peer(35))
	loop := m.run(t, want, dataplane.Options{})
	before := m.look(t)
	m.sh(t, "ip link del up0")
	deadline := time.After(10 * time.Second)
	for loop.Report().Peers[0].State != dataplane.PeerPending {
		select {
		case <-loop.Changed():
		case <-deadline:
			t.Fatalf("report %+v", loop.Report())
		}
	}
	m.sh(t, `ip link add up0 type veth peer name spare0
		ip addr add 192.0.2.1/24 dev up0; ip addr add 2001:db8::1/64 dev up0 nodad; ip link set up0 up; ip link set spare0 up`)
	m.untilPlanEmpty(t, want)
	after := m.look(t)
	delete(after.Links, "spare0")
	after.Links["up0"] = before.Links["up0"] // the new one has a new MAC
	sameState(t, before, after)
	waitNextPass(t, loop)
	waitConverged(t, loop)
	if r := loop.Report(); r.Peers[0].State != dataplane.PeerProgrammed || len(r.Conflicts) > 0 {
		t.Errorf("report %+v", r)
	}
}

// TestLinuxP1ReadsUnderChurn: with links and addresses coming and going all
// the time, no look finds anything of ours missing.
func TestLinuxP1ReadsUnderChurn(t *testing.T) {
	needsRoot(t)
	m := linuxMachine(t, "")
	peers := make([]dataplane.Peer, 0, 200)
	for n := 35; n < 235; n++ {
		peers = append(peers, peer(n))
	}
	want := node34(peers...)
	m.converge(t, want)
	// A list is torn only when it takes the kernel more than one message.
	m.sh(t, "for i in $(seq 100); do echo link add many$i type bridge; done | ip -batch -")
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; !stop.Load(); n++ {
			name := fmt.Sprintf("churn%d", n%10)
			_ = m.ns.Do(func() error {
				return m.churn(name)
			})
		}
	}()
	failed, looks := 0, 0
	for start := time.Now(); time.Since(start) < 2*time.Second; looks++ {
		s, err := m.kernel.Read(context.Background(), dataplane.Families{})
		if err != nil {
			failed++
			continue
		}
		if ops, _ := dataplane.Plan(want, s); len(ops) > 0 {
			t.Errorf("planned from a torn look:\n%s", text(ops))
			break
		}
	}
	stop.Store(true)
	<-done
	if failed > looks/10 {
		t.Errorf("%d of %d looks failed", failed, looks)
	}
}

// churn makes a bridge with an address and deletes it.
func (m *machine) churn(name string) error {
	ctx := context.Background()
	for _, c := range []dataplane.Change{
		dataplane.AddBridge{Name: name, MAC: mac(7)},
		dataplane.SetUp{Link: name},
		dataplane.AddAddr{Addr: dataplane.Addr{Link: name, Prefix: prefix("198.51.100.1/24")}},
		dataplane.DelLink{Link: name},
	} {
		if err := m.vandal.Apply(ctx, dataplane.Op{Change: c}); err != nil {
			return err
		}
	}
	return nil
}

// TestLinuxWithoutIPTables: what needs no rules is done all the same.
func TestLinuxWithoutIPTables(t *testing.T) {
	needsRoot(t)
	m := linuxMachine(t, "no-such-iptables")
	loop := dataplane.New(m.kernel, testLog(t), dataplane.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- loop.Run(ctx) }()
	loop.Set(node34(peer(35)))
	waitNextPass(t, loop)
	waitNextPass(t, loop)
	r := loop.Report()
	if r.Converged || r.Err == nil || !strings.Contains(r.Err.Error(), "no-such-iptables") {
		t.Errorf("error %v, converged %v", r.Err, r.Converged)
	}
	if r.Peers[0].State != dataplane.PeerProgrammed {
		t.Errorf("peer %+v", r.Peers[0])
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestLinuxWithoutNoTrack: a kernel that cannot keep packets out of conntrack
// gets the other tables, and the fault is named.
func TestLinuxWithoutNoTrack(t *testing.T) {
	needsRoot(t)
	dir := t.TempDir()
	script := func(name, body string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script("ipt", `exec iptables-nft "$@"`)
	script("ipt-save", `exec iptables-nft-save "$@"`)
	script("ipt-restore", `in=$(cat)
case $in in *notrack*) echo "no such target" >&2; exit 2;; esac
printf '%s\n' "$in" | iptables-nft-restore "$@"`)
	m := linuxMachine(t, filepath.Join(dir, "ipt"))
	loop := m.run(t, node34(peer(35)), dataplane.Options{})
	r := loop.Report()
	if len(r.Conflicts) != 1 || r.Conflicts[0].What != "notrack" {
		t.Errorf("conflicts %v", r.Conflicts)
	}
	if rules := m.look(t).Rules; len(rules.Chains) != 2 {
		t.Errorf("chains %v", rules.Chains)
	}
}

// TestLinuxRulesOfOthersStay: what is not ours is the same before and after.
func TestLinuxRulesOfOthersStay(t *testing.T) {
	eachIPTables(t, func(t *testing.T, iptables string) {
		m := linuxMachine(t, iptables)
		m.sh(t, "%s", strings.ReplaceAll(`
			IPT -P FORWARD DROP
			IPT -N POLICY; IPT -A POLICY -s 10.5.34.7 -j DROP; IPT -A FORWARD -j POLICY
			IPT -t nat -A POSTROUTING -s 172.16.0.0/12 -j MASQUERADE
			IPT -t nat -N TENURE-OTHER
			IPT -t raw -A PREROUTING -p tcp -j CT --notrack`, "IPT", iptables+" -w"))
		others := func() string {
			var keep []string
			for line := range strings.Lines(m.sh(t, "%s-save", iptables)) {
				ours := strings.Contains(line, "TENURE-MASQ") || strings.Contains(line, "TENURE-FWD") ||
					strings.Contains(line, "TENURE-RAW")
				if !ours && !strings.HasPrefix(line, "#") {
					line, _, _ = strings.Cut(line, " [") // counters
					keep = append(keep, strings.TrimSpace(line)+"\n")
				}
			}
			return strings.Join(keep, "")
		}
		before := others()
		want := node34(peer(35))
		m.converge(t, want)
		forward := m.sh(t, "%s -S FORWARD", iptables)
		if i, j := strings.Index(forward, "POLICY"), strings.Index(forward, "TENURE-FWD"); i < 0 || j < i {
			t.Errorf("ours is not behind the policy:\n%s", forward)
		}
		want.Masq, want.ForwardAccept = false, false
		m.converge(t, want)
		if after := others(); after != before {
			t.Errorf("before\n%s\nafter\n%s", before, after)
		}
		if saved := m.sh(t, "%s-save", iptables); strings.Contains(saved, "TENURE-FWD") || strings.Contains(saved, "TENURE-MASQ") {
			t.Errorf("left over:\n%s", saved)
		}
	})
}
