package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var netipValues = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
var netipAddrs = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func mustNetwork(t testing.TB, text string) Network {
	t.Helper()
	n, _, err := ParseNetwork([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return n
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestNetworkDefaults(t *testing.T) {
	base := Network{
		EnableIPv4: true, Network: pfx("10.5.0.0/16"), SubnetLen: 24,
		SubnetMin: netip.MustParseAddr("10.5.0.0"), SubnetMax: netip.MustParseAddr("10.5.255.0"),
		LeaseTTL: 24 * time.Hour, Backend: Backend{Type: BackendVXLAN, VNI: 1, Port: 8472},
	}
	dual := base
	dual.EnableIPv6, dual.IPv6Network, dual.IPv6SubnetLen = true, pfx("fd00:5::/48"), 64
	six := Network{
		EnableIPv6: true, IPv6Network: pfx("fd00:5::/48"), IPv6SubnetLen: 64,
		LeaseTTL: 24 * time.Hour, Backend: base.Backend,
	}
	hostGW := base
	hostGW.LeaseTTL, hostGW.Backend = 90*time.Second, Backend{Type: BackendHostGW}
	for text, want := range map[string]Network{
		`{"Network":"10.5.0.0/16"}`:                                               base,
		`{"network":"10.5.0.0/16","backend":{"type":"VXLAN"}}`:                    base,
		`{"Network":"10.5.0.0/16","Backend":null,"SubnetMin":null}`:               base,
		`{"Network":"10.5.0.0/16","SubnetLen":0}`:                                 base,
		`{"Network":"10.5.0.0/16","EnableNFTables":false}`:                        base,
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","MTU":0}}`:            base,
		`{"Network":"10.5.0.0/16","LeaseTTL":"90s","Backend":{"Type":"host-gw"}}`: hostGW,
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`: dual,
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`:      six,
	} {
		n, warnings, err := ParseNetwork([]byte(text))
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v, warnings %q", text, err, warnings)
		}
		if diff := cmp.Diff(want, n, netipValues, netipAddrs); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

func TestSmallNetworks(t *testing.T) {
	for network, want := range map[string]int{
		"10.5.0.0/13": 24, "10.5.0.0/22": 24, "10.5.0.0/23": 25, "10.5.0.0/28": 30, "10.5.0.0/29": 30, "10.5.0.0/30": 30,
	} {
		n := pfx(network).Masked()
		if got := mustNetwork(t, fmt.Sprintf(`{"Network":%q}`, n)).SubnetLen; got != want {
			t.Errorf("%s: SubnetLen %d, want %d", network, got, want)
		}
	}
}

// TestNetworkFaults is row A8: each fault is named with its field, all of them
// at once.
func TestNetworkFaults(t *testing.T) {
	for text, fields := range map[string]string{
		`{}`:                                                                                                 "Network",
		`{"Network":17}`:                                                                                     "Network",
		`{"Network":"10.5.0.0"}`:                                                                             "Network",
		`{"Network":"10.5.3.1/16"}`:                                                                          "Network",
		`{"Network":"fd00::/48"}`:                                                                            "Network",
		`{"Network":"::ffff:10.5.0.0/112"}`:                                                                  "Network",
		`{"Network":"10.5.0.0/31"}`:                                                                          "Network",
		`{"Network":"0.0.0.0/0"}`:                                                                            "Network",
		`{"Network":"127.0.0.0/16"}`:                                                                         "Network",
		`{"Network":"10.5.0.0/16","Network":"10.6.0.0/16"}`:                                                  "Network",
		`{"Network":"10.5.0.0/16","network":"10.6.0.0/16"}`:                                                  "Network",
		`{"Network":"10.5.0.0/24","SubnetLen":20}`:                                                           "SubnetLen",
		`{"Network":"10.5.0.0/24","SubnetLen":31}`:                                                           "SubnetLen",
		`{"Network":"10.5.0.0/24","SubnetLen":-1}`:                                                           "SubnetLen",
		`{"Network":"10.5.0.0/16","SubnetLen":24.5}`:                                                         "SubnetLen",
		`{"Network":"10.5.0.0/16","SubnetMin":"10.5.3.7"}`:                                                   "SubnetMin",
		`{"Network":"10.5.0.0/16","SubnetMin":""}`:                                                           "SubnetMin",
		`{"Network":"10.5.0.0/16","SubnetMin":"10.6.0.0"}`:                                                   "SubnetMin",
		`{"Network":"10.5.0.0/16","SubnetMax":"10.5.3.128"}`:                                                 "SubnetMax",
		`{"Network":"10.5.0.0/16","SubnetMax":"fd00::"}`:                                                     "SubnetMax",
		`{"Network":"10.5.0.0/16","SubnetMin":"10.5.9.0","SubnetMax":"10.5.8.0"}`:                            "SubnetMin",
		`{"Network":"10.5.0.0/16","LeaseTTL":"4s"}`:                                                          "LeaseTTL",
		`{"Network":"10.5.0.0/16","LeaseTTL":"5500ms"}`:                                                      "LeaseTTL",
		`{"Network":"10.5.0.0/16","LeaseTTL":"a day"}`:                                                       "LeaseTTL",
		`{"Network":"10.5.0.0/16","LeaseTTL":86400}`:                                                         "LeaseTTL",
		`{"Network":"10.5.0.0/16","Backend":"vxlan"}`:                                                        "Backend",
		`{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}`:                                                 "Backend.Type",
		`{"Network":"10.5.0.0/16","Backend":{"Type":3}}`:                                                     "Backend.Type",
		`{"Network":"10.5.0.0/16","Backend":{"VNI":0}}`:                                                      "Backend.VNI",
		`{"Network":"10.5.0.0/16","Backend":{"VNI":16777216}}`:                                               "Backend.VNI",
		`{"Network":"10.5.0.0/16","Backend":{"Port":0}}`:                                                     "Backend.Port",
		`{"Network":"10.5.0.0/16","Backend":{"Port":65536}}`:                                                 "Backend.Port",
		`{"Network":"10.5.0.0/16","Backend":{"MTU":100}}`:                                                    "Backend.MTU",
		`{"Network":"10.5.0.0/16","Backend":{"Mtuu":1500}}`:                                                  "Backend.Mtuu",
		`{"Network":"10.5.0.0/16","SubnetLength":24}`:                                                        "SubnetLength",
		`{"Network":"10.5.0.0/16","EnableIPv4":false}`:                                                       "EnableIPv4",
		`{"Network":"10.5.0.0/16","EnableIPv6":true}`:                                                        "IPv6Network",
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"10.6.0.0/16"}`:                            "IPv6Network",
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::1/48"}`:                             "IPv6Network",
		`{"Network":"10.5.0.0/16","SubnetMax":"10.5.128.0","EnableIPv6":true,"IPv6Network":"fd00:5::/57"}`:   "IPv6Network",
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/60"}`:                            "IPv6Network",
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","IPv6SubnetLen":127}`:        "IPv6SubnetLen",
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","IPv6SubnetLen":126}`:             "IPv6SubnetLen",
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"MTU":1200}}`:     "Backend.MTU",
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"MTU":1349}}`:     "Backend.MTU",
		`{"Network":"10.5.0.0/16","Backend":{"MTU":625}}`:                                                    "Backend.MTU",
		`{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw","MTU":575}}`:                                   "Backend.MTU",
		`{"Network":"10.5.0.0/16","Backend":{"MTU":-1500}}`:                                                  "Backend.MTU",
		`{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw","MTU":65536}}`:                                 "Backend.MTU",
		`{"Network":"10.5.3.1/16","SubnetLen":40,"LeaseTTL":"1s","Backend":{"VNI":0,"Port":-1,"X":1},"y":0}`: "y Network SubnetLen LeaseTTL Backend.X Backend.VNI Backend.Port",
		``:            "document",
		`[]`:          "document",
		`{"Network":`: "document",
		`{} {}`:       "document",
	} {
		_, _, err := ParseNetwork([]byte(text))
		var faults Faults
		if !errors.As(err, &faults) {
			t.Errorf("%s: want Faults, got %v", text, err)
			continue
		}
		var got []string
		for _, f := range faults {
			got = append(got, f.Field)
		}
		if strings.Join(got, " ") != fields {
			t.Errorf("%s: want faults of %s, got %v", text, fields, err)
		}
	}
}

func TestNetworkWarnings(t *testing.T) {
	for text, want := range map[string]string{
		`"EnableNFTables":true`:                "EnableNFTables",
		`"IPv6SubnetMin":"fd00:5::"`:           "IPv6SubnetMin",
		`"IPv6Network":"fd00:5::/48"`:          "IPv6Network",
		`"Backend":{"GBP":true}`:               "Backend.GBP",
		`"Backend":{"Learning":true}`:          "Backend.Learning",
		`"Backend":{"MacPrefix":"0E-2A"}`:      "Backend.MacPrefix",
		`"Backend":{"Type":"host-gw","VNI":5}`: "Backend.VNI",
	} {
		_, warnings, err := ParseNetwork([]byte(`{"Network":"10.5.0.0/16",` + text + `}`))
		if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], want) {
			t.Errorf("%s: warnings %q, %v", text, warnings, err)
		}
	}
}

