package etcdtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/tenure-cni/tenure/test/lab/proxy"
	"github.com/tenure-cni/tenure/test/packaged"
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
}

// Replace gives the server a certificate of a new authority and returns the
// authority's file. Connections that stand go on.
func (s *Secure) Replace(t testing.TB) (ca string) {
	t.Helper()
	a := newAuthority(t, filepath.Join(s.dir, "ca2"))
	a.issue(t, s.server, "server")
	return a.file
}

// StartSecure runs such a server until the test ends.
func StartSecure(t testing.TB) *Secure {
	t.Helper()
	dir := t.TempDir()
	ca := newAuthority(t, filepath.Join(dir, "ca"))
	server := ca.issue(t, filepath.Join(dir, "server"), "server")
	client := ca.issue(t, filepath.Join(dir, "client"), "client")

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
	cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = server+".crt", server+".key"
	cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.ClientCertAuth = ca.file, true
	secure := &Secure{CA: ca.file, Cert: client + ".crt", Key: client + ".key", server: server, dir: dir}
	if program := packaged.Program(); program != "" {
		other := newExternal(program)
		t.Cleanup(other.stop)
		other.start(t, cfg)
		front, err := proxy.New(other.host()) // at the address of the certificate
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = front.Close() })
		secure.Endpoint = "https://" + front.Addr()
		return secure
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
	secure.Endpoint = "https://" + e.Clients[0].Addr().String()
	return secure
}

// authority signs the certificates of one test.
type authority struct {
	file string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	a := &authority{file: name + ".crt", key: newKey(t), cert: template("authority")}
	a.cert.IsCA, a.cert.BasicConstraintsValid, a.cert.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

// issue writes name.crt and name.key, good for both sides of a connection.
func (a *authority) issue(t testing.TB, name, subject string) string {
	t.Helper()
	key, c := newKey(t), template(subject)
	c.IPAddresses, c.KeyUsage = []net.IP{net.IPv4(127, 0, 0, 1)}, x509.KeyUsageDigitalSignature
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, name+".crt", "CERTIFICATE", der)
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, name+".key", "EC PRIVATE KEY", private)
	return name
}

func template(subject string) *x509.Certificate {
	return &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: subject},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t testing.TB, name, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
