package fence

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrShadowed says that someone else's filter on the device is asked before
// the fence and can let frames past it.
var ErrShadowed = errors.New("another filter runs ahead of the fence")

// ErrQdisc says that a qdisc without an outward side stands in the one place
// for clsact. It is not ours to remove.
var ErrQdisc = errors.New("another qdisc takes the place of clsact")

// filterPriority is asked first.
const filterPriority = 1

// filterHandle keeps our filter apart from other bpf filters of its priority:
// other instances' by the name, others' by the top bit, which the kernel never
// sets in a handle it chooses itself.
func filterHandle(instance string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(instance))
	return h.Sum32() | 1<<31
}

// parent is the side of the clsact qdisc that a direction hangs on.
func (d direction) parent() uint32 {
	if d == inward {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

// Attached reports whether the program of this build, over the maps of this
// Fence, is on both directions of the vxlan device. A device that does not
// exist has none. The error wraps ErrShadowed if it is there, but a foreign
// filter is asked before it.
func (f *Fence) Attached(ctx context.Context, ifindex int) (bool, error) {
	return f.attachedBoth(ctx, ifindex, overlay)
}

// Attach puts the program on both directions of the vxlan device, in place of
// an earlier build's, in one step each. The maps are those of all the devices,
// and the deadline in them stands: it is absolute and belongs to the addresses
// beside it, so a device attached anew passes no longer than the others. A
// clsact qdisc that is there is used, other filters are left alone. A device
// of which Attach has failed must be down.
func (f *Fence) Attach(ctx context.Context, ifindex int) error {
	return f.attachBoth(ctx, ifindex, overlay)
}

// AttachedUplink is Attached for AttachUplink.
func (f *Fence) AttachedUplink(ctx context.Context, ifindex int) (bool, error) {
	return f.attachedBoth(ctx, ifindex, uplink)
}

// AttachUplink is Attach for the Ethernet device that direct routes lead
// through. There the program judges only packets whose source and destination
// both lie in Network, by deadline and addresses but not by token, and lets
// everything else pass, open or shut. Direct routes must not exist before it.
func (f *Fence) AttachUplink(ctx context.Context, ifindex int) error {
	return f.attachBoth(ctx, ifindex, uplink)
}

func (f *Fence) attachedBoth(ctx context.Context, ifindex int, k form) (bool, error) {
	f.attaching.Lock()
	defer f.attaching.Unlock()
	for d := range directions {
		if err := ctx.Err(); err != nil {
			return false, fmt.Errorf("look for the fence on device %d: %w", ifindex, err)
		}
		ok, err := f.attached(ifindex, k, d)
		if err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

func (f *Fence) attachBoth(ctx context.Context, ifindex int, k form) error {
	f.attaching.Lock()
	defer f.attaching.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("attach the fence to device %d: %w", ifindex, err)
	}
	if err := f.ensureClsact(ifindex); err != nil {
		return err
	}
	for d := range directions {
		if err := f.replaceFilter(ifindex, k, d); err != nil {
			return err
		}
		ok, err := f.attached(ifindex, k, d)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("attach %s to device %d: the kernel took the filter but does not show it", programName(k, d), ifindex)
		}
	}
	return nil
}

func (f *Fence) attached(ifindex int, k form, d direction) (bool, error) {
	filters, err := f.filters(ifindex, d)
	if err != nil {
		return false, err
	}
	at := slices.IndexFunc(filters, f.owns)
	if at < 0 {
		return false, nil
	}
	ours := filters[at].(*netlink.BpfFilter)
	if !ours.DirectAction || ours.Tag != f.programs[k][d].tag {
		return false, nil
	}
	there, err := programByID(ours.Id)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("inspect filter %s on device %d: %w", ours.Name, ifindex, err)
	}
	if !slices.Equal(there, f.programs[k][d].maps) {
		return false, nil
	}
	if i := slices.IndexFunc(filters[:at], isForeign); i >= 0 {
		first := filters[i].Attrs()
		return false, fmt.Errorf("%s on device %d: %s filter with priority %d and handle %#x: %w",
			programName(k, d), ifindex, filters[i].Type(), first.Priority, first.Handle, ErrShadowed)
	}
	return true, nil
}

// ensureClsact adds the qdisc that both directions hang on, unless there is
// one, whoever made it. An ingress qdisc in its place must be refused here: the
// kernel would take the outward filter without complaint, and run it inward.
func (f *Fence) ensureClsact(ifindex int) error {
	qdiscs, err := f.links.QdiscList(deviceOf(ifindex))
	if err != nil {
		return fmt.Errorf("list the qdiscs of device %d: %w", ifindex, err)
	}
	for _, q := range qdiscs {
		if q.Attrs().Parent != netlink.HANDLE_CLSACT {
			continue
		}
		if q.Type() != "clsact" {
			return fmt.Errorf("device %d: %w: %s", ifindex, ErrQdisc, q.Type())
		}
		return nil
	}
	err = f.links.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex,
		Parent:    netlink.HANDLE_CLSACT,
		Handle:    netlink.MakeHandle(0xffff, 0),
	}})
	if err != nil {
		return fmt.Errorf("add clsact qdisc to device %d: %w", ifindex, err)
	}
	return nil
}

