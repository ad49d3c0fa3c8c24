package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/node"
	"github.com/tenure-cni/tenure/ipam"
)

// borneTime bounds the search for addresses in use at the start.
const borneTime = 20 * time.Second

// openLedger opens the record of addresses and compares it with the interfaces
// in the kernel: one that is missing or damaged is made again from them, and of
// one whose daemon was killed in the middle of a call, or could not write, what
// has no interface is freed. former are the subnets of before this start.
func openLedger(cfg conf.Daemon, o ipam.Options, a *attach.Attacher, former []netip.Prefix) (*ipam.Ledger, error) {
	l, origin, err := ipam.Open(filepath.Join(cfg.RunDir, "ledger.json"), o)
	if err != nil {
		return nil, err
	}
	found, err := a.List(context.Background())
	if err != nil {
		return nil, fmt.Errorf("compare the ledger with the pod interfaces in the kernel: %w", err)
	}
	adopt(l, found, o.Log)
	if err := adoptBorne(l, former, a, o.Log); err != nil {
		if origin != ipam.Loaded {
			return nil, fmt.Errorf("make the ledger again from the addresses of pods: %w", err)
		}
		o.Log.Warn("the ledger was not compared with the addresses of pods", "error", err)
	}
	for _, r := range node.WithoutInterface(l.List(), found) {
		// It may be there and have lost the alias that List goes by.
		if there, err := a.Exists(context.Background(), r.Host); there || err != nil {
			continue // when in doubt, keep
		}
		l.Release(r.Key)
		o.Log.Info("address freed, its pod interface is not there", "link", r.Host, "container", r.ContainerID, "addresses", r.Addresses)
	}
	return l, nil
}

// adopt puts on record what only the kernel knows. Where two claim one address,
// one record keeps it from being given out.
func adopt(l *ipam.Ledger, found []attach.Found, log *slog.Logger) {
	var all []ipam.Allocation
	for _, f := range found {
		k := node.KeyOf(f.Owner)
		if _, known := l.Get(k); known {
			continue
		}
		all = append(all, ipam.Allocation{Key: k, Addresses: f.Addrs, Host: f.HostName})
		log.Info("pod interface found in the kernel, back on record", "link", f.HostName, "container", f.Owner.ContainerID, "addresses", f.Addrs)
	}
	if err := l.Adopt(all...); err != nil {
		log.Error("pod interfaces found in the kernel, but not put on record", "error", err)
	}
}

// adoptBorne puts on record what no record knows and a pod bears all the same:
// interfaces of other plugins, with an address of tenure-ipam, do not say whose
// they are.
func adoptBorne(l *ipam.Ledger, former []netip.Prefix, a *attach.Attacher, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), borneTime)
	defer cancel()
	borne, err := a.Borne(ctx, former)
	if err != nil {
		return err
	}
	var all []ipam.Allocation
	for _, p := range node.WithoutRecord(l.List(), borne) {
		all = append(all, node.Unclaimed(p))
		log.Warn("a pod has an address that no record knows, it is not given out while it is in use", "address", p.Addr())
	}
	return l.Adopt(all...)
}

// heldBefore are the subnets that this node held before: the bridge has the
// addresses of all that still have pods, node.json has the last one. Either
// may be lost.
func (d *daemon) heldBefore(a *attach.Attacher) ([]netip.Prefix, error) {
	served, err := a.Served(context.Background(), dataplane.Desired{Name: d.cfg.Name}.BridgeName())
	if err != nil {
		return nil, fmt.Errorf("look for the subnet of before: %w", err)
	}
	last, _ := d.memory.Get().Last()
	return append(last.All(), served...), nil
}
