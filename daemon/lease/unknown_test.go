package lease

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// The tests of this file are about writes whose outcome nobody tells: their
// answers are lost, or they commit when everybody has given them up.

// wide is a network in which two random candidates are hardly ever the same.
const wide = `{"Network":"10.5.0.0/16","SubnetLen":24,"LeaseTTL":"5s","Backend":{"Type":"vxlan"}}`

// lossy is a host whose daemon reaches etcd through a proxy with rules.
func lossy(t *testing.T, name string, s *etcdtest.Server) (*host, *etcdproxy.Proxy) {
	t.Helper()
	p := etcdproxy.Start(t, s.Endpoint)
	return newHost(t, name, p.URL()), p
}

// subnetKeys fits every write of a subnet key.
func subnetKeys() etcdproxy.Match { return etcdproxy.PutsBelow(NewKeys(prefix).subnets()) }

// deletes fits a transaction that may delete the key.
func deletes(key string) etcdproxy.Match {
	return etcdproxy.When(func(r *pb.TxnRequest) bool {
		for _, op := range r.Success {
			if d := op.GetRequestDeleteRange(); d != nil && string(d.Key) == key {
				return true
			}
		}
		return false
	})
}

// grants fits every grant. One that fails is asked for again by the client itself,
// with the same ID; only silence shows what the engine does.
func grants() etcdproxy.Match { return etcdproxy.Method(pb.Lease_LeaseGrant_FullMethodName) }

// release lets the writes commit that a rule holds; etcd may well refuse them.
func release(t *testing.T, r *etcdproxy.Rule) {
	t.Helper()
	if r.Hits() == 0 {
		t.Fatal("nothing was held back")
	}
	_ = r.Release(t.Context())
}

// neverTooLong watches a host until it is stopped, and fails the test if its
// fence was ever open for a subnet whose key was not there, or for longer than
// the lease allows that the key hung on. In a store that forgets, the key may be
// missing.
//
// Sound, not complete: a sample counts if the key was the same before and after
// F was read; the lease is looked at afterwards, when it can only end later; and
// etcd cuts what is left of it down to whole seconds, so one is added.
func (h *host) neverTooLong(c *clientv3.Client, forgets bool) (stop func()) {
	ended, cancel := ctxUntilDone(h.t)
	done := make(chan struct{})
	k := NewKeys(prefix)
	read := func(s Subnets) (mod int64, l clientv3.LeaseID, err error) {
		resp, err := c.Get(h.t.Context(), k.Subnet(s))
		if err != nil || len(resp.Kvs) == 0 {
			return 0, 0, err
		}
		return resp.Kvs[0].ModRevision, clientv3.LeaseID(resp.Kvs[0].Lease), nil
	}
	sample := func() {
		sub := h.fence.Get().Live
		if sub.IsZero() {
			return
		}
		mod, lease, err1 := read(sub)
		kept := h.fence.Get()
		f, same := kept.Deadline, kept.Live
		now := bootClock()
		again, _, err2 := read(sub)
		if err := errors.Join(err1, err2); err != nil || mod != again || same != sub || f <= now {
			return
		}
		if mod == 0 {
			if !forgets {
				h.t.Errorf("%s: the fence is open for another %s, and %s has no key", h.name, f-now, sub)
			}
			return
		}
		resp, err := c.TimeToLive(h.t.Context(), lease)
		if err != nil || resp.TTL < 0 {
			return
		}
		granted := time.Duration(resp.GrantedTTL) * time.Second
		if most := bootClock() + time.Duration(resp.TTL+1)*time.Second - Margin(granted); f > most {
			h.t.Errorf("%s: the fence is open for %s longer than lease %x of %s allows", h.name, f-most, int64(lease), sub)
		}
	}
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for !h.t.Failed() {
			select {
			case <-ended:
				return
			case <-tick.C:
				sample()
			}
		}
	}()
	return func() { cancel(); <-done }
}

