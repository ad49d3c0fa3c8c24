package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/tenure-cni/tenure/daemon/api"
)

// patience is how long a test waits for what must happen.
const patience = 5 * time.Second

func okStatus() *api.Status {
	return &api.Status{Node: "n1", State: api.StateHeld, Ready: true}
}

// serveFor serves on l until stop is called, at the latest when the test ends.
func serveFor(t *testing.T, l net.Listener, h Handlers) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	var result error
	stopped := false
	stop = func() error {
		cancel()
		if !stopped {
			result, stopped = <-done, true
		}
		return result
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return stop
}

// start serves h on a socket and returns a client of it.
func start(t *testing.T, h Handlers) (*api.Client, func() error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tenured.sock")
	stop := serveFor(t, listen(t, path), h)
	c := api.NewClient(path)
	return c, stop
}

func echo(name string) Verb {
	return func(_ context.Context, r *api.Request) *api.Response {
		b, err := json.Marshal(map[string]string{"verb": name, "container": r.ContainerID})
		if err != nil {
			return &api.Response{Error: &types.Error{Code: 5, Msg: err.Error()}}
		}
		return &api.Response{Result: b}
	}
}

func TestVerbsHaveTheirPaths(t *testing.T) {
	c, _ := start(t, Handlers{Status: okStatus,
		CNI: map[string]Verb{"add": echo("cni add"), "del": echo("cni del")}, IPAM: map[string]Verb{"add": echo("ipam add")}})
	for path, want := range map[string]string{
		api.PathCNI + "add": "cni add", api.PathCNI + "del": "cni del", api.PathIPAM + "add": "ipam add",
	} {
		resp, err := c.Call(t.Context(), path, &api.Request{ContainerID: "c1", Config: json.RawMessage("{}")})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if diff := cmp.Diff(`{"container":"c1","verb":"`+want+`"}`, string(resp.Result)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	if _, err := c.Call(t.Context(), api.PathIPAM+"del", &api.Request{}); err == nil {
		t.Error("a verb that is not served is answered")
	}
	s, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(okStatus(), s); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// TestErrorsOfAVerbAreNoTransportErrors: the plugin prints them.
func TestErrorsOfAVerbAreNoTransportErrors(t *testing.T) {
	refuse := func(context.Context, *api.Request) *api.Response {
		return &api.Response{Error: &types.Error{Code: 100, Msg: "no free address"}}
	}
	c, _ := start(t, Handlers{Status: okStatus, CNI: map[string]Verb{"add": refuse}})
	resp, err := c.Call(t.Context(), api.PathCNI+"add", &api.Request{Config: json.RawMessage("{}")})
	if err != nil || resp.Error == nil || resp.Error.Code != 100 {
		t.Errorf("answer %+v, %v", resp, err)
	}
}

func TestBadBodies(t *testing.T) {
	called := false
	h := mux(Handlers{Status: okStatus, CNI: map[string]Verb{"add": func(context.Context, *api.Request) *api.Response {
		called = true
		return &api.Response{}
	}}}, new(sync.WaitGroup))
	for name, body := range map[string]string{
		"no JSON": "nonsense", "nothing": "", "too long": `{"config":"` + strings.Repeat("x", maxBody) + `"}`,
		"more after it": `{"config":{}} {}`,
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, asRoot(httptest.NewRequest(http.MethodPost, api.PathCNI+"add", strings.NewReader(body))))
		if w.Code != http.StatusBadRequest || called {
			t.Errorf("%s: status %d, verb called: %t", name, w.Code, called)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, asRoot(httptest.NewRequest(http.MethodGet, api.PathCNI+"add", nil)))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET of a verb: status %d", w.Code)
	}
}

// TestADeadCallerEndsItsCall: the plugin was killed, so the address it asked
// for would be nobody's. The body has a long tail behind its JSON: unless it is
// read to its end, net/http does not watch the connection.
func TestADeadCallerEndsItsCall(t *testing.T) {
	began, ended := make(chan struct{}), make(chan error, 1)
	path := filepath.Join(t.TempDir(), "tenured.sock")
	serveFor(t, listen(t, path), Handlers{Status: okStatus, CNI: map[string]Verb{
		"add": func(ctx context.Context, _ *api.Request) *api.Response {
			close(began)
			select {
			case <-ctx.Done():
				ended <- ctx.Err()
			case <-time.After(patience):
				ended <- errors.New("the context of a dead caller lives on")
			}
			return &api.Response{}
		}}})
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	body := `{"containerID":"c1","config":{}}` + strings.Repeat("\n", 64<<10)
	if _, err := io.WriteString(conn, "POST "+api.PathCNI+"add HTTP/1.1\r\nHost: x\r\nContent-Length: "+
		strconv.Itoa(len(body))+"\r\n\r\n"+body); err != nil {
		t.Fatal(err)
	}
	<-began
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestStopWaitsForCallsInFlight: an upgrade does not fail the ADD it meets.
func TestStopWaitsForCallsInFlight(t *testing.T) {
	began, finish := make(chan struct{}), make(chan struct{})
	c, stop := start(t, Handlers{Status: okStatus, CNI: map[string]Verb{
		"add": func(context.Context, *api.Request) *api.Response {
			close(began)
			<-finish
			return &api.Response{Result: json.RawMessage(`{}`)}
		}}})
	answered := make(chan error, 1)
	go func() {
		_, err := c.Call(context.Background(), api.PathCNI+"add", &api.Request{Config: json.RawMessage("{}")})
		answered <- err
	}()
	<-began
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	// New callers are refused while the old one is served.
	for deadline := time.Now().Add(patience); ; {
		if _, err := c.Status(t.Context()); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a stopping server goes on taking calls")
		}
	}
	close(finish)
	if err := <-answered; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// TestStopEndsWhatDoesNotEnd: neither a call that waits for something nor a
// caller that sends half a request keeps a daemon from stopping.
func TestStopEndsWhatDoesNotEnd(t *testing.T) {
	began := make(chan struct{})
	path := filepath.Join(t.TempDir(), "tenured.sock")
	stop := serveFor(t, listen(t, path), Handlers{Status: okStatus, CNI: map[string]Verb{
		"add": func(ctx context.Context, _ *api.Request) *api.Response {
			close(began)
			<-ctx.Done()
			return &api.Response{Error: &types.Error{Code: api.CodeTryAgain, Msg: "stopping"}}
		}}})
	half, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = half.Close() }()
	if _, err := half.Write([]byte("POST /v1/cni/del HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")); err != nil {
		t.Fatal(err)
	}
	c := api.NewClient(path)
	answered := make(chan *api.Response, 1)
	go func() {
		resp, _ := c.Call(context.Background(), api.PathCNI+"add", &api.Request{Config: json.RawMessage("{}")})
		answered <- resp
	}()
	<-began
	if err := stop(); err != nil {
		t.Errorf("Serve: %v", err)
	}
	if resp := <-answered; resp == nil || resp.Error == nil || resp.Error.Code != api.CodeTryAgain {
		t.Errorf("the waiting call got %v, want try again", resp)
	}
}

func TestServeReportsABrokenListener(t *testing.T) {
	l := listen(t, socketPath(t))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := Serve(ctx, l, Handlers{Status: okStatus}, slog.New(slog.DiscardHandler)); err == nil || ctx.Err() != nil {
		t.Errorf("Serve on a closed listener: %v, %v", err, ctx.Err())
	}
}

// TestEtcdAccess: what tenurectl needs to come to etcd itself; a daemon that
// does not serve it answers 404.
func TestEtcdAccess(t *testing.T) {
	want := &api.EtcdAccess{Node: "n1", UID: "u", Endpoints: []string{"https://192.0.2.2:2379"}, Prefix: "/tenure/network",
		CAFile: "/etc/tenure/ca.pem", Username: "tenure", PasswordFile: "/etc/tenure/password"}
	c, _ := start(t, Handlers{Status: okStatus, Etcd: func() *api.EtcdAccess { return want }})
	got, err := c.EtcdAccess(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("access (-want +got):\n%s", diff)
	}
	old, _ := start(t, Handlers{Status: okStatus})
	if _, err := old.EtcdAccess(t.Context()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("without it: %v", err)
	}
}
