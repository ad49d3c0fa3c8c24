package node

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/lease"
)

func TestStatusOfAHealthyNode(t *testing.T) {
	n2, n3 := entry("n2", "10.5.35.0/24", "192.0.2.12", 8), entry("n3", "10.5.36.0/24", "192.0.2.13", 9)
	mine := entry("n9", "10.5.37.0/24", "192.0.2.11", 10)
	r := newRig(t, held(t, "10.5.34.0/24", 0x7f01, n2, n3, mine))
	r.plane.report = dataplane.Report{Peers: []dataplane.PeerReport{
		{Peer: peerOf(n2), State: dataplane.PeerProgrammed},
		{Peer: peerOf(n3), State: dataplane.PeerConflict, Reason: "a route of others is in the way"},
	}}
	mustAdd(t, r, "c1")
	mustAdd(t, r, "c2")
	if resp := r.Del(t.Context(), request("c2", "")); resp.Error != nil {
		t.Fatal(resp.Error)
	}
	want := &api.Status{
		Version: "v1", Node: "n1", UID: "uid-n1", Network: "10.5.0.0/16", State: api.StateHeld, Ready: true,
		Lease:  &api.Lease{ID: "7f01", TTLSeconds: 60, RemainingSeconds: 40, LastProofSecondsAgo: 2, Epoch: testEpoch},
		Subnet: "10.5.34.0/24", PublicIP: "192.0.2.11", Interface: "eth0", MTU: 1450,
		Addresses: api.Addresses{Total: 253, Used: 1, Cooling: 1},
		Stranded:  []api.Stranded{},
		Peers: []api.Peer{
			{Node: "n2", Subnet: "10.5.35.0/24", PublicIP: "192.0.2.12", Epoch: testEpoch, State: api.PeerProgrammed, Path: api.PathVXLAN},
			{Node: "n3", Subnet: "10.5.36.0/24", PublicIP: "192.0.2.13", Epoch: testEpoch, State: api.PeerConflict, Reason: "a route of others is in the way"},
			{Node: "n9", Subnet: "10.5.37.0/24", PublicIP: "192.0.2.11", Epoch: testEpoch, State: api.PeerConflict,
				Reason: "it announces this node's own address 192.0.2.11 (a record of an earlier life, or a second node with that address)"},
		},
		Etcd:     api.Etcd{Endpoints: store{}.Endpoints(), Revision: 42},
		Problems: []api.Problem{},
	}
	if diff := cmp.Diff(want, r.Status()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// TestStatusListsKeptPeers: those without a record, each once.
func TestStatusListsKeptPeers(t *testing.T) {
	n2, n3, n4 := entry("n2", "10.5.35.0/24", "192.0.2.12", 8), entry("n3", "10.5.36.0/24", "192.0.2.13", 9), entry("n4", "10.5.37.0/24", "192.0.2.14", 10)
	r := newRig(t, settling(held(t, "10.5.34.0/24", 7, n2)))
	r.plane.report = dataplane.Report{Kept: []dataplane.PeerReport{
		{Peer: peerOf(n2), State: dataplane.PeerProgrammed}, // its record has come since the pass
		{Peer: peerOf(n3), State: dataplane.PeerProgrammed},
		{Peer: peerOf(n4), State: dataplane.PeerPending, Reason: "being programmed"},
	}}
	const why = "it has no record in etcd, which forgot or is settling; it is kept until a record overlaps its subnet, or until etcd has settled without it"
	want := []api.Peer{
		{Node: "n2", Subnet: "10.5.35.0/24", PublicIP: "192.0.2.12", Epoch: testEpoch, State: api.PeerPending},
		{Subnet: "10.5.36.0/24", PublicIP: "192.0.2.13", State: api.PeerProgrammed, Path: api.PathVXLAN, Reason: why},
		{Subnet: "10.5.37.0/24", PublicIP: "192.0.2.14", State: api.PeerPending, Reason: why + "; being programmed"},
	}
	if diff := cmp.Diff(want, r.Status().Peers); diff != "" {
		t.Errorf("peers (-want +got):\n%s", diff)
	}
}

// TestStatusTellsATombstone from a peer, whatever address it names.
func TestStatusTellsATombstone(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7, dead(entry("n2", "10.5.35.0/24", "192.0.2.12", 8)), dead(entry("n1", "10.5.36.0/24", "192.0.2.11", 9))))
	for _, p := range r.Status().Peers {
		if p.State != api.PeerUnreachable || !strings.Contains(p.Reason, "by force") || p.Node == "" {
			t.Errorf("peer %+v, want it unreachable and why", p)
		}
	}
}

