package dataplane_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenure-cni/tenure/daemon/dataplane"
	"github.com/tenure-cni/tenure/daemon/dataplane/fakekernel"
)

// counting counts what a Loop asks of its kernel.
type counting struct {
	dataplane.Kernel
	reads, ruleReads, applies atomic.Int64
	blind                     atomic.Bool // it tells no mark
}

func (c *counting) RulesMark(ctx context.Context) string {
	if c.blind.Load() {
		return ""
	}
	return c.Kernel.RulesMark(ctx)
}

func (c *counting) Read(ctx context.Context, rules dataplane.Families) (dataplane.State, error) {
	c.reads.Add(1)
	if rules.V4 {
		c.ruleReads.Add(1)
	}
	return c.Kernel.Read(ctx, rules)
}

func (c *counting) Apply(ctx context.Context, op dataplane.Op) error {
	c.applies.Add(1)
	return c.Kernel.Apply(ctx, op)
}

// bench is a Loop that runs over a fake kernel in a bubble of fake time.
type bench struct {
	t     *testing.T
	loop  *dataplane.Loop
	fake  *fakekernel.Kernel
	guard *fakekernel.Guard
	count *counting
	log   *bytes.Buffer
}

func inBubble(t *testing.T, f func(*testing.T, *bench)) {
	synctest.Test(t, func(t *testing.T) {
		guard, log := &fakekernel.Guard{}, &bytes.Buffer{}
		fake := fakekernel.New(guard, underlay)
		count := &counting{Kernel: fake}
		loop := dataplane.New(count, slog.New(slog.NewTextHandler(log, nil)), dataplane.Options{})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- loop.Run(ctx) }()
		f(t, &bench{t, loop, fake, guard, count, log})
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func (b *bench) converge(within time.Duration) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := b.loop.WaitConverged(ctx); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) peerState(n int) (dataplane.PeerState, string) {
	for _, p := range b.loop.Report().Peers {
		if p.Peer.Subnet == peer(n).Subnet {
			return p.State, p.Reason
		}
	}
	return "", ""
}

func TestLoopConvergesAndRests(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.loop.Set(node34(peer(35), peer(36)))
		b.converge(time.Second)
		if s, why := b.peerState(36); s != dataplane.PeerProgrammed {
			t.Errorf("peer is %s: %s", s, why)
		}
		writes, reads := b.loop.Report().TotalWrites(), b.count.reads.Load()
		if writes == 0 || int64(writes) != b.count.applies.Load() {
			t.Errorf("%d writes reported, %d made", writes, b.count.applies.Load())
		}
		sleepFake(10 * time.Minute)
		rep := b.loop.Report()
		if rep.TotalWrites() != writes || !rep.Converged {
			t.Errorf("idle loop wrote: %v", rep.Writes)
		}
		if passes := b.count.reads.Load() - reads; passes < 100 || passes > 125 {
			t.Errorf("%d passes in ten idle minutes", passes)
		}
		if lines := strings.Count(b.log.String(), "\n"); lines != 1 {
			t.Errorf("log has %d lines:\n%s", lines, b.log)
		}
	})
}

// TestReportIsOfTheNewest: what was converged is not any more once something else
// is wanted, from before the first pass for that.
func TestReportIsOfTheNewest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.loop.Set(node34(peer(35)))
		b.converge(time.Second)
		if !b.loop.Report().Converged {
			t.Error("converged, and not reported")
		}
		b.loop.Set(node34(peer(36)))
		if b.loop.Report().Converged {
			t.Error("reported as converged before anybody looked")
		}
		b.converge(time.Second)
		if !b.loop.Report().Converged {
			t.Error("converged again, and not reported")
		}
	})
}

// sleepFake lets the bubble's time pass.
func sleepFake(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestLoopFirstPassIsPromptAndChecked(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		start := time.Now()
		b.loop.Set(node34(peer(35)))
		b.converge(time.Second)
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("took %s", took)
		}
	})
}

func TestLoopLatestWins(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for n := 40; n < 60; n++ {
			b.loop.Set(node34(peer(n)))
		}
		b.converge(time.Second)
		if tokens, _ := b.guard.Tokens(); len(tokens) != 1 || tokens[mac(59)] != peer(59).Subnet {
			t.Errorf("tokens %v", tokens)
		}
		if n := b.count.reads.Load(); n > 4 {
			t.Errorf("%d passes for one burst", n)
		}
	})
}

