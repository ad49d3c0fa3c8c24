package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
	"github.com/tenure-cni/tenure/test/lab"
)

const (
	fleetPrefix = "/bench/fleet"
	fleetConfig = `{"Network":"10.0.0.0/8"}`
	// phaseLimit bounds one phase of one fleet: what etcd sends grows with the square
	// of the nodes.
	phaseLimit = 10 * time.Minute
	// quieter is how long after a phase nobody has anything to do any more.
	quieter = 3 * time.Second
	// Goals for a thousand nodes.
	mostJoin = 15.0
	mostIdle = 75.0
)

// fleetPart lets fleets of lease engines join at once, idle, restart at once
// and lose etcd's leader.
func fleetPart(ctx context.Context, b *bench) error {
	ts := fleetTables{
		join: newTable("Fleet: all join at once"), idle: newTable("Fleet: idle"),
		restart: newTable("Fleet: all restart at once"), failover: newTable("Fleet: etcd's leader is killed, one of three"),
	}
	var errs []error
	if b.scale.alone > 0 {
		errs = append(errs, ts.run(ctx, b, b.scale.alone, false))
	}
	for _, nodes := range b.scale.nodes {
		if ctx.Err() == nil {
			errs = append(errs, ts.run(ctx, b, nodes, true))
		}
	}
	return errors.Join(append(errs, ts.print())...) // what has been measured is worth reading
}

type fleetTables struct{ join, idle, restart, failover *table }

func (ts fleetTables) print() error {
	fmt.Printf("\nThe engines of a fleet are all in this one process. Those \"alone\" have each a watch and a copy of all records; for the others\n" +
		"each record is decoded and kept once, while etcd sends it to every one of them all the same.\n")
	return errors.Join(ts.join.print(os.Stdout), ts.idle.print(os.Stdout), ts.restart.print(os.Stdout), ts.failover.print(os.Stdout))
}

// run measures one fleet.
func (ts fleetTables) run(ctx context.Context, b *bench, nodes int, together bool) error {
	row := fmt.Sprintf("%d nodes", nodes)
	if !together {
		row += ", alone"
	}
	var errs []error
	for _, weather := range []struct {
		members int
		phases  func(context.Context, *bench, *sea) error
	}{{1, ts.calm}, {3, ts.storm}} {
		if ctx.Err() != nil {
			break
		}
		if err := b.apart(ctx, fmt.Sprintf("fleet%d-%t-%d", nodes, together, weather.members), weather.members, func(l *lab.Lab, c *lab.EtcdCluster) error {
			s := &sea{row: row, nodes: nodes, goals: together && nodes == 1000, members: c.Members}
			return s.with(ctx, c, l.Dir(), together, func(ctx context.Context) error { return weather.phases(ctx, b, s) })
		}); err != nil {
			errs = append(errs, fmt.Errorf("%s, etcd of %d: %w", row, weather.members, err))
		}
	}
	return errors.Join(errs...)
}

// sea is a fleet and its etcd.
type sea struct {
	row     string
	nodes   int
	goals   bool
	members []*lab.Etcd
	client  *clientv3.Client
	fleet   *fleet
	races   racesLost
	began   int64 // the store's revision
}

// with makes the fleet, which does not run yet, and ends it after f.
func (s *sea) with(ctx context.Context, c *lab.EtcdCluster, dir string, together bool, f func(context.Context) error) (err error) {
	if s.client, err = c.Client(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.client.Close()) }()
	if _, err := lease.Init(ctx, s.client, fleetPrefix, []byte(fleetConfig)); err != nil {
		return err
	}
	resp, err := s.client.Get(ctx, "any")
	if err != nil {
		return fmt.Errorf("read the revision of etcd: %w", err)
	}
	s.began = resp.Header.Revision
	s.fleet = &fleet{etcd: s.members, prefix: fleetPrefix, dir: filepath.Join(dir, "nodes"), log: slog.New(&s.races)}
	ctx, cancel := context.WithCancelCause(ctx)
	s.fleet.all.Go(func() { bound(ctx, cancel, c.Members) })
	if together {
		s.fleet.shared = newShared()
		w := lease.NewWatcher(s.client, lease.NewKeys(fleetPrefix), slog.New(slog.DiscardHandler), s.fleet.shared.show, func() {})
		s.fleet.all.Go(func() { w.Run(ctx) })
	}
	defer func() {
		if why := context.Cause(ctx); errors.Is(why, errMemory) {
			err = errors.Join(why, err)
		}
		cancel(nil)
		s.fleet.stop()
	}()
	if err := s.fleet.fill(s.nodes); err != nil {
		return err
	}
	return f(ctx)
}

