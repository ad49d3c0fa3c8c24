package fence

import (
	"bytes"
	"errors"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"pgregory.net/rapid"
)

// The two clocks run alike on a machine that never sleeps, so that no packet
// can show which one the program reads.
func TestTheClockCountsSuspendedTime(t *testing.T) {
	f := openFence(t)
	for k := range forms {
		for d := range directions {
			var clocks []asm.BuiltinFunc
			for _, insn := range program(k, d, f.maps) {
				if !insn.IsBuiltinCall() {
					continue
				}
				switch call := asm.BuiltinFunc(insn.Constant); call {
				case asm.FnKtimeGetBootNs, asm.FnKtimeGetNs, asm.FnKtimeGetCoarseNs, asm.FnKtimeGetTaiNs, asm.FnJiffies64:
					clocks = append(clocks, call)
				}
			}
			if !slices.Equal(clocks, []asm.BuiltinFunc{asm.FnKtimeGetBootNs}) {
				t.Errorf("%s reads the clocks %v, want CLOCK_BOOTTIME once", programName(k, d), clocks)
			}
		}
	}
}

// Whatever is called in whatever order, the deadline is the one of the last
// Arm that a cycle of this generation made, or an earlier one.
func TestDeadlineModel(t *testing.T) {
	f := openFence(t)
	rapid.Check(t, func(t *rapid.T) {
		// In the model a cycle knows what ended it; in the fence only a number.
		live, want := ours, time.Duration(0)
		f.Close()
		if err := f.Set(live, cluster); err != nil {
			t.Fatal(err)
		}
		type cycle struct {
			gen   Generation
			stale bool
		}
		cycles := []*cycle{{gen: f.Generation()}}
		end := func() {
			for _, c := range cycles {
				c.stale = true
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			d := time.Duration(rapid.IntRange(0, 8).Draw(t, "hours")) * time.Hour
			switch rapid.SampledFrom([]string{"begin", "arm", "arm", "cut", "close", "subnet", "network"}).Draw(t, "step") {
			case "begin":
				cycles = append(cycles, &cycle{gen: f.Generation()})
			case "arm":
				c := rapid.SampledFrom(cycles).Draw(t, "cycle")
				err := f.Arm(c.gen, d)
				if c.stale != errors.Is(err, ErrSuperseded) || !c.stale && err != nil {
					t.Fatalf("arm by a cycle that is stale (%t): %v", c.stale, err)
				}
				if !c.stale {
					want = d
				}
			case "cut":
				if err := f.CutTo(d); err != nil {
					t.Fatal(err)
				}
				want = min(want, d)
				end()
			case "close":
				f.Close()
				want = 0
				end()
			case "subnet":
				next := rapid.SampledFrom([]Subnets{ours, others}).Draw(t, "subnet")
				if err := f.Set(next, cluster); err != nil {
					t.Fatal(err)
				}
				if next != live {
					live, want = next, 0
					end()
				}
			case "network":
				if err := f.Set(live, Network{V4: pfx("10.0.0.0/8")}); err != nil {
					t.Fatal(err)
				}
			}
			if got := f.Deadline(); got != want {
				t.Fatalf("the deadline is %s, want %s", got, want)
			}
			if s, _, err := f.Live(); err != nil || s != live {
				t.Fatalf("%s is live, want %s, %v", s, live, err)
			}
		}
	})
}

// tc runs the tool that an operator has.
func (n *node) tc(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "tc", args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := n.ns.Do(cmd.Run); err != nil {
		t.Fatalf("tc %q: %v: %s", args, err, said.String())
	}
}

// Deleted by hand, the fence comes back with the deadline that was proven last,
// and that one still shuts it.
func TestDeletedByHand(t *testing.T) {
	for name, command := range map[string][]string{
		"one direction": {"filter", "del", "dev", vxlan, "egress"},
		"the qdisc":     {"qdisc", "del", "dev", vxlan, "clsact"},
	} {
		t.Run(name, func(t *testing.T) {
			n1, n2 := twoNodes(t)
			n1.attach(t)
			n1.armFor(t, 1500*time.Millisecond)
			until, gen := n1.fence.Deadline(), n1.fence.Generation()
			c, s := n1.sender(t, "10.5.1.7"), n2.sink(t)
			n1.tc(t, command...)
			if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || ok {
				t.Errorf("deleted: attached %t, %v", ok, err)
			}
			n1.attach(t)
			if d, g := n1.fence.Deadline(), n1.fence.Generation(); d != until || g != gen {
				t.Errorf("attached anew, the deadline is %s in generation %d, want %s in %d", d, g, until, gen)
			}
			passes(t, "attached anew", c, s, "10.5.2.7")
			pastDeadline(t, until)
			drops(t, "past the deadline from before", n1.fence, Closed, s, func() { send(t, c, "10.5.2.7", s.port, 1) })
		})
	}
}

// While it is closed, an upgrade under a flood lets nothing through: there is
// no moment between the old program and the new one.
func TestNothingPassesWhileReplaced(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.attach(t)
	c, s := n1.sender(t, "10.5.1.7"), n2.sink(t)
	done := make(chan struct{})
	sent := uint64(0)
	var wg sync.WaitGroup
	wg.Go(func() {
		for ; ; sent++ {
			select {
			case <-done:
				return
			default:
				send(t, c, "10.5.2.7", s.port, sent)
			}
		}
	})
	replaced := 0
	for end := time.Now().Add(time.Second); time.Now().Before(end); replaced++ {
		if replaced%20 == 0 {
			must(t, n1.fence.Release())
			n1.fence = n1.open(t)
		}
		n1.attach(t)
	}
	close(done)
	wg.Wait()
	// A packet that is let through now comes after all that came before.
	n1.armFor(t, time.Minute)
	passes(t, "armed", c, s, "10.5.2.7")
	if n := s.count.Load(); n != 1 {
		t.Errorf("%d of %d packets passed in %d replacements", n-1, sent, replaced)
	}
	t.Logf("%d packets, %d replacements", sent, replaced)
}

// foreignOn puts somebody's qdisc and filters on n's device and says what they
// are: id and place must stay as they are.
func (n *node) foreignOn(t *testing.T) (theirs func() []netlink.BpfFilter) {
	t.Helper()
	must(t, n.h.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: n.index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}}))
	for d := range directions {
		n.addFilter(t, d, 1, 1, "theirs", asm.Instructions{asm.Mov.Imm(asm.R0, actUnspec), asm.Return()})
		n.addFilter(t, d, 50, 7, "theirs too", asm.Instructions{asm.Mov.Imm(asm.R0, actUnspec), asm.Return()})
	}
	return func() []netlink.BpfFilter {
		t.Helper()
		var all []netlink.BpfFilter
		for d := range directions {
			for _, f := range n.filterList(t, d) {
				if b := f.(*netlink.BpfFilter); isForeign(b) {
					all = append(all, netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
						Parent: b.Parent, Priority: b.Priority, Handle: b.Handle,
					}, Name: b.Name, Id: b.Id, Tag: b.Tag})
				}
			}
		}
		return all
	}
}

