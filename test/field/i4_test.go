package field

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// TestI4 is flannel #869 and #1348: the tunnel device is deleted, or goes with
// the network card under it, and is never made again. Right is: it is rebuilt
// within 10 s of when that is possible, with the same MAC, address and MTU and
// with all peers, fenced as before, and packets go through it; meanwhile the
// status is not that of a node where all is well.
func TestI4(t *testing.T) {
	ctx := cluster.Context(t, 90*time.Second)
	c := cluster.Born(ctx, t, cluster.Network, "n1", "n2")
	n1, n2, store := c.Nodes[0], c.Nodes[1], c.Store(t)
	store.Reserve(ctx, own, "n1")
	fakes := publish(ctx, store, 3)
	cluster.Start(ctx, t, n1, n2)
	cluster.WaitPeers(ctx, t, n1, n2)
	p1, p2 := cluster.Pod(ctx, t, n1, "p"), cluster.Pod(ctx, t, n2, "p")
	if err := lab.WaitPing(ctx, p1, p2.IP); err != nil {
		t.Fatal(err)
	}
	was := look(ctx, t, n1)
	if len(was.peers.Routes) != len(fakes)+1 {
		t.Fatalf("peers in the kernel: %+v", was.peers)
	}

	t.Run("tunnel deleted", func(t *testing.T) {
		cluster.Exec(ctx, t, n1, "ip", "link", "del", cluster.Overlay)
		rebuilt(ctx, t, n1, was)
		talks(ctx, t, p1, p2)
	})
	t.Run("parent deleted", func(t *testing.T) {
		cluster.Exec(ctx, t, n1, "ip", "link", "del", "eth0")
		s := cluster.Wait(ctx, t, n1, "is not well", func(s *api.Status) bool {
			return unwell(s) && !anyProgrammed(s)
		})
		if !strings.Contains(fmt.Sprint(s.Problems), "eth0") {
			t.Errorf("the missing interface is not named: %+v", s.Problems)
		}
		if r := cluster.Run(ctx, t, n1, "tenurectl", "status", "--socket="+n1.Socket); r.Code != 1 {
			t.Errorf("tenurectl status: %s, want exit code 1", r)
		}
		replug(ctx, t, c, n1)
		rebuilt(ctx, t, n1, was)
		talks(ctx, t, p1, p2)
		cluster.Wait(ctx, t, n1, "is well", func(s *api.Status) bool { return !unwell(s) })
	})
}

// overlay is a tunnel device with what is on it.
type overlay struct {
	link  cluster.Link
	peers cluster.Peers
}

func look(ctx context.Context, t *testing.T, n *lab.Node) overlay {
	t.Helper()
	link, err := cluster.FindLink(ctx, n, cluster.Overlay)
	peers, err2 := cluster.KernelPeers(ctx, n)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return overlay{link, peers}
}

func rebuilt(ctx context.Context, t *testing.T, n *lab.Node, was overlay) {
	t.Helper()
	cluster.Eventually(ctx, t, repairTime, "tunnel rebuilt", func() error {
		link, err := cluster.FindLink(ctx, n, cluster.Overlay)
		if err != nil {
			return err
		}
		peers, err := cluster.KernelPeers(ctx, n)
		if err == nil && (!reflect.DeepEqual(link, was.link) || !peers.Equal(was.peers)) {
			err = fmt.Errorf("it is %+v with %+v, it was %+v", link, peers, was)
		}
		return err
	})
}

// talks waits until packets go both ways.
func talks(ctx context.Context, t *testing.T, a, b *lab.Pod) {
	t.Helper()
	if err := errors.Join(lab.WaitPing(ctx, a, b.IP), lab.WaitPing(ctx, b, a.IP)); err != nil {
		t.Error(err)
	}
}

func unwell(s *api.Status) bool {
	for _, p := range s.Problems {
		if p.Severity == api.SeverityError {
			return true
		}
	}
	return false
}

func anyProgrammed(s *api.Status) bool {
	for _, p := range s.Peers {
		if p.State == api.PeerProgrammed {
			return true
		}
	}
	return false
}

// replug gives the node a new card in place of the one that was deleted, with
// the old one's address.
func replug(ctx context.Context, t *testing.T, c *cluster.Cluster, n *lab.Node) {
	t.Helper()
	port := "to-" + n.Host
	for _, line := range []string{
		"link add " + port + " type veth peer name eth0 netns " + n.Name(),
		"link set " + port + " master lan0 up",
	} {
		cluster.Exec(ctx, t, c.LAN, "ip", strings.Fields(line)...)
	}
	for _, line := range []string{
		"addr add " + n.Addr.String() + "/24 dev eth0",
		"link set eth0 up",
		"route add default via 192.0.2.1",
	} {
		cluster.Exec(ctx, t, n, "ip", strings.Fields(line)...)
	}
}
