package node

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/pathmtu"
)

func TestWaysTo(t *testing.T) {
	at := func(subnet string, state dataplane.PeerState) dataplane.PeerReport {
		return dataplane.PeerReport{Peer: dataplane.Peer{Subnet: prefix(subnet)}, State: state}
	}
	peers := []dataplane.PeerReport{
		at("10.5.35.0/24", dataplane.PeerProgrammed), at("10.5.36.0/24", dataplane.PeerPending), at("10.5.37.0/24", dataplane.PeerConflict),
		at("fd00:5:0:35::/64", dataplane.PeerProgrammed),
	}
	got := fmt.Sprint(waysTo(peers, []netip.Prefix{prefix("10.5.34.0/24"), prefix("fd00:5:0:34::/64")}, 1430))
	if want := "[{10.5.34.1 10.5.35.1 1430} {fd00:5:0:34::1 fd00:5:0:35::1 1430}]"; got != want {
		t.Errorf("ways %s, want %s", got, want)
	}
	if got := waysTo(peers, []netip.Prefix{prefix("10.5.34.0/24")}, 1450); len(got) != 1 {
		t.Errorf("without an IPv6 subnet: %v", got)
	}
}

// TestWays: only while the subnet is held and its deadline has not passed.
func TestWays(t *testing.T) {
	n2 := entry("n2", "10.5.35.0/24", "192.0.2.12", 8)
	v := held(t, "10.5.34.0/24", 7, n2)
	r := newRig(t, v)
	r.plane.report = dataplane.Report{Peers: []dataplane.PeerReport{{Peer: peerOf(n2), State: dataplane.PeerProgrammed}}}
	want := pathmtu.Way{From: addr("10.5.34.1"), To: addr("10.5.35.1"), Size: 1450}
	if got := r.Ways(); len(got) != 1 || got[0] != want {
		t.Errorf("ways %v, want %v", got, want)
	}
	alone := newRig(t, v)
	if got := alone.Ways(); got == nil || len(got) != 0 {
		t.Errorf("without peers: %#v", got)
	}
	r.plane.report.Peers[0].State = dataplane.PeerPending
	if got := r.Ways(); got != nil {
		t.Errorf("none is programmed: %#v", got)
	}
	v.Deadline = time.Nanosecond
	late := newRig(t, v)
	late.plane.report = r.plane.report
	late.plane.report.Peers[0].State = dataplane.PeerProgrammed
	if got := late.Ways(); got != nil {
		t.Errorf("past the deadline: %v", got)
	}
}

func hole(to string, passes int) pathmtu.Hole {
	return pathmtu.Hole{Way: pathmtu.Way{To: addr(to), Size: 1450}, Passes: passes}
}

func TestClampTo(t *testing.T) {
	for name, c := range map[string]struct {
		largest int
		holes   []pathmtu.Hole
		want    int
	}{
		"not asked for":                {0, []pathmtu.Hole{hole("10.5.35.1", 1250)}, 0},
		"no hole":                      {1450, nil, 1450},
		"the least":                    {1450, []pathmtu.Hole{hole("10.5.35.1", 1350), hole("10.5.36.1", 1250), hole("10.5.37.1", 1300)}, 1250},
		"never less than hosts take":   {1450, []pathmtu.Hole{hole("10.5.35.1", 128)}, 576},
		"never less than IPv6 has":     {1430, []pathmtu.Hole{hole("fd00:5:0:35::1", 1200)}, 1280},
		"nor more than pods get by it": {1250, []pathmtu.Hole{hole("10.5.35.1", 1400)}, 1250},
	} {
		if got := clampTo(c.largest, c.holes); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestHoleProblems(t *testing.T) {
	n := conf.Network{EnableIPv4: true, Backend: conf.Backend{Type: conf.BackendVXLAN}}
	peers := []api.Peer{{Node: "n2", Subnet: "10.5.35.0/24 & fd00:5:0:35::/64", PublicIP: "192.0.2.12"}}
	if got := holeProblems(nil, peers, n, false); len(got) != 0 {
		t.Errorf("no holes: %+v", got)
	}
	many := []pathmtu.Hole{hole("10.5.35.1", 1250), hole("fd00:5:0:35::1", 1300)}
	for i := range 10 {
		many = append(many, hole(fmt.Sprintf("10.5.%d.1", 100+i), 1240))
	}
	got := holeProblems(many, peers, n, true)
	if len(got) != 1 || got[0].Code != "path-mtu" || got[0].Severity != api.SeverityWarning {
		t.Fatalf("problems %+v", got)
	}
	for _, w := range []string{"n2 at 192.0.2.12 (1250 arrive, 1450 do not), n2 at 192.0.2.12 (1300 arrive", "10.5.102.1 (1240", "and 7 more", "(--clamp-mss)"} {
		if !strings.Contains(got[0].Text, w) {
			t.Errorf("%q does not say %q", got[0].Text, w)
		}
	}
	if strings.Contains(got[0].Text, "10.5.103.1") || !strings.Contains(got[0].Fix, "Backend.MTU 1290") || strings.Contains(got[0].Fix, "clamp") {
		t.Errorf("%+v", got[0])
	}
	if got := holeProblems(many[:1], peers, n, false); strings.Contains(got[0].Text, "clamp") || !strings.Contains(got[0].Fix, "--clamp-mss") {
		t.Errorf("not clamped: %+v", got[0])
	}
	n.EnableIPv6 = true
	if got := holeProblems(many[:1], peers, n, false); strings.Contains(got[0].Fix, "Backend.MTU") {
		t.Errorf("a config that is refused: %q", got[0].Fix)
	}
}

// TestHolesAreSteeredBy: the data plane is told of what passes, and status says
// what does not; without --clamp-mss nothing is clamped.
func TestHolesAreSteeredBy(t *testing.T) {
	n2 := entry("n2", "10.5.35.0/24", "192.0.2.12", 8)
	for _, clamp := range []bool{true, false} {
		r := newRig(t, held(t, "10.5.34.0/24", 7, n2))
		r.cfg.ClampMSS = clamp
		r.cfg.Holes = func() []pathmtu.Hole { return []pathmtu.Hole{hole("10.5.35.1", 1250)} }
		r.steer()
		want := 0
		if clamp {
			want = 1250
		}
		if got := r.steered.Clamp; got != want {
			t.Errorf("clamp %t: the data plane is told %d, want %d", clamp, got, want)
		}
		if s := r.Status(); len(s.Problems) != 1 || !strings.Contains(s.Problems[0].Text, "n2 at 192.0.2.12 (1250 arrive, 1450 do not)") {
			t.Errorf("problems %+v", s.Problems)
		}
	}
}
