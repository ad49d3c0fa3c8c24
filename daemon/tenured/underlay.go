package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/node"
)

// underlay finds the interface and address through which this node reaches
// the others, and looks again every few seconds: an interface may come up
// after the daemon, or get another address.
type underlay struct {
	cfg    conf.Daemon
	log    *slog.Logger
	handle *netlink.Handle

	// onChange is told after another underlay was found; nil is nobody.
	onChange func()
	// onLook is told, before that, of all addresses of this machine at each
	// look, and says how many connections it gave up; nil is nobody.
	onLook func(present []netip.Addr) int
	// onLinks is told of all links and addresses at each look; nil is nobody.
	onLinks func([]netlink.Link, []netlink.Addr)
	// onTaken is told when what pods must not share has changed; nil is nobody.
	onTaken func()
	// reached are the addresses of etcd that there are connections to; nil is
	// none.
	reached func() []netip.Addr
	// resolv is the file that names the name servers.
	resolv string
	// last is what lookAtTaken saw last, for Run alone.
	last []string

	mu    sync.Mutex
	found node.Underlay
	err   error
}

// underlayLook is how soon a changed underlay is noticed.
const underlayLook = 2 * time.Second

// resolveTimeout bounds the look-up of one etcd endpoint's name.
const resolveTimeout = 5 * time.Second

// errNotLooked stands until the first look.
var errNotLooked = errors.New("the underlay interface has not been looked for yet")

func newUnderlay(cfg conf.Daemon, log *slog.Logger) (*underlay, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &underlay{cfg: cfg, log: log, handle: h, resolv: resolvConf, err: errNotLooked}, nil
}

// Get is the last one found; false while there has been none.
func (u *underlay) Get() (node.Underlay, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.found, u.found.PublicIP.IsValid()
}

// Ready says why there is none; nil where there is.
func (u *underlay) Ready() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.found.PublicIP.IsValid() {
		return nil
	}
	return fmt.Errorf("no underlay address yet: %w", u.err)
}

// Run looks until ctx ends. What was found once stays in use while nothing
// better can be found.
func (u *underlay) Run(ctx context.Context) error {
	for {
		u.look(ctx)
		t := time.NewTimer(underlayLook)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

func (u *underlay) look(ctx context.Context) {
	links, err := u.links()
	var found node.Underlay
	if err == nil {
		found, err = u.detect(ctx, links)
		found.Net = u.linkOf(links, found)
		u.tellAddresses(links)
	}
	if u.note(found, err) && u.onChange != nil {
		u.onChange()
	}
	if u.lookAtTaken() && u.onTaken != nil {
		u.onTaken()
	}
}

// tellAddresses lists all addresses of this machine for those who want to know.
func (u *underlay) tellAddresses(links []netlink.Link) {
	if u.onLook == nil {
		return
	}
	list, err := whole(func() ([]netlink.Addr, error) { return u.handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		u.log.Warn("addresses not listed", "error", err)
		return
	}
	if u.onLinks != nil {
		u.onLinks(links, list)
	}
	var present []netip.Addr
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			present = append(present, ip.Unmap())
		}
	}
	if n := u.onLook(present); n > 0 {
		u.log.Info("connections from an address that is gone are closed", "count", n)
	}
}

// note keeps what was found and says whether it is news.
func (u *underlay) note(found node.Underlay, err error) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil {
		if u.err == nil || u.err.Error() != err.Error() {
			u.log.Warn("underlay not usable", "error", err)
		}
		u.err = err
		return false
	}
	news := found != u.found
	if news {
		u.log.Info("underlay", "interface", found.Interface, "publicIP", found.PublicIP, "mtu", found.MTU)
	}
	u.found, u.err = found, nil
	return news
}

// detect follows the flags: --iface patterns in their order, --public-ip, or
// the interface that routes to etcd.
func (u *underlay) detect(ctx context.Context, links []netlink.Link) (node.Underlay, error) {
	switch {
	case len(u.cfg.Ifaces) > 0:
		return u.byPattern(links)
	case u.cfg.PublicIP.IsValid():
		return u.byAddress(links)
	}
	return u.byRoute(ctx, links)
}

