package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/fencetest"
	"github.com/tenure-cni/tenure/test/lab/proxy"
)

// register is the fence as the engine sees it: what the kernel's map would
// hold. That the kernel obeys it is tested in daemon/fence.
type register = fencetest.Register[Subnets]

// kept is what a register holds.
type kept = fencetest.State[Subnets]

func bootClock() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}

const prefix = "/tenure/network"

// host is one machine: its disk and its kernel outlive its daemon.
type host struct {
	t        *testing.T
	name     string
	dir      string
	boot     string
	endpoint string
	via      conf.Etcd // instead of endpoint alone, if it has any
	fence    *register
	log      *logBuffer
	// local: the published address is this machine's; silent: nobody else
	// answers for it.
	local, silent bool
	// birth is the network config of --new-cluster.
	birth   []byte
	flannel bool // a flannel device is up
	clocks  func() Clocks
	step    func(string)

	mu       sync.Mutex
	address  string       // IPv4, or "" for none; guarded by mu
	address6 string       // the same of IPv6; guarded by mu
	mute     error        // why nothing can be published; guarded by mu
	asked    []netip.Addr // of which addresses it was asked whether they are here; guarded by mu
}

// has is that machine's answer for an address of its own.
func (h *host) has(a netip.Addr, answer bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, a)
	return answer
}

// ready is what the machine lacks, which is what keeps it from publishing.
func (h *host) ready(*conf.Network) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mute
}

// publishes is what the machine's daemon announces from now on; with an error,
// that it cannot.
func (h *host) publishes(address string, mute error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.address, h.mute = address, mute
}

func (h *host) record(s Subnets, epoch int64) (Record, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, data := Record{PublicIP: netip.IPv4Unspecified(), BackendType: "vxlan"}, &BackendData{VNI: 1, VtepMAC: VTEPMAC(prefix, s, epoch)}
	if h.address != "" {
		r.PublicIP, r.BackendData = netip.MustParseAddr(h.address), data
	}
	if h.address6 != "" {
		a := netip.MustParseAddr(h.address6)
		r.PublicIPv6, r.BackendV6Data = &a, data
	}
	return r, h.mute
}

func newHost(t *testing.T, name, endpoint string) *host {
	return &host{t: t, name: name, dir: t.TempDir(), boot: name + "-boot", endpoint: endpoint, fence: &register{}, log: &logBuffer{}, address: "192.0.2.11"}
}

// losesState removes node.json between two runs.
func (h *host) losesState() {
	h.t.Helper()
	if err := os.Remove(filepath.Join(h.dir, "node.json")); err != nil {
		h.t.Fatal(err)
	}
}

// daemon is one run of the engine on a host.
type daemon struct {
	*Engine
	t    *testing.T
	stop func()
}

// engine is a daemon of the host that does nothing yet.
func (h *host) engine() *Engine {
	h.t.Helper()
	m, err := OpenMemory(h.dir, "")
	if err != nil {
		h.t.Fatal(err)
	}
	return NewEngine(Config{
		Dial:      func() (*clientv3.Client, error) { return Dial(h.way()) },
		Endpoints: h.way().Endpoints, Prefix: prefix, Node: h.name, Boot: h.boot, Memory: m, Clock: bootClock,
		Ready:   h.ready,
		Local:   func(a netip.Addr) bool { return h.has(a, h.local) },
		Silent:  func(_ context.Context, a netip.Addr) (bool, error) { return h.has(a, h.silent), nil },
		Publish: func(_ conf.Network, s Subnets, epoch int64) (Record, error) { return h.record(s, epoch) },
		Clocks:  h.clocks, Step: h.step, Flannel: func() bool { return h.flannel }, Running: func(string) bool { return false },
		Birth: h.birth, Log: slogOf(h),
	})
}

// way is how the host's daemon reaches etcd.
func (h *host) way() conf.Etcd {
	if len(h.via.Endpoints) > 0 {
		return h.via
	}
	return conf.Etcd{Endpoints: []string{h.endpoint}}
}

func slogOf(h *host) *slog.Logger { return slog.New(slog.NewTextHandler(h.log, nil)) }

func (h *host) start() *daemon {
	h.t.Helper()
	e := h.engine()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Run(ctx, h.fence) }()
	d := &daemon{Engine: e, t: h.t, stop: func() { cancel(); <-done }}
	h.t.Cleanup(d.stop)
	return d
}

