package node

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/hook"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/ipam"
)

// TestStrandings: the operator's command is due where a pod is certainly
// stranded, and nowhere else; what may be stranded is listed all the same, or
// its memory would be lost.
func TestStrandings(t *testing.T) {
	pod := hook.Pod{ContainerID: "c1", IfName: "eth0", Address: "10.5.34.2", Subnet: "10.5.34.0/24"}
	away := held(t, "10.5.34.0/24", 7)
	away.State, away.Deadline = api.StateFenced, now-time.Second
	elsewhere := held(t, "10.5.35.0/24", 8)
	elsewhere.LostWhy = "10.5.34.0/24: another node holds the key"
	twice := held(t, "10.5.36.0/24", 9)
	twice.LostWhy = "10.5.35.0/24: another node holds the key"
	restarted := held(t, "10.5.35.0/24", 8)
	fencedThere := held(t, "10.5.35.0/24", 8)
	fencedThere.State, fencedThere.Deadline = api.StateFenced, now-time.Second
	const unknown = "lost 10.5.34.0/24 before this daemon started, or before it lost another one"
	for name, c := range map[string]struct {
		view  lease.View
		since time.Duration // how long the loss has stood
		want  []hook.Stranding
	}{
		"the subnet is held":             {view: held(t, "10.5.34.0/24", 7)},
		"fenced, or unproven":            {view: away},
		"another subnet":                 {view: elsewhere, want: []hook.Stranding{{Pod: pod, Due: true, NewSubnet: "10.5.35.0/24", Reason: "lost " + elsewhere.LostWhy}}},
		"another subnet, the second":     {view: twice, want: []hook.Stranding{{Pod: pod, Due: true, NewSubnet: "10.5.36.0/24", Reason: unknown}}},
		"another subnet, long ago":       {view: restarted, want: []hook.Stranding{{Pod: pod, Due: true, NewSubnet: "10.5.35.0/24", Reason: unknown}}},
		"another subnet, itself fenced":  {view: fencedThere, want: []hook.Stranding{{Pod: pod, Due: true, NewSubnet: "10.5.35.0/24", Reason: unknown}}},
		"lost a moment ago":              {view: lost("10.5.34.0/24"), since: lossPatience - 1, want: []hook.Stranding{{Pod: pod, Reason: unknown}}},
		"lost for a while":               {view: lost("10.5.34.0/24"), since: lossPatience, want: []hook.Stranding{{Pod: pod, Due: true, Reason: unknown}}},
		"nothing is known yet":           {view: lease.View{State: api.StateStarting}, since: time.Hour, want: []hook.Stranding{{Pod: pod, Reason: unknown}}},
		"refused, by a machine's kernel": {view: lease.View{State: api.StateRefused}, want: []hook.Stranding{{Pod: pod, Reason: unknown}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, held(t, "10.5.34.0/24", 7))
			mustAdd(t, r, "c1")
			r.tenancy.set(c.view)
			r.noteLoss(c.view)
			r.cfg.Clock = func() time.Duration { return now + c.since }
			r.noteLoss(c.view) // a second look changes nothing
			if diff := cmp.Diff(c.want, r.Strandings()); diff != "" {
				t.Errorf("strandings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestALossBegins anew with each loss.
func TestALossBegins(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	gone := lost("10.5.34.0/24")
	for _, step := range []struct {
		at   time.Duration
		view lease.View
		want bool
	}{
		{0, gone, false}, {lossPatience, gone, true},
		{lossPatience, lease.View{State: api.StateStarting}, false},
		{2 * lossPatience, gone, false}, {3 * lossPatience, gone, true},
	} {
		r.cfg.Clock = func() time.Duration { return now + step.at }
		r.noteLoss(step.view)
		if got := r.decided(step.view); got != step.want {
			t.Errorf("%s on, %s: decided %t", step.at, step.view.State, got)
		}
	}
	if r.decided(lease.View{State: api.StateStarting}) {
		t.Error("a loss of the past decides about a view in which nothing is known")
	}
}

// TestNoCommandDuringACall: an ADD may be undone, and a DEL takes the pod away.
func TestNoCommandDuringACall(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustAdd(t, r, "c1")
	v := held(t, "10.5.35.0/24", 8)
	r.tenancy.set(v)
	unlock, err := r.keys.lock(t.Context(), ipam.Key{Network: "net", ContainerID: "c1", IfName: "eth0"})
	if err != nil {
		t.Fatal(err)
	}
	if all := r.Strandings(); len(all) != 1 || all[0].Due {
		t.Errorf("during a call: %+v", all)
	}
	if told := r.announce(v, nil); len(told) != 0 {
		t.Errorf("announced during a call: %v", told)
	}
	unlock()
	if all := r.Strandings(); len(all) != 1 || !all[0].Due {
		t.Errorf("after the call: %+v", all)
	}
}

// TestAnnounce: each stranded pod is told once, and once that it is so no
// more, with the same keys; then that it was the last.
func TestAnnounce(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustAdd(t, r, "c1")
	mustAdd(t, r, "c2")
	v := held(t, "10.5.35.0/24", 8)
	v.LostWhy = "10.5.34.0/24: another node holds the key"
	r.tenancy.set(v)
	events := func(v lease.View, told map[hook.Pod]bool) (map[hook.Pod]bool, []string) {
		t.Helper()
		r.log.Reset()
		told = r.announce(v, told)
		var all []string
		for line := range strings.Lines(r.log.String()) {
			_, event, _ := strings.Cut(line, "event=")
			all = append(all, strings.TrimSpace(event))
		}
		return told, all
	}
	const one, two = "container=c1 if=eth0 address=10.5.34.2 subnet=10.5.34.0/24", "container=c2 if=eth0 address=10.5.34.3 subnet=10.5.34.0/24"
	const why = ` reason="lost 10.5.34.0/24: another node holds the key"`
	told := map[hook.Pod]bool{}
	for _, step := range []struct {
		what   string
		view   lease.View
		before func()
		want   []string
	}{
		{"before the loss", held(t, "10.5.34.0/24", 7), nil, nil},
		{"after it", v, nil, []string{"pod-stranded " + one + why, "pod-stranded " + two + why}},
		{"again, beside a young pod", v, func() { mustAdd(t, r, "young") }, nil},
		{"nothing known", lease.View{State: api.StateStarting}, nil, nil},
		{"one left", v, func() { r.Del(t.Context(), request("c1", "")) }, []string{"pod-not-stranded " + one}},
		{"the last left", v, func() { r.Del(t.Context(), request("c2", "")) }, []string{"pod-not-stranded " + two, "none-stranded"}},
		{"nobody", v, nil, nil},
	} {
		if step.before != nil {
			step.before()
		}
		var got []string
		if told, got = events(step.view, told); !cmp.Equal(step.want, got) {
			t.Errorf("%s: %s", step.what, cmp.Diff(step.want, got))
		}
	}
}

// TestBothFamiliesAreOnePod: the subnets are lost together.
func TestBothFamiliesAreOnePod(t *testing.T) {
	a := ipam.Allocation{Key: ipam.Key{ContainerID: "c1", IfName: "eth0"},
		Addresses: []netip.Prefix{prefix("10.5.34.2/24"), prefix("fd00:5:0:22::2/64")}}
	got, ok := outside(held(t, "10.5.35.0/24", 8), a)
	want := hook.Pod{ContainerID: "c1", IfName: "eth0", Address: "10.5.34.2,fd00:5:0:22::2", Subnet: "10.5.34.0/24,fd00:5:0:22::/64"}
	if !ok || got != want {
		t.Errorf("%+v, %t; want %+v", got, ok, want)
	}
}

func TestStatusTellsWhereTheCommandFailed(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	r.hook.givenUp = []hook.Pod{{ContainerID: "c2", IfName: "eth0", Address: "10.5.33.3"}, {ContainerID: "c1", IfName: "eth0", Address: "10.5.33.2"}}
	all := r.Status().Problems
	if len(all) != 1 || all[0].Code != "on-stranded" || all[0].Severity != api.SeverityWarning ||
		!strings.HasSuffix(all[0].Text, "c1/eth0 (10.5.33.2), c2/eth0 (10.5.33.3)") {
		t.Errorf("problems %+v", all)
	}
}

// TestStatusVerbCountsTheStranded: 51 says in words what it is about.
func TestStatusVerbCountsTheStranded(t *testing.T) {
	r := newRig(t, held(t, "10.5.34.0/24", 7))
	mustAdd(t, r, "c1")
	v := lost("10.5.34.0/24")
	v.Reason, v.LostWhy = "no free subnet", "10.5.34.0/24: another node holds the key"
	r.tenancy.set(v)
	resp := r.Ready(t.Context(), request("", ""))
	wantCode(t, resp, api.CodeNotReadyLimited)
	const want = "no free subnet; lost 10.5.34.0/24: another node holds the key; stranded pod addresses: 1, see tenurectl stranded"
	if !strings.HasSuffix(resp.Error.Msg, want) {
		t.Errorf("it says %q, want %q", resp.Error.Msg, want)
	}
	r.tenancy.set(held(t, "10.5.35.0/24", 8))
	if resp := r.Ready(t.Context(), request("", "")); resp.Error != nil {
		t.Errorf("beside a new subnet: %v", resp.Error)
	}
}