func TestSubnetArithmetic(t *testing.T) {
	n := mustNetwork(t, `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","SubnetMin":"10.5.32.0","SubnetMax":"10.5.40.0"}`)
	if n.SubnetCount() != 9 {
		t.Errorf("count %d", n.SubnetCount())
	}
	// The pair that the contract shows: 34 is 0x22.
	if four, six := n.SubnetAt(2), n.Subnet6At(2); four != pfx("10.5.34.0/24") || six != pfx("fd00:5:0:22::/64") {
		t.Errorf("pair %s %s", four, six)
	}
	for _, out := range []string{"10.5.31.0/24", "10.5.41.0/24", "10.5.34.0/25", "10.5.34.1/24", "10.6.34.0/24", "fd00:5:0:22::/64"} {
		if i, ok := n.IndexOf(pfx(out)); ok {
			t.Errorf("IndexOf(%s) = %d", out, i)
		}
	}
	if p, q := n.SubnetAt(9), n.Subnet6At(9); p.IsValid() || q.IsValid() {
		t.Errorf("beyond the end: %s %s", p, q)
	}
	big := mustNetwork(t, `{"Network":"10.0.0.0/13","SubnetLen":30}`)
	if big.SubnetCount() != 1<<17 || big.SubnetAt(1<<17-1) != pfx("10.7.255.252/30") {
		t.Errorf("/13: %d, last %s", big.SubnetCount(), big.SubnetAt(1<<17-1))
	}
	six := mustNetwork(t, `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/40","IPv6SubnetLen":102}`)
	if last := six.SubnetAt(1<<62 - 1); six.SubnetCount() != 1<<62 || last != pfx("fd00:0:ff:ffff:ffff:ffff:fc00:0/102") {
		t.Errorf("IPv6: %d, last %s", six.SubnetCount(), last)
	}
	if six.Subnet6At(0).IsValid() {
		t.Error("a network without IPv4 has no second family")
	}
}

