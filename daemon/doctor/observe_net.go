package doctor

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
)

// Programs that manage devices.
const (
	networkd       = "systemd-networkd"
	networkManager = "NetworkManager"
)

// observeLinks reads the devices, their addresses, and how the peers are
// reached. A torn dump is as good as any: nothing is written by it.
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
	addrs, _ := h.AddrList(nil, netlink.FAMILY_V4)
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP.To4())
		bits, _ := a.Mask.Size()
		one, known := f.Links[names[a.LinkIndex]]
		if ok && known {
			one.Addrs = append(one.Addrs, netip.PrefixFrom(ip, bits))
			f.Links[names[a.LinkIndex]] = one
		}
	}
	if f.Underlay == "" {
		f.Underlay = defaultWay(h, names)
	}
	f.observeWays(h, names)
}

// defaultWay is the device of the default route.
func defaultWay(h *netlink.Handle, names map[int]string) string {
	routes, _ := h.RouteList(nil, netlink.FAMILY_V4)
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP.IsUnspecified() {
			return names[r.LinkIndex]
		}
	}
	return ""
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
