package node

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/ipam"
)

// Underlay is how this node reaches the others.
type Underlay struct {
	// Interface is the name of the underlay interface.
	Interface string
	// PublicIP is what the node announces; Local is the address on the
	// interface that outer packets come from. They differ behind 1:1 NAT.
	PublicIP, Local netip.Addr
	// PublicIP6 and Local6 are the same of IPv6; the zero Addr where the node
	// has none.
	PublicIP6, Local6 netip.Addr
	// Net and Net6 are what lies on the interface's link by the prefix lengths
	// of Local and Local6: others in there are reached without a gateway.
	Net, Net6 netip.Prefix
	// MTU is the interface's, in bytes.
	MTU int
}

func bridgeName(instance string) string { return instance + "0" }

// Desired is the data plane as it should be: a pure function of what is held,
// what the others announce, and which pods there are. It is false while there
// is no network config, and so nothing to be wanted.
func Desired(v lease.View, u Underlay, pods []ipam.Allocation, c Config) (dataplane.Desired, bool) {
	if v.Network == nil {
		return dataplane.Desired{}, false
	}
	d := dataplane.Desired{
		Name: c.Instance, Networks: networksOf(*v.Network), Former: v.Networks,
		Masq: c.Masq, MasqRandomFully: c.MasqRandomFully, ForwardAccept: c.ForwardAccept,
	}
	if c.ClampMSS {
		d.Clamp = u.PodMTU(v.Network)
	}
	wireOverlay(&d, v, u, c)
	wireBridge(&d, v, u, pods, c)
	return d, true
}

// networksOf are the ranges of all nodes, one for each family that pods have.
func networksOf(n conf.Network) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range []netip.Prefix{n.Network, n.IPv6Network} {
		if p.IsValid() {
			all = append(all, p)
		}
	}
	return all
}

// wireOverlay adds the vxlan device and the peers while a subnet is held.
// Without one they stay as they are in the kernel, closed by the fence. So
// they do after a restart until etcd has been heard: that no peer is known yet
// does not mean that there is none.
func wireOverlay(d *dataplane.Desired, v lease.View, u Underlay, c Config) {
	if !v.Held || v.Snapshot == nil {
		return
	}
	held := v.Holding.Subnets()
	d.Overlays = []dataplane.Vxlan{{
		VNI: v.Network.Backend.VNI, Port: v.Network.Backend.Port,
		Local: u.Local, Parent: u.Interface, MTU: u.OverlayMTU(v.Network, false), TxChecksum: c.TxChecksum,
		MAC:  dataplane.MAC(lease.VTEPMAC(c.Prefix, held, v.Holding.Epoch())),
		Addr: netip.PrefixFrom(held.V4.Addr(), held.V4.Addr().BitLen()),
	}}
	d.KeepPeers = v.Settling
	for _, p := range peers(v, u) {
		if p.reason == "" {
			d.Peers = append(d.Peers, p.Peer)
		} else if v.Settling && inside(p.entry.V4, v.Network) {
			d.Claims = append(d.Claims, p.entry.V4)
		}
	}
	wirePaths(d, v.Network.Backend, u)
}

// wireBridge adds the bridge with a gateway for the held subnet and one for
// each subnet that stranded pods still sit on.
func wireBridge(d *dataplane.Desired, v lease.View, u Underlay, pods []ipam.Allocation, c Config) {
	gateways := map[netip.Prefix]bool{}
	former := map[netip.Prefix][]netip.Addr{}
	if v.Held && v.Holding.Subnets().V4.IsValid() {
		gateways[gatewayIn(v.Holding.Subnets().V4)] = true
	}
	for _, a := range pods {
		if a.IPAM {
			continue
		}
		d.Bridge.Ports = append(d.Bridge.Ports, a.Host)
		for _, p := range a.Addresses {
			if !p.Addr().Is4() || v.Held && covers(v.Holding.Subnets(), p) {
				continue
			}
			gateway := gatewayIn(p.Masked())
			if v.Snapshot == nil { // nobody knows yet who holds it
				former[gateway] = append(former[gateway], p.Addr())
				continue
			}
			if takenByAnother(v, p.Masked(), c.uid(v)) {
				// The prefix is the new tenant's; only our own pods stay here.
				gateway = netip.PrefixFrom(gateway.Addr(), gateway.Addr().BitLen())
				d.HostRoutes = append(d.HostRoutes, p.Addr())
			}
			gateways[gateway] = true
		}
	}
	wireOutside(d, pods)
	if len(gateways)+len(former) == 0 {
		return
	}
	d.Bridge.MAC = dataplane.MAC(bridgeMAC(c.UID, c.Instance))
	d.Bridge.MTU = u.PodMTU(v.Network)
	d.Bridge.Gateways = append(d.Bridge.Gateways, slices.SortedFunc(maps.Keys(gateways), comparePrefixes)...)
	for _, g := range slices.SortedFunc(maps.Keys(former), comparePrefixes) {
		slices.SortFunc(former[g], netip.Addr.Compare)
		d.Bridge.Former = append(d.Bridge.Former, dataplane.Former{Gateway: g, Pods: former[g]})
	}
	slices.SortFunc(d.HostRoutes, netip.Addr.Compare)
	slices.Sort(d.Bridge.Ports)
}