// wait returns the first view that pleases.
func (d *daemon) wait(what string, ok func(View) bool) View {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond) // deadlines pass without a change
	defer tick.Stop()
	for {
		v, changed := d.Changed()
		if ok(v) {
			return v
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			d.t.Fatalf("waited in vain for %s; state %s (%s), problems %v", what, v.State, v.Reason, v.Problems)
		}
	}
}

func (d *daemon) waitHeld() View {
	d.t.Helper()
	return d.wait("held", func(v View) bool { return v.State == api.StateHeld })
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// lines counts the log lines that contain text.
func (l *logBuffer) lines(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (l *logBuffer) total() int { return l.lines("") }

// cluster starts a born store with a network of the given size.
func cluster(t *testing.T, config string) (*etcdtest.Server, *clientv3.Client) {
	t.Helper()
	s := etcdtest.Start(t)
	c := s.Client(t)
	if _, err := Init(t.Context(), c, prefix, []byte(config)); err != nil {
		t.Fatal(err)
	}
	return s, c
}

const fourSubnets = `{"Network":"10.5.0.0/22","SubnetLen":24,"LeaseTTL":"5s","Backend":{"Type":"vxlan"}}`

// history replays every revision of a key; nil stands for a deletion.
func history(t *testing.T, c *clientv3.Client, key string) []*mvccpb.KeyValue {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	now := etcdtest.Get(t, c, key).Header.Revision
	var all []*mvccpb.KeyValue
	for rev := int64(1); rev <= now; rev++ {
		resp, err := c.Get(ctx, key, clientv3.WithRev(rev))
		if err != nil {
			t.Fatalf("read %s at revision %d: %v", key, rev, err)
		}
		if len(resp.Kvs) == 0 {
			all = append(all, nil)
		} else {
			all = append(all, resp.Kvs[0])
		}
	}
	return all
}

func reserve(t *testing.T, c *clientv3.Client, s Subnets, node string) {
	t.Helper()
	if _, err := c.Put(t.Context(), NewKeys(prefix).Reservation(s), `{"Node":"`+node+`"}`); err != nil {
		t.Fatal(err)
	}
}

func TestAcquirePublishesAndArms(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := newHost(t, "n1", s.Endpoint)
	before := bootClock()
	v := h.start().waitHeld()

	e := etcdtest.Get(t, c, NewKeys(prefix).Subnet(v.Holding.Subnets())).Kvs
	if len(e) != 1 || clientv3.LeaseID(e[0].Lease) != v.Holding.LeaseID() {
		t.Fatalf("subnet key: %v, want it under lease %x", e, v.Holding.LeaseID())
	}
	r, err := DecodeRecord(e[0].Value)
	if err != nil || r.Tenant().Node != "n1" || r.Tenant().Boot != h.boot || r.Tenant().Epoch < 1796000000 {
		t.Errorf("record %+v, %v", r, err)
	}
	o := etcdtest.Get(t, c, NewKeys(prefix).Owner(v.Holding.Subnets())).Kvs
	if len(o) != 1 || o[0].Lease != 0 || o[0].ModRevision != e[0].ModRevision {
		t.Errorf("owner record %v: want it without a lease and written with the key", o)
	}
	f, _ := h.fence.Deadline()
	if f < before || f > bootClock()+v.Holding.TTL()-Margin(v.Holding.TTL()) {
		t.Errorf("fence open until %s, now %s, TTL %s", f, bootClock(), v.Holding.TTL())
	}
	// The next cycle moves the deadline on.
	d := h.fence
	first := f
	deadline := time.Now().Add(10 * time.Second)
	for f == first && time.Now().Before(deadline) {
		f, _ = d.Deadline()
	}
	if f <= first {
		t.Errorf("the deadline did not move on within 10 s")
	}
}

func TestRestartResumesWithoutAWrite(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	d.stop()
	closed := h.fence.Get().Closed

	d = h.start()
	w := d.waitHeld()
	if w.Holding.Subnets() != v.Holding.Subnets() || w.Holding.LeaseID() != v.Holding.LeaseID() || w.Holding.Epoch() != v.Holding.Epoch() {
		t.Errorf("after the restart %s under %x, before %s under %x", w.Holding.Subnets(), w.Holding.LeaseID(), v.Holding.Subnets(), v.Holding.LeaseID())
	}
	kv := etcdtest.Get(t, c, NewKeys(prefix).Subnet(v.Holding.Subnets())).Kvs[0]
	if kv.Version != 1 {
		t.Errorf("the key was written %d times, want once", kv.Version)
	}
	if n := h.fence.Get().Closed - closed; n != 0 {
		t.Errorf("the restart closed the fence %d times", n)
	}
}

// TestA1: a node that was away re-uses the subnet it remembers although
// another node now holds it, and overwrites that node's record.
func TestA1(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	away := newHost(t, "n1", s.Endpoint)
	d := away.start()
	old := d.waitHeld().Holding
	d.stop()
	if _, err := c.Revoke(t.Context(), old.LeaseID()); err != nil {
		t.Fatal(err)
	}
	reserve(t, c, old.Subnets(), "n2")
	holder := newHost(t, "n2", s.Endpoint).start()
	v := holder.waitHeld()
	if v.Holding.Subnets() != old.Subnets() {
		t.Fatalf("n2 took %s, want the reserved %s", v.Holding.Subnets(), old.Subnets())
	}
	taken := v.Holding.create

	back := away.start()
	w := back.waitHeld()
	if w.Holding.Subnets() == old.Subnets() {
		t.Fatalf("n1 took %s back from n2", old.Subnets())
	}
	for rev, kv := range history(t, c, NewKeys(prefix).Subnet(old.Subnets())) {
		if int64(rev+1) < taken {
			continue
		}
		if kv == nil || clientv3.LeaseID(kv.Lease) != v.Holding.LeaseID() {
			t.Fatalf("revision %d: %v, want n2's key under %x", rev+1, kv, v.Holding.LeaseID())
		}
	}
	if away.fence.Get().Closed == 0 {
		t.Error("n1's fence was not closed")
	}
	if live, _ := away.fence.Live(); live != w.Holding.Subnets() {
		t.Errorf("n1's fence lets %s through, want %s", live, w.Holding.Subnets())
	}
}

func TestLosingClosesTheFenceAndTakesTheSameSubnetAgain(t *testing.T) {
	t.Parallel()
	for name, attack := range map[string]func(*testing.T, *clientv3.Client, Holding) error{
		"key deleted": func(t *testing.T, c *clientv3.Client, h Holding) error {
			_, err := c.Delete(t.Context(), h.keys.Subnet(h.subnets))
			return err
		},
		"lease revoked": func(t *testing.T, c *clientv3.Client, h Holding) error {
			_, err := c.Revoke(t.Context(), h.lease)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := cluster(t, fourSubnets)
			h := newHost(t, "n1", s.Endpoint)
			d := h.start()
			v := d.waitHeld()
			if err := attack(t, c, v.Holding); err != nil {
				t.Fatal(err)
			}
			w := d.wait("held again", func(w View) bool {
				return w.State == api.StateHeld && w.Holding.LeaseID() != v.Holding.LeaseID()
			})
			if w.Holding.Subnets() != v.Holding.Subnets() {
				t.Errorf("took %s, want %s again", w.Holding.Subnets(), v.Holding.Subnets())
			}
			if w.Holding.Epoch() != v.Holding.Epoch() {
				t.Errorf("epoch %d, want %d: the same UID on the same boot", w.Holding.Epoch(), v.Holding.Epoch())
			}
			if h.fence.Get().Closed == 0 {
				t.Error("the fence was not closed in between")
			}
		})
	}
}

// TestWatchClosesAtOnce: with a day's lease the next cycle is half a minute
// away; the fence does not wait for it.
func TestWatchClosesAtOnce(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, strings.Replace(fourSubnets, "5s", "24h", 1))
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	closed := h.fence.Get().Closed
	if _, err := c.Delete(t.Context(), NewKeys(prefix).Subnet(v.Holding.Subnets())); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for h.fence.Get().Closed == closed {
		if _, changed := d.Changed(); ctx.Err() == nil {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		t.Fatal("the fence is open 10 s after the key was deleted")
	}
}

// TestRestoreIsBoundToTheBoot: a memory of another boot opens nothing while
// etcd is away.
func TestRestoreIsBoundToTheBoot(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, strings.Replace(fourSubnets, "5s", "30s", 1))
	p := newProxy(t, s.Endpoint)
	h := newHost(t, "n1", "http://"+p.Addr())
	d := h.start()
	d.waitHeld()
	d.stop()
	p.Cut()
	h.boot = "later"
	d = h.start()
	v := d.wait("etcd-unreachable", func(v View) bool { return hasProblem(v, "etcd-unreachable") })
	if v.Held {
		t.Errorf("%s of another boot is served, state %s", v.Holding.Subnets(), v.State)
	}
}

