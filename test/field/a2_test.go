package field

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

const (
	// mostKills is how often a daemon is killed in one round, and longestLife
	// how long after its start: an acquire takes about a tenth of that.
	mostKills   = 3
	longestLife = 800 * time.Millisecond
	// settleTime is for all daemons to hold a subnet once nobody is killed any
	// more: some have to wait for leases that nobody knows any more.
	settleTime = time.Minute
)

// TestA2 is flannel #805: in a large pool two nodes end with the same subnet,
// and nobody notices for a long time. Here all daemons start together on a
// pool with a subnet for each and none to spare, some as newcomers and some
// with the memory of a lease that has ended, are killed at random in the middle
// of it, and one of three etcd members is away. Right is: in etcd's whole
// history nobody ever writes over another's record, no record is without a
// lease, a new owner's number is higher than any before; and in the end each
// daemon holds a subnet of its own.
func TestA2(t *testing.T) {
	count, rounds, most := 8, 2, 5*time.Minute
	if cluster.Long(t) {
		count, rounds, most = 50, 100, 6*time.Hour
	}
	ctx := cluster.Context(t, most)
	chance := rand.New(rand.NewPCG(cluster.Seed(t), 0))
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i+1)
	}
	pool := fmt.Sprintf(`{"Network":"10.5.0.0/16","SubnetMin":"10.5.0.0","SubnetMax":"10.5.%d.0","LeaseTTL":"5s"}`, count-1)
	c := cluster.BornOn(ctx, t, 3, pool, names...)
	store := c.Store(t)
	for round := range rounds {
		newcomers := forget(t, c.Nodes, chance)
		away := c.EtcdMembers()[chance.IntN(3)]
		t.Logf("round %d: %d newcomers, etcd of %s is away", round, newcomers, away.Addr)
		away.Kill()
		kills := startAndKill(ctx, t, c.Nodes, chance)
		if err := away.Start(ctx); err != nil {
			t.Fatal(err)
		}
		judge(ctx, t, store) // first, since it tells more than who waits in vain
		allHeld(ctx, t, store, c.Nodes)
		t.Logf("round %d: killed %d times", round, kills)
		for _, n := range c.Nodes {
			n.Kill()
		}
		awaitNoSubnets(ctx, t, store)
		judge(ctx, t, store)
	}
}

// judge looks through etcd's whole history.
func judge(ctx context.Context, t *testing.T, store *cluster.Store) {
	t.Helper()
	if faults := historyFaults(store.History(ctx)); len(faults) > 0 {
		t.Fatalf("etcd's history:\n%s", strings.Join(faults, "\n"))
	}
}

