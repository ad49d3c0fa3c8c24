package lease

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/tenure-cni/tenure/conf"
)

// Handshake connects to one endpoint of etcd as Dial's client does, and says in
// words what is wrong with whose certificate. The client itself only waits until
// its time is over. Without https it finds out an etcd that wants it.
func Handshake(ctx context.Context, e conf.Etcd, endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil {
		return err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if u.Scheme != "https" {
		return wantsTLS(greeting(ctx, conn, plainTime))
	}
	cfg, err := transport.TLSInfo{TrustedCAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile}.ClientConfig()
	if err != nil {
		return fmt.Errorf("the files for TLS cannot be used: %w", err)
	}
	cfg.ServerName, cfg.NextProtos = u.Hostname(), []string{"h2"}
	secure := tls.Client(conn, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		return inWords(err)
	}
	err = greeting(ctx, secure, greetingTime)
	if errors.Is(err, io.EOF) {
		return errHungUp
	}
	return inWords(err)
}

// greetingTime bounds the wait for etcd's first words, plainTime that without
// TLS: an etcd that wants it hangs up at once, and one that is slow is to be
// asked something in the time that is left.
const (
	greetingTime = time.Second
	plainTime    = 250 * time.Millisecond
)

// hello is how HTTP/2 begins: the preface, and settings without any.
const hello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// greeting waits for the answer to hello, if there is one in that time. In TLS
// 1.3 a client learns by it, or by what comes in its place, whether its
// certificate was taken.
func greeting(ctx context.Context, conn net.Conn, most time.Duration) error {
	until := time.Now().Add(most)
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		until = d
	}
	if err := conn.SetDeadline(until); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(hello)); err != nil {
		return err
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// wantsTLS says what it means that a greeting without TLS is not answered. It is
// pure.
func wantsTLS(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("it hangs up at the first word, as an etcd does that wants TLS (https in --etcd-endpoints): %w", err)
}

// errHungUp is not for want of TLS, which is there by then.
var errHungUp = errors.New("what answers there takes the connection and ends it without a word: look at etcd's log, or at that of a balancer before it")

// inWords says what a failed handshake is about. It is pure.
func inWords(err error) error {
	var (
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
		name    x509.HostnameError
		record  tls.RecordHeaderError
		alert   tls.AlertError
		remote  *net.OpError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unknown):
		return fmt.Errorf("etcd's certificate is signed by an authority that is not in --etcd-cafile: %w", err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("etcd's certificate has expired or is not valid yet: %w", err)
	case errors.As(err, &invalid), errors.As(err, &name):
		return fmt.Errorf("etcd's certificate is not good for this endpoint: %w", err)
	case errors.As(err, &record), errors.Is(err, io.EOF):
		return fmt.Errorf("what answers there speaks no TLS: %w", err)
	case errors.As(err, &alert), errors.As(err, &remote) && remote.Op == "remote error":
		return fmt.Errorf("etcd does not take the certificate of --etcd-certfile, or wants one: %w", err)
	}
	return fmt.Errorf("TLS handshake: %w", err)
}