func TestForeignUnfencedWriterIsNotOverwritten(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	key := NewKeys(prefix).Subnet(v.Holding.Subnets())
	const foreign = `{"PublicIP":"192.0.2.66","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:66"}}`
	if _, err := c.Put(t.Context(), key, foreign); err != nil {
		t.Fatal(err)
	}
	w := d.wait("another subnet", func(w View) bool {
		return w.State == api.StateHeld && w.Holding.Subnets() != v.Holding.Subnets()
	})
	if kv := etcdtest.Get(t, c, key).Kvs; len(kv) != 1 || string(kv[0].Value) != foreign {
		t.Errorf("the foreign record was touched: %v", kv)
	}
	if live, _ := h.fence.Live(); live != w.Holding.Subnets() {
		t.Errorf("the fence lets %s through, want %s", live, w.Holding.Subnets())
	}
}

func TestSilenceLeavesTheDeadline(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, fourSubnets)
	p := newProxy(t, s.Endpoint)
	h := newHost(t, "n1", "http://"+p.Addr())
	d := h.start()
	d.waitHeld()
	p.Cut()
	v := d.wait("unproven", func(v View) bool { return v.State == api.StateUnproven })
	f, _ := h.fence.Deadline()
	if f != v.Deadline || h.fence.Get().Closed != 0 {
		t.Errorf("silence changed the fence: F %s, view %s, closed %d times", f, v.Deadline, h.fence.Get().Closed)
	}
	if !hasProblem(v, "etcd-unreachable") {
		t.Errorf("problems %v, want etcd-unreachable", v.Problems)
	}
	v = d.wait("fenced", func(v View) bool { return v.State == api.StateFenced })
	if got, _ := h.fence.Deadline(); got != f {
		t.Errorf("the deadline moved from %s to %s without a proof", f, got)
	}
	p.Restore()
	w := d.waitHeld()
	if hasProblem(w, "etcd-unreachable") {
		t.Errorf("problems after the outage: %v", w.Problems)
	}
}

