package attach

import (
	"fmt"
	"net"
	"net/netip"
)

// Action is the kind of an Op.
type Action int

// The actions, in the order in which a plan has them.
const (
	DeleteHost Action = iota // an orphan of an earlier attempt
	CreatePair               // both ends, each in its namespace, with MAC and MTU
	SetAlias                 // of the host end
	SetMTU
	JoinBridge // host end
	SetHairpin // host end
	SetMAC     // pod end
	SetUp
	AddAddr  // pod end
	AddRoute // pod end
)

// Op is one idempotent change in the kernel.
type Op struct {
	Action Action
	// Pod says which end it concerns: the pod's, or the host's.
	Pod bool
	// Link is the name of that end.
	Link string
	// Value is what is set, in words, and what is there instead.
	Value string
	// Addr is what AddAddr adds, Gateway the next hop of AddRoute.
	Addr    netip.Prefix
	Gateway netip.Addr
}

// String says what the Op does, for the log and for CHECK.
func (o Op) String() string {
	side := "host"
	if o.Pod {
		side = "pod"
	}
	return fmt.Sprintf("%s %s: %s", side, o.Link, o.Value)
}

// Plan is what makes have into w, in order; empty if nothing is to be done.
// It supposes that nothing foreign is in the way, and never looks at the host
// end's MAC, which others may change without harm.
func Plan(w Want, have State) []Op {
	p := plan{want: w}
	if !have.Paired {
		if have.Host.Index != 0 {
			p.host(DeleteHost, "delete the orphan, its peer is not %s of this pod", w.Owner.IfName)
		}
		p.host(CreatePair, "create with peer %s in the pod", w.Owner.IfName)
		made := Link{MTU: w.MTU, MAC: w.HardwareAddr()} // as CreatePair leaves both ends
		have = State{Bridge: have.Bridge, Host: made, Pod: made}
	}
	p.hostEnd(have)
	p.podEnd(have)
	return p.ops
}

type plan struct {
	want Want
	ops  []Op
}

func (p *plan) host(a Action, format string, args ...any) {
	p.ops = append(p.ops, Op{Action: a, Link: p.want.HostName(), Value: fmt.Sprintf(format, args...)})
}

func (p *plan) pod(a Action, format string, args ...any) {
	p.ops = append(p.ops, Op{Action: a, Pod: true, Link: p.want.Owner.IfName, Value: fmt.Sprintf(format, args...)})
}

// hostEnd brings the port up last, so that no frame passes before it is whole.
func (p *plan) hostEnd(have State) {
	if alias := Alias(p.want.Owner, p.want.Addrs); have.Host.Alias != alias {
		p.host(SetAlias, "set alias %q", alias)
	}
	if p.want.MTU != 0 && have.Host.MTU != p.want.MTU {
		p.host(SetMTU, "set mtu %d, it is %d", p.want.MTU, have.Host.MTU)
	}
	if !have.onBridge() {
		p.host(JoinBridge, "join bridge %s", p.want.Bridge)
	}
	if !have.onBridge() || !have.Host.Hairpin { // a new port starts without it
		p.host(SetHairpin, "set hairpin on")
	}
	if !have.Host.Up {
		p.host(SetUp, "set up")
	}
}

// podEnd adds the routes last: the kernel takes a next hop only if an address
// on a link that is up reaches it.
func (p *plan) podEnd(have State) {
	if p.want.MTU != 0 && have.Pod.MTU != p.want.MTU {
		p.pod(SetMTU, "set mtu %d, it is %d", p.want.MTU, have.Pod.MTU)
	}
	if mac := p.want.HardwareAddr(); have.Pod.MAC != mac {
		p.pod(SetMAC, "set address %s, it is %s", net.HardwareAddr(mac[:]), net.HardwareAddr(have.Pod.MAC[:]))
	}
	if !have.Pod.Up {
		p.pod(SetUp, "set up")
	}
	for _, a := range p.want.Addrs {
		if !have.hasAddr(a) {
			p.pod(AddAddr, "add address %s", a)
			p.ops[len(p.ops)-1].Addr = a
		}
	}
	for _, gw := range p.want.Gateways {
		if !have.hasGateway(gw) {
			p.pod(AddRoute, "add default route via %s", gw)
			p.ops[len(p.ops)-1].Gateway = gw
		}
	}
}

// promised leaves out what a pod's life does not depend on: the alias serves
// a rebuild of our own records.
func promised(ops []Op) []Op {
	var kept []Op
	for _, o := range ops {
		if o.Action != SetAlias {
			kept = append(kept, o)
		}
	}
	return kept
}
