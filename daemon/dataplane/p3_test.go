package dataplane_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/dataplane/fakekernel"
)

// TestP3 is flannel #928, kops #4533 and lxd #4799: at about a thousand
// neighbours the kernel's table is full, packets are lost at random and adding
// fails. Right is: peers do not count against the limit, more of them than it
// has room for are programmed; where pods come near it, that is said with the
// numbers, of each family's table. (That a peer whose entry failed stays
// pending and is tried again, TestLoopI7FailedWriteIsRetried has.)
func TestP3(t *testing.T) {
	t.Run("pods near the limit", func(t *testing.T) {
		for _, c := range []struct {
			pods          int
			limit, limit6 string
			want, text    string // each table that is told of, and what is said of it
		}{
			{110, "1024", "1024", "", ""}, {383, "1024", "1024", "", ""},
			{384, "1024", "4096", "neighbours", "IPv4, which takes 1024"}, {384, "4096", "1024", "neighbours6", "IPv6, which takes 1024"},
			{110, "256", "128", "neighbours neighbours6", "IPv6, which takes 128"}, {110, "", "", "", ""}, {110, "0", "0", "", ""}, {0, "8", "8", "", ""},
		} {
			for name, want := range map[string]dataplane.Desired{"neighbours": node34(peer(35)), "neighbours6": six34(35), "neighbours neighbours6": dual34(35)} {
				for i := range c.pods {
					want.Bridge.Ports = append(want.Bridge.Ports, fmt.Sprintf("ten%d", i))
				}
				have := dataplane.State{IPv6: true, Sysctls: map[string]string{}}
				if c.limit != "" {
					have.Sysctls = map[string]string{dataplane.NeighbourLimit(false): c.limit, dataplane.NeighbourLimit(true): c.limit6}
				}
				var told []string
				said := ""
				_, conflicts := dataplane.Plan(want, have)
				for _, one := range conflicts {
					if one.What == dataplane.ConflictNeighbours || one.What == dataplane.ConflictNeighbours6 {
						told, said = append(told, one.What), said+one.Text
					}
				}
				// A table of a family that pods have not is none of ours.
				expect := slices.DeleteFunc(strings.Fields(c.want), func(what string) bool { return !slices.Contains(strings.Fields(name), what) })
				if !slices.Equal(told, expect) {
					t.Errorf("%s, %d pods, limits %q and %q: told of %q, want %q", name, c.pods, c.limit, c.limit6, told, expect)
				}
				for _, part := range []string{fmt.Sprint(2*c.pods, " entries"), c.text, "beside them 1 peers"} {
					if name == "neighbours neighbours6" && c.want != "" && !strings.Contains(said, part) {
						t.Errorf("%s, %d pods: %q does not say %s", name, c.pods, said, part)
					}
				}
			}
		}
	})
	t.Run("limits of this machine", func(t *testing.T) {
		needsRoot(t)
		kernel, err := dataplane.OpenLinux(dataplane.LinuxOptions{Name: instance, Guard: &fakekernel.Guard{}})
		if err != nil {
			t.Fatal(err)
		}
		defer kernel.Close()
		have, err := kernel.Read(t.Context(), dataplane.Families{})
		if err != nil {
			t.Fatal(err)
		}
		for _, six := range []bool{false, true} {
			path := dataplane.NeighbourLimit(six)
			limit, _ := os.ReadFile(filepath.Join("/proc/sys", path)) // only the first namespace shows it
			if got := have.Sysctls[path]; got != strings.TrimSpace(string(limit)) {
				t.Errorf("%s is read as %q, it is %q", path, got, limit)
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
