package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// guardLease leaves some seconds after etcd was cut off: the overlay closes 10.8 s
// after the last proof, which is then at most 4.4 s old.
const (
	guardLease = `{"Network":"10.5.0.0/16","LeaseTTL":"12s"}`
	guardClose = 16 * time.Second
)

// TestFenceComesBack takes the fence, and then the whole device, away from a
// node that can prove nothing: etcd is cut off. They come back with the
// deadline that was proven last: packets pass again, and the overlay closes
// while etcd still has the key. So they do under a daemon that was started with
// etcd cut off and knows of no peer.
func TestFenceComesBack(t *testing.T) {
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.New(ctx, t, guardLease, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	pod, far := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	subnet := cluster.Status(ctx, t, n1).Subnet
	flow := cluster.StartFlow(ctx, t, pod.NS, far.NS, far.IP)
	away := func(harms ...string) {
		t.Helper()
		for _, harm := range harms {
			cluster.Exec(ctx, t, n1, "sh", "-ec", harm)
			cluster.Eventually(ctx, t, repair, "the fence is back after "+harm, func() error { return guarded(ctx, n1) })
			flow.Runs(ctx, t)
		}
		flow.Ends(ctx, t, guardClose)
		if _, _, held := c.Store(t).Holder(ctx, subnet); !held {
			t.Errorf("after %s: the key of %s ended before the overlay was closed", harms, subnet)
		}
		if err := guarded(ctx, n1); err != nil {
			t.Errorf("closed: %v", err)
		}
		cut(ctx, t, n1, false)
		cluster.WaitState(ctx, t, n1, api.StateHeld)
		flow.Runs(ctx, t)
	}

	flow.Runs(ctx, t)
	cut(ctx, t, n1, true)
	away("tc filter del dev "+device+" egress", "tc qdisc del dev "+device+" clsact", "ip link del "+device)

	cluster.WaitPeers(ctx, t, n1, n2)
	cut(ctx, t, n1, true)
	n1.Kill()
	if err := n1.Start(ctx); err != nil {
		t.Fatal(err)
	}
	cluster.WaitState(ctx, t, n1, api.StateUnproven)
	away("tc qdisc del dev " + device + " clsact")
}

// TestFenceLostWhileDead takes the filters away while no process holds their
// maps: the deadline is gone with them. The next daemon, which can prove
// nothing, closes the device that it finds open, and claims nothing. With etcd
// back a cycle runs at once.
func TestFenceLostWhileDead(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	pod, far := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	subnet := cluster.Status(ctx, t, n1).Subnet
	flow := cluster.StartFlow(ctx, t, pod.NS, far.NS, far.IP)
	flow.Runs(ctx, t)

	n1.Kill()
	cut(ctx, t, n1, true)
	cluster.Exec(ctx, t, n1, "tc", "qdisc", "del", "dev", device, "clsact")
	flow.Runs(ctx, t) // nothing is there to stop it
	if err := n1.Start(ctx); err != nil {
		t.Fatal(err)
	}
	flow.Ends(ctx, t, repair)
	cluster.Eventually(ctx, t, repair, "the fence is back", func() error { return guarded(ctx, n1) })
	if s := cluster.Status(ctx, t, n1); s.Ready || s.Subnet != "" {
		t.Errorf("without a deadline the node is %s, ready %t, with %s", s.State, s.Ready, s.Subnet)
	}
	cut(ctx, t, n1, false)
	if s := cluster.WaitState(ctx, t, n1, api.StateHeld); s.Subnet != subnet {
		t.Errorf("the node holds %s, want %s", s.Subnet, subnet)
	}
	flow.Runs(ctx, t)
}

// guarded is nil if the device is up and both directions have the program.
func guarded(ctx context.Context, n *lab.Node) error {
	if err := isUp(ctx, n, true); err != nil {
		return err
	}
	for side, name := range map[string]string{"egress": "tenure_out", "ingress": "tenure_in"} {
		out, err := n.Exec(ctx, "tc", "filter", "show", "dev", device, side)
		if err != nil {
			return err
		}
		if strings.Count(out, name+" direct-action") != 1 {
			return fmt.Errorf("%s has %q, want one %s", side, out, name)
		}
	}
	return nil
}

// TestFenceCannotBeAttached puts a qdisc of somebody else where the fence hangs
// its filters. It is not ours to remove: the device goes down, status says why,
// and the overlay comes back once the place is free.
func TestFenceCannotBeAttached(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	pod, far := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	flow := cluster.StartFlow(ctx, t, pod.NS, far.NS, far.IP)
	flow.Runs(ctx, t)

	// The daemon may be quicker than the second command; then once more.
	cluster.Exec(ctx, t, n1, "sh", "-ec", "for i in 1 2 3 4 5 6 7 8 9 10; do tc qdisc del dev "+device+
		" clsact; if tc qdisc add dev "+device+" ingress; then exit 0; fi; done; exit 1")
	cluster.Eventually(ctx, t, repair, "the device is down", func() error { return isUp(ctx, n1, false) })
	flow.Ends(ctx, t, repair)
	cluster.Wait(ctx, t, n1, "says what is in the way", func(s *api.Status) bool {
		for _, p := range s.Problems {
			if strings.Contains(p.Text, "takes the place of clsact") {
				return true
			}
		}
		return false
	})
	if out := cluster.Exec(ctx, t, n1, "tc", "qdisc", "show", "dev", device); !strings.Contains(out, "ingress") {
		t.Errorf("the qdisc of somebody else is gone: %s", out)
	}
	cluster.Exec(ctx, t, n1, "tc", "qdisc", "del", "dev", device, "ingress")
	cluster.Eventually(ctx, t, repair, "the fence is back", func() error { return guarded(ctx, n1) })
	flow.Runs(ctx, t)
}

// TestFencedBeforeUp listens to the kernel while a daemon makes the device:
// each time that it is up, the program has been put on both directions before.
func TestFencedBeforeUp(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	ns, err := netns.GetFromPath(n.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ns.Close() }()
	socket, err := nl.SubscribeAt(ns, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_TC)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := errors.Join(socket.SetReceiveTimeout(&unix.Timeval{Sec: 1}), socket.SetReceiveBufferSize(1<<20, true)); err != nil {
		t.Fatal(err)
	}

	cluster.Start(ctx, t, n)
	cluster.Eventually(ctx, t, repair, "the device is made", func() error { return guarded(ctx, n) })
	cluster.Exec(ctx, t, n, "ip", "link", "del", device)
	cluster.Eventually(ctx, t, repair, "the device is made anew", func() error { return guarded(ctx, n) })

	filters, ups := map[int32]map[uint32]bool{}, map[int32]bool{}
	for {
		messages, _, err := socket.Receive()
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			// ifi_index and tcm_ifindex stand at the same place.
			index := int32(binary.NativeEndian.Uint32(m.Data[4:]))
			switch m.Header.Type {
			case unix.RTM_NEWTFILTER:
				if filters[index] == nil {
					filters[index] = map[uint32]bool{}
				}
				filters[index][binary.NativeEndian.Uint32(m.Data[12:])] = true // the parent
			case unix.RTM_NEWLINK:
				up := binary.NativeEndian.Uint32(m.Data[8:])&unix.IFF_UP != 0
				if !strings.Contains(string(m.Data), device+"\x00") || !up {
					continue
				}
				if ups[index] = true; len(filters[index]) != 2 {
					t.Errorf("device %d is up with filters on %v", index, filters[index])
				}
			}
		}
	}
	if len(ups) != 2 {
		t.Errorf("%d devices came up, want the first and the one made anew", len(ups))
	}
}