func TestRestartWithEtcdAwayServesUntilTheDeadline(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, strings.Replace(fourSubnets, "5s", "30s", 1))
	p := newProxy(t, s.Endpoint)
	h := newHost(t, "n1", "http://"+p.Addr())
	d := h.start()
	v := d.waitHeld()
	d.stop()
	p.Cut()
	d = h.start()
	w := d.wait("unproven", func(v View) bool { return v.State == api.StateUnproven })
	if w.Holding.Subnets() != v.Holding.Subnets() || !w.InDate(bootClock()) || w.Network == nil {
		t.Errorf("after a restart with etcd away: %s, deadline %s, now %s", w.Holding.Subnets(), w.Deadline, bootClock())
	}
	p.Restore()
	if w := d.waitHeld(); w.Holding.LeaseID() != v.Holding.LeaseID() {
		t.Errorf("lease %x after etcd came back, want %x", w.Holding.LeaseID(), v.Holding.LeaseID())
	}
}

// The networks of IPv6 and of both families, with four subnets.
const (
	fourSubnets6    = `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/62","LeaseTTL":"30s"}`
	fourSubnetsDual = `{"Network":"10.5.0.0/22","EnableIPv6":true,"IPv6Network":"fd00:5::/62","LeaseTTL":"30s"}`
)

