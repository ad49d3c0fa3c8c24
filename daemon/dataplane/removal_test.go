package dataplane

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// TestRemoval takes what is the instance's, in order, and nothing of others.
func TestRemoval(t *testing.T) {
	networks := []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}
	unreachable := func(dst string) Route {
		return Route{Dst: netip.MustParsePrefix(dst), Type: RouteUnreachable, Metric: UnreachableMetric, Protocol: RouteProtocol}
	}
	foreign := unreachable("10.5.0.0/16")
	foreign.Protocol = 4
	have := State{
		Links: map[string]Link{
			"eth0": {Kind: "device"}, "tenure0": {Kind: KindBridge}, "tenure.1": {Kind: KindVxlan}, "tenure.7": {Kind: KindVxlan},
			"other0": {Kind: KindBridge}, "other.2": {Kind: KindVxlan}, "ten0123": {Kind: "veth", Master: "tenure0"},
		},
		Routes: map[Route]struct{}{
			unreachable("10.5.0.0/16"): {}, unreachable("10.6.0.0/16"): {}, foreign: {},
			{Dst: netip.MustParsePrefix("10.5.9.0/24"), Link: "tenure.1", Type: RouteUnicast, Protocol: RouteProtocol}: {},
		},
		Rules: &Rules{
			Chains: map[Chain][]string{{"nat", "TENURE-MASQ"}: {"-j MASQUERADE"}, {"filter", "TENURE-FWD"}: nil},
			Jumps:  map[Chain][]string{{"nat", "POSTROUTING"}: {"-j TENURE-MASQ"}},
		},
	}
	const want = `rules nat: drop from POSTROUTING "-j TENURE-MASQ", drop TENURE-MASQ; filter: drop TENURE-FWD
link del tenure.1
link del tenure.7
link del tenure0
route del unreachable 10.5.0.0/16 metric 4278198272 proto 90`
	ops, left := Removal("tenure", networks, have)
	if got := lines(ops); got != want || len(left) != 0 {
		t.Errorf("removal:\n%s\nwant\n%s\nleft %v", got, want, left)
	}
	ops, left = Removal("tenure", nil, have)
	if strings.Contains(lines(ops), "route") || len(left) != 2 {
		t.Errorf("without a network:\n%s\nleft %v", lines(ops), left)
	}
	ops, left = Removal("tenure", networks, State{Links: map[string]Link{"tenure0": {Kind: "dummy"}, "tenure.1": {Kind: "dummy"}}})
	if len(ops) != 0 || len(left) != 2 {
		t.Errorf("devices of others with our names:\n%s\nleft %v", lines(ops), left)
	}
}

func lines(ops []Op) string {
	var all []string
	for _, o := range ops {
		all = append(all, fmt.Sprint(o))
	}
	return strings.Join(all, "\n")
}
