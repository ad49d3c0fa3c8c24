package lease

import (
	"fmt"
	"net/netip"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// BenchmarkSnapshot is what one event costs with 1,000 nodes.
func BenchmarkSnapshot(b *testing.B) {
	k := NewKeys(prefix)
	m := newMirror(k)
	for i := range 1000 {
		s := Subnets{V4: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i / 256), byte(i), 0}), 24)}
		r := Record{PublicIP: netip.MustParseAddr("192.0.2.1"), BackendType: "vxlan", Tenure: &Tenant{Node: fmt.Sprint("n", i), UID: fmt.Sprint(i), Epoch: 1}}
		m.put(&mvccpb.KeyValue{Key: []byte(k.Subnet(s)), Value: []byte(r.encode()), Lease: 1, CreateRevision: 1, ModRevision: 1})
		m.put(&mvccpb.KeyValue{Key: []byte(k.Owner(s)), Value: []byte(`{"UID":"1"}`), CreateRevision: 1, ModRevision: 1})
	}
	for b.Loop() {
		m.snapshot(1, 1)
	}
}