// mostMemory is how much of the machine's memory a fleet and its etcd may take,
// and memoryEvery how often that is looked at.
const (
	mostMemory  = 0.7
	memoryEvery = 250 * time.Millisecond
)

// errMemory says that a fleet is too large for the machine.
var errMemory = errors.New("the fleet and its etcd take more memory than they may")

// bound ends the fleet before it takes what others on the machine need.
func bound(ctx context.Context, end context.CancelCauseFunc, members []*lab.Etcd) {
	for pause(ctx, memoryEvery) == nil {
		all, err := residentMiB(os.Getpid())
		for _, m := range members {
			if more, gone := residentMiB(m.Process().Pid()); gone == nil {
				all += more
			}
		}
		var machine unix.Sysinfo_t
		if err = errors.Join(err, unix.Sysinfo(&machine)); err != nil {
			continue
		}
		if have := float64(machine.Totalram) * float64(machine.Unit) / (1 << 20); all > mostMemory*have {
			end(fmt.Errorf("%w: %.0f MiB of %.0f", errMemory, all, have))
			return
		}
	}
}

// phase does f, which is bounded, and fills the columns that all phases have.
func (s *sea) phase(ctx context.Context, t *table, f func(context.Context) error) (load, error) {
	ctx, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	before, err := loadOf(ctx, s.client, s.members)
	if err != nil {
		return load{}, err
	}
	worked := ownCPU()
	if err := f(ctx); err != nil {
		return load{}, err
	}
	took, worked := time.Since(before.at), ownCPU()-worked
	after, err := loadOf(ctx, s.client, s.members)
	if err != nil {
		return load{}, err
	}
	d := after.since(before)
	d.calls["Range"]-- // of this reading
	t.add(s.row, "s", took.Seconds())
	t.add(s.row, "requests", float64(d.all()))
	for _, method := range slices.Sorted(maps.Keys(d.calls)) {
		t.add(s.row, method, float64(d.calls[method]))
	}
	t.add(s.row, "revisions", float64(d.revisions))
	t.add(s.row, "sent by etcd, MB", d.sentMB)
	t.add(s.row, "CPU of etcd, s", d.cpu)
	t.add(s.row, "CPU of the engines, s", worked.Seconds())
	return d, nil
}

// join lets all of them come. They run on after it, until ctx ends.
func (s *sea) join(ctx context.Context) func(context.Context) error {
	return func(bounded context.Context) error {
		s.fleet.start(ctx)
		return s.fleet.held(bounded)
	}
}

// twice is how many subnets were given twice: none in the list, which is counted,
// and none in the history.
func (s *sea) twice(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	return tenants(ctx, s.client, fleetPrefix, s.began, s.nodes)
}

