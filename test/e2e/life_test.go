package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// pingEvery is short, so that a gap of a few packets is seen.
const pingEvery = 10 * time.Millisecond

// TestDaemonMayGo ends and starts the daemon of one node in every way while
// its pod and that of another node ping each other: not one packet is lost,
// and subnet, lease, epoch and the devices' addresses are what they were.
func TestDaemonMayGo(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")

	for _, way := range []struct {
		name string
		end  func() error
	}{
		{"restart", func() error { return n1.Stop(ctx) }},
		{"crash", func() error { n1.Kill(); return nil }},
	} {
		t.Run(way.name, func(t *testing.T) {
			before := who(ctx, t, n1)
			out, back := ping(t, p1, p2), ping(t, p2, p1)
			if err := way.end(); err != nil {
				t.Error(err)
			}
			cluster.Start(ctx, t, n1)
			cluster.WaitPeers(ctx, t, n1, n2)
			later := cluster.Pod(ctx, t, n1, way.name) // the data plane has been gone through
			cluster.Stays(ctx, t, time.Second, "the new pod is answered", func() error { return lab.Ping(ctx, later, p2.IP) })
			lossless(t, out)
			lossless(t, back)
			if after := who(ctx, t, n1); after != before {
				t.Errorf("the node is\n%+v, it was\n%+v", after, before)
			}
		})
	}
}

func ping(t *testing.T, from, to *lab.Pod) *lab.Pinger {
	t.Helper()
	p, err := from.StartPing(to.IP, pingEvery)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func lossless(t *testing.T, p *lab.Pinger) {
	t.Helper()
	r, err := p.Stop()
	if err != nil || r.Lost() != 0 || r.Received < 20 {
		t.Errorf("ping: %s, %v", r, err)
	}
}

// identity is what a restart must not change.
type identity struct {
	uid, subnet, lease, overlay, bridge string
	epoch                               int64
}

func who(ctx context.Context, t *testing.T, n *lab.Node) identity {
	t.Helper()
	s := cluster.Wait(ctx, t, n, "holds a subnet", func(s *api.Status) bool { return s.State == api.StateHeld })
	id := identity{uid: s.UID, subnet: s.Subnet, lease: s.Lease.ID, epoch: s.Lease.Epoch}
	for name, mac := range map[string]*string{cluster.Overlay: &id.overlay, cluster.Bridge: &id.bridge} {
		cluster.Eventually(ctx, t, 5*time.Second, "device "+name, func() error {
			link, err := cluster.FindLink(ctx, n, name)
			*mac = link.MAC
			return err
		})
	}
	return id
}

// TestRestartWithoutEtcd starts the daemon while etcd is away: it goes on with
// the subnet and the deadline that it finds, no packet is lost, pods come and
// go. Once etcd is back, the node has the lease it had.
func TestRestartWithoutEtcd(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	before := who(ctx, t, n1)
	out, back := ping(t, p1, p2), ping(t, p2, p1)
	c.Etcd.Kill()
	n1.Kill()
	if err := n1.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s := cluster.WaitState(ctx, t, n1, api.StateUnproven)
	if !s.Ready || s.Subnet != before.subnet {
		t.Errorf("without etcd: ready %t, subnet %s, want true, %s", s.Ready, s.Subnet, before.subnet)
	}
	later := cluster.Pod(ctx, t, n1, "later")
	if err := lab.Ping(ctx, later, p2.IP); err != nil {
		t.Error(err)
	}
	if err := later.Del(ctx); err != nil {
		t.Error(err)
	}
	if err := c.Etcd.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if after := who(ctx, t, n1); after != before {
		t.Errorf("the node is\n%+v, it was\n%+v", after, before)
	}
	lossless(t, out)
	lossless(t, back)
}

// TestStopRemovesNothing compares everything Tenure has made in the kernel
// and on disk before and after the daemon's stop, and the node's record in
// etcd.
func TestStopRemovesNothing(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	conflist := n1.RunDir + "/net.d/10-tenure.conflist"
	if err := n1.Start(ctx, "--cni-conf-file="+conflist); err != nil {
		t.Fatal(err)
	}
	cluster.Start(ctx, t, n2)
	cluster.WaitPeers(ctx, t, n1, n2)
	p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	if err := lab.WaitPing(ctx, p1, p2.IP); err != nil {
		t.Fatal(err)
	}
	subnet := cluster.Status(ctx, t, n1).Subnet
	files := []string{conflist, n1.RunDir + "/subnet.env", n1.RunDir + "/ledger.json", n1.StateDir + "/node.json"}
	kernel, disk := cluster.Picture(ctx, t, n1), contents(t, files)
	if err := n1.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if after := cluster.Picture(ctx, t, n1); after != kernel {
		t.Errorf("the kernel has\n%s\nbefore the stop it had\n%s", after, kernel)
	}
	if after := contents(t, files); after != disk {
		t.Errorf("on disk is\n%s\nbefore the stop it was\n%s", after, disk)
	}
	if _, _, held := c.Store(t).Holder(ctx, subnet); !held {
		t.Errorf("%s is not held any more", subnet)
	}
	if err := lab.Ping(ctx, p2, p1.IP); err != nil {
		t.Error(err)
	}
}

// TestReboot reboots a node: it goes on with its subnet, lease and MAC, since
// its address is its own and nobody else answers for it, and every pod address
// is free again.
func TestReboot(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	p2 := cluster.Pod(ctx, t, n2, "p")
	cluster.Pod(ctx, t, n1, "p")
	before := who(ctx, t, n1)
	n1.Kill()
	if err := n1.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n1.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if after := who(ctx, t, n1); after != before {
		t.Errorf("the node is\n%+v, it was\n%+v", after, before)
	}
	if s := cluster.Status(ctx, t, n1); s.Addresses.Used != 0 || len(s.Stranded) != 0 {
		t.Errorf("after the reboot %d addresses used, %d stranded", s.Addresses.Used, len(s.Stranded))
	}
	again := cluster.Pod(ctx, t, n1, "again")
	if err := lab.WaitPing(ctx, again, p2.IP); err != nil {
		t.Error(err)
	}
}
