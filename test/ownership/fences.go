package ownership

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// byHandGrace is for how long after a write past the protocol a node may not
// have noticed it: the limit that the promise names.
const byHandGrace = 5 * time.Second

// open says that the fence was certainly open during the look.
func (s Sample) open() bool { return s.Deadline > s.Ended && s.Subnet.IsValid() }

// looks are the samples of one node, in order.
type looks map[string][]Sample

func looksOf(samples []Sample) looks {
	l := looks{}
	for _, s := range samples {
		l[s.Node] = append(l[s.Node], s)
	}
	for _, of := range l {
		slices.SortFunc(of, func(a, b Sample) int { return cmp.Compare(a.Began, b.Began) })
	}
	return l
}

func judgeFences(e Evidence, s *spans, say report) {
	l := looksOf(e.Samples)
	longest := ttls(e)
	renewed := renewals(e.Ops)
	for _, x := range e.Samples {
		if !x.open() {
			continue
		}
		judgeOpen(x, s, say)
		judgeDeadline(x, longest, renewed[x.Node], say)
	}
	judgeTurns(l, say)
	for _, p := range e.Packets {
		if p.overlay() {
			judgePast(p, p.From, l[p.From.Node], s, say)
			judgePast(p, p.To, l[p.To.Node], s, say)
		}
	}
}

// judgeOpen judges an open fence by who had the subnet.
func judgeOpen(x Sample, s *spans, say report) {
	subs := single(x.Subnet, x.Subnet.Addr())
	open := func(format string, args ...any) {
		say(Violation{Rule: OpenFence, Subnet: subs.String(), At: x.Began,
			Text: fmt.Sprintf("%s's fence was open at %s (until %s): ", x.Node, stamp(x.Began), stamp(x.Deadline)) + fmt.Sprintf(format, args...)}, x.Node)
	}
	if s.byHand(subs, x.Began) {
		return
	}
	if other := s.succeeded(x.Node, 0, subs, x.Began); other != nil {
		open("%s had its key by %s", other.named(), stamp(other.born.seen))
		return
	}
	if s.never(x.Node, subs, x.Ended) {
		open("%s has never held it", x.Node)
		return
	}
	if last := s.ended(x.Node, subs, x.Began); last != nil {
		open("the key of %s %s by %s", last.named(), last.why, stamp(last.died.seen))
		return
	}
	if own := s.of(x.Node, subs, x.Ended); len(own) == 1 || len(own) > 1 && own[len(own)-1].born.by(x.Began) {
		own[len(own)-1].use(x.Began, x.Began)
	}
}

// byHand says that a write past the protocol has ended or made a span of the
// subnet just before t.
func (s *spans) byHand(subs subnets, t time.Duration) bool {
	for _, p := range s.all {
		for _, at := range []between{p.born, p.died} {
			if p.foreign && p.overlaps(subs) && at.possibly(t) && t < at.seen+byHandGrace {
				return true
			}
		}
	}
	return false
}

// granted is a lease's length from some instant on.
type granted struct {
	at  time.Duration
	ttl time.Duration
}

// ttls are the lengths that the network config has asked for, as they came.
func ttls(e Evidence) (all []granted) {
	config := namesIn(e.Prefix).config()
	for _, l := range e.History.Lives {
		for _, kv := range l.Base {
			if kv.Key == config {
				all = append(all, granted{0, ttlIn(kv.Value)})
			}
		}
		for _, ev := range l.Events {
			if ev.Key == config && !ev.Deleted {
				all = append(all, granted{ev.After, ttlIn(ev.Value)})
			}
		}
	}
	return all
}

// renewals are the answered ones, by node.
func renewals(ops []Op) map[string][]Op {
	by := map[string][]Op{}
	for _, o := range ops {
		if o.Kind == OpRenew && o.Return != Never && o.TTL > 0 {
			by[o.Node] = append(by[o.Node], o)
		}
	}
	return by
}

