package fence

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrShadowed says that someone else's filter on the device is asked before
// the fence, though the fence has just been put ahead of all: it can let frames
// past.
var ErrShadowed = errors.New("another filter runs ahead of the fence")

// ErrQdisc says that a qdisc without an outward side stands in the one place
// for clsact. It is not ours to remove.
var ErrQdisc = errors.New("another qdisc takes the place of clsact")

// ErrNoEthernet says that packets on the device begin with no Ethernet header, as
// on a tunnel for IP alone. The program would find no addresses in them, and in
// its form for an uplink let all of them pass.
var ErrNoEthernet = errors.New("packets there have no Ethernet header, in which the fence looks for what they are")

// filterPriority is asked first.
const filterPriority = 1

// filterHandle keeps our filter apart from other bpf filters of its priority:
// other instances' by the name, others' by the top bit, which the kernel never
// sets in a handle it chooses itself. The lowest bit is left to otherHandle.
func filterHandle(instance string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(instance))
	return (h.Sum32() | 1<<31) &^ 1
}

// otherHandle is the second handle that is ours. A filter is moved by putting
// it there anew, so that at no moment there is none.
func otherHandle(handle uint32) uint32 { return handle ^ 1 }

// parent is the side of the clsact qdisc that a direction hangs on.
func (d direction) parent() uint32 {
	if d == inward {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

// Attached reports whether the program of this build, over the maps of this
// Fence, is on both directions of the vxlan device, once and before anybody
// else's filter. A device that does not exist has none.
func (f *Fence) Attached(ctx context.Context, ifindex int) (bool, error) {
	return f.attachedBoth(ctx, ifindex, overlay)
}

// Attach puts the program on both directions of the vxlan device, in place of
// an earlier build's, in one step each. The maps are those of all the devices,
// and the deadline in them stands: it is absolute and belongs to the addresses
// beside it, so a device attached anew passes no longer than the others. A
// clsact qdisc that is there is used, other filters are left alone; but the
// fence goes ahead of one that was put before it. A device of which Attach has
// failed must be down.
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
// A device of another kind is refused with ErrNoEthernet.
func (f *Fence) AttachUplink(ctx context.Context, ifindex int) error {
	f.attaching.Lock()
	f.uplinks[ifindex] = true // also if only one direction is done
	f.attaching.Unlock()
	return f.attachBoth(ctx, ifindex, uplink)
}

// Uplinks are the devices that the program is on, or was tried to be put on, in
// the form for an uplink: by this process, or by an earlier one, where Open has
// found it. One that is gone may be among them. The error is nil.
func (f *Fence) Uplinks() ([]int, error) {
	f.attaching.Lock()
	defer f.attaching.Unlock()
	return slices.Sorted(maps.Keys(f.uplinks)), nil
}

// DetachUplink takes the program off again, once no direct route leads through
// the device any more: what is left would go on judging the host's packets
// within Network. The qdisc stays, it may be in use by others. A device without
// the program, or that is gone, is no error.
func (f *Fence) DetachUplink(ctx context.Context, ifindex int) error {
	f.attaching.Lock()
	defer f.attaching.Unlock()
	for d := range directions {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("detach the fence from device %d: %w", ifindex, err)
		}
		if err := detach(f.links, ifindex, d, f.handle); err != nil {
			return err
		}
	}
	delete(f.uplinks, ifindex)
	return nil
}

func detach(h *netlink.Handle, ifindex int, d direction, handle uint32) error {
	filters, err := listFilters(h, ifindex, d)
	if err != nil {
		return err
	}
	return removeFilters(h, ifindex, slices.DeleteFunc(filters, func(g netlink.Filter) bool { return !owned(g, handle) }))
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
	if k == uplink {
		if err := f.wantEthernet(ifindex); err != nil {
			return err
		}
	}
	if err := f.ensureClsact(ifindex); err != nil {
		return err
	}
	for d := range directions {
		if err := f.putFilter(ifindex, k, d); err != nil {
			return err
		}
		if err := f.verify(ifindex, k, d); err != nil {
			return err
		}
	}
	return nil
}

// wantEthernet refuses a device whose packets the program cannot read.
func (f *Fence) wantEthernet(ifindex int) error {
	link, err := f.links.LinkByIndex(ifindex)
	if err != nil {
		return fmt.Errorf("find device %d: %w", ifindex, err)
	}
	if a := link.Attrs(); a.EncapType != "ether" && a.EncapType != "loopback" {
		return fmt.Errorf("attach the fence to %s as an uplink: %w (%s)", a.Name, ErrNoEthernet, a.EncapType)
	}
	return nil
}

// verify reads back what putFilter has done.
func (f *Fence) verify(ifindex int, k form, d direction) error {
	ok, err := f.attached(ifindex, k, d)
	if err != nil || ok {
		return err
	}
	filters, err := f.filters(ifindex, d)
	if err != nil {
		return err
	}
	if at, _ := f.ours(filters); at > 0 {
		if first := ahead(filters[:at]); first != nil {
			return fmt.Errorf("attach %s to device %d: %s filter with priority %d and handle %#x: %w",
				programName(k, d), ifindex, first.Type(), first.Attrs().Priority, first.Attrs().Handle, ErrShadowed)
		}
	}
	return fmt.Errorf("attach %s to device %d: the kernel took the filter but does not show it", programName(k, d), ifindex)
}

// attached looks at one direction. A filter of ours behind somebody else's is
// as good as none: that one may end the walk.
func (f *Fence) attached(ifindex int, k form, d direction) (bool, error) {
	filters, err := f.filters(ifindex, d)
	if err != nil {
		return false, err
	}
	at, ours := f.ours(filters)
	if len(ours) != 1 || ahead(filters[:at]) != nil {
		return false, nil
	}
	one := ours[0]
	if !one.DirectAction || one.Tag != f.programs[k][d].tag {
		return false, nil
	}
	there, err := programByID(one.Id)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("inspect filter %s on device %d: %w", one.Name, ifindex, err)
	}
	return slices.Equal(there, f.programs[k][d].maps), nil
}

