package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/ipam"
)

func TestAddTwiceAnswersTheSame(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	first := r.Add(t.Context(), request("c1", ""))
	second := r.Add(t.Context(), request("c1", ""))
	if first.Error != nil || second.Error != nil {
		t.Fatalf("ADD: %v, again: %v", first.Error, second.Error)
	}
	if string(first.Result) != string(second.Result) {
		t.Errorf("ADD answered\n%s, again\n%s", first.Result, second.Result)
	}
	if got := r.ledger.List(); len(got) != 1 {
		t.Errorf("on record: %v, want one allocation", got)
	}
	if r.plane.waits != 1 {
		t.Errorf("the data plane was waited for %d times, want once for a subnet", r.plane.waits)
	}
}

func TestAddTakesWhatIsAskedFor(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	resp := r.Add(t.Context(), request("c1", `,"runtimeConfig":{"ips":["10.5.34.77/24"],"mac":"02:00:00:00:00:77"}`))
	if resp.Error != nil {
		t.Fatal(resp.Error)
	}
	for _, want := range []string{`"address":"10.5.34.77/24"`, `"mac":"02:00:00:00:00:77"`} {
		if !strings.Contains(string(resp.Result), want) {
			t.Errorf("result %s lacks %s", resp.Result, want)
		}
	}
	byArgs := request("c2", "")
	byArgs.Args = "IgnoreUnknown=1;IP=10.5.34.78"
	if resp = r.Add(t.Context(), byArgs); resp.Error != nil || !strings.Contains(string(resp.Result), `"10.5.34.78/24"`) {
		t.Errorf("ADD with CNI_ARGS answered %s, %v", resp.Result, resp.Error)
	}
	wantCode(t, r.Add(t.Context(), request("c3", `,"runtimeConfig":{"ips":["10.5.34.77"]}`)), api.CodeAddressUnavailable)
	wantCode(t, r.Add(t.Context(), request("c4", `,"runtimeConfig":{"ips":["10.5.35.7"]}`)), api.CodeAddressUnavailable)
	wantCode(t, r.Add(t.Context(), request("c5", `,"runtimeConfig":{"ips":["fd00::7/64"]}`)), api.CodeAddressUnavailable)
	wantCode(t, r.Add(t.Context(), request("c6", `,"runtimeConfig":{"ips":["10.5.34.79","10.5.34.80"]}`)), api.CodeAddressUnavailable)
	differs := request("c7", `,"runtimeConfig":{"ips":["10.5.34.79"]}`)
	differs.Args = "IP=10.5.34.80"
	wantCode(t, r.Add(t.Context(), differs), api.CodeAddressUnavailable)
	if got := r.interfaces.count(); got != 2 {
		t.Errorf("%d interfaces exist, want 2", got)
	}
}

// TestAddIsUndone: whatever happens while the interface is being made, an ADD
// that fails leaves nothing behind.
func TestAddIsUndone(t *testing.T) {
	for name, c := range map[string]struct {
		during func(*rig, context.CancelFunc) error
		code   uint
	}{
		"attaching fails": {func(*rig, context.CancelFunc) error { return attach.ErrInterfaceExists }, api.CodeInterfaceExists},
		"the subnet is lost": {func(r *rig, _ context.CancelFunc) error {
			r.tenancy.set(lost("10.5.34.0/24"))
			return nil
		}, api.CodeTryAgain},
		"the deadline passes": {func(r *rig, _ context.CancelFunc) error {
			v, _ := r.tenancy.Changed()
			v.State, v.Deadline = api.StateFenced, now
			r.tenancy.set(v)
			return nil
		}, api.CodeTryAgain},
		"another subnet is held": {func(r *rig, _ context.CancelFunc) error {
			r.tenancy.set(held(t, "10.5.35.0/24", 7))
			return nil
		}, api.CodeTryAgain},
		"the same subnet is held as another's successor": {func(r *rig, _ context.CancelFunc) error {
			later := entry("n1", "10.5.34.0/24", "192.0.2.11", 8)
			later.Tenure.Epoch++
			v := held(t, "10.5.34.0/24", 8)
			v.Holding = holdingOf(t, later)
			r.tenancy.set(v)
			return nil
		}, api.CodeTryAgain},
		"the caller goes": {func(_ *rig, cancel context.CancelFunc) error {
			cancel()
			return nil
		}, api.CodeTryAgain},
		"the caller goes and attaching fails": {func(_ *rig, cancel context.CancelFunc) error {
			cancel()
			return context.Canceled
		}, api.CodeTryAgain},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, held(t, "10.5.34.0/24", 7))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r.interfaces.added = func() error { return c.during(r, cancel) }
			wantCode(t, r.Add(ctx, request("c1", "")), c.code)
			wantNothing(t, r)
		})
	}
}

