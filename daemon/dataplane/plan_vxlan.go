package dataplane

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// overlays brings the vxlan devices in line and, on them, the peers. What keeps
// one of them from its peers does not keep the other.
func (p *planner) overlays() {
	p.up = p.lookAtUplink()
	p.guard()
	p.guardUplinks()
	if !p.want.Held() {
		p.blocked[scopeVxlan], p.blocked[scopeVxlan6] = noSubnet, noSubnet
		return
	}
	p.otherVxlans()
	var devs []overlay
	for _, want := range p.want.Overlays {
		dev, why := p.vxlan(want)
		if why != "" {
			p.blocked[vxlanScope(want.Local)] = why
			continue
		}
		devs = append(devs, dev)
	}
	p.peers(devs)
	p.detachUplinks()
}

// noSubnet says why there is no overlay.
const noSubnet = "no subnet is held"

// vxlan brings one device in line, or says why no peer can be programmed there.
func (p *planner) vxlan(want Vxlan) (dev overlay, why string) {
	dev = overlay{name: want.DeviceName(p.want.Name), scope: vxlanScope(want.Local), want: want}
	renamed := p.renamed(dev.scope, dev.name, KindVxlan, want.MAC)
	link, exists := p.have.Links[dev.name]
	if other, why := p.vxlanClash(dev, link, exists, renamed); why != "" {
		p.blocks(ConflictOverlay, other, why)
		return dev, why
	}
	_, parent := p.have.Links[want.Parent]
	if !parent {
		missing := "underlay interface " + want.Parent + " is missing"
		p.conflict("parent", "%s", missing)
		if !exists {
			return dev, missing
		}
	}
	if _, known := p.have.Fenced[dev.name]; exists && !known {
		return dev, "the fence on " + dev.name + " cannot be read"
	}
	p.vxlanDevice(&dev, link, exists, parent)
	old, flushed := p.addrs(dev.scope, dev.name, []netip.Prefix{want.Addr}, dev.fresh)
	p.delAddrs(dev.scope, dev.name, old)
	dev.flushed, dev.noNeighs = flushed, dev.noNeighs || flushed
	return dev, ""
}

// guard keeps the fence on the devices that stand from before while there is
// no overlay of their family, so that nothing else of them can be judged.
// Without it one would be open: to stranded pods, and after a restart with etcd
// away also past the deadline.
func (p *planner) guard() {
	for _, name := range keysThat(p.have.Links, strings.Compare, func(name string) bool {
		attached, known := p.have.Fenced[name]
		return p.have.Links[name].Up && known && !attached && ourVxlan(p.want.Name, name) && !p.judged(name)
	}) {
		p.ops = append(p.ops, Op{Scope: "fence/" + name, Change: AttachFence{name}, OnFail: SetDown{name}})
	}
}

// judged says that there is an overlay of the family of a device's name.
func (p *planner) judged(name string) bool {
	return slices.ContainsFunc(p.want.Overlays, func(v Vxlan) bool {
		return ourVxlanOf(p.want.Name, name, v.Local.Is6())
	})
}

// overlay is a vxlan device as the planned operations leave it.
type overlay struct {
	name, scope string
	want        Vxlan
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
func (p *planner) vxlanDevice(dev *overlay, link Link, exists, parent bool) {
	want, name := dev.want, dev.name
	tunnel := Tunnel{VNI: want.VNI, Port: want.Port, Local: want.Local, Parent: want.Parent}
	dev.fresh = !exists || parent && link.Tunnel != tunnel
	if exists && dev.fresh {
		p.add(dev.scope, DelLink{name})
	}
	if dev.fresh {
		link = Link{}
		p.add(dev.scope, AddVxlan{name, tunnel, want.MAC, want.MTU})
	}
	if dev.attached = dev.fresh || !p.have.Fenced[name]; dev.attached {
		op := Op{Scope: dev.scope, Change: AttachFence{name}}
		if link.Up {
			// Better no overlay than an open one.
			op.OnFail = SetDown{name}
		}
		p.ops = append(p.ops, op)
	}
	if !dev.fresh {
		p.repairLink(dev.scope, name, link, want.MAC, want.MTU)
		dev.noNeighs = link.MAC != want.MAC || link.NoARP
	}
	if want.Local.Is6() {
		p.ipv6(dev.scope, name, true, dev.fresh)
	}
	// Ahead of the first packet: a wrong checksum is what the setting is about.
	if on, known := p.have.TxChecksum[name]; dev.fresh || known && on != want.TxChecksum {
		p.add(dev.scope+"/checksum", SetTxChecksum{name, want.TxChecksum})
	}
	if !link.Up {
		p.add(dev.scope, SetUp{name})
	}
}

// otherVxlans deletes devices of ours for an earlier VNI, and those of a family
// that pods have no more. The name says that they are ours.
func (p *planner) otherVxlans() {
	wanted := map[string]bool{}
	for _, v := range p.want.Overlays {
		wanted[v.DeviceName(p.want.Name)] = true
	}
	for _, other := range keysThat(p.have.Links, strings.Compare, func(other string) bool {
		ours := ourVxlan(p.want.Name, other) && p.have.Links[other].Kind == KindVxlan
		return ours && !wanted[other] && (p.judged(other) || !p.wantsFamily(other))
	}) {
		p.add("old/"+other, DelLink{other})
	}
}

// wantsFamily says that there is a network of the family of a device's name.
func (p *planner) wantsFamily(name string) bool {
	return slices.ContainsFunc(p.want.Networks, func(n netip.Prefix) bool {
		return ourVxlanOf(p.want.Name, name, n.Addr().Is6())
	})
}

// vxlanClash returns what keeps the device from being made: a link of our
// name that is something else, or a vxlan device of somebody else with our
// VNI and port, of which the kernel allows one in each family. renamed are ours.
func (p *planner) vxlanClash(dev overlay, link Link, exists bool, renamed []string) (other, text string) {
	if exists && link.Kind != KindVxlan {
		return dev.name, dev.name + " is a " + link.Kind + " and not a vxlan device, and is left alone"
	}
	others := keysThat(p.have.Links, strings.Compare, func(other string) bool {
		l := p.have.Links[other]
		return l.Kind == KindVxlan && !ourVxlan(p.want.Name, other) && !slices.Contains(renamed, other) &&
			l.Tunnel.VNI == dev.want.VNI && l.Tunnel.Port == dev.want.Port && l.Tunnel.six() == dev.want.Local.Is6()
	})
	if len(others) > 0 {
		return others[0], others[0] + " is a vxlan device " + ownerOf(others[0]) + " with the same VNI and port"
	}
	return "", ""
}

// ownerOf says whose vxlan device bears the name, as far as it tells.
func ownerOf(name string) string {
	if ourVxlan("flannel", name) || ourVxlan("flannel-v6", name) {
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
