package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/etcdtest"
)

// listed is a snapshot of values as they stand in etcd: keys below the prefix,
// subnets/… on the lease that is their number.
func listed(config string, kvs ...string) *Snapshot {
	k := NewKeys(prefix)
	s := &Snapshot{Revision: 50, Listed: true, Owners: map[string]Versioned[Owner]{}, Reservations: map[string]Versioned[Reservation]{},
		Config: Versioned[[]byte]{[]byte(config), 3}, Store: Versioned[Store]{Store{ID: "store"}, 3}}
	m := newMirror(k)
	for i := 0; i < len(kvs); i += 2 {
		kv := clientv3KV(k.All()+kvs[i], kvs[i+1], int64(10+i/2))
		m.put(kv)
	}
	got := m.snapshot(50, 1)
	s.Entries, s.Owners, s.Reservations, s.Faults = got.Entries, got.Owners, got.Reservations, got.Faults
	return s
}

func recordOf(node, address string, epoch int) string {
	uid := "uid-" + node
	if node == "" {
		uid = ""
	}
	return fmt.Sprintf(`{"PublicIP":%q,"Tenure":{"Node":%q,"UID":%q,"Boot":"b","Epoch":%d}}`, address, node, uid, epoch)
}

func ownerOf(node string, epoch int) string {
	return fmt.Sprintf(`{"UID":"uid-%s","Node":%q,"Epoch":%d,"Since":"2026-11-30T00:00:00Z","Why":"never owned"}`, node, node, epoch)
}

