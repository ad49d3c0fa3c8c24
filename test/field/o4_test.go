package field

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// onePlace is a pool of one subnet: the second node waits. The TTL is for the
// outages to be shorter than it, and the holder to ask often.
const onePlace = `{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.1.0","LeaseTTL":%q}`

// TestO4 is flannel #1830 and #2171: after an outage of etcd the daemon takes
// two processors and hears of nothing until it is restarted. Here all members go
// away and come back, five times, with their ports closed or in silence. Right
// is: neither a node that holds a subnet nor one that waits for one uses more
// than 2 % of a processor meanwhile, or writes more than a few lines; and ten
// seconds after etcd is back they know what has changed.
func TestO4(t *testing.T) {
	for _, way := range []struct {
		name string
		cut  func(ctx context.Context, t *testing.T, c *cluster.Cluster, away bool)
	}{{"refusing", refusing}, {"silent", silent}} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel() // mostly waits
			allAway(t, way.cut)
		})
	}
}

// awayLines is how many lines one outage may take in the log of a node.
const awayLines = 8

func allAway(t *testing.T, cut func(ctx context.Context, t *testing.T, c *cluster.Cluster, away bool)) {
	away, lease := 2*time.Second, "9s"
	if cluster.Long(t) {
		away, lease = 2*time.Minute, "5m"
	}
	const times = 5
	ctx := cluster.Context(t, times*(away+backTime)+time.Minute)
	c := cluster.BornOn(ctx, t, 3, fmt.Sprintf(onePlace, lease), "n1", "n2")
	holder, waiter := c.Nodes[0], c.Nodes[1]
	cluster.Start(ctx, t, holder)
	if err := waiter.Start(ctx); err != nil {
		t.Fatal(err)
	}
	waitsFor(ctx, t, waiter, "10.5.1.0/24")
	before := cluster.Status(ctx, t, holder)
	used, lines := map[*lab.Node]time.Duration{}, map[*lab.Node]int{}
	for i := range times {
		for _, n := range c.Nodes {
			used[n] -= processorTime(t, n)
			lines[n] -= strings.Count(n.Logs(10000), "\n")
		}
		cut(ctx, t, c, true)
		cluster.Stays(ctx, t, away, "the daemons live", func() error { return errors.Join(lives(holder), lives(waiter)) })
		for _, n := range c.Nodes {
			used[n] += processorTime(t, n)
		}
		cut(ctx, t, c, false)
		back := time.Now()
		store := c.Store(t)
		takesWrites(ctx, t, store)
		peer := cluster.FakePeer(i)
		store.Publish(ctx, peer)
		for _, n := range c.Nodes {
			within(ctx, t, time.Until(back.Add(backTime)), n, "knows of the new peer", func(s *api.Status) bool {
				for _, p := range s.Peers {
					if p.Subnet == peer.Subnet.String() {
						return true
					}
				}
				return false
			})
		}
		t.Logf("%s after etcd was back both knew what had changed", time.Since(back).Round(time.Millisecond))
		for _, n := range c.Nodes {
			lines[n] += strings.Count(n.Logs(10000), "\n")
		}
	}
	for _, n := range c.Nodes {
		share := used[n].Seconds() / (times * away).Seconds()
		t.Logf("%s used %.1f %% of a processor while etcd was away, and wrote %d lines", n.Host, 100*share, lines[n])
		if share > 0.02 {
			t.Errorf("%s used %s in %s without etcd", n.Host, used[n], times*away)
		}
		if lines[n] > times*awayLines {
			t.Errorf("%s wrote %d lines:\n%s", n.Host, lines[n], n.Logs(lines[n]))
		}
	}
	if s := cluster.Wait(ctx, t, holder, "is held", func(s *api.Status) bool { return s.State == api.StateHeld }); s.Lease.Epoch != before.Lease.Epoch {
		t.Errorf("it holds %s in epoch %d, it held %s in epoch %d", s.Subnet, s.Lease.Epoch, before.Subnet, before.Lease.Epoch)
	}
}

// refusing kills all members, and starts them again on their data.
func refusing(_ context.Context, t *testing.T, c *cluster.Cluster, away bool) {
	t.Helper()
	for _, e := range c.EtcdMembers() {
		if away {
			e.Kill()
		} else if err := e.Launch(); err != nil {
			t.Fatal(err)
		}
	}
}

// silent loses what goes to etcd and comes from it, on every node.
func silent(ctx context.Context, t *testing.T, c *cluster.Cluster, away bool) {
	t.Helper()
	for _, n := range c.Nodes {
		cutEtcd(ctx, t, n, away)
	}
}

// processorTime is what the daemon has used since it was started.
func processorTime(t *testing.T, n *lab.Node) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	// After the name, which may hold anything: utime and stime are the 12th and
	// 13th, in hundredths of a second.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	var ticks time.Duration
	for _, f := range fields[11:13] {
		v, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += time.Duration(v)
	}
	return ticks * 10 * time.Millisecond
}