func TestStatusBeforeEtcdAnswers(t *testing.T) {
	r := newRig(t, lease.View{State: api.StateStarting, Reason: "etcd has not answered yet",
		Problems: []api.Problem{{Code: "etcd-unreachable", Severity: api.SeverityError, Since: "2026-11-30T00:00:00Z"}}})
	r.cfg.Underlay = func() (Underlay, bool) { return Underlay{}, false }
	r.cfg.UnderlayErr = func() error { return errors.New("no underlay address yet") }
	s := r.Status()
	if s.Ready || s.State != api.StateStarting || s.Lease != nil || s.Subnet != "" || s.Network != "" || s.PublicIP != "" {
		t.Errorf("status %+v claims what is not known", s)
	}
	if len(s.Problems) != 2 || s.Problems[0].Code != "underlay-missing" || s.Problems[1].Since != "2026-11-30T00:00:00Z" {
		t.Errorf("problems %+v, want the underlay's, and the engine's as it is", s.Problems)
	}
}

func TestStatusCountsDown(t *testing.T) {
	v := held(t, "10.5.34.0/24", 7)
	v.State, v.Deadline, v.LastProof = api.StateFenced, now-time.Second, 0
	s := newRig(t, v).Status()
	if s.Ready || s.Lease.RemainingSeconds != 0 || s.Lease.LastProofSecondsAgo != -1 {
		t.Errorf("ready %t, lease %+v: want not ready, 0 s left and no proof", s.Ready, s.Lease)
	}
}

// TestStatusNamesTheStranded: of a node that has another subnet now, and of
// one that has none.
func TestStatusNamesTheStranded(t *testing.T) {
	for name, v := range map[string]lease.View{
		"another subnet": held(t, "10.5.35.0/24", 8), "no subnet": lost("10.5.34.0/24"),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, held(t, "10.5.34.0/24", 7))
			mustAdd(t, r, "old")
			r.tenancy.set(v)
			if v.Held {
				mustAdd(t, r, "new")
			}
			s := r.Status()
			want := []api.Stranded{{Subnet: "10.5.34.0/24", ContainerID: "old", IfName: "eth0", Address: "10.5.34.2"}}
			if diff := cmp.Diff(want, s.Stranded); diff != "" {
				t.Errorf("stranded (-want +got):\n%s", diff)
			}
			if s.State != v.State || s.Ready != v.Held {
				t.Errorf("state %s, ready %t", s.State, s.Ready)
			}
			if len(s.Problems) != 1 || s.Problems[0].Code != "stranded-pods" || s.Problems[0].Severity != api.SeverityError ||
				s.Problems[0].Since == "" || s.Problems[0].Fix == "" {
				t.Errorf("problems %+v, want stranded-pods with all it needs", s.Problems)
			}
		})
	}
}

// TestNobodyIsStrandedForWantOfAnAnswer: a daemon that has just started, or
// waits, does not know that its pods have lost their subnet.
func TestNobodyIsStrandedForWantOfAnAnswer(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustAdd(t, r, "c1")
	r.tenancy.set(lease.View{State: api.StateStarting, Network: testNetwork()})
	if s := r.Status(); len(s.Stranded) != 0 || len(s.Problems) != 0 {
		t.Errorf("stranded %v, problems %v", s.Stranded, s.Problems)
	}
}

