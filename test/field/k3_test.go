package field

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// followTime is how soon everything follows another MTU of the underlay.
const followTime = 10 * time.Second

// TestK3 is flannel #1011, #1775, #463, #841 and kube-ovn #4254: the MTU is
// looked at once; set by hand, it reaches the tunnel and not the bridge; a
// change of the underlay's reaches nothing. Right is: tunnel, bridge, new pods,
// subnet.env and status follow within ten seconds, and no datagram is lost; pods
// from before are named until they go, and their TCP goes on also where they have
// more than fits; what is set by hand counts if it fits, is said if it does not,
// and is refused if it is nonsense.
func TestK3(t *testing.T) {
	t.Parallel()
	ctx := cluster.Context(t, 2*time.Minute)
	c := cluster.New(ctx, t, cluster.Network, "n1", "n2")
	n1, n2 := c.Nodes[0], c.Nodes[1]
	ring := cluster.NewRing(ctx, t, n1, n2)
	old, far := ring.Pods[0], ring.Pods[1]
	cluster.Sink(ctx, t, far.NS, port)
	cluster.Sink(ctx, t, c.Outside, port)
	var before []net.Conn // from before the MTU shrinks
	for _, to := range []string{far.IP.String(), c.OutsideAddr().String()} {
		conn, err := old.Dial(ctx, "tcp4", fmt.Sprintf("%s:%d", to, port))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		before = append(before, conn)
	}

	if err := n2.Partition(ctx, lab.CutEtcd, true); err != nil { // it needs nobody's word for that
		t.Fatal(err)
	}
	for _, parent := range []int{9000, 1400} {
		for _, n := range c.Nodes {
			cluster.Exec(ctx, t, c.LAN, "ip", "link", "set", "to-"+n.Host, "mtu", fmt.Sprint(parent))
			cluster.Exec(ctx, t, n, "ip", "link", "set", "eth0", "mtu", fmt.Sprint(parent))
		}
		for _, n := range c.Nodes {
			follows(ctx, t, n, parent-50)
		}
		pod := cluster.Pod(ctx, t, n1, fmt.Sprint("new", parent))
		if link, err := cluster.FindLink(ctx, pod, "eth0"); err != nil || link.MTU != parent-50 {
			t.Errorf("underlay %d: a new pod has MTU %d, %v", parent, link.MTU, err)
		}
		if link, err := cluster.FindLink(ctx, old, "eth0"); err != nil || link.MTU != 1450 {
			t.Errorf("underlay %d: a pod from before has MTU %d, %v", parent, link.MTU, err)
		}
		within(ctx, t, followTime, n1, "names the pod from before", func(s *api.Status) bool {
			text := problemText(s, "pods-old-mtu")
			return strings.Contains(text, old.ContainerID()+" eth0 ("+old.IP.String()+") has 1450") && !strings.Contains(text, pod.ContainerID())
		})
		if err := pod.Del(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := n2.Partition(ctx, lab.CutEtcd, false); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, conn := range before {
		if err := cluster.Exchange(short, conn); err != nil {
			t.Errorf("a connection from before, by a pod with more than fits: %v", err)
		}
	}
	for _, to := range []*lab.NS{far.NS, c.Outside} {
		ip := far.IP
		if to == c.Outside {
			ip = c.OutsideAddr()
		}
		if err := cluster.Bulk(ctx, old.NS, ip, port, 20*time.Second); err != nil {
			t.Errorf("a new connection, by a pod with more than fits: %v", err)
		}
	}
	ring.Whole(ctx, t)
	for _, conn := range before {
		_ = conn.Close()
	}
	if err := old.Del(ctx); err != nil {
		t.Fatal(err)
	}
	within(ctx, t, followTime, n1, "names nobody", func(s *api.Status) bool { return problemText(s, "pods-old-mtu") == "" })

	const tail = `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","MTU":%d}}`
	configSet(ctx, t, n1, 0, fmt.Sprintf(tail, 1300))
	follows(ctx, t, n1, 1250)
	configSet(ctx, t, n1, 0, fmt.Sprintf(tail, 9000))
	follows(ctx, t, n1, 1350)
	within(ctx, t, followTime, n1, "says that it does not fit", func(s *api.Status) bool {
		text := problemText(s, "mtu-too-large")
		return strings.Contains(text, "9000") && strings.Contains(text, "1400 of eth0") && strings.Contains(text, "1350")
	})
	for _, impossible := range []int{-1, 67, 575, 65536} {
		r := cluster.Run(ctx, t, n1, "tenurectl", "config", "set", fmt.Sprintf(tail, impossible), "--yes", "--socket="+n1.Socket)
		if r.Code == 0 || !strings.Contains(r.Said, "Backend.MTU:") {
			t.Errorf("MTU %d: %s", impossible, r)
		}
	}
	configSet(ctx, t, n1, 0, fmt.Sprintf(tail, 0))
	within(ctx, t, followTime, n1, "is well", cluster.Well)
}

// follows waits until all of a node goes by the MTU.
func follows(ctx context.Context, t *testing.T, n *lab.Node, want int) {
	t.Helper()
	cluster.Eventually(ctx, t, followTime, fmt.Sprintf("%s goes by MTU %d", n.Host, want), func() error {
		for _, device := range []string{cluster.Overlay, cluster.Bridge} {
			if link, err := cluster.FindLink(ctx, n, device); err != nil || link.MTU != want {
				return errors.Join(fmt.Errorf("%s has %d", device, link.MTU), err)
			}
		}
		env, err := os.ReadFile(n.RunDir + "/subnet.env")
		if err != nil || !strings.Contains(string(env), fmt.Sprintf("FLANNEL_MTU=%d\n", want)) {
			return errors.Join(fmt.Errorf("subnet.env is %q", env), err)
		}
		if s, err := n.Status(ctx); err != nil || s.MTU != want {
			return errors.Join(errors.New("status says otherwise"), err)
		}
		return nil
	})
}

// problemText is what a problem says, empty while it does not stand.
func problemText(s *api.Status, code string) string {
	for _, p := range s.Problems {
		if p.Code == code {
			return p.Text
		}
	}
	return ""
}
