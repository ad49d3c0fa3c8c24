package fault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
	"github.com/tenure-cni/tenure/test/lab/etcdproxy"
	"github.com/tenure-cni/tenure/test/ownership"
)

// heal ends a fault; nil where there is nothing to end.
type heal func(ctx context.Context) error

// strikes says how each kind of fault is done.
func (r *run) strikes() map[string]func(context.Context, fault) (heal, error) {
	return map[string]func(context.Context, fault) (heal, error){
		"daemon-killed":   r.daemonKilled,
		"daemon-dead":     r.daemonKilled,
		"daemon-paused":   r.daemonPaused,
		"daemon-hung":     r.daemonPaused,
		"state-lost":      r.stateLost,
		"state-cloned":    r.stateCloned,
		"rebooted":        r.rebooted,
		"etcd-cut":        r.etcdCut,
		"etcd-away":       r.etcdCut,
		"etcd-deaf":       r.dropping("INPUT", "-p", "tcp", "--sport", "2379"),
		"etcd-mute":       r.dropping("OUTPUT", "-p", "tcp", "--dport", "2379"),
		"lan-cut":         r.parted(lab.CutLAN),
		"cable-cut":       r.parted(lab.CutCable),
		"nodes-cut":       r.nodesCut,
		"node-one-way":    r.nodeOneWay,
		"replies-lost":    r.repliesLost,
		"commits-late":    r.commitsLate,
		"renewals-late":   r.renewalsLate,
		"acquire-late":    r.acquireLate,
		"events-lost":     r.eventsLost,
		"disk-full":       r.diskFull,
		"foreign-write":   r.foreignWrite,
		"released":        r.released,
		"ttl-changed":     r.ttlChanged,
		"compacted":       r.compacted,
		"space-alarm":     r.spaceAlarm,
		"store-hung":      r.storeHung,
		"store-away":      r.storeAway,
		"member-killed":   r.memberKilled,
		"member-hung":     r.memberHung,
		"member-replaced": r.memberReplaced,
		"leader-cut":      r.leaderCut,
		"leader-moved":    r.leaderMoved,
		"leader-hung":     r.leaderHung,
		"answers-slow":    r.answersSlow,
		"proofs-lost":     r.proofsLost,
		"last-proof-slow": r.lastProofSlow,
		"newcomer":        r.newcomer,
		"key-deleted":     r.keyDeleted,
		"clocks-stopped":  r.clocksStopped,
		"move-lost":       r.moveLost,
		"move-unanswered": r.moveUnanswered,
		"store-saved":     r.storeSaved,
		"store-wiped":     r.storeWiped,
		"store-restored":  r.storeRestored,
	}
}

func (r *run) daemonKilled(_ context.Context, f fault) (heal, error) {
	h := r.host(f.On)
	h.kill()
	return h.start, nil
}

func (r *run) daemonPaused(_ context.Context, f fault) (heal, error) {
	h := r.host(f.On)
	return func(context.Context) error { return h.Signal(unix.SIGCONT) }, h.Signal(unix.SIGSTOP)
}

// stateLost takes the memory away while the daemon is down.
func (r *run) stateLost(_ context.Context, f fault) (heal, error) {
	h := r.host(f.On)
	h.kill()
	return h.start, empty(h.StateDir)
}

func empty(dir string) error {
	return errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755))
}

// stateCloned starts a second machine with a copy of a node's memory, under the
// same name.
func (r *run) stateCloned(ctx context.Context, f fault) (heal, error) {
	h, c := r.host(f.On), r.host(cloneName)
	if err := errors.Join(empty(c.StateDir), os.CopyFS(c.StateDir, os.DirFS(h.StateDir))); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return r.guest(ctx, "--node-name="+h.Host)
}

// newcomer starts another machine, which nobody knows.
func (r *run) newcomer(ctx context.Context, _ fault) (heal, error) {
	if err := empty(r.host(cloneName).StateDir); err != nil {
		return nil, err
	}
	return r.guest(ctx)
}

