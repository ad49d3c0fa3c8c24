package ownership

import (
	"fmt"
	"net/netip"
	"time"
)

// longestFlight is how long a packet takes at most from one kernel to another. Where
// the receiver's stamp is later than that after the sender's, either was slow: to
// send what it had stamped, or to read what had come.
const longestFlight = 500 * time.Millisecond

// passed are the instants of which at least one is near the one at which the
// packet passed both fences.
func (p Packet) passed() []time.Duration {
	if p.Received-p.Sent > longestFlight {
		return []time.Duration{p.Sent, p.Received}
	}
	return []time.Duration{p.Received}
}

// overlay says that the packet crossed the overlay as what it is.
func (p Packet) overlay() bool {
	return p.From.Node != p.To.Node && (!p.Source.IsValid() || p.Source == p.From.Addr)
}

func (p Packet) String() string {
	return fmt.Sprintf("a packet of %s on %s to %s on %s, sent at %s and received at %s",
		p.From.Addr, p.From.Node, p.To.Addr, p.To.Node, stamp(p.Sent), stamp(p.Received))
}

// judgePackets judges both ends of each packet by who had their subnets then.
func judgePackets(packets []Packet, s *spans, say report) {
	for _, p := range packets {
		if !p.overlay() {
			continue
		}
		judgeEnd(p, p.From, s, say)
		judgeEnd(p, p.To, s, say)
	}
}

// judgeEnd finds fault with an end that was wrong at each of the instants.
func judgeEnd(p Packet, end End, s *spans, say report) {
	subs := single(end.Subnet, end.Addr)
	why := ""
	for _, at := range p.passed() {
		if why = lateness(end, subs, s, at); why == "" {
			break
		}
	}
	if why != "" {
		say(Violation{Rule: LatePacket, Subnet: subs.String(), At: p.passed()[0], Text: fmt.Sprintf("%s: %s", p, why)}, end.Node)
		return
	}
	if own := s.of(end.Node, subs, p.Received); len(own) == 1 || len(own) > 1 && own[len(own)-1].born.by(p.Sent) {
		own[len(own)-1].use(p.Sent, p.Received)
	}
}

// lateness says why an end was not the subnet's at t, "" if it may have been.
func lateness(end End, subs subnets, s *spans, t time.Duration) string {
	if other := s.succeeded(end.Node, end.Epoch, subs, t); other != nil {
		return fmt.Sprintf("%s had its key by %s, and %s none since", other.named(), stamp(other.born.seen), end.Node)
	}
	if s.never(end.Node, subs, t) {
		return end.Node + " has never held it"
	}
	return ""
}

// judgeUse finds two nodes that have used overlapping subnets in turns without
// having held them in turns. Each span is one stretch of one node, so from its
// first use to its last the subnet was nobody else's.
func judgeUse(s *spans, say report) {
	for i, a := range s.all {
		for _, b := range s.all[i+1:] {
			if a.used.seen == 0 || b.used.seen == 0 || a.node() == b.node() || !a.overlaps(b.subnets) {
				continue
			}
			from, to := max(a.used.after, b.used.after), min(a.used.seen, b.used.seen)
			if to-from <= longestFlight {
				continue
			}
			say(Violation{Rule: TwoTenants, Subnet: a.subnets.String(), At: to, Text: fmt.Sprintf(
				"%s used it from %s to %s, and %s used %s from %s to %s", a.named(), stamp(a.used.after), stamp(a.used.seen),
				b.named(), b.subnets, stamp(b.used.after), stamp(b.used.seen))}, a.named()+b.named())
		}
	}
}

// within says whether the subnet has the address.
func within(p netip.Prefix, a netip.Addr) bool { return p.IsValid() && p.Contains(a) }
