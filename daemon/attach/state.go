package attach

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Want is a pod interface as it should be.
type Want struct {
	// Owner names the host end and the pod's interface (Owner.IfName).
	Owner Owner
	// Addrs are the pod's addresses with the length of their subnet, at least
	// one, at most one per family.
	Addrs []netip.Prefix
	// Gateways are the next hops of a default route each.
	Gateways []netip.Addr
	// MAC is that of the pod's interface; zero means MACFor the first address.
	MAC [6]byte
	// MTU is that of both ends, in bytes; zero means that any is right.
	MTU int
	// Bridge is the name of the bridge that the host end is a port of.
	Bridge string
}

// HostName is the name of the veth's host end.
func (w Want) HostName() string { return HostName(w.Owner) }

// HardwareAddr is the MAC of the pod's interface.
func (w Want) HardwareAddr() [6]byte {
	if w.MAC == ([6]byte{}) && len(w.Addrs) > 0 {
		return MACFor(w.Addrs[0].Addr())
	}
	return w.MAC
}

// hasIPv6 says whether the pod has an address of IPv6.
func (w Want) hasIPv6() bool {
	return slices.ContainsFunc(w.Addrs, func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// validate refuses what the kernel would refuse halfway, or accept and then
// not tell apart.
func (w Want) validate() error {
	alias := Alias(w.Owner, w.Addrs)
	owner, _, ok := ParseAlias(alias)
	switch {
	case !ok || owner != w.Owner:
		return fmt.Errorf("owner %q has a field that is empty or holds white space", w.Owner)
	case len(alias) > maxAlias:
		return fmt.Errorf("owner %q is too long for the link's alias (%d bytes, the kernel takes %d)", w.Owner, len(alias), maxAlias)
	case len(w.Owner.IfName) > maxLinkName:
		return fmt.Errorf("interface name %q is longer than %d bytes", w.Owner.IfName, maxLinkName)
	case len(w.Addrs) == 0:
		return errors.New("no address is given")
	case w.Bridge == "":
		return errors.New("no bridge is given")
	}
	return nil
}

// Link is one end of the pair as the kernel has it; the zero Link is absent.
type Link struct {
	Index int
	// Name differs from the one asked for where that is an alternative name.
	Name, Kind, Alias string
	MAC               [6]byte
	MTU               int
	Up                bool
	// Master is the index of the bridge, Hairpin the port's mode.
	Master  int
	Hairpin bool
}

// State is what the kernel has where a Want is to be.
type State struct {
	// Bridge is the bridge's index, 0 if there is none.
	Bridge int
	// Host and Pod are the links that bear the two names.
	Host, Pod Link
	// Paired says that Host and Pod are the two ends of one veth.
	Paired bool
	// Addrs are Pod's addresses, Gateways the next hops of its default routes.
	Addrs    []netip.Prefix
	Gateways []netip.Addr
}

// isOurs reports whether a link found under a host end's name is this
// instance's. The MAC tells where the alias is not yet, or no longer, there.
func (l Link) isOurs(instance, hostName string) bool {
	if l.Kind != kindVeth || l.Name != hostName {
		return false
	}
	o, _, ok := ParseAlias(l.Alias)
	return ok && o.Instance == instance && HostName(o) == hostName || l.MAC == hostMAC(instance, hostName)
}

// conflict says that something which is not ours stands where the pair
// belongs. Links are judged by their relation first: whatever was done to
// them, the two ends of one veth under our names are ours.
func conflict(w Want, have State) error {
	if have.Paired {
		return nil
	}
	if have.Pod.Index != 0 {
		return fmt.Errorf("%w: %s (%s) in the pod is not of our making", ErrInterfaceExists, w.Owner.IfName, have.Pod.Kind)
	}
	if have.Host.Index != 0 && !have.Host.isOurs(w.Owner.Instance, w.HostName()) {
		return fmt.Errorf("%w: %s (%s, alias %q) on the host is not of our making", ErrForeignHost, w.HostName(), have.Host.Kind, have.Host.Alias)
	}
	return nil
}

// hasAddr and hasGateway answer for Plan.
func (s State) hasAddr(p netip.Prefix) bool   { return slices.Contains(s.Addrs, p) }
func (s State) hasGateway(gw netip.Addr) bool { return slices.Contains(s.Gateways, gw) }
func (s State) onBridge() bool                { return s.Bridge != 0 && s.Host.Master == s.Bridge }