// TestAnotherBoot: after a reboot the machine goes on with its subnet, and a
// copy of its state directory does not, whatever its UID says. The address that
// tells them apart is the record's IPv4 one, or the only one it has.
func TestAnotherBoot(t *testing.T) {
	t.Parallel()
	four := strings.Replace(fourSubnets, "5s", "30s", 1)
	for name, c := range map[string]struct {
		network, four, six     string
		by                     string
		local, silent, resumes bool
	}{
		"address elsewhere":           {four, "192.0.2.11", "", "192.0.2.11", false, true, false},
		"address here, and elsewhere": {four, "192.0.2.11", "", "192.0.2.11", true, false, false},
		"address here only":           {four, "192.0.2.11", "", "192.0.2.11", true, true, true},
		"both families":               {fourSubnetsDual, "192.0.2.11", "2001:db8::11", "192.0.2.11", true, true, true},
		"both families, elsewhere":    {fourSubnetsDual, "192.0.2.11", "2001:db8::11", "192.0.2.11", false, true, false},
		"IPv6 only":                   {fourSubnets6, "", "2001:db8::11", "2001:db8::11", true, true, true},
		"IPv6 only, elsewhere":        {fourSubnets6, "", "2001:db8::11", "2001:db8::11", false, true, false},
		"IPv6 only, here and there":   {fourSubnets6, "", "2001:db8::11", "2001:db8::11", true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, client := cluster(t, c.network)
			h := newHost(t, "n1", s.Endpoint)
			h.address, h.address6 = c.four, c.six
			d := h.start()
			v := d.waitHeld()
			d.stop()
			h.boot, h.fence, h.local, h.silent = "later", &register{}, c.local, c.silent
			d = h.start()
			w := d.wait("held or refused", func(v View) bool { return v.State == api.StateHeld || v.State == api.StateRefused })
			if got := w.State == api.StateHeld && w.Holding.LeaseID() == v.Holding.LeaseID() && w.Holding.Subnets() == v.Holding.Subnets(); got != c.resumes {
				t.Fatalf("resumed: %t, want %t", got, c.resumes)
			}
			h.askedOnly(c.by)
			if !c.resumes {
				if !strings.Contains(w.Reason, c.by) {
					t.Errorf("the reason %q does not name the holder's address", w.Reason)
				}
				if kv := etcdtest.Get(t, client, NewKeys(prefix).Subnet(v.Holding.Subnets())).Kvs; len(kv) != 1 || kv[0].Version != 1 {
					t.Errorf("the key of the other boot was written: %v", kv)
				}
				return
			}
			w = d.wait("the boot in the record", func(w View) bool { return w.Holding.Record().Tenant().Boot == "later" })
			if w.Holding.Epoch() != v.Holding.Epoch() || w.Holding.LeaseID() != v.Holding.LeaseID() {
				t.Errorf("epoch %d, lease %x, want %d and %x", w.Holding.Epoch(), w.Holding.LeaseID(), v.Holding.Epoch(), v.Holding.LeaseID())
			}
		})
	}
}

// askedOnly makes sure that the machine was asked of that address, and of none
// besides.
func (h *host) askedOnly(want string) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.asked) == 0 {
		h.t.Errorf("nobody asked whether %s is here", want)
	}
	for _, a := range h.asked {
		if a.String() != want {
			h.t.Errorf("asked whether %s is here, want %s", a, want)
		}
	}
}

// TestBootBeforeTheAddress: a machine that has booted, and has no address yet, is
// not taken for another machine with its name and UID. It goes on with its subnet
// once the address is there.
func TestBootBeforeTheAddress(t *testing.T) {
	t.Parallel()
	s, _ := cluster(t, fourSubnets6)
	h := newHost(t, "n1", s.Endpoint)
	h.address, h.address6 = "", "2001:db8::11"
	d := h.start()
	v := d.waitHeld()
	d.stop()
	h.boot, h.fence, h.local, h.silent = "later", &register{}, false, true
	h.publishes("", errors.New("the address is tentative"))
	d = h.start()
	w := d.wait("a decision", func(v View) bool { return v.State != api.StateStarting })
	if w.State != api.StateWaiting || !strings.Contains(w.Reason, "tentative") || hasProblem(w, "duplicate-node") {
		t.Errorf("before the address is there: %s (%s), problems %v", w.State, w.Reason, w.Problems)
	}
	d.stop()
	h.local = true
	h.publishes("", nil)
	if w = h.start().waitHeld(); w.Holding.LeaseID() != v.Holding.LeaseID() || w.UID != v.UID {
		t.Errorf("with the address it holds %s as %s, before it was %s as %s", w.Holding.Subnets(), w.UID, v.Holding.Subnets(), v.UID)
	}
}

func TestUnbornClusterWaitsAndSaysSo(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t)
	d := newHost(t, "n1", s.Endpoint).start()
	v := d.wait("waiting", func(v View) bool { return v.State == api.StateWaiting })
	if !strings.Contains(v.Reason, "tenurectl init") {
		t.Errorf("reason %q does not say what to do", v.Reason)
	}
	if _, err := Init(t.Context(), s.Client(t), prefix, []byte(fourSubnets)); err != nil {
		t.Fatal(err)
	}
	d.waitHeld()
}

