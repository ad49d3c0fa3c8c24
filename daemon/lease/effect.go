package lease

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// Effect is what the config next would do to the cluster as the snapshot shows
// it. taken are prefixes that the network must not cover, beside the addresses
// that the nodes announce; what else is on the nodes only they know. It is pure.
func Effect(s *Snapshot, next []byte, taken []conf.Named) api.ConfigEffect {
	e := api.ConfigEffect{Changes: []string{}, Faults: []string{}, Orphaned: []api.Orphan{}, Warnings: []string{}, Notes: []string{}}
	old, _, oldErr := conf.ParseNetwork(s.Config.Value)
	if oldErr == nil {
		c := NewMap(old, s, nil, "").Counts
		e.Before = &c
	}
	n, warnings, err := conf.ParseNetwork(next)
	e.Warnings = append(e.Warnings, warnings...)
	if err != nil {
		e.Faults = append(e.Faults, faultTexts(err)...)
		return e
	}
	e.Faults = append(e.Faults, faultTexts(conf.Overlaps(n, append(addressesOf(s), taken...)).Err())...)
	for _, entry := range s.Entries {
		for _, f := range conf.Judge(n, entry.All()) {
			e.Orphaned = append(e.Orphaned, api.Orphan{Subnet: entry.String(), Node: entry.Tenant().Node, Why: f.String()})
		}
	}
	c := NewMap(n, s, nil, "").Counts
	e.After = &c
	if oldErr != nil {
		e.Notes = append(e.Notes, "there is no usable network config now; nodes that hold a subnet go on with the last good one")
	} else if e.Changes = append(e.Changes, changes(old, n)...); !e.Refused() {
		e.Notes = append(e.Notes, effects(old, n, s)...)
	}
	for name, r := range s.Reservations {
		if _, ok := gridSubnets(n, name); !ok {
			e.Warnings = append(e.Warnings, fmt.Sprintf("the reservation of %s for %s does not count: it is no subnet of this network", name, r.Value.Node))
		}
	}
	slices.Sort(e.Warnings)
	return e
}

// faultTexts are the faults of an error, one by one.
func faultTexts(err error) []string {
	var faults conf.Faults
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &faults):
		return []string{err.Error()}
	}
	var texts []string
	for _, f := range faults {
		texts = append(texts, f.String())
	}
	return texts
}

// addressesOf are the nodes' addresses on the underlay.
func addressesOf(s *Snapshot) []conf.Named {
	var all []conf.Named
	for _, e := range s.Entries {
		for _, a := range e.Addresses() {
			all = append(all, conf.Named{Prefix: netip.PrefixFrom(a, a.BitLen()), What: e.holder()})
		}
	}
	return all
}

// changes names the values that differ, defaults filled in.
func changes(old, next conf.Network) []string {
	was, is := values(old), values(next)
	var all []string
	for _, k := range slices.Sorted(maps.Keys(merged(was, is))) {
		if was[k] != is[k] {
			all = append(all, fmt.Sprintf("%s: %s → %s", k, orNone(was[k]), orNone(is[k])))
		}
	}
	return all
}

func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// values are the config's by their full names, such as Backend.VNI.
func values(n conf.Network) map[string]string {
	all := map[string]string{}
	b, err := json.Marshal(n)
	if err != nil {
		return all
	}
	flatten(all, "", b)
	return all
}

func flatten(into map[string]string, name string, b json.RawMessage) {
	var object map[string]json.RawMessage
	if json.Unmarshal(b, &object) != nil || object == nil {
		into[name] = string(bytes.Trim(b, `"`))
		return
	}
	for k, v := range object {
		if name != "" {
			k = name + "." + k
		}
		flatten(into, k, v)
	}
}

// effects says what the nodes will do.
func effects(old, n conf.Network, s *Snapshot) []string {
	var all []string
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if old.LeaseTTL != n.LeaseTTL {
		say("LeaseTTL: each of %d holders moves to a lease of %s at its next renewal, within about %s", len(s.Entries), n.LeaseTTL, Interval(old.LeaseTTL))
		say("LeaseTTL: etcd may then be away for %s without any effect on pods, and was allowed %s", n.LeaseTTL-Margin(n.LeaseTTL), old.LeaseTTL-Margin(old.LeaseTTL))
		say("LeaseTTL: the subnet of a node that vanishes is free after %s; a node that is cut off now keeps its old lease", n.LeaseTTL)
	}
	if old.Network != n.Network || old.IPv6Network != n.IPv6Network {
		say("Network: every node changes routes, masquerade and fence to %s while it runs; a node on which another interface or the underlay lies in it refuses the config and goes on with the old one", networkName(n))
	}
	beyond := 0
	for _, e := range s.Entries {
		if _, ok := n.IndexOf(e.first(n)); !ok {
			beyond++
		}
	}
	if beyond > 0 {
		say("%d held subnets are not from %s to %s: they stay with their holders, and are not given out again", beyond, n.SubnetAt(0), n.SubnetAt(n.SubnetCount()-1))
	}
	before := old.Backend
	if before.MTU != n.Backend.MTU {
		say("Backend.MTU: bridge and overlay of every node change while packets flow; pods that run keep theirs until they are started anew")
		before.MTU = n.Backend.MTU
	}
	if before != n.Backend {
		say("%s", backendEffect(before, n.Backend))
	}
	return all
}

// backendEffect says what another way between the nodes does to packets.
func backendEffect(old, n conf.Backend) string {
	switch {
	case old.Type != n.Type && n.Type == conf.BackendHostGW:
		return "Backend.Type: every node goes over to plain routes to the nodes on its own link, and takes its vxlan device away a little later; nodes on another link are not reached any more (status: unreachable)"
	case old.Type != n.Type:
		return "Backend.Type: every node makes a vxlan device, and goes over to it from plain routes a little later; pods that run keep an MTU that is too great for it until they are started anew"
	case old.VNI == n.VNI && old.Port == n.Port && n.DirectRouting:
		return "Backend.DirectRouting: every node goes over to plain routes to the nodes on its own link; the overlay stays for the others"
	case old.VNI == n.VNI && old.Port == n.Port:
		return "Backend.DirectRouting: every node takes its plain routes back and sends through the overlay"
	}
	return "Backend: every node makes its vxlan device anew, at its own moment: expect an interruption between nodes until all have"
}

// Configure writes the config that Effect was asked about, into the store as it
// was seen. Where config, store or any subnet's key has changed since, it is
// ErrChangedBetween: look again.
func Configure(ctx context.Context, c *clientv3.Client, prefix string, seen *Snapshot, config []byte) error {
	k := NewKeys(prefix)
	if seen.Config.ModRevision == 0 {
		return ErrNotBorn
	}
	resp, err := commit(ctx, c, configure(k, seen, config), maxCall)
	if err != nil {
		return fmt.Errorf("write %s: %w", k.Config(), err)
	}
	if !resp.Succeeded {
		return fmt.Errorf("write %s: %w", k.Config(), ErrChangedBetween)
	}
	return nil
}