// ours are the filters of this instance, and where the first one stands.
func (f *Fence) ours(filters []netlink.Filter) (at int, ours []*netlink.BpfFilter) {
	at = slices.IndexFunc(filters, f.owns)
	for _, filter := range filters {
		if f.owns(filter) {
			ours = append(ours, filter.(*netlink.BpfFilter))
		}
	}
	return at, ours
}

// ahead is the first of the filters that can end the walk, nil if none can.
func ahead(filters []netlink.Filter) netlink.Filter {
	if i := slices.IndexFunc(filters, isForeign); i >= 0 {
		return filters[i]
	}
	return nil
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

// putFilter makes our filter the first one and the only one of ours. The kernel
// puts a new filter before those of the same priority, and leaves one that is
// replaced where it stands: so one that somebody got ahead of is put anew under
// our other handle, and only then the one behind is removed.
func (f *Fence) putFilter(ifindex int, k form, d direction) error {
	filters, err := f.filters(ifindex, d)
	if err != nil {
		return err
	}
	handle := f.handle
	at, old := f.ours(filters)
	if at >= 0 {
		handle = old[0].Handle
		if ahead(filters[:at]) == nil {
			old = old[1:]
		} else if handle = otherHandle(handle); len(old) > 1 {
			// Both stand behind: the handle is free once the second is gone.
			if err := removeFilters(f.links, ifindex, asFilters(old[1:])); err != nil {
				return err
			}
			old = old[:1]
		}
	}
	if err := f.replaceFilter(ifindex, k, d, handle); err != nil {
		return err
	}
	return removeFilters(f.links, ifindex, asFilters(old))
}

func asFilters(all []*netlink.BpfFilter) []netlink.Filter {
	out := make([]netlink.Filter, len(all))
	for i, filter := range all {
		out[i] = filter
	}
	return out
}

func removeFilters(h *netlink.Handle, ifindex int, all []netlink.Filter) error {
	for _, filter := range all {
		err := h.FilterDel(filter)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove filter with priority %d and handle %#x from device %d: %w",
				filter.Attrs().Priority, filter.Attrs().Handle, ifindex, err)
		}
	}
	return nil
}

// replaceFilter writes our filter. Priority, protocol and handle are fixed, so
// the kernel exchanges the program of the filter that is there, without a
// moment in between and without a second one beside it.
func (f *Fence) replaceFilter(ifindex int, k form, d direction, handle uint32) error {
	err := f.links.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifindex,
			Parent:    d.parent(),
			Priority:  filterPriority,
			Protocol:  unix.ETH_P_ALL,
			Handle:    handle,
		},
		Fd:           f.programs[k][d].prog.FD(),
		Name:         programName(k, d),
		DirectAction: true,
	})
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("attach %s to device %d: %w (is there a filter of another kind or protocol with priority %d? The fence must be asked first)",
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
	return listFilters(f.links, ifindex, d)
}