// calm waits until the daemon holds a subnet, and its key and its lease are the
// only ones in the store.
func (d *daemon) calm(c *clientv3.Client) View {
	d.t.Helper()
	var left string
	return d.wait("one key under the one lease", func(v View) bool {
		keys, err := c.Get(d.t.Context(), NewKeys(prefix).subnets(), clientv3.WithPrefix())
		leases, err2 := c.Leases(d.t.Context())
		if errors.Join(err, err2) != nil {
			return false
		}
		if now := strings.Join([]string{keysOf(keys), leasesOf(leases)}, " / "); now != left {
			left = now
			d.t.Log("in the store:", now)
		}
		return v.State == api.StateHeld && len(keys.Kvs) == 1 && len(leases.Leases) == 1 &&
			leases.Leases[0].ID == v.Holding.LeaseID() && clientv3.LeaseID(keys.Kvs[0].Lease) == v.Holding.LeaseID()
	})
}

func keysOf(resp *clientv3.GetResponse) string {
	var all []string
	for _, kv := range resp.Kvs {
		all = append(all, string(kv.Key)+" under "+leaseHex(clientv3.LeaseID(kv.Lease)))
	}
	return strings.Join(all, ", ")
}

func leasesOf(resp *clientv3.LeaseLeasesResponse) string {
	var all []string
	for _, l := range resp.Leases {
		all = append(all, leaseHex(l.ID))
	}
	return strings.Join(all, ", ")
}

// TestUnknownAcquire: whatever becomes of the first attempt, the node ends with
// one key under one lease, and nothing else is left in the store.
func TestUnknownAcquire(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(p *etcdproxy.Proxy) *etcdproxy.Rule{
		"answer lost": func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.DropReply(1, subnetKeys(), etcdproxy.Fail) },
		"no answer":   func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.DropReply(1, subnetKeys(), etcdproxy.Silence) },
		"late":        func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.CommitLate(1, subnetKeys(), etcdproxy.Fail) },
		"abandoned":   func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.CommitAbandoned(1, subnetKeys()) },
		"grant lost":  func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.DropReply(1, grants(), etcdproxy.Silence) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := cluster(t, strings.Replace(wide, "5s", "60s", 1))
			h, p := lossy(t, "n1", s)
			r := fault(p)
			stop := h.neverTooLong(c, false)
			d := h.start()
			d.waitHeld()
			release(t, r)
			d.calm(c)
			stop()
			if n := h.fence.Get().Closed; n != 0 {
				t.Errorf("the fence was closed %d times", n)
			}
		})
	}
}

// TestUnknownRebind: a move to a lease of another length that nobody tells the
// outcome of is repeated until it is seen, and the fence stays open meanwhile.
func TestUnknownRebind(t *testing.T) {
	t.Parallel()
	const longer, shorter = `"9s"`, `"6s"`
	for name, c := range map[string]struct {
		from, to string
		fault    func(p *etcdproxy.Proxy) *etcdproxy.Rule
	}{
		"longer, answer lost": {shorter, longer, func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.DropReply(1, subnetKeys(), etcdproxy.Fail) }},
		"shorter, answer lost": {longer, shorter, func(p *etcdproxy.Proxy) *etcdproxy.Rule {
			return p.DropReply(1, subnetKeys(), etcdproxy.Silence)
		}},
		"longer, late":  {shorter, longer, func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.CommitLate(2, subnetKeys(), etcdproxy.Fail) }},
		"shorter, late": {longer, shorter, func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.CommitLate(2, subnetKeys(), etcdproxy.Fail) }},
		"grants lost":   {shorter, `"60s"`, func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.DropReply(2, grants(), etcdproxy.Silence) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := func(ttl string) string { return strings.Replace(fourSubnets, `"5s"`, ttl, 1) }
			s, client := cluster(t, config(c.from))
			h, p := lossy(t, "n1", s)
			d := h.start()
			v := d.waitHeld()
			r := c.fault(p)
			stopOpen, stop := h.openAllAlong(), h.neverTooLong(client, false)
			put(t, client, NewKeys(prefix).Config(), config(c.to))
			want, err := time.ParseDuration(strings.Trim(c.to, `"`))
			if err != nil {
				t.Fatal(err)
			}
			w := d.wait("the new length", func(v View) bool { return v.State == api.StateHeld && v.Holding.TTL() == want })
			release(t, r)
			if w.Holding.Subnets() != v.Holding.Subnets() || w.Holding.create != v.Holding.create {
				t.Errorf("%s of revision %d, was %s of %d", w.Holding.Subnets(), w.Holding.create, v.Holding.Subnets(), v.Holding.create)
			}
			d.calm(client)
			stop()
			stopOpen()
		})
	}
}