// TestLoopIsPromptAfterARest: a single change does not wait for a burst.
func TestLoopIsPromptAfterARest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.loop.Set(node34(peer(35)))
		b.converge(time.Second)
		sleepFake(time.Second)
		start := time.Now()
		b.loop.Set(node34(peer(35), peer(36)))
		b.converge(time.Second)
		if took := time.Since(start); took > 20*time.Millisecond {
			t.Errorf("took %s", took)
		}
	})
}

// TestLoopIsPromptBehindItself: a change right behind another does not wait for
// the notices of the loop's own writes to settle.
func TestLoopIsPromptBehindItself(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		peers := []dataplane.Peer{peer(35)}
		b.loop.Set(node34(peers...))
		b.converge(time.Second)
		for n := 36; n < 46; n++ {
			start := time.Now()
			peers = append(peers, peer(n))
			b.loop.Set(node34(peers...))
			for b.state().Tokens[mac(n)] != peer(n).Subnet {
				sleepFake(time.Millisecond)
			}
			if took := time.Since(start); took > 100*time.Millisecond {
				t.Errorf("peer %d took %s", n, took)
			}
			sleepFake(20 * time.Millisecond) // the notices of these writes are there
		}
	})
}

func TestLoopRepairsOnNotice(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.loop.Set(node34(peer(35)))
		b.converge(time.Second)
		reads := b.count.ruleReads.Load()
		b.fake.Edit(func(s *dataplane.State) { clear(s.Neighs) })
		sleepFake(500 * time.Millisecond)
		if s := b.state(); len(s.Neighs) != 1 {
			t.Errorf("not repaired: %v", s.Neighs)
		}
		if n := b.count.ruleReads.Load() - reads; n > 1 {
			t.Errorf("rules were read %d times for a neighbour", n)
		}
	})
}

func (b *bench) state() dataplane.State {
	s, err := b.fake.Read(context.Background(), dataplane.Families{V4: true, V6: true})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// TestLoopL1RulesComeBack: firewall changes give no notice, but the kernel tells
// when it is asked. While it tells nothing no process is started.
func TestLoopL1RulesComeBack(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.loop.Set(node34())
		b.converge(time.Second)
		reads := b.count.ruleReads.Load()
		sleepFake(10 * time.Minute)
		if n := b.count.ruleReads.Load() - reads; n != 0 {
			t.Errorf("rules were read %d times while nothing changed", n)
		}
		b.fake.EditRules(wipe)
		sleepFake(1100 * time.Millisecond)
		b.wantRules()
		b.fake.EditRules(wipe) // again at once: in its turn
		sleepFake(5100 * time.Millisecond)
		b.wantRules()
	})
}

// TestLoopL1BlindKernel: one that does not tell of changes is looked at.
func TestLoopL1BlindKernel(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.count.blind.Store(true)
		b.loop.Set(node34())
		b.converge(time.Second)
		b.fake.EditRules(wipe)
		sleepFake(6100 * time.Millisecond)
		b.wantRules()
	})
}

// TestLoopReadsBusyRulesInTheirTurn: a proxy of services changes its own rules
// all the time.
func TestLoopReadsBusyRulesInTheirTurn(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.loop.Set(node34())
		b.converge(time.Second)
		reads := b.count.ruleReads.Load()
		other := dataplane.Chain{Table: "nat", Name: "OTHER"}
		for range 300 {
			b.fake.EditRules(func(r *dataplane.Rules) { r.Jumps[other] = append(r.Jumps[other], "-j X") })
			sleepFake(200 * time.Millisecond)
		}
		if n := b.count.ruleReads.Load() - reads; n > 15 || n < 12 {
			t.Errorf("rules were read %d times in a minute", n)
		}
	})
}

func wipe(r *dataplane.Rules) {
	clear(r.Jumps)
	clear(r.Chains)
}

func (b *bench) wantRules() {
	b.t.Helper()
	if s := b.state(); len(s.Rules.Chains) != 3 || len(s.Rules.Jumps) != 4 {
		b.t.Errorf("not repaired: %+v", s.Rules)
	}
}

