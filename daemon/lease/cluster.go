package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
)

// List reads everything under the prefix at one revision.
func List(ctx context.Context, c *clientv3.Client, prefix string) (*Snapshot, error) {
	return list(ctx, c, newMirror(NewKeys(prefix)), maxCall)
}

// Times says of leases when they were renewed last. One that is not in it was
// not asked for, or etcd did not answer; one that has ended is there, as the
// zero value.
type Times map[clientv3.LeaseID]renewed

// askAtOnce bounds how many leases etcd is asked for at a time: a cluster of
// thousands is asked within a second or so, and etcd notices little of it.
const askAtOnce = 32

// AskTimes asks etcd for every lease that a subnet's key hangs on. With an
// error, or once ctx has ended, it returns what it knows by then.
func AskTimes(ctx context.Context, c *clientv3.Client, s *Snapshot) (Times, error) {
	var mu sync.Mutex
	all := Times{}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(askAtOnce)
	for _, e := range s.Entries {
		if e.Lease == 0 {
			continue
		}
		g.Go(func() error {
			r, err := askTime(ctx, c, e.Lease, maxCall)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			all[e.Lease] = r
			return nil
		})
	}
	err := g.Wait()
	return all, err
}

// askTime asks how much of a lease is left, which is nothing of one that is gone.
func askTime(ctx context.Context, c *clientv3.Client, id clientv3.LeaseID, call time.Duration) (renewed, error) {
	ctx, cancel := context.WithTimeout(ctx, call)
	defer cancel()
	if ctx.Err() != nil {
		return renewed{}, ctx.Err()
	}
	resp, err := c.TimeToLive(ctx, id)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) || err == nil && resp.TTL <= 0 {
		return renewed{}, nil
	}
	if err != nil {
		return renewed{}, fmt.Errorf("look at lease %x: %w", int64(id), err)
	}
	return renewed{time.Duration(resp.GrantedTTL-resp.TTL) * time.Second, time.Duration(resp.GrantedTTL) * time.Second}, nil
}

// ClusterLeases is every node's record, in order of address, with what is odd
// about it. uid is the own node's, or empty. It is pure.
func ClusterLeases(s *Snapshot, prefix string, times Times, uid string) api.ClusterLeases {
	all := api.ClusterLeases{Prefix: prefix, Store: s.Store.Value.ID, Revision: s.Revision, Leases: []api.ClusterLease{},
		Problems: slices.SortedFunc(maps.Values(clusterProblems(s, prefix)), func(a, b api.Problem) int { return cmp.Compare(a.Code, b.Code) })}
	n, _, err := conf.ParseNetwork(s.Config.Value)
	if err == nil {
		all.Network = networkName(n)
	}
	odd := oddRecords(s)
	for i, e := range s.Entries {
		who := e.Tenant()
		l := api.ClusterLease{Node: who.Node, UID: who.UID, Epoch: who.Epoch, PublicIP: addressText(e.Address()), Lease: leaseHex(e.Lease),
			State: e.state(times), Mine: uid != "" && who.UID == uid, Odd: odd[i]}
		l.Subnet, l.Subnet6 = e.texts()
		if r, known := times[e.Lease]; known {
			l.TTLSeconds, l.RemainingSeconds, l.LastHeardSecondsAgo = seconds(r.granted), seconds(r.granted-r.ago), seconds(r.ago)
		}
		if e.Lease != 0 && l.State == api.SubnetDying {
			l.Odd = append(l.Odd, times[e.Lease].silentText())
		}
		if err == nil {
			for _, f := range conf.Judge(n, e.All()) {
				l.Odd = append(l.Odd, "the network config has no place for it: "+f.String())
			}
		}
		if l.Odd == nil {
			l.Odd = []string{}
		}
		all.Leases = append(all.Leases, l)
	}
	slices.SortStableFunc(all.Leases, func(a, b api.ClusterLease) int { return comparePrefixes(a.Subnet, b.Subnet) })
	return all
}

// texts are the subnets as an object has them: an IPv6-only one has no other.
func (s Subnets) texts() (subnet, subnet6 string) {
	switch {
	case s.V4.IsValid() && s.V6.IsValid():
		return s.V4.String(), s.V6.String()
	case s.V4.IsValid():
		return s.V4.String(), ""
	}
	return s.V6.String(), ""
}

// addressText is empty for a record that has none, or could not be read.
func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func comparePrefixes(a, b string) int {
	p, _ := netip.ParsePrefix(a)
	q, _ := netip.ParsePrefix(b)
	return cmp.Or(p.Addr().Compare(q.Addr()), cmp.Compare(p.Bits(), q.Bits()))
}