// drawNetwork makes any valid config.
func drawNetwork(t *rapid.T) Network {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	families := rapid.SampledFrom([]string{"4", "6", "46"}).Draw(t, "families")
	index := 0
	if strings.Contains(families, "4") {
		bits := rapid.IntRange(8, 30).Draw(t, "bits")
		length := rapid.IntRange(bits, min(bits+16, 30)).Draw(t, "length")
		index = length - bits
		network := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 173, 86, 219}), bits).Masked()
		first := rapid.Uint64Range(0, 1<<index-1).Draw(t, "first")
		last := rapid.Uint64Range(first, 1<<index-1).Draw(t, "last")
		add(`"Network":%q,"SubnetLen":%d`, network, length)
		add(`"SubnetMin":%q,"SubnetMax":%q`, nthSubnet(network, length, first).Addr(), nthSubnet(network, length, last).Addr())
	} else {
		add(`"EnableIPv4":false`)
	}
	if strings.Contains(families, "6") {
		bits := rapid.IntRange(8, 126-index).Draw(t, "bits6")
		length := rapid.IntRange(bits+index, min(bits+62, 126)).Draw(t, "length6")
		add(`"EnableIPv6":true,"IPv6Network":%q,"IPv6SubnetLen":%d`,
			netip.PrefixFrom(netip.MustParseAddr("fd5a:a5a5:5a5a:a5a5:5a5a:a5a5:5a5a:a5a5"), bits).Masked(), length)
	}
	add(`"LeaseTTL":"%ds"`, rapid.IntRange(5, 1e7).Draw(t, "ttl"))
	backend := rapid.SampledFrom([]string{`{"Type":"host-gw"}`, `{"Type":"host-gw","MTU":1400}`, `{}`, `{"VNI":7,"Port":4789,"DirectRouting":true,"MTU":9000}`}).Draw(t, "backend")
	add(`"Backend":%s`, backend)
	text := "{" + strings.Join(parts, ",") + "}"
	n, _, err := ParseNetwork([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return n
}

func TestNetworkRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawNetwork(t)
		b, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		back, warnings, err := ParseNetwork(b)
		if err != nil || len(warnings) > 0 || back != n {
			t.Fatalf("%s: got %+v, want %+v, warnings %q, %v", b, back, n, warnings, err)
		}
	})
}

func TestSubnetIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawNetwork(t)
		network, network6 := n.Network, n.IPv6Network
		if !n.EnableIPv4 {
			network = n.IPv6Network
		}
		i := rapid.Uint64Range(0, n.SubnetCount()-1).Draw(t, "i")
		p := n.SubnetAt(i)
		if back, ok := n.IndexOf(p); !ok || back != i {
			t.Fatalf("IndexOf(SubnetAt(%d) = %s) = %d, %v", i, p, back, ok)
		}
		if !network.Contains(p.Addr()) || p != p.Masked() || p.Bits() < network.Bits() {
			t.Fatalf("%s is no subnet of %s", p, network)
		}
		if i > 0 && (n.SubnetAt(i-1).Overlaps(p) || !n.SubnetAt(i-1).Addr().Less(p.Addr())) {
			t.Fatalf("%s does not follow %s", p, n.SubnetAt(i-1))
		}
		if faults := Judge(n, []netip.Prefix{p}); len(faults) > 0 && n.EnableIPv4 != n.EnableIPv6 {
			t.Fatalf("an own subnet is refused: %v", faults)
		}
		if n.EnableIPv4 && n.EnableIPv6 {
			six := n.Subnet6At(i)
			if !network6.Contains(six.Addr()) || six != six.Masked() || (i > 0 && n.Subnet6At(i-1).Overlaps(six)) {
				t.Fatalf("IPv6 subnet %s of %s", six, network6)
			}
			if faults := Judge(n, []netip.Prefix{p, six}); len(faults) > 0 {
				t.Fatalf("an own pair is refused: %v", faults)
			}
		}
	})
}

// TestOverlaps is row A9.
func TestOverlaps(t *testing.T) {
	n := mustNetwork(t, `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`)
	faults := Overlaps(n, []Named{
		{pfx("192.0.2.0/24"), "interface eth0"},
		{pfx("10.5.3.0/24"), "interface br-lan"},
		{pfx("10.0.0.0/8"), "interface eth1"},
		{pfx("fd00:5:0:9::5/128"), "etcd endpoint http://[fd00:5:0:9::5]:2379"},
		{pfx("10.6.0.0/16"), "interface eth2"},
	})
	want := Faults{
		{"Network", "10.5.0.0/16 overlaps 10.5.3.0/24 of interface br-lan"},
		{"Network", "10.5.0.0/16 overlaps 10.0.0.0/8 of interface eth1"},
		{"IPv6Network", "fd00:5::/48 overlaps fd00:5:0:9::5/128 of etcd endpoint http://[fd00:5:0:9::5]:2379"},
	}
	if diff := cmp.Diff(want, faults); diff != "" {
		t.Error(diff)
	}
}

