package dataplane

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// MAC is an Ethernet address. The zero value means "none".
type MAC [6]byte

// String prints m as colon-separated hexadecimal.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Desired is what the kernel shall hold. The zero value of an optional part
// leaves that part of the kernel exactly as it is found.
type Desired struct {
	// Name is the instance: the bridge is <Name>0, the vxlan devices are
	// <Name>.<VNI> and <Name>6.<VNI>, the chains are <NAME>-*.
	Name string
	// Networks hold all pod subnets of the cluster, one for each family that
	// pods have; an unreachable route for each keeps packets for missing peers
	// off the default route.
	Networks []netip.Prefix
	// Former were networks before, on this node. Addresses in one of them on our
	// devices, and unreachable routes for one, are ours and old.
	Former []netip.Prefix
	// Outside are the subnets of stranded pods that are in no network: they
	// keep their way out and to the pods beside them.
	Outside []netip.Prefix
	// Bridge is left alone while its MAC is zero.
	Bridge Bridge
	// HostRoutes are the stranded pods that need a route of their own to the
	// bridge, because another node now holds the subnet around them.
	HostRoutes []netip.Addr
	// Overlays are the vxlan devices, at most one for each family, which is
	// that of Local, of the pods' packets in it, and of the peers it leads to.
	// With none, and no Uplink, no subnet is held: the devices, their peers and
	// the fence's tokens then stay as they are.
	Overlays []Vxlan
	// Uplink is the underlay interface where direct routes may lead through it:
	// the fence is on it then, whether there is such a peer at the moment or not.
	// "" takes both away. With an Uplink and no Overlays there is no vxlan device.
	Uplink string
	// AsFound are families for which this node has no address at the moment: their
	// devices and direct routes stay as they are, and so does what leads to peers
	// by them, as long as the backend stays.
	AsFound Families
	// Peers are the other nodes, each once for each family that it has a
	// subnet of. Where two overlap, the earlier one in the list is programmed
	// and the later one reported as a conflict.
	Peers []Peer
	// KeepPeers keeps the peers that the kernel has although Peers lacks
	// them: for as long as the list they should be in cannot be believed. One
	// that overlaps Peers, Claims or this node's own subnets goes all the same.
	KeepPeers bool
	// Claims are subnets of nodes that cannot be programmed as peers. They
	// say only that nobody else has them any more.
	Claims []netip.Prefix
	// Masq masquerades what leaves the networks.
	Masq bool
	// MasqRandomFully adds --random-fully where iptables knows it.
	MasqRandomFully bool
	// ForwardAccept accepts forwarded packets from and to the networks, after all
	// other rules of the FORWARD chain.
	ForwardAccept bool
	// Clamp is the largest packet, in bytes, that TCP of pods may agree on: the
	// segments named when a connection is made are lowered to it, and to what
	// the connection's way takes. 0 leaves them alone.
	Clamp int
}

// Held says whether a subnet is held, as far as it is known here: where it is
// not, what leads to the peers stays as it is.
func (d Desired) Held() bool { return len(d.Overlays) > 0 || d.Uplink != "" }

// BridgeName is the name of the bridge.
func (d Desired) BridgeName() string { return bridgeName(d.Name) }

// network is the network around the address, the zero Prefix if there is none.
func (d Desired) network(a netip.Addr) netip.Prefix {
	for _, n := range d.Networks {
		if n.Contains(a) {
			return n
		}
	}
	return netip.Prefix{}
}

// ours says that an address on one of our devices is one that we made: it lies
// in a network, or in what that was before.
func (d Desired) ours(a netip.Addr) bool {
	return d.network(a).IsValid() || slices.ContainsFunc(d.Former, func(p netip.Prefix) bool { return p.Contains(a) })
}

// families are those that pods have, or had on this node.
func (d Desired) families() Families {
	var f Families
	for _, p := range slices.Concat(d.Networks, d.Outside, d.Former) {
		f.V4, f.V6 = f.V4 || p.Addr().Is4(), f.V6 || p.Addr().Is6()
	}
	return f
}

// asFound says that what leads to an address stays as it is.
func (d Desired) asFound(a netip.Addr) bool { return d.AsFound.of(a.Is6()) }

// inNetwork says whether a whole prefix lies in one of the networks.
func (d Desired) inNetwork(p netip.Prefix) bool {
	n := d.network(p.Addr())
	return n.IsValid() && p.Bits() >= n.Bits()
}

// Bridge is the device the pods are plugged into.
type Bridge struct {
	MAC MAC
	// MTU is in bytes; 0 leaves it to the kernel.
	MTU int
	// Gateways are the bridge's addresses: the live subnet's gateway with the
	// subnet's length, and one for each stranded subnet, with the subnet's
	// length or, once another node holds that subnet, as a /32.
	Gateways []netip.Prefix
	// Former are stranded subnets that stay in the form the kernel has them in.
	Former []Former
	// Ports are the host ends of the live pods' interfaces. One that exists
	// is kept up and on the bridge; one that does not is not made.
	Ports []string
}

// Vxlan is the overlay device.
type Vxlan struct {
	VNI int
	// Port is the UDP port of the outer packets.
	Port int
	// Local is the source address of the outer packets; its family is that of
	// the inner ones too.
	Local netip.Addr
	// Parent is the name of the underlay interface.
	Parent string
	MAC    MAC
	// MTU is in bytes; 0 leaves it to the kernel.
	MTU int
	// TxChecksum leaves checksums of inner packets to the hardware below.
	TxChecksum bool
	// Addr is the subnet's base address with a host length.
	Addr netip.Prefix
}

// DeviceName is the name of the device of an instance.
func (v Vxlan) DeviceName(instance string) string {
	return vxlanPrefix(instance, v.Local.Is6()) + strconv.Itoa(v.VNI)
}

// Peer is another node as the data plane sees it, in one family.
type Peer struct {
	Subnet netip.Prefix
	// PublicIP is where the peer's outer packets go.
	PublicIP netip.Addr
	// MAC is the peer's VTEP MAC, its token; zero where it has no vxlan device.
	MAC MAC
	// Direct asks for a plain route to PublicIP through the Uplink. A peer that
	// also has a MAC keeps its place in the overlay: packets from it may come
	// in that way, and go out that way while there can be no plain route.
	Direct bool
}
