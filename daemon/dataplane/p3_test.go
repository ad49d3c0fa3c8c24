package dataplane_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/dataplane"
)

// TestP3 is flannel #928, kops #4533 and lxd #4799: at about a thousand
// neighbours the kernel's table is full, packets are lost at random and adding
// fails. Right is: peers do not count against the limit, more of them than it
// has room for are programmed; where pods come near it, that is said with the
// numbers. (That a peer whose entry failed stays pending and is tried again,
// TestLoopI7FailedWriteIsRetried has.)
func TestP3(t *testing.T) {
	t.Run("pods near the limit", func(t *testing.T) {
		for _, c := range []struct {
			pods  int
			limit string
			told  bool
		}{
			{110, "1024", false}, {383, "1024", false}, {384, "1024", true}, {110, "256", true}, {110, "", false}, {110, "0", false}, {0, "8", false},
		} {
			want := node34(peer(35))
			for i := range c.pods {
				want.Bridge.Ports = append(want.Bridge.Ports, fmt.Sprintf("ten%d", i))
			}
			have := dataplane.State{Sysctls: map[string]string{dataplane.NeighbourLimitPath: c.limit}}
			if c.limit == "" {
				have.Sysctls = nil
			}
			said := ""
			_, conflicts := dataplane.Plan(want, have)
			for _, one := range conflicts {
				if one.What == dataplane.ConflictNeighbours {
					said += one.Text
				}
			}
			if (said != "") != c.told {
				t.Errorf("%d pods, limit %q: %q", c.pods, c.limit, said)
			}
			for _, part := range []string{fmt.Sprint(2 * c.pods), c.limit, "1 peers"} {
				if c.told && !strings.Contains(said, part) {
					t.Errorf("%d pods, limit %q: %q does not say %s", c.pods, c.limit, said, part)
				}
			}
		}
	})
	t.Run("more peers than the limit", func(t *testing.T) {
		needsRoot(t)
		m := linuxMachine(t, "")
		want := node34()
		want.Networks = []netip.Prefix{prefix("10.0.0.0/8")}
		const peers = 1100 // gc_thresh3 is 1024 unless somebody has set it
		for i := range peers {
			want.Peers = append(want.Peers, dataplane.Peer{
				Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + i/256), byte(i), 0}), 24),
				PublicIP: netip.AddrFrom4([4]byte{198, 51, 100, byte(i%250 + 2)}), MAC: mac(i + 2000),
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		have, err := m.kernel.Read(ctx, dataplane.Families{V4: true, V6: true})
		if err != nil {
			t.Fatal(err)
		}
		ops, _ := dataplane.Plan(want, have)
		for _, op := range ops {
			if err := m.kernel.Apply(ctx, op); err != nil {
				t.Fatalf("%s: %v", op, err)
			}
		}
		if have = m.read(t); len(have.Neighs) != peers {
			t.Errorf("%d neighbours, want %d", len(have.Neighs), peers)
		}
	})
}