// TestRecordsOfIPv6 are told apart and judged by the addresses they have, not by
// the one they lack.
func TestRecordsOfIPv6(t *testing.T) {
	six := func(node, four, address string) string {
		return fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":%q,"Tenure":{"Node":%q,"UID":"uid-%s","Boot":"b","Epoch":7}}`, four, address, node, node)
	}
	s := listed(`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`,
		"subnets/0.0.0.0-0&fd00:5:0:1::-64", six("n1", "0.0.0.0", "2001:db8::1"), "tenure/owners/fd00:5:0:1::-64", ownerOf("n1", 7),
		"subnets/0.0.0.0-0&fd00:5:0:2::-64", six("n2", "0.0.0.0", "2001:db8::2"), "tenure/owners/fd00:5:0:2::-64", ownerOf("n2", 7),
		"subnets/10.5.3.0-24&fd00:5:0:3::-64", six("n3", "192.0.2.3", "2001:db8::2"), "tenure/owners/10.5.3.0-24", ownerOf("n3", 7))
	odd := oddRecords(s)
	for i, want := range []string{"", "2001:db8::2 is announced with 10.5.3.0/24 & fd00:5:0:3::/64 too", "2001:db8::2 is announced with fd00:5:0:2::/64 too"} {
		if got := strings.Join(odd[i], "; "); got != want {
			t.Errorf("of %s: %q, want %q", s.Entries[i].Subnets, got, want)
		}
	}
	var addresses []string
	for _, n := range addressesOf(s) {
		addresses = append(addresses, n.Prefix.String()+" "+n.What)
	}
	want := []string{`2001:db8::1/128 node "n1" at 2001:db8::1`, `2001:db8::2/128 node "n2" at 2001:db8::2`,
		`192.0.2.3/32 node "n3" at 192.0.2.3`, `2001:db8::2/128 node "n3" at 192.0.2.3`}
	if diff := cmp.Diff(want, addresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if e := Effect(s, []byte(`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"2001:db8::/32"}`), nil); !strings.Contains(strings.Join(e.Faults, "\n"), "2001:db8::/32 overlaps 2001:db8::1/128 of node") {
		t.Errorf("a network that covers the nodes' addresses: %q", e.Faults)
	}
}

// TestClusterLeases: every record once, in order of address, and what is odd in
// words.
func TestClusterLeases(t *testing.T) {
	s := listed(`{"Network":"10.5.0.0/16"}`,
		"subnets/10.5.10.0-24", recordOf("n1", "192.0.2.1", 7), "tenure/owners/10.5.10.0-24", ownerOf("n1", 7), // lease 10
		"subnets/10.5.9.0-24", recordOf("n2", "192.0.2.2", 8), "tenure/owners/10.5.9.0-24", ownerOf("n9", 9), // 12
		"subnets/10.5.11.0-24", `{"PublicIP":"192.0.2.3"}`, // 14
		"subnets/10.5.12.0-24", `{"PublicIP":"192.0.2.4","Tenure":{"Node":"n4","UID":"","Boot":"","Epoch":3}}`, // 15
		"subnets/10.6.1.0-24", recordOf("n5", "192.0.2.1", 5), "tenure/owners/10.6.1.0-24", ownerOf("n5", 5), // 16
		"tenure/reservations/10.5.10.0-24", `{"Node":"n8"}`,
		"subnets/10.5.10.128-25", recordOf("n1", "192.0.2.6", 4), "tenure/owners/10.5.10.128-25", ownerOf("n1", 4), // 19
	)
	day := 24 * time.Hour
	times := Times{10: {8 * time.Second, day}, 12: {2 * time.Hour, day}, 16: {}}
	all := ClusterLeases(s, prefix, times, "uid-n1")
	type row struct {
		Subnet, Node string
		State        api.SubnetState
		Mine         bool
		Odd          string
	}
	var got []row
	for _, l := range all.Leases {
		got = append(got, row{l.Subnet, l.Node, l.State, l.Mine, strings.Join(l.Odd, "; ")})
	}
	want := []row{
		{"10.5.9.0/24", "n2", "dying", false, "its owner record says n9, epoch 9; silent: not renewed for 2h0m0s, where every 30s is usual; free in 22h0m0s if it stays so"},
		{"10.5.10.0/24", "n1", "held", true, "reserved for n8, once this node has gone; node n1 has 10.5.10.128/25 too; 192.0.2.1 is announced with 10.6.1.0/24 too; overlaps 10.5.10.128/25 of node \"n1\" at 192.0.2.6"},
		{"10.5.10.128/25", "n1", "held", true, "node n1 has 10.5.10.0/24 too; overlaps 10.5.10.0/24 of node \"n1\" at 192.0.2.1; the network config has no place for it: SubnetLen: /24 differs from the held subnet 10.5.10.128/25"},
		{"10.5.11.0/24", "", "held", false, "flannel's: such a node is neither fenced nor stopped"},
		{"10.5.12.0/24", "n4", "released", false, "taken from the node by force: nobody's until its lease ends"},
		{"10.6.1.0/24", "n5", "dying", false, "192.0.2.1 is announced with 10.5.10.0/24 too; its lease has ended: the record goes in a moment; the network config has no place for it: Network: 10.5.0.0/16 does not contain the held subnet 10.6.1.0/24"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("leases (-want +got):\n%s", diff)
	}
	if l := all.Leases[1]; *l.RemainingSeconds != 86392 || *l.LastHeardSecondsAgo != 8 || *l.TTLSeconds != 86400 || l.Lease != "a" {
		t.Errorf("times are %d, %d, %d of lease %s", *l.RemainingSeconds, *l.LastHeardSecondsAgo, *l.TTLSeconds, l.Lease)
	}
	if l := all.Leases[3]; l.RemainingSeconds != nil {
		t.Errorf("a lease that was not asked about has %d s left", *l.RemainingSeconds)
	}
	if got, want := codesOf(all.Problems), "duplicate-node overlapping-subnets"; got != want {
		t.Errorf("problems %s, want %s", got, want)
	}
}

func codesOf(all []api.Problem) string {
	var codes []string
	for _, p := range all {
		codes = append(codes, p.Code)
	}
	return strings.Join(codes, " ")
}

// TestClusterProblems: what etcd alone shows.
func TestClusterProblems(t *testing.T) {
	for want, change := range map[string]func(*Snapshot){
		"":                func(*Snapshot) {},
		"waiting":         func(s *Snapshot) { s.Config.ModRevision, s.Store.ModRevision = 0, 0 },
		"store-missing":   func(s *Snapshot) { s.Store.ModRevision = 0 },
		"config-missing":  func(s *Snapshot) { s.Config.ModRevision = 0 },
		"config-refused":  func(s *Snapshot) { s.Config.Value = []byte(`{"Network":"10.5.0.1/16"}`) },
		"store-went-back": func(s *Snapshot) { s.Settle.ModRevision = 9 },
	} {
		s := listed(`{"Network":"10.5.0.0/16"}`)
		change(s)
		if got := codesOf(ClusterLeases(s, prefix, nil, "").Problems); got != want {
			t.Errorf("problems %q, want %q", got, want)
		}
	}
}

// TestNewMap: every subnet is counted once, whatever lies over it.
func TestNewMap(t *testing.T) {
	s := listed("",
		"subnets/10.5.4.0-24", recordOf("n1", "192.0.2.1", 7), // lease 10
		"subnets/10.5.5.0-24", recordOf("n2", "192.0.2.2", 7), // 11
		"subnets/10.5.7.0-24", `{"PublicIP":"192.0.2.4","Tenure":{"Node":"n4","UID":"","Boot":"","Epoch":3}}`,
		"subnets/10.5.8.0-22", `{"PublicIP":"192.0.2.3"}`, // four
		"subnets/10.5.9.128-25", recordOf("n1", "192.0.2.1", 3), // inside of it
		"subnets/10.5.0.0-23", recordOf("n5", "192.0.2.5", 3), // half of it before the first
		"subnets/10.9.0.0-24", recordOf("n6", "192.0.2.6", 3),
		"tenure/reservations/10.5.4.0-24", `{"Node":"n8"}`,
		"tenure/reservations/10.5.3.0-24", `{"Node":"n8"}`,
		"tenure/reservations/10.5.10.0-24", `{"Node":"n8"}`,
		"tenure/reservations/10.5.200.0-24", `{"Node":"n8"}`,
	)
	n, _, err := conf.ParseNetwork([]byte(`{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.16.0"}`))
	if err != nil {
		t.Fatal(err)
	}
	m := NewMap(n, s, Times{11: {time.Hour, 24 * time.Hour}}, "uid-n1")
	wantRuns := []Run{
		{0, 1, "held", false}, {2, 1, "reserved", false}, {3, 1, "held", true}, {4, 1, "dying", false},
		{6, 1, "released", false}, {7, 1, "held", false}, {8, 1, "held", true}, {9, 1, "held", false}, {10, 1, "held", false},
	}
	var got []Run
	for _, r := range m.Runs { // how held ones are cut is nobody's affair
		for i := range r.Count {
			got = append(got, Run{r.From + i, 1, r.State, r.Mine})
		}
	}
	if diff := cmp.Diff(wantRuns, got); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
	want := api.SubnetCounts{Total: 16, Held: 6, Dying: 2, Reserved: 1, Free: 7, Mine: 2, Outside: 2}
	if m.Counts != want {
		t.Errorf("counts %+v, want %+v", m.Counts, want)
	}
	if m.First != "10.5.1.0/24" || m.Last != "10.5.16.0/24" {
		t.Errorf("from %s to %s", m.First, m.Last)
	}
	var texts []string
	for _, u := range m.Subnets {
		texts = append(texts, fmt.Sprintf("%s %s %s %s", u.Subnet, u.State, u.Node, u.ReservedFor))
	}
	if len(texts) != 10 {
		t.Errorf("%d subnets are listed, want each of 10 once: %q", len(texts), texts)
	}
	for _, want := range []string{"10.5.3.0/24 reserved  n8", "10.5.4.0/24 held n1 n8", "10.5.5.0/24 dying n2 ", "10.9.0.0/24 held n6 "} {
		if !slices.Contains(texts, want) {
			t.Errorf("no %q in %q", want, texts)
		}
	}
}

// TestHistory: times and ends as the owners' records and the keys tell them.
func TestHistory(t *testing.T) {
	at := func(h int) time.Time { return time.Date(2026, 11, 30, h, 0, 0, 0, time.UTC) }
	owner := func(last Transition, past ...Transition) string { return encode(Owner{last, past}) }
	s := listed("",
		"subnets/10.5.1.0-24", recordOf("n2", "192.0.2.2", 9),
		"tenure/owners/10.5.1.0-24", owner(Transition{UID: "uid-n2", Node: "n2", Epoch: 9, Since: at(5), Why: "free again"},
			Transition{UID: "uid-n1", Node: "n1", Epoch: 7, Since: at(1), Why: "never owned"},
			Transition{UID: "uid-n3", Node: "n3", Epoch: 8, Since: at(3), Until: at(4), Why: "given up"}),
		"tenure/owners/10.5.2.0-24", owner(Transition{UID: "uid-n1", Node: "n1", Epoch: 2, Since: at(2), Why: "never owned"}),
		"subnets/10.5.3.0-24", `{"PublicIP":"192.0.2.4","Tenure":{"Node":"n4","UID":"","Boot":"","Epoch":3}}`,
		"tenure/owners/10.5.3.0-24", owner(Transition{UID: "uid-n4", Node: "n4", Epoch: 3, Since: at(6), Until: at(7), Why: "released by force"}),
		"subnets/10.5.4.0-24", `{"PublicIP":"192.0.2.9"}`,
	)
	text := func(of string) []string {
		var all []string
		for _, h := range History(s, ParseOf(of)) {
			until := "-"
			switch {
			case h.Until != nil:
				until = h.Until.Format("15h")
			case h.EndedBefore != nil:
				until = "<" + h.EndedBefore.Format("15h")
			}
			all = append(all, fmt.Sprintf("%s %s %d %s %s", h.Subnet, h.Node, h.Epoch, h.State, until))
		}
		return all
	}
	one := []string{"10.5.1.0/24 n1 7 ended <03h", "10.5.1.0/24 n3 8 ended 04h", "10.5.1.0/24 n2 9 held -"}
	n1 := []string{"10.5.1.0/24 n1 7 ended <03h", "10.5.2.0/24 n1 2 ended -"}
	for of, want := range map[string][]string{
		"10.5.1.0/24": one, "10.5.1.0-24": one, "10.5.1.77": one, "n1": n1, "uid-n1": n1,
		"10.5.3.0/24": {"10.5.3.0/24 n4 3 released 07h"}, "10.5.2.0/23": {"10.5.2.0/24 n1 2 ended -", "10.5.3.0/24 n4 3 released 07h"},
		"10.5.4.0/24": {"10.5.4.0/24  0 held -"}, "n7": nil, "10.6.0.0/16": nil,
	} {
		if diff := cmp.Diff(want, text(of)); diff != "" {
			t.Errorf("history of %s (-want +got):\n%s", of, diff)
		}
	}
	if n := len(text("")); n != 6 {
		t.Errorf("the history of everything has %d rows, want 6", n)
	}
}

// TestEffect: what a config would do, before anybody obeys it.
func TestEffect(t *testing.T) {
	s := listed(`{"Network":"10.5.0.0/22","SubnetMin":"10.5.1.0"}`,
		"subnets/10.5.1.0-24", recordOf("n1", "192.0.2.1", 7), "subnets/10.5.3.0-24", recordOf("n2", "192.0.2.2", 7),
		"tenure/reservations/10.5.2.0-24", `{"Node":"n8"}`)
	for name, c := range map[string]struct {
		next          string
		refused       bool
		says          string
		before, after string
	}{
		"the same":        {`{"Network":"10.5.0.0/22","SubnetMin":"10.5.1.0"}`, false, "", "3/0", "3/0"},
		"wider":           {`{"Network":"10.0.0.0/8"}`, false, "Network: 10.5.0.0/22 → 10.0.0.0/8", "3/0", "65536/65533"},
		"a shorter lease": {`{"Network":"10.5.0.0/22","LeaseTTL":"1h"}`, false, "each of 2 holders moves to a lease of 1h0m0s at its next renewal, within about 30s", "3/0", "4/1"},
		"bounds":          {`{"Network":"10.5.0.0/22","SubnetMax":"10.5.2.0"}`, false, "1 held subnets are not from 10.5.0.0/24 to 10.5.2.0/24", "3/0", "3/1"},
		"a reservation":   {`{"Network":"10.5.0.0/22","SubnetMin":"10.5.3.0"}`, false, "the reservation of 10.5.2.0-24 for n8 does not count", "3/0", "1/0"},
		"another MTU":     {`{"Network":"10.5.0.0/22","Backend":{"Type":"vxlan","MTU":1400}}`, false, "pods that run keep theirs", "3/0", "4/1"},
		"another VNI":     {`{"Network":"10.5.0.0/22","Backend":{"Type":"vxlan","VNI":7}}`, false, "Backend.VNI: 1 → 7", "3/0", "4/1"},
		"orphans":         {`{"Network":"10.5.0.0/23","SubnetLen":24}`, true, "10.5.3.0/24 n2 Network: 10.5.0.0/23 does not contain", "3/0", "2/1"},
		"another length":  {`{"Network":"10.5.0.0/22","SubnetLen":25}`, true, "SubnetLen: /25 differs", "3/0", "8/2"},
		"the underlay":    {`{"Network":"192.0.2.0/24"}`, true, `overlaps 192.0.2.1/32 of node "n1"`, "3/0", "4/4"},
		"etcd":            {`{"Network":"198.51.100.0/24"}`, true, "of etcd endpoint", "3/0", "4/4"},
		"host bits":       {`{"Network":"10.5.0.1/22"}`, true, "host bits", "3/0", ""},
		"no JSON":         {`nonsense`, true, "JSON", "3/0", ""},
		"plain routes":    {`{"Network":"10.5.0.0/22","Backend":{"Type":"host-gw"}}`, false, "another link are not reached any more", "3/0", "4/1"},
		"some plain":      {`{"Network":"10.5.0.0/22","Backend":{"DirectRouting":true}}`, false, "the overlay stays for the others", "3/0", "4/1"},
	} {
		t.Run(name, func(t *testing.T) {
			e := Effect(s, []byte(c.next), []conf.Named{{Prefix: netip.MustParsePrefix("198.51.100.9/32"), What: "etcd endpoint http://198.51.100.9:2379"}})
			if e.Refused() != c.refused {
				t.Errorf("refused: %t, want %t", e.Refused(), c.refused)
			}
			all := slices.Concat(e.Changes, e.Faults, e.Warnings, e.Notes)
			for _, o := range e.Orphaned {
				all = append(all, o.Subnet+" "+o.Node+" "+o.Why)
			}
			if text := strings.Join(all, "\n"); !strings.Contains(text, c.says) || (c.says == "") != (text == "") {
				t.Errorf("says\n%s\nwant %q in it", text, c.says)
			}
			if got := freeOfAll(e.Before); got != c.before {
				t.Errorf("before %s, want %s", got, c.before)
			}
			if got := freeOfAll(e.After); got != c.after {
				t.Errorf("after %s, want %s", got, c.after)
			}
		})
	}
}

func freeOfAll(c *api.SubnetCounts) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%d/%d", c.Total, c.Free)
}

// TestReserving: whom a reservation may be made against.
func TestReserving(t *testing.T) {
	s := listed(`{"Network":"10.5.0.0/22"}`,
		"subnets/10.5.1.0-24", recordOf("n1", "192.0.2.1", 7),
		"subnets/10.5.2.0-24", `{"PublicIP":"192.0.2.4","Tenure":{"Node":"n4","UID":"","Boot":"","Epoch":3}}`,
		"tenure/reservations/10.5.3.0-24", `{"Node":"n8"}`)
	for name, c := range map[string]struct {
		what, node string
		later      bool
		err        error
		changed    bool
		says       string
	}{
		"free":             {"10.5.0.0/24", "n2", false, nil, true, "no node n2 holds a subnet now"},
		"as its key":       {"10.5.0.0-24", "n2", false, nil, true, "no node n2"},
		"for who has one":  {"10.5.0.0/24", "n1", false, nil, true, "n1 holds 10.5.1.0/24 and keeps it"},
		"its own":          {"10.5.1.0/24", "n1", false, nil, true, "n1 holds it"},
		"another's":        {"10.5.1.0/24", "n2", false, ErrHeldByAnother, true, ""},
		"another's, later": {"10.5.1.0/24", "n2", true, nil, true, "if it loses it, only n2 can have it"},
		"a tombstone":      {"10.5.2.0/24", "n2", false, nil, true, "taken from n4 by force"},
		"reserved":         {"10.5.3.0/24", "n2", true, ErrReserved, false, ""},
		"reserved for it":  {"10.5.3.0/24", "n8", false, nil, false, ""},
		"another length":   {"10.5.1.0/25", "n2", false, ErrNoSuchSubnet, false, ""},
		"outside":          {"10.6.1.0/24", "n2", false, ErrNoSuchSubnet, false, ""},
		"host bits":        {"10.5.1.7/24", "n2", false, ErrNoSuchSubnet, false, ""},
		"no subnet":        {"n1", "n2", false, ErrNoSuchSubnet, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, r, err := reserving(s, c.what, c.node, c.later)
			if !errors.Is(err, c.err) || err == nil && r.Changed != c.changed {
				t.Errorf("changed %t, %v; want %t, %v", r.Changed, err, c.changed, c.err)
			}
			if text := strings.Join(r.Notes, "\n"); !strings.Contains(text, c.says) {
				t.Errorf("notes %q, want %q in them", text, c.says)
			}
		})
	}
	s.Config.ModRevision = 0
	if _, _, err := reserving(s, "10.5.0.0/24", "n2", false); !errors.Is(err, ErrNotBorn) {
		t.Errorf("without a config: %v", err)
	}
}