// calm is what happens while etcd is well.
func (ts fleetTables) calm(ctx context.Context, b *bench, s *sea) error {
	if _, err := s.phase(ctx, ts.join, s.join(ctx)); err != nil {
		return fmt.Errorf("join: %w", err)
	}
	twice, err := s.twice(ctx)
	if err != nil {
		return err
	}
	ts.join.add(s.row, "races lost", float64(s.races.n.Load()))
	ts.join.add(s.row, "subnets given twice", float64(twice))
	if err := pause(ctx, quieter); err != nil {
		return err
	}
	idle, err := s.phase(ctx, ts.idle, func(ctx context.Context) error { return pause(ctx, b.scale.window) })
	if err != nil {
		return fmt.Errorf("idle: %w", err)
	}
	window := b.scale.window.Seconds()
	perThousand := 1000 / float64(s.nodes) / window
	ts.idle.add(s.row, "requests/s per 1,000", float64(idle.all())*perThousand)
	ts.idle.add(s.row, "messages on watches/s per 1,000", idle.onWatches*perThousand)
	ts.idle.add(s.row, "raft writes", idle.writes)
	if err := s.restart(ctx, ts.restart); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	if s.goals {
		b.goals = append(b.goals,
			goal{"1,000 nodes join at once, s", mostJoin, ts.join.at(s.row, "s", 50)},
			goal{"requests/s of 1,000 idle nodes", mostIdle, float64(idle.all()) * perThousand},
			goal{"raft writes of 1,000 idle nodes", 0, idle.writes},
		)
	}
	b.goals = append(b.goals, goal{"subnets given twice, " + s.row, 0, float64(twice)})
	return nil
}

// restart ends all engines and starts new ones on what they left.
func (s *sea) restart(ctx context.Context, t *table) error {
	before := s.holdings()
	s.fleet.cancel()
	if err := s.ended(ctx); err != nil {
		return err
	}
	if err := s.fleet.fill(s.nodes); err != nil {
		return err
	}
	if _, err := s.phase(ctx, t, s.join(ctx)); err != nil {
		return err
	}
	t.add(s.row, "other subnets", float64(s.differ(before)))
	return nil
}

// ended waits until no engine runs; the shared watch goes on.
func (s *sea) ended(ctx context.Context) error {
	for _, one := range s.fleet.ships {
		select {
		case <-one.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// holdings are what each holds.
func (s *sea) holdings() []lease.Subnets {
	var all []lease.Subnets
	for _, one := range s.fleet.ships {
		all = append(all, one.engine.View().Holding.Subnets())
	}
	return all
}

func (s *sea) differ(before []lease.Subnets) (n int) {
	for i, now := range s.holdings() {
		if now != before[i] {
			n++
		}
	}
	return n
}

// storm kills etcd's leader under a fleet.
func (ts fleetTables) storm(ctx context.Context, b *bench, s *sea) error {
	joining, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	if err := s.join(ctx)(joining); err != nil {
		return fmt.Errorf("join: %w", err)
	}
	if err := pause(ctx, quieter); err != nil {
		return err
	}
	leader, err := leaderOf(ctx, s.client, s.members)
	if err != nil {
		return err
	}
	before := s.holdings()
	var left []*lab.Etcd
	for _, m := range s.members {
		if m != leader {
			left = append(left, m)
		}
	}
	s.members = left // what the other had done is not counted
	_, err = s.phase(ctx, ts.failover, func(ctx context.Context) error {
		at, began := bootTime(), time.Now()
		leader.Kill()
		if _, err := s.client.Get(ctx, "any"); err != nil {
			return fmt.Errorf("read after the leader was killed: %w", err)
		}
		ts.failover.add(s.row, "until etcd answers, s", time.Since(began).Seconds())
		return s.fleet.proven(ctx, at)
	})
	if err != nil {
		return fmt.Errorf("leader killed: %w", err)
	}
	ts.failover.add(s.row, "other subnets", float64(s.differ(before)))
	ts.failover.add(s.row, "not held", float64(s.notHeld()))
	return nil
}

func (s *sea) notHeld() (n int) {
	for _, one := range s.fleet.ships {
		if one.engine.View().State != api.StateHeld {
			n++
		}
	}
	return n
}

// errNoLeader says that none of the members is the leader.
var errNoLeader = errors.New("no member is etcd's leader")

func leaderOf(ctx context.Context, c *clientv3.Client, members []*lab.Etcd) (*lab.Etcd, error) {
	ctx, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	for _, m := range members {
		st, err := c.Status(ctx, m.URL())
		if err != nil {
			return nil, fmt.Errorf("status of %s: %w", m.URL(), err)
		}
		if st.Leader == st.Header.MemberId {
			return m, nil
		}
	}
	return nil, errNoLeader
}
