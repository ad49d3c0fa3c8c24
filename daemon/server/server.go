package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
)

// Verb is a use case behind one CNI verb.
type Verb func(context.Context, *api.Request) *api.Response

// Giving is a use case whose success must arrive: it calls deliver once with
// its answer, and takes back what it gave when deliver fails.
type Giving func(ctx context.Context, r *api.Request, deliver func(*api.Response) error)

// Handlers are what the socket serves.
type Handlers struct {
	// Status makes the node's status object.
	Status func() *api.Status
	// Add and IPAMAdd are ADD of the plugins tenure and tenure-ipam.
	Add, IPAMAdd Giving
	// CNI and IPAM are their other verbs, by their lower-case names.
	CNI, IPAM map[string]Verb
	// Leave gives the node's subnet up.
	Leave func(context.Context, *api.Leave) *api.Left
	// Etcd says how this node reaches etcd, without any secret.
	Etcd func() *api.EtcdAccess
}

// maxBody bounds a request: a network config of a runtime with every
// attachment of a large node is well below it.
const maxBody = 16 << 20

// A stopping daemon lets calls in flight go on for drainGrace, then ends their
// contexts, and drops at drainTimeout whoever is still connected.
const (
	drainGrace   = 2 * time.Second
	drainTimeout = 3 * time.Second
)

// Serve answers on l until ctx ends, then waits for the calls in flight. The
// socket's file is removed by closing the listener.
func Serve(ctx context.Context, l net.Listener, h Handlers, log *slog.Logger) error {
	var giving sync.WaitGroup // net/http forgets a connection that it hands over
	defer giving.Wait()
	return serve(ctx, l, &http.Server{
		Handler:           mux(h, &giving),
		ConnContext:       withPeer,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	})
}

func serve(ctx context.Context, l net.Listener, s *http.Server) error {
	calls, endCalls := context.WithCancel(context.WithoutCancel(ctx))
	defer endCalls()
	s.BaseContext = func(net.Listener) context.Context { return calls }
	done := make(chan error, 1)
	go func() {
		<-ctx.Done()
		defer time.AfterFunc(drainGrace, endCalls).Stop()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		err := s.Shutdown(end)
		if errors.Is(err, context.DeadlineExceeded) {
			err = s.Close() // somebody holds a connection open and says nothing
		}
		done <- err
	}()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	}
	if err := <-done; err != nil {
		return fmt.Errorf("stop serving on %s: %w", l.Addr(), err)
	}
	return nil
}

func mux(h Handlers, giving *sync.WaitGroup) http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET "+api.PathStatus, func(w http.ResponseWriter, _ *http.Request) { write(w, h.Status()) })
	m.HandleFunc("POST "+api.PathLeave, handler(h.Leave))
	if h.Etcd != nil {
		m.HandleFunc("GET "+api.PathEtcd, func(w http.ResponseWriter, _ *http.Request) { write(w, h.Etcd()) })
	}
	for path, f := range map[string]Giving{api.PathCNI: h.Add, api.PathIPAM: h.IPAMAdd} {
		if f != nil {
			m.HandleFunc("POST "+path+"add", give(f, giving))
		}
	}
	for verb, f := range h.CNI {
		m.HandleFunc("POST "+api.PathCNI+verb, handler(f))
	}
	for verb, f := range h.IPAM {
		m.HandleFunc("POST "+api.PathIPAM+verb, handler(f))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !allowed(r.Context()) {
			http.Error(w, "only root may use this socket", http.StatusForbidden)
			return
		}
		m.ServeHTTP(w, r)
	})
}

func handler[Q, A any](f func(context.Context, *Q) *A) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if req, ok := read[Q](w, r); ok {
			write(w, f(r.Context(), req))
		}
	}
}

// read reads the body to its end: only then does net/http notice that the
// caller has gone, and ends the request's context.
func read[Q any](w http.ResponseWriter, r *http.Request) (*Q, bool) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "read request: "+err.Error(), http.StatusBadRequest)
		return nil, false
	}
	var req Q
	if err := json.Unmarshal(b, &req); err != nil {
		http.Error(w, "decode request: "+err.Error(), http.StatusBadRequest)
		return nil, false
	}
	return &req, true
}

func write(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	// An error here is the caller's disappearance; there is nobody to tell.
	_ = json.NewEncoder(w).Encode(v)
}
