package field

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestN6IPv6 is row N6 for the underlay of IPv6: another address while the daemon
// runs, another one between two starts, and a reboot, after which the machine is
// told from a clone by that address where it is the only one. Of both families
// the other one stays as it is.
func TestN6IPv6(t *testing.T) {
	for name, network := range map[string]string{"dual stack": dualNetwork, "IPv6 alone": sixNetwork} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := cluster.Context(t, 2*time.Minute)
			c := cluster.BornIn(ctx, t, lab.Options{IPv6: true}, fmt.Sprintf(network, ""), "n1", "n2")
			cluster.Start(ctx, t, c.Nodes...)
			cluster.WaitPeers(ctx, t, c.Nodes...)
			n1, n2 := c.Nodes[0], c.Nodes[1]
			p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
			was := cluster.Status(ctx, t, n1)
			was.PublicIP6 = n1.Addr6.String()
			if (network == sixNetwork) != (was.PublicIP == "") {
				t.Errorf("status announces %q, and %q", was.PublicIP, was.PublicIP6)
			}
			readdress := func(to string) {
				t.Helper()
				cluster.Exec(ctx, t, n1, "ip", "addr", "del", was.PublicIP6+"/64", "dev", "eth0")
				cluster.Exec(ctx, t, n1, "ip", "addr", "add", to+"/64", "dev", "eth0", "nodad")
				was.PublicIP6 = to
			}
			follows := func() {
				t.Helper()
				within, cancel := context.WithTimeout(ctx, repairTime)
				defer cancel()
				s := cluster.Wait(within, t, n1, "is at "+was.PublicIP6, func(s *api.Status) bool {
					return s.State == api.StateHeld && s.PublicIP6 == was.PublicIP6 && cluster.Well(s)
				})
				if s.Subnet6 != was.Subnet6 || s.Subnet != was.Subnet || s.Lease.ID != was.Lease.ID || s.UID != was.UID {
					t.Errorf("status %+v, want %s and %s under lease %s", s, was.Subnet, was.Subnet6, was.Lease.ID)
				}
				cluster.Eventually(within, t, repairTime, "n2 sends to "+was.PublicIP6, func() error {
					link, err := n1.Exec(within, "ip", "-d", "link", "show", "dev", "tenure6.1")
					fdb, err2 := n2.Exec(within, "bridge", "fdb", "show", "dev", "tenure6.1")
					if err := errors.Join(err, err2); err != nil {
						return err
					}
					if !strings.Contains(link, " local "+was.PublicIP6+" ") || !strings.Contains(fdb, " dst "+was.PublicIP6+" ") {
						return fmt.Errorf("n2 has %s, the tunnel of n1 is\n%s", fdb, link)
					}
					return nil
				})
				for _, to := range []netip.Addr{p2.IP, p2.IP6} {
					if to.IsValid() {
						if err := lab.WaitPing(within, p1, to); err != nil {
							t.Error(err)
						}
					}
				}
			}
			follows()
			readdress("2001:db8:2::211")
			follows()
			stop(ctx, t, n1)
			readdress("2001:db8:2::212")
			cluster.Start(ctx, t, n1)
			follows()
			stop(ctx, t, n1)
			readdress(n1.Addr6.String())
			cluster.Start(ctx, t, n1)
			follows()

			if err := n1.Reboot(ctx); err != nil {
				t.Fatal(err)
			}
			cluster.Exec(ctx, t, c.LAN, "ip", "neigh", "flush", "dev", "lan0")
			cluster.Start(ctx, t, n1)
			p1 = cluster.Pod(ctx, t, n1, "q")
			follows()
		})
	}
}