// TestRebindCommitsWhileCyclesGoOn: no attempt is answered, cycles prove the old
// lease, and then the move commits after all.
func TestRebindCommitsWhileCyclesGoOn(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(fourSubnets, `"5s"`, `"9s"`, 1))
	h, p := lossy(t, "n1", s)
	d := h.start()
	v := d.waitHeld()
	r := p.CommitLate(etcdproxy.Always, subnetKeys(), etcdproxy.Fail)
	stopOpen, stop := h.openAllAlong(), h.neverTooLong(c, false)
	put(t, c, NewKeys(prefix).Config(), strings.Replace(fourSubnets, `"5s"`, `"6s"`, 1))
	d.wait("two attempts", func(View) bool { return r.Hits() >= 2 })
	proof := d.View().LastProof
	w := d.wait("two proofs of the old lease", func(v View) bool { return v.LastProof > proof+time.Second })
	if w.Holding.LeaseID() != v.Holding.LeaseID() {
		t.Errorf("lease %x, want %x still", w.Holding.LeaseID(), v.Holding.LeaseID())
	}
	release(t, r)
	d.wait("the new length", func(v View) bool { return v.State == api.StateHeld && v.Holding.TTL() == 6*time.Second })
	d.calm(c)
	stop()
	stopOpen()
}

// endSettle ends settle before its time, for a test in which nobody else holds.
func endSettle(t *testing.T, c *clientv3.Client) {
	t.Helper()
	for _, kv := range etcdtest.Get(t, c, NewKeys(prefix).Settle()).Kvs {
		if _, err := c.Revoke(t.Context(), clientv3.LeaseID(kv.Lease)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUnknownReassert: the store was wiped, and what becomes of the key that is
// put back is not told at first. The fence never closes.
func TestUnknownReassert(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(p *etcdproxy.Proxy) *etcdproxy.Rule{
		"answer lost": func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.DropReply(1, subnetKeys(), etcdproxy.Fail) },
		"late":        func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.CommitLate(2, subnetKeys(), etcdproxy.Fail) },
		"grants lost": func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.DropReply(3, grants(), etcdproxy.Fail) },
		"settle's answer lost": func(p *etcdproxy.Proxy) *etcdproxy.Rule {
			return p.DropReply(1, etcdproxy.Puts(NewKeys(prefix).Settle()), etcdproxy.Fail)
		},
		"settle late": func(p *etcdproxy.Proxy) *etcdproxy.Rule {
			return p.CommitLate(1, etcdproxy.Puts(NewKeys(prefix).Settle()), etcdproxy.Fail)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := cluster(t, tenSeconds)
			h, p := lossy(t, "n1", s)
			d := h.start()
			v := d.waitHeld()
			r := fault(p)
			stopOpen, stop := h.openAllAlong(), h.neverTooLong(c, true)
			s.Wipe(t, true)
			d.back(c, v.Holding)
			release(t, r)
			endSettle(t, c)
			d.wait("settled", func(v View) bool { return v.State == api.StateHeld && !hasProblem(v, storeWentBack) })
			w := d.calm(c)
			if w.Holding.Subnets() != v.Holding.Subnets() || w.Holding.Epoch() != v.Holding.Epoch() {
				t.Errorf("holds %s of epoch %d, want %s of %d", w.Holding.Subnets(), w.Holding.Epoch(), v.Holding.Subnets(), v.Holding.Epoch())
			}
			stop()
			stopOpen()
		})
	}
}