// judgeDeadline holds a deadline against what a lease can last: by the renewals
// where they are known, or else by the length in the network config.
func judgeDeadline(x Sample, configs []granted, renewed []Op, say report) {
	most, by := time.Duration(0), ""
	for _, o := range renewed {
		if f := o.Call + o.TTL - margin(o.TTL); o.Call < x.Ended && f > most {
			most, by = f, fmt.Sprintf("the last renewal, asked for at %s, for %s,", stamp(o.Call), o.TTL)
		}
	}
	if len(renewed) == 0 {
		for _, g := range configs {
			if f := x.Ended + g.ttl - margin(g.ttl); g.at <= x.Ended && f > most {
				most, by = f, fmt.Sprintf("a lease of %s, renewed this instant,", g.ttl)
			}
		}
	}
	if most == 0 || x.Deadline <= most {
		return
	}
	say(Violation{Rule: PastDeadline, Subnet: x.Subnet.String(), At: x.Ended, Text: fmt.Sprintf(
		"%s's deadline was %s at %s; %s allows %s at most", x.Node, stamp(x.Deadline), stamp(x.Ended), by, stamp(most))}, x.Node)
}

// judgeTurns finds a fence that was open while another one was known to stay so:
// the same deadline before and after.
func judgeTurns(l looks, say report) {
	for node, own := range l {
		for other, theirs := range l {
			if node == other {
				continue
			}
			i := 0
			for _, x := range theirs {
				for i+1 < len(own) && own[i+1].Ended < x.Began {
					i++
				}
				if !x.open() || i+1 >= len(own) || !stays(own[i], own, x) {
					continue
				}
				say(Violation{Rule: TwoTenants, Subnet: x.Subnet.String(), At: x.Ended, Text: fmt.Sprintf(
					"%s's fence was open for it at %s, and %s's for %s, before and after, until %s",
					x.Node, stamp(x.Began), node, own[i].Subnet, stamp(own[i].Deadline))}, x.Node+node)
			}
		}
	}
}

// stays says that a fence was open for an overlapping subnet at a, and at its
// first look after x with the same deadline: it was not closed between.
func stays(a Sample, own []Sample, x Sample) bool {
	if !a.open() || a.Ended >= x.Began || !a.Subnet.Overlaps(x.Subnet) || a.Deadline <= x.Ended {
		return false
	}
	for _, b := range own {
		if b.Began > x.Ended {
			return b.Subnet == a.Subnet && b.Deadline == a.Deadline
		}
	}
	return false
}

// shut says that a node's fence was certainly closed between two instants: its
// deadline had passed before, and was the same one afterwards.
func (l looks) shut(node string, from, to time.Duration) bool {
	of := l[node]
	i, _ := slices.BinarySearchFunc(of, from, func(x Sample, t time.Duration) int { return cmp.Compare(x.Ended, t) })
	j, _ := slices.BinarySearchFunc(of, to, func(x Sample, t time.Duration) int { return cmp.Compare(x.Began, t) })
	if i == 0 || j == len(of) {
		return false
	}
	a, b := of[i-1], of[j]
	return a.Subnet == b.Subnet && a.Deadline == b.Deadline && a.Deadline > 0 && a.Deadline < from
}

// judgePast finds a packet that a fence let pass which was closed before it was
// sent and had not been armed when it had arrived.
func judgePast(p Packet, end End, of []Sample, s *spans, say report) {
	i, _ := slices.BinarySearchFunc(of, p.Sent, func(x Sample, t time.Duration) int { return cmp.Compare(x.Ended, t) })
	j, _ := slices.BinarySearchFunc(of, p.Received, func(x Sample, t time.Duration) int { return cmp.Compare(x.Began, t) })
	if i == 0 || j == len(of) {
		return
	}
	a, b := of[i-1], of[j]
	if a.Subnet != b.Subnet || a.Deadline != b.Deadline || a.Deadline >= p.Sent {
		return
	}
	subs := single(end.Subnet, end.Addr)
	if !within(a.Subnet, end.Addr) || a.Deadline == 0 && s.maybe(end.Node, subs, p.Sent, p.Received) {
		return
	}
	closed := "closed"
	if a.Deadline > 0 {
		closed = "closed since " + stamp(a.Deadline)
	}
	say(Violation{Rule: PastDeadline, Subnet: subs.String(), At: p.Received,
		Text: fmt.Sprintf("%s: the fence of %s was %s, before and after", p, end.Node, closed)}, end.Node)
}

// maybe says that the node may have held it for a moment between two instants.
func (s *spans) maybe(node string, subs subnets, from, to time.Duration) bool {
	for _, p := range s.of(node, subs, to) {
		if !p.died.by(from) {
			return true
		}
	}
	return false
}