// TestReserveAndConfigureCompare: whatever changes between look and write makes
// the write fail, or be built anew from what is there now.
func TestReserveAndConfigureCompare(t *testing.T) {
	_, c := cluster(t, fourSubnets)
	k, ctx := NewKeys(prefix), t.Context()
	sub := v4("10.5.1.0/24")
	writes := map[string]func(*Snapshot) fenced{
		"config":  func(s *Snapshot) fenced { return configure(k, s, []byte(fourSubnets)) },
		"reserve": func(s *Snapshot) fenced { return keepFor(k, sub, s, Reservation{"n1"}) },
	}
	changes := map[string]struct {
		key  string
		hurt []string
	}{
		"the config":      {k.Config(), []string{"config", "reserve"}},
		"the store":       {k.Store(), []string{"config"}},
		"the subnet":      {k.Subnet(sub), []string{"config", "reserve"}},
		"another subnet":  {k.Subnet(v4("10.5.2.0/24")), []string{"config"}},
		"the reservation": {k.Reservation(sub), []string{"reserve"}},
		"nothing of it":   {k.All() + "noise", nil},
	}
	for what, change := range changes {
		for name, build := range writes {
			s, err := List(ctx, c, prefix)
			if err != nil {
				t.Fatal(err)
			}
			value := anyRecord
			switch what {
			case "the config":
				value = fourSubnets
			case "the store":
				value = `{"ID":"x"}`
			}
			put(t, c, change.key, value)
			resp, err := commit(ctx, c, build(s), maxCall)
			if err != nil {
				t.Fatal(err)
			}
			if want := !slices.Contains(change.hurt, name); resp.Succeeded != want {
				t.Errorf("%s, after %s changed: written %t, want %t", name, what, resp.Succeeded, want)
			}
		}
	}
}

