package dataplane

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// vxlan brings the overlay device in line and, on it, the peers.
func (p *planner) vxlan() {
	if p.want.Vxlan == nil {
		p.blocked = "no subnet is held"
		p.guard()
		return
	}
	name := p.want.VxlanName()
	p.otherVxlans(name)
	renamed := p.renamed(scopeVxlan, name, KindVxlan, p.want.Vxlan.MAC)
	link, exists := p.have.Links[name]
	var other string
	if other, p.blocked = p.vxlanClash(name, link, exists, renamed); p.blocked != "" {
		p.blocks(ConflictOverlay, other, p.blocked)
		return
	}
	_, parent := p.have.Links[p.want.Vxlan.Parent]
	if !parent {
		p.conflict("parent", "underlay interface %s is missing", p.want.Vxlan.Parent)
		if !exists {
			p.blocked = "underlay interface " + p.want.Vxlan.Parent + " is missing"
			return
		}
	}
	if _, known := p.have.Fenced[name]; exists && !known {
		p.blocked = "the fence on " + name + " cannot be read"
		return
	}
	dev := p.vxlanDevice(name, link, exists, parent)
	old, flushed := p.addrs(scopeVxlan, name, []netip.Prefix{p.want.Vxlan.Addr}, dev.fresh)
	p.delAddrs(scopeVxlan, name, old)
	dev.flushed, dev.noNeighs = flushed, dev.noNeighs || flushed
	p.peers(dev)
}

// guard keeps the fence on the devices that stand from before while no subnet
// is held, so that nothing else of them can be judged. Without it one
// would be open: to stranded pods, and after a restart with etcd away also past
// the deadline.
func (p *planner) guard() {
	for _, name := range keysThat(p.have.Links, strings.Compare, func(name string) bool {
		attached, known := p.have.Fenced[name]
		return p.have.Links[name].Up && known && !attached
	}) {
		p.ops = append(p.ops, Op{Scope: "fence/" + name, Change: AttachFence{name}, OnFail: SetDown{name}})
	}
}

// overlay is the vxlan device as the planned operations leave it.
type overlay struct {
	name string
	// fresh: made in this pass, so nothing that was read is on it any more.
	fresh bool
	// attached: the fence is attached in this pass; its maps may be new.
	attached bool
	// noNeighs: the kernel forgets the neighbours in this pass.
	noNeighs bool
	// flushed: the kernel may drop the routes in this pass.
	flushed bool
	// odd are forwarding entries that go before ours are set, one per MAC.
	odd map[MAC]FDB
}

// vxlanDevice makes the device, closes it, and only then brings it up. A
// device that cannot be changed into the wanted one is made anew; without the
// wanted parent it is kept as it is.
func (p *planner) vxlanDevice(name string, link Link, exists, parent bool) overlay {
	want := p.want.Vxlan
	tunnel := Tunnel{VNI: want.VNI, Port: want.Port, Local: want.Local, Parent: want.Parent}
	dev := overlay{name: name, fresh: !exists || parent && link.Tunnel != tunnel}
	if exists && dev.fresh {
		p.add(scopeVxlan, DelLink{name})
	}
	if dev.fresh {
		link = Link{}
		p.add(scopeVxlan, AddVxlan{name, tunnel, want.MAC, want.MTU})
	}
	if dev.attached = dev.fresh || !p.have.Fenced[name]; dev.attached {
		op := Op{Scope: scopeVxlan, Change: AttachFence{name}}
		if link.Up {
			// Better no overlay than an open one.
			op.OnFail = SetDown{name}
		}
		p.ops = append(p.ops, op)
	}
	if !dev.fresh {
		p.repairLink(scopeVxlan, name, link, want.MAC, want.MTU)
		dev.noNeighs = link.MAC != want.MAC || link.NoARP
	}
	if !link.Up {
		p.add(scopeVxlan, SetUp{name})
	}
	return dev
}

// otherVxlans deletes devices of ours for an earlier VNI. The name says that
// they are ours.
func (p *planner) otherVxlans(name string) {
	for _, other := range keysThat(p.have.Links, strings.Compare, func(other string) bool {
		return other != name && ourVxlan(p.want.Name, other) && p.have.Links[other].Kind == KindVxlan
	}) {
		p.add("old/"+other, DelLink{other})
	}
}

// vxlanClash returns what keeps the device from being made: a link of our
// name that is something else, or a vxlan device of somebody else with our
// VNI and port, of which the kernel allows one. renamed are ours.
func (p *planner) vxlanClash(name string, link Link, exists bool, renamed []string) (other, text string) {
	if exists && link.Kind != KindVxlan {
		return name, name + " is a " + link.Kind + " and not a vxlan device, and is left alone"
	}
	others := keysThat(p.have.Links, strings.Compare, func(other string) bool {
		l := p.have.Links[other]
		return l.Kind == KindVxlan && !ourVxlan(p.want.Name, other) && !slices.Contains(renamed, other) &&
			l.Tunnel.VNI == p.want.Vxlan.VNI && l.Tunnel.Port == p.want.Vxlan.Port
	})
	if len(others) > 0 {
		return others[0], others[0] + " is a vxlan device " + ownerOf(others[0]) + " with the same VNI and port"
	}
	return "", ""
}

// ownerOf says whose vxlan device bears the name, as far as it tells.
func ownerOf(name string) string {
	if ourVxlan("flannel", name) {
		return "of flannel, which still runs here or has left it,"
	}
	return "of others"
}

func compareNeighs(a, b Neigh) int {
	return cmp.Or(strings.Compare(a.Link, b.Link), a.Addr.Compare(b.Addr))
}

func compareFDB(a, b FDB) int {
	return cmp.Or(strings.Compare(a.Link, b.Link), compareMACs(a.MAC, b.MAC), a.Dst.Compare(b.Dst),
		strings.Compare(a.Odd, b.Odd))
}

func compareMACs(a, b MAC) int { return strings.Compare(string(a[:]), string(b[:])) }