// byPattern is the first usable one of the links that --iface names. Together
// with --public-ip it is the one of them that has that address, on which outer
// packets then come from it; where none has it, it is translated on the way
// (1:1 NAT), and they come from the first one's own.
func (u *underlay) byPattern(links []netlink.Link) (node.Underlay, error) {
	named := u.named(links)
	if u.cfg.PublicIP.IsValid() {
		if found, ok, err := u.bearing(named); ok || err != nil {
			return found, err
		}
	}
	var near error
	for _, l := range named {
		found, err := u.of(l)
		if err != nil {
			near = err
			continue
		}
		if u.cfg.PublicIP.IsValid() {
			found.PublicIP = u.cfg.PublicIP
		}
		return found, nil
	}
	if near != nil {
		return node.Underlay{}, near
	}
	return node.Underlay{}, fmt.Errorf("no interface matches --iface %s", strings.Join(u.cfg.Ifaces, ", "))
}

// named are the links that --iface names, in the order of the patterns.
func (u *underlay) named(links []netlink.Link) []netlink.Link {
	var named []netlink.Link
	for _, pattern := range u.cfg.Ifaces {
		for _, l := range links {
			// Load has checked the patterns.
			if ok, _ := path.Match(pattern, l.Attrs().Name); ok && !u.own(l.Attrs().Name) {
				named = append(named, l)
			}
		}
	}
	return named
}

func (u *underlay) byAddress(links []netlink.Link) (node.Underlay, error) {
	if found, ok, err := u.bearing(links); ok || err != nil {
		return found, err
	}
	return node.Underlay{}, fmt.Errorf("--public-ip %s is on no interface of this node; if it is translated on the way, give --iface too", u.cfg.PublicIP)
}

// bearing is the underlay on that one of the links which has the address
// --public-ip; false if none has.
func (u *underlay) bearing(links []netlink.Link) (node.Underlay, bool, error) {
	for _, l := range links {
		if u.own(l.Attrs().Name) {
			continue
		}
		addrs, err := u.addresses(l)
		if err != nil {
			return node.Underlay{}, false, err
		}
		if slices.Contains(addrs, u.cfg.PublicIP) {
			found, err := u.from(l, u.cfg.PublicIP)
			return found, err == nil, err
		}
	}
	return node.Underlay{}, false, nil
}

// byRoute asks the kernel how it would reach etcd, or the world if etcd is on
// this very machine.
func (u *underlay) byRoute(ctx context.Context, links []netlink.Link) (node.Underlay, error) {
	dst := net.IPv4(1, 1, 1, 1) // any address: nothing is sent, only the default route is asked for
	if ip, err := u.etcdAddress(ctx); err != nil {
		return node.Underlay{}, err
	} else if !ip.IsLoopback() && !u.local(ip) {
		dst = ip.AsSlice()
	}
	routes, err := u.handle.RouteGet(dst)
	if err != nil || len(routes) == 0 {
		return node.Underlay{}, fmt.Errorf("no route to %s, so no interface to announce; give --iface or --public-ip (%w)", dst, errors.Join(err))
	}
	for _, l := range links {
		if l.Attrs().Index != routes[0].LinkIndex {
			continue
		}
		if name := l.Attrs().Name; u.own(name) {
			return node.Underlay{}, fmt.Errorf("the route to %s goes through %s, which is Tenure's own; give --iface or --public-ip", dst, name)
		}
		src, _ := netip.AddrFromSlice(routes[0].Src)
		return u.from(l, src.Unmap())
	}
	return node.Underlay{}, fmt.Errorf("the interface that routes to %s is gone", dst)
}

// etcdAddress is the address of the first endpoint that has one.
func (u *underlay) etcdAddress(ctx context.Context) (netip.Addr, error) {
	var last error
	for _, host := range endpointHosts(u.cfg.Etcd) {
		if ip, err := netip.ParseAddr(host); err == nil {
			return ip.Unmap(), nil
		}
		ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
		cancel()
		if err == nil && len(ips) > 0 {
			return ips[0].Unmap(), nil
		}
		last = errors.Join(last, err)
	}
	return netip.Addr{}, fmt.Errorf("no etcd endpoint can be resolved, so its route is unknown; give --iface or --public-ip (%w)", last)
}

