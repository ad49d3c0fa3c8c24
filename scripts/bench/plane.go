package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/daemon/dataplane"
)

// planePart measures the data plane by itself, in a namespace of its own: many
// peers at once, one of them changed, a start with all of them there, rest,
// and how soon each kind of damage is undone.
func planePart(ctx context.Context, b *bench) (err error) {
	if b.plainOnly {
		return nil
	}
	n, err := b.lab.AddNode(ctx, "plane")
	if err != nil {
		return err
	}
	ns, err := os.Open("/run/netns/" + n.Name())
	if err != nil {
		return fmt.Errorf("namespace: %w", err)
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	p := &plane{guard: &openGuard{attached: map[int]bool{}, tokens: map[[6]byte]netip.Prefix{}}, local: n.Addr}
	for _, k := range []**dataplane.Linux{&p.kernel, &p.other} {
		if *k, err = dataplane.OpenLinux(dataplane.LinuxOptions{Name: "tenure", Guard: p.guard, NetNS: int(ns.Fd())}); err != nil {
			return err
		}
		defer (*k).Close()
	}
	peers, repair := newTable("Data plane"), newTable("Damage undone")
	for _, count := range []int{1000, 5000} {
		if err := p.many(ctx, count, b.rounds, peers); err != nil {
			return fmt.Errorf("%d peers: %w", count, err)
		}
	}
	if err := p.repairs(ctx, 4*b.rounds, repair); err != nil {
		return err
	}
	return errors.Join(peers.print(os.Stdout), repair.print(os.Stdout))
}

// plane is a kernel with a second way into it.
type plane struct {
	kernel, other *dataplane.Linux
	guard         *openGuard
	local         netip.Addr
}

// with runs f beside a new loop, which wants what is given.
func (p *plane) with(ctx context.Context, want dataplane.Desired, f func(*dataplane.Loop) error) error {
	loop := dataplane.New(p.kernel, slog.New(slog.DiscardHandler), dataplane.Options{})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- loop.Run(ctx) }()
	loop.Set(want)
	err := f(loop)
	cancel()
	return errors.Join(err, <-done)
}

// many measures with that many peers, and takes them away again.
func (p *plane) many(ctx context.Context, count, rounds int, t *table) error {
	row := fmt.Sprintf("%d peers", count)
	want := p.desired(count)
	for range rounds {
		began := time.Now()
		if err := p.with(ctx, want, func(l *dataplane.Loop) error {
			err := l.WaitConverged(ctx)
			t.add(row, "cold, ms", ms(time.Since(began)))
			return err
		}); err != nil {
			return err
		}
		began = time.Now()
		if err := p.with(ctx, want, func(l *dataplane.Loop) error {
			err := l.WaitConverged(ctx)
			t.add(row, "restart, ms", ms(time.Since(began)))
			t.add(row, "restart, writes", float64(l.Report().TotalWrites()))
			return errors.Join(err, p.change(ctx, l, want, 4*rounds, row, t), rest(ctx, l, row, t))
		}); err != nil {
			return err
		}
		for _, link := range []string{"tenure.1", "tenure0"} {
			if err := p.other.Apply(ctx, dataplane.Op{Change: dataplane.DelLink{Link: link}}); err != nil {
				return err
			}
		}
		clear(p.guard.tokens)
	}
	return nil
}

// change gives single peers a new MAC.
func (p *plane) change(ctx context.Context, l *dataplane.Loop, want dataplane.Desired, times int, row string, t *table) error {
	for i := range times {
		want.Peers = slices.Clone(want.Peers)
		want.Peers[i*7].MAC[0] = 2
		writes, began := l.Report().TotalWrites(), time.Now()
		l.Set(want)
		for changed := l.Changed(); l.Report().TotalWrites() == writes; changed = l.Changed() {
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		t.add(row, "one changed, ms", ms(time.Since(began)))
		if err := l.WaitConverged(ctx); err != nil {
			return err
		}
		t.add(row, "and read back, ms", ms(time.Since(began)))
		t.add(row, "one changed, writes", float64(l.Report().TotalWrites()-writes))
	}
	l.Set(p.desired(len(want.Peers)))
	return l.WaitConverged(ctx)
}

// rest watches the loop while nothing happens.
func rest(ctx context.Context, l *dataplane.Loop, row string, t *table) error {
	before, used, began := l.Report(), cpuTime(), time.Now()
	programs := childFaults()
	select {
	case <-time.After(idleFor):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, took := l.Report(), time.Since(began)
	t.add(row, "at rest, writes", float64(after.TotalWrites()-before.TotalWrites()))
	t.add(row, "at rest, page faults of programs run", float64(childFaults()-programs))
	t.add(row, "at rest, % of a CPU", 100*float64(cpuTime()-used)/float64(took))
	return nil
}

// childFaults counts what no program can run without.
func childFaults() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_CHILDREN, &u) != nil {
		return 0
	}
	return u.Minflt
}

// cpuTime is what this process and the programs it ran have used.
func cpuTime() time.Duration {
	var sum time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if unix.Getrusage(who, &u) == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum
}

