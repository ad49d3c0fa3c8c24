package lease

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
)

// TestTTLChange: a new LeaseTTL moves the key to a lease of that length, in
// either direction, and the fence is never open for longer than the lease that
// the key hangs on allows.
func TestTTLChange(t *testing.T) {
	t.Parallel()
	const long, short = `"LeaseTTL":"60s"`, `"LeaseTTL":"6s"`
	config := func(ttl string) string { return strings.Replace(fourSubnets, `"LeaseTTL":"5s"`, ttl, 1) }
	for name, c := range map[string]struct {
		from, to string
		want     time.Duration
	}{
		"shorter":          {`"LeaseTTL":"9s"`, short, 6 * time.Second},
		"longer":           {short, long, time.Minute},
		"of two that last": {long, `"LeaseTTL":"40s"`, 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, client := cluster(t, config(c.from))
			h := newHost(t, "n1", s.Endpoint)
			d := h.start()
			v := d.waitHeld()
			stop := h.openAllAlong()
			put(t, client, NewKeys(prefix).Config(), config(c.to))
			d.wait("the config", func(v View) bool { return v.Network.LeaseTTL == c.want })
			d.Touch()
			w := d.wait("the new length", func(v View) bool { return v.State == api.StateHeld && v.Holding.TTL() == c.want })
			if w.Holding.Subnets() != v.Holding.Subnets() || w.Holding.create != v.Holding.create || w.Holding.LeaseID() == v.Holding.LeaseID() {
				t.Errorf("%s of revision %d under %x, was %s of %d under %x", w.Holding.Subnets(), w.Holding.create, w.Holding.LeaseID(),
					v.Holding.Subnets(), v.Holding.create, v.Holding.LeaseID())
			}
			if f, _ := h.fence.Deadline(); f > bootClock()+c.want-Margin(c.want) {
				t.Errorf("F is %s away, the lease has %s", f-bootClock(), c.want)
			}
			d.wait("the old lease to end", func(View) bool {
				resp, err := client.TimeToLive(t.Context(), v.Holding.LeaseID())
				return err == nil && resp.TTL <= 0
			})
			stop()
		})
	}
}

// TestStateLost: node.json is gone, the record's address is this machine's and
// silent, the name is the same: the subnet is kept, under a new identity, a new
// epoch and a new lease.
func TestStateLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		local, silent bool
		name          string
		inherits      bool
	}{
		"own record":            {true, true, "n1", true},
		"address elsewhere":     {false, true, "n1", false},
		"address answered for":  {true, false, "n1", false},
		"another's at this IP ": {true, true, "n2", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, client := cluster(t, strings.Replace(fourSubnets, "5s", "30s", 1))
			h := newHost(t, "n1", s.Endpoint)
			d := h.start()
			v := d.waitHeld()
			d.stop()
			h.losesState()
			h.name, h.local, h.silent = c.name, c.local, c.silent
			d = h.start()
			w := d.wait("a decision", func(v View) bool { return v.State == api.StateHeld || v.State == api.StateRefused })
			if got := w.Held && w.Holding.Subnets() == v.Holding.Subnets(); got != c.inherits {
				t.Fatalf("kept the subnet: %t, want %t (state %s: %s)", got, c.inherits, w.State, w.Reason)
			}
			if !c.inherits {
				if kv := etcdtest.Get(t, client, NewKeys(prefix).Subnet(v.Holding.Subnets())).Kvs; len(kv) != 1 || kv[0].Version != 1 {
					t.Errorf("the key was written: %v", kv)
				}
				return
			}
			old, now := v.Holding.Record().Tenant(), w.Holding.Record().Tenant()
			if now.UID == old.UID || now.Epoch <= old.Epoch || w.Holding.LeaseID() == v.Holding.LeaseID() {
				t.Errorf("UID %s epoch %d lease %x, before %s %d %x", now.UID, now.Epoch, w.Holding.LeaseID(), old.UID, old.Epoch, v.Holding.LeaseID())
			}
			o := etcdtest.Get(t, client, NewKeys(prefix).Owner(v.Holding.Subnets())).Kvs
			owner, err := decode[Owner]("owner", o[0].Value)
			if err != nil || owner.UID != now.UID || len(owner.History) != 1 || owner.History[0].UID != old.UID {
				t.Errorf("owner record %+v, %v", owner, err)
			}
		})
	}
}

