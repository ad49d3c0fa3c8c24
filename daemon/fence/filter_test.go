package fence

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func (n *node) filterList(t *testing.T, d direction) []netlink.Filter {
	t.Helper()
	all, err := n.fence.filters(n.index, d)
	must(t, err)
	return all
}

func TestAttachPilesNothingUp(t *testing.T) {
	n1, _ := twoNodes(t)
	for range 3 {
		n1.attach(t)
	}
	for d := range directions {
		if all := n1.filterList(t, d); len(all) != 1 {
			t.Errorf("%s: %d filters after three times: %v", programName(overlay, d), len(all), all)
		}
	}
	qdiscs, err := n1.h.QdiscList(deviceOf(n1.index))
	must(t, err)
	if n := len(slices.DeleteFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() != "clsact" })); n != 1 {
		t.Errorf("%d clsact qdiscs", n)
	}
}

func TestAttachedNeedsBothWays(t *testing.T) {
	for d := range directions {
		t.Run(programName(overlay, d), func(t *testing.T) {
			n1, _ := twoNodes(t)
			n1.attach(t)
			must(t, n1.h.FilterDel(n1.filterList(t, d)[0]))
			if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || ok {
				t.Errorf("without %s: attached %t, %v", programName(overlay, d), ok, err)
			}
			// The next process still finds what the other filter uses.
			n1.armFor(t, time.Minute)
			until := n1.fence.Deadline()
			must(t, n1.fence.Release())
			n1.fence = n1.open(t)
			if got := n1.fence.Deadline(); got != until {
				t.Errorf("found the deadline %s, want %s", got, until)
			}
			n1.attach(t)
			if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || !ok {
				t.Errorf("repaired: attached %t, %v", ok, err)
			}
		})
	}
}

// An earlier build had another program over the same maps.
func TestUpgradeKeepsTheMaps(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.attach(t)
	n1.armFor(t, time.Minute)
	until := n1.fence.Deadline()
	for d := range directions {
		earlier := append(asm.Instructions{asm.Mov.Imm(asm.R0, 7)}, program(overlay, d, n1.fence.maps)...)
		n1.replaceWith(t, d, programName(overlay, d), earlier)
	}
	must(t, n1.fence.Release())
	n1.fence = n1.open(t)
	if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || ok {
		t.Errorf("an earlier build's program: attached %t, %v", ok, err)
	}
	c, s := n1.sender(t, "10.5.1.7"), n2.sink(t)
	passes(t, "under the earlier build's program", c, s, "10.5.2.7")
	n1.attach(t)
	if d := n1.fence.Deadline(); d != until {
		t.Errorf("the deadline was %s, after the upgrade it is %s", until, d)
	}
	passes(t, "under the new program", c, s, "10.5.2.7")
	if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || !ok {
		t.Errorf("after the upgrade: attached %t, %v", ok, err)
	}
}

// An earlier build had another layout: nothing of it is used.
func TestUnknownLayoutStartsShut(t *testing.T) {
	n1, _ := twoNodes(t)
	n1.attach(t)
	n1.armFor(t, time.Minute)
	strange, err := ebpf.NewMap(&ebpf.MapSpec{Name: liveName, Type: ebpf.Array, KeySize: 4, ValueSize: 96, MaxEntries: 1})
	must(t, err)
	t.Cleanup(func() { _ = strange.Close() })
	for d := range directions {
		n1.replaceWith(t, d, programName(overlay, d), asm.Instructions{
			asm.LoadMapPtr(asm.R1, strange.FD()), asm.Mov.Imm(asm.R0, actUnspec), asm.Return(),
		})
	}
	must(t, n1.fence.Release())
	n1.fence = n1.open(t)
	if d := n1.fence.Deadline(); d != 0 {
		t.Errorf("open until %s over maps of an unknown layout", d)
	}
	if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || ok {
		t.Errorf("attached %t, %v", ok, err)
	}
}

// The same program over someone's other maps is not this Fence's.
func TestOtherMapsAreNotAttached(t *testing.T) {
	n1, _ := twoNodes(t)
	n1.attach(t)
	other := openFence(t)
	for d := range directions {
		n1.replaceWith(t, d, programName(overlay, d), program(overlay, d, other.maps))
	}
	if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || ok {
		t.Errorf("attached %t, %v", ok, err)
	}
}

// A filter behind the fence still runs, stays, and its qdisc too.
func TestForeignFilters(t *testing.T) {
	n1, n2 := twoNodes(t)
	must(t, n1.h.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: n1.index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}}))
	hits, err := ebpf.NewMap(&ebpf.MapSpec{Name: "hits", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	must(t, err)
	t.Cleanup(func() { _ = hits.Close() })
	counter := asm.Instructions{
		asm.LoadMapValue(asm.R1, hits.FD(), 0),
		asm.Mov.Imm(asm.R2, 1),
		asm.AddAtomic.Mem(asm.R1, asm.R2, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, actUnspec), asm.Return(),
	}
	for d := range directions {
		n1.addFilter(t, d, 1, 1, "theirs", counter)
		n1.addFilter(t, d, 50, 1, "theirs too", counter)
	}
	n1.attach(t)
	n1.attach(t)
	for d := range directions {
		var names []string
		for _, f := range n1.filterList(t, d) {
			names = append(names, f.(*netlink.BpfFilter).Name)
		}
		if want := []string{programName(overlay, d), "theirs", "theirs too"}; !slices.Equal(names, want) {
			t.Errorf("%s: the kernel asks %q, want %q", programName(overlay, d), names, want)
		}
	}
	n1.armFor(t, time.Minute)
	c, s := n1.sender(t, "10.5.1.7"), n2.sink(t)
	var before, after uint64
	must(t, hits.Lookup(uint32(0), &before))
	passes(t, "with foreign filters", c, s, "10.5.2.7")
	must(t, hits.Lookup(uint32(0), &after))
	if after < before+2 {
		t.Errorf("the filters behind the fence were asked %d times, want 2", after-before)
	}

	qdiscs, err := n1.h.QdiscList(deviceOf(n1.index))
	must(t, err)
	if !slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "clsact" }) {
		t.Error("the clsact qdisc is gone")
	}
}