// TestRepeatedAddUndoesNothing: a pod that runs is not taken down because its
// runtime asked again and then went away.
func TestRepeatedAddUndoesNothing(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustAdd(t, r, "c1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.interfaces.added = func() error { cancel(); return nil }
	wantCode(t, r.Add(ctx, request("c1", "")), api.CodeTryAgain)
	r.interfaces.added = nil
	if got := r.ledger.List(); len(got) != 1 || r.interfaces.count() != 1 {
		t.Errorf("on record %v with %d interfaces, want the first ADD's", got, r.interfaces.count())
	}
}

// TestAddSaysWhatTheBridgeIs: "no such bridge" alone sends people looking.
func TestAddSaysWhatTheBridgeIs(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	r.interfaces.added = func() error { return fmt.Errorf("add: %w: tenure0", attach.ErrNoBridge) }
	resp := r.Add(t.Context(), request("c1", ""))
	wantCode(t, resp, api.CodeTryAgain)
	r.plane.report.Conflicts = []dataplane.Conflict{{What: "addr", Text: "an address"}, {What: dataplane.ConflictBridge, Text: "tenure0 is a veth"}}
	resp = r.Add(t.Context(), request("c1", ""))
	wantCode(t, resp, api.CodeTryAgain)
	if !strings.Contains(resp.Error.Msg, "tenure0 is a veth; remove") || strings.Contains(resp.Error.Msg, "an address") {
		t.Errorf("it says %q", resp.Error.Msg)
	}
	wantNothing(t, r)
	if resp = r.Ready(t.Context(), request("", "")); r.Status().Ready {
		t.Error("the node is ready")
	}
	wantCode(t, resp, api.CodeNotReady)
	if !strings.Contains(resp.Error.Msg, "tenure0 is a veth") {
		t.Errorf("STATUS says %q", resp.Error.Msg)
	}
}

// TestRepeatedAddIsAnswered even if the subnet is lost meanwhile: the pod has
// its address, and CHECK and status say what is wrong with it.
func TestRepeatedAddIsAnswered(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustAdd(t, r, "c1")
	r.interfaces.added = func() error { r.tenancy.set(lost("10.5.34.0/24")); return nil }
	mustAdd(t, r, "c1")
}

// TestFailedUndoKeepsTheRecord: while the link is there its address is not
// anybody else's.
func TestFailedUndoKeepsTheRecord(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	r.interfaces.added = func() error { r.tenancy.set(lost("10.5.34.0/24")); return nil }
	r.interfaces.del = func(string) error { return errors.New("device busy") }
	wantCode(t, r.Add(t.Context(), request("c1", "")), api.CodeTryAgain)
	if len(r.ledger.List()) != 1 {
		t.Error("the address is free although its interface exists")
	}
	r.interfaces.del = nil
	if resp := r.Del(t.Context(), request("c1", "")); resp.Error != nil {
		t.Fatal(resp.Error)
	}
	wantNothing(t, r)
}

// TestAddWaitsForEtcdButNotForFate: a daemon that has just started may hear
// from etcd any moment; one that knows it may hold nothing says so at once.
func TestAddWaitsForEtcdButNotForFate(t *testing.T) {
	for _, c := range []struct {
		state api.State
		waits bool
	}{
		{api.StateStarting, true}, {api.StateLost, true},
		{api.StateWaiting, false}, {api.StateRefused, false}, {api.StateFenced, false},
	} {
		t.Run(string(c.state), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lease.View{State: c.state, Reason: "because"})
				began := time.Now()
				resp := r.Add(t.Context(), request("c1", ""))
				wantCode(t, resp, api.CodeTryAgain)
				if took := time.Since(began); c.waits != (took == tenancyWait) || !c.waits && took != 0 {
					t.Errorf("answered after %s", took)
				}
				if !strings.Contains(resp.Error.Msg, string(c.state)) || !strings.Contains(resp.Error.Msg, "because") {
					t.Errorf("the text says neither state nor reason: %s", resp.Error.Msg)
				}
				wantNothing(t, r)
			})
		})
	}
}

func TestAddGoesOnWhenEtcdAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lease.View{State: api.StateStarting})
		go func() {
			<-time.After(3 * time.Second) // of the bubble's clock
			r.tenancy.set(held(t, "10.5.34.0/24", 7))
		}()
		mustAdd(t, r, "c1")
	})
}

// TestAddDoesNotNeedTheWholePlane: what is missing of it is logged, and only
// the first pod of a subnet waits for it.
func TestAddDoesNotNeedTheWholePlane(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	r.plane.err = context.Canceled // the first caller has gone meanwhile
	mustAdd(t, r, "c0")
	r.plane.err = context.DeadlineExceeded
	mustAdd(t, r, "c1")
	mustAdd(t, r, "c2")
	if r.plane.waits != 2 {
		t.Errorf("waited %d times, want once for the caller that went and once for the subnet", r.plane.waits)
	}
	r.tenancy.set(held(t, "10.5.35.0/24", 8))
	mustAdd(t, r, "c3")
	if r.plane.waits != 3 {
		t.Errorf("waited %d times, want again for another subnet", r.plane.waits)
	}
}

// TestAddTellsThePlaneFirst: Run may not have heard of the subnet yet, and a
// plane that converged on an older wish would be waited for in vain.
func TestAddTellsThePlaneFirst(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	told := -1
	r.plane.waiting = func() { told = len(r.plane.desired) }
	mustAdd(t, r, "c1")
	if told != 1 {
		t.Errorf("%d wishes before it waited, want 1", told)
	}
	if d := <-r.plane.desired; len(d.Bridge.Gateways) != 1 || d.Bridge.Gateways[0] != prefix("10.5.34.1/24") {
		t.Errorf("the plane was told %+v", d)
	}
}

func TestAddOfOneKeyAtATime(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	at, release := make(chan struct{}), make(chan struct{})
	r.interfaces.added = func() error { close(at); <-release; return nil }
	done := make(chan *api.Response, 1)
	go func() { done <- r.Add(t.Context(), request("c1", "")) }()
	<-at
	// The same key waits until its caller has no more time; another does not.
	r.interfaces.added = nil
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	wantCode(t, r.Add(ctx, request("c1", "")), api.CodeTryAgain)
	mustAdd(t, r, "c2")
	close(release)
	if resp := <-done; resp.Error != nil {
		t.Fatal(resp.Error)
	}
	if len(r.keys.m) != 0 {
		t.Errorf("locks are left behind: %v", r.keys.m)
	}
}

func TestAddSaysWhenTheSubnetIsFull(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/29", 7)) // five pods
	for i := range 5 {
		mustAdd(t, r, fmt.Sprint("c", i))
	}
	wantCode(t, r.Add(t.Context(), request("c5", "")), api.CodeNoAddress)
}

func TestAddRefusesWhatItCannotRead(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	broken := request("c1", "")
	broken.Config = json.RawMessage(`{"name":`)
	wantCode(t, r.Add(t.Context(), broken), api.CodeDecode)
	wantCode(t, r.Add(t.Context(), request("c1", `,"tenure":{"sockets":"x"}`)), api.CodeInvalidConfig)
	args := request("c1", "")
	args.Args = "IP=nonsense"
	wantCode(t, r.Add(t.Context(), args), api.CodeInvalidConfig)
	wantNothing(t, r)
}