// TestFlannelsRecord: the record of the flannel that ran on this machine is
// taken over if its device is down, and left alone while it is up.
func TestFlannelsRecord(t *testing.T) {
	t.Parallel()
	four := Subnets{V4: netip.MustParsePrefix("10.5.2.0/24")}
	six := Subnets{V6: netip.MustParsePrefix("fd00:5:0:2::/64")}
	const record = `{"PublicIP":"192.0.2.11","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:66"}}`
	const record6 = `{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::11","BackendType":"vxlan","BackendV6Data":{"VNI":1,"VtepMAC":"02:00:00:00:00:66"}}`
	for name, one := range map[string]struct {
		up              bool
		network, record string
		address         string
		sub             Subnets
	}{
		"device down":            {false, fourSubnets, record, "192.0.2.11", four},
		"device up":              {true, fourSubnets, record, "192.0.2.11", four},
		"IPv6 only, device down": {false, fourSubnets6, record6, "2001:db8::11", six},
		"IPv6 only, device up":   {true, fourSubnets6, record6, "2001:db8::11", six},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := cluster(t, one.network)
			sub, up := one.sub, one.up
			l, err := c.Grant(t.Context(), 3600)
			if err != nil {
				t.Fatal(err)
			}
			key := NewKeys(prefix).Subnet(sub)
			put(t, c, key, one.record, clientv3.WithLease(l.ID))
			h := newHost(t, "n1", s.Endpoint)
			if one.sub == six {
				h.address, h.address6 = "", "2001:db8::11"
			}
			h.local, h.silent, h.flannel = true, true, up
			v := h.start().waitHeld()
			if got := v.Holding.Subnets() == sub; got == up {
				t.Fatalf("holds %s with the device up: %t", v.Holding.Subnets(), up)
			}
			kv := etcdtest.Get(t, c, key).Kvs
			if up && (len(kv) != 1 || kv[0].Version != 1) {
				t.Errorf("flannel's record was touched: %v", kv)
			}
			if !up && (len(kv) != 1 || kv[0].Version != 2 || clientv3.LeaseID(kv[0].Lease) != v.Holding.LeaseID()) {
				t.Errorf("the key is %v, want it written once, under %x", kv, v.Holding.LeaseID())
			}
		})
	}
}

// TestLeave: the fence is closed before the key goes, the subnet can be had at
// once, and the node stays out until it is started anew.
func TestLeave(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, `{"Network":"10.5.0.0/24","SubnetLen":24,"LeaseTTL":"60s"}`)
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	late := newHost(t, "n2", s.Endpoint).start()
	late.wait("no-free-subnet", func(v View) bool {
		return hasProblem(v, "no-free-subnet") && strings.Contains(v.Reason, "ends next") && strings.Contains(v.Reason, `"n1"`)
	})
	if err := d.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f, _ := h.fence.Deadline(); f != 0 {
		t.Errorf("the fence is open until %s", f)
	}
	if w := late.waitHeld(); w.Holding.Subnets() != v.Holding.Subnets() {
		t.Errorf("n2 took %s", w.Holding.Subnets())
	}
	if resp, err := c.TimeToLive(t.Context(), v.Holding.LeaseID()); err != nil || resp.TTL > 0 {
		t.Errorf("the lease lives on: %v, %v", resp, err)
	}
	o, err := decode[Owner]("owner", etcdtest.Get(t, c, NewKeys(prefix).Owner(v.Holding.Subnets())).Kvs[0].Value)
	if err != nil || len(o.History) != 1 || o.History[0].Until.IsZero() || o.History[0].Why != "given up" {
		t.Errorf("owner record %+v, %v", o, err)
	}
	if err := d.Leave(t.Context()); !errors.Is(err, ErrNothingHeld) {
		t.Errorf("leaving twice: %v", err)
	}
	if w := d.View(); w.Held || !strings.Contains(w.Reason, "leave") {
		t.Errorf("state %s: %s", w.State, w.Reason)
	}
}

// TestLeaveWithEtcdAway: the fence is closed all the same, and the caller is
// told what is not known.
func TestLeaveWithEtcdAway(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, strings.Replace(fourSubnets, "5s", "60s", 1))
	p := newProxy(t, s.Endpoint)
	h := newHost(t, "n1", "http://"+p.Addr())
	d := h.start()
	d.waitHeld()
	p.Cut()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := d.Leave(ctx); err == nil || !strings.Contains(err.Error(), "ends with its lease") {
		t.Errorf("leave: %v", err)
	}
	if f, _ := h.fence.Deadline(); f != 0 {
		t.Errorf("the fence is open until %s", f)
	}
}

// TestRelease: by force, the key becomes its own tombstone for as long as the
// fence of the node that held it may be open; only the word that the machine is
// off deletes it at once.
func TestRelease(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]bool{"forced": false, "machine is off": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := cluster(t, `{"Network":"10.5.0.0/24","SubnetLen":24,"LeaseTTL":"6s"}`)
			p := newProxy(t, s.Endpoint)
			h := newHost(t, "n1", "http://"+p.Addr())
			d := h.start()
			v := d.waitHeld()
			p.Cut()
			late := newHost(t, "n2", s.Endpoint).start()
			late.wait("no-free-subnet", func(v View) bool { return hasProblem(v, "no-free-subnet") })
			r, err := Release(t.Context(), c, prefix, "n1", off)
			if err != nil || r.Subnets != v.Holding.Subnets() || r.Until.IsZero() != off {
				t.Fatalf("%+v, %v", r, err)
			}
			if off {
				late.waitHeld() // n1's key was deleted: the operator's word is all that stands between the two
				return
			}
			kv := etcdtest.Get(t, c, NewKeys(prefix).Subnet(r.Subnets)).Kvs
			tomb, err := DecodeRecord(kv[0].Value)
			if err != nil || tomb.Tenant().UID != "" || tomb.Tenant().Node != "n1" || kv[0].Version != 2 {
				t.Errorf("the key is %+v, written %d times, %v", tomb, kv[0].Version, err)
			}
			w := late.waitHeld()
			if f, _ := h.fence.Deadline(); f >= bootClock() {
				t.Errorf("n2 has %s while n1's fence is open for another %s", w.Holding.Subnets(), f-bootClock())
			}
			p.Restore()
			back := d.wait("lost", func(v View) bool { return !v.Held && hasProblem(v, "no-free-subnet") })
			if back.Former != v.Holding.Subnets() {
				t.Errorf("former subnet %s", back.Former)
			}
			if _, err := Release(t.Context(), c, prefix, "nobody", false); !errors.Is(err, ErrNoSuchHolder) {
				t.Errorf("releasing nobody: %v", err)
			}
		})
	}
}

