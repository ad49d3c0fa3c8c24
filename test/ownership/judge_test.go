package ownership

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestRefused: each of these is found, for what it is, and nothing else is.
func TestRefused(t *testing.T) {
	t.Parallel()
	n1, n2 := node(1), node(2)
	for name, c := range map[string]struct {
		tell func() *story
		rule Rule
		says string
	}{
		"two owners": {func() *story { // over a standing key
			return peered().acquire(n1.with(10), one).acquire(n2.with(11), one)
		}, Overwritten, "n2 (UID u2, epoch 11) wrote at revision 4 over n1 (UID u1, epoch 10)"},
		"two owners of overlapping subnets": {func() *story {
			return peered().acquire(n1.with(10), one).acquire(n2.with(11), "10.5.1.0-25")
		}, Overlap, "while 10.5.1.0/24 stood, held by n1"},
		"a late packet": {func() *story {
			return peered().acquire(n1.with(10), one).packet(n1.with(10), one).lapse(one).acquire(n2.with(11), one).packet(n2.with(11), one).packet(n1.with(10), one)
		}, LatePacket, "n2 (epoch 11) had its key by"},
		"a late packet before the subnet came back": {func() *story {
			return peered().acquire(n1.with(10), one).lapse(one).acquire(n2.with(11), one).packet(n1, one).lapse(one).acquire(n1.with(12), one)
		}, LatePacket, "and n1 none since"},
		"a late packet to the former tenant": {func() *story {
			s := peered().acquire(n1.with(10), one).lapse(one).acquire(n2.with(11), one).packet(node(9), "10.5.0.0-24")
			s.Packets[0].To = End{Node: "n1", Addr: addrIn(one)}
			return s
		}, LatePacket, "and n1 none since"},
		"a late packet of an earlier epoch of the same node": {func() *story {
			return peered().acquire(n1.with(10), one).leave(n1.with(10), one).acquire(n2.with(11), one).leave(n2.with(11), one).
				acquire(n1.with(12), one).packet(n1.with(10), one)
		}, LatePacket, "n1 (epoch 12) had its key by"},
		"a packet of who never held it": {func() *story {
			return peered().acquire(n1.with(10), one).packet(n2, two)
		}, LatePacket, "n2 has never held it"},
		"a blind Put": {func() *story { // over the next tenant's record, of the same machine's address even
			return peered().acquire(n1.with(10), one).lapse(one).acquire(n2.with(11), one).txn(put(subnetKey(one), n1.with(10).record(), 7))
		}, Overwritten, "n1 (UID u1, epoch 10) wrote at revision 6 over n2"},
		"a blind Put of a key that was free": {func() *story {
			return peered().txn(put(subnetKey(one), n1.with(10).record(), 7))
		}, NoOwner, "no owner's record was written with it"},
		"a Put without a lease": {func() *story {
			return peered().acquire(n1.with(10), one).txn(put(subnetKey(one), n1.with(10).record(), 0))
		}, NoLease, "without a lease at revision 4"},
		"a blind Delete": {func() *story {
			s := peered().acquire(n1.with(10), one).lapse(one)
			events := s.life().Events
			events[len(events)-1].LeaseAlive = true
			return s
		}, Deleted, "neither by leaving nor by the end of its lease 102"},
		"a Delete of a key that could not lapse": {func() *story {
			s := peered().acquire(n1.with(10), one)
			s.Foreign = []Foreign{{Revision: s.rev + 1, Why: "a Put without a lease"}}
			return s.txn(put(subnetKey(one), n1.with(10).record(), 0)).lapse(one)
		}, Deleted, "lease 0"},
		"an epoch used again": {func() *story {
			return peered().acquire(n1.with(10), one).lapse(one).acquire(n2.with(10), one)
		}, EpochBack, "after n1 had it under epoch 10"},
		"an epoch that went back": {func() *story {
			return peered().acquire(n1.with(10), one).lapse(one).acquire(n1.with(9), one)
		}, EpochBack, "after n1 had it under epoch 10"},
		"an epoch that went back in an update": {func() *story {
			return peered().acquire(n1.with(10), one).update(n1.with(9), one)
		}, EpochBack, "over its own record of epoch 10"},
		"an epoch of an earlier life": {func() *story {
			return peered().acquire(n1.with(10), one).wipe().acquire(n2.with(10), one)
		}, EpochBack, "that UID u1 had in an earlier life"},
		"a changed lease by another UID": {func() *story { // at another address: no record of before
			return peered().acquire(n1.with(10), one).rebind(n2.with(10), one)
		}, Overwritten, "another tenant at another address"},
		"another name at the same address": {func() *story {
			other := n2.with(11)
			other.ip = n1.ip
			return peered().acquire(n1.with(10), one).acquire(other, one)
		}, Overwritten, "another tenant of another name"},
		"another tenant under the same lease": {func() *story {
			return peered().acquire(n1.with(10), one).update(n2.with(11), one)
		}, Overwritten, "another tenant under the same lease"},
		"a clone's rebind": {func() *story {
			clone := n1.with(10)
			clone.Boot, clone.ip = "b7", "192.0.2.7"
			return peered().acquire(n1.with(10), one).rebind(clone, one)
		}, Overwritten, "a clone"},
		"a rebind under another epoch": {func() *story {
			return peered().acquire(n1.with(10), one).rebind(n1.with(11), one)
		}, Overwritten, "a rebind keeps the epoch"},
		"a tombstone overwritten": {func() *story {
			return peered().acquire(n1.with(10), one).entomb(n1.with(10), one).acquire(n2.with(11), one)
		}, Overwritten, "a tombstone stands until its lease ends"},
		"a tombstone under the holder's lease": {func() *story {
			tomb := n1.with(10)
			tomb.UID = ""
			s := peered().acquire(n1.with(10), one)
			return s.txn(put(subnetKey(one), tomb.record(), s.lease), put(s.owner(one), n1.owner(then), 0))
		}, Overwritten, "a lease of its own"},
		"a tombstone for nobody": {func() *story {
			return peered().entomb(n1.with(10), one)
		}, Overwritten, "where no key stood"},
		"a forced release that deletes at once": {func() *story {
			s := peered().acquire(n1.with(10), one).look(n1, one, 4*time.Second)
			until := s.t + 4*time.Second
			s.leave(n1.with(10), one).acquire(n2.with(11), one).after(time.Second)
			return s.lookUntil(n1, one, until)
		}, OpenFence, "n2 (epoch 11) had its key by"},
		"acquired while settle stood": {func() *story {
			return peered().acquire(n1.with(10), one).wipe().settles().acquire(n2.with(11), one)
		}, DuringSettle, "n2 (UID u2, epoch 11) acquired it at revision 2 while settle stood"},
		"moved while settle stood": {func() *story {
			return peered().acquire(n1.with(10), one).movesShut(n1.with(10), one)
		}, DuringSettle, "moved it to another lease"},
		"reserved for another node": {func() *story {
			s := peered()
			return s.txn(put(s.key("tenure/reservations/"+one), `{"Node":"n2"}`, 0)).acquire(n1.with(10), one)
		}, Reserved, "reserved for n2"},
		"a restored older record wins": {func() *story {
			s := peered().acquire(n1.with(10), one)
			state, rev := s.backup()
			return s.leave(n1.with(10), one).acquire(n2.with(11), one).restore(state, rev).packet(n1.with(10), one)
		}, LatePacket, "n2 (epoch 11) had its key by"},
		"a restored older record, renewed, wins": {func() *story {
			s := peered().acquire(n1.with(10), one)
			state, rev := s.backup()
			return s.leave(n1.with(10), one).acquire(n2.with(11), one).restore(state, rev).update(n1.with(10), one).look(n1.with(10), one, 3*time.Second)
		}, OpenFence, "n2 (epoch 11) had its key by"},
		"the present owner goes on after a restore has settled": {func() *story {
			s := peered().acquire(n1.with(10), one)
			state, rev := s.backup()
			return s.leave(n1.with(10), one).acquire(n2.with(11), one).restore(state, rev).settles().settled().packet(n2.with(11), one)
		}, LatePacket, "n1 (epoch 10) had its key by"},
		"a lost CAS": {func() *story {
			s := peered().acquire(n1.with(10), one)
			at := s.t
			s.lapse(one).acquire(n2.with(11), one)
			return s.op(Op{Node: "n1", Key: subnetKey(one), Call: at + time.Millisecond, Put: true, Lease: s.lease, Succeeded: true, Revision: 9, Others: true,
				Compares: []Compare{{ByLease, 0x102}, {ByMod, 7}}, Return: s.t + time.Second})
		}, NotLinear, "n1: put under lease 103"},
		"a proof of what had ended": {func() *story {
			s := peered().acquire(n1.with(10), one).lapse(one)
			return s.op(Op{Node: "n1", Key: subnetKey(one), Call: s.t + time.Second, Return: s.t + 2*time.Second, Succeeded: true, Revision: s.rev,
				Compares: []Compare{{ByLease, 0x102}, {ByCreate, 3}}})
		}, NotLinear, "n1: proof called at"},
		"a proof denied of what stood": {func() *story {
			s := peered().acquire(n1.with(10), one)
			return s.op(Op{Node: "n1", Key: subnetKey(one), Call: s.t + time.Second, Return: s.t + 2*time.Second, Revision: s.rev,
				Compares: []Compare{{ByLease, 0x102}, {ByCreate, 3}}})
		}, NotLinear, "succeeded false"},
		"a write that compares nothing": {func() *story {
			return peered().op(Op{Node: "n1", Key: subnetKey(one), Put: true, Lease: 5, Return: Never, Client: Tapped})
		}, Uncompared, "comparing nothing of it"},
		"an acquire that compares the key alone": {func() *story {
			return peered().op(Op{Node: "n1", Key: subnetKey(one), Put: true, Lease: 5, Compares: []Compare{{ByCreate, 0}}, Return: Never, Client: Tapped})
		}, Uncompared, "comparing nothing but the key"},
		"a write that compares lease 0": {func() *story {
			return peered().op(Op{Node: "n1", Key: subnetKey(one), Put: true, Lease: 5, Compares: []Compare{{ByLease, 0}, {ByMod, 0}}, Return: Never, Client: Tapped})
		}, Uncompared, "lease 0"},
		"a write that does not compare its lease": {func() *story {
			return peered().op(Op{Node: "n1", Key: subnetKey(one), Put: true, Lease: 5, Compares: []Compare{{ByMod, 3}}, Return: Never, Client: Tapped})
		}, Uncompared, "without comparing its lease"},
		"a write that does not compare its revision": {func() *story {
			return peered().op(Op{Node: "n1", Key: subnetKey(one), Delete: true, Compares: []Compare{{ByLease, 3}}, Return: Never, Client: Tapped})
		}, Uncompared, "without comparing its revision"},
		"a Delete in no transaction": {func() *story {
			return peered().op(Op{Node: "n1", Kind: OpBare, Key: subnetKey(one), Delete: true, Return: Never})
		}, Uncompared, "in no transaction"},
		"a put asked for without a lease": {func() *story {
			return peered().op(Op{Node: "n1", Key: subnetKey(one), Put: true, Compares: []Compare{{ByLease, 4}, {ByMod, 3}}, Return: Never, Client: Tapped})
		}, NoLease, "asked for at"},
		"a deadline farther than any lease": {func() *story {
			return peered().acquire(n1.with(10), one).look(n1, one, 4200*time.Millisecond)
		}, PastDeadline, "a lease of 5s, renewed this instant, allows 108.000s at most"},
		"a deadline from the receipt of the answer": {func() *story {
			s := peered().acquire(n1.with(10), one)
			s.op(Op{Node: "n1", Kind: OpRenew, Lease: s.lease, Call: s.t, Return: s.t + 500*time.Millisecond, TTL: ttl, Succeeded: true})
			at := s.t + 500*time.Millisecond + ttl - time.Second
			s.after(time.Second)
			return s.lookUntil(n1, one, at)
		}, PastDeadline, "the last renewal, asked for at"},
		"open past the key's end": {func() *story {
			return peered().acquire(n1.with(10), one).lapse(one).look(n1, one, time.Second)
		}, OpenFence, "the key of n1 (epoch 10) ended by"},
		"open for another machine's key": {func() *story {
			return peered().acquire(n1.with(10), one).look(n2, two, time.Second)
		}, OpenFence, "n2 has never held it"},
		"open after the next owner came": {func() *story {
			return peered().acquire(n1.with(10), one).entomb(n1.with(10), one).lapse(one).acquire(n2.with(11), one).look(n1, one, time.Second)
		}, OpenFence, "n2 (epoch 11) had its key by"},
		"two fences open at once, and no history": {func() *story {
			s := &story{t: 100 * time.Second}
			s.look(n1, one, 3*time.Second)
			until := s.t + 3*time.Second
			s.look(n2, one, time.Second)
			s.after(time.Second)
			return s.lookUntil(n1, one, until)
		}, TwoTenants, "and n1's for 10.5.1.0/24, before and after"},
		"a packet past the deadline": {func() *story {
			s := peered().acquire(n1.with(10), one).look(n1, one, 500*time.Millisecond)
			until := s.t + 500*time.Millisecond
			s.packet(n1.with(10), one).after(time.Second)
			return s.lookUntil(n1, one, until)
		}, PastDeadline, "was closed since"},
		"a packet through a fence that is closed": {func() *story {
			s := peered().acquire(n1.with(10), one).lapse(one)
			return s.look(n1, one, -s.t-time.Second).packet(n1.with(10), one).look(n1, one, -s.t-time.Second)
		}, PastDeadline, "the fence of n1 was closed, before and after"},
		"a key that is no subnet's": {func() *story {
			return peered().txn(put(subnetKey("x"), "{}", 5))
		}, Malformed, `subnet key "x"`},
		"a record that is none": {func() *story {
			return peered().txn(put(subnetKey(one), "x", 5))
		}, Malformed, "decode record"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := Judge(c.tell().Evidence)
			if len(all) != 1 || all[0].Rule != c.rule || !strings.Contains(all[0].Text, c.says) {
				t.Errorf("want one violation of %s that says %q, got:\n%s", c.rule, c.says, lines(all))
			}
		})
	}
}

