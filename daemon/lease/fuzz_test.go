package lease

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// oneFault is what a snapshot may say of one key.
func oneFault(t *testing.T, text string) {
	t.Helper()
	if len(text) > 320 || !utf8.ValidString(text) || strings.ContainsAny(text, "\x00\x1b\n\r") {
		t.Errorf("a fault of %d bytes: %.400q", len(text), text)
	}
}

// FuzzDecodeRecord: what is accepted is the same once written and read again.
func FuzzDecodeRecord(f *testing.F) {
	for _, value := range malformed() {
		f.Add([]byte(value[:min(len(value), 300)]))
	}
	f.Add([]byte(recordOf("n1", "192.0.2.1", 7)))
	f.Add([]byte(`{"PublicIP":"192.0.2.2","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"5e:c8:1d:1c:6c:1f"}}`))
	f.Add([]byte(`{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::1","BackendType":"host-gw","Tenure":{"Node":"n","UID":"u","Boot":"b","Epoch":-1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRecord(b)
		if err != nil {
			return
		}
		again, err := DecodeRecord([]byte(r.encode()))
		if err != nil || !again.same(r) {
			t.Errorf("%q is %q, and that is %q (%v)", b, r.encode(), again.encode(), err)
		}
	})
}

// FuzzParseSubnets: a key that can be read names a subnet, which counts as taken
// whatever else is wrong with it.
func FuzzParseSubnets(f *testing.F) {
	for key := range malformed() {
		f.Add(key)
	}
	f.Add("10.5.34.0-24&fd00:5:0:22::-64")
	k := NewKeys(prefix)
	f.Fuzz(func(t *testing.T, name string) {
		sub, err := ParseSubnets(name)
		if err == nil {
			if again, err := ParseSubnets(sub.Key()); err != nil || again != sub || sub.IsZero() {
				t.Errorf("%q is %s, whose key %q is %s (%v)", name, sub, sub.Key(), again, err)
			}
		}
		m := newMirror(k)
		m.put(clientv3KV(k.subnets()+name, recordOf("n2", "192.0.2.2", 1), 3))
		s := m.snapshot(3, 1)
		if e, there := s.Entry(sub); err == nil && (!there || e.unread() != (len(s.Faults) == 1)) {
			t.Errorf("%q is there %t, with faults %q", name, there, s.Faults)
		}
		for _, fault := range s.Faults {
			oneFault(t, fault)
		}
	})
}

// sameAgain: a value that is accepted and can be written is the same once written
// and read again. It returns what is written.
func sameAgain[T any](t *testing.T, what string, b []byte) string {
	v, err := decode[T](what, b)
	if err != nil {
		return ""
	}
	text := encode(v)
	again, err := decode[T](what, []byte(text))
	if text != "" && (err != nil || encode(again) != text) {
		t.Errorf("%s %q is %q, and that is %q (%v)", what, b, text, encode(again), err)
	}
	return text
}

// FuzzDecodeValues: the values beside the records.
func FuzzDecodeValues(f *testing.F) {
	for _, seed := range []string{
		`{"UID":"u2","Node":"n2","Epoch":1790000000,"Since":"2026-08-01T10:00:00Z","Why":"acquired","History":[{"UID":"u1","Node":"n1","Epoch":1780000000,"Since":"2026-07-01T10:00:00.5+02:00","Until":"2026-08-01T09:59:00Z","Why":"released"}]}`,
		`{"Node":"n1"}`, `{"ID":"7d1c2c54-9c4a-4e0c-8d1e-0a8f3f5c9f10","Born":"2026-07-01T10:00:00Z"}`, `{"Node":"n1","Since":"2026-07-01T10:00:00Z","Why":"the store went back"}`,
		"", "null", "{}", "[]", `{"Epoch":1e400}`, `{"Since":"9999-12-31T23:59:59-23:59"}`, `{"Since":"0000-01-01T00:00:00Z"}`, `{"ID":7}`, `{"ID":"a"} {"ID":"b"}`, "{", `{"ID":"a"`,
	} {
		f.Add([]byte(seed))
	}
	k := NewKeys(prefix)
	f.Fuzz(func(t *testing.T, b []byte) {
		sameAgain[Owner](t, "owner", b)
		sameAgain[Reservation](t, "reservation", b)
		sameAgain[Store](t, "store", b)
		sameAgain[Settle](t, "settle", b)
		m := newMirror(k)
		m.put(clientv3KV(k.owners()+"10.5.1.0-24", string(b), 3))
		o := m.snapshot(3, 1).Owners["10.5.1.0-24"].Value
		next := o.succeed(Transition{UID: "next", Epoch: o.Epoch})
		if sameAgain[Owner](t, "owner", []byte(encode(next))) == "" || len(next.History) > max(keptTransitions, len(o.History)) {
			t.Errorf("%q is succeeded by %q", b, encode(next))
		}
	})
}

// FuzzMemory: node.json is accepted and the same once written and read again, or it is
// set aside, whole, and the node has another UID.
func FuzzMemory(f *testing.F) {
	for _, seed := range []string{
		`{"version":1,"uid":"0b2f9f5e-8f7e-4a53-9a0c-b1c6f7d0e1a2","productUUID":"m1","boot":"b 4026531840","held":{"subnet":"10.5.1.0-24","lease":7587890123456789,"createRevision":12,"modRevision":34,"ttlSeconds":86400,"record":` +
			recordOf("n1", "192.0.2.1", 7) + `,"past":[{"UID":"u0","Node":"n0","Epoch":5,"Since":"2026-07-01T10:00:00Z","Why":"acquired"}]},"former":["10.5.7.0-24","x"],"moving":{"lease":7,"ttlSeconds":30},"dead":[1,2],"store":"s","had":"s","clusterID":18446744073709551615,"revision":9,"config":{"Network":"10.5.0.0/16"},"networks":["10.6.0.0/16"]}`,
		"", "{}", "null", `{"uid":""}`, `{"uid":"u","version":2}`, `{"uid":"u","held":{}}`, `{"uid":"u","held":{"subnet":"10.5.1.0-24","lease":0,"record":{}}}`, `{"uid":"u","config":null}`,
		`{"uid":"u","held":{"past":[{"Since":"2026-07-01T10:00:00+24:00"}]}}`, `{"uid":"u","config":"x","networks":["",null]}`, `{"uid":"u","dead":[-1]}`, `{"uid":`, `{"uid":"u"}{}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "node.json")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		file := &MemoryFile{path: path}
		err := file.load(b)
		left := path
		if file.SetAside != "" {
			left = file.SetAside
		}
		if now, _ := os.ReadFile(left); string(now) != string(b) {
			t.Errorf("%q is %q after it was read (%v)", b, now, err)
		}
		m := file.Get()
		if err != nil || file.SetAside != "" {
			if m.UID != "" {
				t.Errorf("%q is damaged or of later (%v), and gives %+v", b, err, m)
			}
			return
		}
		m.Before()
		m.Last()
		text, err := m.encode()
		if err != nil || m.UID == "" {
			t.Fatalf("%q is %+v (%v)", b, m, err)
		}
		again := &MemoryFile{path: path}
		if err := again.load(text); err != nil || again.SetAside != "" {
			t.Fatalf("%q is %q, and that is not read: %v", b, text, err)
		}
		if twice, err := again.Get().encode(); err != nil || string(twice) != string(text) {
			t.Errorf("%q is %q, and that is %q (%v)", b, text, twice, err)
		}
	})
}

// pieces are keys and values as nodes write them, and as nobody does.
func pieces(k Keys) (keys, values []string) {
	keys = []string{k.Config(), k.Store(), k.Settle(), k.All(), k.All() + "subnets", k.owners() + "10.5.1.0-24", k.owners() + "x/10.5.1.0-24",
		k.owners() + "10.5.1.0/24", k.owners() + "fd00:5::-64", k.reservations() + "10.5.1.0-24", k.reservations() + "x/10.5.1.0-24", k.reservations() + "FD00:5::-64",
		k.subnets() + "10.5.1.0-24", k.subnets() + "10.5.2.0-24", k.subnets() + "10.5.2.0-24&fd00:5::-64", k.subnets() + "0.0.0.0-0&fd00:5::-64"}
	for key := range malformed() {
		keys = append(keys, k.subnets()+key)
	}
	values = []string{recordOf("n1", "192.0.2.1", 1), recordOf("n2", "192.0.2.2", 2), `{"Network":"10.5.0.0/16"}`, `{"ID":"s"}`, `{"Node":"n1"}`,
		`{"UID":"u1","Node":"n1","Epoch":3}`, "", "null", "{", "\xff"}
	slices.Sort(keys)
	return keys, values
}

// FuzzMirror: whatever comes in whatever order, the mirror of it is that of a
// list made then, each subnet is found under its name, and what is said of a key is
// the key's own.
func FuzzMirror(f *testing.F) {
	f.Add([]byte{12, 0, 13, 1, 12, 2, 255, 12, 1}, "10.5.3.0-24", recordOf("n3", "192.0.2.3", 3))
	f.Add([]byte{5, 5, 6, 5, 7, 5, 9, 4, 10, 4, 11, 4}, "", "")
	f.Add([]byte{0, 2, 1, 3, 2, 3, 16, 0, 17, 1, 18, 0, 19, 0, 20, 0}, "10.5.1.0/24", "x")
	f.Add([]byte{40, 1, 41, 1, 42, 1, 255, 40, 43, 1, 44, 0, 45, 0}, "\xff", "\x00")
	k := NewKeys(prefix)
	keys, values := pieces(k)
	f.Fuzz(func(t *testing.T, script []byte, key, value string) {
		keys, values := append(slices.Clone(keys), k.subnets()+key), append(slices.Clone(values), value)
		m, all, revision := newMirror(k), map[string]*mvccpb.KeyValue{}, int64(1)
		for i := 0; i+1 < len(script); i += 2 {
			revision++
			ev := &clientv3.Event{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{ModRevision: revision, CreateRevision: revision, Lease: int64(script[i])}}
			if script[i] == 255 {
				ev.Type, ev.Kv.Key = clientv3.EventTypeDelete, []byte(keys[int(script[i+1])%len(keys)])
				delete(all, string(ev.Kv.Key))
			} else {
				ev.Kv.Key, ev.Kv.Value = []byte(keys[int(script[i])%len(keys)]), []byte(values[int(script[i+1])%len(values)])
				all[string(ev.Kv.Key)] = ev.Kv
			}
			if got := m.apply([]*clientv3.Event{ev}); got != revision {
				t.Errorf("revision %d after the event of %d", got, revision)
			}
		}
		fresh, list := newMirror(k), []*mvccpb.KeyValue{}
		for _, kv := range all {
			list = append(list, kv)
		}
		slices.SortFunc(list, func(a, b *mvccpb.KeyValue) int { return strings.Compare(string(a.Key), string(b.Key)) })
		fresh.reset(list)
		s := m.snapshot(revision, 1)
		if want := fresh.snapshot(revision, 1); !reflect.DeepEqual(s, want) {
			t.Errorf("%v shows\n%+v\nand a list shows\n%+v", script, s, want)
		}
		wellMade(t, k, s, all)
	})
}

// wellMade compares a snapshot with the keys that it is of.
func wellMade(t *testing.T, k Keys, s *Snapshot, all map[string]*mvccpb.KeyValue) {
	t.Helper()
	if !slices.IsSortedFunc(s.Entries, compareEntries) {
		t.Errorf("the entries are not in order: %v", s.Entries)
	}
	for _, e := range s.Entries {
		found, there := s.Entry(e.Subnets)
		own := all[k.Subnet(e.Subnets)]
		if !there || own != nil && found.ModRevision != own.ModRevision && !found.unread() {
			t.Errorf("%s is there %t, of revision %d, with the key's own %v", e.Subnets, there, found.ModRevision, own)
		}
	}
	for name, o := range s.Owners {
		if kv := all[k.owners()+name]; kv == nil || kv.ModRevision != o.ModRevision {
			t.Errorf("the owner of %q is of revision %d, the key is %v", name, o.ModRevision, kv)
		}
	}
	for name, r := range s.Reservations {
		if kv := all[k.reservations()+name]; kv == nil || kv.ModRevision != r.ModRevision {
			t.Errorf("the reservation of %q is of revision %d, the key is %v", name, r.ModRevision, kv)
		}
	}
	for _, fault := range s.Faults {
		oneFault(t, fault)
	}
}

// FuzzEffect: what another config would do is told of any, beside any records.
func FuzzEffect(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"Network":"10.5.0.0/16"}`, `{"Network":"10.0.0.0/8","LeaseTTL":"1h"}`}, {`{`, `{"Network":"10.5.0.0/16","SubnetLen":30}`},
		{`{"Network":"10.5.0.0/16"}`, `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/8","IPv6SubnetLen":70}`}, {`{"Network":"0.0.0.0/0"}`, `{"Network":"10.5.0.0/29","SubnetLen":30}`},
		{"", `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"host-gw"}}`}, {"null", "null"},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]), "10.5.3.0-24")
	}
	k := NewKeys(prefix)
	f.Fuzz(func(t *testing.T, now, next []byte, key string) {
		m := newMirror(k)
		for kk, v := range map[string]string{k.Config(): string(now), k.Store(): `{"ID":"s"}`, k.Subnet(v4("10.5.1.0/24")): recordOf("n1", "192.0.2.1", 1),
			k.subnets() + key: recordOf("n2", "192.0.2.2", 1), k.reservations() + key: `{"Node":"n3"}`, k.owners() + key: `{"UID":"u","Node":"n2","Epoch":1}`} {
			m.put(clientv3KV(kk, v, 3))
		}
		s := m.snapshot(3, 1)
		e := Effect(s, next, nil)
		if len(e.Faults) == 0 && e.After == nil {
			t.Errorf("%s to %s: neither faults nor counts", now, next)
		}
		if c := e.After; c != nil && c.Free > c.Total {
			t.Errorf("%s to %s: %+v", now, next, *c)
		}
		History(s, ParseOf(key))
		_, _ = parseSubnet(key)
	})
}
