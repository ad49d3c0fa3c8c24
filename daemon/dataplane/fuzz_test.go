package dataplane

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzParseRules: what iptables-save prints, of anybody's rules.
func FuzzParseRules(f *testing.F) {
	for _, seed := range []string{
		"", "*nat\n:TENURE-MASQ - [0:0]\n-A POSTROUTING -m comment --comment \"tenure masquerade\" -j TENURE-MASQ\n-A TENURE-MASQ -s 10.5.0.0/16 -d 10.5.0.0/16 -j RETURN\nCOMMIT\n",
		"*filter\n:FORWARD DROP [1:2]\n:DOCKER-USER - [0:0]\n-A FORWARD -j DOCKER-USER\n-A FORWARD -g TENURE-FWD\n:TENURE-FWD - [0:0]\nCOMMIT\n",
		"-A x", "*\n:\n-A \n", "*raw\n-A PREROUTING -m comment --comment \"a \\\"b\\\\\" -j X", "\"", "\\", "-A POSTROUTING -j", "*nat\r\n-A POSTROUTING -j TENURE-MASQ\r\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, saved string) {
		r := parseRules("tenure", saved)
		ours := ourChains("tenure")
		for c, rules := range r.Chains {
			if !slices.ContainsFunc(ours, func(o ourChain) bool { return o.chain == c }) {
				t.Errorf("%q: %v is not ours", saved, c)
			}
			for _, rule := range rules {
				if !strings.Contains(saved, rule) || !sameRule(rule, rule) {
					t.Errorf("%q has no rule %q", saved, rule)
				}
			}
		}
		for base, jumps := range r.Jumps {
			for _, rule := range jumps {
				to := Chain{base.Table, ruleTarget(rule)}
				if !slices.ContainsFunc(ours, func(o ourChain) bool { return o.chain == to && slices.Contains(o.bases, base.Name) }) {
					t.Errorf("%q: %q of %v goes to no chain of ours", saved, rule, base)
				}
			}
		}
		otherKind(saved, "nf_tables", "legacy")
	})
}

// FuzzMessages: netlink messages, cut anywhere. What is decoded as a route is one.
func FuzzMessages(f *testing.F) {
	attr := func(kind uint16, value ...byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
		b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
		return append(b, make([]byte, (4-len(b)%4)%4)...)
	}
	route := slices.Concat([]byte{unix.AF_INET, 24, 0, 0, 254, 90, 0, 1, 0, 0, 0, 0}, attr(unix.RTA_DST, 10, 5, 1, 0), attr(unix.RTA_OIF, 7, 0, 0, 0),
		attr(unix.RTA_GATEWAY, 10, 5, 1, 0), attr(unix.RTA_MULTIPATH, 8, 0, 0, 0, 1, 0, 0, 0, 1), attr(unix.RTA_METRICS))
	f.Add(route)
	f.Add(slices.Concat([]byte{unix.AF_BRIDGE, 0, 0, 0, 7, 0, 0, 0, 128, 0, 2, 0}, attr(unix.NDA_LLADDR, 2, 0, 0, 0, 0, 1), attr(unix.NDA_DST, 192, 0, 2, 1),
		attr(unix.NDA_VNI, 1, 0, 0, 0), attr(unix.NDA_PORT, 33, 24), attr(unix.NDA_IFINDEX, 1)))
	f.Add(slices.Concat(route[:12], attr(unix.RTA_DST, 10, 5), attr(unix.RTA_GATEWAY, 10, 5, 1, 0, 7)))
	f.Add(slices.Concat([]byte{unix.AF_INET6, 64}, route[2:12], attr(unix.RTA_DST, netip.MustParseAddr("fd00:5::").AsSlice()...), attr(unix.RTA_OIF, 7, 0, 0, 0)))
	f.Add(slices.Concat(make([]byte, 12), attr(unix.NDA_PORT)))
	f.Add([]byte{})
	names := map[int]string{7: "tenure.1"}
	f.Fuzz(func(t *testing.T, m []byte) {
		if r, _, ok := routeOf(m, names); ok && (!r.Dst.IsValid() || r.Dst.Addr().Is4() != (m[0] == unix.AF_INET)) {
			t.Errorf("%x is the route %v", m, r)
		}
		if len(m) >= unix.SizeofNdMsg {
			neighOf(m)
		}
		if n := nextHops(m); n > len(m)/unix.SizeofRtNexthop {
			t.Errorf("%x has %d next hops", m, n)
		}
		oddIn(m, vxlanSettings())
		oddIn(m, bridgeSettings())
		portOf(m, true)
		attrIn(m, 1, 2, 3)
	})
}
