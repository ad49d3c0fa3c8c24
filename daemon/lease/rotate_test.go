package lease

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/test/etcdtest"
)

// TestO7 is flannel #829: certificates that were renewed on disk were not picked
// up, and after a year the lease was lost. Right is: the next connection uses
// what the files say by then, the authorities too, and a file that is half
// written keeps nobody from connecting.
func TestO7(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an etcd")
	}
	s := etcdtest.StartSecure(t)
	conns := &dialled{}
	c, err := Dial(conf.Etcd{Endpoints: []string{s.Endpoint}, CAFile: s.CA, CertFile: s.Cert, KeyFile: s.Key}, grpc.WithContextDialer(conns.dial))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ask := func(what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := c.Get(ctx, "x"); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	ask("at first")
	b, err := os.ReadFile(s.Replace(t))
	if err != nil {
		t.Fatal(err)
	}
	ask("on the connection that stands")
	if err := os.WriteFile(s.CA, b, 0o600); err != nil {
		t.Fatal(err)
	}
	conns.closeAll()
	ask("with the new authority")
	if err := os.WriteFile(s.CA, b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	conns.closeAll()
	ask("with half an authority")
	if conns.count() < 3 {
		t.Errorf("%d connections were made", conns.count())
	}
}

// dialled keeps connections to close them.
type dialled struct {
	mu   sync.Mutex
	open []net.Conn
}

func (d *dialled) dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.open = append(d.open, c)
	}
	return c, err
}

func (d *dialled) closeAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.open {
		_ = c.Close()
	}
}

func (d *dialled) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open)
}