// TestUsedInTurns: two nodes use a subnet in turns, which the history gives to
// both one after the other, but at instants that nobody recorded well.
func TestUsedInTurns(t *testing.T) {
	t.Parallel()
	s := peered().acquire(node(1).with(10), one).lapse(one).acquire(node(2).with(11), one)
	for i := range s.life().Events {
		s.life().Events[i].After, s.life().Events[i].Seen = 0, time.Hour // a recorder that was slow
	}
	s.packet(node(1).with(10), one).packet(node(2).with(11), one).packet(node(1).with(10), one).packet(node(2).with(11), one)
	all := Judge(s.Evidence)
	if len(all) != 1 || all[0].Rule != TwoTenants || !strings.Contains(all[0].Text, "n1 (epoch 10) used it from") {
		t.Errorf("want two tenants, got:\n%s", lines(all))
	}
}

func (s *story) op(o Op) *story {
	if o.Call == 0 {
		s.after(time.Second)
		o.Call = s.t
	}
	s.Ops = append(s.Ops, o)
	return s
}

func lines(all []Violation) string {
	var b strings.Builder
	for _, v := range all {
		b.WriteString("\t" + v.String() + "\n")
	}
	return b.String()
}

// TestGood: what the protocol allows is allowed.
func TestGood(t *testing.T) {
	t.Parallel()
	n1, n2 := node(1), node(2)
	for name, tell := range map[string]func() *story{
		"nothing": func() *story { return &story{} },
		"a hand-over by leaving": func() *story {
			return peered().acquire(n1.with(10), one).packet(n1.with(10), one).look(n1, one, 3*time.Second).leave(n1.with(10), one).
				acquire(n2.with(11), one).packet(n2.with(11), one).look(n2, one, 3*time.Second)
		},
		"there and back": func() *story {
			return peered().acquire(n1.with(10), one).packet(n1, one).lapse(one).acquire(n2.with(11), one).packet(n2, one).
				lapse(one).acquire(n1.with(12), one).packet(n1, one).packet(n1.with(12), one)
		},
		"the same again": func() *story {
			return peered().acquire(n1.with(10), one).packet(n1, one).lapse(one).acquire(n1.with(10), one).packet(n1, one).look(n1, one, 3*time.Second)
		},
		"there and back, and then a write by hand": func() *story {
			s := peered().acquire(n2.with(10), one).lapse(one).acquire(n1.with(11), one).packet(n1, one).look(n1, one, 3*time.Second)
			s.txn(put(subnetKey(one), `{"PublicIP":"192.0.2.250"}`, 7))
			s.Foreign = []Foreign{{Revision: s.rev, Why: "put"}}
			return s
		},
		"a packet stamped before its sender had it, and sent after": func() *story {
			s := peered().acquire(n2.with(10), one).lapse(one)
			stamped := s.t + 10*time.Millisecond
			s.acquire(n1.with(11), one).packet(n1, one)
			s.Packets[0].Sent = stamped
			return s
		},
		"a copied disk bears the first machine's name": func() *story {
			copied := n2.with(10)
			copied.Node, copied.ip = n1.Node, "192.0.2.20"
			s := peered().acquire(copied, one)
			s.Machines = map[string]string{"192.0.2.20": "copy", n1.ip: n1.Node}
			copied.Node = "copy"
			return s.packet(copied, one).look(copied, one, 3*time.Second)
		},
		"an update and a rebind": func() *story {
			moved := n1.with(10)
			moved.ip = "192.0.2.77"
			return peered().acquire(n1.with(10), one).rebind(n1.with(10), one).packet(n1.with(10), one).update(moved, one).rebind(moved, one).packet(n1.with(10), one)
		},
		"another boot of the same machine": func() *story {
			booted := n1.with(10)
			booted.Boot = "b1-2"
			return peered().acquire(n1.with(10), one).update(booted, one).rebind(booted, one).rebind(n1.with(10), one)
		},
		"a record of before inherited": func() *story {
			again := n1.with(11)
			again.UID, again.Boot = "u1-2", "b1-2"
			s := peered().acquire(n1.with(10), one)
			return s.txn(put(subnetKey(one), again.record(), s.newLease()), put(s.owner(one), again.owner(""), 0)).packet(n1.with(11), one)
		},
		"flannel's record inherited": func() *story {
			s := peered()
			s.txn(put(subnetKey(one), `{"PublicIP":"192.0.2.1","BackendType":"vxlan"}`, s.newLease()))
			return s.txn(put(subnetKey(one), n1.with(10).record(), s.newLease()), put(s.owner(one), n1.with(10).owner(""), 0)).packet(n1.with(10), one)
		},
		"a tombstone": func() *story {
			return peered().acquire(n1.with(10), one).packet(n1.with(10), one).entomb(n1.with(10), one).packet(n1.with(10), one).look(n1, one, time.Second).
				lapse(one).acquire(n2.with(11), one).packet(n2.with(11), one)
		},
		"a wipe": func() *story { // the holder puts itself back, others wait
			return peered().acquire(n1.with(10), one).packet(n1.with(10), one).wipe().packet(n1.with(10), one).look(n1, one, time.Second).
				acquire(node(9).with(1), "10.5.0.0-24").settles().acquire(n1.with(10), one).packet(n1.with(10), one).settled().acquire(n2.with(11), two).packet(n2.with(11), two)
		},
		"a wipe, and the holder is away": func() *story {
			return peered().acquire(n1.with(10), one).packet(n1.with(10), one).wipe().settles().packet(n1.with(10), one).settled().acquire(n2.with(11), one).packet(n2.with(11), one)
		},
		"a restore": func() *story { // n2 goes on, n1's record of before ends
			s := peered().acquire(n1.with(10), one)
			state, rev := s.backup()
			return s.leave(n1.with(10), one).acquire(n2.with(11), one).packet(n2.with(11), one).restore(state, rev).packet(n2.with(11), one).settles().
				look(n2, one, time.Second).lapse(one).acquire(n2.with(11), one).settled().packet(n2.with(11), one)
		},
		"a restore of the present state": func() *story {
			s := peered().acquire(n1.with(10), one)
			state, rev := s.backup()
			return s.restore(state, rev).packet(n1.with(10), one).settles().packet(n1.with(10), one).update(n1.with(12), one).packet(n1.with(12), one).
				settled().packet(n1.with(12), one).rebind(n1.with(12), one).look(n1, one, 3*time.Second)
		},
		"a restore, and the later owner is gone": func() *story {
			s := peered().acquire(n1.with(10), one)
			state, rev := s.backup()
			return s.leave(n1.with(10), one).acquire(n2.with(11), one).packet(n2.with(11), one).restore(state, rev).settles().settled().packet(n1.with(10), one)
		},
		"a life whose end nobody saw": func() *story { // n2 had it by then
			s := peered().acquire(n1.with(10), one).packet(n1.with(10), one).lapse(one)
			s.life().Whole = false
			return s.wipe().packet(n2.with(11), one).look(n2, one, 3*time.Second).settles().acquire(n2.with(11), one).packet(n2.with(11), one)
		},
		"widening": func() *story {
			s := peered().acquire(n1.with(10), one)
			return s.txn(put(s.key("config"), strings.Replace(config, "/22", "/16", 1), 0)).acquire(n2.with(10), "10.5.77.0-24").packet(n2.with(10), "10.5.77.0-24").packet(n1.with(10), one)
		},
		"a longer lease": func() *story {
			s := peered().acquire(n1.with(10), one)
			return s.txn(put(s.key("config"), strings.Replace(config, `"5s"`, `"30s"`, 1), 0)).rebind(n1.with(10), one).look(n1, one, 26*time.Second)
		},
		"both families": func() *story {
			const dual = one + "&fd00:5:0:1::-64"
			return peered().acquire(n1.with(10), dual).packet(n1.with(10), one).leave(n1.with(10), dual).acquire(n2.with(11), "10.5.1.0-24&fd00:5:0:1::-64").packet(n2.with(11), one)
		},
		"IPv6 alone": func() *story {
			const six = "0.0.0.0-0&fd00:5:0:1::-64"
			s := peered()
			return s.txn(put(subnetKey(six), n1.with(10).record(), s.newLease()), put(s.key("tenure/owners/fd00:5:0:1::-64"), n1.with(10).owner(""), 0))
		},
		"a masqueraded packet": func() *story {
			s := peered().acquire(n1.with(10), one).lapse(one).acquire(n2.with(11), one).packet(n1.with(10), one)
			s.Packets[0].Source = netip.MustParseAddr("192.0.2.1")
			return s
		},
		"a packet on one node": func() *story {
			s := peered().acquire(n1.with(10), one).lapse(one).acquire(n2.with(11), one).packet(n1.with(10), one)
			s.Packets[0].To.Node = "n1"
			return s
		},
		"a packet that was read late": func() *story { // it was sent before, and the reader had no time
			s := peered().acquire(n1.with(10), one).packet(n1.with(10), one).lapse(one).acquire(n2.with(11), one)
			s.Packets[0].Received = s.t + time.Second
			return s
		},
		"a write by hand": func() *story { // and the subnet is had again once it has ended
			s := peered().acquire(n1.with(10), one)
			s.Foreign = []Foreign{{Revision: s.rev + 1, Why: "put"}, {Revision: s.rev + 2, Why: "delete"}}
			s.txn(put(subnetKey(one), n2.with(66).record(), 0)).look(n1, one, time.Second).lapse(one)
			return s.acquire(n2.with(67), one)
		},
		"a record by hand": func() *story { // which is nobody's claim
			s := peered().acquire(n1.with(10), one)
			s.Foreign = []Foreign{{Revision: s.rev + 1, Why: "put"}}
			return s.txn(put(subnetKey(one), n2.with(66).record(), s.lease)).packet(n1.with(10), one).update(n1.with(10), one)
		},
		"a Delete by hand": func() *story { // the fence closes as soon as its node sees it
			s := peered().acquire(n1.with(10), one)
			s.Foreign = []Foreign{{Revision: s.rev + 1, Why: "delete"}}
			return s.lapse(one).acquire(n2.with(11), one).look(n1, one, time.Second)
		},
		"a restored lease that ends first": func() *story { // n1 goes by the later one, and puts its record back
			s := peered().acquire(n1.with(10), one)
			state, rev := s.backup()
			return s.rebind(n1.with(10), one).restore(state, rev).settles().lapse(one).look(n1, one, time.Second).acquire(n1.with(10), one)
		},
		"fences that open in turns, and no history": func() *story {
			return (&story{t: 100 * time.Second}).look(n1, one, 4*time.Second).look(n2, one, time.Second).look(n1, one, time.Second)
		},
		"a packet between two looks": func() *story {
			s := peered().acquire(n1.with(10), one).look(n1, one, 3*time.Second)
			until := s.t + 3*time.Second
			s.packet(n1.with(10), one).after(time.Second)
			return s.lookUntil(n1, one, until)
		},
		"an answer that did not come": func() *story { // and it committed late
			s := peered()
			called := s.t
			s.acquire(n1.with(10), one)
			s.op(Op{Node: "n1", Key: subnetKey(one), Call: called + time.Millisecond, Return: Never, Put: true, Lease: s.lease, Others: true, Compares: []Compare{{ByCreate, 0}}})
			return s.op(Op{Node: "n1", Key: subnetKey(one), Call: s.t + time.Second, Return: s.t + 2*time.Second, Succeeded: true, Revision: s.rev,
				Compares: []Compare{{ByLease, s.lease}, {ByCreate, s.rev}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if all := Judge(tell().Evidence); len(all) > 0 {
				t.Errorf("nothing is wrong, but:\n%s", lines(all))
			}
		})
	}
}
