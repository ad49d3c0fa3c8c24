package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/node"
	"github.com/tenure-cni/tenure/ipam"
)

// openLedger opens the record of addresses and compares it with the interfaces
// in the kernel: one that is missing or damaged is made again from them, and of
// one whose daemon was killed in the middle of a call, or could not write, what
// has no interface is freed.
func openLedger(cfg conf.Daemon, o ipam.Options, a *attach.Attacher) (*ipam.Ledger, error) {
	l, _, err := ipam.Open(filepath.Join(cfg.RunDir, "ledger.json"), o)
	if err != nil {
		return nil, err
	}
	found, err := a.List(context.Background())
	if err != nil {
		return nil, fmt.Errorf("compare the ledger with the pod interfaces in the kernel: %w", err)
	}
	adopt(l, found, o.Log)
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