// TestUnknownInheritance: node.json is gone, the kernel's fence is open, and the
// answers to the write are lost by which the record becomes the new identity's.
func TestUnknownInheritance(t *testing.T) {
	t.Parallel()
	alone := func(r *pb.RangeRequest) bool {
		return strings.HasPrefix(string(r.Key), NewKeys(prefix).subnets()) && len(r.RangeEnd) == 0
	}
	for name, fault := range map[string]func(p *etcdproxy.Proxy) *etcdproxy.Rule{
		"answer lost": func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.DropReply(1, subnetKeys(), etcdproxy.Fail) },
		"late":        func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.CommitLate(1, subnetKeys(), etcdproxy.Fail) },
		"grant lost":  func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.DropReply(1, grants(), etcdproxy.Silence) },
		"answer lost, and the read that follows": func(p *etcdproxy.Proxy) *etcdproxy.Rule {
			p.DropReply(1, etcdproxy.When(alone), etcdproxy.Silence)
			return p.DropReply(1, subnetKeys(), etcdproxy.Fail)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := cluster(t, strings.Replace(fourSubnets, "5s", "60s", 1))
			h, p := lossy(t, "n1", s)
			h.local, h.silent = true, true
			d := h.start()
			v := d.waitHeld()
			d.stop()
			h.losesState()
			r := fault(p)
			stopOpen, stop := h.openAllAlong(), h.neverTooLong(c, false)
			d = h.start()
			d.waitHeld()
			release(t, r)
			w := d.calm(c)
			if w.Holding.Subnets() != v.Holding.Subnets() || w.Holding.create != v.Holding.create {
				t.Errorf("holds %s of revision %d, want %s of %d", w.Holding.Subnets(), w.Holding.create, v.Holding.Subnets(), v.Holding.create)
			}
			stop()
			stopOpen()
		})
	}
}

// TestReadAfterInheritanceFails: the write is answered, every read of the key
// alone is not. The lease that the key hangs on by now must not be revoked: the
// fence is open.
func TestReadAfterInheritanceFails(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(fourSubnets, "5s", "20s", 1))
	h, p := lossy(t, "n1", s)
	h.local, h.silent = true, true
	d := h.start()
	v := d.waitHeld()
	d.stop()
	h.losesState()
	key := NewKeys(prefix).Subnet(v.Holding.Subnets())
	p.DropReply(etcdproxy.Always, etcdproxy.When(func(r *pb.RangeRequest) bool { return string(r.Key) == key && len(r.RangeEnd) == 0 }), etcdproxy.Silence)
	stopOpen, stop := h.openAllAlong(), h.neverTooLong(c, false)
	w := h.start().waitHeld()
	if w.Holding.Subnets() != v.Holding.Subnets() || w.Holding.create != v.Holding.create {
		t.Errorf("holds %s of revision %d, want %s of %d", w.Holding.Subnets(), w.Holding.create, v.Holding.Subnets(), v.Holding.create)
	}
	stop()
	stopOpen()
}

// TestUnknownLeave: key and lease end, also where the answer is lost, and a
// deletion that commits late touches nobody else's key.
func TestUnknownLeave(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"answer lost": false, "late": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := cluster(t, `{"Network":"10.5.0.0/24","SubnetLen":24,"LeaseTTL":"60s"}`)
			h, p := lossy(t, "n1", s)
			d := h.start()
			v := d.waitHeld()
			key := NewKeys(prefix).Subnet(v.Holding.Subnets())
			deletion := func(method string, request any) bool {
				if !deletes(key)(method, request) {
					return false
				}
				if f, _ := h.fence.Deadline(); f > bootClock() {
					t.Errorf("the key is to be deleted, and the fence is open for another %s", f-bootClock())
				}
				return true
			}
			r := p.DropReply(1, deletion, etcdproxy.Fail)
			if late {
				r.Remove()
				r = p.CommitLate(1, deletion, etcdproxy.Fail)
			}
			stop := h.neverTooLong(c, false)
			if err := d.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			stop()
			if f, _ := h.fence.Deadline(); f != 0 {
				t.Errorf("the fence is open until %s", f)
			}
			next := newHost(t, "n2", s.Endpoint).start()
			w := next.waitHeld()
			release(t, r)
			next.calm(c)
			if now := next.waitHeld(); now.Holding.LeaseID() != w.Holding.LeaseID() {
				t.Error("the next tenant was disturbed by a deletion that came late")
			}
		})
	}
}

