package dataplane_test

import (
	"strings"
	"testing"
)

// TestRulesMark: it changes with the rules, wherever they stand and whoever
// wrote them, and with nothing else: not with the packets that they count.
func TestRulesMark(t *testing.T) {
	eachIPTables(t, func(t *testing.T, iptables string) {
		m := linuxMachine(t, iptables)
		m.sh(t, "ip link set lo up")
		mark := func() string {
			t.Helper()
			got := m.kernel.RulesMark(t.Context())
			if got == "" {
				t.Fatal("the kernel tells nothing")
			}
			return got
		}
		m.converge(t, node34(peer(35)))
		last := mark()
		for _, script := range []string{
			"IPT -t nat -F TENURE-MASQ",
			"IPT -t nat -A TENURE-MASQ -s 10.5.0.0/16 -j RETURN",
			"IPT -t nat -D TENURE-MASQ 1",
			"IPT -N OTHER",
			"IPT -A OTHER -p tcp -m tcp --dport 80 -m comment --comment other -j ACCEPT",
			"IPT -R OTHER 1 -p tcp -m tcp --dport 81 -m comment --comment other -j ACCEPT",
			"IPT -P FORWARD DROP",
			"IPT -t raw -F",
			"IP6 -N OTHER",
			"IP6 -A OTHER -s fd00::/64 -p tcp -m tcp --dport 80 -j ACCEPT",
			"IP6 -R OTHER 1 -s fd00::/64 -p tcp -m tcp --dport 81 -j ACCEPT",
		} {
			six := strings.Replace(iptables, "ip", "ip6", 1)
			m.sh(t, "%s", strings.NewReplacer("IPT", iptables+" -w", "IP6", six+" -w").Replace(script))
			now := mark()
			if now == last {
				t.Errorf("not told: %s", script)
			}
			last = now
		}
		m.sh(t, "ping -c 3 -i 0.01 -W 1 127.0.0.1; ping -c 3 -i 0.01 -W 1 ::1; %s-save -c; ip link set tenure0 down; ip link set tenure0 up", iptables)
		if now := mark(); now != last {
			t.Errorf("told although no rule changed: %s, was %s", now, last)
		}
	})
}

// TestMixedIPTables: rules of the other kind are named; those of none are not.
func TestMixedIPTables(t *testing.T) {
	eachIPTables(t, func(t *testing.T, iptables string) {
		other := map[string]string{"iptables-nft": "iptables-legacy", "iptables-legacy": "iptables-nft"}[iptables]
		m := linuxMachine(t, iptables)
		m.converge(t, node34())
		if mixed := m.read(t).Rules.Mixed; mixed != "" {
			t.Errorf("without any rule of %s: %q", other, mixed)
		}
		m.sh(t, "%s -w -A INPUT -s 192.0.2.99 -j DROP", other)
		if mixed := m.read(t).Rules.Mixed; !strings.Contains(mixed, other+" has rules too (1,") {
			t.Errorf("with a rule of %s: %q", other, mixed)
		}
		if ops := m.converge(t, node34()); len(ops) > 0 {
			t.Errorf("the other kind's rules are no reason to write: %s", text(ops))
		}
	})
}