// guest runs the machine beside the nodes for a while. It may come to hold
// something, and then has a pod in it, as it may not.
func (r *run) guest(ctx context.Context, args ...string) (heal, error) {
	c := r.host(cloneName)
	c.args = args
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(done)
		c.every(ctx, lookEvery, func() { c.furnish(ctx) })
	}()
	return func(context.Context) error {
		cancel()
		<-done
		c.kill()
		return nil
	}, nil
}

func (r *run) rebooted(ctx context.Context, f fault) (heal, error) {
	h := r.host(f.On)
	h.mark()
	h.forget()
	err := h.Reboot(ctx)
	h.mu.Lock()
	h.boots++
	h.mu.Unlock()
	return h.start, err
}

func (r *run) parted(how lab.Cut) func(context.Context, fault) (heal, error) {
	return func(ctx context.Context, f fault) (heal, error) {
		h := r.host(f.On)
		return func(ctx context.Context) error { return h.Partition(ctx, how, false) }, h.Partition(ctx, how, true)
	}
}

func (r *run) etcdCut(ctx context.Context, f fault) (heal, error) {
	return r.parted(lab.CutEtcd)(ctx, f)
}

// dropping drops packets inside the node that is struck.
func (r *run) dropping(chain string, match ...string) func(context.Context, fault) (heal, error) {
	return func(ctx context.Context, f fault) (heal, error) {
		return drop(ctx, r.host(f.On), chain, match...)
	}
}

// drop drops what matches in a namespace.
func drop(ctx context.Context, at lab.Execer, chain string, match ...string) (heal, error) {
	rule := func(ctx context.Context, verb string) error {
		argv := append([]string{"-w", "-t", "mangle", verb, chain}, match...)
		_, err := at.Exec(ctx, "iptables", append(argv, "-j", "DROP")...)
		return err
	}
	return func(ctx context.Context) error { return rule(ctx, "-D") }, rule(ctx, "-I")
}

// dropAll is drop of several.
func dropAll(ctx context.Context, at lab.Execer, rules ...[]string) (heal, error) {
	var heals []heal
	var errs []error
	for _, rule := range rules {
		h, err := drop(ctx, at, rule[0], rule[1:]...)
		heals, errs = append(heals, h), append(errs, err)
	}
	return func(ctx context.Context) error {
		var errs []error
		for _, h := range heals {
			errs = append(errs, h(ctx))
		}
		return errors.Join(errs...)
	}, errors.Join(errs...)
}

func (r *run) nodesCut(ctx context.Context, f fault) (heal, error) {
	other := r.host(f.Other).Addr.String()
	return dropAll(ctx, r.host(f.On), []string{"INPUT", "-s", other}, []string{"OUTPUT", "-d", other})
}

func (r *run) nodeOneWay(ctx context.Context, f fault) (heal, error) {
	return drop(ctx, r.host(f.On), "INPUT", "-s", r.host(f.Other).Addr.String())
}

// rules stand on each of a node's proxies until they are healed.
func (r *run) rules(f fault, make func(*etcdproxy.Proxy) *etcdproxy.Rule) []*etcdproxy.Rule {
	var all []*etcdproxy.Rule
	for _, p := range r.host(f.On).proxies {
		all = append(all, make(p))
	}
	return all
}

// writes are the transactions that write a subnet's key.
func writes() etcdproxy.Match { return etcdproxy.PutsBelow(prefix + "/subnets/") }

func remove(rules []*etcdproxy.Rule) {
	for _, rule := range rules {
		rule.Remove()
	}
}

