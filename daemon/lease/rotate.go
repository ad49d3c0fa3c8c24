package lease

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"google.golang.org/grpc/credentials"
)

// rotating is TLS to etcd whose files are read again for each connection: a new
// certificate or authority is in use from the next one on, and files that are
// only half written do no harm.
type rotating struct {
	credentials.TransportCredentials // what the files said at first, for all but the handshake
	info                             transport.TLSInfo

	mu   sync.Mutex
	good *tls.Config // what could be read last
}

// newRotating reads the files once; an error says which one is bad.
func newRotating(info transport.TLSInfo) (*rotating, error) {
	cfg, err := info.ClientConfig()
	if err != nil {
		return nil, err
	}
	return &rotating{TransportCredentials: credentials.NewTLS(cfg), info: info, good: cfg}, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (r *rotating) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(r.config()).ClientHandshake(ctx, authority, conn)
}

func (r *rotating) config() *tls.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	cfg, err := r.info.ClientConfig()
	// Half an authority's file is read as one without any.
	if err == nil && !cfg.RootCAs.Equal(x509.NewCertPool()) {
		r.good = cfg
	}
	return r.good
}

// ServerHandshake implements credentials.TransportCredentials; there is no
// server here.
func (r *rotating) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("a client's credentials")
}

// Clone implements credentials.TransportCredentials.
func (r *rotating) Clone() credentials.TransportCredentials { return r }
