package dataplane_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/dataplane/fakekernel"
)

// BenchmarkIdlePlan is what a pass without anything to do costs.
func BenchmarkIdlePlan(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ctx := context.Background()
			want := node34()
			want.Networks = []netip.Prefix{prefix("10.0.0.0/8")}
			for i := range n {
				want.Peers = append(want.Peers, dataplane.Peer{
					Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + i/256), byte(i), 0}), 24),
					PublicIP: netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}),
					MAC:      mac(i + 2000),
				})
			}
			k := fakekernel.New(&fakekernel.Guard{}, underlay)
			have, _ := k.Read(ctx, dataplane.Families{V4: true, V6: true})
			ops, _ := dataplane.Plan(want, have)
			for _, op := range ops {
				if err := k.Apply(ctx, op); err != nil {
					b.Fatal(err)
				}
			}
			have, _ = k.Read(ctx, dataplane.Families{V4: true, V6: true})
			for b.Loop() {
				if ops, _ := dataplane.Plan(want, have); len(ops) > 0 {
					b.Fatal(text(ops))
				}
			}
		})
	}
}
