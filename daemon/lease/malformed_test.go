package lease

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/tenure-cni/tenure/daemon/api"
)

// malformed are records that no node writes, by their key below subnets/: what is
// wrong with the value first, then what is wrong with the key.
func malformed() map[string]string {
	good := recordOf("bad", "192.0.2.77", 1)
	vtep := func(mac string) string {
		return fmt.Sprintf(`{"PublicIP":"192.0.2.77","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`, mac)
	}
	all := map[string]string{}
	for i, value := range []string{
		"", "{", "null", "[]", `"text"`, "7", "\x00\xff\xfe", `{"PublicIP":null}`, `{"PublicIP":7}`, `{"PublicIP":"192.0.2.256"}`,
		`{"PublicIP":"192.0.2.77/24"}`, `{"PublicIP":"0.0.0.0"}`, `{"PublicIP":"224.0.0.1"}`, `{"PublicIP":"127.0.0.1"}`, `{"PublicIP":"fe80::1%eth0"}`,
		vtep("not a MAC"), vtep("02:00:00:00:00:00:00:01"), vtep("ff:ff:ff:ff:ff:ff"), vtep(strings.Repeat("m", 100_000)),
		`{"PublicIP":"192.0.2.77","BackendData":{"VNI":"one"}}`, `{"PublicIP":"192.0.2.77","Tenure":{"Epoch":1e400}}`,
		`{"PublicIP":"192.0.2.77","Tenure":{"Node":"` + strings.Repeat("n", 300) + `"}}`, `{"PublicIP":"` + strings.Repeat("1", 100_000) + `"}`,
	} {
		all[fmt.Sprintf("10.5.%d.0-24", 128+i)] = value
	}
	for _, key := range []string{
		"", "x", "10.5.99.0", "10.5.99.1-24", "10.5.99.0-33", "10.5.99.0-24&", "10.5.99.0-24&10.5.98.0-24", "\x00\x01\x1b[2J", strings.Repeat("k", 2000),
		"10.5.97.0/24", "0.0.0.0-0&10.5.96.0-24", "0.0.0.0-0&FD00:5::-64", "10.5.95.0-24/more", "::ffff:10.5.94.0-120&x",
	} {
		all[key] = good
	}
	return all
}

// TestMalformedRecords: each is named in few words, and the subnet of each whose
// name can be read counts as taken. What has the key of a subnet in another form
// is not taken for its record.
func TestMalformedRecords(t *testing.T) {
	k := NewKeys(prefix)
	for key, value := range malformed() {
		m := newMirror(k)
		own := k.Subnet(v4("10.5.1.0/24"))
		m.put(clientv3KV(own, recordOf("n1", "192.0.2.11", 7), 10))
		m.put(clientv3KV(k.subnets()+key, value, 11))
		s := m.snapshot(11, 1)
		if len(s.Faults) != 1 || !utf8.ValidString(s.Faults[0]) || len(s.Faults[0]) > 320 || strings.ContainsAny(s.Faults[0], "\x00\x1b\n") {
			t.Errorf("%.40q: faults %.400q", key, s.Faults)
		}
		sub, err := ParseSubnets(key)
		if err != nil && len(s.Entries) != 1 {
			t.Errorf("%.40q: entries %v", key, s.Entries)
		}
		if e, there := s.Entry(sub); err == nil && (!there || !e.unread() || e.Tenure != nil) {
			t.Errorf("%.40q: its subnet %s is %t, %v", key, sub, there, e)
		}
		if e, there := s.Entry(v4("10.5.1.0/24")); !there || e.Tenant().Node != "n1" {
			t.Errorf("%.40q: the good record beside it is %t, %v", key, there, e)
		}
	}
}

