package lease

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"github.com/tenure-cni/tenure/conf"
)

func TestDeadlineIsBeforeTheLeaseEnds(t *testing.T) {
	for _, c := range []struct{ ttl, margin time.Duration }{
		{5 * time.Second, time.Second},
		{10 * time.Second, time.Second},
		{time.Minute, 6 * time.Second},
		{time.Hour, 300 * time.Second},
		{24 * time.Hour, 300 * time.Second},
	} {
		if got := Margin(c.ttl); got != c.margin {
			t.Errorf("Margin(%s) = %s, want %s", c.ttl, got, c.margin)
		}
		t0 := 100 * time.Hour
		if got, want := Deadline(t0, c.ttl), t0+c.ttl-c.margin; got != want {
			t.Errorf("Deadline(t0, %s) = %s, want %s", c.ttl, got, want)
		}
	}
	if got := Interval(24 * time.Hour); got != 30*time.Second {
		t.Errorf("Interval(24h) = %s, want 30s", got)
	}
	if got := CallTimeout(6 * time.Second); got != 2*time.Second {
		t.Errorf("CallTimeout(6s) = %s, want 2s", got)
	}
}

func TestSubnetKeys(t *testing.T) {
	four, six := netip.MustParsePrefix("10.5.34.0/24"), netip.MustParsePrefix("fd00:5:0:22::/64")
	k := NewKeys("/tenure/network")
	for _, c := range []struct {
		s          Subnets
		key, owner string
	}{
		{Subnets{V4: four}, "/tenure/network/subnets/10.5.34.0-24", "/tenure/network/tenure/owners/10.5.34.0-24"},
		{Subnets{V4: four, V6: six}, "/tenure/network/subnets/10.5.34.0-24&fd00:5:0:22::-64", "/tenure/network/tenure/owners/10.5.34.0-24"},
		{Subnets{V6: six}, "/tenure/network/subnets/0.0.0.0-0&fd00:5:0:22::-64", "/tenure/network/tenure/owners/fd00:5:0:22::-64"},
	} {
		if got := k.Subnet(c.s); got != c.key {
			t.Errorf("key of %s = %s, want %s", c.s, got, c.key)
		}
		if got := k.Owner(c.s); got != c.owner {
			t.Errorf("owner key of %s = %s, want %s", c.s, got, c.owner)
		}
		back, err := ParseSubnets(c.s.Key())
		if err != nil || back != c.s {
			t.Errorf("ParseSubnets(%q) = %v, %v", c.s.Key(), back, err)
		}
	}
	for _, bad := range []string{"", "10.5.34.0", "10.5.34.1-24", "10.5.34.0-33", "10.5.34.0-24&10.5.35.0-24", "x-24", "10.5.34.0-24&"} {
		if s, err := ParseSubnets(bad); err == nil {
			t.Errorf("ParseSubnets(%q) = %s, want an error", bad, s)
		}
	}
}

func TestRecordIsFlannelsAndOurs(t *testing.T) {
	const written = `{"PublicIP":"192.0.2.11","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"62:dd:66:31:0e:79"},"Tenure":{"Node":"n1","UID":"u","Boot":"b","Epoch":1796000000}}`
	r, err := DecodeRecord([]byte(written))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(written, r.encode()); diff != "" {
		t.Errorf("the record changes on its way (-want +got):\n%s", diff)
	}
	flannel, err := DecodeRecord([]byte(`{"PublicIP":"192.0.2.11","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"62:dd:66:31:0e:79"},"Later":1}`))
	if err != nil || flannel.Tenant() != (Tenant{}) {
		t.Errorf("flannel's record: %+v, %v", flannel, err)
	}
	for _, bad := range []string{"", "{", "{}", `{"PublicIP":"x"}`, `{"PublicIP":"192.0.2.1","BackendData":{"VtepMAC":"zz"}}`} {
		if _, err := DecodeRecord([]byte(bad)); err == nil {
			t.Errorf("DecodeRecord(%q) took it", bad)
		}
	}
}

