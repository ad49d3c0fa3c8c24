package ownership_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/ownership"
)

const aSubnet = prefix + "/subnets/10.5.1.0-24"

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// do is a call that must not fail.
func do[Resp any](t *testing.T, what string) func(Resp, error) Resp {
	return func(resp Resp, err error) Resp {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return resp
	}
}

// TestRecorder: every change with what was before, the instants between which it
// came, and whether a lease outlived its key.
func TestRecorder(t *testing.T) {
	t.Parallel()
	ctx, s := within(t), etcdtest.Start(t)
	c := s.Client(t)
	put := do[*clientv3.PutResponse](t, "put")
	put(c.Put(ctx, prefix+"/config", "before"))
	rec, err := ownership.Record(ctx, s.Client(t), prefix)
	if err != nil {
		t.Fatal(err)
	}
	grant := do[*clientv3.LeaseGrantResponse](t, "grant")
	id, ends := grant(c.Grant(ctx, 60)).ID, grant(c.Grant(ctx, 60)).ID
	before := bootTime()
	first := put(c.Put(ctx, aSubnet, "a", clientv3.WithLease(id))).Header.Revision
	after := bootTime()
	foreign := do[*clientv3.DeleteResponse](t, "delete")(c.Delete(ctx, aSubnet)).Header.Revision
	rec.Foreign(foreign, "by hand")
	put(c.Put(ctx, aSubnet, "b", clientv3.WithLease(ends)))
	do[*clientv3.LeaseRevokeResponse](t, "revoke")(c.Revoke(ctx, ends))
	put(c.Put(ctx, "/elsewhere", "x"))
	h, marks, err := rec.Stop(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Lives) != 1 || !h.Lives[0].Whole || h.Lives[0].Beginning != ownership.Born {
		t.Fatalf("lives %+v", h.Lives)
	}
	events := h.Lives[0].Events
	var got []string
	for _, e := range events {
		was := ""
		if e.Prev != nil {
			was = e.Prev.Value
		}
		got = append(got, fmt.Sprintf("%q after %q, deleted %t, lease alive %t", e.Value, was, e.Deleted, e.LeaseAlive))
	}
	want := []string{
		`"before" after "", deleted false, lease alive false`,
		`"a" after "", deleted false, lease alive false`,
		`"" after "a", deleted true, lease alive true`,
		`"b" after "", deleted false, lease alive false`,
		`"" after "b", deleted true, lease alive false`,
	}
	if !slices.Equal(got, want) {
		t.Fatalf("recorded %q, want %q", got, want)
	}
	if e := events[1]; e.Mod != first || e.After > after || e.Seen < before || e.After >= e.Seen {
		t.Errorf("put at revision %d between %s and %s, recorded %d between %s and %s", first, before, after, e.Mod, e.After, e.Seen)
	}
	if want := []ownership.Foreign{{Life: 0, Revision: foreign, Why: "by hand"}}; !slices.Equal(marks, want) {
		t.Errorf("by hand %+v, want %+v", marks, want)
	}
}