func listFilters(h *netlink.Handle, ifindex int, d direction) ([]netlink.Filter, error) {
	if ifindex <= 0 {
		return nil, fmt.Errorf("list the filters of device %d: no such index", ifindex)
	}
	all, err := h.FilterList(deviceOf(ifindex), d.parent())
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

func (f *Fence) owns(filter netlink.Filter) bool { return owned(filter, f.handle) }

// owned knows the filters of an instance by where they are and by their handle.
func owned(filter netlink.Filter, handle uint32) bool {
	_, bpf := filter.(*netlink.BpfFilter)
	a := filter.Attrs()
	return bpf && a.Priority == filterPriority && a.Protocol == unix.ETH_P_ALL &&
		(a.Handle == handle || a.Handle == otherHandle(handle))
}

// isUplink knows those on an uplink by their name.
func isUplink(filter netlink.Filter) bool {
	b, bpf := filter.(*netlink.BpfFilter)
	return bpf && (b.Name == programName(uplink, inward) || b.Name == programName(uplink, outward))
}

// isForeign is false for the filters of other instances: they give no verdict
// on what they pass, so they may come first.
func isForeign(filter netlink.Filter) bool {
	b, bpf := filter.(*netlink.BpfFilter)
	return !bpf || !strings.HasPrefix(b.Name, namePrefix)
}

// find takes over the maps that an earlier process's filters use.
func (f *Fence) find(links []string) error {
	devices, err := devices(f.links, links)
	if err != nil {
		return err
	}
	for _, link := range devices {
		// The inward program names every map, the outward one all but the tokens.
		for _, d := range []direction{inward, outward} {
			if err := f.adopt(link.Attrs().Index, d); err != nil {
				return fmt.Errorf("find the earlier fence on %s: %w", link.Attrs().Name, err)
			}
		}
	}
	return nil
}

// dumpTries bounds how often a list is asked for that pods coming and going
// have torn.
const dumpTries = 10

// devices are the links of these names, as far as there are, or all for nil.
func devices(h *netlink.Handle, names []string) ([]netlink.Link, error) {
	all, err := h.LinkList()
	for try := 1; try < dumpTries && errors.Is(err, netlink.ErrDumpInterrupted); try++ {
		all, err = h.LinkList()
	}
	if err != nil {
		return nil, fmt.Errorf("list the devices: %w", err)
	}
	return slices.DeleteFunc(all, func(l netlink.Link) bool {
		return names != nil && !slices.Contains(names, l.Attrs().Name)
	}), nil
}

// Bare names those of the devices o.Links that lack the filter of this instance
// in either direction. It loads nothing, so it also tells on a machine where
// Open fails: a vxlan device without the fence must be down there. What program
// hangs on a filter is not judged: an earlier process's shuts at its deadline.
func Bare(o Options) (bare []string, err error) {
	err = survey(o, func(link netlink.Link, own [directions][]netlink.Filter) {
		if len(own[outward]) == 0 || len(own[inward]) == 0 {
			bare = append(bare, link.Attrs().Name)
		}
	})
	return bare, err
}

// Uplinks are those of the devices o.Links that bear the filter of this
// instance in the form for an uplink, in either direction. Like Bare it loads
// nothing, so it also finds what is to be removed for good.
func Uplinks(o Options) (found []int, err error) {
	err = survey(o, func(link netlink.Link, own [directions][]netlink.Filter) {
		if slices.ContainsFunc(slices.Concat(own[:]...), isUplink) {
			found = append(found, link.Attrs().Index)
		}
	})
	return found, err
}

// survey shows the filters that the instance has in each direction on each of the
// devices o.Links. Where it fails, what it has shown is not all.
func survey(o Options, show func(link netlink.Link, own [directions][]netlink.Filter)) error {
	h, err := openLinks(o.NetNS)
	if err != nil {
		return err
	}
	defer h.Close()
	all, err := devices(h, o.Links)
	if err != nil {
		return err
	}
	handle := filterHandle(o.Instance)
	for _, link := range all {
		var own [directions][]netlink.Filter
		for d := range directions {
			filters, err := listFilters(h, link.Attrs().Index, d)
			if err != nil {
				return err
			}
			own[d] = slices.DeleteFunc(filters, func(f netlink.Filter) bool { return !owned(f, handle) })
		}
		show(link, own)
	}
	return nil
}

// RemoveUplink is DetachUplink where there is no Fence: of an instance that is
// taken off the machine.
func RemoveUplink(o Options, ifindex int) error {
	h, err := openLinks(o.NetNS)
	if err != nil {
		return err
	}
	defer h.Close()
	for d := range directions {
		if err := detach(h, ifindex, d, filterHandle(o.Instance)); err != nil {
			return err
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
	if isUplink(filters[at]) {
		f.uplinks[ifindex] = true
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
