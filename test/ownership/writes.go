package ownership

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// writes judges each write to a subnet's key by what stood there before it.
type writes struct {
	names
	say     report
	state   map[string]KV
	foreign map[int64]bool
	byHand  map[string]bool // keys that a foreign write made what they are
	highest map[string]tenant
	taken   map[string]bool             // keys that came to a tenant in this life
	ever    map[string]map[int64]string // of all lives: by key and epoch, whose
	last    map[string]tenant           // of all lives, by key
	torn    bool                        // an earlier life is not known to its end
	looks   looks
}

func judgeWrites(e Evidence, say report) {
	w := &writes{names: namesIn(e.Prefix), say: say, ever: map[string]map[int64]string{}, last: map[string]tenant{}, looks: looksOf(e.Samples)}
	for i, l := range e.History.Lives {
		w.state = map[string]KV{}
		w.foreign, w.byHand, w.highest, w.taken = map[int64]bool{}, map[string]bool{}, map[string]tenant{}, map[string]bool{}
		for _, f := range e.Foreign {
			if f.Life == i {
				w.foreign[f.Revision] = true
			}
		}
		for _, kv := range l.Base {
			w.state[kv.Key] = kv
			before, known := w.last[kv.Key]
			if r, err := decodeRecord(kv.Value); err == nil {
				w.owns(kv.Key, r)
			}
			if known && l.Beginning == Restored {
				w.last[kv.Key] = before // an older state does not undo who had it since
			}
		}
		w.run(l.Events)
		w.torn = w.torn || !l.Whole
	}
}

// run goes through the events, one transaction at a time.
func (w *writes) run(events []Event) {
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Mod == events[0].Mod {
			n++
		}
		txn := events[:n]
		events = events[n:]
		for _, e := range txn {
			if _, ok := w.subnet(e.Key); ok {
				w.judge(e, txn)
			}
		}
		for _, e := range txn {
			w.apply(e)
		}
	}
}

func (w *writes) apply(e Event) {
	w.byHand[e.Key] = w.foreign[e.Mod]
	if e.Deleted {
		delete(w.state, e.Key)
		return
	}
	w.state[e.Key] = e.KV
}

func (w *writes) judge(e Event, txn []Event) {
	if w.foreign[e.Mod] {
		return
	}
	name, _ := w.subnet(e.Key)
	subs, err := parseSubnets(name)
	if err != nil {
		w.note(e, Malformed, nil, err.Error())
		return
	}
	prev, there := w.state[e.Key]
	if !there && e.Prev != nil {
		prev, there = *e.Prev, true
	}
	if e.Deleted {
		w.deletion(e, subs, prev, txn)
		return
	}
	r, err := decodeRecord(e.Value)
	if err != nil {
		w.note(e, Malformed, subs, err.Error())
		return
	}
	if e.Lease == 0 {
		w.note(e, NoLease, subs, fmt.Sprintf("%s wrote the key without a lease at revision %d: it would never end", r, e.Mod))
	}
	switch {
	case there && w.byHand[e.Key]: // what stood there was nobody's doing
	case there:
		w.over(e, subs, prev, r, txn)
	case r.Tenure != nil:
		w.acquired(e, subs, r, txn)
	}
	w.owns(e.Key, r)
}

func (w *writes) note(e Event, rule Rule, subs subnets, text string) {
	what := subs.String()
	if what == "" {
		what = e.Key
	}
	w.say(Violation{Rule: rule, Subnet: what, At: e.Seen, Text: text}, fmt.Sprint(e.Mod))
}

// owns keeps who had the key under which epoch.
func (w *writes) owns(key string, r record) {
	if r.Tenure == nil || r.tomb() {
		return
	}
	t := r.tenant()
	if h, ok := w.highest[key]; !ok || t.Epoch >= h.Epoch {
		w.highest[key] = t
	}
	w.last[key] = t
	if w.ever[key] == nil {
		w.ever[key] = map[int64]string{}
	}
	if _, ok := w.ever[key][t.Epoch]; !ok {
		w.ever[key][t.Epoch] = t.UID
	}
}

func (w *writes) settles() bool { _, stands := w.state[w.settle()]; return stands }

// acquired judges a key that was not there before.
func (w *writes) acquired(e Event, subs subnets, r record, txn []Event) {
	t := r.tenant()
	if r.tomb() {
		w.note(e, Overwritten, subs, fmt.Sprintf("a tombstone was put at revision %d where no key stood: there was nobody to release", e.Mod))
		return
	}
	w.overlap(e, subs, r)
	w.owner(e, subs, r, txn)
	before, known := w.last[e.Key]
	again := known && before.UID == t.UID && before.Epoch == t.Epoch
	unknown := w.torn && !w.taken[e.Key] // who had it when the store forgot
	w.taken[e.Key] = true
	if w.settles() && !again && !unknown {
		w.note(e, DuringSettle, subs, fmt.Sprintf("%s acquired it at revision %d while settle stood: an earlier tenant's fence may be open", r, e.Mod))
	}
	w.epoch(e, subs, r)
	if kv, ok := w.state[w.reservation(subs)]; ok && !again && !w.settles() {
		var to struct{ Node string }
		if json.Unmarshal([]byte(kv.Value), &to) == nil && to.Node != t.Node {
			w.note(e, Reserved, subs, fmt.Sprintf("%s acquired it at revision %d, and it is reserved for %s", r, e.Mod, to.Node))
		}
	}
}

