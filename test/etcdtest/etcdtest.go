// Package etcdtest runs a real etcd server inside a test process, on loopback
// and in a directory that the test framework removes.
package etcdtest

import (
	"context"
	"net/url"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Server is one single-member etcd.
type Server struct {
	// Endpoint is its client URL.
	Endpoint string
	etcd     *embed.Etcd
	cfg      *embed.Config
}

// startTimeout bounds how long a server may take to elect itself.
const startTimeout = 30 * time.Second

// Start runs a server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	any0 := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = any0, any0
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = any0, any0
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true // a test's store need not survive the machine
	s := &Server{cfg: cfg}
	s.start(t)
	t.Cleanup(s.stop)
	return s
}

func (s *Server) start(t testing.TB) {
	t.Helper()
	e, err := embed.StartEtcd(s.cfg)
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
	s.Endpoint = "http://" + e.Clients[0].Addr().String()
}

func (s *Server) stop() {
	if s.etcd != nil {
		s.etcd.Close()
		s.etcd = nil
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