func TestInitBirthsOnceAndAdoptsFlannelsConfig(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t)
	c := s.Client(t)
	k := NewKeys("/coreos.com/network")
	if _, err := c.Put(t.Context(), k.Config(), `{"Network":"10.5.0.0/16"}`); err != nil {
		t.Fatal(err)
	}
	b, err := Init(t.Context(), c, "/coreos.com/network", []byte(fourSubnets))
	if err != nil || !b.Adopted || string(b.Config) != `{"Network":"10.5.0.0/16"}` {
		t.Errorf("flannel's prefix: %+v, %v", b, err)
	}
	again, err := Init(t.Context(), c, "/coreos.com/network", []byte(fourSubnets))
	if err != nil || again.Created || again.Adopted || again.Store != b.Store {
		t.Errorf("the second init changed something: %+v, %v", again, err)
	}
}

func TestBadConfigIsRefusedAndTheLastGoodOneStays(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	d := newHost(t, "n1", s.Endpoint).start()
	v := d.waitHeld()
	for _, bad := range []string{`{`, `{"Network":"10.5.0.0/22","SubnetLen":26}`, `{"Network":"10.9.0.0/22"}`} {
		if _, err := c.Put(t.Context(), NewKeys(prefix).Config(), bad); err != nil {
			t.Fatal(err)
		}
		w := d.wait("config-refused", func(v View) bool { return hasProblem(v, "config-refused") })
		if *w.Network != *v.Network || w.Holding.Subnets() != v.Holding.Subnets() {
			t.Errorf("%s: network %+v, subnet %s", bad, w.Network, w.Holding.Subnets())
		}
		if _, err := c.Put(t.Context(), NewKeys(prefix).Config(), fourSubnets); err != nil {
			t.Fatal(err)
		}
		d.wait("config good again", func(v View) bool { return !hasProblem(v, "config-refused") })
	}
}

func TestPoolOfExactlyAsManySubnetsAsNodes(t *testing.T) {
	t.Parallel()
	const nodes = 16
	s, c := cluster(t, `{"Network":"10.5.0.0/20","SubnetLen":24,"LeaseTTL":"60s"}`)
	var all []*daemon
	for i := range nodes {
		all = append(all, newHost(t, fmt.Sprint("n", i), s.Endpoint).start())
	}
	seen := map[Subnets]bool{}
	for _, d := range all {
		v := d.waitHeld()
		if seen[v.Holding.Subnets()] {
			t.Fatalf("%s is held twice", v.Holding.Subnets())
		}
		seen[v.Holding.Subnets()] = true
	}
	late := newHost(t, "late", s.Endpoint).start()
	v := late.wait("no-free-subnet", func(v View) bool { return hasProblem(v, "no-free-subnet") })
	if v.State != api.StateWaiting || !strings.Contains(v.Reason, "16") {
		t.Errorf("state %s, reason %q", v.State, v.Reason)
	}
	first := all[0].View().Holding
	all[0].stop()
	if _, err := c.Revoke(t.Context(), first.LeaseID()); err != nil {
		t.Fatal(err)
	}
	if w := late.waitHeld(); w.Holding.Subnets() != first.Subnets() {
		t.Errorf("the late node took %s, want the freed %s", w.Holding.Subnets(), first.Subnets())
	}
}

// alarm raises or clears etcd's space alarm: puts and grants are refused, all
// else works.
func alarm(t *testing.T, c *clientv3.Client, action pb.AlarmRequest_AlarmAction) {
	t.Helper()
	if _, err := pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(t.Context(), &pb.AlarmRequest{Action: action, Alarm: pb.AlarmType_NOSPACE}); err != nil {
		t.Fatal(err)
	}
}

// TestStoreThatRefusesWrites: a node that holds a subnet resumes it although
// nothing can be written, with --new-cluster too; a new one waits and says why.
func TestStoreThatRefusesWrites(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	old := newHost(t, "n1", s.Endpoint)
	old.birth = []byte(fourSubnets)
	d := old.start()
	v := d.waitHeld()
	d.stop()
	alarm(t, c, pb.AlarmRequest_ACTIVATE)
	if w := old.start().waitHeld(); w.Holding.LeaseID() != v.Holding.LeaseID() {
		t.Errorf("resumed under lease %x, want %x", w.Holding.LeaseID(), v.Holding.LeaseID())
	}
	fresh := newHost(t, "n2", s.Endpoint)
	n := fresh.start()
	w := n.wait("etcd-refuses", func(v View) bool { return hasProblem(v, "etcd-refuses") })
	if w.State != api.StateWaiting || !strings.Contains(w.Reason, "store is full") || hasProblem(w, "no-free-subnet") || hasProblem(w, "etcd-unreachable") {
		t.Errorf("state %s, reason %q, problems %v", w.State, w.Reason, w.Problems)
	}
	alarm(t, c, pb.AlarmRequest_DEACTIVATE)
	if w := n.waitHeld(); hasProblem(w, "etcd-refuses") {
		t.Errorf("problems after the alarm: %v", w.Problems)
	}
}

