package dataplane_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tenure-cni/tenure/daemon/dataplane"
)

// TestPlanOrder shows plans as text: the order is what matters.
func TestPlanOrder(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name  string
		first *dataplane.Desired
		// damage is done in between.
		damage []dataplane.Change
		want   dataplane.Desired
		ops    string
	}{
		{
			name: "from nothing",
			want: node34(peer(36), peer(35)),
			ops: `
sysctl net/ipv4/ip_forward = 1
rules raw: fill TENURE-RAW with 1 rules, append to PREROUTING "-p udp -m udp --dport 8472 -j TENURE-RAW", append to OUTPUT "-p udp -m udp --dport 8472 -j TENURE-RAW"; nat: fill TENURE-MASQ with 3 rules, append to POSTROUTING "-m comment --comment \"pod network\" -j TENURE-MASQ"; filter: fill TENURE-FWD with 2 rules, append to FORWARD "-j TENURE-FWD"
route set unreachable 10.5.0.0/16 metric 4278198272 proto 90
link add tenure0 bridge mac 0a:58:00:00:03:e8
link set tenure0 mtu 1450
sysctl net/ipv6/conf/tenure0/accept_ra = 0
sysctl net/ipv4/conf/all/send_redirects = 0
sysctl net/ipv4/conf/tenure0/send_redirects = 0
link set tenure0 up
addr add 10.5.34.1/24 dev tenure0
link add tenure.1 vxlan vni 1 port 8472 local 192.0.2.1 dev up0 nolearning mac 0a:58:00:00:00:22 mtu 1450
fence attach tenure.1
link set tenure.1 tx-checksum off
link set tenure.1 up
addr add 10.5.34.0/32 dev tenure.1
token allow 0a:58:00:00:00:23 for 10.5.35.0/24
fdb set 0a:58:00:00:00:23 dst 192.0.2.35 dev tenure.1
neigh set 10.5.35.0 lladdr 0a:58:00:00:00:23 dev tenure.1
route set 10.5.35.0/24 via 10.5.35.0 dev tenure.1 proto 90 onlink
token allow 0a:58:00:00:00:24 for 10.5.36.0/24
fdb set 0a:58:00:00:00:24 dst 192.0.2.36 dev tenure.1
neigh set 10.5.36.0 lladdr 0a:58:00:00:00:24 dev tenure.1
route set 10.5.36.0/24 via 10.5.36.0 dev tenure.1 proto 90 onlink`,
		},
		{
			name:  "one peer for another",
			first: new(node34(peer(35))),
			want:  node34(peer(36)),
			ops: `
token allow 0a:58:00:00:00:24 for 10.5.36.0/24
fdb set 0a:58:00:00:00:24 dst 192.0.2.36 dev tenure.1
neigh set 10.5.36.0 lladdr 0a:58:00:00:00:24 dev tenure.1
route set 10.5.36.0/24 via 10.5.36.0 dev tenure.1 proto 90 onlink
route del 10.5.35.0/24 via 10.5.35.0 dev tenure.1 proto 90 onlink
neigh del 10.5.35.0 dev tenure.1
fdb del 0a:58:00:00:00:23 dst 192.0.2.35 dev tenure.1
token deny 0a:58:00:00:00:23`,
		},
		{
			name:  "two peers swap MACs",
			first: new(node34(peer(35), peer(36))),
			want: node34(
				dataplane.Peer{Subnet: peer(35).Subnet, PublicIP: peer(35).PublicIP, MAC: mac(36)},
				dataplane.Peer{Subnet: peer(36).Subnet, PublicIP: peer(36).PublicIP, MAC: mac(35)},
			),
			ops: `
token deny 0a:58:00:00:00:23
token deny 0a:58:00:00:00:24
token allow 0a:58:00:00:00:24 for 10.5.35.0/24
fdb set 0a:58:00:00:00:24 dst 192.0.2.35 dev tenure.1
neigh set 10.5.35.0 lladdr 0a:58:00:00:00:24 dev tenure.1
token allow 0a:58:00:00:00:23 for 10.5.36.0/24
fdb set 0a:58:00:00:00:23 dst 192.0.2.36 dev tenure.1
neigh set 10.5.36.0 lladdr 0a:58:00:00:00:23 dev tenure.1`,
		},
		{
			name:   "device of the wrong port",
			first:  new(node34(peer(35))),
			damage: nil,
			want: func() dataplane.Desired {
				d := node34(peer(35))
				d.Overlays[0].Port = 4789
				return d
			}(),
			ops: `
rules raw: drop from PREROUTING "-p udp -m udp --dport 8472 -j TENURE-RAW", drop from OUTPUT "-p udp -m udp --dport 8472 -j TENURE-RAW", append to PREROUTING "-p udp -m udp --dport 4789 -j TENURE-RAW", append to OUTPUT "-p udp -m udp --dport 4789 -j TENURE-RAW"
link del tenure.1
link add tenure.1 vxlan vni 1 port 4789 local 192.0.2.1 dev up0 nolearning mac 0a:58:00:00:00:22 mtu 1450
fence attach tenure.1
link set tenure.1 tx-checksum off
link set tenure.1 up
addr add 10.5.34.0/32 dev tenure.1
token allow 0a:58:00:00:00:23 for 10.5.35.0/24
fdb set 0a:58:00:00:00:23 dst 192.0.2.35 dev tenure.1
neigh set 10.5.35.0 lladdr 0a:58:00:00:00:23 dev tenure.1
route set 10.5.35.0/24 via 10.5.35.0 dev tenure.1 proto 90 onlink`,
		},
		{
			name: "stranded subnet goes to a peer",
			first: func() *dataplane.Desired {
				d := node34()
				d.Bridge.Gateways = append(d.Bridge.Gateways, prefix("10.5.30.1/24"))
				return &d
			}(),
			want: func() dataplane.Desired {
				d := node34(peer(30))
				d.Bridge.Gateways = append(d.Bridge.Gateways, prefix("10.5.30.1/32"))
				d.HostRoutes = []netip.Addr{addr("10.5.30.7")}
				return d
			}(),
			ops: `
addr add 10.5.30.1/32 dev tenure0
route set 10.5.30.7/32 dev tenure0 proto 90 scope link
addr del 10.5.30.1/24 dev tenure0
token allow 0a:58:00:00:00:1e for 10.5.30.0/24
fdb set 0a:58:00:00:00:1e dst 192.0.2.30 dev tenure.1
neigh set 10.5.30.0 lladdr 0a:58:00:00:00:1e dev tenure.1
route set 10.5.30.0/24 via 10.5.30.0 dev tenure.1 proto 90 onlink`,
		},
		{
			name:   "MAC rewritten by others",
			first:  new(node34(peer(35))),
			damage: []dataplane.Change{dataplane.SetMAC{Link: overlay, MAC: mac(9)}},
			want:   node34(peer(35)),
			ops: `
link set tenure.1 mac 0a:58:00:00:00:22
neigh set 10.5.35.0 lladdr 0a:58:00:00:00:23 dev tenure.1`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := fakeMachine(t)
			if c.first != nil {
				m.converge(t, *c.first)
			}
			for _, d := range c.damage {
				if err := m.kernel.Apply(ctx, dataplane.Op{Change: d}); err != nil {
					t.Fatal(err)
				}
			}
			ops, _ := dataplane.Plan(c.want, m.read(t))
			if diff := cmp.Diff(strings.TrimPrefix(c.ops, "\n"), text(ops)); diff != "" {
				t.Errorf("plan differs (-want +got):\n%s", diff)
			}
			m.converge(t, c.want)
		})
	}
}