// The host's own device carries other people's filters. They stay through
// attaching and detaching, as does their qdisc, and what is not within Network
// passes at any time.
func TestUplinkIsShared(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.index = n1.up(t, underlay).Attrs().Index
	theirs := n1.foreignOn(t)
	before := theirs()
	if len(before) != 4 {
		t.Fatalf("the foreign filters are %+v", before)
	}
	same := func(when string) {
		t.Helper()
		if after := theirs(); !slices.Equal(after, before) {
			t.Errorf("%s: the foreign filters were %+v, are %+v", when, before, after)
		}
	}
	out, in := n2.sink(t), n1.sink(t)
	there, back := n1.sender(t, "192.0.2.1"), n2.sender(t, "192.0.2.2")
	host := func(when string) {
		t.Helper()
		passes(t, when+", host to host", there, out, "192.0.2.2")
		passes(t, when+", and back", back, in, "192.0.2.1")
		for r, n := range count(t, n1.fence) {
			if n != 0 {
				t.Errorf("%s: %d packets were dropped for %s", when, n, r)
			}
		}
	}

	must(t, n1.fence.AttachUplink(t.Context(), n1.index))
	same("attached")
	host("shut")
	n1.armFor(t, time.Minute)
	host("open")
	must(t, n1.fence.DetachUplink(t.Context(), n1.index))
	same("detached")
	host("detached")
	for d := range directions {
		if _, ours := n1.fence.ours(n1.filterList(t, d)); len(ours) != 0 {
			t.Errorf("%s stays behind", programName(uplink, d))
		}
	}
	for _, index := range []int{n1.index, 1 << 20} {
		if err := n1.fence.DetachUplink(t.Context(), index); err != nil {
			t.Errorf("detached from device %d, which has none: %v", index, err)
		}
	}
}

// On a device without Ethernet headers every packet would pass, shut or not.
func TestUplinkWithoutEthernet(t *testing.T) {
	n1, _ := twoNodes(t)
	must(t, n1.ns.Do(func() error { return exec.Command("ip", "tuntap", "add", "tun9", "mode", "tun").Run() }))
	tun := n1.up(t, "tun9").Attrs().Index
	if err := n1.fence.AttachUplink(t.Context(), tun); !errors.Is(err, ErrNoEthernet) {
		t.Errorf("attached to a tunnel: %v", err)
	}
	if ok, err := n1.fence.AttachedUplink(t.Context(), tun); ok || err != nil {
		t.Errorf("the tunnel has the fence: %v, %v", ok, err)
	}
	must(t, n1.fence.AttachUplink(t.Context(), n1.up(t, "lo").Attrs().Index))
}

