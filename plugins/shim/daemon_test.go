package shim_test

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"

	"github.com/tenure-cni/tenure/daemon/api"
)

// fakeDaemon is an HTTP server on a unix socket that records what it is asked.
type fakeDaemon struct {
	mu     sync.Mutex
	calls  []string // "path containerID"
	answer http.HandlerFunc
}

func (d *fakeDaemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req api.Request
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	d.calls = append(d.calls, r.URL.Path+" "+req.ContainerID)
	d.mu.Unlock()
	d.answer(w, r)
}

func (d *fakeDaemon) seen() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.calls...)
}

// listen starts a daemon on socket until the test ends.
func listen(t *testing.T, socket string, answer http.HandlerFunc) *fakeDaemon {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	d := &fakeDaemon{answer: answer}
	srv := httptest.NewUnstartedServer(d)
	_ = srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	t.Cleanup(srv.Close)
	return d
}

// say answers every call with one body.
func say(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }
}

// silence answers nothing until the caller has gone.
func silence(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// newSocket is a short path in a directory of the test's own.
func newSocket(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "t.sock")
}
