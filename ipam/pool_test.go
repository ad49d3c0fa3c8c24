package ipam

import (
	"math"
	"net/netip"
	"slices"
	"testing"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func prefixes(all ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range all {
		out = append(out, prefix(s))
	}
	return out
}

func TestPoolEdges(t *testing.T) {
	tests := []struct {
		subnet      string
		excluded    []netip.Prefix
		gateway     string
		first, last string
		size        uint64
	}{
		{subnet: "10.5.34.0/24", gateway: "10.5.34.1", first: "10.5.34.2", last: "10.5.34.254", size: 253},
		{subnet: "10.5.34.77/24", gateway: "10.5.34.1", first: "10.5.34.2", last: "10.5.34.254", size: 253},
		{subnet: "10.5.34.0/29", gateway: "10.5.34.1", first: "10.5.34.2", last: "10.5.34.6", size: 5},
		{subnet: "10.5.34.4/30", gateway: "10.5.34.5", first: "10.5.34.6", last: "10.5.34.6", size: 1},
		{subnet: "10.5.0.0/16", gateway: "10.5.0.1", first: "10.5.0.2", last: "10.5.255.254", size: 65533},
		{subnet: "fd00::/126", gateway: "fd00::1", first: "fd00::2", last: "fd00::3", size: 2},
		{subnet: "fd00::/64", gateway: "fd00::1", first: "fd00::2", last: "fd00::ffff:ffff:ffff:ffff", size: math.MaxUint64 - 1},
		{subnet: "fd00::/48", gateway: "fd00::1", first: "fd00::2", last: "fd00::ffff:ffff:ffff:ffff:ffff", size: math.MaxUint64},
		{
			subnet: "10.5.34.0/24", excluded: prefixes("10.5.34.0/28", "10.5.34.8/29", "10.5.34.240/28", "10.6.0.0/16", "::/0"),
			gateway: "10.5.34.1", first: "10.5.34.2", last: "10.5.34.254", size: 253 - 14 - 15,
		},
		{subnet: "10.5.34.0/24", excluded: prefixes("10.0.0.0/8"), gateway: "10.5.34.1", first: "10.5.34.2", last: "10.5.34.254"},
		{
			subnet: "fd00::/48", excluded: prefixes("fd00::/64", "fd00:0:0:1::/64", "fd00:0:0:2::/64"),
			gateway: "fd00::1", first: "fd00::2", last: "fd00::ffff:ffff:ffff:ffff:ffff",
		},
	}
	for _, tt := range tests {
		p, err := newPool(prefix(tt.subnet), mergeSpans(tt.excluded))
		if err != nil {
			t.Errorf("newPool(%s): %v", tt.subnet, err)
			continue
		}
		if got := Gateway(prefix(tt.subnet)); got != addr(tt.gateway) {
			t.Errorf("Gateway(%s) = %s, want %s", tt.subnet, got, tt.gateway)
		}
		if want := (span{addr(tt.first), addr(tt.last)}); p.hosts != want {
			t.Errorf("pool of %s is %v, want %v", tt.subnet, p.hosts, want)
		}
		if got := p.size(); got != tt.size {
			t.Errorf("size of %s without %v = %d, want %d", tt.subnet, tt.excluded, got, tt.size)
		}
	}
}

func TestMergeSpans(t *testing.T) {
	got := mergeSpans(append(prefixes("10.5.0.0/24", "fd00::/64", "10.5.0.128/25", "10.4.0.0/16", "10.5.0.7/32", "0.0.0.0/8"), netip.Prefix{}))
	want := []span{
		{addr("0.0.0.0"), addr("0.255.255.255")},
		{addr("10.4.0.0"), addr("10.4.255.255")},
		{addr("10.5.0.0"), addr("10.5.0.255")},
		{addr("fd00::"), addr("fd00::ffff:ffff:ffff:ffff")},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestNextAtTheEndOfAFamily walks off the last address there is.
func TestNextAtTheEndOfAFamily(t *testing.T) {
	for _, s := range []string{"255.255.255.0/24", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/124"} {
		p, err := newPool(prefix(s), mergeSpans(prefixes("255.255.255.128/25", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff8/125")))
		if err != nil {
			t.Fatal(err)
		}
		if a, ok := p.next(p.hosts.last, nil); !ok || a != p.hosts.first {
			t.Errorf("%s: after the last address comes %s, %v; want %s", s, a, ok, p.hosts.first)
		}
		var taken []slot
		for a := p.hosts.first; a.IsValid() && !p.isExcluded(a); a = a.Next() {
			taken = append(taken, slot{addr: a})
		}
		if a, ok := p.next(p.hosts.first, taken); ok {
			t.Errorf("%s: a full pool gave %s", s, a)
		}
	}
}

// TestGapBehindHeldExclusions walks over excluded addresses that are held: the
// exclusions behind them still count.
func TestGapBehindHeldExclusions(t *testing.T) {
	p, err := newPool(prefix("10.5.34.0/29"), mergeSpans(prefixes("10.5.34.3/32", "10.5.34.5/32")))
	if err != nil {
		t.Fatal(err)
	}
	taken := []slot{{addr: addr("10.5.34.2")}, {addr: addr("10.5.34.3")}, {addr: addr("10.5.34.4")}}
	if a, ok := p.next(netip.Addr{}, taken); !ok || a != addr("10.5.34.6") {
		t.Errorf("got %s, %v; want 10.5.34.6", a, ok)
	}
}
