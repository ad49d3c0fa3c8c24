package field

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestH4 is kubernetes #13375, #20475, #45790 and #25793, cni #476 and
// kube-router #189: a pod cannot reach itself through its service because its
// bridge port does not send back, and the way around that, a promiscuous
// bridge, hands every datagram over twice. Right is, with bridge-netfilter on
// and off: the pod reaches itself and sees the node's gateway, between two pods
// of a node there is one copy of each datagram each way, and the bridge is not
// promiscuous.
func TestH4(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	client, server := cluster.Pod(ctx, t, n, "client"), cluster.Pod(ctx, t, n, "server")
	cluster.Serve(ctx, t, server.NS, port)
	service := netip.MustParseAddr("10.96.0.1")
	for _, protocol := range []string{"tcp", "udp"} {
		cluster.Exec(ctx, t, n, "iptables", "-w", "-t", "nat", "-A", "PREROUTING", "-d", service.String(), "-p", protocol, "-j", "DNAT", "--to-destination", server.IP.String())
	}
	cluster.Exec(ctx, t, n, "iptables", "-w", "-t", "nat", "-A", "POSTROUTING", "-s", server.IP.String(), "-d", server.IP.String(), "-j", "MASQUERADE")
	gateway := server.IP.As4()
	gateway[3] = 1
	direct, throughService := countCopies(ctx, t, server.NS), netip.AddrPortFrom(service, copiesPort)
	for _, on := range []bool{false, true} {
		t.Run(fmt.Sprintf("bridge-netfilter %t", on), func(t *testing.T) {
			cluster.BridgeNetfilter(t, n, on)
			cluster.Seen(ctx, t, server.NS, service, port, netip.AddrFrom4(gateway))
			direct.once(ctx, t, client.NS, netip.AddrPortFrom(server.IP, copiesPort))
			direct.once(ctx, t, server.NS, throughService)
			if on { // else the answer goes past the rules, to a client that asked another
				direct.once(ctx, t, client.NS, throughService)
			}
			if promiscuous(ctx, t, n, cluster.Bridge) {
				t.Errorf("%s is promiscuous", cluster.Bridge)
			}
		})
	}
}

func promiscuous(ctx context.Context, t *testing.T, n *lab.Node, device string) bool {
	t.Helper()
	const promisc = 0x100 // IFF_PROMISC
	text := strings.TrimSpace(cluster.Exec(ctx, t, n, "cat", "/sys/class/net/"+device+"/flags"))
	flags, err := strconv.ParseUint(text, 0, 32)
	if err != nil {
		t.Fatal(err)
	}
	// What asked for it inside the kernel is in the count, not in the flags.
	return flags&promisc != 0 || !strings.Contains(cluster.Exec(ctx, t, n, "ip", "-d", "link", "show", "dev", device), " promiscuity 0 ")
}

const (
	copiesPort = 7017
	// datagrams is how many are sent at a time, lateTime how long a second copy
	// is waited for.
	datagrams = 50
	lateTime  = 300 * time.Millisecond
)

// copies counts datagrams at a server that answers each.
type copies struct {
	mu   sync.Mutex
	seen map[uint64]int
	next uint64
}

func countCopies(ctx context.Context, t *testing.T, at *lab.NS) *copies {
	t.Helper()
	var conn net.PacketConn
	err := at.Do(func() (err error) {
		var lc net.ListenConfig
		conn, err = lc.ListenPacket(ctx, "udp4", fmt.Sprintf(":%d", copiesPort))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &copies{seen: map[uint64]int{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 8)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			c.note(buf[:n])
			_, _ = conn.WriteTo(buf[:n], from)
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return c
}

func (c *copies) note(datagram []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[binary.BigEndian.Uint64(datagram)]++
}

// once sends datagrams and makes sure that each arrives once, and its answer.
func (c *copies) once(ctx context.Context, t *testing.T, from *lab.NS, to netip.AddrPort) {
	t.Helper()
	conn, err := from.Dial(ctx, "udp4", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	first := c.next
	c.next += datagrams
	answers := map[uint64]int{}
	buf := make([]byte, 8)
	for i := first; i < c.next; i++ {
		if _, err := conn.Write(binary.BigEndian.AppendUint64(nil, i)); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(buf); err != nil {
			t.Fatalf("%s to %s: datagram %d: %v", from.Name(), to, i-first, err)
		}
		answers[binary.BigEndian.Uint64(buf)]++
	}
	if err := conn.SetReadDeadline(time.Now().Add(lateTime)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(buf); err == nil {
		answers[binary.BigEndian.Uint64(buf)]++
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := first; i < c.next; i++ {
		if c.seen[i] != 1 || answers[i] != 1 {
			t.Errorf("%s to %s: datagram %d arrived %d times, its answer %d times", from.Name(), to, i-first, c.seen[i], answers[i])
		}
	}
}
