package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/test/lab"
)

const (
	// peersConfig leaves the peers' subnets to them.
	peersConfig = `{"Network":"10.0.0.0/8","SubnetMin":"10.250.0.0"}`
	peersLimit  = 2 * time.Minute
	// peersLease is longer than the part takes.
	peersLease = 3600
	// writers put records at once, as nodes would.
	writers = 16
	// peersIdle is how long a daemon is watched, after a calm of half of it.
	peersIdle = 20 * time.Second
	// Goals.
	mostResident = 60.0
	mostCPU      = 0.5
)

// peersPart measures one daemon that has many peers: its start, its needs, and
// how its kernel follows when all of them change at once.
func peersPart(ctx context.Context, b *bench) error {
	t := newTable(fmt.Sprintf("A daemon with %d peers", b.scale.peers))
	if err := b.apart(ctx, "peers", 1, func(l *lab.Lab, c *lab.EtcdCluster) error { return peersOnce(ctx, b, l, c, t) }); err != nil {
		return err
	}
	b.goals = append(b.goals,
		goal{fmt.Sprintf("resident with %d peers, MiB", b.scale.peers), mostResident, t.at("after the start", "resident, MiB", 50)},
		goal{fmt.Sprintf("idle with %d peers, %% of a core", b.scale.peers), mostCPU, t.at("after the start", "idle, % of a core", 50)},
	)
	return t.print(os.Stdout)
}

func peersOnce(ctx context.Context, b *bench, l *lab.Lab, c *lab.EtcdCluster, t *table) (err error) {
	client, err := c.Client()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	if _, err := lease.Init(ctx, client, conf.DefaultEtcdPrefix, []byte(peersConfig)); err != nil {
		return err
	}
	resp, err := client.Grant(ctx, peersLease)
	if err != nil {
		return fmt.Errorf("lease of the peers: %w", err)
	}
	p := &publisher{client: client, lease: resp.ID, keys: lease.NewKeys(conf.DefaultEtcdPrefix), count: b.scale.peers}
	if err := p.publish(ctx, 1); err != nil {
		return err
	}
	n, err := l.AddNode(ctx, "many")
	if err != nil {
		return err
	}
	for _, row := range []string{"start", "restart"} {
		began := time.Now()
		if err := n.Start(ctx, "--metrics-listen="); err != nil {
			return err
		}
		if err := p.follow(ctx, n, 1, row, began, t); err != nil {
			return err
		}
		if err := needs(ctx, n, "after the "+row, t); err != nil {
			return err
		}
		if row == "start" {
			if err := n.Stop(ctx); err != nil {
				return err
			}
		}
	}
	began := time.Now()
	if err := p.publish(ctx, 2); err != nil {
		return err
	}
	t.add("all change", "published, s", time.Since(began).Seconds())
	if err := p.follow(ctx, n, 2, "all change", began, t); err != nil {
		return err
	}
	return needs(ctx, n, "after the change", t)
}

// needs is what the daemon takes while nothing happens.
func needs(ctx context.Context, n *lab.Node, row string, t *table) error {
	if err := pause(ctx, peersIdle/2); err != nil {
		return err
	}
	before, err := processTicks(n.Pid())
	if err != nil {
		return err
	}
	if err := pause(ctx, peersIdle); err != nil {
		return err
	}
	after, err := processTicks(n.Pid())
	if err != nil {
		return err
	}
	t.add(row, "idle, % of a core", (after-before)/peersIdle.Seconds())
	rss, err := residentMiB(n.Pid())
	if err != nil {
		return err
	}
	t.add(row, "resident, MiB", rss)
	return nil
}

// publisher puts the records of nodes that exist in etcd only.
type publisher struct {
	client *clientv3.Client
	lease  clientv3.LeaseID
	keys   lease.Keys
	count  int
}

func (p *publisher) subnets(i int) lease.Subnets {
	return lease.Subnets{V4: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100 + byte(i>>8), byte(i), 0}), 24)}
}

func (p *publisher) mac(i int, epoch int64) lease.MAC {
	return lease.VTEPMAC(conf.DefaultEtcdPrefix, p.subnets(i), epoch)
}

