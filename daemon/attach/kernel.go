package attach

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	kindVeth   = "veth"
	kindBridge = "bridge"

	// answerTimeout bounds the wait for the kernel's answer to one request.
	answerTimeout = 5 * time.Second
	// dumpTries is how often a dump is read that the kernel calls torn: a
	// list that changed while it was read proves nothing about what it lacks.
	dumpTries = 5
)

// kernel is both sides of one attachment for the length of one call.
type kernel struct {
	host, pod *netlink.Handle
	podNS     *os.File
}

// openHandle returns a netlink handle in a namespace; None is the process's own.
func openHandle(at netns.NsHandle) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(at, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink handle: %w", err)
	}
	if err := h.SetSocketTimeout(answerTimeout); err != nil {
		h.Close()
		return nil, fmt.Errorf("open netlink handle: %w", err)
	}
	return h, nil
}

// openKernel takes podNS over, also when it fails.
func openKernel(host netns.NsHandle, podNS *os.File) (*kernel, error) {
	hostHandle, err := openHandle(host)
	if err != nil {
		_ = podNS.Close()
		return nil, fmt.Errorf("host: %w", err)
	}
	podHandle, err := openHandle(netns.NsHandle(podNS.Fd()))
	if err != nil {
		hostHandle.Close()
		_ = podNS.Close()
		return nil, fmt.Errorf("pod: %w", err)
	}
	return &kernel{hostHandle, podHandle, podNS}, nil
}

func (k *kernel) close() {
	k.host.Close()
	k.pod.Close()
	_ = k.podNS.Close()
}

// read takes the state of everything w speaks of.
func (k *kernel) read(w Want) (State, error) {
	var have State
	bridge, err := linkByName(k.host, w.Bridge)
	if err != nil {
		return State{}, err
	}
	if bridge != nil && bridge.Type() == kindBridge {
		have.Bridge = bridge.Attrs().Index
	}
	host, err := linkByName(k.host, w.HostName())
	if err != nil {
		return State{}, err
	}
	pod, err := linkByName(k.pod, w.Owner.IfName)
	if err != nil {
		return State{}, fmt.Errorf("in the pod: %w", err)
	}
	have.Host, have.Pod = asLink(host), asLink(pod)
	if host == nil || pod == nil {
		return have, nil
	}
	if have.Paired, err = k.paired(host, pod); err != nil || !have.Paired {
		return have, err
	}
	if have.onBridge() {
		if have.Host.Hairpin, err = k.hairpin(host); err != nil {
			return State{}, err
		}
	}
	return have, k.readPod(pod, &have)
}

// paired reports whether two links are the ends of one veth. Indexes alone do
// not tell: each namespace counts for itself.
func (k *kernel) paired(host, pod netlink.Link) (bool, error) {
	h, p := host.Attrs(), pod.Attrs()
	if host.Type() != kindVeth || pod.Type() != kindVeth || h.ParentIndex != p.Index || p.ParentIndex != h.Index || h.NetNsID < 0 {
		return false, nil
	}
	id, err := k.host.GetNetNsIdByFd(int(k.podNS.Fd()))
	if err != nil {
		return false, fmt.Errorf("get id of the pod's namespace: %w", err)
	}
	return id == h.NetNsID, nil
}

func (k *kernel) hairpin(port netlink.Link) (bool, error) {
	info, err := untorn(func() (netlink.Protinfo, error) { return k.host.LinkGetProtinfo(port) })
	if err != nil {
		return false, fmt.Errorf("get bridge port %s: %w", port.Attrs().Name, err)
	}
	return info.Hairpin, nil
}