// of is the underlay on one link: its first usable IPv4 address.
func (u *underlay) of(l netlink.Link) (node.Underlay, error) {
	a := l.Attrs()
	addrs, err := u.addresses(l)
	if err != nil {
		return node.Underlay{}, err
	}
	if a.Flags&net.FlagUp == 0 {
		return node.Underlay{}, fmt.Errorf("interface %s is down", a.Name)
	}
	if len(addrs) == 0 {
		return node.Underlay{}, fmt.Errorf("interface %s has no IPv4 address", a.Name)
	}
	return node.Underlay{Interface: a.Name, PublicIP: addrs[0], Local: addrs[0], MTU: a.MTU}, nil
}

// from is the underlay on one link with a certain address, where the link may
// announce it: the kernel's choice of source can be a deprecated address, and
// towards an etcd on IPv6 it is one of that family.
func (u *underlay) from(l netlink.Link, a netip.Addr) (node.Underlay, error) {
	found, err := u.of(l)
	if err != nil {
		return node.Underlay{}, err
	}
	addrs, err := u.addresses(l)
	if err != nil {
		return node.Underlay{}, err
	}
	if slices.Contains(addrs, a) {
		found.PublicIP, found.Local = a, a
	}
	return found, nil
}

// addresses are the link's global IPv4 addresses that are not deprecated.
func (u *underlay) addresses(l netlink.Link) ([]netip.Addr, error) {
	list, err := whole(func() ([]netlink.Addr, error) { return u.handle.AddrList(l, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
	}
	var all []netip.Addr
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ok && a.Scope == unix.RT_SCOPE_UNIVERSE && a.Flags&unix.IFA_F_DEPRECATED == 0 {
			all = append(all, ip.Unmap())
		}
	}
	return all, nil
}

// public is the address that this node announces, the zero Addr while it has
// none.
func (u *underlay) public() netip.Addr {
	now, _ := u.Get()
	return now.PublicIP
}

// local says whether an address is on an interface of this machine.
func (u *underlay) local(ip netip.Addr) bool {
	_, ok := u.linkWith(ip)
	return ok
}

// silent says whether nobody else on the address's link answers for it.
func (u *underlay) silent(ctx context.Context, ip netip.Addr) (bool, error) {
	link, ok := u.linkWith(ip)
	if !ok {
		return false, fmt.Errorf("%s is on no interface of this machine", ip)
	}
	return addressSilent(ctx, link, ip)
}

// linkWith finds the interface that has an address.
func (u *underlay) linkWith(ip netip.Addr) (string, bool) {
	links, err := u.links()
	if err != nil {
		return "", false
	}
	for _, l := range links {
		if u.own(l.Attrs().Name) {
			continue
		}
		if addrs, err := u.addresses(l); err == nil && slices.Contains(addrs, ip) {
			return l.Attrs().Name, true
		}
	}
	return "", false
}

// links are all of this machine.
func (u *underlay) links() ([]netlink.Link, error) {
	links, err := whole(u.handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}

// flannelUp says whether a flannel device is up here: then its daemon's record
// is no leftover. What cannot be told counts as up.
func (u *underlay) flannelUp() bool {
	links, err := u.links()
	return err != nil || slices.ContainsFunc(links, func(l netlink.Link) bool {
		a := l.Attrs()
		return a.Flags&net.FlagUp != 0 && (strings.HasPrefix(a.Name, "flannel.") || strings.HasPrefix(a.Name, "flannel-v6."))
	})
}

// tornReads is how often a list is read that changes while it is read.
const tornReads = 20

// whole reads a list again while the kernel says that it was torn: half of one
// says nothing.
func whole[T any](read func() ([]T, error)) ([]T, error) {
	var list []T
	var err error
	for range tornReads {
		if list, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
	return nil, err
}

// own tells the devices of this instance: the bridge and the vxlan devices.
func (u *underlay) own(link string) bool {
	return link == u.cfg.Name+"0" || strings.HasPrefix(link, u.cfg.Name+".") || strings.HasPrefix(link, u.cfg.Name+"6.")
}

// ownLinks are the vxlan devices that an earlier process may have left.
func (u *underlay) ownLinks() ([]string, error) {
	links, err := u.links()
	if err != nil {
		return nil, err
	}
	var own []string
	for _, l := range links {
		if name := l.Attrs().Name; u.own(name) && l.Type() == "vxlan" {
			own = append(own, name)
		}
	}
	return own, nil
}