func TestJudge(t *testing.T) {
	const dual = `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`
	for _, c := range []struct{ name, config, held, fields string }{
		{"nothing held", `{"Network":"10.6.0.0/16"}`, "", ""},
		{"same", `{"Network":"10.5.0.0/16"}`, "10.5.34.0/24", ""},
		{"widened", `{"Network":"10.0.0.0/8"}`, "10.5.34.0/24", ""},
		{"SubnetMin moved past it", `{"Network":"10.5.0.0/16","SubnetMin":"10.5.99.0"}`, "10.5.34.0/24", ""},
		{"moved away", `{"Network":"10.6.0.0/16"}`, "10.5.34.0/24", "Network"},
		{"narrowed", `{"Network":"10.5.0.0/19"}`, "10.5.34.0/24", "Network"},
		{"other length", `{"Network":"10.5.0.0/16","SubnetLen":25}`, "10.5.34.0/24", "SubnetLen"},
		{"family added", dual, "10.5.34.0/24", "EnableIPv6"},
		{"family taken", `{"Network":"10.5.0.0/16"}`, "10.5.34.0/24 fd00:5:0:22::/64", "EnableIPv6"},
		{"IPv4 taken", `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`, "10.5.34.0/24 fd00:5:0:22::/64", "EnableIPv4"},
		{"IPv4 added", dual, "fd00:5:0:22::/64", "EnableIPv4"},
		{"pair", dual, "10.5.34.0/24 fd00:5:0:22::/64", ""},
		{"pair, both moved", `{"Network":"10.6.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:6::/48"}`, "10.5.34.0/24 fd00:5:0:22::/64", "Network IPv6Network"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var held []netip.Prefix
			for _, s := range strings.Fields(c.held) {
				held = append(held, pfx(s))
			}
			var got []string
			for _, f := range Judge(mustNetwork(t, c.config), held) {
				got = append(got, f.Field)
			}
			if strings.Join(got, " ") != c.fields {
				t.Errorf("faults of %q, want %q", got, c.fields)
			}
		})
	}
}

// TestSpan: which subnets share addresses with a prefix of any length.
func TestSpan(t *testing.T) {
	four := mustNetwork(t, `{"Network":"10.5.0.0/16","SubnetMin":"10.5.4.0","SubnetMax":"10.5.99.0"}`)
	six := mustNetwork(t, `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`)
	for _, c := range []struct {
		n           Network
		p           string
		first, past uint64
		ok          bool
	}{
		{four, "10.5.4.0/24", 0, 1, true}, {four, "10.5.99.0/24", 95, 96, true},
		{four, "10.5.5.128/25", 1, 2, true}, {four, "10.5.5.7/32", 1, 2, true},
		{four, "10.5.8.0/22", 4, 8, true}, {four, "10.5.0.0/21", 0, 4, true}, {four, "10.5.96.0/20", 92, 96, true},
		{four, "10.0.0.0/8", 0, 96, true}, {four, "10.5.3.0/24", 0, 0, false}, {four, "10.5.100.0/24", 0, 0, false},
		{four, "10.6.0.0/16", 0, 0, false}, {four, "fd00:5::/64", 0, 0, false},
		{six, "fd00:5:0:7::/64", 7, 8, true}, {six, "fd00:5:0:7:8::/96", 7, 8, true}, {six, "fd00::/16", 0, 65536, true}, {six, "10.5.0.0/24", 0, 0, false},
	} {
		if first, past, ok := c.n.Span(pfx(c.p)); first != c.first || past != c.past || ok != c.ok {
			t.Errorf("Span(%s) = %d, %d, %t; want %d, %d, %t", c.p, first, past, ok, c.first, c.past, c.ok)
		}
	}
	if _, _, ok := four.Span(netip.Prefix{}); ok {
		t.Error("no prefix has a span")
	}
}
