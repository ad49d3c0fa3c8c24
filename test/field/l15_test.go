package field

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestL15 is plugins #123, kubernetes #66651 and #58336, calico #4152 and
// amazon-vpc-cni #3634: connection tracking remembers where it sent a flow to,
// and goes on to send it there when the pod is gone and its address another
// pod's. Right is: a stream of datagrams and an unanswered connection through
// a published port of the first pod reach nothing of the second one, to which
// the address was given at once; the kernel knows no connection of the address
// any more soon after DEL.
func TestL15(t *testing.T) {
	const published = 8053
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	opts := lab.PodOptions{PortMappings: []lab.PortMapping{
		{HostPort: published, ContainerPort: port, Protocol: "udp"},
		{HostPort: published, ContainerPort: port, Protocol: "tcp"},
	}}
	a := cluster.Pod(ctx, t, n, "a", opts)
	cluster.Exec(ctx, t, a, "iptables", "-A", "INPUT", "-p", "tcp", "-j", "DROP")
	toA := listen(ctx, t, a.NS)
	to := netip.AddrPortFrom(n.Addr, published).String()
	stream(ctx, t, c.Outside, to)
	call(ctx, t, c.Outside, to)
	cluster.Eventually(ctx, t, 10*time.Second, "both flows are known and the datagrams arrive", func() error {
		known := connections(t, n, a.IP)
		if toA.datagrams.Load() < 10 || !strings.Contains(known, "udp") || !strings.Contains(known, "SYN_SENT") {
			return fmt.Errorf("%d datagrams, connections:\n%s", toA.datagrams.Load(), known)
		}
		return nil
	})
	if err := a.Del(ctx); err != nil {
		t.Fatal(err)
	}
	b := cluster.Pod(ctx, t, n, "b", lab.PodOptions{IPs: []string{a.IP.String() + "/24"}})
	if b.IP != a.IP {
		t.Fatalf("b has %s, want %s", b.IP, a.IP)
	}
	toB := listen(ctx, t, b.NS)
	// The caller repeats after 1 and 3 s.
	cluster.Stays(ctx, t, 3500*time.Millisecond, "nothing of a's reaches b", func() error {
		if d, s := toB.datagrams.Load(), toB.connections.Load(); d+s > 0 {
			return fmt.Errorf("%d datagrams, %d connections", d, s)
		}
		return nil
	})
	if known := connections(t, n, a.IP); known != "" {
		t.Errorf("of %s is still known:\n%s", a.IP, known)
	}
	cluster.Seen(ctx, t, n.NS, b.IP, port, inside(cluster.Status(ctx, t, n).Subnet, 1)) // it does listen

	// And without a next one, by the DEL alone.
	if err := b.Del(ctx); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(ctx, t, 2*time.Second, "the kernel has forgotten b", func() error {
		if known := connections(t, n, a.IP); known != "" {
			return errors.New(known)
		}
		return nil
	})
}

// heard is what has come to a pod's port.
type heard struct{ datagrams, connections atomic.Int64 }

// listen counts what comes in until the test ends.
func listen(ctx context.Context, t *testing.T, at *lab.NS) *heard {
	t.Helper()
	h := &heard{}
	var datagrams net.PacketConn
	err := at.Do(func() (err error) {
		var lc net.ListenConfig
		datagrams, err = lc.ListenPacket(ctx, "udp4", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := at.Listen(ctx, "tcp4", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(errors.Join(err, datagrams.Close()))
	}
	background(t, func() { _, _ = datagrams.Close(), ln.Close() }, func() {
		buf := make([]byte, 64)
		for {
			if _, _, err := datagrams.ReadFrom(buf); err != nil {
				return
			}
			h.datagrams.Add(1)
		}
	}, func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			h.connections.Add(1)
			host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
			_, _ = conn.Write([]byte(host))
			_ = conn.Close()
		}
	})
	return h
}

// stream sends datagrams from one port until the test ends.
func stream(ctx context.Context, t *testing.T, from *lab.NS, to string) {
	t.Helper()
	conn, err := from.Dial(ctx, "udp4", to)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	background(t, func() { close(stop); _ = conn.Close() }, func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				_, _ = conn.Write([]byte("x"))
			}
		}
	})
}

// call tries to connect until the test ends.
func call(ctx context.Context, t *testing.T, from *lab.NS, to string) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	background(t, cancel, func() {
		if conn, err := from.Dial(ctx, "tcp4", to); err == nil {
			_ = conn.Close()
		}
	})
}

// background runs functions that end after stop, which the end of the test calls.
func background(t *testing.T, stop func(), work ...func()) {
	t.Helper()
	done := make(chan struct{}, len(work))
	for _, f := range work {
		go func() { f(); done <- struct{}{} }()
	}
	t.Cleanup(func() {
		stop()
		for range work {
			<-done
		}
	})
}

// connections are the lines of the node's connection tracking with an address.
func connections(t *testing.T, n *lab.Node, addr netip.Addr) string {
	t.Helper()
	var table []byte
	if err := n.Do(func() (err error) {
		table, err = os.ReadFile("/proc/thread-self/net/nf_conntrack")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var theirs strings.Builder
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, "="+addr.String()+" ") {
			theirs.WriteString(line)
		}
	}
	return theirs.String()
}
