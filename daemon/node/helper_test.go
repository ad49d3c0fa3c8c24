package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/hook"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/ipam"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func v4(s string) lease.Subnets { return lease.Subnets{V4: prefix(s)} }

func testNetwork() *conf.Network {
	n, _, err := conf.ParseNetwork([]byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":1}}`))
	if err != nil {
		panic(err)
	}
	return &n
}

const (
	testPrefix = "/tenure/network"
	testEpoch  = 1796000000
)

// entry is a record of a Tenure node as etcd has it.
func entry(node, subnet, publicIP string, id clientv3.LeaseID) lease.Entry {
	s := v4(subnet)
	return lease.Entry{
		Subnets: s, Lease: id, CreateRevision: 10, ModRevision: 10,
		Record: lease.Record{
			PublicIP: addr(publicIP), BackendType: conf.BackendVXLAN,
			BackendData: &lease.BackendData{VNI: 1, VtepMAC: lease.VTEPMAC(testPrefix, s, testEpoch)},
			Tenure:      &lease.Tenant{Node: node, UID: "uid-" + node, Boot: "boot", Epoch: testEpoch},
		},
	}
}

// holdingOf is the holding of an entry, with a TTL of a minute.
func holdingOf(t *testing.T, e lease.Entry) lease.Holding {
	t.Helper()
	h, err := lease.NewHolding(lease.NewKeys(testPrefix), e, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// now is the clock of these tests: CLOCK_BOOTTIME of a machine up for an hour.
const now = time.Hour

// held is the view of a node in date; others are the peers' records.
func held(t *testing.T, subnet string, id clientv3.LeaseID, others ...lease.Entry) lease.View {
	t.Helper()
	own := entry("n1", subnet, "192.0.2.11", id)
	return lease.View{
		State: api.StateHeld, Held: true, Holding: holdingOf(t, own), Network: testNetwork(),
		Deadline: now + 40*time.Second, LastProof: now - 2*time.Second,
		Snapshot: &lease.Snapshot{Revision: 42, Entries: append([]lease.Entry{own}, others...)},
	}
}

// lost is the view of a node whose subnet is gone.
func lost(former string, others ...lease.Entry) lease.View {
	return lease.View{State: api.StateLost, Reason: "lost " + former, Former: v4(former), Network: testNetwork(),
		Snapshot: &lease.Snapshot{Revision: 43, Entries: others}}
}

// tenancy is a Tenancy whose view the test sets.
type tenancy struct {
	mu      sync.Mutex
	view    lease.View
	changed chan struct{}
}

func (f *tenancy) Changed() (lease.View, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.view, f.changed
}

func (f *tenancy) set(v lease.View) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.view = v
	close(f.changed)
	f.changed = make(chan struct{})
}

// interfaces stands for the kernel's: what exists by host name. The hooks run
// where the real one would be at work.
type interfaces struct {
	mu      sync.Mutex
	exist   map[string]attach.Want
	added   func() error
	del     func(hostName string) error
	checked attach.Want // of the last CHECK
	differ  []attach.Op
	living  map[string]bool // namespaces, by path, that live without an interface
	borne   map[netip.Addr]bool
	blind   error // Borne's
}

func (f *interfaces) Add(_ context.Context, netns string, w attach.Want) (attach.Endpoint, error) {
	f.mu.Lock()
	f.exist[w.HostName()] = w
	f.mu.Unlock()
	if f.added != nil {
		if err := f.added(); err != nil {
			f.mu.Lock()
			delete(f.exist, w.HostName()) // as the real one takes back its pair
			f.mu.Unlock()
			return attach.Endpoint{}, err
		}
	}
	return attach.Endpoint{HostName: w.HostName(), HostMAC: [6]byte{0x0e, 1, 2, 3, 4, 5},
		IfName: w.Owner.IfName, MAC: w.HardwareAddr(), Sandbox: netns}, nil
}

func (f *interfaces) Check(_ context.Context, _ string, want attach.Want) ([]attach.Op, error) {
	f.checked = want
	return f.differ, nil
}

func (f *interfaces) Del(ctx context.Context, hostName string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.del != nil {
		if err := f.del(hostName); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.exist, hostName)
	return nil
}

func (f *interfaces) List(context.Context) ([]attach.Found, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []attach.Found
	for name, w := range f.exist {
		all = append(all, attach.Found{HostName: name, Owner: w.Owner, Addrs: w.Addrs})
	}
	return all, nil
}

func (f *interfaces) Gone(_ context.Context, hostName, netns string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, exists := f.exist[hostName]
	return !exists && !f.living[netns], nil
}

func (f *interfaces) Borne(_ context.Context, subnets []netip.Prefix) ([]netip.Prefix, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(subnets), func(p netip.Prefix) bool { return !f.borne[p.Addr()] }), f.blind
}

func (f *interfaces) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.exist)
}

// plane is a Plane that converges at once and keeps what it was told.
type plane struct {
	desired chan dataplane.Desired
	report  dataplane.Report
	err     error
	waiting func()
	mu      sync.Mutex
	waits   int
}

