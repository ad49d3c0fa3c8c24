package ownership

import (
	"fmt"
	"time"
)

// between is an instant that is known to lie between two. A zero seen is never.
type between struct{ after, seen time.Duration }

// by says that it has certainly come before t.
func (b between) by(t time.Duration) bool { return b.seen > 0 && b.seen < t }

// possibly says that it may have come before t.
func (b between) possibly(t time.Duration) bool { return b.seen > 0 && b.after < t }

// span is a stretch in which one tenant had one key: from the event that made
// it his to the one that ended it. Spans are in the order of the history.
type span struct {
	life int
	key  string
	subnets
	record
	born, died between
	why        string // of its end
	foreign    bool   // made or ended by a write past the protocol
	// base is a record that a restored store began with, and that its node has
	// not written in this life. It counts from the end of settle on.
	base bool
	// Certain use: the first and the last packet or look that was this span's
	// and no other's.
	used between
}

func (s *span) node() string { return s.tenant().Node }

// named says whose it was.
func (s *span) named() string { return fmt.Sprintf("%s (epoch %d)", s.node(), s.tenant().Epoch) }

// use notes that the span was in use at t.
func (s *span) use(from, to time.Duration) {
	if s.used.after == 0 || from < s.used.after {
		s.used.after = from
	}
	s.used.seen = max(s.used.seen, to)
}

// spans is who had what, in order.
type spans struct {
	all []*span
	// holes are the instants after which what was known before is not to be
	// relied on: somebody may have come to own what nobody recorded.
	holes []hole
}

// hole is a stretch that was not recorded, before the life of that index.
type hole struct {
	life int
	at   time.Duration
}

// since is the first life that counts at t.
func (s *spans) since(t time.Duration) int {
	first := 0
	for _, h := range s.holes {
		if h.at < t {
			first = max(first, h.life)
		}
	}
	return first
}

// builder makes spans of a history.
type builder struct {
	names
	*spans
	life    int
	open    map[string]*span
	foreign map[int64]bool
	// machines are the names by address.
	machines map[string]string
}

func spansOf(e Evidence) *spans {
	b := builder{names: namesIn(e.Prefix), spans: &spans{}, machines: e.Machines}
	for i, l := range e.History.Lives {
		b.life, b.open, b.foreign = i, map[string]*span{}, map[int64]bool{}
		for _, f := range e.Foreign {
			if f.Life == i {
				b.foreign[f.Revision] = true
			}
		}
		b.begin(l, i > 0 && !e.History.Lives[i-1].Whole, lastSeen(e.History.Lives[:i]))
		for _, ev := range l.Events {
			b.event(ev)
		}
	}
	return b.spans
}

// lastSeen is the last instant of which a history is known to the full.
func lastSeen(lives []Life) (t time.Duration) {
	for _, l := range lives {
		t = max(t, l.Began)
		for _, e := range l.Events {
			t = max(t, e.Seen)
		}
	}
	return t
}

func (b *builder) begin(l Life, torn bool, known time.Duration) {
	if torn || l.Beginning == Resumed {
		b.holes = append(b.holes, hole{b.life, known})
	}
	for _, kv := range l.Base {
		name, ok := b.subnet(kv.Key)
		if !ok {
			continue
		}
		s := b.make(name, kv)
		if s == nil {
			continue
		}
		if l.Beginning == Restored {
			s.base = true // and not born before settle ends
		} else {
			s.born = between{known, l.Began}
		}
		b.add(s)
	}
}

func (b *builder) make(name string, kv KV) *span {
	subs, err := parseSubnets(name)
	if err != nil {
		return nil
	}
	r, err := decodeRecord(kv.Value)
	if err != nil {
		return nil
	}
	if name, ok := b.machines[r.PublicIP]; ok && r.Tenure != nil && !r.tomb() {
		r.Tenure.Node = name
	}
	return &span{life: b.life, key: kv.Key, subnets: subs, record: r}
}

func (b *builder) add(s *span) {
	b.all = append(b.all, s)
	b.open[s.key] = s
}

func (b *builder) event(e Event) {
	at := between{e.After, max(e.Seen, 1)}
	if e.Key == b.settle() && e.Deleted {
		b.settled(at)
	}
	name, ok := b.subnet(e.Key)
	if !ok {
		return
	}
	was := b.open[e.Key]
	if e.Deleted {
		b.end(was, at, e, "ended")
		return
	}
	s := b.make(name, e.KV)
	if was != nil && s != nil && was.tenant().UID == s.tenant().UID && was.tenant().Epoch == s.tenant().Epoch && was.tomb() == s.tomb() && !b.foreign[e.Mod] {
		if was.base && b.lastOf(was) { // its node has it in this life
			was.base = false
			if was.born.seen == 0 {
				was.born = at
			}
		}
		was.record = s.record
		return
	}
	why := "went to another tenant"
	if s != nil && s.tomb() {
		why = "was released by force"
	}
	b.end(was, at, e, why)
	if s != nil {
		s.born, s.foreign = at, b.foreign[e.Mod]
		b.add(s)
	}
}

// lastOf says that nobody is known to have had the key after the tenant whom a
// restored store names.
func (b *builder) lastOf(s *span) bool {
	for i := len(b.all) - 1; i >= 0; i-- {
		p := b.all[i]
		if p.key == s.key && p != s && p.Tenure != nil && !p.tomb() && !p.foreign {
			return p.tenant().UID == s.tenant().UID && p.tenant().Epoch == s.tenant().Epoch
		}
	}
	return true
}

func (b *builder) end(s *span, at between, e Event, why string) {
	if s == nil {
		return
	}
	delete(b.open, s.key)
	s.died, s.why = at, why
	s.foreign = s.foreign || b.foreign[e.Mod]
}

// settled makes the records of a restored store count: whoever was to show
// himself has done so.
func (b *builder) settled(at between) {
	for _, s := range b.open {
		if s.base && s.born.seen == 0 {
			s.born = at
		}
	}
}

// of are the spans of a node over any address of subs that may have begun
// before t.
func (s *spans) of(node string, subs subnets, t time.Duration) []*span {
	var own []*span
	for _, p := range s.all {
		if p.node() == node && !p.tomb() && p.overlaps(subs) && p.born.possibly(t) {
			own = append(own, p)
		}
	}
	return own
}

// succeeded is the span of another node that has certainly begun before t and
// which none of node's, with that epoch if it is not 0, can have followed.
func (s *spans) succeeded(node string, epoch int64, subs subnets, t time.Duration) *span {
	var other *span
	first := s.since(t)
	for _, p := range s.all {
		switch {
		case p.Tenure == nil || p.tomb() || !p.overlaps(subs):
		case p.node() == node && (epoch == 0 || p.tenant().Epoch == epoch):
			if p.born.possibly(t) { // also where a write past the protocol ended it
				other = nil
			}
		case p.foreign:
		case p.node() == node && p.tenant().Epoch < epoch:
		default:
			if p.life >= first && p.born.by(t) {
				other = p
			}
		}
	}
	return other
}

// ended is the last span of node if it has certainly ended by itself before t.
func (s *spans) ended(node string, subs subnets, t time.Duration) *span {
	own := s.of(node, subs, t)
	if len(own) == 0 {
		return nil
	}
	last := own[len(own)-1]
	if last.base || last.foreign || !last.died.by(t) || last.why == "was released by force" || s.since(t) > last.life {
		return nil
	}
	return last
}

// never says that the node cannot have held any of it before t.
func (s *spans) never(node string, subs subnets, t time.Duration) bool {
	return len(s.all) > 0 && s.since(t) == 0 && len(s.of(node, subs, t)) == 0
}