func TestIPAMAdd(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustIPAMAdd(t, r, "c1")
	if a := r.ledger.List()[0]; !a.IPAM || a.Host != "" || r.interfaces.count() != 0 {
		t.Errorf("on record %+v with %d interfaces, want an address for another plugin's interface", a, r.interfaces.count())
	}
	wantCode(t, r.IPAMAdd(t.Context(), &api.Request{ContainerID: "c2", IfName: "eth0",
		Config: json.RawMessage(`{"cniVersion":"1.0.0","name":"net","type":"macvlan","ipam":{"type":"tenure-ipam"}}`)}), api.CodeInvalidConfig)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantCode(t, r.IPAMAdd(ctx, request("c3", "")), api.CodeTryAgain)
	if resp := r.IPAMDel(t.Context(), request("c1", "")); resp.Error != nil {
		t.Fatal(resp.Error)
	}
	wantNothing(t, r)
}

// TestDoubt: what is in doubt is not served before the next proof, and then is;
// STATUS does not call a node not ready for the milliseconds that this takes.
func TestDoubt(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	doubtful := held(t, "10.5.34.0/24", 7)
	doubtful.Doubt, doubtful.State = "the machine was suspended", api.StateUnproven
	r.tenancy.set(doubtful)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	wantCode(t, r.Add(short, request("c1", "")), api.CodeTryAgain)
	wantNothing(t, r)

	added, ready := make(chan *api.Response, 1), make(chan *api.Response, 1)
	go func() { added <- r.Add(t.Context(), request("c1", "")) }()
	go func() { ready <- r.Ready(t.Context(), request("c1", "")) }()
	r.tenancy.set(held(t, "10.5.34.0/24", 7))
	for what, answer := range map[string]chan *api.Response{"ADD": added, "STATUS": ready} {
		if resp := <-answer; resp.Error != nil {
			t.Errorf("%s after the proof: %v", what, resp.Error)
		}
	}
	r.tenancy.set(doubtful)
	wantCode(t, r.Ready(t.Context(), request("c1", "")), api.CodeNotReady)
}

// flipping is a tenancy that is in date for the first look only.
type flipping struct {
	first, then lease.View
	looks       int
}

func (f *flipping) Changed() (lease.View, <-chan struct{}) {
	f.looks++
	if f.looks == 1 {
		return f.first, nil
	}
	return f.then, nil
}

func TestIPAMAddIsUndone(t *testing.T) {
	r := newRig(t, lease.View{})
	r.cfg.Tenancy = &flipping{first: held(t, "10.5.34.0/24", 7), then: lost("10.5.34.0/24")}
	wantCode(t, r.IPAMAdd(t.Context(), request("c1", "")), api.CodeTryAgain)
	wantNothing(t, r)
}

func TestDelFreesInAnyState(t *testing.T) {
	for name, v := range map[string]lease.View{
		"held": held(t, "10.5.34.0/24", 7), "lost": lost("10.5.34.0/24"), "starting": {State: api.StateStarting},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, held(t, "10.5.34.0/24", 7))
			mustAdd(t, r, "c1")
			r.tenancy.set(v)
			gone, cancel := context.WithCancel(t.Context())
			// A DEL that has begun is finished even if nobody waits for it.
			r.interfaces.del = func(string) error { cancel(); return nil }
			if resp := r.Del(gone, request("c1", "")); resp.Error != nil {
				t.Fatal(resp.Error)
			}
			wantNothing(t, r)
			r.interfaces.del = nil
			if resp := r.Del(t.Context(), request("c1", "")); resp.Error != nil {
				t.Errorf("DEL of what is gone: %v", resp.Error)
			}
		})
	}
}

