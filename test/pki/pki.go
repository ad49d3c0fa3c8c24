package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	// File is its own certificate.
	File string

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Certificate is what one says.
type Certificate struct {
	// Subject is the common name.
	Subject string
	// Addrs are those at which a server may show it.
	Addrs []netip.Addr
	// Ended says that it was good until an hour ago.
	Ended bool
}

// New makes an authority and writes its certificate.
func New(t testing.TB, file string) *Authority {
	t.Helper()
	a := &Authority{File: file, key: newKey(t), cert: template("authority of " + file)}
	a.cert.IsCA, a.cert.BasicConstraintsValid, a.cert.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.File, "CERTIFICATE", der)
	return a
}

// Issue writes name.crt and name.key, good for both sides of a connection.
func (a *Authority) Issue(t testing.TB, name string, what Certificate) {
	t.Helper()
	key, c := newKey(t), template(what.Subject)
	for _, addr := range what.Addrs {
		c.IPAddresses = append(c.IPAddresses, net.IP(addr.AsSlice()))
	}
	if what.Ended {
		c.NotAfter = time.Now().Add(-time.Hour)
	}
	c.KeyUsage, c.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, name+".crt", "CERTIFICATE", der)
	writePEM(t, name+".key", "EC PRIVATE KEY", private)
}

func template(subject string) *x509.Certificate {
	return &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: subject},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
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
