package lease

import (
	"fmt"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/tenure-cni/tenure/conf"
)

// Timeouts of the connection to etcd. Every call has one of its own.
const (
	dialTimeout      = 5 * time.Second
	keepaliveEvery   = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	// reconnectMax is the longest pause between two attempts to connect. gRPC's
	// own grows to two minutes, which a fenced node would wait after etcd is
	// back.
	reconnectMax = 2 * time.Second
	// readAgain is the client's pause before it repeats a read that etcd, or
	// what stands before it, refused as unavailable. Its own is a tenth of that:
	// every waiting node would ask an ailing etcd some seventy times a second.
	readAgain = 250 * time.Millisecond
)

// Dial makes an etcd client, which the caller closes. Connections are made, and
// passwords are read, as they are needed: only bad certificates make it fail.
// opts come on top of what Dial sets.
func Dial(e conf.Etcd, opts ...grpc.DialOption) (*clientv3.Client, error) {
	dial := append(led(), reconnect())
	if e.CAFile != "" || e.CertFile != "" {
		secure, err := newRotating(transport.TLSInfo{TrustedCAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile})
		if err != nil {
			return nil, fmt.Errorf("etcd certificates: %w", err)
		}
		dial = append(dial, grpc.WithTransportCredentials(secure))
	}
	user := newLogin(e)
	if e.Username != "" {
		dial = append(dial, user.options()...)
	}
	cfg := clientv3.Config{
		Endpoints: e.Endpoints, DialTimeout: dialTimeout,
		// Pings are for the watch's connection. On one without a stream etcd
		// answers them with GOAWAY; a member that hangs there costs a call its
		// timeout, and a cycle a quarter of one.
		DialKeepAliveTime: keepaliveEvery, DialKeepAliveTimeout: keepaliveTimeout,
		BackoffWaitBetween: readAgain,
		DialOptions:        append(dial, opts...),
		Logger:             zap.NewNop(), // its warnings repeat without bound; ours do not
	}
	c, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("etcd client for %v: %w", e.Endpoints, err)
	}
	user.conn = c.ActiveConnection()
	return c, nil
}

func reconnect() grpc.DialOption {
	b := backoff.DefaultConfig
	b.BaseDelay, b.MaxDelay = 100*time.Millisecond, reconnectMax
	return grpc.WithConnectParams(grpc.ConnectParams{Backoff: b, MinConnectTimeout: dialTimeout})
}