// TestDelOfACallerThatHasGone has been queued by that caller: done now, it
// could hit a pod that was added since.
func TestDelOfACallerThatHasGone(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustAdd(t, r, "c1")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	wantCode(t, r.Del(gone, request("c1", "")), api.CodeTryAgain)
	if got := fmt.Sprint(containers(r)); got != "[c1]" {
		t.Errorf("on record: %s, want the pod", got)
	}
}

func TestDelGoesOnWithAFaultyConfiguration(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustAdd(t, r, "c1")
	req := request("c1", `,"tenure":{"no-such":1},"runtimeConfig":{"mac":"nonsense"}`)
	req.Args = "IP=nonsense"
	if resp := r.Del(t.Context(), req); resp.Error != nil {
		t.Fatal(resp.Error)
	}
	wantNothing(t, r)
	mustAdd(t, r, "c2")
	if resp := r.Del(t.Context(), request("c2", `,"runtimeConfig":{"ips":"10.5.0.9"}`)); resp.Error != nil {
		t.Errorf("DEL with a value of the wrong type: %v", resp.Error)
	}
	wantNothing(t, r)
	// Without a name nothing of ours is meant; a failure would be repeated for ever.
	mustAdd(t, r, "c3")
	broken := request("c3", "")
	broken.Config = json.RawMessage(`nonsense`)
	if resp := r.Del(t.Context(), broken); resp.Error != nil || fmt.Sprint(containers(r)) != "[c3]" {
		t.Errorf("DEL with nonsense: %v, on record %v", resp.Error, containers(r))
	}
}

// TestDelKeepsTheAddressOfALinkThatStays, but not that of one which was never
// this node's.
func TestDelKeepsTheAddressOfALinkThatStays(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustAdd(t, r, "c1")
	r.interfaces.del = func(string) error { return errors.New("device busy") }
	wantCode(t, r.Del(t.Context(), request("c1", "")), api.CodeIO)
	if len(r.ledger.List()) != 1 {
		t.Error("the address is free although its interface exists")
	}
	r.interfaces.del = func(string) error { return fmt.Errorf("delete: %w", attach.ErrForeignHost) }
	if resp := r.Del(t.Context(), request("c1", "")); resp.Error != nil {
		t.Fatal(resp.Error)
	}
	if got := r.ledger.List(); len(got) != 0 {
		t.Errorf("still on record: %v", got)
	}
}

func TestGC(t *testing.T) {
	const keepC1 = `,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`
	for name, c := range map[string]struct {
		config string
		ipam   bool
		left   string
	}{
		"without a list nothing goes":     {"", false, "[c1 c2 i1 i2 other]"},
		"null is no list":                 {`,"cni.dev/valid-attachments":null`, false, "[c1 c2 i1 i2 other]"},
		"what is not listed goes":         {keepC1, false, "[c1 i1 i2 other]"},
		"the older key counts":            {`,"cni.dev/attachments":[{"containerID":"c2","ifname":"eth0"}]`, false, "[c2 i1 i2 other]"},
		"either list keeps":               {keepC1 + `,"cni.dev/attachments":[{"containerID":"c2","ifname":"eth0"}]`, false, "[c1 c2 i1 i2 other]"},
		"an empty list keeps nothing":     {`,"cni.dev/valid-attachments":[]`, false, "[i1 i2 other]"},
		"another interface does not keep": {`,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth1"}]`, false, "[i1 i2 other]"},
		"tenure-ipam's own only":          {`,"cni.dev/valid-attachments":[{"containerID":"i2","ifname":"eth0"}]`, true, "[c1 c2 i2 other]"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, held(t, "10.5.34.0/24", 7))
			mustAdd(t, r, "c1")
			mustAdd(t, r, "c2")
			mustIPAMAdd(t, r, "i1")
			mustIPAMAdd(t, r, "i2")
			other := request("other", "")
			other.Config = json.RawMessage(`{"cniVersion":"1.1.0","name":"zz-other","type":"tenure"}`)
			if resp := r.Add(t.Context(), other); resp.Error != nil {
				t.Fatal(resp.Error)
			}
			gc := r.GC
			if c.ipam {
				gc = r.IPAMGC
			}
			if resp := gc(t.Context(), request("", c.config)); resp.Error != nil {
				t.Fatal(resp.Error)
			}
			if got := fmt.Sprint(containers(r)); got != c.left {
				t.Errorf("left %s, want %s", got, c.left)
			}
		})
	}
}