func (f *plane) Set(d dataplane.Desired) { f.desired <- d }

func (f *plane) WaitConverged(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waits++
	if f.waiting != nil {
		f.waiting()
	}
	return f.err
}

func (f *plane) Report() dataplane.Report { return f.report }

// store is a Store of one etcd.
type store struct{ problems []api.Problem }

func (store) Endpoints() []api.Endpoint {
	return []api.Endpoint{{URL: "http://192.0.2.2:2379", Healthy: true, Since: "2026-11-30T00:00:00Z", Version: "3.7.3"}}
}

func (s store) Problems() []api.Problem { return s.problems }

// onStranded is a Hook that counts how often it is woken.
type onStranded struct {
	mu      sync.Mutex
	woken   int
	givenUp []hook.Pod
}

func (f *onStranded) Changed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.woken++
}

func (f *onStranded) GivenUp() []hook.Pod { return f.givenUp }

// rig is a Node on fakes, but for the ledger, which is real.
type rig struct {
	*Node
	tenancy    *tenancy
	interfaces *interfaces
	plane      *plane
	ledger     *ipam.Ledger
	hook       *onStranded
	log        *bytes.Buffer
}

func testUnderlay() Underlay {
	return Underlay{Interface: "eth0", PublicIP: addr("192.0.2.11"), Local: addr("192.0.2.11"), MTU: 1500}
}

func newRig(t *testing.T, v lease.View) *rig {
	t.Helper()
	l, _, err := ipam.Open(filepath.Join(t.TempDir(), "ledger.json"), ipam.Options{Boot: "boot", Cooldown: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{
		tenancy:    &tenancy{view: v, changed: make(chan struct{})},
		interfaces: &interfaces{exist: map[string]attach.Want{}},
		plane:      &plane{desired: make(chan dataplane.Desired, 16)},
		ledger:     l,
		hook:       &onStranded{},
		log:        &bytes.Buffer{},
	}
	r.Node = New(Config{
		Instance: "tenure", NodeName: "n1", UID: "uid-n1", Version: "v1", Prefix: testPrefix,
		Clock:       func() time.Duration { return now },
		Underlay:    func() (Underlay, bool) { return testUnderlay(), true },
		UnderlayErr: func() error { return nil },
		Masq:        true, ForwardAccept: true,
		Tenancy: r.tenancy, Ledger: l, Interfaces: r.interfaces, Plane: r.plane, Store: store{}, Hook: r.hook,
		Log: slog.New(slog.NewTextHandler(r.log, nil)),
	})
	return r
}

// Add and IPAMAdd are those of the Node for a caller that is there to the end.
func (r *rig) Add(ctx context.Context, req *api.Request) *api.Response {
	return delivered(ctx, req, r.Node.Add)
}

func (r *rig) IPAMAdd(ctx context.Context, req *api.Request) *api.Response {
	return delivered(ctx, req, r.Node.IPAMAdd)
}

func delivered(ctx context.Context, req *api.Request, add func(context.Context, *api.Request, func(*api.Response) error)) *api.Response {
	var answer *api.Response
	add(ctx, req, func(resp *api.Response) error {
		answer = resp
		return nil
	})
	return answer
}

// request is a call for one container; more are members of the config.
func request(container, more string) *api.Request {
	return &api.Request{ContainerID: container, IfName: "eth0", Netns: "/run/netns/" + container,
		Config: json.RawMessage(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","type":"tenure"%s}`, more))}
}

func mustAdd(t *testing.T, r *rig, container string) {
	t.Helper()
	if resp := r.Add(t.Context(), request(container, "")); resp.Error != nil {
		t.Fatalf("ADD of %s: %v", container, resp.Error)
	}
}

func mustIPAMAdd(t *testing.T, r *rig, container string) {
	t.Helper()
	req := request(container, `,"ipam":{"type":"tenure-ipam"}`)
	if resp := r.IPAMAdd(t.Context(), req); resp.Error != nil {
		t.Fatalf("IPAM ADD of %s: %v", container, resp.Error)
	}
}

// wantCode fails unless the answer is an error with the code.
func wantCode(t *testing.T, resp *api.Response, code uint) {
	t.Helper()
	if resp.Error == nil {
		t.Fatalf("answer %s, want an error with code %d", resp.Result, code)
	}
	if resp.Error.Code != code {
		t.Fatalf("error %d (%s), want code %d", resp.Error.Code, resp.Error.Msg, code)
	}
	if resp.Error.Msg == "" {
		t.Errorf("the error with code %d says nothing", code)
	}
}

// wantNothing fails if an address is on record or an interface exists.
func wantNothing(t *testing.T, r *rig) {
	t.Helper()
	if got := r.ledger.List(); len(got) > 0 {
		t.Errorf("still on record: %v", got)
	}
	if n := r.interfaces.count(); n > 0 {
		t.Errorf("%d interfaces exist still", n)
	}
}

func containers(r *rig) []string {
	var all []string
	for _, a := range r.ledger.List() {
		all = append(all, a.ContainerID)
	}
	return all
}
