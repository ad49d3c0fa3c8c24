package etcdproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/tenure-cni/tenure/test/lab/proxy"
)

const (
	// pingsEvery is how often etcd lets its clients ping; here they may not
	// more often, or a proxy would hide what etcd does not bear.
	pingsEvery = 5 * time.Second
	// redialMax bounds the pause between attempts to reach an etcd that is away.
	redialMax = 500 * time.Millisecond
	// largest is a message's size: what etcd accepts, and then some.
	largest = 16 << 20
)

// Host is where a proxy may be put: a namespace of the lab is one.
type Host interface {
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// Proxy forwards an etcd client's calls to one etcd endpoint. Its methods may
// be called from any goroutine.
type Proxy struct {
	front  *proxy.Proxy // what clients connect to
	server *grpc.Server // what terminates their calls
	etcd   *grpc.ClientConn

	life context.Context // ends with Close
	end  context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex
	rules  []*Rule
	counts map[string]int
}

// Start puts a proxy on loopback before the endpoint, until the test ends.
func Start(t testing.TB, endpoint string) *Proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for proxy to %s: %v", endpoint, err)
	}
	return start(t, ln, endpoint, new(net.Dialer).DialContext)
}

// StartIn puts a proxy on a host of the lab, until the test ends: it listens
// at address there and reaches the endpoint from there. Both are literal.
func StartIn(ctx context.Context, t testing.TB, host Host, address, endpoint string) *Proxy {
	t.Helper()
	ln, err := host.Listen(ctx, "tcp", address)
	if err != nil {
		t.Fatalf("listen for proxy to %s: %v", endpoint, err)
	}
	return start(t, ln, endpoint, host.Dial)
}

type dial func(ctx context.Context, network, address string) (net.Conn, error)

func start(t testing.TB, ln net.Listener, endpoint string, d dial) *Proxy {
	t.Helper()
	p, err := serve(ln, endpoint, d)
	if err != nil {
		_ = ln.Close()
		t.Fatalf("start proxy to %s: %v", endpoint, err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func serve(ln net.Listener, endpoint string, d dial) (*Proxy, error) {
	etcd, err := connect(endpoint, d)
	if err != nil {
		return nil, err
	}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %w", err), etcd.Close())
	}
	p := &Proxy{etcd: etcd, counts: map[string]int{}}
	p.life, p.end = context.WithCancel(context.Background())
	p.server = grpc.NewServer(
		grpc.ForceServerCodecV2(raw{}),
		grpc.UnknownServiceHandler(p.handle),
		grpc.MaxRecvMsgSize(largest),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsEvery}),
	)
	p.work.Go(func() { _ = p.server.Serve(inner) }) // it ends with Stop
	p.front = proxy.On(ln, inner.Addr().String())
	return p, nil
}

// connect makes the one connection to etcd; it is dialled when needed.
func connect(endpoint string, d dial) (*grpc.ClientConn, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" || u.Port() == "" {
		return nil, fmt.Errorf("endpoint %q is not http://host:port (%w)", endpoint, err)
	}
	b := backoff.DefaultConfig
	b.BaseDelay, b.MaxDelay = redialMax/10, redialMax
	return grpc.NewClient("passthrough:///"+u.Host,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return d(ctx, "tcp", address) }),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: b, MinConnectTimeout: time.Second}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
	)
}

// URL is the proxy's endpoint, for clients that run where it listens.
func (p *Proxy) URL() string { return "http://" + p.front.Addr() }

// Cut resets every connection and each new one at once. What is held back on
// behalf of a client stays so.
func (p *Proxy) Cut() { p.front.Cut() }

// Stall lets connections stand and be made, but carries no byte. What is sent
// meanwhile arrives after Restore.
func (p *Proxy) Stall() { p.front.Stall() }

// Restore ends Cut and Stall; rules stay as they are.
func (p *Proxy) Restore() { p.front.Restore() }

// Count is how many requests of a method have come, by its full name. Each
// message of a stream is one: a keep-alive, a watch that is created.
func (p *Proxy) Count(method string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[method]
}

// Counts are all requests that have come, by the methods' full names.
func (p *Proxy) Counts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// Close ends all connections and calls and waits until they are gone. Start
// does it at the test's end.
func (p *Proxy) Close() error {
	p.end()
	err := p.front.Close()
	p.server.Stop()
	// Canceled says that it was closed before.
	if closed := p.etcd.Close(); closed != nil && status.Code(closed) != codes.Canceled {
		err = errors.Join(err, fmt.Errorf("close connection to etcd: %w", closed))
	}
	p.work.Wait()
	return err
}