// TestBadConfigSurvivesRestarts: a config that was refused is never taken for
// the last good one, and a node that has had no good one says so.
func TestBadConfigSurvivesRestarts(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	if _, err := c.Put(t.Context(), NewKeys(prefix).Config(), `{"Network":"nonsense"}`); err != nil {
		t.Fatal(err)
	}
	meanwhile := func(d *daemon, says, not string) {
		t.Helper()
		w := d.wait("config-refused", func(v View) bool { return hasProblem(v, "config-refused") })
		for _, p := range w.Problems {
			if p.Code == "config-refused" && (!strings.Contains(p.Fix, says) || strings.Contains(p.Fix, not)) {
				t.Errorf("with the config in force %t it says %q, want %q", w.Network != nil, p.Fix, says)
			}
		}
	}
	meanwhile(d, "last good config stays in force", "waits")
	meanwhile(newHost(t, "n2", s.Endpoint).start(), "has had no good one, and waits", "stays in force")
	for range 2 {
		d.stop()
		d = h.start()
		if w := d.waitHeld(); w.Holding.LeaseID() != v.Holding.LeaseID() || *w.Network != *v.Network {
			t.Fatalf("after a restart %s under %x in %v", w.Holding.Subnets(), w.Holding.LeaseID(), w.Network)
		}
	}
}

// TestDeletedConfigIsMissedAndPutBack: the last good one stays in force and
// status says so, init writes it again, under the same store.
func TestDeletedConfigIsMissedAndPutBack(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	d := newHost(t, "n1", s.Endpoint).start()
	v := d.waitHeld()
	if _, err := c.Delete(t.Context(), NewKeys(prefix).Config()); err != nil {
		t.Fatal(err)
	}
	w := d.wait("config-missing", func(v View) bool { return hasProblem(v, "config-missing") })
	if *w.Network != *v.Network || w.State != api.StateHeld {
		t.Errorf("state %s in %v without the config", w.State, w.Network)
	}
	fresh := newHost(t, "n2", s.Endpoint).start()
	fresh.wait("waiting", func(v View) bool { return v.State == api.StateWaiting && strings.Contains(v.Reason, "tenurectl init") })
	b, err := Init(t.Context(), c, prefix, []byte(fourSubnets))
	if err != nil || !b.Reconfigured || b.Store != v.Snapshot.Store.Value.ID {
		t.Errorf("init: %+v, %v", b, err)
	}
	fresh.waitHeld()
	d.wait("no config-missing", func(v View) bool { return !hasProblem(v, "config-missing") })
}

// TestRecordOverwrittenUnderOurLease: a foreign put that names our lease leaves
// key and lease as they were; only the record tells.
func TestRecordOverwrittenUnderOurLease(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"with garbage":     "garbage",
		"with another's":   `{"PublicIP":"192.0.2.66","BackendType":"vxlan","Tenure":{"Node":"x","UID":"x","Epoch":1}}`,
		"with another age": `{"PublicIP":"192.0.2.11","BackendType":"vxlan","Tenure":{"Node":"n1","UID":"UID","Epoch":1}}`,
	} {
		t.Run(name, func(t *testing.T) {
			s, c := cluster(t, fourSubnets)
			h := newHost(t, "n1", s.Endpoint)
			d := h.start()
			v := d.waitHeld()
			value = strings.ReplaceAll(value, "UID\",\"Epoch", v.Holding.Record().Tenant().UID+"\",\"Epoch")
			key := NewKeys(prefix).Subnet(v.Holding.Subnets())
			if _, err := c.Put(t.Context(), key, value, clientv3.WithLease(v.Holding.LeaseID())); err != nil {
				t.Fatal(err)
			}
			d.wait("closed", func(View) bool { return h.fence.Get().Closed > 0 })
			if kv := etcdtest.Get(t, c, key).Kvs; len(kv) != 1 || string(kv[0].Value) != value {
				t.Errorf("the foreign record was touched: %v", kv)
			}
		})
	}
}