func TestGCGoesOnPastAFailure(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	for i := range 3 {
		mustAdd(t, r, fmt.Sprint("c", i))
	}
	stuck := attach.HostName(r.owner(ipam.Key{Network: "net", ContainerID: "c1", IfName: "eth0"}))
	r.interfaces.del = func(host string) error {
		if host == stuck {
			return errors.New("device busy")
		}
		return nil
	}
	wantCode(t, r.GC(t.Context(), request("", `,"cni.dev/valid-attachments":[]`)), api.CodeIO)
	if got := fmt.Sprint(containers(r)); got != "[c1]" {
		t.Errorf("left %s, want the one whose interface stays", got)
	}
}

// TestTwoPluginsShareNoKey: what one of tenure and tenure-ipam gave, the other
// neither hands out again nor frees.
func TestTwoPluginsShareNoKey(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustAdd(t, r, "c1")
	wantCode(t, r.IPAMAdd(t.Context(), request("c1", "")), api.CodeInvalidConfig)
	if resp := r.IPAMDel(t.Context(), request("c1", "")); resp.Error != nil {
		t.Errorf("DEL of tenure-ipam: %v", resp.Error)
	}
	mustIPAMAdd(t, r, "c2")
	wantCode(t, r.Add(t.Context(), request("c2", "")), api.CodeInvalidConfig)
	if resp := r.Del(t.Context(), request("c2", "")); resp.Error != nil {
		t.Errorf("DEL of tenure: %v", resp.Error)
	}
	if got := fmt.Sprint(containers(r)); got != "[c1 c2]" {
		t.Errorf("on record: %s, want both", got)
	}
}

// TestDelDoesNotWaitBehindAnAdd that waits for etcd.
func TestDelDoesNotWaitBehindAnAdd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lease.View{State: api.StateStarting, Reason: "etcd has not answered yet"})
		added := make(chan *api.Response)
		go func() { added <- r.Add(t.Context(), request("c1", "")) }()
		synctest.Wait()
		began := time.Now()
		if resp := r.Del(t.Context(), request("c1", "")); resp.Error != nil || time.Since(began) != 0 {
			t.Errorf("DEL after %s: %v", time.Since(began), resp.Error)
		}
		wantCode(t, <-added, api.CodeTryAgain)
	})
}

// TestUndeliveredAddIsUndone: nobody knows of an address whose ADD was never
// answered. What an earlier ADD was answered with stays.
func TestUndeliveredAddIsUndone(t *testing.T) {
	for name, add := range map[string]func(*Node, context.Context, *api.Request, func(*api.Response) error){
		"tenure": (*Node).Add, "tenure-ipam": (*Node).IPAMAdd,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, held(t, "10.5.34.0/24", 7))
			calls := 0
			lost := func(*api.Response) error { calls++; return io.ErrClosedPipe }
			add(r.Node, t.Context(), request("c1", ""), lost)
			if calls != 1 {
				t.Errorf("%d answers to somebody who has gone", calls)
			}
			wantNothing(t, r)
			if resp := delivered(t.Context(), request("c1", ""), func(ctx context.Context, req *api.Request, deliver func(*api.Response) error) {
				add(r.Node, ctx, req, deliver)
			}); resp.Error != nil {
				t.Fatal(resp.Error)
			}
			add(r.Node, t.Context(), request("c1", ""), lost)
			if _, ok := r.ledger.Get(ipam.Key{Network: "net", ContainerID: "c1", IfName: "eth0"}); !ok {
				t.Error("what an earlier ADD gave was taken back")
			}
		})
	}
}