func (k *kernel) readPod(pod netlink.Link, have *State) error {
	name := pod.Attrs().Name
	addrs, err := untorn(func() ([]netlink.Addr, error) { return k.pod.AddrList(pod, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses of %s in the pod: %w", name, err)
	}
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			bits, _ := a.Mask.Size()
			have.Addrs = append(have.Addrs, netip.PrefixFrom(addr.Unmap(), bits))
		}
	}
	routes, err := untorn(func() ([]netlink.Route, error) { return k.pod.RouteList(pod, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list routes of %s in the pod: %w", name, err)
	}
	for _, r := range routes {
		if gw, ok := netip.AddrFromSlice(r.Gw); ok && isDefault(r.Dst) {
			have.Gateways = append(have.Gateways, gw.Unmap())
		}
	}
	return nil
}

func isDefault(dst *net.IPNet) bool {
	if dst == nil {
		return true
	}
	bits, _ := dst.Mask.Size()
	return bits == 0
}

// untorn reads again while the kernel says that a dump was interrupted.
func untorn[T any](read func() (T, error)) (T, error) {
	for try := 1; ; try++ {
		v, err := read()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == dumpTries {
			return v, err
		}
	}
}

// linkByName returns nil for an absent link.
func linkByName(h *netlink.Handle, name string) (netlink.Link, error) {
	l, err := h.LinkByName(name)
	var absent netlink.LinkNotFoundError
	switch {
	case errors.As(err, &absent):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get link %s: %w", name, err)
	}
	return l, nil
}

func asLink(l netlink.Link) Link {
	if l == nil {
		return Link{}
	}
	a := l.Attrs()
	out := Link{
		Index: a.Index, Name: a.Name, Kind: l.Type(), Alias: a.Alias, MTU: a.MTU,
		Up: a.Flags&net.FlagUp != 0, Master: a.MasterIndex,
	}
	copy(out.MAC[:], a.HardwareAddr)
	return out
}

// apply does one Op on the links of have, which it keeps up to date with the
// links that it makes.
func (k *kernel) apply(o Op, w Want, have *State) error {
	h, end := k.host, &have.Host
	if o.Pod {
		h, end = k.pod, &have.Pod
	}
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: o.Link, Index: end.Index}}
	switch o.Action {
	case DeleteHost:
		return deleteLink(h, end.Index)
	case CreatePair:
		return k.createPair(w, have)
	case SetAlias:
		return h.LinkSetAlias(link, Alias(w.Owner, w.Addrs))
	case SetMTU:
		return h.LinkSetMTU(link, w.MTU)
	case JoinBridge:
		return h.LinkSetMasterByIndex(link, have.Bridge)
	case SetHairpin:
		return h.LinkSetHairpin(link, true)
	case SetMAC:
		mac := w.HardwareAddr()
		return h.LinkSetHardwareAddr(link, mac[:])
	case SetUp:
		return k.setUp(h, link, o.Pod, w, have.Host.Index)
	case AddAddr:
		return k.addAddr(link, o.Addr)
	case AddRoute:
		return k.addRoute(end.Index, o.Gateway)
	}
	return fmt.Errorf("unknown action %d", o.Action)
}

// createPair makes both ends in one request, so that the pod's end is born in
// the pod, under its name and with its MAC.
func (k *kernel) createPair(w Want, have *State) error {
	hostAddr, podAddr := hostMAC(w.Owner.Instance, w.HostName()), w.HardwareAddr()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = w.HostName(), w.MTU, hostAddr[:]
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr = w.Owner.IfName, podAddr[:]
	veth.PeerNamespace = netlink.NsFd(k.podNS.Fd())
	if err := k.host.LinkAdd(veth); err != nil {
		return err
	}
	have.Host.Index = veth.Attrs().Index // LinkAdd has looked it up
	pod, err := linkByName(k.pod, w.Owner.IfName)
	if err != nil {
		return fmt.Errorf("in the pod: %w", err)
	}
	if have.Host.Index == 0 || pod == nil {
		return fmt.Errorf("the new pair is gone: %w", unix.ENODEV)
	}
	have.Pod.Index = pod.Attrs().Index
	return nil
}

// setUp sets an end up. What the pod shall not believe is set before its end
// hears anything.
func (k *kernel) setUp(h *netlink.Handle, link netlink.Link, pod bool, w Want, host int) error {
	if pod {
		if err := k.believeNobody(link.Attrs().Name, w.hasIPv6()); err != nil {
			return err
		}
	}
	if err := h.LinkSetUp(link); err != nil || !pod {
		return err
	}
	k.awaitCarrier(host)
	return nil
}

