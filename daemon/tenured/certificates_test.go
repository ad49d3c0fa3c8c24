package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

const day = 24 * time.Hour

// certificate is one in PEM that is good from begins to ends.
func certificate(t *testing.T, begins, ends time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: begins, NotAfter: ends}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestCertificateNearItsEnd(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		life     life
		severity string
		text     string
	}{
		"unknown":                  {life{}, "", ""},
		"a year, long to go":       {life{now.Add(-100 * day), now.Add(265 * day)}, "", ""},
		"a year, a month to go":    {life{now.Add(-336 * day), now.Add(29 * day)}, api.SeverityWarning, "in 28 days"},
		"a day, three hours to go": {life{now.Add(-21 * time.Hour), now.Add(3 * time.Hour)}, "", ""},
		"a day, two hours to go":   {life{now.Add(-22 * time.Hour), now.Add(2 * time.Hour)}, api.SeverityWarning, "in 2h0m"},
		"ended":                    {life{now.Add(-day), now.Add(-time.Second)}, api.SeverityError, "ended on"},
	} {
		severity, text := c.life.judge(now.Add(time.Second / 2))
		if severity != c.severity || !strings.Contains(text, c.text) || (text == "") != (severity == "") {
			t.Errorf("%s: %q %q, want %q %q", name, severity, text, c.severity, c.text)
		}
	}
}

// TestCertificateFiles: the one that is shown counts, the best of several
// authorities does, a file is read again when it is another, and one that is
// half written changes nothing.
func TestCertificateFiles(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	dir := t.TempDir()
	ca, own := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "own.pem")
	put := func(name string, b ...[]byte) {
		t.Helper()
		if err := os.WriteFile(name+".new", slices.Concat(b...), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
	old, good := certificate(t, now.Add(-300*day), now.Add(-day)), certificate(t, now.Add(-day), now.Add(400*day))
	put(ca, old, good)
	put(own, old, good)
	c := newCertificates(conf.Etcd{CAFile: ca, CertFile: own})
	ends := c.ends()
	if !ends["etcd-cafile"].Equal(now.Add(400*day)) || !ends["etcd-certfile"].Equal(now.Add(-day)) {
		t.Errorf("ends %v", ends)
	}
	all := c.problems(now)
	if len(all) != 1 || all[0].Code != "certificate-expires" || all[0].Severity != api.SeverityError || !strings.Contains(all[0].Text, own) {
		t.Errorf("problems %+v, want that %s ended", all, own)
	}
	if !strings.Contains(all[0].Fix, "a restart is not needed") {
		t.Errorf("the fix of an own certificate is %q", all[0].Fix)
	}
	put(ca, old)
	if all := c.problems(now); len(all) != 2 || !strings.Contains(all[0].Fix, "add the new authority") {
		t.Errorf("problems %+v, want the authority's too, which needs a restart", all)
	}
	put(ca, old, good)
	put(own, good[:len(good)/2])
	if again := c.problems(now); len(again) != 1 {
		t.Errorf("half a file: problems %+v, want the one before", again)
	}
	put(own, good)
	if again := c.problems(now); len(again) != 0 {
		t.Errorf("after the renewal: %+v", again)
	}
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}
	if ends := c.ends(); !ends["etcd-certfile"].Equal(now.Add(400 * day)) {
		t.Errorf("a file that is missing for a moment: %v", ends)
	}
	if got := newCertificates(conf.Etcd{}).problems(now); len(got) != 0 {
		t.Errorf("without files: %+v", got)
	}
}
