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
		Name: c.Instance, Networks: networksOf(v.Network), Former: v.Networks,
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
func networksOf(n *conf.Network) []netip.Prefix {
	var all []netip.Prefix
	for _, f := range familiesOf(n) {
		all = append(all, f.network(n))
	}
	return all
}

// wireOverlay adds the vxlan devices and the peers while a subnet is held.
// Without one they stay as they are in the kernel, closed by the fence. So
// they do after a restart until etcd has been heard: that no peer is known yet
// does not mean that there is none.
func wireOverlay(d *dataplane.Desired, v lease.View, u Underlay, c Config) {
	if !v.Held || v.Snapshot == nil {
		return
	}
	for _, f := range familiesOf(v.Network) {
		wireDevice(d, f, v, u, c)
	}
	d.AsFound = absent(v.Network, u)
	d.KeepPeers = v.Settling
	for _, p := range peers(v, u) {
		for _, way := range p.ways {
			if way.reason == "" {
				d.Peers = append(d.Peers, way.Peer)
			} else if subnet := way.subnet(p.entry.Subnets); v.Settling && way.inside(subnet, v.Network) {
				d.Claims = append(d.Claims, subnet)
			}
		}
	}
	wirePaths(d, v.Network.Backend, u)
}

// absent are the families that pods have, and this node has no address for. To
// take their peers out of the kernel would help nobody: the address may be there
// all the same, and only not be one to announce.
func absent(n *conf.Network, u Underlay) dataplane.Families {
	var all dataplane.Families
	for _, f := range familiesOf(n) {
		if local, _ := f.local(u); !local.IsValid() {
			all.V4, all.V6 = all.V4 || !f.six, all.V6 || f.six
		}
	}
	return all
}

// wireDevice adds the device of one family, if there is an address that its
// packets can come from.
func wireDevice(d *dataplane.Desired, f family, v lease.View, u Underlay, c Config) {
	held := v.Holding.Subnets()
	subnet := f.subnet(held)
	local, _ := f.local(u)
	if !subnet.IsValid() || !local.IsValid() {
		return
	}
	d.Overlays = append(d.Overlays, dataplane.Vxlan{
		VNI: v.Network.Backend.VNI, Port: v.Network.Backend.Port,
		Local: local, Parent: u.Interface, MTU: u.OverlayMTU(v.Network, f.six), TxChecksum: c.TxChecksum,
		MAC:  dataplane.MAC(lease.VTEPMAC(c.Prefix, held, v.Holding.Epoch())),
		Addr: netip.PrefixFrom(subnet.Addr(), subnet.Addr().BitLen()),
	})
}

// wireBridge adds the bridge with a gateway for the held subnet and one for
// each subnet that stranded pods still sit on.
func wireBridge(d *dataplane.Desired, v lease.View, u Underlay, pods []ipam.Allocation, c Config) {
	gateways := map[netip.Prefix]bool{}
	former := map[netip.Prefix][]netip.Addr{}
	if v.Held {
		for _, subnet := range v.Holding.Subnets().All() {
			gateways[gatewayIn(subnet)] = true
		}
	}
	for _, a := range pods {
		if a.IPAM {
			continue
		}
		d.Bridge.Ports = append(d.Bridge.Ports, a.Host)
		for _, p := range a.Addresses {
			if v.Held && covers(v.Holding.Subnets(), p) {
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
			if !inside {
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
	subnet := lease.Subnets{V4: p}
	if p.Addr().Is6() {
		subnet = lease.Subnets{V6: p}
	}
	return v.Snapshot != nil && slices.ContainsFunc(v.Snapshot.Entries, func(e lease.Entry) bool {
		return e.Tenant().UID != uid && !tombstone(e) && e.Overlaps(subnet)
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

// peer is another node's record, with what leads to it in each family that pods
// have.
type peer struct {
	entry lease.Entry
	ways  []familyWay
}

// familyWay is how a peer is programmed in one family, and why it is not if it
// is not.
type familyWay struct {
	family
	dataplane.Peer
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
		if v.Held && e.Subnets == v.Holding.Subnets() && (e.Lease == v.Holding.LeaseID() || e.Tenant() == v.Holding.Record().Tenant()) {
			continue // also where it has moved to another lease, and the answer is on its way
		}
		p := peer{entry: e}
		for _, f := range familiesOf(v.Network) {
			p.ways = append(p.ways, f.way(e, v.Network, u))
		}
		all = append(all, p)
	}
	return all
}

// way is what leads to the node of a record in one family.
func (f family) way(e lease.Entry, n *conf.Network, u Underlay) familyWay {
	out := familyWay{family: f, reason: cmp.Or(unusable(e), f.unusable(e, n, u))}
	if out.reason != "" {
		return out
	}
	addr, data := f.announced(e.Record)
	local, link := f.local(u)
	if !local.IsValid() {
		out.reason, out.far = fmt.Sprintf("this node has no %s address that outer packets can come from, so what leads there stays as it is", f), true
		return out
	}
	w := wayTo(n.Backend, e.BackendType, addr, link, data)
	out.Peer = dataplane.Peer{Subnet: f.subnet(e.Subnets), PublicIP: addr, MAC: dataplane.MAC(w.mac), Direct: w.direct}
	out.reason, out.far = w.why, w.far
	return out
}

// unusable says why a record cannot be programmed in any family; "" if nothing
// speaks against it.
func unusable(e lease.Entry) string {
	switch {
	case tombstone(e):
		return "it was taken from its node by force (tenurectl release) and is nobody's until its lease ends, then free; nothing is sent there"
	case !e.Address().IsValid():
		return "its record cannot be read"
	}
	return ""
}