func TestPlanConflictsOfPeers(t *testing.T) {
	alike := peer(37)
	alike.MAC = peer(35).MAC
	self := peer(38)
	self.PublicIP = addr("192.0.2.1")
	wide := peer(36)
	wide.Subnet, wide.MAC = prefix("10.5.36.0/23"), mac(99)
	want := node34(peer(35), peer(34), peer(36), wide, alike, self)
	m := fakeMachine(t)
	m.converge(t, want)
	_, conflicts := dataplane.Plan(want, m.read(t))
	var got []string
	for _, c := range conflicts {
		got = append(got, c.Peer.String()+": "+c.Text)
	}
	wantText := []string{
		"10.5.34.0/24: subnet 10.5.34.0/24 overlaps 10.5.34.0/32 of this node",
		"10.5.36.0/23: subnet 10.5.36.0/23 overlaps 10.5.36.0/24 of another peer",
		"10.5.37.0/24: VTEP MAC 0a:58:00:00:00:23 is also that of the peer with 10.5.35.0/24",
		"10.5.38.0/24: public address 192.0.2.1 is this node's own",
	}
	if diff := cmp.Diff(wantText, got); diff != "" {
		t.Errorf("conflicts differ (-want +got):\n%s", diff)
	}
	if s := m.read(t); len(s.Tokens) != 2 {
		t.Errorf("tokens %v", s.Tokens)
	}
}
