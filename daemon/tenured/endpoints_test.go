package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

func TestLeaseBugs(t *testing.T) {
	for version, want := range map[string]bool{
		"3.3.27": true, "3.4.23": true, "3.4.37": true, "3.4.38": false, "3.5.0": true, "3.5.9": true, "3.5.22": true, "3.5.23": false,
		"3.6.0": true, "3.6.4": true, "3.6.5": false, "3.7.0": false, "3.7.3": false, "3.10.1": false, "4.0.0": false, "2.3.8": true,
		"3.6.5-rc.0": true, "": false, "not known": false, "v3.4.23": false, "3.4": false, "3.4.23.1": false, "\x00": false,
	} {
		if got := leaseBugs(version); got != want {
			t.Errorf("%q has lease bugs: %t, want %t", version, got, want)
		}
	}
}

func TestAnswersOthers(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{rpctypes.ErrPermissionDenied, true},
		{rpctypes.ErrGRPCPermissionDenied, true}, // as it comes from the connection
		{rpctypes.ErrUserEmpty, false},           // nothing is answered to whoever gives no user
		{rpctypes.ErrInvalidAuthToken, false},
		{rpctypes.ErrNoLeader, false},
		{context.DeadlineExceeded, false},
	} {
		if got := answersOthers(c.err); got != c.want {
			t.Errorf("%v: well %t, want %t", c.err, got, c.want)
		}
	}
}

func TestEndpoints(t *testing.T) {
	const a, b = "http://192.0.2.2:2379", "http://192.0.2.3:2379"
	e := newEndpoints(conf.Etcd{Endpoints: []string{b, a}}, (&embedded{}).Problems)
	if diff := cmp.Diff([]api.Endpoint{{URL: b}, {URL: a}}, e.Endpoints()); diff != "" {
		t.Errorf("before anybody was asked (-want +got):\n%s", diff)
	}
	e.note(a, api.Endpoint{Healthy: true, Version: "3.5.1"})
	since := e.Endpoints()[1].Since
	if since == "" {
		t.Error("an endpoint that has answered is healthy since never")
	}
	e.last[a] = api.Endpoint{Healthy: true, Version: "3.5.1", Since: "2026-01-01T00:00:00Z"}
	e.note(a, api.Endpoint{Healthy: true, Version: "3.5.2"})
	if got := e.Endpoints()[1]; got.Since != "2026-01-01T00:00:00Z" || got.Version != "3.5.2" {
		t.Errorf("still healthy: %+v", got)
	}
	e.note(a, api.Endpoint{Reason: "refused"})
	if got := e.Endpoints()[1]; got.Healthy || got.Since == "2026-01-01T00:00:00Z" || got.Version != "3.5.2" || got.Reason != "refused" {
		t.Errorf("unhealthy now: %+v, want since now, and the version that is known", got)
	}
	problems := e.Problems()
	if len(problems) != 1 || problems[0].Code != "etcd-version" || problems[0].Severity != api.SeverityWarning ||
		!strings.Contains(problems[0].Text, a+" runs 3.5.2") {
		t.Errorf("problems %+v, want a warning that names the member", problems)
	}
	e.note(a, api.Endpoint{Healthy: true, Version: "3.7.3"})
	if problems := e.Problems(); len(problems) != 0 {
		t.Errorf("after the upgrade: %+v", problems)
	}
}

