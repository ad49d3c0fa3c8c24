// Package dataplane keeps the kernel equal to what the node wants of it: the
// bridge, the vxlan devices with their forwarding entries, neighbours and routes,
// the iptables chains and the few sysctls without which no packet moves.
//
// It is level-triggered. A Loop reads the State from the kernel, asks the pure
// function Plan what differs from the Desired value, applies the resulting
// operations and reads again; nothing is remembered from one pass to the next
// that the kernel could be asked for. Netlink notices, a timer, a new Desired
// value and failures wake it.
//
// It promises: what someone deletes or changes comes back within seconds; the
// pass after a repair writes nothing; links, addresses, routes, rules and
// chains that are not ours are reported when they clash and never touched; a
// vxlan device is up only with the fence attached, also while no subnet is held;
// a peer's route is added only after its token, forwarding entry and neighbour
// are in place; a direct route stands only while the fence is on the uplink, and
// the uplink's own qdisc and filters are left alone.
//
// What is ours: the devices <name>0, <name>.<number> and <name>6.<number>;
// addresses inside the networks, or what those were before, on them; permanent
// neighbours and static forwarding entries on the vxlan devices; routes with
// RouteProtocol that leave through our devices, or inside the networks or what
// those were before are unreachable or lead to a gateway; the chains
// <NAME>-MASQ, <NAME>-FWD, <NAME>-RAW and <NAME>-MSS with the rules that jump to
// them from the base chains. The strict check of sources (rp_filter) is loosened
// on the uplink and the overlay where packets of one peer may come in by both.
//
// IPv6 differs from IPv4 in what the kernel does by itself: a link that goes down
// loses its addresses, an address is on a link once, with whatever length, and
// is known for its own a moment after it was added. A kernel without IPv6 is
// asked nothing of it.
//
// It must not import etcd or the packages ipam, attach, lease, fence, node and
// api: it learns everything from Desired, and the fence through Guard.
package dataplane