func TestStatusOfPlaneAndStore(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	r.plane.report = dataplane.Report{
		Faults: []dataplane.Fault{{What: "set route", Why: "no buffer"}},
		Conflicts: []dataplane.Conflict{
			{Text: "route 10.5.0.0/16 dev docker0 is not ours"},
			{Text: "told with the peer", Peer: prefix("10.5.35.0/24")},
		},
	}
	r.cfg.Store = store{problems: []api.Problem{{Code: "etcd-version", Severity: api.SeverityWarning, Text: "has lease bugs"}}}
	var got []string
	for _, p := range r.Status().Problems {
		got = append(got, p.Severity+" "+p.Code+" "+p.Text)
	}
	want := []string{"warning etcd-version has lease bugs", "error data-plane set route: no buffer", "warning foreign route 10.5.0.0/16 dev docker0 is not ours"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	r.plane.report = dataplane.Report{Fights: []dataplane.Fight{{Kind: "route", Times: 7, Since: time.Unix(0, 0)}}}
	if p := r.Status().Problems[1]; p.Code != "fought-over" || !strings.HasPrefix(p.Text, "routes were repaired 7 times since 1970-01-01") {
		t.Errorf("a fight: %+v", p)
	}
	// A device of that name keeps all pods, or all peers, from working.
	for _, what := range []string{dataplane.ConflictBridge, dataplane.ConflictOverlay} {
		r.plane.report = dataplane.Report{Conflicts: []dataplane.Conflict{{What: what, Device: "other0", Text: "it is a veth"}, {Text: "route x"}}}
		last := r.Status().Problems[1]
		if last.Code != "foreign" || last.Severity != api.SeverityError || last.Text != "it is a veth; route x" || !strings.HasSuffix(last.Fix, ": ip link del other0") {
			t.Errorf("%s: %+v", what, last)
		}
	}
}

// TestProblemsKeepTheirSince as long as they stand, and no longer.
func TestProblemsKeepTheirSince(t *testing.T) {
	var f firstSeen
	f.at = map[string]string{"a": "2026-01-01T00:00:00Z", "gone": "2026-01-01T00:00:00Z"}
	all := []api.Problem{{Code: "a"}, {Code: "b"}, {Code: "c", Since: "2026-02-02T00:00:00Z"}}
	f.stamp(all)
	if all[0].Since != "2026-01-01T00:00:00Z" || all[2].Since != "2026-02-02T00:00:00Z" {
		t.Errorf("stamped %+v", all)
	}
	if at, err := time.Parse(time.RFC3339, all[1].Since); err != nil || time.Since(at) > time.Minute {
		t.Errorf("a new problem stands since %q (%v)", all[1].Since, err)
	}
	if _, kept := f.at["gone"]; kept || len(f.at) != 3 {
		t.Errorf("remembers %v", f.at)
	}
}

func TestReady(t *testing.T) {
	fenced := held(t, "10.5.34.0/24", 7)
	fenced.State, fenced.Deadline = api.StateFenced, now
	unproven := held(t, "10.5.34.0/24", 7)
	unproven.State = api.StateUnproven
	for name, c := range map[string]struct {
		view lease.View
		pods bool
		code uint
	}{
		"held":              {held(t, "10.5.34.0/24", 7), false, 0},
		"unproven":          {unproven, false, 0},
		"fenced":            {fenced, false, api.CodeNotReadyLimited},
		"lost with pods":    {lost("10.5.34.0/24"), true, api.CodeNotReadyLimited},
		"lost without pods": {lost("10.5.34.0/24"), false, api.CodeNotReady},
		"starting":          {lease.View{State: api.StateStarting}, false, api.CodeNotReady},
		"waiting":           {lease.View{State: api.StateWaiting}, false, api.CodeNotReady},
		"refused":           {lease.View{State: api.StateRefused}, true, api.CodeNotReady},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, held(t, "10.5.34.0/24", 7))
			if c.pods {
				mustAdd(t, r, "c1")
			}
			r.tenancy.set(c.view)
			resp := r.Ready(t.Context(), request("", ""))
			if c.code != 0 {
				wantCode(t, resp, c.code)
			} else if resp.Error != nil {
				t.Errorf("STATUS: %v", resp.Error)
			}
		})
	}
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	wantCode(t, r.Ready(t.Context(), request("", `,"tenure":{"x":1}`)), api.CodeInvalidConfig)
}

func TestLostWithoutPodsIsWaiting(t *testing.T) {
	r := newRig(t, lost("10.5.34.0/24"))
	if s := r.Status(); s.State != api.StateWaiting {
		t.Errorf("state %s, want waiting: nobody has lost anything", s.State)
	}
}

