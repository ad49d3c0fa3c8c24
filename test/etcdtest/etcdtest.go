package etcdtest

import (
	"context"
	"errors"
	"net/url"
	"os"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/tenure-cni/tenure/test/lab/proxy"
	"github.com/tenure-cni/tenure/test/packaged"
)

// Server is one single-member etcd.
type Server struct {
	// Endpoint is its client URL.
	Endpoint string
	etcd     *embed.Etcd
	other    *external // instead of etcd, if the environment asks for it
	cfg      *embed.Config
	front    *proxy.Proxy
}

// startTimeout bounds how long a server may take to elect itself.
const startTimeout = 30 * time.Second

// Start runs a server until the test ends. Each change may alter its
// configuration before it starts.
func Start(t testing.TB, changes ...func(*embed.Config)) *Server {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	any0 := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = any0, any0
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = any0, any0
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true // a test's store need not survive the machine
	cfg.BcryptCost = 4       // the least: its users keep no secrets
	for _, change := range changes {
		change(cfg)
	}
	s := &Server{cfg: cfg}
	t.Cleanup(s.stop)
	s.start(t)
	return s
}

func (s *Server) start(t testing.TB) {
	t.Helper()
	host := s.launch(t)
	if s.front != nil {
		s.front.Restore()
		return
	}
	front, err := proxy.New(host)
	if err != nil {
		t.Fatal(err)
	}
	s.front = front
	s.Endpoint = "http://" + s.front.Addr()
	t.Cleanup(func() { _ = s.front.Close() })
}

// launch starts the server and returns where it listens, the same each time.
func (s *Server) launch(t testing.TB) string {
	t.Helper()
	if program := packaged.Program(); program != "" {
		if s.other == nil {
			s.other = newExternal(program)
		}
		s.other.start(t, s.cfg)
		return s.other.host()
	}
	e, err := embed.StartEtcd(s.cfg)
	for began := time.Now(); errors.Is(err, syscall.EADDRINUSE) && time.Since(began) < startTimeout; {
		<-time.After(100 * time.Millisecond) // somebody else's client has the port for the moment
		e, err = embed.StartEtcd(s.cfg)
	}
	if err != nil {
		t.Fatalf("start embedded etcd: %v", err)
	}
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(startTimeout):
		e.Close()
		t.Fatalf("embedded etcd is not ready after %s", startTimeout)
	}
	s.etcd = e
	// A later start listens where the front looks for it.
	again := url.URL{Scheme: "http", Host: e.Clients[0].Addr().String()}
	s.cfg.ListenClientUrls, s.cfg.AdvertiseClientUrls = []url.URL{again}, []url.URL{again}
	return again.Host
}

// Stop ends the server, as a power cut would for its clients; Restart starts it
// again with what it had.
func (s *Server) Stop() { s.stop() }

// Restart starts a stopped server at the same address.
func (s *Server) Restart(t testing.TB) { t.Helper(); s.start(t) }

// Wipe stops the server, throws its data away and starts an empty one at the
// same address, of another cluster ID if newCluster says so.
func (s *Server) Wipe(t testing.TB, newCluster bool) {
	t.Helper()
	s.stop()
	if err := os.RemoveAll(s.cfg.Dir); err != nil {
		t.Fatalf("wipe etcd: %v", err)
	}
	if newCluster {
		s.cfg.InitialClusterToken += "+"
	}
	s.start(t)
}

// Backup stops the server, copies its data and starts it again.
func (s *Server) Backup(t testing.TB) (dir string) {
	t.Helper()
	s.stop()
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(s.cfg.Dir)); err != nil {
		t.Fatalf("back etcd up: %v", err)
	}
	s.start(t)
	return dir
}

// Restore puts a Backup in place of the server's data: the same cluster ID, at
// an earlier revision, with every lease revived.
func (s *Server) Restore(t testing.TB, backup string) {
	t.Helper()
	s.stop()
	if err := os.RemoveAll(s.cfg.Dir); err != nil {
		t.Fatalf("restore etcd: %v", err)
	}
	if err := os.CopyFS(s.cfg.Dir, os.DirFS(backup)); err != nil {
		t.Fatalf("restore etcd: %v", err)
	}
	s.start(t)
}

func (s *Server) stop() {
	// A server that is asked to close waits for its clients' streams; the
	// front ends them first.
	if s.front != nil {
		s.front.Cut()
	}
	if s.etcd != nil {
		s.etcd.Close()
		s.etcd = nil
	}
	if s.other != nil {
		s.other.stop()
	}
}

// Client returns a client of the server, closed when the test ends.
func (s *Server) Client(t testing.TB) *clientv3.Client { return Client(t, s.Endpoint) }

// Client returns a client of any endpoint, closed when the test ends.
func Client(t testing.TB, endpoint string) *clientv3.Client {
	t.Helper()
	c, err := Dial(endpoint)
	if err != nil {
		t.Fatalf("etcd client of %s: %v", endpoint, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Dial returns a client that its user closes.
func Dial(endpoint string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

// Get reads one key; the test fails if etcd does not answer.
func Get(t testing.TB, c *clientv3.Client, key string) *clientv3.GetResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	resp, err := c.Get(ctx, key)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	return resp
}