// repairs measures how soon each kind of damage is undone, with 100 peers.
func (p *plane) repairs(ctx context.Context, times int, t *table) error {
	want := p.desired(100)
	return p.with(ctx, want, func(l *dataplane.Loop) error {
		for _, d := range p.damages(want) {
			for range times {
				if err := l.WaitConverged(ctx); err != nil {
					return err
				}
				if _, err := p.other.Read(ctx, dataplane.Families{V4: true}); err != nil {
					return err
				}
				began := time.Now()
				if err := p.other.Apply(ctx, dataplane.Op{Change: d.change}); err != nil {
					return fmt.Errorf("%s: %w", d.name, err)
				}
				if err := p.untilUndone(ctx, want, d.rules); err != nil {
					return fmt.Errorf("%s: %w", d.name, err)
				}
				t.add(d.name, "ms", ms(time.Since(began)))
			}
		}
		return nil
	})
}

func (p *plane) untilUndone(ctx context.Context, want dataplane.Desired, rules bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		s, err := p.other.Read(ctx, dataplane.Families{V4: rules})
		if err != nil {
			return err
		}
		if ops, _ := dataplane.Plan(want, s); len(ops) == 0 {
			return nil
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// harm is one kind of damage; rules says that only the rules show it.
type harm struct {
	name   string
	change dataplane.Change
	rules  bool
}

func (p *plane) damages(want dataplane.Desired) []harm {
	peer := want.Peers[50]
	base := peer.Subnet.Addr()
	return []harm{
		{"vxlan device deleted", dataplane.DelLink{Link: "tenure.1"}, false},
		{"vxlan device down", dataplane.SetDown{Link: "tenure.1"}, false},
		{"vxlan device's MAC", dataplane.SetMAC{Link: "tenure.1", MAC: dataplane.MAC{2, 9}}, false},
		{"bridge deleted", dataplane.DelLink{Link: "tenure0"}, false},
		{"bridge down", dataplane.SetDown{Link: "tenure0"}, false},
		{"bridge's MTU", dataplane.SetMTU{Link: "tenure0", MTU: 1300}, false},
		{"bridge's address", dataplane.DelAddr{Addr: dataplane.Addr{Link: "tenure0", Prefix: want.Bridge.Gateways[0]}}, false},
		{"route", dataplane.DelRoute{Route: dataplane.Route{Dst: peer.Subnet, Via: base, Link: "tenure.1",
			Type: dataplane.RouteUnicast, Protocol: dataplane.RouteProtocol, Onlink: true}}, false},
		{"neighbour", dataplane.DelNeigh{Neigh: dataplane.Neigh{Link: "tenure.1", Addr: base}}, false},
		{"forwarding entry", dataplane.DelFDB{FDB: dataplane.FDB{Link: "tenure.1", MAC: peer.MAC, Dst: peer.PublicIP}}, false},
		{"forwarding switch", dataplane.SetSysctl{Path: "net/ipv4/conf/tenure0/forwarding", Value: "0"}, false},
		{"rules", dataplane.SetRules{Tables: []dataplane.TableEdit{{Table: "nat",
			Fill: []dataplane.ChainRules{{Chain: "TENURE-MASQ"}}}}}, true},
	}
}

// desired wants the given number of peers.
func (p *plane) desired(peers int) dataplane.Desired {
	d := dataplane.Desired{
		Name: "tenure", Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Bridge: dataplane.Bridge{MAC: dataplane.MAC{0x0a, 1}, MTU: 1450, Gateways: []netip.Prefix{netip.MustParsePrefix("10.5.34.1/24")}},
		Overlays: []dataplane.Vxlan{{VNI: 1, Port: 8472, Local: p.local, Parent: "eth0",
			MAC: dataplane.MAC{0x0a, 2}, MTU: 1450, Addr: netip.MustParsePrefix("10.5.34.0/32")}},
		Masq: true, MasqRandomFully: true, ForwardAccept: true,
	}
	for i := range peers {
		hi, lo := byte(i>>8), byte(i)
		d.Peers = append(d.Peers, dataplane.Peer{
			Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100 + hi, lo, 0}), 24),
			PublicIP: netip.AddrFrom4([4]byte{198, 18, hi, lo}),
			MAC:      dataplane.MAC{0x0a, 0x58, 0, 1, hi, lo},
		})
	}
	return d
}

// openGuard is a fence that lets all through and only remembers.
type openGuard struct {
	mu       sync.Mutex
	attached map[int]bool
	tokens   map[[6]byte]netip.Prefix
}

func (g *openGuard) Attached(_ context.Context, ifindex int) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.attached[ifindex], nil
}

func (g *openGuard) Attach(_ context.Context, ifindex int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.attached[ifindex] = true
	return nil
}

// Uplinks and what follows: the bench has no direct routes.
func (g *openGuard) Uplinks() ([]int, error) { return nil, nil }

func (g *openGuard) AttachedUplink(context.Context, int) (bool, error) { return false, nil }

func (g *openGuard) AttachUplink(context.Context, int) error { return errors.ErrUnsupported }

func (g *openGuard) DetachUplink(context.Context, int) error { return nil }

func (g *openGuard) Tokens() (map[[6]byte]netip.Prefix, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.tokens), nil
}

func (g *openGuard) Allow(mac [6]byte, subnet netip.Prefix) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tokens[mac] = subnet
	return nil
}

func (g *openGuard) Deny(mac [6]byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.tokens, mac)
	return nil
}