// release sends what was held back, after its senders have given it up. What etcd
// says to it, or that it does not reach etcd, is nobody's concern any more.
func release(ctx context.Context, rules []*etcdproxy.Rule) error {
	for _, rule := range rules {
		if err := rule.Release(ctx); err != nil && ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// repliesLost makes the node write, by taking its memory, and loses the answers.
func (r *run) repliesLost(ctx context.Context, f fault) (heal, error) {
	h := r.host(f.On)
	h.kill()
	rules := r.rules(f, func(p *etcdproxy.Proxy) *etcdproxy.Rule {
		return p.DropReply(2, writes(), etcdproxy.Silence)
	})
	err := errors.Join(empty(h.StateDir), h.start(ctx))
	return func(context.Context) error { remove(rules); return nil }, err
}

// commitsLate makes the node write, and lets that reach etcd at the end.
func (r *run) commitsLate(ctx context.Context, f fault) (heal, error) {
	h := r.host(f.On)
	h.kill()
	rules := r.rules(f, func(p *etcdproxy.Proxy) *etcdproxy.Rule {
		return p.CommitLate(1, writes(), etcdproxy.Silence)
	})
	err := errors.Join(empty(h.StateDir), h.start(ctx))
	return func(ctx context.Context) error { return release(ctx, rules) }, err
}

// renewalsLate holds keep-alives back.
func (r *run) renewalsLate(_ context.Context, f fault) (heal, error) {
	rules := r.rules(f, func(p *etcdproxy.Proxy) *etcdproxy.Rule {
		return p.CommitLate(4, etcdproxy.Method(pb.Lease_LeaseKeepAlive_FullMethodName), etcdproxy.Silence)
	})
	return func(ctx context.Context) error { return release(ctx, rules) }, nil
}

// acquireLate hangs a daemon until its lease has ended; when it goes on it
// acquires, and that is committed after everything else.
func (r *run) acquireLate(ctx context.Context, f fault) (heal, error) {
	h := r.host(f.On)
	if err := h.Signal(unix.SIGSTOP); err != nil {
		return nil, err
	}
	rules := r.rules(f, func(p *etcdproxy.Proxy) *etcdproxy.Rule {
		return p.CommitLate(1, writes(), etcdproxy.Silence)
	})
	r.until(ctx, r.now()+beyond)
	return func(ctx context.Context) error { return release(ctx, rules) }, h.Signal(unix.SIGCONT)
}

func (r *run) eventsLost(_ context.Context, f fault) (heal, error) {
	rules := r.rules(f, func(p *etcdproxy.Proxy) *etcdproxy.Rule { return p.MuteWatches(etcdproxy.Always) })
	return func(context.Context) error {
		remove(rules)
		for _, p := range r.host(f.On).proxies {
			p.Cut() // a watch whose beginning was lost is not begun again on a connection that stands
			p.Restore()
		}
		return nil
	}, nil
}

// answersSlow lets every answer take nearly as long as its call may, and half
// that: the one to a call that was made twice comes in time.
func (r *run) answersSlow(_ context.Context, f fault) (heal, error) {
	rules := r.rules(f, func(p *etcdproxy.Proxy) *etcdproxy.Rule {
		return p.Delay(etcdproxy.Always, func(method string, _ any) bool { return method != pb.Watch_Watch_FullMethodName }, etcdproxy.Reply, ttl/4)
	})
	return func(context.Context) error { remove(rules); return nil }, nil
}

// lastProofSlow lets renewals and proofs be answered slowly, and parts the node from
// etcd while the second proof's answer is on its way.
func (r *run) lastProofSlow(ctx context.Context, f fault) (heal, error) {
	const renewal, proof = 7 * ttl / 50, 7 * ttl / 25 // before it is asked again, and after that
	slow := r.rules(f, func(p *etcdproxy.Proxy) *etcdproxy.Rule {
		return p.Delay(etcdproxy.Always, etcdproxy.Method(pb.Lease_LeaseKeepAlive_FullMethodName), etcdproxy.Reply, renewal)
	})
	proofs := r.rules(f, func(p *etcdproxy.Proxy) *etcdproxy.Rule {
		return p.Delay(etcdproxy.Always, etcdproxy.Method(pb.KV_Txn_FullMethodName), etcdproxy.Reply, proof)
	})
	mend := func(context.Context) error { remove(append(slow, proofs...)); return nil }
	if err := eventually(ctx, 2*ttl, "the node proves", func() error {
		asked := 0
		for _, rule := range proofs {
			asked += rule.Hits()
		}
		if asked < 3 { // the first is asked twice
			return fmt.Errorf("%d proofs were asked for", asked)
		}
		return nil
	}); err != nil {
		return mend, err
	}
	cut, err := r.etcdCut(ctx, f)
	return func(ctx context.Context) error { return errors.Join(mend(ctx), cut(ctx)) }, err
}

// proofsLost loses what the watch shows and every transaction's answer; leases
// are renewed.
func (r *run) proofsLost(ctx context.Context, f fault) (heal, error) {
	rules := r.rules(f, func(p *etcdproxy.Proxy) *etcdproxy.Rule {
		return p.DropReply(etcdproxy.Always, etcdproxy.Method(pb.KV_Txn_FullMethodName), etcdproxy.Fail)
	})
	see, err := r.eventsLost(ctx, f)
	return func(ctx context.Context) error { remove(rules); return see(ctx) }, err
}

// keyDeleted deletes a node's key by hand, and keeps the subnet for another that
// waits, which nobody should: the promise does not hold between that and the
// moment in which the node hears of it.
func (r *run) keyDeleted(ctx context.Context, f fault) (heal, error) {
	held, _ := r.host(f.On).held()
	key := cluster.SubnetKey(held.String())
	kept := strings.Replace(key, "/subnets/", "/tenure/reservations/", 1)
	gone, err := r.client.Txn(ctx).Then(clientv3.OpPut(kept, fmt.Sprintf(`{"Node":%q}`, cloneName)), clientv3.OpDelete(key)).Commit()
	if err == nil {
		r.recorder.Foreign(gone.Header.Revision, "the key of "+f.On+" is deleted")
	}
	return func(ctx context.Context) error {
		_, err := r.client.Delete(ctx, kept)
		return err
	}, err
}

// clocksStopped is a guest that is paused with every clock it has, and goes on:
// to its kernel no time has passed. The daemon has not run yet.
func (r *run) clocksStopped(_ context.Context, f fault) (heal, error) {
	h := r.host(f.On)
	if err := h.Signal(unix.SIGSTOP); err != nil {
		return nil, err
	}
	h.close() // its own fence is not what is judged
	fence, err := cluster.FindFence(h.Pid())
	if err != nil {
		return nil, err
	}
	defer func() { _ = fence.Close() }()
	return func(context.Context) error { return h.Signal(unix.SIGCONT) }, fence.Prolong(cluster.BootTime() + f.For + ttl)
}

// moveLost loses the answer to the write that moves a node's key to a shorter
// lease, and parts the node from etcd.
func (r *run) moveLost(ctx context.Context, f fault) (heal, error) {
	mend, err := r.moveUnanswered(ctx, f)
	if err != nil {
		return mend, err
	}
	cut, err := r.etcdCut(ctx, f)
	return func(ctx context.Context) error { return errors.Join(mend(ctx), cut(ctx)) }, err
}

// moveUnanswered changes the TTL to a shorter one, and answers none of the writes
// that move the key of a node to its new lease. Nor does the node hear that a
// key has gone.
func (r *run) moveUnanswered(ctx context.Context, f fault) (heal, error) {
	const longer = 8 * time.Second
	if err := r.configure(ctx, longer); err != nil {
		return nil, err
	}
	if _, err := r.host(f.On).WaitState(ctx, "has the longer lease", func(s *api.Status) bool {
		return s.Lease != nil && s.Lease.TTLSeconds == int64(longer/time.Second) && s.State == api.StateHeld
	}); err != nil {
		return nil, err
	}
	deaf := r.rules(f, func(p *etcdproxy.Proxy) *etcdproxy.Rule {
		return p.SwallowEvents(etcdproxy.Always, func(e *mvccpb.Event) bool { return e.Type == mvccpb.DELETE })
	})
	rules := r.rules(f, func(p *etcdproxy.Proxy) *etcdproxy.Rule {
		return p.DropReply(etcdproxy.Always, writes(), etcdproxy.Fail)
	})
	mend := func(context.Context) error { remove(append(rules, deaf...)); return nil }
	if err := r.configure(ctx, ttl); err != nil {
		return mend, err
	}
	return mend, eventually(ctx, 2*longer, "the key moves", func() error {
		for _, rule := range rules {
			if rule.Hits() > 0 {
				return nil
			}
		}
		return errors.New("no write came")
	})
}

// diskFull fills the node's run directory to the last byte.
func (r *run) diskFull(_ context.Context, f fault) (heal, error) {
	name := filepath.Join(r.host(f.On).RunDir, "filler")
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	for err == nil {
		_, err = file.Write(make([]byte, 512))
	}
	if err := errors.Join(file.Close(), err); !errors.Is(err, unix.ENOSPC) {
		return nil, fmt.Errorf("fill the disk: %w", err)
	}
	return func(context.Context) error { return os.Remove(name) }, nil
}

// foreignWrite puts somebody's record over a node's key, without a compare. It
// stands until no fence can be open by what the node held.
func (r *run) foreignWrite(ctx context.Context, f fault) (heal, error) {
	held, _ := r.host(f.On).held()
	if !held.IsValid() {
		return nil, nil
	}
	key := cluster.SubnetKey(held.String())
	lease, err := r.client.Grant(ctx, 60)
	if err != nil {
		return nil, err
	}
	value := `{"PublicIP":"192.0.2.250","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:fa"}}`
	put, err := r.client.Put(ctx, key, value, clientv3.WithLease(lease.ID))
	if err != nil {
		return nil, err
	}
	r.recorder.Foreign(put.Header.Revision, "a record of somebody else is put over that of "+f.On)
	return func(ctx context.Context) error {
		gone, err := r.client.Txn(ctx).If(clientv3.Compare(clientv3.LeaseValue(key), "=", lease.ID)).Then(clientv3.OpDelete(key)).Commit()
		if err == nil && gone.Succeeded {
			r.recorder.Foreign(gone.Header.Revision, "the record of somebody else is deleted")
		}
		return err
	}, nil
}

// released takes the node's subnet away with tenurectl, as an operator does.
func (r *run) released(ctx context.Context, f fault) (heal, error) {
	if held, _ := r.host(f.On).held(); !held.IsValid() {
		return nil, nil
	}
	err := r.tenurectl(ctx, "release", f.On, "--force")
	if err != nil && (strings.Contains(err.Error(), "no node and no subnet") || strings.Contains(err.Error(), "released already") || strings.Contains(err.Error(), "lease has ended")) {
		err = nil // the node lost it by itself
	}
	return nil, err
}

// tenurectl runs a verb of the cluster.
func (r *run) tenurectl(ctx context.Context, args ...string) error {
	bin, err := lab.FindBin()
	if err != nil {
		return err
	}
	program := filepath.Join(bin, "tenurectl")
	if r.program != "" {
		program = filepath.Join(filepath.Dir(r.program), "tenurectl")
	}
	var urls []string
	for _, m := range r.c.EtcdMembers() {
		urls = append(urls, m.URL())
	}
	_, err = r.c.LAN.Exec(ctx, program, append(args, "--etcd-endpoints="+strings.Join(urls, ","))...)
	return err
}

func (r *run) ttlChanged(ctx context.Context, _ fault) (heal, error) {
	return func(ctx context.Context) error { return r.configure(ctx, ttl) }, r.configure(ctx, 8*time.Second)
}

// configure asks for leases of another length.
func (r *run) configure(ctx context.Context, ttl time.Duration) error {
	_, err := r.client.Put(ctx, prefix+"/config", r.network(ttl))
	return err
}

// compacted forgets what a node that is cut off has not seen.
func (r *run) compacted(ctx context.Context, f fault) (heal, error) {
	mend, err := r.etcdCut(ctx, f)
	whole := false
	return func(ctx context.Context) error { // again, where the store does not answer
		err := r.compact(ctx)
		if !whole {
			cut := mend(ctx)
			whole, err = cut == nil, errors.Join(err, cut)
		}
		return err
	}, err
}

func (r *run) compact(ctx context.Context) error {
	now, err := r.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err == nil {
		_, err = r.client.Compact(ctx, now.Header.Revision)
	}
	if errors.Is(err, rpctypes.ErrCompacted) {
		err = nil
	}
	return err
}

func (r *run) spaceAlarm(ctx context.Context, _ fault) (heal, error) {
	alarm := func(ctx context.Context, action pb.AlarmRequest_AlarmAction) error {
		_, err := pb.NewMaintenanceClient(r.client.ActiveConnection()).Alarm(ctx, &pb.AlarmRequest{Action: action, Alarm: pb.AlarmType_NOSPACE})
		return err
	}
	return func(ctx context.Context) error { return alarm(ctx, pb.AlarmRequest_DEACTIVATE) }, alarm(ctx, pb.AlarmRequest_ACTIVATE)
}

// members does the same to all members.
func (r *run) members(f func(*lab.Etcd) error) error {
	var errs []error
	for _, m := range r.c.EtcdMembers() {
		errs = append(errs, f(m))
	}
	return errors.Join(errs...)
}

func (r *run) storeHung(context.Context, fault) (heal, error) {
	return func(context.Context) error {
			return r.members(func(m *lab.Etcd) error { return m.Signal(unix.SIGCONT) })
		}, r.members(func(m *lab.Etcd) error {
			return m.Signal(unix.SIGSTOP)
		})
}

func (r *run) storeAway(context.Context, fault) (heal, error) {
	return func(ctx context.Context) error {
			if err := r.members((*lab.Etcd).Launch); err != nil {
				return err
			}
			return r.answers(ctx)
		}, r.members(func(m *lab.Etcd) error {
			m.Kill()
			return nil
		})
}

// answers waits until the store answers.
func (r *run) answers(ctx context.Context) error {
	return eventually(ctx, strikeTime, "the store answers", func() error {
		ctx, cancel := context.WithTimeout(ctx, lookEvery*10)
		defer cancel()
		_, err := r.client.Get(ctx, "any")
		return err
	})
}

func (r *run) member(f fault) *lab.Etcd {
	i, err := strconv.Atoi(strings.TrimPrefix(f.On, "m"))
	if err != nil || i > len(r.c.EtcdMembers()) {
		return r.c.Etcd
	}
	return r.c.EtcdMembers()[i-1]
}

func (r *run) memberKilled(_ context.Context, f fault) (heal, error) {
	m := r.member(f)
	m.Kill()
	return m.Start, nil
}

func (r *run) memberHung(_ context.Context, f fault) (heal, error) {
	m := r.member(f)
	return func(context.Context) error { return m.Signal(unix.SIGCONT) }, m.Signal(unix.SIGSTOP)
}

func (r *run) memberReplaced(ctx context.Context, f fault) (heal, error) {
	return nil, r.member(f).Replace(ctx)
}

// leader asks the members who leads.
func (r *run) leader(ctx context.Context) (*lab.Etcd, map[*lab.Etcd]uint64, error) {
	ids := map[*lab.Etcd]uint64{}
	var leads uint64
	err := r.members(func(m *lab.Etcd) error {
		c, err := m.Client()
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		s, err := c.Status(ctx, m.URL())
		if err == nil {
			ids[m], leads = s.Header.MemberId, s.Leader
		}
		return err
	})
	for m, id := range ids {
		if id == leads {
			return m, ids, err
		}
	}
	return nil, ids, errors.Join(err, fmt.Errorf("nobody leads of %v", ids))
}

// leaderCut parts the leader from the other members; clients reach all.
func (r *run) leaderCut(ctx context.Context, _ fault) (heal, error) {
	m, _, err := r.leader(ctx)
	if err != nil {
		return nil, err
	}
	return fromMembers(ctx, m)
}

// fromMembers parts a member from the others.
func fromMembers(ctx context.Context, m *lab.Etcd) (heal, error) {
	return dropAll(ctx, m, []string{"INPUT", "-p", "tcp", "--dport", "2380"}, []string{"INPUT", "-p", "tcp", "--sport", "2380"},
		[]string{"OUTPUT", "-p", "tcp", "--dport", "2380"}, []string{"OUTPUT", "-p", "tcp", "--sport", "2380"})
}

const (
	// An etcd that leads, or believes so, ends 16 leases at a time. Those of one
	// that has been followed are lost with its term, and it waits 7 s for them; all
	// others it proposes to the one that leads now, which obeys. So there are more
	// than 16 that end before those of the nodes.
	fillers, fillerTTL = 40, 2 // s
	// believes is for how long a leader that goes on is kept from hearing that
	// another one leads.
	believes = 300 * time.Millisecond
)

// leaderHung stops the leader. When it goes on it ends, by its old clock, what it
// knew: about 7 s later.
func (r *run) leaderHung(ctx context.Context, _ fault) (heal, error) {
	m, _, err := r.leader(ctx)
	if err != nil {
		return nil, err
	}
	if err := cluster.Each(ctx, fillers, 8, func(ctx context.Context, _ int) error {
		_, err := r.client.Grant(ctx, fillerTTL)
		return err
	}); err != nil {
		return nil, err
	}
	join, err := fromMembers(ctx, m)
	if err == nil {
		err = m.Signal(unix.SIGSTOP)
	}
	return func(ctx context.Context) error {
		err := m.Signal(unix.SIGCONT)
		r.until(ctx, r.now()+believes)
		return errors.Join(err, join(ctx))
	}, err
}

// moveTime bounds a change of etcd's leader, which a member that is away may never
// take over.
const moveTime = 10 * time.Second

// leaderMoved lets another member lead.
func (r *run) leaderMoved(ctx context.Context, _ fault) (heal, error) {
	m, ids, err := r.leader(ctx)
	if err != nil {
		return nil, err
	}
	c, err := m.Client()
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(ctx, moveTime)
	defer cancel()
	for other, id := range ids {
		if other != m {
			_, err = c.MoveLeader(ctx, id)
			break
		}
	}
	return nil, err
}

// storeSaved makes the snapshot that a restored store gets.
func (r *run) storeSaved(ctx context.Context, _ fault) (heal, error) {
	backup, err := r.c.Etcd.Backup(ctx)
	r.backup = backup
	return nil, err
}

// storeWiped throws the only member's data away; the operator births the cluster
// again with the word that it is after a loss.
func (r *run) storeWiped(ctx context.Context, f fault) (heal, error) {
	return r.bornAgain, r.alone(ctx, func() error {
		err := r.recorder.End(ctx)
		// By chance, as it was drawn: another cluster ID, or the same one.
		err = errors.Join(err, r.c.Etcd.Wipe(ctx, f.At/(short/10)%2 == 0))
		return errors.Join(err, r.recorder.Begin(ctx, r.connect(), ownership.Wiped, 0))
	})
}

func (r *run) bornAgain(ctx context.Context) error {
	return r.tenurectl(ctx, "init", "--after-loss", "--network-config="+r.network(ttl))
}

// storeRestored puts the snapshot back that was made earlier.
func (r *run) storeRestored(ctx context.Context, _ fault) (heal, error) {
	if r.backup == "" {
		return nil, errors.New("there is no snapshot yet")
	}
	return r.bornAgain, r.alone(ctx, func() error {
		if err := errors.Join(r.recorder.End(ctx), r.c.Etcd.Restore(ctx, r.backup)); err != nil {
			return err
		}
		client := r.connect()
		now, err := client.Get(ctx, "any")
		if err != nil {
			return err
		}
		return r.recorder.Begin(ctx, client, ownership.Restored, now.Header.Revision)
	})
}

// alone does something to the store while no node reaches it: between what the
// recorder has seen and the end of a life nobody may write.
func (r *run) alone(ctx context.Context, f func() error) error {
	through, err := drop(ctx, r.c.Etcd, "INPUT", "-i", "eth0", "!", "-s", "192.0.2.1", "-p", "tcp", "--dport", "2379")
	if err != nil {
		return err
	}
	return errors.Join(f(), through(ctx))
}
