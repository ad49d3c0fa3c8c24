package field

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

const (
	// burstPods times burstEach connections are made at once. They share
	// burstEach source ports, from burstPorts on, so each port is wanted by all.
	burstPods, burstEach, burstPorts = 10, 200, 20000
	// connectTime bounds one connection. A packet that was lost is sent again;
	// whether the kernel dropped it for its ports is told by its own count.
	connectTime = 10 * time.Second
)

// TestL11 is flannel #1004 and #1040, kubernetes #56903 and #62628: connections
// that are masqueraded at the same moment get the same source port, the kernel
// drops all but one, and pods see time-outs of 1 to 5 s now and then. Right is:
// of 2000 connections at once, through masquerade, from pods that use the same
// source ports, each comes about, and the kernel counts no failed insertion;
// the ports are fully random unless the option says otherwise.
func TestL11(t *testing.T) {
	ctx := cluster.Context(t, time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1")
	n := c.Nodes[0]
	var pods []*lab.Pod
	for i := range burstPods {
		pods = append(pods, cluster.Pod(ctx, t, n, fmt.Sprintf("p%d", i)))
	}
	cluster.Serve(ctx, t, c.Outside, port)
	if masq := cluster.Exec(ctx, t, n, "iptables", "-w", "-t", "nat", "-S", "TENURE-MASQ"); !strings.Contains(masq, "-j MASQUERADE --random-fully") {
		t.Errorf("ports are not fully random by default:\n%s", masq)
	}
	before := insertFailed(t, n)
	for range 3 {
		burst(t, pods, netip.AddrPortFrom(c.OutsideAddr(), port))
	}
	if failed := insertFailed(t, n) - before; failed != 0 {
		t.Errorf("%d insertions into the connection table failed", failed)
	}

	if err := n.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(ctx, "--masq-random-fully=false"); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(ctx, t, repairTime, "the option is obeyed", func() error {
		masq := cluster.Exec(ctx, t, n, "iptables", "-w", "-t", "nat", "-S", "TENURE-MASQ")
		if !strings.Contains(masq, "-j MASQUERADE") || strings.Contains(masq, "random") {
			return fmt.Errorf("there are\n%s", masq)
		}
		return nil
	})
	before = insertFailed(t, n)
	burst(t, pods, netip.AddrPortFrom(c.OutsideAddr(), port))
	t.Logf("%d failed insertions without it", insertFailed(t, n)-before)
}

// burst connects from all pods at once, and wants every connection.
func burst(t *testing.T, pods []*lab.Pod, to netip.AddrPort) {
	t.Helper()
	var g sync.WaitGroup
	errs := make([]error, len(pods))
	began := time.Now()
	for i, pod := range pods {
		g.Go(func() { errs[i] = pod.Do(func() error { return connectAll(to) }) })
	}
	g.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("%s: %v", pods[i].Name(), err)
		}
	}
	t.Logf("%d connections took %s", burstPods*burstEach, time.Since(began))
}

// connectAll begins all connections before it waits for the first.
func connectAll(to netip.AddrPort) error {
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for i := range burstEach {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		fds = append(fds, fd)
		// Reset at its end, so that the port is free for the next time.
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: burstPorts + i}); err != nil {
			return fmt.Errorf("bind port %d: %w", burstPorts+i, err)
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); !errors.Is(err, unix.EINPROGRESS) {
			return fmt.Errorf("connect: %w", err)
		}
	}
	deadline := time.Now().Add(connectTime)
	for i, fd := range fds {
		if err := connected(fd, deadline); err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
	}
	return nil
}

// connected waits until a connection has come about or failed.
func connected(fd int, deadline time.Time) error {
	wait := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for {
		n, err := unix.Poll(wait, int(max(0, time.Until(deadline).Milliseconds())))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return unix.ETIMEDOUT
		}
		break
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	return err
}

// insertFailed is how many connections the kernel could not enter into its
// table in the node's namespace, because another one had the same addresses and
// ports.
func insertFailed(t *testing.T, n *lab.Node) (failed uint64) {
	t.Helper()
	var table []byte
	err := n.Do(func() (err error) {
		table, err = os.ReadFile("/proc/thread-self/net/stat/nf_conntrack")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(table)), "\n")
	for i, name := range strings.Fields(lines[0]) {
		if name != "insert_failed" {
			continue
		}
		for _, cpu := range lines[1:] {
			count, err := strconv.ParseUint(strings.Fields(cpu)[i], 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			failed += count
		}
		return failed
	}
	t.Fatalf("no insert_failed in %q", lines[0])
	return 0
}
