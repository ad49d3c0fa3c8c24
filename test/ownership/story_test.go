package ownership

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

const (
	prefix = "/tenure/network"
	ttl    = 5 * time.Second
	config = `{"Network":"10.5.0.0/22","LeaseTTL":"5s"}`
	one    = "10.5.1.0-24"
	two    = "10.5.2.0-24"
)

// story is evidence as it is made, a second between any two steps. Each step
// is a transaction, committed within a tenth of a second before now.
type story struct {
	Evidence
	t     time.Duration
	rev   int64
	lease int64
	state map[string]KV
}

func begin() *story {
	s := &story{Evidence: Evidence{Prefix: prefix}, t: 100 * time.Second, lease: 0x100, state: map[string]KV{}}
	s.History.Lives = []Life{{Beginning: Born, Began: s.t, Whole: true}}
	return s.txn(put(s.key("config"), config, 0), put(s.key("tenure/store"), `{"ID":"s"}`, 0))
}

func (s *story) key(name string) string { return prefix + "/" + name }
func subnetKey(name string) string      { return prefix + "/subnets/" + name }
func (s *story) life() *Life            { return &s.History.Lives[len(s.History.Lives)-1] }
func (s *story) after(d time.Duration)  { s.t += d }
func (s *story) newLease() int64        { s.lease++; return s.lease }
func (s *story) owner(name string) string {
	first, _, _ := strings.Cut(name, "&")
	return s.key("tenure/owners/" + first)
}

// change is a part of a transaction.
type change struct {
	key, value string
	lease      int64
	deleted    bool
}

func put(key, value string, lease int64) change { return change{key: key, value: value, lease: lease} }
func del(key string) change                     { return change{key: key, deleted: true} }

func (s *story) txn(changes ...change) *story {
	s.after(time.Second)
	s.rev++
	for _, c := range changes {
		e := Event{KV: KV{Key: c.key, Value: c.value, Lease: c.lease, Mod: s.rev, Create: s.rev}, Deleted: c.deleted, After: s.t - 100*time.Millisecond, Seen: s.t}
		if prev, ok := s.state[c.key]; ok {
			e.Prev, e.Create = &prev, prev.Create
		}
		if c.deleted {
			e.KV = KV{Key: c.key, Mod: s.rev}
			delete(s.state, c.key)
		} else {
			s.state[c.key] = e.KV
		}
		s.life().Events = append(s.life().Events, e)
	}
	return s
}

// who is a node as a story knows it.
type who struct {
	tenant
	ip string
}

func node(n int) who {
	return who{tenant{Node: fmt.Sprintf("n%d", n), UID: fmt.Sprintf("u%d", n), Boot: fmt.Sprintf("b%d", n)}, fmt.Sprintf("192.0.2.%d", n)}
}

func (w who) with(epoch int64) who { w.Epoch = epoch; return w }

func (w who) record() string {
	b, _ := json.Marshal(map[string]any{"PublicIP": w.ip, "Tenure": w.tenant})
	return string(b)
}

func (w who) owner(until string) string {
	o := map[string]any{"UID": w.UID, "Epoch": w.Epoch}
	if until != "" {
		o["Until"] = until
	}
	b, _ := json.Marshal(o)
	return string(b)
}

const then = "2026-01-02T03:04:05Z"

// acquire, and what else the protocol knows.
func (s *story) acquire(w who, name string) *story {
	return s.txn(put(subnetKey(name), w.record(), s.newLease()), put(s.owner(name), w.owner(""), 0))
}

func (s *story) update(w who, name string) *story {
	return s.txn(put(subnetKey(name), w.record(), s.state[subnetKey(name)].Lease))
}

func (s *story) rebind(w who, name string) *story {
	return s.txn(put(subnetKey(name), w.record(), s.newLease()))
}

func (s *story) leave(w who, name string) *story {
	s.txn(del(subnetKey(name)), put(s.owner(name), w.owner(then), 0))
	events := s.life().Events
	events[len(events)-2].LeaseAlive = true // it is revoked afterwards
	return s
}

func (s *story) lapse(name string) *story { return s.txn(del(subnetKey(name))) }

func (s *story) entomb(w who, name string) *story {
	tomb := w
	tomb.UID = ""
	return s.txn(put(subnetKey(name), tomb.record(), s.newLease()), put(s.owner(name), w.owner(then), 0))
}

func (s *story) settles() *story { return s.txn(put(s.key("tenure/settle"), "{}", s.newLease())) }
func (s *story) settled() *story { return s.txn(del(s.key("tenure/settle"))) }

// wipe and restore begin another life, the latter with a state of before.
func (s *story) wipe() *story {
	s.after(time.Second)
	s.state, s.rev = map[string]KV{}, 0
	s.History.Lives = append(s.History.Lives, Life{Beginning: Wiped, Began: s.t, Whole: true})
	return s
}

func (s *story) backup() (map[string]KV, int64) {
	b := map[string]KV{}
	for k, v := range s.state {
		b[k] = v
	}
	return b, s.rev
}

func (s *story) restore(state map[string]KV, rev int64) *story {
	s.after(time.Second)
	s.state, s.rev = map[string]KV{}, rev
	l := Life{Beginning: Restored, Began: s.t, Whole: true}
	for k, v := range state {
		s.state[k] = v
		l.Base = append(l.Base, v)
	}
	s.History.Lives = append(s.History.Lives, l)
	return s
}

func addrIn(name string) netip.Addr {
	p, _ := parseSubnets(name)
	return p[0].Addr().Next().Next()
}

// packet is one that the node sends from the subnet to n9, which takes a
// millisecond.
func (s *story) packet(w who, name string) *story {
	s.after(time.Second)
	p, _ := parseSubnets(name)
	s.Packets = append(s.Packets, Packet{
		From:   End{Node: w.Node, Addr: addrIn(name), Subnet: p[0], Epoch: w.Epoch},
		To:     End{Node: "n9", Addr: netip.MustParseAddr("10.5.0.2")},
		Source: addrIn(name), Sent: s.t, Received: s.t + time.Millisecond,
	})
	return s
}

// look is a sample of the node's fence, open for so long from now on.
func (s *story) look(w who, name string, open time.Duration) *story {
	s.after(time.Second)
	return s.lookUntil(w, name, s.t+open)
}

func (s *story) lookUntil(w who, name string, deadline time.Duration) *story {
	p, _ := parseSubnets(name)
	s.Samples = append(s.Samples, Sample{Node: w.Node, Began: s.t, Ended: s.t + time.Microsecond, Subnet: p[0], Deadline: deadline})
	return s
}

// movesShut moves a key while settle stands and the holder's fence is closed.
func (s *story) movesShut(w who, name string) *story {
	s.look(w, name, time.Millisecond)
	closed := s.t + time.Millisecond
	s.settles().rebind(w, name).after(time.Second)
	return s.lookUntil(w, name, closed)
}

// peered is a story in which n9 holds the packets' other end.
func peered() *story { return begin().acquire(node(9).with(1), "10.5.0.0-24") }