// TestRestartWhileLost: what one process lost, the next one of the same boot
// has not forgotten; its pods are stranded.
func TestRestartWhileLost(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, `{"Network":"10.5.0.0/24","SubnetLen":25,"LeaseTTL":"5s"}`)
	h := newHost(t, "n1", s.Endpoint)
	d := h.start()
	v := d.waitHeld()
	// The store is full of reservations for others by the time it is lost.
	for _, p := range []string{"10.5.0.0/25", "10.5.0.128/25"} {
		reserve(t, c, Subnets{V4: netip.MustParsePrefix(p)}, "other")
	}
	if _, err := c.Revoke(t.Context(), v.Holding.LeaseID()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w := d.wait("lost", func(v View) bool { return v.State == api.StateLost && hasProblem(v, "no-free-subnet") })
		if w.Former != v.Holding.Subnets() {
			t.Errorf("former subnet %s, want %s", w.Former, v.Holding.Subnets())
		}
		d.stop()
		d = h.start()
	}
}

// TestO1: the watch's start revision is compacted away while the client is
// cut off, and the own lease is revoked in the gap.
func TestO1(t *testing.T) {
	t.Parallel()
	s, c := cluster(t, fourSubnets)
	p := newProxy(t, s.Endpoint)
	h := newHost(t, "n1", "http://"+p.Addr())
	d := h.start()
	v := d.waitHeld()
	peer := newHost(t, "n2", s.Endpoint).start()
	peer.waitHeld()
	d.wait("the peer", func(v View) bool { return len(v.Snapshot.Entries) == 2 })

	p.Cut()
	d.wait("unproven", func(v View) bool { return v.State == api.StateUnproven })
	lines := h.log.total()
	if _, err := c.Revoke(t.Context(), v.Holding.LeaseID()); err != nil {
		t.Fatal(err)
	}
	gone := peer.View().Holding
	peer.stop()
	if _, err := c.Revoke(t.Context(), gone.LeaseID()); err != nil {
		t.Fatal(err)
	}
	put, err := c.Put(t.Context(), NewKeys(prefix).All()+"noise", "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(t.Context(), put.Header.Revision); err != nil {
		t.Fatal(err)
	}
	p.Restore()

	w := d.wait("held under a new lease and the peer gone", func(w View) bool {
		return w.State == api.StateHeld && w.Holding.LeaseID() != v.Holding.LeaseID() && len(w.Snapshot.Entries) == 1
	})
	if w.Holding.Subnets() != v.Holding.Subnets() {
		t.Errorf("took %s, want %s again", w.Holding.Subnets(), v.Holding.Subnets())
	}
	if n := h.log.lines("compaction"); n > 2 {
		t.Errorf("%d lines about the compaction, want at most 2", n)
	}
	if n := h.log.total() - lines; n > 10 {
		t.Errorf("%d log lines for one outage", n)
	}
	// The watch goes on from the new list.
	reserve(t, c, v.Holding.Subnets(), "n1")
	d.wait("an event after the new list", func(v View) bool { return len(v.Snapshot.Reservations) == 1 })
}

func hasProblem(v View, code string) bool {
	for _, p := range v.Problems {
		if p.Code == code {
			return true
		}
	}
	return false
}

func newProxy(t *testing.T, endpoint string) *proxy.Proxy {
	t.Helper()
	p, err := proxy.New(strings.TrimPrefix(endpoint, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func TestDamagedMemoryIsSetAside(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{", "null", `{"version":1}`} {
		dir := t.TempDir()
		path := filepath.Join(dir, "node.json")
		if err := writeFile(path, text); err != nil {
			t.Fatal(err)
		}
		f, err := OpenMemory(dir, "")
		if err != nil || f.Get().UID == "" || f.SetAside == "" {
			t.Errorf("%q: %+v, %v", text, f, err)
		}
	}
	dir := t.TempDir()
	if err := writeFile(filepath.Join(dir, "node.json"), `{"version":99,"uid":"u"}`); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenMemory(dir, ""); !errors.Is(err, ErrNewerMemory) {
		t.Errorf("a newer node.json: %v", err)
	}
}

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }
