package node

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/lease"
)

// way is how packets get to a peer in one family, by what both can.
type way struct {
	// direct: by a plain route through the underlay interface.
	direct bool
	// mac is that of the peer's vxlan device, zero where there is none to use.
	mac lease.MAC
	// why says why there is no way; far, that none can be from this link.
	why string
	far bool
}

// wayTo decides it from this node's backend, and the peer's type, address and
// data; link is what lies on this node's underlay interface. A node with host-gw
// has no vxlan device, whether it is this one or the peer, so it is reached
// directly or not at all. That the peer believes in the other backend, while a
// config changes, does not matter: what comes in directly is forwarded by
// either, and the fence is on the uplink of whoever sends so.
//
// The address must be on the link as it is announced: one that is translated on
// the way (1:1 NAT) is not, and is reached through the overlay.
func wayTo(b conf.Backend, kind string, addr netip.Addr, link netip.Prefix, data *lease.BackendData) way {
	switch {
	case kind != conf.BackendVXLAN && kind != conf.BackendHostGW:
		return way{why: fmt.Sprintf("its backend is %q, this node speaks %s", kind, b.Type)}
	case kind == conf.BackendVXLAN && (data == nil || data.VtepMAC == lease.MAC{}):
		return way{why: "its backend is vxlan and its record has no VtepMAC"}
	}
	var w way
	near := link.IsValid() && link.Contains(addr)
	plain := b.Type == conf.BackendHostGW || kind == conf.BackendHostGW
	w.direct = near && (plain || b.DirectRouting)
	if !plain && data.VNI == b.VNI {
		w.mac = data.VtepMAC
	}
	switch {
	case w.direct || w.mac != lease.MAC{}:
	case plain:
		who := "this node's backend"
		if b.Type != conf.BackendHostGW {
			who = "its backend"
		}
		w.far, w.why = true, fmt.Sprintf("its address %s is not on the link of this node (%s), and with host-gw, %s, only nodes on one link reach each other", addr, orNone(link), who)
	default:
		w.why = fmt.Sprintf("its VNI is %d, this network's is %d", data.VNI, b.VNI)
	}
	return w
}

func orNone(p netip.Prefix) string {
	if !p.IsValid() {
		return "none is known"
	}
	return p.Masked().String()
}

// wirePaths says whether direct routes lead through the underlay interface: the
// backend asks for it, or there is a peer that is reached in no other way.
func wirePaths(d *dataplane.Desired, b conf.Backend, u Underlay) {
	if b.Type == conf.BackendHostGW || b.DirectRouting ||
		slices.ContainsFunc(d.Peers, func(p dataplane.Peer) bool { return p.Direct }) {
		d.Uplink = u.Interface
	}
	if b.Type == conf.BackendHostGW {
		d.Overlays = nil
	}
}

// lingerFor is how long a way stays after it is needed no more. The nodes change
// at different moments: one publishes what it speaks now, and others act on it,
// before the kernel of each is so far.
const lingerFor = 3 * time.Second

// prepareFor is how long a node that begins to use direct routes waits before it
// sends by them to a peer that it reaches through the overlay: by then the peer
// has seen the config too, and takes what comes in by its uplink. Where sources
// are checked strictly it would not before.
const prepareFor = time.Second

// linger remembers since when which way only stays, and since when there is an
// uplink. An overlay that a peer speaks yet stays for as long as that, and is
// not among what time alone will end.
type linger struct {
	overlay, uplink time.Duration
	peers           map[netip.Prefix]time.Duration
	// waits says that something is to change with time alone.
	waits bool
}