// TestLateUpdateUndoesNothing: a record that is written late does not come after
// one that was written, and acknowledged, in the meantime.
func TestLateUpdateUndoesNothing(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h, p := lossy(t, "n1", s)
	d := h.start()
	v := d.waitHeld()
	stopOpen, stop := h.openAllAlong(), h.neverTooLong(c, false)
	key := NewKeys(prefix).Subnet(v.Holding.Subnets())
	r := p.CommitLate(1, etcdproxy.Puts(key), etcdproxy.Fail)
	h.publishes("192.0.2.12", nil)
	d.Touch()
	d.wait("the first update", func(View) bool { return r.Hits() == 1 })
	h.publishes("192.0.2.13", nil)
	d.Touch()
	d.wait("the second update", func(v View) bool { return v.Holding.Record().PublicIP.String() == "192.0.2.13" })
	release(t, r)
	for rev, kv := range history(t, c, key) {
		if kv != nil && strings.Contains(string(kv.Value), "192.0.2.12") {
			t.Errorf("revision %d has the earlier record: %s", rev+1, kv.Value)
		}
	}
	if w := d.calm(c); w.Holding.LeaseID() != v.Holding.LeaseID() {
		t.Errorf("lease %x, want %x", w.Holding.LeaseID(), v.Holding.LeaseID())
	}
	stop()
	stopOpen()
}

// TestSwallowedEvents: what the watch does not tell, the next cycle or the next
// list does.
func TestSwallowedEvents(t *testing.T) {
	t.Parallel()
	t.Run("own key deleted", func(t *testing.T) {
		t.Parallel()
		s, c := cluster(t, fourSubnets)
		h, p := lossy(t, "n1", s)
		d := h.start()
		v := d.waitHeld()
		r := p.SwallowEvents(1, etcdproxy.EventOf(NewKeys(prefix).Subnet(v.Holding.Subnets())))
		if _, err := c.Delete(t.Context(), NewKeys(prefix).Subnet(v.Holding.Subnets())); err != nil {
			t.Fatal(err)
		}
		gone := bootClock()
		d.wait("closed", func(View) bool { return h.fence.Get().Closed > 0 })
		if took, most := bootClock()-gone, Interval(v.Holding.TTL())*12/10+CallTimeout(v.Holding.TTL()); r.Hits() != 1 || took > most {
			t.Errorf("closed after %s, want one cycle (%s); %d events swallowed", took, most, r.Hits())
		}
		d.calm(c)
	})
	t.Run("own key put", func(t *testing.T) {
		t.Parallel()
		s, c := cluster(t, strings.Replace(fourSubnets, "5s", "24h", 1))
		h, p := lossy(t, "n1", s)
		k := NewKeys(prefix)
		r := p.SwallowEvents(1, func(e *mvccpb.Event) bool { return strings.HasPrefix(string(e.GetKv().GetKey()), k.subnets()) })
		d := h.start()
		d.waitHeld()
		put(t, c, k.All()+"noise", "an event from which the own key is missing")
		d.wait("the own key in the watch", func(v View) bool { return len(v.Snapshot.Entries) == 1 })
		if n := h.fence.Get().Closed; n != 0 || r.Hits() != 1 {
			t.Errorf("the fence was closed %d times; %d events swallowed", n, r.Hits())
		}
	})
	t.Run("settle gone", func(t *testing.T) {
		t.Parallel()
		s, c := cluster(t, fourSubnets)
		h, p := lossy(t, "n1", s)
		d := h.start()
		d.waitHeld()
		if _, err := InitAfterLoss(t.Context(), c, prefix, []byte(fourSubnets), 5*time.Second); err != nil {
			t.Fatal(err)
		}
		d.wait("settling", func(v View) bool { return v.Settling })
		fresh, q := lossy(t, "n2", s)
		settle := etcdproxy.EventOf(NewKeys(prefix).Settle())
		one, two := p.SwallowEvents(1, settle), q.SwallowEvents(1, settle)
		f := fresh.start()
		f.waitHeld()
		d.wait("settled", func(v View) bool { return !v.Settling && v.State == api.StateHeld })
		if one.Hits() != 1 || two.Hits() != 1 {
			t.Errorf("%d and %d events swallowed", one.Hits(), two.Hits())
		}
	})
	t.Run("peer gone", func(t *testing.T) {
		t.Parallel()
		s, c := cluster(t, fourSubnets)
		h := holdingOn(t, c, granted(t, c))
		p := etcdproxy.Start(t, s.Endpoint)
		key := h.keys.Subnet(h.subnets)
		r := p.SwallowEvents(1, etcdproxy.EventOf(key))
		var mu sync.Mutex
		var last *Snapshot
		d := newHost(t, "n1", s.Endpoint)
		w := NewWatcher(etcdtest.Client(t, p.URL()), h.keys, slogOf(d), func(s *Snapshot) { mu.Lock(); last = s; mu.Unlock() }, func() {})
		w.resync = time.Second
		ended, cancel := ctxUntilDone(t)
		done := make(chan struct{})
		go func() { defer close(done); w.Run(untilClosed(t, ended)) }()
		t.Cleanup(func() { cancel(); <-done })
		entries := func() int {
			mu.Lock()
			defer mu.Unlock()
			if last == nil {
				return -1
			}
			return len(last.Entries)
		}
		eventually(t, "the peer", func() bool { return entries() == 1 })
		if _, err := c.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the peer to go", func() bool { return entries() == 0 })
		if r.Hits() != 1 {
			t.Errorf("%d events swallowed", r.Hits())
		}
	})
}