// A node with direct routes only has no vxlan device: the maps hang on the
// uplink, of which the next process need not know the name.
func TestFoundOnTheUplink(t *testing.T) {
	n1, _ := twoNodes(t)
	n1.index = n1.up(t, underlay).Attrs().Index
	must(t, n1.fence.AttachUplink(t.Context(), n1.index))
	n1.armFor(t, time.Minute)
	until := n1.fence.Deadline()
	must(t, n1.fence.Release())
	for name, links := range map[string][]string{"named": {underlay}, "not named": nil} {
		f, err := Open(Options{Links: links, NetNS: n1.ns.FD()})
		must(t, err)
		if d := f.Deadline(); d != until {
			t.Errorf("%s: found the deadline %s, want %s", name, d, until)
		}
		if found, err := f.Uplinks(); err != nil || !slices.Equal(found, []int{n1.index}) {
			t.Errorf("%s: the uplinks are %v, want [%d]", name, found, n1.index)
		}
		must(t, f.Release())
	}
	f, err := Open(Options{Links: []string{vxlan}, NetNS: n1.ns.FD()})
	must(t, err)
	if d := f.Deadline(); d != 0 {
		t.Errorf("found the deadline %s on a device that was not to be looked at", d)
	}
	must(t, f.Release())
}

// Which devices are uplinks is known from attaching to detaching, and without a
// Fence to who takes the instance off the machine. Others' filters, and those on
// the overlay, are not meant.
func TestUplinks(t *testing.T) {
	n1, _ := twoNodes(t)
	n1.attach(t)
	up, o := n1.up(t, underlay).Attrs().Index, Options{NetNS: n1.ns.FD()}
	expect := func(when string, want ...int) {
		t.Helper()
		if got, err := n1.fence.Uplinks(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: the fence's uplinks are %v, want %v", when, got, want)
		}
		if got, err := Uplinks(o); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: the uplinks found are %v, %v, want %v", when, got, err, want)
		}
		if got, err := Uplinks(Options{NetNS: n1.ns.FD(), Instance: "other"}); err != nil || got != nil {
			t.Errorf("%s: another instance's uplinks are %v, %v", when, got, err)
		}
	}
	expect("overlay only")
	must(t, n1.fence.AttachUplink(t.Context(), up))
	expect("attached", up)
	must(t, n1.fence.DetachUplink(t.Context(), up))
	expect("detached")

	must(t, n1.fence.AttachUplink(t.Context(), up))
	for range 2 { // the second time there is nothing
		must(t, RemoveUplink(Options{NetNS: n1.ns.FD(), Instance: "other"}, n1.index))
		must(t, RemoveUplink(o, up))
	}
	if got, err := Uplinks(o); err != nil || got != nil {
		t.Errorf("removed: the uplinks found are %v, %v", got, err)
	}
	if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || !ok {
		t.Errorf("the overlay's fence is attached: %v, %v", ok, err)
	}
}

// What is left of an earlier process may be damaged. The node starts shut, and
// it starts.
func TestDamagedStateStartsShut(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.attach(t)
	n1.armFor(t, time.Minute)
	s := encode(ours, cluster, BootTime()+time.Hour)
	s.V4.Network.Mask = [4]byte{255, 0, 255, 0}
	must(t, n1.fence.live.m.Put(uint32(0), s))
	must(t, n1.fence.Release())
	n1.fence = n1.open(t)
	if d := n1.fence.Deadline(); d != 0 {
		t.Errorf("open until %s", d)
	}
	c, in := n1.sender(t, "10.5.1.7"), n2.sink(t)
	drops(t, "after the damage", n1.fence, Closed, in, func() { send(t, c, "10.5.2.7", in.port, 1) })
	must(t, n1.fence.Set(ours, cluster))
	n1.armFor(t, time.Minute)
	passes(t, "proven again", c, in, "10.5.2.7")
}

// Bare tells without loading anything which devices must be down.
func TestBare(t *testing.T) {
	n1, _ := twoNodes(t)
	o := Options{Links: []string{vxlan, "none"}, NetNS: n1.ns.FD()}
	expect := func(why string, want ...string) {
		t.Helper()
		if got, err := Bare(o); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q lack the fence, want %q, %v", why, got, want, err)
		}
	}
	expect("never attached", vxlan)
	n1.attach(t)
	expect("attached")
	for d := range directions {
		must(t, n1.h.FilterDel(n1.filterList(t, d)[0]))
		expect("without "+programName(overlay, d), vxlan)
		n1.attach(t)
	}
	o.Instance = "other"
	expect("another instance's", vxlan)
}
