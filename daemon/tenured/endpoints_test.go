package main

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

func TestLeaseBugs(t *testing.T) {
	for version, want := range map[string]bool{
		"3.3.27": true, "3.4.37": true, "3.4.38": false, "3.5.0": true, "3.5.22": true, "3.5.23": false,
		"3.6.0": true, "3.6.4": true, "3.6.5": false, "3.7.0": false, "4.0.0": false, "2.3.8": true,
		"3.6.5-rc.0": true, "": false, "not known": false,
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
	e := newEndpoints(conf.Etcd{Endpoints: []string{b, a}})
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

func TestAskSaysWhyThereIsNoAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := "http://" + l.Addr().String()
	if got := ask(t.Context(), nil, endpoint); got.Healthy || !strings.Contains(got.Reason, "no session with etcd") {
		t.Errorf("without a client: %+v", got)
	}
	_ = l.Close()
	if got := ask(t.Context(), nil, endpoint); got.Healthy || !strings.Contains(got.Reason, "connection refused") {
		t.Errorf("with nobody there: %+v", got)
	}
}

func TestEndpointHosts(t *testing.T) {
	got := endpointHosts(conf.Etcd{Endpoints: []string{"http://192.0.2.2:2379", "https://[fd00::2]:2379", "http://192.0.2.2:2380", "http://etcd.example:2379"}})
	if diff := cmp.Diff([]string{"192.0.2.2", "fd00::2", "etcd.example"}, got); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
}