func TestVTEPMACIsAPureFunctionOfTheOwnership(t *testing.T) {
	s := Subnets{V4: netip.MustParsePrefix("10.5.34.0/24")}
	m := VTEPMAC("/p", s, 7)
	if m != VTEPMAC("/p", s, 7) {
		t.Error("the same ownership has two MACs")
	}
	if m[0]&3 != 2 {
		t.Errorf("%s is not a locally administered unicast address", m)
	}
	other := Subnets{V4: netip.MustParsePrefix("10.5.35.0/24")}
	for _, o := range []MAC{VTEPMAC("/q", s, 7), VTEPMAC("/p", other, 7), VTEPMAC("/p", s, 8)} {
		if o == m {
			t.Errorf("another ownership has the same MAC %s", m)
		}
	}
}

func TestHoldingCannotBeBuiltWithLeaseZero(t *testing.T) {
	e := Entry{Subnets: Subnets{V4: netip.MustParsePrefix("10.5.1.0/24")}, CreateRevision: 3, ModRevision: 3}
	if _, err := NewHolding(NewKeys("/p"), e, time.Minute); !errors.Is(err, ErrNoLease) {
		t.Errorf("NewHolding with lease 0: %v, want ErrNoLease", err)
	}
	e.Lease, e.CreateRevision = 9, 0
	if _, err := NewHolding(NewKeys("/p"), e, time.Minute); err == nil {
		t.Error("NewHolding took a key that does not exist")
	}
	if _, err := acquire(NewKeys("/p"), Candidate{Subnets: e.Subnets}, 0, Record{}, &Snapshot{}, Owner{}); !errors.Is(err, ErrNoLease) {
		t.Errorf("acquire with lease 0: %v, want ErrNoLease", err)
	}
}

// slowEtcd answers a cycle and lets the clock run while it does.
type slowEtcd struct {
	now     time.Duration
	ttl     int64
	err     error
	succeed bool
	kvs     []*mvccpb.KeyValue
	took    time.Duration
}

func (s *slowEtcd) clock() time.Duration { return s.now }

func (s *slowEtcd) KeepAliveOnce(context.Context, clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	s.now += s.took
	return &clientv3.LeaseKeepAliveResponse{TTL: s.ttl, ResponseHeader: &pb.ResponseHeader{}}, s.err
}

func (s *slowEtcd) Txn(context.Context) clientv3.Txn { return s }

func (s *slowEtcd) If(...clientv3.Cmp) clientv3.Txn  { return s }
func (s *slowEtcd) Then(...clientv3.Op) clientv3.Txn { return s }
func (s *slowEtcd) Else(...clientv3.Op) clientv3.Txn { return s }
func (s *slowEtcd) Commit() (*clientv3.TxnResponse, error) {
	s.now += s.took
	r := &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Kvs: s.kvs}}}
	return &clientv3.TxnResponse{Header: &pb.ResponseHeader{Revision: 9}, Succeeded: s.succeed, Responses: []*pb.ResponseOp{r}}, nil
}

func TestCycleCountsFromBeforeTheSend(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := NewKeys("/p")
		e := Entry{Subnets: Subnets{V4: netip.MustParsePrefix("10.5.1.0/24")}, Lease: 5, CreateRevision: 3, ModRevision: 3}
		h, err := NewHolding(k, e, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Duration(rapid.Int64Range(0, int64(1000*time.Hour)).Draw(t, "start"))
		ttl := rapid.Int64Range(-1, 86400).Draw(t, "ttl")
		s := &slowEtcd{now: start, ttl: ttl, took: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "took")),
			succeed: rapid.Bool().Draw(t, "succeed"),
			kvs:     []*mvccpb.KeyValue{{Key: []byte(k.Subnet(e.Subnets)), Value: []byte(`{"PublicIP":"192.0.2.1"}`), Lease: 5, CreateRevision: 3, ModRevision: 4}}}
		if rapid.Bool().Draw(t, "timeout") {
			s.err = context.DeadlineExceeded
		}
		v := cycle(t.Context(), s, h, s.clock, nil)
		switch {
		case s.err != nil:
			if v.err == nil || v.proven || v.lost != "" {
				t.Fatalf("silence concluded something: %+v", v)
			}
		case ttl <= 0 && s.succeed:
			if !v.denied || v.err == nil || v.proven || v.lost != "" {
				t.Fatalf("a lease that one member denies, with the key on it: %+v", v)
			}
		case !s.succeed:
			if v.lost == "" || v.proven {
				t.Fatalf("not lost: %+v", v)
			}
		default:
			d := time.Duration(ttl) * time.Second
			if !v.proven || v.deadline != max(start, start+d-Margin(d)) {
				t.Fatalf("deadline %s, want %s after t0=%s", v.deadline, d-Margin(d), start)
			}
			if v.holding.mod != 4 {
				t.Fatalf("revision %d not taken from the proof", v.holding.mod)
			}
		}
	})
}