// TestLoopIsNoHotLoop fights with somebody who undoes each repair at once.
func TestLoopIsNoHotLoop(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.loop.Set(node34(peer(35)))
		b.converge(time.Second)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		notices, err := b.fake.Watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for range notices {
				if ctx.Err() == nil && len(b.state().Neighs) > 0 {
					b.fake.Edit(func(s *dataplane.State) { clear(s.Neighs) })
				}
			}
		}()
		b.fake.Edit(func(s *dataplane.State) { clear(s.Neighs) })
		reads, rules := b.count.reads.Load(), b.count.ruleReads.Load()
		sleepFake(20 * time.Second)
		if n := b.count.reads.Load() - reads; n > 110 || n < 20 {
			t.Errorf("%d passes in 20 s", n)
		}
		if n := b.count.ruleReads.Load() - rules; n > 6 {
			t.Errorf("rules were read %d times in 20 s", n)
		}
		if f := b.loop.Report().Fights; len(f) != 1 || f[0].Kind != "neigh" || f[0].Times < 20 {
			t.Errorf("fights %v", f)
		}
	})
}

// TestLoopJ2TellsOfAFight deletes all routes every five seconds: each time they
// are back at once, and after some times that is said, until it has ended for
// long. What the daemon itself wants anew is no fight.
func TestLoopJ2TellsOfAFight(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for n := range 10 {
			b.loop.Set(node34(peer(35), peer(40+n)))
			b.converge(time.Second)
		}
		if f := b.loop.Report().Fights; len(f) > 0 {
			t.Errorf("fights with itself: %v", f)
		}
		reads := b.count.reads.Load()
		for n := 1; n <= 24; n++ {
			b.fake.Edit(func(s *dataplane.State) { clear(s.Routes) })
			sleepFake(5 * time.Second)
			if ops, _ := dataplane.Plan(node34(peer(35), peer(49)), b.state()); len(ops) > 0 {
				t.Fatalf("after 5 s still to do:\n%s", text(ops))
			}
			if f := b.loop.Report().Fights; (n >= 5) != (len(f) == 1 && f[0].Kind == "route" && f[0].Times == n) {
				t.Fatalf("after %d times: %v", n, f)
			}
		}
		if n := b.count.reads.Load() - reads; n > 24*4 {
			t.Errorf("%d passes for 24 repairs", n)
		}
		sleepFake(11 * time.Minute)
		if f := b.loop.Report().Fights; len(f) > 0 {
			t.Errorf("long after: %v", f)
		}
	})
}

// TestLoopPortsAreNotUrgent: a pod that comes or goes asks for no pass; one that
// nobody has plugged in is, at the next.
func TestLoopPortsAreNotUrgent(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		want := node34(peer(35))
		b.loop.Set(want)
		b.converge(time.Second)
		b.fake.Edit(func(s *dataplane.State) { s.Links["pod1"] = dataplane.Link{Index: 99, Kind: "veth", Up: true} })
		sleepFake(time.Second)
		reads := b.count.reads.Load()
		want.Bridge.Ports = []string{"pod1"}
		b.loop.Set(want)
		b.converge(time.Second)
		sleepFake(time.Second)
		if n := b.count.reads.Load() - reads; n != 0 {
			t.Errorf("%d passes for a port", n)
		}
		sleepFake(5 * time.Second)
		if got := b.state().Links["pod1"].Master; got != bridge {
			t.Errorf("pod1 is plugged into %q", got)
		}
	})
}

// TestLoopI7FailedWriteIsRetried fails each kind of a peer's writes once.
func TestLoopI7FailedWriteIsRetried(t *testing.T) {
	for _, kind := range []string{"token", "fdb", "neigh", "route"} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				failures := 0
				var later []string
				b.fake.FailApply(func(op dataplane.Op) error {
					if !strings.Contains(op.Scope, "10.5.36.0") {
						return nil
					}
					if op.Kind() == kind && failures < 2 {
						failures++
						return syscall.ENOBUFS
					}
					if failures == 1 && b.loop.Report().Passes == 0 {
						later = append(later, op.String())
					}
					return nil
				})
				b.loop.Set(node34(peer(35), peer(36), peer(37)))
				<-b.loop.Changed()
				if s, why := b.peerState(36); s != dataplane.PeerPending || !strings.Contains(why, "no buffer space") {
					t.Errorf("peer is %s: %s", s, why)
				}
				if len(later) > 0 {
					t.Errorf("went on with the peer after the failure: %v", later)
				}
				if tokens, _ := b.guard.Tokens(); tokens[mac(37)] != peer(37).Subnet {
					t.Errorf("another peer was delayed")
				}
				b.converge(3 * time.Second)
				if s, _ := b.peerState(36); s != dataplane.PeerProgrammed {
					t.Errorf("peer is %s", s)
				}
			})
		})
	}
}

