package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tenure-cni/tenure/daemon/api"
)

func TestPodsAmong(t *testing.T) {
	var links []netlink.Link
	for i, alias := range []string{"", "tenure tenure net c2 eth0 10.5.34.8/24", "tenure other net c9 eth0 10.5.34.9/24", "tenure tenure net c1 net1", "a word"} {
		a := netlink.NewLinkAttrs()
		a.Alias, a.MTU = alias, 1400+i
		links = append(links, &netlink.Veth{LinkAttrs: a})
	}
	got := fmt.Sprint(podsAmong(links, "tenure"))
	if want := "[c1 net1 () has 1403 c2 eth0 (10.5.34.8) has 1401]"; got != want {
		t.Errorf("pods %s, want %s", got, want)
	}
}

func TestOldMTUs(t *testing.T) {
	pods := func(mtus ...int) []podMTU {
		var all []podMTU
		for i, mtu := range mtus {
			all = append(all, podMTU{fmt.Sprintf("c%d", i), "eth0", []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.5.34.%d/24", i+2))}, mtu})
		}
		return all
	}
	const icmp = "answered by ICMP"
	for name, c := range map[string]struct {
		pods       []podMTU
		say, quiet []string
	}{
		"no pods":          {pods(), nil, nil},
		"all have it":      {pods(1450, 1450), nil, nil},
		"one has less":     {pods(1450, 1350), []string{"MTU 1450 now", "(1)", "c1 eth0 (10.5.34.3) has 1350"}, []string{icmp, "c0"}},
		"one has more":     {pods(8950, 1450), []string{"(1)", "c0 eth0 (10.5.34.2) has 8950", "what 1 of them", icmp}, []string{"c1"}},
		"five are named":   {pods(1, 1, 1, 1, 1), []string{"(5)", "c0", "c4"}, []string{"more"}},
		"more are counted": {pods(1, 1, 9000, 1, 1, 1, 9000), []string{"(7)", "c4", "and 2 more", "what 2 of them"}, []string{"c5"}},
	} {
		got := oldMTUs(c.pods, 1450)
		if len(c.say) == 0 {
			if len(got) != 0 {
				t.Errorf("%s: problems %+v", name, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Code != "pods-old-mtu" || got[0].Severity != api.SeverityWarning || got[0].Fix == "" {
			t.Errorf("%s: problems %+v, want one", name, got)
			continue
		}
		for _, w := range c.say {
			if !strings.Contains(got[0].Text, w) {
				t.Errorf("%s: %q does not say %q", name, got[0].Text, w)
			}
		}
		for _, w := range c.quiet {
			if strings.Contains(got[0].Text, w) {
				t.Errorf("%s: %q says %q", name, got[0].Text, w)
			}
		}
	}
}