// replaceFilter writes our filter. Priority, protocol and handle are fixed, so
// the kernel exchanges the program of the filter that is there, without a
// moment in between and without a second one beside it.
func (f *Fence) replaceFilter(ifindex int, k form, d direction) error {
	err := f.links.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifindex,
			Parent:    d.parent(),
			Priority:  filterPriority,
			Protocol:  unix.ETH_P_ALL,
			Handle:    f.handle,
		},
		Fd:           f.programs[k][d].prog.FD(),
		Name:         programName(k, d),
		DirectAction: true,
	})
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("attach %s to device %d: %w (is there a filter of another kind with priority %d?)",
			programName(k, d), ifindex, err, filterPriority)
	}
	if err != nil {
		return fmt.Errorf("attach %s to device %d: %w", programName(k, d), ifindex, err)
	}
	return nil
}

// filters lists one direction's filters in the order in which the kernel asks
// them: chain 0, by priority, and within a priority as bpf keeps them.
func (f *Fence) filters(ifindex int, d direction) ([]netlink.Filter, error) {
	if ifindex <= 0 {
		return nil, fmt.Errorf("list the filters of device %d: no such index", ifindex)
	}
	all, err := f.links.FilterList(deviceOf(ifindex), d.parent())
	if err != nil {
		return nil, fmt.Errorf("list the filters of device %d: %w", ifindex, err)
	}
	return slices.DeleteFunc(all, func(filter netlink.Filter) bool {
		chain := filter.Attrs().Chain
		return chain != nil && *chain != 0
	}), nil
}

// deviceOf is all of a link that tc calls look at.
func deviceOf(ifindex int) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
}

func (f *Fence) owns(filter netlink.Filter) bool {
	_, bpf := filter.(*netlink.BpfFilter)
	a := filter.Attrs()
	return bpf && a.Priority == filterPriority && a.Protocol == unix.ETH_P_ALL && a.Handle == f.handle
}

// isForeign is false for the filters of other instances: they give no verdict
// on what they pass, so they may come first.
func isForeign(filter netlink.Filter) bool {
	b, bpf := filter.(*netlink.BpfFilter)
	return !bpf || !strings.HasPrefix(b.Name, namePrefix)
}

// find takes over the maps that an earlier process's filters use.
func (f *Fence) find(links []string) error {
	for _, name := range links {
		link, err := f.links.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look up device %s: %w", name, err)
		}
		// The inward program names every map, the outward one all but the tokens.
		for _, d := range []direction{inward, outward} {
			if err := f.adopt(link.Attrs().Index, d); err != nil {
				return fmt.Errorf("find the earlier fence on %s: %w", name, err)
			}
		}
	}
	return nil
}

func (f *Fence) adopt(ifindex int, d direction) error {
	filters, err := f.filters(ifindex, d)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(filters, f.owns)
	if at < 0 {
		return nil
	}
	ids, err := programByID(filters[at].(*netlink.BpfFilter).Id)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.maps.adopt(ids)
}

// programByID lists the maps of a loaded program. The error is os.ErrNotExist
// once the program is gone.
func programByID(id int) ([]ebpf.MapID, error) {
	prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return nil, fmt.Errorf("open program %d: %w", id, err)
	}
	l, err := inspect(prog)
	if err := errors.Join(err, prog.Close()); err != nil {
		return nil, fmt.Errorf("inspect program %d: %w", id, err)
	}
	return l.maps, nil
}