// untilClosed is a context that ends with the channel.
func untilClosed(t *testing.T, ended <-chan struct{}) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}()
	return ctx
}

// eventually waits for a condition that no View tells of.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for tick := time.NewTicker(10 * time.Millisecond); !ok(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestInheritanceRefusedAfterAnUnknownTry: the first try is kept by the network,
// the second one is refused, and the first commits after that. Its lease was
// left to stand, so the key is kept.
func TestInheritanceRefusedAfterAnUnknownTry(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(fourSubnets, "5s", "20s", 1))
	h, p := lossy(t, "n1", s)
	h.local, h.silent = true, true
	d := h.start()
	d.waitHeld()
	d.stop()
	h.losesState()
	first := p.CommitLate(1, subnetKeys(), etcdproxy.Fail)
	tries := 0
	second := p.Delay(1, func(method string, request any) bool {
		if subnetKeys()(method, request) {
			tries++
		}
		return tries == 2
	}, etcdproxy.Request, 2*time.Second)
	stop := h.neverTooLong(c, false)
	d = h.start()
	// News would make it look, and wait, before it tries again.
	eventually(t, "the second try", func() bool { return first.Hits() == 1 && second.Hits() == 1 })
	put(t, c, NewKeys(prefix).Settle(), "refuses the second try")
	d.wait("settling", func(v View) bool { return v.State == api.StateWaiting && strings.Contains(v.Reason, "settling") })
	if _, err := c.Delete(t.Context(), NewKeys(prefix).Settle()); err != nil {
		t.Fatal(err)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Error(err)
	}
	d.waitHeld()
	stop()
}

// TestInheritanceRefusedBecauseItWasDone: the first try is kept by the network and
// commits while the second is on its way. The second is refused, and the lease
// that both name is the one that the key hangs on.
func TestInheritanceRefusedBecauseItWasDone(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(fourSubnets, "5s", "20s", 1))
	h, p := lossy(t, "n1", s)
	h.local, h.silent = true, true
	d := h.start()
	v := d.waitHeld()
	d.stop()
	h.losesState()
	second := p.Delay(2, subnetKeys(), etcdproxy.Request, time.Second) // and the first, which is kept anyway
	first := p.CommitLate(1, subnetKeys(), etcdproxy.Fail)
	stop := h.neverTooLong(c, false)
	d = h.start()
	eventually(t, "the second try", func() bool { return second.Hits() == 2 })
	if err := first.Release(t.Context()); err != nil {
		t.Error(err)
	}
	w := d.waitHeld()
	if w.Holding.Subnets() != v.Holding.Subnets() || w.Holding.create != v.Holding.create {
		t.Errorf("holds %s of revision %d, want %s of %d", w.Holding.Subnets(), w.Holding.create, v.Holding.Subnets(), v.Holding.create)
	}
	stop()
}
