package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/daemon/node"
	"github.com/tenure-cni/tenure/ipam"
)

// files keeps subnet.env and the conflist equal to what is held until ctx
// ends. Neither is removed on stop: a runtime needs the conflist to stop pods.
func (d *daemon) files(ctx context.Context) error {
	last := ""
	for {
		v, changed := d.engine.Changed()
		if u, ok := d.underlay.Get(); ok && v.Held && v.Network != nil {
			err := d.writeFiles(v, u)
			if err != nil && err.Error() != last {
				d.log.Error("file for other programs not written", "error", err)
			}
			last = fmt.Sprint(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-d.moved:
		}
	}
}

func (d *daemon) writeFiles(v lease.View, u node.Underlay) error {
	if err := replace(d.cfg.SubnetFile, subnetEnv(v, u, d.cfg.IPMasq)); err != nil {
		return err
	}
	if d.cfg.CNIConfFile == "" {
		return nil
	}
	if err := replace(d.cfg.CNIConfFile, conf.Conflist(d.cfg.Socket)); err != nil {
		return err
	}
	return d.removeFormer()
}

// subnetEnv is the file that flannel's users know, in its form.
func subnetEnv(v lease.View, u node.Underlay, masq bool) []byte {
	var b strings.Builder
	if p := v.Holding.Subnets().V4; p.IsValid() {
		fmt.Fprintf(&b, "FLANNEL_NETWORK=%s\nFLANNEL_SUBNET=%s/%d\n", v.Network.Network, ipam.Gateway(p), p.Bits())
	}
	if p := v.Holding.Subnets().V6; p.IsValid() {
		fmt.Fprintf(&b, "FLANNEL_IPV6_NETWORK=%s\nFLANNEL_IPV6_SUBNET=%s/%d\n", v.Network.IPv6Network, ipam.Gateway(p), p.Bits())
	}
	fmt.Fprintf(&b, "FLANNEL_MTU=%d\nFLANNEL_IPMASQ=%t\n", u.PodMTU(v.Network), masq)
	return []byte(b.String())
}

// replace writes a file atomically where its content differs. The temporary
// file is in the same directory and its name ends in no extension that a
// runtime reads; a runtime sees the rename within its own directory.
func replace(path string, content []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("directory of %s: %w", path, err)
	}
	if err := renameio.WriteFile(path, content, 0o644, renameio.WithTempDir(filepath.Dir(path))); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