func TestCheck(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	added := r.Add(t.Context(), request("c1", ""))
	if added.Error != nil {
		t.Fatal(added.Error)
	}
	remembered := func(result string) *api.Request { return request("c1", `,"prevResult":`+result) }
	if resp := r.Check(t.Context(), remembered(string(added.Result))); resp.Error != nil {
		t.Errorf("CHECK: %v", resp.Error)
	}
	if resp := r.Check(t.Context(), request("c1", "")); resp.Error != nil {
		t.Errorf("CHECK without a result: %v", resp.Error)
	}
	retuned := strings.ReplaceAll(string(added.Result), "0a:58:0a:05:22:02", "02:00:00:00:00:77")
	if resp := r.Check(t.Context(), remembered(retuned)); resp.Error != nil || r.interfaces.checked.MAC != [6]byte{2, 5: 0x77} {
		t.Errorf("CHECK behind a plugin that set another MAC: %v, it was compared with %v", resp.Error, r.interfaces.checked)
	}
	other := strings.ReplaceAll(string(added.Result), "10.5.34.2/24", "10.5.34.99/24")
	wantCode(t, r.Check(t.Context(), remembered(other)), api.CodeCheckDiffers)
	wantCode(t, r.Check(t.Context(), remembered(`{"cniVersion":"1.1.0","ips":"nonsense"}`)), api.CodeDecode)
	wantCode(t, r.Check(t.Context(), request("c9", "")), api.CodeCheckDiffers)

	r.interfaces.differ = []attach.Op{{Action: attach.SetUp, Link: "tenx", Value: "set up"}}
	resp := r.Check(t.Context(), request("c1", ""))
	wantCode(t, resp, api.CodeCheckDiffers)
	if !strings.Contains(resp.Error.Msg, "host tenx: set up") {
		t.Errorf("the text does not say what ADD would do: %s", resp.Error.Msg)
	}
	r.interfaces.differ = nil
	for name, v := range map[string]lease.View{"another subnet": held(t, "10.5.35.0/24", 8), "none": lost("10.5.34.0/24")} {
		r.tenancy.set(v)
		t.Run(name, func(t *testing.T) { wantCode(t, r.Check(t.Context(), request("c1", "")), api.CodeCheckStranded) })
	}
}

func TestIPAMCheck(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustIPAMAdd(t, r, "c1")
	if resp := r.IPAMCheck(t.Context(), request("c1", "")); resp.Error != nil {
		t.Errorf("CHECK: %v", resp.Error)
	}
	wantCode(t, r.IPAMCheck(t.Context(), request("c2", "")), api.CodeCheckDiffers)
	for name, v := range map[string]lease.View{"another subnet": held(t, "10.5.35.0/24", 8), "none": lost("10.5.34.0/24")} {
		r.tenancy.set(v)
		t.Run(name, func(t *testing.T) { wantCode(t, r.IPAMCheck(t.Context(), request("c1", "")), api.CodeCheckStranded) })
	}
}

func TestPeersOfANodeThatHoldsNothing(t *testing.T) {
	n2 := entry("n2", "10.5.35.0/24", "192.0.2.12", 8)
	r := newRig(t, lost("10.5.34.0/24", n2))
	got := r.Status().Peers
	if len(got) != 1 || got[0].State != api.PeerPending {
		t.Errorf("peers %+v, want n2 as pending", got)
	}
}

// TestP3 is the part of the row (see daemon/dataplane) that an operator sees:
// a small neighbour table is a warning with a command, and no pod is refused.
func TestP3(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	r.plane.report = dataplane.Report{Conflicts: []dataplane.Conflict{{What: dataplane.ConflictNeighbours, Text: "110 pods need 220 of 256"}}}
	s := r.Status()
	if len(s.Problems) != 1 || !s.Ready {
		t.Fatalf("ready %t, problems %+v", s.Ready, s.Problems)
	}
	if p := s.Problems[0]; p.Code != "neighbour-limits" || p.Severity != api.SeverityWarning || !strings.Contains(p.Text, "256") || !strings.HasPrefix(p.Fix, "sysctl -w net.ipv4.") {
		t.Errorf("problem %+v", p)
	}
	r.plane.report.Conflicts[0].What = dataplane.ConflictNeighbours6
	if p := r.Status().Problems; len(p) != 1 || p[0].Code != "neighbour-limits" || !strings.HasPrefix(p[0].Fix, "sysctl -w net.ipv6.") {
		t.Errorf("problems of the table of IPv6: %+v", p)
	}
}

// TestOwnText: the status names the addresses that the record announces.
func TestOwnText(t *testing.T) {
	four, six := conf.Network{EnableIPv4: true}, conf.Network{EnableIPv6: true}
	for name, c := range map[string]struct {
		address string
		n       *conf.Network
		want    string
	}{
		"none":               {"", &four, ""},
		"no network yet":     {"2001:db8::1", nil, "2001:db8::1"},
		"IPv4":               {"192.0.2.1", &four, "192.0.2.1"},
		"IPv6":               {"2001:db8::1", &six, "2001:db8::1"},
		"IPv4, pods of IPv6": {"192.0.2.1", &six, ""},
		"IPv6, pods of IPv4": {"2001:db8::1", &four, ""},
	} {
		var a netip.Addr
		if c.address != "" {
			a = netip.MustParseAddr(c.address)
		}
		if got := ownText(a, c.n); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