// A filter that somebody puts ahead of the fence later can let frames past it.
// The fence goes ahead of it, again and again, and never is there none: the
// closed overlay lets nothing through meanwhile. The other one is left alone.
func TestAheadOfLaterFilters(t *testing.T) {
	n1, n2 := twoNodes(t)
	n1.attach(t)
	c, s := n1.sender(t, "10.5.1.7"), n2.sink(t)
	letAll := asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	for i := range 3 {
		handle := uint32(i + 1)
		n1.addFilter(t, outward, filterPriority, handle, "ahead", letAll)
		passes(t, "past the fence", c, s, "10.5.2.7")
		if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || ok {
			t.Errorf("with a filter ahead: attached %t, %v", ok, err)
		}
		n1.attach(t)
		if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || !ok {
			t.Errorf("ahead again: attached %t, %v", ok, err)
		}
		drops(t, "ahead again", n1.fence, Closed, s, func() { send(t, c, "10.5.2.7", s.port, 1) })
		var theirs int
		for _, f := range n1.filterList(t, outward) {
			if f.(*netlink.BpfFilter).Name == "ahead" {
				theirs++
			}
		}
		if all := n1.filterList(t, outward); theirs != i+1 || len(all) != i+2 {
			t.Errorf("the kernel has %v, want %d of theirs and one of ours", all, i+1)
		}
	}
	// The next process knows the filter by either handle.
	n1.armFor(t, time.Minute)
	until := n1.fence.Deadline()
	must(t, n1.fence.Release())
	n1.fence = n1.open(t)
	if d := n1.fence.Deadline(); d != until {
		t.Errorf("found the deadline %s, want %s", d, until)
	}
}

// A process that ended while it moved the filter leaves two: one remains.
func TestTwoOfOurs(t *testing.T) {
	for _, behind := range []bool{false, true} {
		n1, _ := twoNodes(t)
		n1.attach(t)
		n1.replaceFilterAs(t, otherHandle(n1.fence.handle))
		if behind {
			n1.addFilter(t, outward, filterPriority, 1, "ahead", asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()})
		}
		if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || ok {
			t.Errorf("with two of ours: attached %t, %v", ok, err)
		}
		n1.attach(t)
		if _, ours := n1.fence.ours(n1.filterList(t, outward)); len(ours) != 1 {
			t.Errorf("%d filters of ours remain", len(ours))
		}
	}
}

func (n *node) replaceFilterAs(t *testing.T, handle uint32) {
	t.Helper()
	must(t, n.fence.replaceFilter(n.index, overlay, outward, handle))
}

// On an ingress qdisc the kernel accepts a filter for the way out and runs it
// on the way in. It is someone's, so it stays, and nothing is attached.
func TestIngressQdiscInTheWay(t *testing.T) {
	n1, _ := twoNodes(t)
	must(t, n1.h.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: n1.index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0),
	}}))
	if err := n1.fence.Attach(t.Context(), n1.index); !errors.Is(err, ErrQdisc) {
		t.Errorf("attached beside an ingress qdisc: %v", err)
	}
	if ok, err := n1.fence.Attached(t.Context(), n1.index); err != nil || ok {
		t.Errorf("attached %t, %v", ok, err)
	}
	if all := n1.filterList(t, inward); len(all) != 0 {
		t.Errorf("filters were added: %v", all)
	}
}

// A filter of another kind on our priority cannot share it.
func TestPriorityTaken(t *testing.T) {
	n1, _ := twoNodes(t)
	must(t, n1.fence.ensureClsact(n1.index))
	must(t, n1.h.FilterAdd(&netlink.U32{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: n1.index, Parent: netlink.HANDLE_MIN_EGRESS, Priority: filterPriority, Protocol: unix.ETH_P_ALL,
	}}))
	if err := n1.fence.Attach(t.Context(), n1.index); err == nil {
		t.Error("attached")
	}
}

func (n *node) replaceWith(t *testing.T, d direction, name string, insns asm.Instructions) {
	t.Helper()
	n.addFilter(t, d, filterPriority, n.fence.handle, name, insns)
}

func (n *node) addFilter(t *testing.T, d direction, priority uint16, handle uint32, name string, insns asm.Instructions) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "test", Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: insns})
	must(t, err)
	defer func() { _ = prog.Close() }()
	must(t, n.h.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: n.index, Parent: d.parent(), Priority: priority, Protocol: unix.ETH_P_ALL, Handle: handle},
		Fd:          prog.FD(), Name: name, DirectAction: true,
	}))
}