// overlap finds another key that shares addresses.
func (w *writes) overlap(e Event, subs subnets, r record) {
	for _, key := range slices.Sorted(maps.Keys(w.state)) {
		kv := w.state[key]
		name, ok := w.subnet(key)
		if !ok || key == e.Key {
			continue
		}
		other, err := parseSubnets(name)
		if err != nil || !other.overlaps(subs) {
			continue
		}
		holder, _ := decodeRecord(kv.Value)
		w.note(e, Overlap, subs, fmt.Sprintf("%s acquired it at revision %d while %s stood, held by %s", r, e.Mod, other, holder))
	}
}

// epoch judges the fencing number of a new ownership.
func (w *writes) epoch(e Event, subs subnets, r record) {
	t := r.tenant()
	if h, ok := w.highest[e.Key]; ok && (t.Epoch < h.Epoch || t.Epoch == h.Epoch && t.UID != h.UID) {
		w.note(e, EpochBack, subs, fmt.Sprintf("%s took it at revision %d after %s had it under epoch %d: its token would not be newer", r, e.Mod, h.Node, h.Epoch))
		return
	}
	if uid, ok := w.ever[e.Key][t.Epoch]; ok && uid != t.UID {
		w.note(e, EpochBack, subs, fmt.Sprintf("%s took it at revision %d under an epoch that UID %s had in an earlier life of the store", r, e.Mod, uid))
	}
}

// owner looks for the owner's record in the same transaction.
func (w *writes) owner(e Event, subs subnets, r record, txn []Event) {
	o, ok := w.ownerIn(subs, txn)
	if !ok {
		w.note(e, NoOwner, subs, fmt.Sprintf("%s took it at revision %d, and no owner's record was written with it: this was no acquire", r, e.Mod))
		return
	}
	if t := r.tenant(); !r.tomb() && (o.UID != t.UID || o.Epoch != t.Epoch) {
		w.note(e, NoOwner, subs, fmt.Sprintf("%s took it at revision %d, and the owner's record names UID %s, epoch %d", r, e.Mod, o.UID, o.Epoch))
	}
}

func (w *writes) ownerIn(subs subnets, txn []Event) (ownerRecord, bool) {
	for _, e := range txn {
		if e.Key == w.names.owner(subs) && !e.Deleted {
			o, err := decodeOwner(e.Value)
			return o, err == nil
		}
	}
	return ownerRecord{}, false
}

// over judges a write over a key that was there.
func (w *writes) over(e Event, subs subnets, prev KV, r record, txn []Event) {
	was, err := decodeRecord(prev.Value)
	if err != nil {
		w.note(e, Overwritten, subs, fmt.Sprintf("%s wrote at revision %d over a record that nobody can read", r, e.Mod))
		return
	}
	if text := notHis(was, r, prev, e); text != "" {
		w.note(e, Overwritten, subs, fmt.Sprintf("%s wrote at revision %d over %s under lease %x: %s", r, e.Mod, was, prev.Lease, text))
		return
	}
	if e.Lease != prev.Lease && !r.tomb() && w.settles() && w.looks.shut(r.tenant().Node, e.After, e.Seen) {
		w.note(e, DuringSettle, subs, fmt.Sprintf("%s moved it to another lease at revision %d while settle stood and its fence was closed", r, e.Mod))
	}
	switch a, b := was.tenant(), r.tenant(); {
	case r.tomb():
		w.owner(e, subs, r, txn)
	case b.UID != a.UID:
		w.owner(e, subs, r, txn)
		w.epoch(e, subs, r)
	case b.Epoch < a.Epoch:
		w.note(e, EpochBack, subs, fmt.Sprintf("%s wrote at revision %d over its own record of epoch %d", r, e.Mod, a.Epoch))
	}
}

// notHis says why a record may not be written over another; nothing if it may.
func notHis(was, r record, prev KV, e Event) string {
	a, b := was.tenant(), r.tenant()
	switch {
	case r.Tenure == nil && was.Tenure == nil:
		return ""
	case r.Tenure == nil:
		return "it is not Tenure's, and does not compare"
	case was.tomb():
		return "a tombstone stands until its lease ends"
	case r.tomb():
		if e.Lease == prev.Lease {
			return "a tombstone needs a lease of its own, which nobody renews"
		}
		if was.Tenure != nil && (a.Node != b.Node || a.Epoch != b.Epoch) {
			return "a tombstone names whom it released"
		}
		return ""
	case a.UID == b.UID && e.Lease == prev.Lease:
		return "" // an update
	case a.UID == b.UID:
		if a.Boot != b.Boot && was.PublicIP != r.PublicIP {
			return "the same UID, but another boot and another address: a clone"
		}
		if a.Epoch != b.Epoch {
			return "a rebind keeps the epoch"
		}
		return ""
	case e.Lease == prev.Lease:
		return "another tenant under the same lease"
	case was.PublicIP != r.PublicIP:
		return "another tenant at another address, and the key had not ended"
	case was.Tenure != nil && a.Node != b.Node:
		return "another tenant of another name, and the key had not ended"
	}
	return "" // this machine's record of before
}

// deletion judges a key's end: left, or gone with its lease.
func (w *writes) deletion(e Event, subs subnets, prev KV, txn []Event) {
	if o, ok := w.ownerIn(subs, txn); ok && !o.Until.IsZero() {
		return
	}
	if !e.LeaseAlive && prev.Lease != 0 {
		return
	}
	was, _ := decodeRecord(prev.Value)
	w.note(e, Deleted, subs, fmt.Sprintf("the key of %s was deleted at revision %d, neither by leaving nor by the end of its lease %x", was, e.Mod, prev.Lease))
}