// TestAlarms: what a member says of the store is told in words with what to do,
// each member named once, and asked for more often while it stands.
func TestAlarms(t *testing.T) {
	const a, b = "http://192.0.2.2:2379", "http://192.0.2.3:2379"
	const gib = int64(1) << 30
	for name, c := range map[string]struct {
		status        *clientv3.StatusResponse
		alarm, text   string
		code, without string
	}{
		"well":                 {&clientv3.StatusResponse{DbSize: gib, DbSizeQuota: 2 * gib}, "", "", "", ""},
		"quota not told":       {&clientv3.StatusResponse{DbSize: 9 * gib}, "", "", "", ""},
		"nearly full":          {&clientv3.StatusResponse{DbSize: 95 * gib / 100, DbSizeQuota: gib}, "NEARLY FULL", "90 %", "etcd-space", "NOSPACE"},
		"full":                 {&clientv3.StatusResponse{DbSize: 2 * gib, DbSizeQuota: gib, Errors: []string{"memberID:10276657743932975437 alarm:NOSPACE "}}, "NOSPACE", "store is full", "etcd-space", "90 %"},
		"corrupt":              {&clientv3.StatusResponse{Errors: []string{"memberID:1 alarm:CORRUPT "}}, "CORRUPT", "differ", "etcd-corrupt", "full"},
		"an error of another":  {&clientv3.StatusResponse{Errors: []string{"etcdserver: no leader"}}, "", "", "", ""},
		"corrupt and no space": {&clientv3.StatusResponse{Errors: []string{"memberID:1 alarm:NOSPACE ", "memberID:1 alarm:CORRUPT "}}, "CORRUPT", "differ", "etcd-corrupt", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := alarm(c.status)
			if got != c.alarm {
				t.Fatalf("alarm %q, want %q", got, c.alarm)
			}
			e := newEndpoints(conf.Etcd{Endpoints: []string{a, b}}, (&embedded{}).Problems)
			for _, u := range []string{a, b} {
				e.note(u, api.Endpoint{Healthy: true, Version: "3.6.5", Alarm: got})
			}
			problems := e.Problems()
			if c.code == "" {
				if len(problems) != 0 || e.interval(false, nil) != probeWell {
					t.Errorf("problems %+v, asked every %s", problems, e.interval(false, nil))
				}
				return
			}
			if len(problems) != 1 || problems[0].Code != c.code || problems[0].Severity != api.SeverityWarning ||
				!strings.Contains(problems[0].Text, a+", "+b) || !strings.Contains(problems[0].Text, c.text) || !strings.Contains(problems[0].Fix, "etcdctl alarm disarm") {
				t.Errorf("problems %+v, want one warning %s that names both members and says %q", problems, c.code, c.text)
			}
			if c.without != "" && strings.Contains(problems[0].Text, c.without) {
				t.Errorf("%q says %q", problems[0].Text, c.without)
			}
			if e.interval(false, nil) != probeIll {
				t.Errorf("asked every %s while it stands", e.interval(false, nil))
			}
		})
	}
}

// TestHowOftenEndpointsAreAsked: once in a LeaseTTL, within bounds.
func TestHowOftenEndpointsAreAsked(t *testing.T) {
	e := newEndpoints(conf.Etcd{}, (&embedded{}).Problems)
	for ttl, want := range map[time.Duration]time.Duration{
		5 * time.Second: 5 * time.Second, 30 * time.Second: 30 * time.Second, 24 * time.Hour: time.Minute,
	} {
		if got := e.interval(false, &conf.Network{LeaseTTL: ttl}); got != want {
			t.Errorf("LeaseTTL %s: every %s, want %s", ttl, got, want)
		}
	}
	if got := e.interval(true, &conf.Network{LeaseTTL: time.Hour}); got != probeIll {
		t.Errorf("without an answer: every %s", got)
	}
}

func TestAskSaysWhyThereIsNoAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := "http://" + l.Addr().String()
	e := newEndpoints(conf.Etcd{Endpoints: []string{endpoint}}, (&embedded{}).Problems)
	if got := e.ask(t.Context(), nil, endpoint); got.Healthy || !strings.Contains(got.Reason, "no session with etcd") {
		t.Errorf("without a client: %+v", got)
	}
	_ = l.Close()
	if got := e.ask(t.Context(), nil, endpoint); got.Healthy || !strings.Contains(got.Reason, "connection refused") {
		t.Errorf("with nobody there: %+v", got)
	}
	if e.probe(t.Context(), nil); !strings.Contains(e.why(), endpoint+": ") || !strings.Contains(e.why(), "connection refused") {
		t.Errorf("nobody is there, and why says %q", e.why())
	}
}

func TestEndpointHosts(t *testing.T) {
	got := endpointHosts(conf.Etcd{Endpoints: []string{"http://192.0.2.2:2379", "https://[fd00::2]:2379", "http://192.0.2.2:2380", "http://etcd.example:2379"}})
	if diff := cmp.Diff([]string{"192.0.2.2", "fd00::2", "etcd.example"}, got); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
}
