package field

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

const (
	// crowdPods are added at once, and the daemon is killed so often meanwhile.
	crowdPods  = 200
	crowdKills = 10
	// crowdSubnet is what a /24 gives to pods: not its network and broadcast
	// address, not the gateway.
	crowdSubnet = 253
)

// TestD7 is whereabouts #110, calicoctl #1295 and cni-ipam-etcd #3: many ADDs
// at once give one address to two pods, because the store is read, changed and
// written without a lock that survives a crash. Right is: with 200 ADDs at once
// and the daemon killed ten times in between there are never two pods with one
// address, what an ADD answered is in the pod's namespace, no address is lost
// to anybody, and nothing is left when all pods have gone.
func TestD7(t *testing.T) {
	ctx := cluster.Context(t, 4*time.Minute)
	chance := rand.New(rand.NewPCG(cluster.Seed(t), 7))
	n := cluster.New(ctx, t, cluster.Network, "n1").Nodes[0]
	boxes := cluster.Sandboxes(ctx, t, n, "p", crowdSubnet+1)
	last, boxes := boxes[crowdSubnet], boxes[:crowdSubnet]
	c := &crowd{node: n, boxes: boxes, has: map[*lab.Pod]netip.Prefix{}, answers: make(chan struct{}, crowdSubnet), over: make(chan struct{})}

	began := time.Now()
	g, during := errgroup.WithContext(ctx)
	g.Go(func() error { return c.kill(during, chance) })
	g.Go(func() error { return cluster.Each(during, crowdPods, crowdPods, c.stand) })
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d ADDs failed in the %s in which the daemon was killed %d times", c.failed, time.Since(began).Round(time.Millisecond), crowdKills)
	c.settled(ctx, t)

	// No address was lost: the rest of the subnet can be given out, and then
	// there is none left.
	if err := cluster.Each(ctx, crowdSubnet-crowdPods, 8, func(ctx context.Context, i int) error { return c.add(ctx, crowdPods+i) }); err != nil {
		t.Fatal(err)
	}
	c.settled(ctx, t)
	if a := cluster.Call(ctx, t, n, cluster.CallFor("ADD", last, "eth0")); cluster.Code(a) != api.CodeNoAddress {
		t.Errorf("ADD on a full subnet: exit code %d, %v, want code %d", a.Exit, a.Err, api.CodeNoAddress)
	}

	order := chance.Perm(crowdSubnet)
	for _, these := range [][]int{order[:crowdSubnet/2], order[crowdSubnet/2:]} {
		if err := cluster.Each(ctx, len(these), 8, func(ctx context.Context, i int) error { return c.del(ctx, boxes[these[i]]) }); err != nil {
			t.Fatal(err)
		}
		c.settled(ctx, t)
	}
}

// crowd is what many runtimes' workers know together.
type crowd struct {
	node  *lab.Node
	boxes []*lab.Pod
	// answers gets one for each ADD that succeeded.
	answers chan struct{}
	// over is closed when the daemon is killed no more.
	over chan struct{}

	mu     sync.Mutex
	has    map[*lab.Pod]netip.Prefix // between the end of ADD and the begin of DEL
	failed int
}

