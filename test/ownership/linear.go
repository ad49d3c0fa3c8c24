package ownership

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// linearTime bounds the search for an order of one key's calls.
const linearTime = 10 * time.Second

// unknown stands for a revision that nobody was told.
const unknown = -1

// register is a subnet's key as a compare sees it. The zero register is a key
// that does not exist.
type register struct{ lease, create, mod int64 }

// step is one call as the register meets it, or something that the history shows
// to have happened to it.
type step struct {
	Op
	// event is of the history: its effect is certain, and lease is that which
	// ended if it is a deletion.
	event bool
}

// judgeLinear looks for an order of the calls on each key in which every answer
// is right. A call without an answer may have come at any time after it was
// made, or never. Without a history there is nothing to know the ends of leases
// by.
func judgeLinear(e Evidence) (all []Violation) {
	keys := map[string][]porcupine.Operation{}
	for i, l := range e.History.Lives {
		from, to := time.Duration(0), Never
		if i > 0 {
			from = l.Began
		}
		if i+1 < len(e.History.Lives) {
			to = e.History.Lives[i+1].Began
		}
		for key, ops := range steps(e, l, from, to) {
			keys[fmt.Sprintf("%d %s", i, key)] = ops
		}
	}
	n := namesIn(e.Prefix)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if porcupine.CheckOperationsTimeout(model(), keys[key], linearTime) != porcupine.Illegal {
			continue
		}
		var life int
		var name string
		_, _ = fmt.Sscan(key, &life, &name)
		subnet, _ := n.subnet(name)
		all = append(all, Violation{Rule: NotLinear, Subnet: subnet, Text: fmt.Sprintf(
			"no order of the %d calls and events on the key explains their answers%s", len(keys[key]), shortest(keys[key]))})
	}
	return all
}

// shortest names the call that cannot be fitted in, of those in order of their
// returns.
func shortest(ops []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return int(min(1, max(-1, a.Return-b.Return))) })
	for i, o := range ops {
		part := slices.Clone(ops[:i+1])
		for _, later := range ops[i+1:] {
			// What has not returned yet may still have had its effect.
			s, _ := later.Input.(step)
			if later.Call > o.Return {
				continue
			}
			if !s.event {
				s.Return = Never
				later.Input, later.Return = s, int64(Never)
			}
			part = append(part, later)
		}
		if porcupine.CheckOperationsTimeout(model(), part, linearTime) == porcupine.Illegal {
			s, _ := o.Input.(step)
			return ": " + s.String()
		}
	}
	return ""
}

// String is the call for people.
func (s step) String() string {
	who := s.Node
	if s.event {
		who = "etcd's history"
	}
	what := "proof"
	switch {
	case s.Put:
		what = fmt.Sprintf("put under lease %x", s.Lease)
	case s.Delete:
		what = "deletion"
	}
	return fmt.Sprintf("%s: %s called at %s, succeeded %t at revision %d", who, what, stamp(s.Call), s.Succeeded, s.Revision)
}

// steps are the calls and events of one life, by key.
func steps(e Evidence, l Life, from, to time.Duration) map[string][]porcupine.Operation {
	keys := map[string][]porcupine.Operation{}
	told := map[string]bool{} // what the answer of a call accounts for
	add := func(s step) {
		keys[s.Key] = append(keys[s.Key], porcupine.Operation{ClientId: s.Client, Input: s, Call: int64(s.Call), Return: int64(s.Return)})
	}
	for _, o := range e.Ops {
		if o.Return == Never && !o.Put && !o.Delete || o.Client == Tapped {
			continue // it changes nothing, or its answer is not known to have been lost
		}
		if o.Kind != OpTxn || o.Call < from || o.Call >= to || o.Return != Never && o.Return > to {
			continue
		}
		add(step{Op: o})
		if o.Return != Never && o.Succeeded && (o.Put || o.Delete) {
			told[fmt.Sprint(o.Key, o.Revision)] = true
		}
	}
	for _, kv := range l.Base {
		if _, asked := keys[kv.Key]; asked {
			add(step{Op{Client: -1, Key: kv.Key, Put: true, Lease: kv.Lease, Revision: kv.Mod, Call: -1, Return: -1, Compares: []Compare{{ByCreate, kv.Create}}}, true})
		}
	}
	for _, ev := range l.Events {
		if _, asked := keys[ev.Key]; !asked || told[fmt.Sprint(ev.Key, ev.Mod)] {
			continue
		}
		o := Op{Client: -1, Key: ev.Key, Put: !ev.Deleted, Delete: ev.Deleted, Lease: ev.Lease, Revision: ev.Mod, Call: ev.After, Return: ev.Seen}
		if ev.Deleted && ev.Prev != nil {
			o.Lease = ev.Prev.Lease
		}
		if !ev.Deleted {
			o.Compares = []Compare{{ByCreate, ev.Create}}
		}
		add(step{o, true})
	}
	return keys
}

// model is a register that is written by transactions which compare it.
func model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return register{} },
		Step: func(state, input, _ any) (bool, any) {
			r, _ := state.(register)
			s, ok := input.(step)
			if !ok {
				return false, state
			}
			return s.on(r)
		},
		DescribeOperation: func(input, _ any) string { s, _ := input.(step); return s.String() },
	}
}

// on is what the call makes of the register, and whether its answer is right.
func (s step) on(r register) (bool, register) {
	if s.event {
		return s.happens(r)
	}
	holds, fails := s.compare(r)
	switch {
	case s.Return == Never:
		if !holds {
			return true, r
		}
		return true, s.effect(r, unknown)
	case s.Succeeded:
		return holds, s.effect(s.learn(r), s.Revision)
	default:
		return fails || s.Others, r
	}
}

// happens is an event of the history.
func (s step) happens(r register) (bool, register) {
	if s.Delete {
		return r != register{} && r.lease == s.Lease, register{}
	}
	create := s.Revision
	if len(s.Compares) > 0 {
		create = s.Compares[0].Value
	}
	fits := (r == register{}) == (create == s.Revision) || s.Call < 0
	return fits, register{lease: s.Lease, create: create, mod: s.Revision}
}

// compare says whether all compares may hold, and whether one may fail.
func (s step) compare(r register) (holds, fails bool) {
	holds = true
	for _, c := range s.Compares {
		have, known := r.field(c.Target)
		switch {
		case !known:
			fails = true
		case have != c.Value:
			holds, fails = false, true
		}
	}
	return holds, fails
}

func (r register) field(t Target) (value int64, known bool) {
	switch t {
	case ByCreate:
		return r.create, r.create != unknown
	case ByMod:
		return r.mod, r.mod != unknown
	case ByLease:
		return r.lease, true
	default:
		return 0, false
	}
}

// learn fills in what compares that held have told.
func (s step) learn(r register) register {
	for _, c := range s.Compares {
		switch {
		case c.Target == ByCreate && r.create == unknown:
			r.create = c.Value
		case c.Target == ByMod && r.mod == unknown:
			r.mod = c.Value
		}
	}
	return r
}

// effect is what the transaction's write makes of the register.
func (s step) effect(r register, revision int64) register {
	switch {
	case s.Delete:
		return register{}
	case s.Put && r == register{}:
		return register{lease: s.Lease, create: revision, mod: revision}
	case s.Put:
		return register{lease: s.Lease, create: r.create, mod: revision}
	}
	return r
}