// publish writes all of them, each by itself, with an epoch and so a MAC.
func (p *publisher) publish(ctx context.Context, epoch int64) error {
	var all sync.WaitGroup
	errs := make([]error, writers)
	for w := range writers {
		all.Go(func() {
			for i := w; i < p.count && errs[w] == nil; i += writers {
				errs[w] = p.put(ctx, i, epoch)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (p *publisher) put(ctx context.Context, i int, epoch int64) error {
	who := lease.Tenant{Node: fmt.Sprintf("peer%d", i), UID: fmt.Sprintf("00000000-0000-4000-8000-%012d", i), Boot: fmt.Sprintf("boot%d", i), Epoch: epoch}
	record, err := json.Marshal(lease.Record{PublicIP: netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), BackendType: conf.BackendVXLAN,
		BackendData: &lease.BackendData{VNI: 1, VtepMAC: p.mac(i, epoch)}, Tenure: &who})
	if err != nil {
		return err
	}
	owner, err := json.Marshal(lease.Owner{Transition: lease.Transition{UID: who.UID, Node: who.Node, Epoch: epoch, Since: time.Now().UTC(), Why: "never owned"}})
	if err != nil {
		return err
	}
	s := p.subnets(i)
	if _, err := p.client.Txn(ctx).Then(clientv3.OpPut(p.keys.Subnet(s), string(record), clientv3.WithLease(p.lease)),
		clientv3.OpPut(p.keys.Owner(s), string(owner))).Commit(); err != nil {
		return fmt.Errorf("put peer %s: %w", s, err)
	}
	return nil
}

// follow waits until the node's kernel has all peers with the MACs of an epoch,
// and adds how long that and the daemon's work took.
func (p *publisher) follow(ctx context.Context, n *lab.Node, epoch int64, row string, began time.Time, t *table) error {
	ctx, cancel := context.WithTimeout(ctx, peersLimit)
	defer cancel()
	want := map[lease.MAC]bool{}
	for i := range p.count {
		want[p.mac(i, epoch)] = true
	}
	ns, err := netns.GetFromPath(n.Path())
	if err != nil {
		return fmt.Errorf("open namespace of %s: %w", n.Host, err)
	}
	defer func() { _ = ns.Close() }()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink in %s: %w", n.Host, err)
	}
	defer h.Close()
	worked, err := processTicks(n.Pid())
	if err != nil {
		return err
	}
	if row != "all change" {
		worked = 0 // all of it since the start
	}
	for {
		missing := kernelLacks(h, want)
		if missing == nil {
			break
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("the kernel does not follow: %w: %w", missing, err)
		}
	}
	t.add(row, "in the kernel, s", time.Since(began).Seconds())
	if err := settled(ctx, n, p.count); err != nil {
		return err
	}
	t.add(row, "and in status, s", time.Since(began).Seconds())
	ticks, err := processTicks(n.Pid())
	if err != nil {
		return err
	}
	t.add(row, "CPU, s", (ticks-worked)/100)
	return nil
}

// errLacks says that the kernel has not all yet.
var errLacks = errors.New("not all is there")

// kernelLacks is nil when forwarding entries, neighbours and routes are those of
// the peers with these MACs. A dump that others' changes tear is read again.
func kernelLacks(h *netlink.Handle, want map[lease.MAC]bool) error {
	link, err := h.LinkByName("tenure.1")
	if err != nil {
		return err
	}
	index := link.Attrs().Index
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET} {
		all, err := h.NeighList(index, family)
		if err != nil {
			return err
		}
		there := 0
		for _, one := range all {
			if len(one.HardwareAddr) == 6 && want[lease.MAC(one.HardwareAddr)] {
				there++
			}
		}
		if there != len(want) {
			return fmt.Errorf("%w: %d of %d MACs in family %d", errLacks, there, len(want), family)
		}
	}
	routes, err := h.RouteListFiltered(unix.AF_INET, &netlink.Route{LinkIndex: index}, netlink.RT_FILTER_OIF)
	if err != nil {
		return err
	}
	if len(routes) < len(want) {
		return fmt.Errorf("%w: %d of %d routes", errLacks, len(routes), len(want))
	}
	return nil
}
