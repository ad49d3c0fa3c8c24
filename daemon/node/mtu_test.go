package node

import (
	"strings"
	"testing"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

func TestMTU(t *testing.T) {
	four, six := conf.Network{EnableIPv4: true}, conf.Network{EnableIPv6: true}
	dual := conf.Network{EnableIPv4: true, EnableIPv6: true}
	with := func(n conf.Network, kind string, mtu int) *conf.Network {
		n.Backend = conf.Backend{Type: kind, MTU: mtu}
		return &n
	}
	for name, c := range map[string]struct {
		underlay           int
		n                  *conf.Network
		overlay, over6, of int // of is the pods'
	}{
		"not known yet":         {1500, nil, 1450, 1430, 1450},
		"IPv4":                  {1500, with(four, conf.BackendVXLAN, 0), 1450, 1430, 1450},
		"jumbo":                 {9000, with(four, conf.BackendVXLAN, 0), 8950, 8930, 8950},
		"IPv6":                  {1500, with(six, conf.BackendVXLAN, 0), 1450, 1430, 1430},
		"both: the lesser":      {1500, with(dual, conf.BackendVXLAN, 0), 1450, 1430, 1430},
		"less by the config":    {1500, with(dual, conf.BackendVXLAN, 1400), 1350, 1330, 1330},
		"more does not fit":     {1500, with(four, conf.BackendVXLAN, 9000), 1450, 1430, 1450},
		"routed":                {1500, with(dual, conf.BackendHostGW, 0), 1500, 1500, 1500},
		"routed, by the config": {9000, with(four, conf.BackendHostGW, 1500), 1500, 1500, 1500},
	} {
		u := Underlay{MTU: c.underlay}
		if a, b, p := u.OverlayMTU(c.n, false), u.OverlayMTU(c.n, true), u.PodMTU(c.n); a != c.overlay || b != c.over6 || p != c.of {
			t.Errorf("%s: overlays %d and %d, pods %d; want %d, %d, %d", name, a, b, p, c.overlay, c.over6, c.of)
		}
	}
}

func TestMTUProblems(t *testing.T) {
	network := func(six bool, mtu int) *conf.Network {
		return &conf.Network{EnableIPv4: true, EnableIPv6: six, Backend: conf.Backend{Type: conf.BackendVXLAN, MTU: mtu}}
	}
	for name, c := range map[string]struct {
		underlay int
		n        *conf.Network
		want     []string // code, severity and words of each problem
	}{
		"nothing known":    {1500, nil, nil},
		"no underlay":      {0, network(true, 9000), nil},
		"all is well":      {1500, network(true, 0), nil},
		"just as much":     {1500, network(false, 1500), nil},
		"one byte more":    {1500, network(false, 1501), []string{"mtu-too-large warning 1501 1500 1450 eth0"}},
		"just enough":      {1350, network(true, 0), nil},
		"IPv6 lacks one":   {1349, network(true, 0), []string{"mtu-too-small error 1279 1280 1350"}},
		"IPv4 has enough":  {1349, network(false, 0), nil},
		"IPv4 lacks one":   {625, network(false, 0), []string{"mtu-too-small error 575 576 626"}},
		"both at one time": {600, network(false, 1500), []string{"mtu-too-large warning 600", "mtu-too-small error 550"}},
	} {
		got := mtuProblems(Underlay{Interface: "eth0", MTU: c.underlay}, c.n)
		if len(got) != len(c.want) {
			t.Errorf("%s: problems %+v, want %q", name, got, c.want)
			continue
		}
		for i, p := range got {
			for _, word := range strings.Fields(c.want[i]) {
				if !strings.Contains(strings.Join([]string{p.Code, p.Severity, p.Text, p.Fix}, " "), word) {
					t.Errorf("%s: %+v does not say %s", name, p, word)
				}
			}
		}
	}
}

// TestMTUProblemsInStatus: the node says them itself, and its MTU is what fits.
func TestMTUProblemsInStatus(t *testing.T) {
	v := held(t, "10.5.34.0/24", 7)
	n := *v.Network
	n.Backend.MTU = 9000
	v.Network = &n
	s := newRig(t, v).Status()
	if s.MTU != 1450 || len(s.Problems) != 1 || s.Problems[0].Code != "mtu-too-large" || s.Problems[0].Severity != api.SeverityWarning {
		t.Errorf("MTU %d, problems %+v", s.MTU, s.Problems)
	}
}

// TestMTUWithoutAddress: a pod that is added while the underlay lacks an address
// gets what fits it all the same.
func TestMTUWithoutAddress(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	r.cfg.Underlay = func() (Underlay, bool) { return testUnderlay(), false }
	if got := r.want(pod("c", "10.5.34.9/24")).MTU; got != 1450 {
		t.Errorf("MTU %d", got)
	}
	r.cfg.Underlay = func() (Underlay, bool) { return Underlay{}, false }
	if got := r.want(pod("c", "10.5.34.9/24")).MTU; got != 0 {
		t.Errorf("of an interface that is not known: MTU %d", got)
	}
}
