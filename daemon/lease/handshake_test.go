package lease

import (
	"context"
	"crypto/tls"
	"io"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/test/etcdtest"
	"github.com/tenure-cni/tenure/test/pki"
)

// TestHandshake: what is wrong with a certificate is said in words, and whose it
// is.
func TestHandshake(t *testing.T) {
	t.Parallel()
	s := etcdtest.StartSecure(t)
	plain := etcdtest.Start(t)
	good := conf.Etcd{Endpoints: []string{s.Endpoint}, CAFile: s.CA, CertFile: s.Cert, KeyFile: s.Key}
	dir := t.TempDir()
	other := pki.New(t, filepath.Join(dir, "other.crt"))
	other.Issue(t, filepath.Join(dir, "stranger"), pki.Certificate{Subject: "client"})
	says := func(e conf.Etcd, endpoint, want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := Handshake(ctx, e, endpoint)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q, want %q", err, want)
		}
	}
	with := func(change func(*conf.Etcd)) conf.Etcd { e := good; change(&e); return e }

	says(good, s.Endpoint, "")
	says(conf.Etcd{}, plain.Endpoint, "")
	says(good, "https://"+strings.TrimPrefix(plain.Endpoint, "http://"), "speaks no TLS")
	says(conf.Etcd{}, "http://"+strings.TrimPrefix(s.Endpoint, "https://"), "wants TLS")
	says(good, "https://127.0.0.1:1", "connection refused")
	says(with(func(e *conf.Etcd) { e.CAFile = other.File }), s.Endpoint, "an authority that is not in --etcd-cafile")
	says(with(func(e *conf.Etcd) { e.CertFile, e.KeyFile = "", "" }), s.Endpoint, "does not take the certificate of --etcd-certfile, or wants one")
	stranger := filepath.Join(dir, "stranger")
	says(with(func(e *conf.Etcd) { e.CertFile, e.KeyFile = stranger+".crt", stranger+".key" }), s.Endpoint, "does not take the certificate")
	says(good, strings.Replace(s.Endpoint, "127.0.0.1", "localhost", 1), "not good for this endpoint")
	s.Show(t, true)
	says(good, s.Endpoint, "has expired")

	other.Issue(t, filepath.Join(dir, "balancer"), pki.Certificate{Subject: "balancer", Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	says(conf.Etcd{CAFile: other.File}, hangsUp(t, filepath.Join(dir, "balancer")), "ends it without a word")
}

// hangsUp ends every connection after the handshake, as a balancer does that has
// no etcd behind it.
func hangsUp(t *testing.T, certificate string) (endpoint string) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certificate+".crt", certificate+".key")
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = io.ReadFull(conn, make([]byte, len(hello)))
			_ = conn.Close()
		}
	}()
	return "https://" + l.Addr().String()
}

// TestAuthorityAlone: TLS by the authority alone, without certificates of
// clients, is enough for a node.
func TestAuthorityAlone(t *testing.T) {
	t.Parallel()
	s := etcdtest.StartSecure(t, func(c *embed.Config) {
		c.ClientTLSInfo.TrustedCAFile, c.ClientTLSInfo.ClientCertAuth = "", false
	})
	h := newHost(t, "n1", s.Endpoint)
	h.via, h.birth = conf.Etcd{Endpoints: []string{s.Endpoint}, Prefix: prefix, CAFile: s.CA}, []byte(fourSubnets)
	h.start().waitHeld()
}