// believeNobody keeps the pod's end from what others on the bridge say of ways.
// Any pod there can pretend to be a router, and would get the packets of those
// that believe it: of pods without an address of IPv6 too, since the kernel gives
// them one by which they ask. And a shorter way that the node tells of (of IPv4 it
// tells of none) may lead to a stranded pod, and would outlive it. A pod that wants
// it otherwise says so, by the plugin tuning for example, which comes later.
//
// A pod without IPv6 does not fail for it: there may be no such settings, or
// none that can be written.
func (k *kernel) believeNobody(ifName string, six bool) error {
	settings := map[string]string{"accept_ra": "0"}
	if six {
		settings["accept_redirects"] = "0"
	}
	err := k.setIPv6(ifName, settings)
	if !six && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) {
		return nil
	}
	return err
}

// addAddr turns IPv6 on where a runtime has turned it off for the pod.
func (k *kernel) addAddr(link netlink.Link, p netip.Prefix) error {
	addr := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is4() {
		return k.pod.AddrReplace(link, addr)
	}
	addr.Flags = unix.IFA_F_NODAD // the address is ours alone, and is needed at once
	err := k.pod.AddrReplace(link, addr)
	if errors.Is(err, unix.EACCES) {
		if err := k.setIPv6(link.Attrs().Name, map[string]string{"disable_ipv6": "0"}); err != nil {
			return err
		}
		err = k.pod.AddrReplace(link, addr)
	}
	if err != nil {
		return err
	}
	return k.awaitAddr(p.Addr())
}

// addrSettle bounds the wait for an IPv6 address, together with as long before.
const addrSettle = 500 * time.Millisecond

// awaitAddr waits until the kernel takes in what comes for an IPv6 address. It
// answers before that, and a pod could be asked, or ask, meanwhile in vain.
func (k *kernel) awaitAddr(addr netip.Addr) error {
	for wait := 200 * time.Microsecond; wait < addrSettle; wait *= 2 {
		routes, err := k.pod.RouteGet(addr.AsSlice())
		if err != nil && !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
			return fmt.Errorf("ask for the route to itself: %w", err)
		}
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		time.Sleep(wait)
	}
	return fmt.Errorf("the kernel did not take the address in: %w", unix.ETIMEDOUT)
}

// setIPv6 makes settings of IPv6 on an interface of the pod.
func (k *kernel) setIPv6(ifName string, settings map[string]string) error {
	return ns.WithNetNSPath(fmt.Sprintf("/proc/self/fd/%d", k.podNS.Fd()), func(ns.NetNS) error {
		for name, value := range settings {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+ifName+"/"+name, []byte(value), 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// carrierSettle bounds the wait for the host end, together with as long before.
const carrierSettle = 100 * time.Millisecond

// awaitCarrier waits until the host end lets packets pass. With the pod's end up
// it has a carrier, but the kernel opens its queue and the bridge's port behind
// our back; what the pod sends before that is lost, and asked again only after
// a second. It is no failure if that takes long.
func (k *kernel) awaitCarrier(host int) {
	for wait := 100 * time.Microsecond; wait < carrierSettle; wait *= 2 {
		l, err := k.host.LinkByIndex(host)
		if err != nil || l.Attrs().OperState == netlink.OperUp {
			return
		}
		time.Sleep(wait)
	}
}

// addRoute appends: where the pod has a default route over another interface,
// that one goes on to be used, and this one stands by.
func (k *kernel) addRoute(link int, gw netip.Addr) error {
	all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	if gw.Is4() {
		all = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	err := k.pod.RouteAppend(&netlink.Route{LinkIndex: link, Dst: ipNet(all), Gw: gw.AsSlice()})
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// deleteLink deletes the veth at an index, and with it its other end. The
// link may go by itself meanwhile, with the namespace of its other end.
func deleteLink(h *netlink.Handle, index int) error {
	err := h.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}})
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