// wireOutside notes where stranded pods are whose network is none any more.
func wireOutside(d *dataplane.Desired, pods []ipam.Allocation) {
	outside := map[netip.Prefix]bool{}
	for _, a := range pods {
		for _, p := range a.Addresses {
			inside := slices.ContainsFunc(d.Networks, func(n netip.Prefix) bool { return n.Contains(p.Addr()) })
			if p.Addr().Is4() && !inside {
				outside[p.Masked()] = true
			}
		}
	}
	if len(outside) > 0 {
		d.Outside = slices.SortedFunc(maps.Keys(outside), comparePrefixes)
	}
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func gatewayIn(subnet netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(ipam.Gateway(subnet), subnet.Bits())
}

func takenByAnother(v lease.View, p netip.Prefix, uid string) bool {
	return v.Snapshot != nil && slices.ContainsFunc(v.Snapshot.Entries, func(e lease.Entry) bool {
		return e.Tenant().UID != uid && !tombstone(e) && e.Overlaps(lease.Subnets{V4: p})
	})
}

// bridgeMAC is a pure function of the node and the instance, so that the
// gateway keeps its address across restarts and whatever ports come and go.
func bridgeMAC(uid, instance string) lease.MAC {
	sum := sha256.Sum256([]byte("bridge|" + uid + "|" + instance))
	var m lease.MAC
	copy(m[:], sum[:])
	m[0] = m[0]&^0x01 | 0x02
	return m
}

func (n *Node) bridgeMAC() lease.MAC { return bridgeMAC(n.cfg.UID, n.cfg.Instance) }

func (n *Node) network() *conf.Network {
	v, _ := n.cfg.Tenancy.Changed()
	return v.Network
}

// peer is another node's record, and why it is not programmed if it is not.
type peer struct {
	dataplane.Peer
	entry  lease.Entry
	reason string
	// far: nothing can lead to it from this node's link.
	far bool
}

// tombstone says that a record is nobody's: it was taken from its holder by
// force, and only keeps the subnet from others until the holder's overlay has
// closed. Nobody sends to it or hears from it: whoever had it is given up, and
// what is sent there is better refused at once than lost.
func tombstone(e lease.Entry) bool { return e.Tenure != nil && e.Tenure.UID == "" }

// peers are all records but this node's own.
func peers(v lease.View, u Underlay) []peer {
	if v.Snapshot == nil || v.Network == nil {
		return nil
	}
	var all []peer
	for _, e := range v.Snapshot.Entries {
		if v.Held && e.Subnets == v.Holding.Subnets() && e.Lease == v.Holding.LeaseID() {
			continue
		}
		p := peer{entry: e, reason: unusable(e, v.Network, u)}
		if p.reason == "" {
			w := wayTo(v.Network.Backend, e.BackendType, e.PublicIP, u.Net, e.BackendData)
			p.Peer = dataplane.Peer{Subnet: e.V4, PublicIP: e.PublicIP, MAC: dataplane.MAC(w.mac), Direct: w.direct}
			p.reason, p.far = w.why, w.far
		}
		all = append(all, p)
	}
	return all
}

// unusable says why a record cannot be programmed, whatever its backend is; ""
// if it can.
func unusable(e lease.Entry, n *conf.Network, u Underlay) string {
	switch {
	case tombstone(e):
		return "it was taken from its node by force (tenurectl release) and is nobody's until its lease ends, then free; nothing is sent there"
	case !e.PublicIP.IsValid():
		return "its record cannot be read"
	case n.Network.Contains(e.PublicIP):
		return fmt.Sprintf("its address %s lies in the pod network %s: packets to it would go round in the overlay", e.PublicIP, n.Network)
	case e.PublicIP == u.PublicIP, e.PublicIP == u.Local:
		return fmt.Sprintf("it announces this node's own address %s (a record of an earlier life, or a second node with that address)", e.PublicIP)
	case !e.PublicIP.Is4() || e.PublicIP.IsUnspecified():
		return fmt.Sprintf("its address %s is no IPv4 address of a machine", e.PublicIP)
	case !e.V4.IsValid():
		return "it has no IPv4 subnet"
	case !inside(e.V4, n):
		return fmt.Sprintf("its subnet is not inside %s", n.Network)
	}
	return ""
}

// inside says whether a subnet is there and lies in the network.
func inside(subnet netip.Prefix, n *conf.Network) bool {
	return subnet.IsValid() && n.Network.Contains(subnet.Addr()) && subnet.Bits() >= n.Network.Bits()
}
