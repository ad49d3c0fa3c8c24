package main

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// certificates knows how long those are good that etcd is shown, and by which
// it is judged. A file is read again when it has changed.
type certificates struct {
	files []*certificateFile
}

// certificateFile is one of them, as read last.
type certificateFile struct {
	flag, path string
	// anyDo says that one good certificate in the file is enough, as among
	// authorities; else the first is the one that is shown.
	anyDo bool

	mu   sync.Mutex
	file fs.FileInfo // as it was when it was read
	life life
}

// life is from when to when a certificate is good; the zero value is not known.
type life struct{ begins, ends time.Time }

func newCertificates(e conf.Etcd) *certificates {
	c := &certificates{}
	for _, f := range []*certificateFile{
		{flag: "etcd-cafile", path: e.CAFile, anyDo: true},
		{flag: "etcd-certfile", path: e.CertFile},
	} {
		if f.path != "" {
			c.files = append(c.files, f)
		}
	}
	return c
}

// ends is when each ends, by its flag. What cannot be read keeps what it was:
// a file that is being replaced may be half there for a moment.
func (c *certificates) ends() map[string]time.Time {
	all := map[string]time.Time{}
	for _, f := range c.files {
		if l := f.read(); !l.ends.IsZero() {
			all[f.flag] = l.ends
		}
	}
	return all
}

// problems names those that end soon, or have ended.
func (c *certificates) problems(now time.Time) []api.Problem {
	var all []api.Problem
	for _, f := range c.files {
		if severity, text := f.read().judge(now); text != "" {
			all = append(all, api.Problem{Code: "certificate-expires", Severity: severity,
				Text: fmt.Sprintf("the certificate in %s (--%s) %s", f.path, f.flag, text),
				Fix:  f.fix()})
		}
	}
	return all
}

// fix is how it is replaced: files are read for each connection.
func (f *certificateFile) fix() string {
	if f.anyDo {
		return "add the new authority to the file; the next connection to etcd uses it, a restart is not needed"
	}
	return "put a new one in the file's place, and its key; the next connection to etcd uses it, a restart is not needed"
}

func (f *certificateFile) read() life {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := os.Stat(f.path)
	if err != nil || f.file != nil && os.SameFile(now, f.file) && now.ModTime().Equal(f.file.ModTime()) && now.Size() == f.file.Size() {
		return f.life
	}
	b, err := os.ReadFile(f.path)
	if err != nil {
		return f.life
	}
	l, err := lifeOf(b, f.anyDo)
	if err != nil {
		return f.life
	}
	f.file, f.life = now, l
	return l
}

// lifeOf is that of the certificate in a PEM file that counts: the first, or
// with anyDo the one that is good for longest.
func lifeOf(b []byte, anyDo bool) (life, error) {
	var all []life
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return life{}, fmt.Errorf("certificate: %w", err)
		}
		all = append(all, life{c.NotBefore, c.NotAfter})
	}
	if len(all) == 0 {
		return life{}, errors.New("no certificate in the file")
	}
	if !anyDo {
		return all[0], nil
	}
	return slices.MaxFunc(all, func(a, b life) int { return a.ends.Compare(b.ends) }), nil
}

// soon is from when on an end is near. Of a life shorter than ten times that,
// the last tenth is: certificates that live for a day are renewed by a machine.
const soon = 30 * 24 * time.Hour

// judge says in words what is wrong; "" is nothing.
func (l life) judge(now time.Time) (severity, text string) {
	left, near := l.ends.Sub(now), min(soon, l.ends.Sub(l.begins)/10)
	switch end := l.ends.UTC().Format(time.RFC3339); {
	case l.ends.IsZero():
		return "", ""
	case left <= 0:
		return api.SeverityError, "ended on " + end + ": etcd is not reached with it"
	case left < near:
		return api.SeverityWarning, "ends on " + end + ", in " + days(left)
	}
	return "", ""
}

// days is a length for people: in days while there are several.
func days(d time.Duration) string {
	if d >= 48*time.Hour {
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}
