package doctor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/tenure-cni/tenure/daemon/dataplane"
)

// Programs that manage devices.
const (
	networkd       = "systemd-networkd"
	networkManager = "NetworkManager"
)

// dumpTries bounds how often a dump is read that the kernel calls torn, for pods
// come and go: an address that it lacks would be missed.
const dumpTries = 10

// observeLinks reads the devices, their addresses, and how the peers are
// reached. Of other dumps a torn one is as good as any: nothing is written by it.
func (f *Facts) observeLinks() {
	f.Links = map[string]Link{}
	h, err := netlink.NewHandle()
	if err != nil {
		return
	}
	defer h.Close()
	links, _ := h.LinkList()
	names := map[int]string{}
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		one := Link{Kind: l.Type(), MTU: a.MTU, Up: a.RawFlags&1 != 0, Alias: a.Alias, Manager: managerOf("/run", a.Index)}
		if v, ok := l.(*netlink.Vxlan); ok {
			one.VNI, one.Port = v.VxlanId, v.Port
		}
		f.Links[a.Name] = one
	}
	addrs, err := h.AddrList(nil, netlink.FAMILY_ALL)
	for try := 1; errors.Is(err, netlink.ErrDumpInterrupted) && try < dumpTries; try++ {
		addrs, err = h.AddrList(nil, netlink.FAMILY_ALL)
	}
	for _, a := range addrs {
		if one, known := f.Links[names[a.LinkIndex]]; known {
			f.Links[names[a.LinkIndex]] = one.with(a)
		}
	}
	if f.Underlay == "" {
		f.Underlay = defaultWay(h, names)
	}
	f.observeWays(h, names)
}

// with is the link with one more address.
func (l Link) with(a netlink.Addr) Link {
	ip, ok := netip.AddrFromSlice(a.IP)
	if !ok {
		return l
	}
	ip = ip.Unmap()
	bits, _ := a.Mask.Size()
	l.Addrs = append(l.Addrs, netip.PrefixFrom(ip, bits))
	if why := dataplane.Unfit(ip, a.Scope, a.Flags); why != "" {
		if l.Unfit == nil {
			l.Unfit = map[netip.Addr]string{}
		}
		l.Unfit[ip] = why
	}
	return l
}

// defaultWay is the device of the default route: that of IPv4, or of IPv6 where
// there is no other.
func defaultWay(h *netlink.Handle, names map[int]string) string {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, _ := h.RouteList(nil, family)
		for _, r := range routes {
			if name := names[r.LinkIndex]; name != "" && (r.Dst == nil || isDefault(r.Dst)) {
				return name
			}
		}
	}
	return ""
}

func isDefault(dst *net.IPNet) bool {
	ones, _ := dst.Mask.Size()
	return ones == 0 && dst.IP.IsUnspecified()
}

// mostWays bounds how many peers' ways are asked for.
const mostWays = 100

func (f *Facts) observeWays(h *netlink.Handle, names map[int]string) {
	f.Ways = map[netip.Addr]string{}
	if f.Status == nil {
		return
	}
	for _, p := range f.Status.Peers {
		addr, err := netip.ParseAddr(p.PublicIP)
		if err != nil || len(f.Ways) >= mostWays {
			continue
		}
		routes, err := h.RouteGet(addr.AsSlice())
		if err == nil && len(routes) > 0 {
			f.Ways[addr] = names[routes[0].LinkIndex]
		}
	}
}

// managerOf asks the files that network managers keep for each device.
func managerOf(run string, index int) string {
	holds := func(path, text string) bool {
		b, err := os.ReadFile(filepath.Join(run, path, fmt.Sprint(index)))
		return err == nil && strings.Contains(string(b), text)
	}
	switch {
	case holds("NetworkManager/devices", "managed=true"):
		return networkManager
	case holds("systemd/netif/links", "NETWORK_FILE="):
		return networkd
	}
	return ""
}