// keep leaves in d what before had, for a while: the overlay when the backend is
// host-gw now, for as long as a peer speaks vxlan and a little longer, and the
// direct routes to peers that had no vxlan device until now.
func (l *linger) keep(d, before dataplane.Desired, v lease.View, u Underlay, prefix string, now time.Duration) dataplane.Desired {
	l.waits = false
	if !d.Held() || !before.Held() {
		return d
	}
	switch {
	case d.Uplink == "":
		l.uplink = 0
	case before.Uplink == "":
		l.uplink = now
	}
	prepares := l.uplink != 0 && now-l.uplink < prepareFor
	overlays := overlaysOf(before, v, u, prefix)
	overlay := l.keepsOverlay(d, overlays, v, now)
	if !overlay && !prepares && before.Uplink == "" {
		l.peers = nil
		return d
	}
	d.Peers = slices.Clone(d.Peers)
	old := make(map[netip.Prefix]dataplane.Peer, len(before.Peers))
	for _, p := range before.Peers {
		old[p.Subnet] = p
	}
	if overlay {
		d.Overlays = overlays
		keepTokens(d.Peers, old, v, prefix)
	}
	if len(d.Overlays) > 0 && d.Overlays[0].Parent == before.Uplink {
		l.keepDirect(&d, before.Uplink, old, now)
	}
	if prepares {
		notYet(d.Peers, old)
	}
	l.waits = l.overlay != 0 || prepares || len(l.peers) > 0
	return d
}

// overlaysOf are those of before that are of the present tenancy: its subnet and
// its token may be another's otherwise. They move with the node's address.
func overlaysOf(before dataplane.Desired, v lease.View, u Underlay, prefix string) []dataplane.Vxlan {
	token := dataplane.MAC(lease.VTEPMAC(prefix, v.Holding.Subnets(), v.Holding.Epoch()))
	var overlays []dataplane.Vxlan
	for _, o := range before.Overlays {
		local, _ := family{o.Local.Is6()}.local(u)
		if o.MAC == token && local.IsValid() {
			o.Local = local
			overlays = append(overlays, o)
		}
	}
	return overlays
}

func (l *linger) keepsOverlay(d dataplane.Desired, before []dataplane.Vxlan, v lease.View, now time.Duration) bool {
	if len(d.Overlays) > 0 || len(before) == 0 || before[0].Parent != d.Uplink {
		l.overlay = 0
		return false
	}
	spoken := slices.ContainsFunc(v.Snapshot.Entries, func(e lease.Entry) bool {
		return e.BackendType == conf.BackendVXLAN && !tombstone(e) && e.Subnets != v.Holding.Subnets()
	})
	switch {
	case spoken:
		l.overlay = 0
		return true
	case l.overlay == 0:
		l.overlay = now
	case now-l.overlay >= lingerFor:
		l.overlay = 0
		return false
	}
	return true
}

// notYet leaves peers in the overlay that are reached through it.
func notYet(peers []dataplane.Peer, old map[netip.Prefix]dataplane.Peer) {
	for i, p := range peers {
		o := old[p.Subnet]
		if p.Direct && !o.Direct && p.MAC != (dataplane.MAC{}) && o.MAC == p.MAC && o.PublicIP == p.PublicIP {
			peers[i].Direct = false
		}
	}
}

// keepTokens keeps peers in the overlay that had a place there, by the token of
// the present tenancy: an earlier one may have been another's.
func keepTokens(peers []dataplane.Peer, old map[netip.Prefix]dataplane.Peer, v lease.View, prefix string) {
	tokens := map[netip.Prefix]dataplane.MAC{}
	for _, e := range v.Snapshot.Entries {
		if e.Tenure != nil {
			for _, subnet := range e.All() {
				tokens[subnet] = dataplane.MAC(lease.VTEPMAC(prefix, e.Subnets, e.Tenure.Epoch))
			}
		}
	}
	for i, p := range peers {
		if o := old[p.Subnet]; o.PublicIP == p.PublicIP && p.MAC == (dataplane.MAC{}) && o.MAC == tokens[p.Subnet] {
			peers[i].MAC = o.MAC
		}
	}
}

func (l *linger) keepDirect(d *dataplane.Desired, uplink string, old map[netip.Prefix]dataplane.Peer, now time.Duration) {
	since := map[netip.Prefix]time.Duration{}
	for i, p := range d.Peers {
		o := old[p.Subnet]
		first, lingers := l.peers[p.Subnet]
		if o.PublicIP != p.PublicIP || p.Direct || !o.Direct || o.MAC != (dataplane.MAC{}) && !lingers {
			continue
		}
		if !lingers {
			first = now
		}
		if now-first < lingerFor {
			since[p.Subnet] = first
			d.Peers[i].Direct, d.Uplink = true, uplink
		}
	}
	l.peers = since
}