func TestLoopWritesAFaultOncePerMinute(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.fake.FailApply(func(op dataplane.Op) error {
			if op.Scope == "forward" {
				return syscall.EROFS
			}
			return nil
		})
		b.loop.Set(node34())
		sleepFake(150 * time.Second)
		if n := strings.Count(b.log.String(), "read-only file system"); n != 3 {
			t.Errorf("%d lines in 2.5 minutes:\n%s", n, b.log)
		}
		rep := b.loop.Report()
		if rep.Converged || rep.Err == nil || len(rep.Faults) != 1 {
			t.Errorf("report %+v", rep)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := b.loop.WaitConverged(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "ip_forward") {
			t.Errorf("WaitConverged: %v", err)
		}
	})
}

// TestLoopP1TornReadIsNotMissing: what cannot be read is not written.
func TestLoopP1TornReadIsNotMissing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.loop.Set(node34(peer(35)))
		b.converge(time.Second)
		applies := b.count.applies.Load()
		b.fake.FailRead(func() error { return errors.New("list routes: results may be incomplete") })
		b.loop.Set(node34(peer(35), peer(36)))
		sleepFake(time.Minute)
		if n := b.count.applies.Load() - applies; n != 0 {
			t.Errorf("%d writes without a look", n)
		}
		if b.loop.Report().Err == nil {
			t.Errorf("no error is reported")
		}
		b.fake.FailRead(nil)
		b.converge(10 * time.Second)
	})
}

// TestLoopUnreadableFence leaves the overlay alone and does the rest.
func TestLoopUnreadableFence(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.guard.Fail(errors.New("no maps"))
		b.loop.Set(node34(peer(35)))
		sleepFake(20 * time.Second)
		s := b.state()
		if s.Links[overlay].Up {
			t.Errorf("overlay is up without a fence")
		}
		if !s.Links[bridge].Up || len(s.Rules.Chains) != 3 {
			t.Errorf("the rest was not done: %+v", s)
		}
		if st, why := b.peerState(35); st != dataplane.PeerPending {
			t.Errorf("peer is %s: %s", st, why)
		}
		b.guard.Fail(nil)
		b.converge(10 * time.Second)
	})
}

func TestLoopGoesOnWithoutNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := fakekernel.New(&fakekernel.Guard{}, underlay)
		loop := dataplane.New(deaf{fake}, quietLog(), dataplane.Options{})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- loop.Run(ctx) }()
		loop.Set(node34(peer(35)))
		if err := loop.WaitConverged(t.Context()); err != nil {
			t.Fatal(err)
		}
		fake.Edit(func(s *dataplane.State) { clear(s.FDB) })
		sleepFake(6 * time.Second)
		if s, _ := fake.Read(ctx, dataplane.Families{}); len(s.FDB) != 1 {
			t.Errorf("not repaired: %v", s.FDB)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// deaf is a kernel whose notices cannot be had.
type deaf struct{ dataplane.Kernel }

func (deaf) Watch(context.Context) (<-chan struct{}, error) { return nil, syscall.ENOBUFS }

// TestLoopRestsMoreWithMorePeers: what is read while nothing happens is more with
// every peer, so that it is read less often; with a thousand still every five
// seconds, and never less than every twenty.
func TestLoopRestsMoreWithMorePeers(t *testing.T) {
	for peers, want := range map[int]int64{2: 24, 1000: 24, 2000: 12, 9000: 6} {
		inBubble(t, func(t *testing.T, b *bench) {
			d := node34()
			for i := range peers {
				p := peer(0)
				p.Subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100 + byte(i>>8), byte(i), 0}), 24)
				p.PublicIP, p.MAC = netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), dataplane.MAC{2, 0, 0, 1, byte(i >> 8), byte(i)}
				d.Peers = append(d.Peers, p)
			}
			d.Networks = []netip.Prefix{prefix("10.0.0.0/8")}
			b.loop.Set(d)
			b.converge(time.Minute)
			<-time.After(10 * time.Second)
			reads := b.count.reads.Load()
			<-time.After(2 * time.Minute)
			if n := b.count.reads.Load() - reads; n < want-1 || n > want+1 {
				t.Errorf("%d peers: %d passes in two minutes, want %d", peers, n, want)
			}
		})
	}
}