func TestOwnerKeepsTheLastEightTransitions(t *testing.T) {
	var o Owner
	for i := range 12 {
		o = o.succeed(Transition{UID: fmt.Sprint("u", i), Epoch: int64(i + 1), Why: "test"})
	}
	if o.UID != "u11" || len(o.History) != keptTransitions || o.History[0].UID != "u3" || o.History[7].UID != "u10" {
		t.Errorf("after 12 owners: %s, %d in history, first %s", o.UID, len(o.History), o.History[0].UID)
	}
	again := o.succeed(Transition{UID: "u11", Epoch: 12, Why: "again"})
	if len(again.History) != keptTransitions || again.History[7].UID != "u10" || again.Why != "again" {
		t.Errorf("the same ownership taken again became a new one: %+v", again)
	}
}

func TestNextEpochGrows(t *testing.T) {
	now := time.Unix(1796000000, 0)
	for _, c := range []struct {
		name  string
		owner Owner
		mine  bool
		seen  int64
		want  int64
	}{
		{"first", Owner{}, false, 0, 1796000000},
		{"same owner, same boot", Owner{Transition: Transition{Epoch: 5}}, true, 9, 5},
		{"same owner, unknown epoch", Owner{}, true, 0, 1796000000},
		{"other owner ahead of the clock", Owner{Transition: Transition{Epoch: 1796000007}}, false, 0, 1796000008},
		{"seen ahead of the owner record", Owner{Transition: Transition{Epoch: 3}}, false, 1796000010, 1796000011},
		{"store forgot", Owner{Transition: Transition{Epoch: 3}}, false, 0, 1796000000},
	} {
		if got := NextEpoch(c.owner, c.mine, c.seen, now); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func network(t interface{ Fatal(...any) }, text string) conf.Network {
	n, _, err := conf.ParseNetwork([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// drawSnapshot makes a store in which some subnets are held, owned, reserved.
func drawSnapshot(t *rapid.T, n conf.Network) *Snapshot {
	s := &Snapshot{Owners: map[string]Versioned[Owner]{}, Reservations: map[string]Versioned[Reservation]{}}
	who := rapid.SampledFrom([]string{"me", "a", "b"})
	for i := range n.SubnetCount() {
		sub := subnetsAt(n, i)
		if rapid.Bool().Draw(t, "held") {
			s.Entries = append(s.Entries, Entry{Subnets: sub, Lease: 1, CreateRevision: 1})
		}
		if rapid.Bool().Draw(t, "owned") {
			o := Owner{Transition: Transition{UID: who.Draw(t, "owner"), Epoch: int64(i), Since: time.Unix(int64(i), 0)}}
			if rapid.Bool().Draw(t, "released") {
				o.Until = time.Unix(rapid.Int64Range(1, 5).Draw(t, "until"), 0)
			}
			s.Owners[sub.ownerKey()] = Versioned[Owner]{o, 1}
		}
		if rapid.IntRange(0, 3).Draw(t, "reserved") == 0 {
			s.Reservations[sub.ownerKey()] = Versioned[Reservation]{Reservation{who.Draw(t, "for")}, 1}
		}
	}
	slices.SortFunc(s.Entries, func(a, b Entry) int { return slices.Compare([]byte(a.Key()), []byte(b.Key())) })
	return s
}

func TestCandidatesFollowTheOrderOfChoice(t *testing.T) {
	n := network(t, `{"Network":"10.5.0.0/20","SubnetLen":24,"EnableIPv6":true,"IPv6Network":"fd00:5::/60"}`)
	rank := map[string]int{"reserved for this node": 0, "held last by this node": 1, "never owned": 2, "free again": 3}
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t, n)
		w := Want{Node: "me", UID: "me", Seed: rapid.Uint64().Draw(t, "seed"), LastFirst: rapid.Bool().Draw(t, "lastFirst")}
		if rapid.Bool().Draw(t, "hasLast") {
			w.Last = subnetsAt(n, rapid.Uint64Range(0, n.SubnetCount()-1).Draw(t, "last"))
		}
		got := map[Subnets]bool{}
		at := -1
		var before *Owner
		for c := range Candidates(n, s, w) {
			r := rank[c.Why]
			if w.LastFirst && r < 2 {
				r = 1 - r
			}
			if r < at {
				t.Fatalf("%s (%s) comes after rank %d", c.Subnets, c.Why, at)
			}
			at = r
			if got[c.Subnets] {
				t.Fatalf("%s offered twice", c.Subnets)
			}
			got[c.Subnets] = true
			o := s.Owners[c.ownerKey()].Value
			// A store that forgot has no owner on record; nobody is known to
			// have held it since.
			mine := c.Subnets == w.Last && (o.UID == "me" || o.UID == "")
			if c.Why == "never owned" && (o.UID != "" || mine) || c.Why == "held last by this node" && !mine {
				t.Fatalf("%s offered as %q, owner %q", c.Subnets, c.Why, o.UID)
			}
			if c.Why == "free again" {
				if before != nil && !before.Until.IsZero() && !o.Until.IsZero() && o.Until.Before(before.Until) {
					t.Fatalf("%s was released before the one offered earlier", c.Subnets)
				}
				before = &o
			}
		}
		for i := range n.SubnetCount() {
			sub := subnetsAt(n, i)
			_, held := s.Entry(sub)
			r, reserved := s.Reservations[sub.ownerKey()]
			free := !held && (!reserved || r.Value.Node == "me")
			if got[sub] != free {
				t.Fatalf("%s: free %t, offered %t", sub, free, got[sub])
			}
		}
	})
}

func TestCandidatesAvoidOverlapsAtAnyLength(t *testing.T) {
	n := network(t, `{"Network":"10.5.0.0/22"}`)
	n.SubnetLen = 24
	s := &Snapshot{Entries: []Entry{{Subnets: Subnets{V4: netip.MustParsePrefix("10.5.1.128/25")}}, {Subnets: Subnets{V4: netip.MustParsePrefix("10.5.2.0/23")}}}}
	var got []string
	for c := range Candidates(network(t, `{"Network":"10.5.0.0/22","SubnetLen":24}`), s, Want{Seed: 1}) {
		got = append(got, c.String())
	}
	if diff := cmp.Diff([]string{"10.5.0.0/24"}, got); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}
}

func TestDecide(t *testing.T) {
	n := network(t, `{"Network":"10.5.0.0/16"}`)
	good := func() (*conf.Network, error) { return &n, nil }
	no := func() bool { return false }
	here := func(a netip.Addr) bool { return a == netip.MustParseAddr("192.0.2.10") }
	sub := Subnets{V4: netip.MustParsePrefix("10.5.3.0/24")}
	own := func(uid, boot string, lease clientv3.LeaseID) []Entry {
		return []Entry{{Subnets: sub, Lease: lease, CreateRevision: 2, ModRevision: 2,
			Record: Record{PublicIP: netip.MustParseAddr("192.0.2.9"), Tenure: &Tenant{UID: uid, Boot: boot, Node: "x"}}}}
	}
	born := Snapshot{Config: Versioned[[]byte]{nil, 1}, Store: Versioned[Store]{Store{ID: "s"}, 1}}
	with := func(f func(*Snapshot)) *Snapshot { s := born; f(&s); return &s }
	for _, c := range []struct {
		name string
		s    *Snapshot
		want string
	}{
		{"unborn", &Snapshot{}, "wait"},
		{"config only", &Snapshot{Config: born.Config}, "wait"},
		{"settling", with(func(s *Snapshot) { s.Settle.ModRevision = 5 }), "wait"},
		{"free", &born, "acquire"},
		{"own key, this boot", with(func(s *Snapshot) { s.Entries = own("me", "now", 4) }), "resume"},
		{"own key, this boot, settling", with(func(s *Snapshot) { s.Entries, s.Settle.ModRevision = own("me", "now", 4), 5 }), "wait"},
		{"own key, another boot, address here, settling", with(func(s *Snapshot) {
			s.Entries, s.Settle.ModRevision = own("me", "then", 4), 5
			s.Entries[0].PublicIP = netip.MustParseAddr("192.0.2.10")
		}), "wait"},
		{"own key, another boot", with(func(s *Snapshot) { s.Entries = own("me", "then", 4) }), "acquire"},
		{"own key, another boot, address here", with(func(s *Snapshot) {
			s.Entries = own("me", "then", 4)
			s.Entries[0].PublicIP = netip.MustParseAddr("192.0.2.10")
		}), "claim"},
		{"another's key, address here", with(func(s *Snapshot) {
			s.Entries = own("you", "then", 4)
			s.Entries[0].PublicIP = netip.MustParseAddr("192.0.2.10")
		}), "acquire"},
		{"remembered key, another's", with(func(s *Snapshot) { s.Entries = own("you", "now", 4) }), "acquire"},
		{"own key without a lease", with(func(s *Snapshot) { s.Entries = own("me", "now", 0) }), "acquire"},
	} {
		m := Memory{UID: "me", Held: &MemoryOfHolding{Subnet: sub.Key()}}
		me := self{Memory: m, node: "n1", boot: "now", local: here, flannel: no, running: func(string) bool { return false }}
		d := decide(c.s, me, good)
		got := "acquire"
		switch {
		case d.resume != nil:
			got = "resume"
		case d.claim != nil:
			got = "claim"
		case d.wait != "":
			got = "wait"
		}
		if got != c.want {
			t.Errorf("%s: %s (%+v), want %s", c.name, got, d, c.want)
		}
	}
	settling := with(func(s *Snapshot) { s.Entries, s.Settle.ModRevision = own("me", "now", 4), 5 })
	if d := decide(settling, self{Memory: Memory{UID: "me"}, boot: "now", open: true, local: here, flannel: no}, good); d.resume == nil {
		t.Error("the own key was not resumed under an open fence while settle stands")
	}
	// Nothing is inherited where nothing may be acquired.
	for name, c := range map[string]struct {
		s   *Snapshot
		err error
	}{
		"no config":  {with(func(s *Snapshot) { s.Config.ModRevision = 0 }), nil},
		"bad config": {with(func(*Snapshot) {}), errNotJudged},
		"no store":   {with(func(s *Snapshot) { s.Store.ModRevision = 0 }), nil},
		"settling":   {with(func(s *Snapshot) { s.Settle.ModRevision = 5 }), nil},
		"":           {with(func(*Snapshot) {}), nil},
	} {
		c.s.Entries = own("before", "then", 4)
		c.s.Entries[0].PublicIP = netip.MustParseAddr("192.0.2.10")
		me := self{Memory: Memory{UID: "me"}, node: "x", boot: "now", local: here, flannel: no, running: func(string) bool { return false }}
		if d := decide(c.s, me, func() (*conf.Network, error) { return &n, c.err }); (d.inherit != nil) != (name == "") {
			t.Errorf("%s: inherits %+v", name, d.inherit)
		}
	}
	// Of two own keys, the one that is remembered, wherever it stands.
	for _, last := range []string{"10.5.2.0-24", "10.5.3.0-24"} {
		two := with(func(s *Snapshot) {
			s.Entries = append(own("me", "now", 4), own("me", "now", 5)...)
			s.Entries[0].Subnets = Subnets{V4: netip.MustParsePrefix("10.5.2.0/24")}
		})
		me := self{Memory: Memory{UID: "me", Held: &MemoryOfHolding{Subnet: last}}, boot: "now", local: here, flannel: no}
		if d := decide(two, me, good); d.resume == nil || d.resume.Key() != last {
			t.Errorf("resumes %+v, remembered is %s", d.resume, last)
		}
	}
	if d := decide(&born, self{Memory: Memory{UID: "me"}, boot: "now", local: here, flannel: no}, func() (*conf.Network, error) { return nil, errNotJudged }); d.wait == "" {
		t.Error("a bad config was used to acquire")
	}
}

func TestMemorySurvivesAndIsNoClaim(t *testing.T) {
	dir := t.TempDir()
	f, err := OpenMemory(dir, "machine-1")
	if err != nil {
		t.Fatal(err)
	}
	uid := f.Get().UID
	again, err := OpenMemory(dir, "machine-1")
	if err != nil || again.Get().UID != uid {
		t.Fatalf("UID %q after reopening, want %q (%v)", again.Get().UID, uid, err)
	}
	m := again.Get()
	m.Held = &MemoryOfHolding{Subnet: "10.5.1.0-24", Lease: 4}
	if err := again.Save(m); err != nil {
		t.Fatal(err)
	}
	cloned, err := OpenMemory(dir, "machine-2")
	if err != nil || cloned.Get().UID == uid || cloned.Get().Held != nil {
		t.Errorf("a state directory copied to another machine kept its identity: %+v, %v", cloned.Get(), err)
	}
}
