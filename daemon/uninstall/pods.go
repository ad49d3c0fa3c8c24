package uninstall

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netns"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/attach"
)

// findPods are the pods that have an interface of the instance in the kernel
// or an address on record, whoever made the interface. It needs no daemon.
func (r *removal) findPods(ctx context.Context) ([]string, error) {
	found, err := attach.New(r.Instance, netns.None(), slog.New(slog.DiscardHandler)).List(ctx)
	if err != nil {
		return nil, err
	}
	var pods []string
	seen := map[string]bool{}
	note := func(container, ifName string, addrs []netip.Prefix) {
		if !seen[container+" "+ifName] {
			pods = append(pods, fmt.Sprintf("container %s (%s %v)", container, ifName, addrs))
		}
		seen[container+" "+ifName] = true
	}
	for _, f := range found {
		note(f.Owner.ContainerID, f.Owner.IfName, f.Addrs)
	}
	b, err := os.ReadFile(filepath.Join(r.RunDir, "ledger.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return pods, nil
	}
	var ledger struct {
		Allocations []struct {
			ContainerID string         `json:"containerID"`
			IfName      string         `json:"ifName"`
			Addresses   []netip.Prefix `json:"addresses"`
		} `json:"allocations"`
	}
	if err == nil {
		err = json.Unmarshal(b, &ledger)
	}
	if err != nil { // the kernel has been asked; a damaged record keeps nobody here
		r.say("the record of addresses cannot be read, only interfaces count: %v", err)
	}
	for _, a := range ledger.Allocations {
		note(a.ContainerID, a.IfName, a.Addresses)
	}
	return pods, nil
}

// podNetworks are the networks as the daemon says them, or as it last wrote them.
func (r *removal) podNetworks(s *api.Status) []netip.Prefix {
	if s != nil {
		if all := prefixes(s.Network, s.Network6); len(all) > 0 {
			return all
		}
	}
	if b, err := os.ReadFile(r.SubnetFile); err == nil {
		var texts []string
		lines := bufio.NewScanner(bytes.NewReader(b))
		for lines.Scan() {
			name, text, _ := strings.Cut(lines.Text(), "=")
			if name == "FLANNEL_NETWORK" || name == "FLANNEL_IPV6_NETWORK" {
				texts = append(texts, text)
			}
		}
		if all := prefixes(texts...); len(all) > 0 {
			return all
		}
	}
	var memory struct {
		Config struct{ Network, IPv6Network string }
	}
	if b, err := os.ReadFile(filepath.Join(r.StateDir, "node.json")); err == nil {
		_ = json.Unmarshal(b, &memory) // what cannot be read is not known
	}
	return prefixes(memory.Config.Network, memory.Config.IPv6Network)
}

// prefixes are those of the texts that are networks.
func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}