// TestReserve writes and deletes reservations in a real store, and leaves what
// is not as it was thought to be.
func TestReserve(t *testing.T) {
	_, c := cluster(t, fourSubnets)
	ctx := t.Context()
	put(t, c, NewKeys(prefix).Subnet(v4("10.5.1.0/24")), recordOf("n1", "192.0.2.1", 7))
	if r, err := Reserve(ctx, c, prefix, "10.5.0.0/24", "n2", false); err != nil || !r.Changed {
		t.Errorf("reserve: %+v, %v", r, err)
	}
	if kv := etcdtest.Get(t, c, NewKeys(prefix).Reservation(v4("10.5.0.0/24"))).Kvs; len(kv) != 1 || string(kv[0].Value) != `{"Node":"n2"}` {
		t.Errorf("the reservation is %v", kv)
	}
	if r, err := Reserve(ctx, c, prefix, "10.5.0.0/24", "n2", false); err != nil || r.Changed {
		t.Errorf("again: %+v, %v", r, err)
	}
	if _, err := Reserve(ctx, c, prefix, "10.5.0.0/24", "n3", true); !errors.Is(err, ErrReserved) {
		t.Errorf("for another: %v", err)
	}
	if _, err := Reserve(ctx, c, prefix, "10.5.1.0/24", "n3", false); !errors.Is(err, ErrHeldByAnother) {
		t.Errorf("what n1 holds: %v", err)
	}
	if r, err := Unreserve(ctx, c, prefix, "10.5.0.0/24"); err != nil || r.Node != "n2" {
		t.Errorf("unreserve: %+v, %v", r, err)
	}
	if _, err := Unreserve(ctx, c, prefix, "10.5.0.0/24"); !errors.Is(err, ErrNotReserved) {
		t.Errorf("again: %v", err)
	}
}