func seconds(d time.Duration) *int64 {
	s := int64(d / time.Second)
	return &s
}

// state is how the record stands. A lease that nobody was asked about counts
// for alive.
func (e Entry) state(times Times) api.SubnetState {
	r, known := times[e.Lease]
	switch {
	case e.tombstone():
		return api.SubnetReleased
	case known && !r.lives():
		return api.SubnetDying
	}
	return api.SubnetHeld
}

// tombstone says that the record was taken from its node by force.
func (e Entry) tombstone() bool { return e.Tenure != nil && e.Tenure.UID == "" }

func (r renewed) silentText() string {
	if r.granted == 0 {
		return "its lease has ended: the record goes in a moment"
	}
	return fmt.Sprintf("silent: not renewed for %s, where every %s is usual; free in %s if it stays so", r.ago, Interval(r.granted), r.granted-r.ago)
}

// oddRecords is what is odd about each entry, whatever time it has left.
func oddRecords(s *Snapshot) [][]string {
	odd := make([][]string, len(s.Entries))
	say := func(i int, format string, args ...any) { odd[i] = append(odd[i], fmt.Sprintf(format, args...)) }
	names, addresses := map[string][]int{}, map[netip.Addr][]int{}
	for i, e := range s.Entries {
		who, owner := e.Tenant(), s.Owners[e.ownerKey()].Value
		switch {
		case e.tombstone():
			say(i, "taken from the node by force: nobody's until its lease ends")
			continue
		case e.Tenure == nil:
			say(i, "flannel's: such a node is neither fenced nor stopped")
		case owner.UID != who.UID || owner.Epoch != who.Epoch:
			say(i, "its owner record says %s, epoch %d", orNone(owner.Node), owner.Epoch)
		}
		if e.Lease == 0 {
			say(i, "hangs on no lease: it never ends")
		}
		if who.Node != "" {
			names[who.Node] = append(names[who.Node], i)
		}
		for _, a := range e.Addresses() {
			addresses[a] = append(addresses[a], i)
		}
		if r := s.Reservations[e.ownerKey()].Value.Node; r != "" && r != who.Node {
			say(i, "reserved for %s, once this node has gone", r)
		}
	}
	shared(s, names, func(i int, name string, others string) { say(i, "node %s has %s too", name, others) })
	shared(s, addresses, func(i int, a netip.Addr, others string) { say(i, "%s is announced with %s too", a, others) })
	for _, c := range clashes(s) {
		say(c[0], "overlaps %s of %s", s.Entries[c[1]].Subnets, s.Entries[c[1]].holder())
		say(c[1], "overlaps %s of %s", s.Entries[c[0]].Subnets, s.Entries[c[0]].holder())
	}
	return odd
}

// shared calls say for every entry that has something in common with others,
// which it names by a subnet and a number.
func shared[K cmp.Ordered | netip.Addr](s *Snapshot, by map[K][]int, say func(i int, what K, others string)) {
	for what, entries := range by {
		for at, i := range entries {
			if len(entries) < 2 {
				continue
			}
			others := s.Entries[entries[(at+1)%len(entries)]].String()
			if more := len(entries) - 2; more > 0 {
				others += fmt.Sprintf(" and %d more", more)
			}
			say(i, what, others)
		}
	}
}

// clusterProblems are those that etcd alone shows.
func clusterProblems(s *Snapshot, prefix string) problems {
	all, k := oddities(s, Tenant{}), NewKeys(prefix)
	switch {
	case s.Config.ModRevision == 0 && s.Store.ModRevision == 0:
		all.show("waiting", api.SeverityError, "no cluster is born under "+k.All(), "tenurectl init --network …; or is --etcd-prefix another one?", time.Time{})
	case s.Store.ModRevision == 0:
		all.show("store-missing", api.SeverityError, "etcd has no store identity under "+k.All()+": what is held is served on, new nodes wait",
			"tenurectl init --after-loss with the network config it had", time.Time{})
	case s.Config.ModRevision == 0:
		all.show(configMissing, api.SeverityError, "the key "+k.Config()+" is gone from etcd: new nodes wait", "tenurectl init with the config it had", time.Time{})
	default:
		if _, _, err := conf.ParseNetwork(s.Config.Value); err != nil {
			all.show("config-refused", api.SeverityError, "the network config in etcd is refused by every node: "+err.Error(), "tenurectl config edit", time.Time{})
		}
	}
	return all
}