// TestConnectedHolderOfATombstone notices at once, closes and goes elsewhere.
func TestConnectedHolderOfATombstone(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	if _, err := Release(t.Context(), c, prefix, v.Holding.Subnets().V4.String(), false); err != nil {
		t.Fatal(err)
	}
	w := d.wait("another subnet", func(w View) bool { return w.State == api.StateHeld && w.Holding.Subnets() != v.Holding.Subnets() })
	if h.fence.Get().Closed == 0 {
		t.Error("the fence was not closed")
	}
	if !strings.Contains(w.LostWhy, "n1") {
		t.Errorf("lost because %q", w.LostWhy)
	}
}

// TestReleaseTwice: a tombstone is not put under yet another lease, which would
// make the subnet's quarantine begin anew.
func TestReleaseTwice(t *testing.T) {
	t.Parallel()
	_, c := cluster(t, fourSubnets)
	h := holdingOn(t, c, granted(t, c))
	put(t, c, h.keys.Subnet(h.subnets), holding(Tenant{Node: "n1", UID: "u"}), clientv3.WithLease(h.lease))
	if _, err := Release(t.Context(), c, prefix, "n1", false); err != nil {
		t.Fatal(err)
	}
	before := etcdtest.Get(t, c, h.keys.Subnet(h.subnets)).Kvs[0]
	if _, err := Release(t.Context(), c, prefix, "n1", false); !errors.Is(err, ErrReleased) {
		t.Errorf("the second time: %v", err)
	}
	if now := etcdtest.Get(t, c, h.keys.Subnet(h.subnets)).Kvs[0]; now.Lease != before.Lease || now.Version != before.Version {
		t.Errorf("the tombstone was written again: %v", now)
	}
}

// TestReleaseOfAMachineThatIsOff deletes what was read, and not what has come to
// stand there since.
func TestReleaseOfAMachineThatIsOff(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := holdingOn(t, c, granted(t, c))
	key := h.keys.Subnet(h.subnets)
	put(t, c, key, holding(Tenant{Node: "n1", UID: "u"}), clientv3.WithLease(h.lease))
	p := etcdproxy.Start(t, s.Endpoint)
	first := p.Delay(1, deletes(key), etcdproxy.Request, time.Second)
	done := make(chan error, 1)
	go func() {
		_, err := Release(t.Context(), etcdtest.Client(t, p.URL()), prefix, "n1", true)
		done <- err
	}()
	eventually(t, "the first try", func() bool { return first.Hits() == 1 })
	put(t, c, key, holding(Tenant{Node: "n2", UID: "you"}), clientv3.WithLease(granted(t, c)))
	if err := <-done; !errors.Is(err, ErrNoSuchHolder) {
		t.Errorf("released: %v", err)
	}
	if len(etcdtest.Get(t, c, key).Kvs) == 0 {
		t.Error("the next tenant's key was deleted")
	}
}

// TestNamed: a person names a node, or a subnet in either form.
func TestNamed(t *testing.T) {
	entry := func(subnet, node string) Entry {
		return Entry{Subnets: Subnets{V4: netip.MustParsePrefix(subnet)}, Record: Record{Tenure: &Tenant{Node: node, UID: node}}}
	}
	s := &Snapshot{Entries: []Entry{entry("10.5.1.0/24", "n1"), entry("10.5.2.0/24", "twin"), entry("10.5.3.0/24", "twin"),
		{Subnets: Subnets{V4: netip.MustParsePrefix("10.5.4.0/24")}}}} // flannel's has no name
	for what, want := range map[string]string{"n1": "10.5.1.0/24", "10.5.1.0/24": "10.5.1.0/24", "10.5.3.0-24": "10.5.3.0/24"} {
		if e, err := named(s, what); err != nil || e.String() != want {
			t.Errorf("%s is %s, %v", what, e, err)
		}
	}
	for what, want := range map[string]error{"n2": ErrNoSuchHolder, "10.5.9.0/24": ErrNoSuchHolder, "": ErrNoSuchHolder, "twin": ErrAmbiguous} {
		if _, err := named(s, what); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", what, err, want)
		}
	}
}
