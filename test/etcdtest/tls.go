package etcdtest

import (
	"net/netip"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/tenure-cni/tenure/test/lab/proxy"
	"github.com/tenure-cni/tenure/test/packaged"
	"github.com/tenure-cni/tenure/test/pki"
)

// Secure is a server that talks TLS only, and only to whoever shows a
// certificate of its authority.
type Secure struct {
	// Endpoint is its client URL.
	Endpoint string
	// CA is its authority, Cert and Key are a client's of the common name
	// "client"; PEM files.
	CA, Cert, Key string

	server string // its certificate and key, without extension; read for each connection
	dir    string
	signs  *pki.Authority
}

// Replace gives the server a certificate of a new authority and returns the
// authority's file. Connections that stand go on.
func (s *Secure) Replace(t testing.TB) (ca string) {
	t.Helper()
	s.signs = pki.New(t, filepath.Join(s.dir, "ca2.crt"))
	s.Show(t, false)
	return s.signs.File
}

// Show gives the server a new certificate of its authority, if so one that has
// ended. Connections that stand go on.
func (s *Secure) Show(t testing.TB, ended bool) {
	t.Helper()
	s.signs.Issue(t, s.server, pki.Certificate{Subject: "server", Addrs: []netip.Addr{loopback()}, Ended: ended})
}

func loopback() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

// StartSecure runs such a server until the test ends. Each change may alter its
// configuration before it starts.
func StartSecure(t testing.TB, changes ...func(*embed.Config)) *Secure {
	t.Helper()
	dir := t.TempDir()
	s := &Secure{server: filepath.Join(dir, "server"), dir: dir, signs: pki.New(t, filepath.Join(dir, "ca.crt"))}
	client := filepath.Join(dir, "client")
	s.Show(t, false)
	s.signs.Issue(t, client, pki.Certificate{Subject: "client"})
	s.CA, s.Cert, s.Key = s.signs.File, client+".crt", client+".key"

	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	any0 := []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = any0, any0
	peer0 := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peer0, peer0
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true
	cfg.BcryptCost = 4 // the least; the race detector makes it slow enough
	cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = s.server+".crt", s.server+".key"
	cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.ClientCertAuth = s.CA, true
	for _, change := range changes {
		change(cfg)
	}
	if program := packaged.Program(); program != "" {
		other := newExternal(program)
		t.Cleanup(other.stop)
		other.start(t, cfg)
		front, err := proxy.New(other.host()) // at the address of the certificate
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = front.Close() })
		s.Endpoint = "https://" + front.Addr()
		return s
	}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatalf("start embedded etcd with TLS: %v", err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(startTimeout):
		t.Fatalf("embedded etcd is not ready after %s", startTimeout)
	}
	s.Endpoint = "https://" + e.Clients[0].Addr().String()
	return s
}
