package main

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/lease"
)

func subnets(texts ...string) []lease.Subnets {
	var all []lease.Subnets
	for _, s := range texts {
		all = append(all, lease.Subnets{V4: netip.MustParsePrefix(s)})
	}
	return all
}

func TestMismatches(t *testing.T) {
	live, n := subnets("10.5.34.0/24")[0], conf.Network{Network: netip.MustParsePrefix("10.5.0.0/16")}
	former := subnets("10.5.7.0/24", "10.5.8.0/24")
	at := func(bridge, prefix string) borne { return borne{bridge, netip.MustParsePrefix(prefix)} }
	for name, c := range map[string]struct {
		borne    []borne
		ports    map[int]port
		severity string
		words    []string
	}{
		"nothing":                    {},
		"a network of its own":       {borne: []borne{at("docker0", "172.17.0.1/16"), at("virbr0", "192.168.122.1/24"), at("br6", "fe80::1/64")}},
		"the subnet beside ours":     {borne: []borne{at("docker0", "10.5.34.1/24")}, severity: api.SeverityError, words: []string{"docker0 has 10.5.34.1/24, of the subnet that tenure0 has"}},
		"a part of the subnet":       {borne: []borne{at("docker0", "10.5.34.129/25")}, severity: api.SeverityError, words: []string{"10.5.34.129/25"}},
		"a host address":             {borne: []borne{at("br1", "10.5.7.1/32")}},
		"a subnet of before":         {borne: []borne{at("docker0", "10.5.7.1/24")}, severity: api.SeverityError, words: []string{"docker0 has 10.5.7.1/24", "10.5.34.0/24 now"}},
		"any other of the network's": {borne: []borne{at("docker0", "10.5.9.1/24")}, severity: api.SeverityWarning, words: []string{"docker0 has 10.5.9.1/24", "pod network"}},
		"all of the network":         {borne: []borne{at("docker0", "10.5.0.1/16")}, severity: api.SeverityError, words: []string{"10.5.0.1/16"}},
		"two bridges": {borne: []borne{at("cni0", "10.5.9.1/24"), at("docker0", "10.5.8.1/24")}, severity: api.SeverityError,
			words: []string{"cni0 has 10.5.9.1/24", "docker0 has 10.5.8.1/24"}},
		"ports of now":    {ports: map[int]port{4: {"vetha", live}}},
		"ports of before": {ports: map[int]port{4: {"vetha", former[0]}, 5: {"vethb", live}, 6: {"vethc", former[0]}}, severity: api.SeverityError, words: []string{"vetha, vethc on tenure0", "10.5.7.0/24"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := mismatches(c.borne, c.ports, "tenure0", live, former, n, "/run/tenure/subnet.env")
			if c.severity == "" {
				if len(got) != 0 {
					t.Errorf("problems %+v", got)
				}
				return
			}
			if len(got) != 1 || got[0].Code != "bridge-mismatch" || got[0].Severity != c.severity || !strings.Contains(got[0].Fix, "/run/tenure/subnet.env") {
				t.Fatalf("problems %+v, want one %s", got, c.severity)
			}
			for _, w := range c.words {
				if !strings.Contains(got[0].Text, w) {
					t.Errorf("%q does not say %q", got[0].Text, w)
				}
			}
		})
	}
}

// TestBridgesLook: only bridges count, and ours does not; a port of somebody
// else on ours belongs to the subnet under which it came, and is forgotten when
// it goes; none is judged while nothing is held.
func TestBridgesLook(t *testing.T) {
	m := newMachine(t)
	bridge := func(name, addr string) netlink.Link {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		a, err := netlink.ParseAddr(addr)
		if err == nil {
			err = m.h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
		}
		if err != nil {
			t.Fatal(err)
		}
		l := m.up(name)
		if err := m.h.AddrAdd(l, a); err != nil {
			t.Fatal(err)
		}
		return l
	}
	ours := bridge("tenure0", "10.5.34.1/24")
	bridge("docker0", "10.5.7.1/24")
	m.link("eth0", "10.5.9.1/24") // no bridge
	theirs, mine := m.link("vdock"), m.link("ten1234")
	if err := m.h.LinkSetAlias(mine, attach.Alias(attach.Owner{Instance: "tenure", Network: "tenure", ContainerID: "c", IfName: "eth0"}, nil)); err != nil {
		t.Fatal(err)
	}
	for _, l := range []netlink.Link{theirs, mine} {
		if err := m.h.LinkSetMaster(l, ours); err != nil {
			t.Fatal(err)
		}
	}
	b, u, both := &bridges{ours: "tenure0"}, m.underlay(conf.Daemon{}), subnets("10.5.34.0/24", "10.5.7.0/24")
	live := lease.Subnets{}
	u.onLook = func([]netip.Addr) int { return 0 }
	u.onLinks = func(links []netlink.Link, addrs []netlink.Addr) { b.look(links, addrs, live) }
	look := func(s lease.Subnets, want ...port) {
		t.Helper()
		live = s
		u.look(t.Context())
		if got := slices.Collect(maps.Values(b.ports)); !slices.Equal(got, want) {
			t.Errorf("with %s: ports %+v, want %+v", s, got, want)
		}
		if want := []borne{{"docker0", netip.MustParsePrefix("10.5.7.1/24")}}; !slices.Equal(b.borne, want) {
			t.Errorf("addresses %+v, want %+v", b.borne, want)
		}
	}
	look(live)
	look(both[0], port{"vdock", both[0]})
	look(both[1], port{"vdock", both[0]})
	look(lease.Subnets{}, port{"vdock", both[0]})
	if err := m.h.LinkDel(theirs); err != nil {
		t.Fatal(err)
	}
	look(both[1])
}

// TestBridgesWithoutSubnet: there is nothing that they could differ from.
func TestBridgesWithoutSubnet(t *testing.T) {
	b := &bridges{ours: "tenure0", borne: []borne{{"docker0", netip.MustParsePrefix("10.5.7.1/24")}}}
	if got := b.problems(lease.View{}, subnets("10.5.7.0/24"), "subnet.env"); len(got) != 0 {
		t.Errorf("problems %+v", got)
	}
	v := holding(t, subnets("10.5.34.0/24")[0], `{"Network":"10.5.0.0/16"}`)
	if got := b.problems(v, subnets("10.5.7.0/24"), "subnet.env"); len(got) != 1 {
		t.Errorf("with a subnet: problems %+v", got)
	}
}