// TestAskTimes asks for thousands of leases in a moment, and says what it knows
// where time ends.
func TestAskTimes(t *testing.T) {
	_, c := cluster(t, fourSubnets)
	ctx := t.Context()
	l, err := c.Grant(ctx, 3600)
	if err != nil {
		t.Fatal(err)
	}
	s := listed("", "subnets/10.5.1.0-24", anyRecord, "subnets/10.5.2.0-24", anyRecord, "subnets/10.5.3.0-24", anyRecord)
	s.Entries[0].Lease, s.Entries[1].Lease, s.Entries[2].Lease = l.ID, 4711, 0
	times, err := AskTimes(ctx, c, s)
	if err != nil || len(times) != 2 || !times[l.ID].lives() || times[l.ID].granted != time.Hour || times[4711].lives() {
		t.Errorf("times %v, %v", times, err)
	}
	for range 5000 {
		s.Entries = append(s.Entries, s.Entries[0])
	}
	began := time.Now()
	if _, err = AskTimes(ctx, c, s); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("5000 leases took %s", d)
	} else {
		t.Logf("5000 leases took %s", d)
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	if times, err = AskTimes(short, c, s); err == nil || times == nil {
		t.Errorf("with no time: %v, %v", times, err)
	}
}

// TestFollow: what happens is told as it happens: an acquire, a lapse, an end in
// good order, each once.
func TestFollow(t *testing.T) {
	_, c := cluster(t, fourSubnets)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	k, sub := NewKeys(prefix), v4("10.5.1.0/24")
	told := make(chan api.Tenancy, 100)
	done := make(chan error, 1)
	began := make(chan struct{}, 100)
	go func() {
		var old []api.Tenancy
		done <- Follow(ctx, c, prefix, slog.New(slog.DiscardHandler), func(s *Snapshot) error {
			now := History(s, ParseOf("10.5.1.0/24"))
			for _, h := range Changed(old, now) {
				told <- h
			}
			old = now
			began <- struct{}{}
			return nil
		})
	}()
	<-began
	next := func(want string) {
		t.Helper()
		select {
		case h := <-told:
			if got := fmt.Sprintf("%s %d %s %t", h.Node, h.Epoch, h.State, h.Until != nil); got != want {
				t.Errorf("told %q, want %q", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("waited in vain for %q", want)
		}
	}
	both := func(node string, epoch int) {
		t.Helper()
		if _, err := c.Txn(ctx).Then(clientv3.OpPut(k.Subnet(sub), recordOf(node, "192.0.2.1", epoch)), clientv3.OpPut(k.Owner(sub), ownerOf(node, epoch))).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	both("n1", 7)
	next("n1 7 held false")
	if _, err := c.Delete(ctx, k.Subnet(sub)); err != nil {
		t.Fatal(err)
	}
	next("n1 7 ended false")
	both("n2", 8)
	next("n2 8 held false")
	var o Owner
	if err := json.Unmarshal([]byte(ownerOf("n2", 8)), &o); err != nil {
		t.Fatal(err)
	}
	o.Until, o.Why = time.Now(), "given up"
	if _, err := c.Txn(ctx).Then(clientv3.OpDelete(k.Subnet(sub)), clientv3.OpPut(k.Owner(sub), encode(o))).Commit(); err != nil {
		t.Fatal(err)
	}
	next("n2 8 ended true")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the end: %v", err)
	}
	if len(told) != 0 {
		t.Errorf("told once more: %+v", <-told)
	}
}

// clientv3KV is a key on the lease that is its revision.
func clientv3KV(key, value string, revision int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), Lease: revision, CreateRevision: revision, ModRevision: revision}
}
