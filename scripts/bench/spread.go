package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/lab"
)

const (
	// changes is how many peers come at most, one after the other.
	changes = 200
	// calm is how long after a change a daemon has nothing to do any more.
	calm = 700 * time.Millisecond
	// gone is how long all peers may stay that go at once: a second list, a
	// second later, has to lack them too.
	gone = 3 * time.Second
	// subnets is where records lie.
	subnets = "/tenure/network/subnets/"
)

// spreadPart times the way of a new peer from its record, put into etcd, to
// another node's kernel: until the last of forwarding entry, neighbour and
// route is there, as the kernel's own notices say.
func spreadPart(ctx context.Context, b *bench) error {
	if b.plainOnly {
		return nil
	}
	client, err := b.lab.Etcd.Client()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	t := newTable("A peer's change, from etcd to the kernel, ms")
	for _, way := range []struct {
		row   string
		count int
		pause time.Duration
	}{{"alone", 100, calm}, {"each right after another", changes, 0}} {
		all, err := spread(ctx, client, b.nodes[0], way.count, way.pause)
		if err != nil {
			return err
		}
		for _, v := range all {
			t.add(way.row, "p50", v)
		}
		t.add(way.row, "p99", percentile(all, 99))
		t.add(way.row, "changes", float64(len(all)))
	}
	return t.print(os.Stdout)
}

// spread times so many peers, with a pause before each, and removes them.
func spread(ctx context.Context, client *clientv3.Client, n *lab.Node, count int, between time.Duration) ([]float64, error) {
	// What was removed before has left the kernel by then.
	if err := pause(ctx, gone); err != nil {
		return nil, err
	}
	k, err := listen(n)
	if err != nil {
		return nil, err
	}
	defer k.notices.Close()
	var all []float64
	for i := range count {
		if err := pause(ctx, between); err != nil {
			return nil, err
		}
		p := stranger(i)
		put := time.Now()
		if _, err := client.Put(ctx, p.key(), p.record()); err != nil {
			return nil, fmt.Errorf("put peer %s: %w", p.subnet, err)
		}
		at, err := k.complete(p)
		if err != nil {
			return nil, err
		}
		all = append(all, ms(at.Sub(put)))
	}
	for i := range count {
		if _, err := client.Delete(ctx, stranger(i).key()); err != nil {
			return nil, fmt.Errorf("delete peer: %w", err)
		}
	}
	return all, nil
}

// peer is a node that exists in etcd only.
type peer struct {
	subnet   netip.Prefix
	publicIP netip.Addr
	mac      [6]byte
}

// stranger is number i of many, below the subnets that the bench's own nodes
// may take.
func stranger(i int) peer {
	return peer{
		subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(i + 1), 0}), 24),
		publicIP: netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)}),
		mac:      [6]byte{2, 0, 0, 0, 1, byte(i + 1)},
	}
}

func (p peer) key() string { return subnets + strings.ReplaceAll(p.subnet.String(), "/", "-") }

func (p peer) record() string {
	return fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`,
		p.publicIP, net.HardwareAddr(p.mac[:]))
}

// kernel is what a node's kernel tells of its changes.
type kernel struct{ notices *nl.NetlinkSocket }

// patience bounds the wait for one change.
const patience = 10 * time.Second

func listen(n *lab.Node) (kernel, error) {
	ns, err := netns.GetFromPath(n.Path())
	if err != nil {
		return kernel{}, fmt.Errorf("open namespace of %s: %w", n.Host, err)
	}
	defer func() { _ = ns.Close() }()
	socket, err := nl.SubscribeAt(ns, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_ROUTE)
	if err != nil {
		return kernel{}, fmt.Errorf("subscribe to the kernel's notices on %s: %w", n.Host, err)
	}
	wait := unix.NsecToTimeval(patience.Nanoseconds())
	if err := socket.SetReceiveTimeout(&wait); err != nil {
		socket.Close()
		return kernel{}, fmt.Errorf("bound the wait for the kernel's notices: %w", err)
	}
	return kernel{socket}, nil
}

// complete returns when the kernel has told of all that belongs to the peer.
func (k kernel) complete(p peer) (time.Time, error) {
	told := map[string]bool{}
	for len(told) < 3 {
		messages, _, err := k.notices.Receive()
		if err != nil {
			return time.Time{}, fmt.Errorf("wait for peer %s in the kernel, which has %v: %w", p.subnet, told, err)
		}
		for _, m := range messages {
			if what := p.told(m); what != "" {
				told[what] = true
			}
		}
	}
	return time.Now(), nil
}

// told is which part of the peer a notice is about, empty for none.
func (p peer) told(m syscall.NetlinkMessage) string {
	switch m.Header.Type {
	case unix.RTM_NEWNEIGH:
		n, err := netlink.NeighDeserialize(m.Data)
		switch {
		case err != nil || n.HardwareAddr.String() != net.HardwareAddr(p.mac[:]).String():
		case n.Family == unix.AF_BRIDGE:
			return "forwarding entry"
		case n.IP.String() == p.subnet.Addr().String():
			return "neighbour"
		}
	case unix.RTM_NEWROUTE:
		attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
		for _, a := range attrs {
			if err == nil && a.Attr.Type == unix.RTA_DST && net.IP(a.Value).String() == p.subnet.Addr().String() {
				return "route"
			}
		}
	}
	return ""
}