// kill kills the daemon and starts it again, each time when it has held its
// subnet and some more ADDs have been answered.
func (c *crowd) kill(ctx context.Context, chance *rand.Rand) error {
	defer close(c.over)
	for range crowdKills {
		_, err := c.node.WaitState(ctx, "serves", func(s *api.Status) bool { return s.State == api.StateHeld })
		if err != nil {
			return err
		}
		c.forget()
		for range 1 + chance.IntN(5) {
			select {
			case <-c.answers:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		c.node.Kill()
		if err := errors.Join(c.noneTwice(), c.node.Start(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// stand adds a pod. Every other one comes and goes for as long as the daemon is
// killed, so that there are ADDs under way each time.
func (c *crowd) stand(ctx context.Context, i int) error {
	for {
		if err := c.add(ctx, i); err != nil || i%2 == 0 {
			return err
		}
		select {
		case <-c.over:
			return nil
		default:
		}
		if err := c.del(ctx, c.boxes[i]); err != nil {
			return err
		}
	}
}

// forget takes away the answers of the daemon that was killed before.
func (c *crowd) forget() {
	for len(c.answers) > 0 {
		<-c.answers
	}
}

// add does what a runtime does: where an ADD failed, DEL and once more.
func (c *crowd) add(ctx context.Context, i int) error {
	box := c.boxes[i]
	for {
		addr, a, err := cluster.Add(ctx, c.node, box)
		if err != nil {
			return err
		}
		if a.Exit == 0 {
			return c.added(box, addr)
		}
		if a.Err.Code != api.CodeTryAgain {
			return fmt.Errorf("ADD of %s: %w, want success or code %d", box.Pod, a.Err, api.CodeTryAgain)
		}
		c.mu.Lock()
		c.failed++
		c.mu.Unlock()
		if err := c.del(ctx, box); err != nil {
			return err
		}
	}
}

// added looks whether what an ADD answered is so.
func (c *crowd) added(box *lab.Pod, addr netip.Prefix) error {
	c.mu.Lock()
	for other, its := range c.has {
		if its == addr {
			c.mu.Unlock()
			return fmt.Errorf("%s was given to %s, and %s lives with it", addr, box.Pod, other.Pod)
		}
	}
	c.has[box] = addr
	c.mu.Unlock()
	select {
	case c.answers <- struct{}{}:
	default: // nobody counts any more
	}
	return errors.Join(c.present(box, addr), c.noRecordTwice())
}

func (c *crowd) present(box *lab.Pod, addr netip.Prefix) error {
	got, err := cluster.PodAddrs(box, "eth0")
	if err == nil && !slices.Equal(got, []netip.Prefix{addr}) {
		err = fmt.Errorf("ADD of %s answered %s, its namespace has %v", box.Pod, addr, got)
	}
	return err
}

func (c *crowd) del(ctx context.Context, box *lab.Pod) error {
	c.mu.Lock()
	delete(c.has, box)
	c.mu.Unlock()
	return cluster.Delete(ctx, c.node, box)
}

// noRecordTwice looks into the file.
func (c *crowd) noRecordTwice() error {
	records, err := cluster.Records(c.node)
	owners := map[netip.Prefix]string{}
	for _, r := range records {
		for _, a := range r.Addresses {
			if first := owners[a]; first != "" {
				err = errors.Join(err, fmt.Errorf("%s is on record for %s and %s", a, first, r.ContainerID))
			}
			owners[a] = r.ContainerID
		}
	}
	return err
}

// noneTwice looks into the file and all namespaces.
func (c *crowd) noneTwice() error {
	err := c.noRecordTwice()
	owners := map[netip.Prefix]string{}
	for _, box := range c.boxes {
		addrs, wrong := cluster.PodAddrs(box, "eth0")
		err = errors.Join(err, wrong)
		for _, a := range addrs {
			if first := owners[a]; first != "" {
				err = errors.Join(err, fmt.Errorf("%s is in the namespaces of %s and %s", a, first, box.Pod))
			}
			owners[a] = box.Pod
		}
	}
	return err
}

// settled looks whether file, kernel and figures are those of the pods that
// live.
func (c *crowd) settled(ctx context.Context, t *testing.T) {
	t.Helper()
	live := make([]*lab.Pod, 0, len(c.has))
	for box, addr := range c.has {
		live = append(live, box)
		if err := c.present(box, addr); err != nil {
			t.Error(err)
		}
	}
	cluster.Eventually(ctx, t, 10*time.Second, "the queue is done", func() error { return cluster.Only(ctx, c.node, live...) })
	if err := c.noneTwice(); err != nil {
		t.Error(err)
	}
	if a := cluster.Status(ctx, t, c.node).Addresses; a.Total != crowdSubnet || a.Used+a.Cooling > a.Total {
		t.Errorf("addresses %+v, want %d in all", a, crowdSubnet)
	}
}
