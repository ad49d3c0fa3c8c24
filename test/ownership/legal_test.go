package ownership

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// legal draws histories that the protocol allows: three nodes and two subnets,
// each step one of what may come next.
type legal struct {
	*story
	holder map[string]who // by subnet
	tombs  map[string]bool
	epoch  int64
}

func drawn(t *rapid.T) *legal {
	l := &legal{story: peered(), holder: map[string]who{}, tombs: map[string]bool{}, epoch: 10}
	for range rapid.IntRange(3, 25).Draw(t, "steps") {
		name := rapid.SampledFrom([]string{one, two}).Draw(t, "subnet")
		if w, held := l.holder[name]; held {
			l.holds(t, name, w)
		} else {
			l.free(t, name)
		}
	}
	return l
}

// free is what may happen to a subnet that nobody holds.
func (l *legal) free(t *rapid.T, name string) {
	if l.tombs[name] {
		delete(l.tombs, name)
		l.lapse(name)
		return
	}
	l.epoch++
	w := node(rapid.IntRange(1, 3).Draw(t, "node")).with(l.epoch)
	l.acquire(w, name)
	l.holder[name] = w
}

// holds is what may happen to a subnet that a node holds.
func (l *legal) holds(t *rapid.T, name string, w who) {
	switch rapid.IntRange(0, 9).Draw(t, "step") {
	case 0:
		l.update(w, name)
	case 1:
		l.rebind(w, name)
	case 2:
		l.leave(w, name)
		delete(l.holder, name)
	case 3:
		l.lapse(name)
		delete(l.holder, name)
	case 4:
		l.entomb(w, name)
		delete(l.holder, name)
		l.tombs[name] = true
	case 5, 6:
		l.packet(w, name)
	case 7:
		l.look(w, name, time.Duration(rapid.IntRange(1, 4000).Draw(t, "open"))*time.Millisecond)
	case 8:
		l.forgets(t)
	default:
		l.proves(w, name)
	}
}

// proves is a proof that is answered.
func (l *legal) proves(w who, name string) {
	kv := l.state[subnetKey(name)]
	l.after(time.Second)
	l.op(Op{Node: w.Node, Key: kv.Key, Call: l.t, Return: l.t + time.Millisecond, Succeeded: true, Revision: l.rev,
		Compares: []Compare{{ByLease, kv.Lease}, {ByCreate, kv.Create}}})
}

// forgets wipes the store: who holds puts back what is his, and tombstones are
// gone when settle is.
func (l *legal) forgets(t *rapid.T) {
	l.wipe().settles().acquire(node(9).with(1), "10.5.0.0-24")
	for _, name := range []string{one, two} {
		w, held := l.holder[name]
		if held && rapid.Bool().Draw(t, "connected") {
			l.packet(w, name).acquire(w, name).packet(w, name).rebind(w, name)
		} else {
			delete(l.holder, name)
		}
	}
	l.settled()
	l.tombs = map[string]bool{}
}

func TestLegalHistoriesPass(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		if all := Judge(drawn(t).Evidence); len(all) > 0 {
			t.Fatalf("a legal history is refused:\n%s", lines(all))
		}
	})
}

// TestOneWrongStepIsFound: whatever came before, and for what it is.
func TestOneWrongStepIsFound(t *testing.T) {
	t.Parallel()
	wrong := map[string]struct {
		rule Rule
		step func(l *legal, name string, w, other who)
	}{
		"overwritten by another":     {Overwritten, func(l *legal, n string, _, o who) { l.acquire(o, n) }},
		"under the same lease":       {Overwritten, func(l *legal, n string, _, o who) { l.update(o, n) }},
		"without a lease":            {NoLease, func(l *legal, n string, w, _ who) { l.txn(put(subnetKey(n), w.record(), 0)) }},
		"deleted while it lived":     {Deleted, func(l *legal, n string, _, _ who) { l.lapse(n); l.last().LeaseAlive = true }},
		"an old epoch":               {EpochBack, func(l *legal, n string, w, _ who) { l.update(w.with(w.Epoch-1), n) }},
		"the epoch of before":        {EpochBack, func(l *legal, n string, w, o who) { l.lapse(n).acquire(o.with(w.Epoch), n) }},
		"half of it":                 {Overlap, func(l *legal, n string, _, o who) { l.acquire(o, n[:len(n)-2]+"25") }},
		"no owner's record":          {NoOwner, func(l *legal, n string, _, o who) { l.lapse(n).txn(put(subnetKey(n), o.record(), 9)) }},
		"moved in settle":            {DuringSettle, func(l *legal, n string, w, _ who) { l.movesShut(w, n) }},
		"acquired in settle":         {DuringSettle, func(l *legal, n string, _, o who) { l.lapse(n).settles().acquire(o, n) }},
		"a late packet":              {LatePacket, func(l *legal, n string, w, o who) { l.lapse(n).acquire(o, n).packet(w, n) }},
		"a late packet after a wipe": {LatePacket, func(l *legal, n string, w, o who) { l.wipe().settles().settled().acquire(o, n).packet(w, n) }},
		"a fence left open":          {OpenFence, func(l *legal, n string, w, _ who) { l.lapse(n).look(w, n, time.Second) }},
		"two fences": {OpenFence, func(l *legal, n string, w, o who) {
			l.lapse(n).acquire(o, n).look(o, n, time.Second).look(w, n, time.Second)
		}},
		"a deadline too far": {PastDeadline, func(l *legal, n string, w, _ who) { l.look(w, n, ttl) }},
		"a packet past it": {PastDeadline, func(l *legal, n string, w, _ who) {
			l.look(w, n, time.Millisecond)
			until := l.t + time.Millisecond
			l.packet(w, n).after(time.Second)
			l.lookUntil(w, n, until)
		}},
		"a proof of what is gone": {NotLinear, func(l *legal, n string, w, _ who) {
			kv := l.state[subnetKey(n)]
			l.lapse(n).after(time.Second)
			l.op(Op{Node: w.Node, Key: kv.Key, Call: l.t, Return: l.t + time.Millisecond, Succeeded: true, Revision: l.rev,
				Compares: []Compare{{ByLease, kv.Lease}, {ByCreate, kv.Create}}})
		}},
	}
	for name, c := range wrong {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				l := drawn(t)
				subnet := rapid.SampledFrom([]string{one, two}).Draw(t, "of")
				for l.tombs[subnet] || l.holder[subnet].Node == "" {
					l.free(t, subnet)
				}
				w := l.holder[subnet]
				l.epoch++
				other := node(rapid.IntRange(4, 6).Draw(t, "other")).with(l.epoch)
				c.step(l, subnet, w, other)
				all := Judge(l.Evidence)
				for _, v := range all {
					if v.Rule == c.rule {
						return
					}
				}
				t.Fatalf("want %s, found %s", c.rule, fmt.Sprintf("%d others:\n%s", len(all), lines(all)))
			})
		})
	}
}

// last is the event that came last.
func (s *story) last() *Event {
	l := s.life()
	return &l.Events[len(l.Events)-1]
}