// forget takes every other node's memory away, by chance.
func forget(t *testing.T, nodes []*lab.Node, chance *rand.Rand) (newcomers int) {
	t.Helper()
	for _, n := range nodes {
		if chance.IntN(2) == 0 {
			continue
		}
		newcomers++
		if err := os.Remove(filepath.Join(n.StateDir, "node.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return newcomers
}

// startAndKill starts all daemons at once and kills each up to three times,
// at random moments of its start. All run when it returns.
func startAndKill(ctx context.Context, t *testing.T, nodes []*lab.Node, chance *rand.Rand) (kills int) {
	t.Helper()
	var all sync.WaitGroup
	for _, n := range nodes {
		lives := make([]time.Duration, chance.IntN(mostKills+1))
		for i := range lives {
			lives[i] = time.Duration(chance.Int64N(int64(longestLife)))
		}
		kills += len(lives)
		all.Go(func() {
			for _, life := range lives {
				if err := n.Start(ctx); err != nil {
					t.Error(err)
					return
				}
				select { // no condition: the moment is what is left to chance
				case <-time.After(life):
				case <-ctx.Done():
				}
				n.Kill()
			}
			if err := n.Start(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return kills
}

// allHeld waits until each daemon holds a subnet, and makes sure that etcd
// says the same: one record each, with its UID and under a lease.
func allHeld(ctx context.Context, t *testing.T, store *cluster.Store, nodes []*lab.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	holders := map[string]string{}
	for _, n := range nodes {
		s, err := n.WaitState(ctx, "holds a subnet", func(s *api.Status) bool { return s.State == api.StateHeld })
		if err != nil {
			t.Fatal(err)
		}
		if other, taken := holders[s.Subnet]; taken {
			t.Fatalf("%s and %s both hold %s", other, n.Host, s.Subnet)
		}
		holders[s.Subnet] = n.Host
		value, lease, held := store.Holder(ctx, s.Subnet)
		if uid, _ := tenant(value); !held || lease == 0 || uid != s.UID {
			t.Fatalf("%s says that it holds %s as %s; in etcd the record is %q, lease %x", n.Host, s.Subnet, s.UID, value, lease)
		}
	}
	if keys := subnetKeys(ctx, t, store); keys != len(nodes) {
		t.Fatalf("%d subnets are held by %d nodes", keys, len(nodes))
	}
}

// awaitNoSubnets waits until all leases have ended.
func awaitNoSubnets(ctx context.Context, t *testing.T, store *cluster.Store) {
	t.Helper()
	cluster.Eventually(ctx, t, 20*time.Second, "all leases have ended", func() error {
		if n := subnetKeys(ctx, t, store); n > 0 {
			return fmt.Errorf("%d subnets are held", n)
		}
		return nil
	})
}

func subnetKeys(ctx context.Context, t *testing.T, store *cluster.Store) int {
	t.Helper()
	resp, err := store.Get(ctx, cluster.SubnetKey(""), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return int(resp.Count)
}

// tenant reads whose a record is, and since which ownership.
func tenant(value string) (uid string, epoch int64) {
	var record struct {
		Tenure struct {
			UID   string
			Epoch int64
		}
	}
	if err := json.Unmarshal([]byte(value), &record); err != nil {
		return "", 0
	}
	return record.Tenure.UID, record.Tenure.Epoch
}

// ownership is the last one of a subnet.
type ownership struct {
	uid   string
	lease int64
	epoch int64
	live  bool
}

// historyFaults are the events that must not be.
func historyFaults(events []*clientv3.Event) []string {
	var faults []string
	last := map[string]ownership{}
	for _, e := range events {
		key := string(e.Kv.Key)
		if !strings.HasPrefix(key, cluster.SubnetKey("")) {
			continue
		}
		if e.Type == mvccpb.DELETE {
			before := last[key]
			before.live = false
			last[key] = before
			continue
		}
		before := last[key]
		uid, epoch := tenant(string(e.Kv.Value))
		now := ownership{uid, e.Kv.Lease, epoch, true}
		if fault := now.fault(before); fault != "" {
			faults = append(faults, fmt.Sprintf("revision %d, %s: %s: %+v after %+v", e.Kv.ModRevision, key, fault, now, before))
		}
		last[key] = now
	}
	return faults
}

// fault says what is wrong with an ownership that follows another.
func (o ownership) fault(before ownership) string {
	switch {
	case o.uid == "":
		return "a record of nobody"
	case o.lease == 0:
		return "a record without a lease"
	case before.live && o.uid != before.uid:
		return "another's record is written over"
	case before.live && o.lease != before.lease && o.epoch != before.epoch:
		// With its number it may: to a lease that the present leader has granted.
		return "the record has moved to another lease under another number"
	case o.uid != before.uid && o.epoch <= before.epoch:
		return "the new owner's number is not higher"
	}
	return ""
}

func TestA2HistoryCanBeWrong(t *testing.T) {
	key := []byte(cluster.SubnetKey("10.5.1.0/24"))
	put := func(uid string, lease, epoch int64) *clientv3.Event {
		value := fmt.Sprintf(`{"PublicIP":"192.0.2.11","Tenure":{"Node":"n","UID":%q,"Epoch":%d}}`, uid, epoch)
		return &clientv3.Event{Type: mvccpb.PUT, Kv: &mvccpb.KeyValue{Key: key, Value: []byte(value), Lease: lease}}
	}
	end := &clientv3.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: key}}
	other := &clientv3.Event{Type: mvccpb.PUT, Kv: &mvccpb.KeyValue{Key: []byte("/other")}}
	for name, c := range map[string]struct {
		events []*clientv3.Event
		fault  string
	}{
		"one after another": {[]*clientv3.Event{other, put("a", 1, 5), put("a", 1, 5), end, put("b", 2, 6), end, put("b", 3, 6)}, ""},
		"written over":      {[]*clientv3.Event{put("a", 1, 5), put("b", 1, 6)}, "another's record"},
		"detached":          {[]*clientv3.Event{put("a", 1, 5), put("a", 0, 5)}, "without a lease"},
		"born detached":     {[]*clientv3.Event{put("a", 0, 5)}, "without a lease"},
		"moved":             {[]*clientv3.Event{put("a", 1, 5), put("a", 2, 5)}, ""},
		"moved, numbered":   {[]*clientv3.Event{put("a", 1, 5), put("a", 2, 6)}, "under another number"},
		"number falls":      {[]*clientv3.Event{put("a", 1, 5), end, put("b", 2, 5)}, "not higher"},
		"nobody's":          {[]*clientv3.Event{put("", 1, 5)}, "of nobody"},
	} {
		faults := historyFaults(c.events)
		ok := len(faults) == 0
		if c.fault != "" {
			ok = len(faults) == 1 && slices.ContainsFunc(faults, func(f string) bool { return strings.Contains(f, c.fault) })
		}
		if !ok {
			t.Errorf("%s: %q, want %q", name, faults, c.fault)
		}
	}
}