// TestSubnetUnderASecondKey: whatever is written there, and whatever sorts first, the tenant's
// own key is the record.
func TestSubnetUnderASecondKey(t *testing.T) {
	h, e, held := holder(t)
	own, record := e.keys.Subnet(held.subnets), held.record
	record.PublicIP = netip.MustParseAddr("192.0.2.11")
	for _, key := range []string{"10.5.1.0/24", "0.0.0.0-0&10.5.1.0-24"} {
		for _, value := range []string{"x", recordOf("n2", "192.0.2.2", 9)} {
			m := newMirror(e.keys)
			m.put(&mvccpb.KeyValue{Key: []byte(e.keys.Store()), Value: []byte(`{"ID":"s"}`), ModRevision: 1})
			m.put(&mvccpb.KeyValue{Key: []byte(own), Value: []byte(record.encode()), Lease: 4, CreateRevision: 10, ModRevision: 10})
			m.put(clientv3KV(e.keys.subnets()+key, value, 11))
			s := m.snapshot(11, 7)
			e.observe(s)
			if v := e.View(); !v.Held || h.fence.Get().Closed != 0 {
				t.Errorf("%s with %q: held %t, fence closed %d times: %s", key, value, v.Held, h.fence.Get().Closed, v.LostWhy)
			}
			if _, there := s.Entry(held.subnets); !there || len(s.Faults) != 1 {
				t.Errorf("%s with %q: faults %v", key, value, s.Faults)
			}
		}
	}
}

// TestOwnerUnderASecondKey: owner and reservation of a subnet are what its own keys
// say, whatever stands beside them.
func TestOwnerUnderASecondKey(t *testing.T) {
	k := NewKeys(prefix)
	for _, name := range []string{"x/10.5.1.0-24", "10.5.1.0/24", "10.5.1.0-24/", "10.5.1.7-24", "", "10.5.1.0-24&fd00:5::-64"} {
		m := newMirror(k)
		m.put(clientv3KV(k.owners()+"10.5.1.0-24", `{"UID":"u1","Node":"n1","Epoch":7}`, 10))
		m.put(clientv3KV(k.reservations()+"10.5.1.0-24", `{"Node":"n1"}`, 10))
		m.put(clientv3KV(k.owners()+name, `{"UID":"u2","Node":"n2","Epoch":9}`, 11))
		m.put(clientv3KV(k.reservations()+name, `{"Node":"n2"}`, 11))
		s := m.snapshot(11, 1)
		if o, r := s.Owners["10.5.1.0-24"], s.Reservations["10.5.1.0-24"]; o.Value.UID != "u1" || r.Value.Node != "n1" {
			t.Errorf("%q: the owner is %v, the reservation is for %v", name, o, r)
		}
		if len(s.Owners) != 1 || len(s.Reservations) != 1 || len(s.Faults) != 2 {
			t.Errorf("%q: owners %v, reservations %v, faults %q", name, s.Owners, s.Reservations, s.Faults)
		}
	}
}

// TestNobodyIsHeldUpByMalformedRecords: with all of them in etcd at once a node finds a
// free subnet, also where one lies outside of the network, and says what is wrong
// in a text of bounded length.
func TestNobodyIsHeldUpByMalformedRecords(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, sixteenBits)
	k := NewKeys(prefix)
	for key, value := range malformed() {
		mustPut(t, c, k.subnets()+key, value)
	}
	mustPut(t, c, k.subnets()+"172.16.0.0-20", "unreadable, and not of this network")
	v := newHost(t, "n1", s.Endpoint).start().waitHeld()
	if e, there := v.Snapshot.Entry(v.Holding.Subnets()); !there || e.unread() {
		t.Errorf("holds %s, which is %v", v.Holding.Subnets(), e)
	}
	for _, entry := range v.Snapshot.Entries {
		if entry.Lease != v.Holding.LeaseID() && entry.Overlaps(v.Holding.Subnets()) {
			t.Errorf("holds %s, and there is %s", v.Holding.Subnets(), entry)
		}
	}
	bounded(t, v.Problems)
}

func bounded(t *testing.T, problems []api.Problem) {
	t.Helper()
	found := false
	for _, p := range problems {
		if len(p.Text) > 2500 {
			t.Errorf("%s is told in %d bytes: %.300s…", p.Code, len(p.Text), p.Text)
		}
		found = found || p.Code == "bad-record" && strings.Contains(p.Text, " more")
	}
	if !found {
		t.Errorf("problems %v", problems)
	}
}