// TestRecorderFollowsLives: a store that is wiped, one that is restored, and a
// stretch that was compacted before anybody saw it.
func TestRecorderFollowsLives(t *testing.T) {
	t.Parallel()
	ctx, s := within(t), etcdtest.Start(t)
	c := s.Client(t)
	put := func(value string) int64 {
		return do[*clientv3.PutResponse](t, "put")(c.Put(ctx, prefix+"/config", value)).Header.Revision
	}
	put("lost")
	do[*clientv3.CompactResponse](t, "compact")(c.Compact(ctx, put("kept")))
	rec, err := ownership.Record(ctx, s.Client(t), prefix)
	if err != nil {
		t.Fatal(err)
	}
	backup := s.Backup(t)
	put("undone")
	next := func(b ownership.Beginning, replace func()) {
		t.Helper()
		if err := rec.End(ctx); err != nil {
			t.Fatal(err)
		}
		replace()
		if err := rec.Begin(ctx, s.Client(t), b, 0); err != nil {
			t.Fatal(err)
		}
	}
	next(ownership.Restored, func() { s.Restore(t, backup) })
	put("restored")
	next(ownership.Wiped, func() { s.Wipe(t, true) })
	put("new")
	h, _, err := rec.Stop(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range h.Lives {
		text := fmt.Sprint(l.Beginning, l.Whole)
		for _, kv := range l.Base {
			text += " base " + kv.Value
		}
		for _, e := range l.Events {
			text += " " + e.Value
		}
		got = append(got, text)
	}
	want := []string{
		fmt.Sprint(ownership.Resumed, true) + " base kept undone",
		fmt.Sprint(ownership.Restored, true) + " base kept restored",
		fmt.Sprint(ownership.Wiped, true) + " new",
	}
	if !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

func TestCollect(t *testing.T) {
	t.Parallel()
	ctx, s := within(t), etcdtest.Start(t)
	c := s.Client(t)
	if _, err := lease.Init(ctx, c, prefix, fmt.Appendf(nil, network, 5)); err != nil {
		t.Fatal(err)
	}
	h, err := ownership.Collect(ctx, c, prefix)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Lives) != 1 || len(h.Lives[0].Events) != 2 || h.Lives[0].Events[0].Key != prefix+"/config" {
		t.Errorf("collected %+v, want config and store", h)
	}
	do[*clientv3.PutResponse](t, "put")(c.Put(ctx, aSubnet, "{}"))
	if h, err = ownership.Collect(ctx, c, prefix); err != nil {
		t.Fatal(err)
	}
	if all := ownership.Judge(ownership.Evidence{Prefix: prefix, History: h}); len(all) != 1 || all[0].Rule != ownership.NoLease {
		t.Errorf("a blind Put: judged %v", all)
	}
}

// here is this test's own namespace.
type here struct{}

func (here) Name() string            { return "here" }
func (here) Do(f func() error) error { return f() }

// TestProbes: pods of different nodes send to each other, and what arrives says
// who sent it when.
func TestProbes(t *testing.T) {
	t.Parallel()
	p := ownership.NewProbes(5 * time.Millisecond)
	subnet := netip.MustParsePrefix("127.0.7.0/24")
	join := func(node, addr string, holds func() (netip.Prefix, int64)) func() {
		t.Helper()
		leave, err := p.Join(here{}, node, netip.MustParseAddr(addr), holds)
		if err != nil {
			t.Fatal(err)
		}
		return leave
	}
	leave := join("n1", "127.0.7.1", func() (netip.Prefix, int64) { return subnet, 12 })
	defer join("n2", "127.0.7.2", nil)()
	defer join("n2", "127.0.7.3", nil)()
	ways := map[string]ownership.Packet{}
	if err := lab.Eventually(within(t), "packets both ways", func() error {
		for _, x := range p.Packets() {
			ways[fmt.Sprintf("%s %s to %s %s", x.From.Node, x.From.Addr, x.To.Node, x.To.Addr)] = x
		}
		if len(ways) < 4 {
			return fmt.Errorf("%d ways", len(ways))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	leave()
	x, ok := ways["n1 127.0.7.1 to n2 127.0.7.2"]
	if !ok || len(ways) != 4 || x.From.Subnet != subnet || x.From.Epoch != 12 || x.Source != x.From.Addr || x.Sent <= 0 || x.Received < x.Sent {
		t.Errorf("arrived: %+v, all ways: %v", x, ways)
	}
	if y := ways["n2 127.0.7.2 to n1 127.0.7.1"]; y.To.Subnet != subnet || y.To.Epoch != 12 {
		t.Errorf("arrived: %+v", y)
	}
}

func TestSampler(t *testing.T) {
	t.Parallel()
	s := ownership.NewSampler(time.Millisecond)
	var f register
	live := lease.Subnets{V4: netip.MustParsePrefix("10.5.1.0/24")}
	if err := f.Set(live, live); err != nil {
		t.Fatal(err)
	}
	if err := f.Arm(f.Generation(), time.Hour); err != nil {
		t.Fatal(err)
	}
	defer s.Watch("n1", reading(&f))()
	if err := lab.Eventually(within(t), "two looks", func() error {
		if n := len(s.Samples()); n < 2 {
			return fmt.Errorf("%d looks", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	x := s.Samples()[1]
	if x.Node != "n1" || x.Subnet != live.V4 || x.Deadline != time.Hour || x.Began <= 0 || x.Ended < x.Began {
		t.Errorf("looked %+v", x)
	}
}

// TestOps: a client's transactions, keep-alives and bare writes, answered and not.
func TestOps(t *testing.T) {
	t.Parallel()
	ctx, s := within(t), etcdtest.Start(t)
	ops := ownership.NewOps(prefix)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint}, DialOptions: ops.Of("n1"), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	id := do[*clientv3.LeaseGrantResponse](t, "grant")(c.Grant(ctx, 60)).ID
	txn := do[*clientv3.TxnResponse](t, "transaction")
	txn(c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(aSubnet), "=", 0), clientv3.Compare(clientv3.ModRevision(prefix+"/config"), "=", 0)).
		Then(clientv3.OpPut(aSubnet, "{}", clientv3.WithLease(id))).Commit())
	txn(c.Txn(ctx).If(clientv3.Compare(clientv3.LeaseValue(aSubnet), "=", int64(id)+1), clientv3.Compare(clientv3.ModRevision(aSubnet), "=", 2)).
		Then(clientv3.OpDelete(aSubnet)).Commit())
	do[*clientv3.LeaseKeepAliveResponse](t, "keep alive")(c.KeepAliveOnce(ctx, id))
	do[*clientv3.DeleteResponse](t, "delete")(c.Delete(ctx, aSubnet))
	do[*clientv3.PutResponse](t, "put")(c.Put(ctx, prefix+"/config", "x"))
	s.Stop()
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, _ = c.Put(short, aSubnet, "{}", clientv3.WithLease(id))

	all := ops.All()
	var got []string
	for _, o := range all {
		if o.Call <= 0 || o.Return < o.Call || o.Node != "n1" {
			t.Errorf("%+v", o)
		}
		got = append(got, fmt.Sprintf("kind %d, put %t, delete %t, compares %v, others %t: answered %t, %t, %s",
			o.Kind, o.Put, o.Delete, len(o.Compares), o.Others, o.Return != ownership.Never, o.Succeeded, o.TTL))
	}
	want := []string{
		"kind 1, put false, delete false, compares 0, others false: answered true, true, 1m0s",
		"kind 0, put true, delete false, compares 1, others true: answered true, true, 0s",
		"kind 0, put false, delete true, compares 2, others false: answered true, false, 0s",
		"kind 1, put false, delete false, compares 0, others false: answered true, true, 1m0s",
		"kind 2, put false, delete true, compares 0, others false: answered true, true, 0s",
		"kind 2, put true, delete false, compares 0, others false: answered false, false, 0s",
	}
	if !slices.Equal(got, want) {
		t.Errorf("heard\n%q, want\n%q", got, want)
	}
	if o := all[1]; o.Key != aSubnet || o.Lease != int64(id) || o.Revision != 2 || !slices.Equal(o.Compares, []ownership.Compare{{Target: ownership.ByCreate}}) {
		t.Errorf("acquire heard as %+v", o)
	}
}
