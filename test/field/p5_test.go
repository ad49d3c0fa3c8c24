package field

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

const (
	// soakPeers come and go, soakWarm times before the first look.
	soakPeers, soakWarm = 20, 500
	// soakLong is how long the long form takes at least: so long that a fault
	// has to be told again.
	soakLong = 130 * time.Second
)

// TestP5 is flannel #624, #337, #963 and #427: while a fault stands, the loop
// is fed by each event and by its own changes; memory, processes and log grow
// until the node is lost. Right is: under faults that stay (somebody's route in
// a peer's place, an address on the bridge, a record that cannot be read and is
// written again and again) and peers that come, move and go without end, memory,
// goroutines, threads and descriptors stay what they were, each fault is logged
// once a minute at most, with a count, and the peers are in the end as etcd has
// them.
func TestP5(t *testing.T) {
	events, long := 2000, cluster.Long(t)
	if long {
		events = 100_000
	}
	ctx := cluster.Context(t, time.Hour)
	c := cluster.Born(ctx, t, cluster.Network, "n1")
	n, store := c.Nodes[0], c.Store(t)
	if err := n.Start(ctx, lab.MetricsListen); err != nil {
		t.Fatal(err)
	}
	cluster.WaitState(ctx, t, n, api.StateHeld)
	began := time.Now()
	blocked, unreadable := cluster.FakePeer(soakPeers), cluster.FakePeer(soakPeers+1).Subnet.String()
	f := &flapping{store: store, unreadable: cluster.SubnetKey(unreadable)}
	f.publish(ctx)
	inKernel(ctx, t, n, f.peers)
	cluster.Exec(ctx, t, n, "ip", "route", "add", "unreachable", blocked.Subnet.String(), "proto", "static")
	cluster.Exec(ctx, t, n, "ip", "addr", "add", "198.51.100.77/32", "dev", cluster.Bridge)
	store.Publish(ctx, blocked)
	faults := func(s *api.Status) bool {
		conflict := false
		for _, p := range s.Peers {
			conflict = conflict || p.Subnet == blocked.Subnet.String() && p.State == api.PeerConflict
		}
		return conflict && cluster.HasProblem(s, "foreign") && cluster.HasProblem(s, "bad-record")
	}

	f.run(ctx, t, soakWarm)
	cluster.Wait(ctx, t, n, "names the faults", faults)
	before := cluster.Use(ctx, t, n)
	f.run(ctx, t, events-soakWarm)
	for long && time.Since(began) < soakLong {
		f.run(ctx, t, soakWarm)
		events += soakWarm
	}
	t.Logf("%d events in %s", events, time.Since(began).Round(time.Millisecond))
	f.publish(ctx)
	// All of the blocked one but its route.
	want := cluster.WantPeers(append(f.peers, blocked)...)
	want.Routes = cluster.WantPeers(f.peers...).Routes
	cluster.Eventually(ctx, t, repairTime, "the peers are in the kernel", func() error {
		got, err := cluster.KernelPeers(ctx, n)
		if err == nil && !got.Equal(want) {
			err = fmt.Errorf("there are\n%+v, want\n%+v", got, want)
		}
		return err
	})
	cluster.Wait(ctx, t, n, "names the faults still", faults)
	// Go keeps threads that waited in the kernel, and lets the heap double between
	// two collections. The log is judged by its lines.
	cluster.Flat(ctx, t, n, before, cluster.Usage{Descriptors: 8, Threads: 8, Goroutines: 8, RSS: 12 << 20, Log: math.MaxInt32})
	staysQuiet(t, n, time.Since(began))
}

// flapping are peers of etcd only, and a record that is none.
type flapping struct {
	store      *cluster.Store
	unreadable string
	peers      []cluster.Peer
	values     []string
	leases     []clientv3.LeaseID
}

// publish writes all of them as they are to be.
func (f *flapping) publish(ctx context.Context) {
	f.peers = publish(ctx, f.store, soakPeers)
	f.values, f.leases = nil, nil
	for _, p := range f.peers {
		value, lease, _ := f.store.Holder(ctx, p.Subnet.String())
		f.values, f.leases = append(f.values, value), append(f.leases, lease)
	}
}

// run makes so many events, a few peers' at once.
func (f *flapping) run(ctx context.Context, t *testing.T, events int) {
	t.Helper()
	if err := cluster.Each(ctx, soakPeers, 8, func(ctx context.Context, i int) error {
		for e := range events / soakPeers {
			if err := f.event(ctx, i, e); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// event is number e of peer i: it moves, has another MAC, comes back or goes,
// or the unreadable record is written once more.
func (f *flapping) event(ctx context.Context, i, e int) error {
	key, value := cluster.SubnetKey(f.peers[i].Subnet.String()), f.values[i]
	var err error
	switch e % 5 {
	case 0:
		_, err = f.store.Put(ctx, f.unreadable, fmt.Sprintf("{%d", e))
	case 1:
		value = strings.ReplaceAll(value, f.peers[i].PublicIP.String(), fmt.Sprintf("192.0.2.%d", 150+i))
		_, err = f.store.Put(ctx, key, value, clientv3.WithLease(f.leases[i]))
	case 2:
		value = strings.ReplaceAll(value, f.peers[i].MAC, fmt.Sprintf("02:00:00:00:01:%02x", i))
		_, err = f.store.Put(ctx, key, value, clientv3.WithLease(f.leases[i]))
	case 3:
		_, err = f.store.Delete(ctx, key)
	case 4:
		_, err = f.store.Put(ctx, key, value, clientv3.WithLease(f.leases[i]))
	}
	return err
}

// staysQuiet makes sure that no fault was logged more often than once a minute,
// and each time but the first with how often it was not.
func staysQuiet(t *testing.T, n *lab.Node, d time.Duration) {
	t.Helper()
	digits, lines := regexp.MustCompile(`\d+`), map[string]int{}
	all := 0
	for line := range strings.Lines(string(read(t, n.LogFile()))) {
		all++
		_, fault, ok := strings.Cut(line, "level=")
		if !ok || strings.HasPrefix(fault, "INFO") {
			continue
		}
		fault, count, _ := strings.Cut(fault, " repeated=")
		fault = digits.ReplaceAllString(fault, "N")
		if lines[fault]++; lines[fault] > 1 && (count == "" || strings.HasPrefix(count, "0")) {
			t.Errorf("told once more without a count: %s", line)
		}
	}
	for fault, times := range lines {
		if most := 1 + int(d/time.Minute); times > most {
			t.Errorf("in %s told %d times, at most %d are allowed: %s", d, times, most, fault)
		}
	}
	t.Logf("%d lines of log, %d different faults", all, len(lines))
	if len(lines) == 0 {
		t.Error("no fault was told at all")
	}
}
