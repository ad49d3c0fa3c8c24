package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
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
	// network is the config in force, nil while none is known.
	network func() *conf.Network
	// onTaken is told when what pods must not share has changed; nil is nobody.
	onTaken func()
	// reached are the addresses of etcd that there are connections to; nil is
	// none.
	reached func() []netip.Addr
	// announced is what this node announced last; nil is nothing.
	announced func() []netip.Addr
	// resolve looks a name up, in one family ("ip4" or "ip6").
	resolve func(ctx context.Context, network, host string) ([]netip.Addr, error)
	// resolv is the file that names the name servers.
	resolv string
	// last is what lookAtTaken saw last, for Run alone.
	last []string

	mu    sync.Mutex
	found node.Underlay
	err   error
	// chosen is what was looked at when that was found.
	chosen choice
}

// sighted is what the kernel has at one look.
type sighted struct {
	links []netlink.Link
	addrs []netlink.Addr
}

// underlayLook is how soon a changed underlay is noticed.
const underlayLook = 2 * time.Second

// errNotLooked stands until the first look.
var errNotLooked = errors.New("the underlay interface has not been looked for yet")

// noNetwork is in force before there is somebody to ask.
func noNetwork() *conf.Network { return nil }

func newUnderlay(cfg conf.Daemon, log *slog.Logger) (*underlay, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &underlay{cfg: cfg, log: log, handle: h, resolve: net.DefaultResolver.LookupNetIP, resolv: resolvConf, network: noNetwork, err: errNotLooked}, nil
}

// Get is the last one found; false while it has nothing of what the pods need.
func (u *underlay) Get() (node.Underlay, bool) {
	n := u.network()
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.found, u.found.Interface != "" && (n == nil || familiesOf(n).count(u.found) > 0)
}

// Ready says what is missing for pods of a network; nil where nothing is. While
// none is known any address will do.
func (u *underlay) Ready(n *conf.Network) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.found.Interface == "" {
		return fmt.Errorf("no underlay address yet: %w", u.err)
	}
	return u.chosen.lacks(u.found, familiesOf(n))
}

// Err says what is missing for the network that is in force.
func (u *underlay) Err() error { return u.Ready(u.network()) }

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
	now, err := u.read()
	var c choice
	var found node.Underlay
	if err == nil {
		u.tell(now) // first: a name server may be long in coming
		c = u.choice(ctx, now)
		found, err = c.choose()
	}
	if u.note(c, found, err) && u.onChange != nil {
		u.onChange()
	}
	if u.lookAtTaken() && u.onTaken != nil {
		u.onTaken()
	}
}

// tell passes what is there on to those who want to know.
func (u *underlay) tell(now sighted) {
	if u.onLinks != nil {
		u.onLinks(now.links, now.addrs)
	}
	if u.onLook == nil {
		return
	}
	var present []netip.Addr
	for _, a := range now.addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			present = append(present, ip.Unmap())
		}
	}
	if n := u.onLook(present); n > 0 {
		u.log.Info("connections from an address that is gone are closed", "count", n)
	}
}

// note keeps what was found and says whether it is news.
func (u *underlay) note(c choice, found node.Underlay, err error) bool {
	need := u.prefer()
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil {
		if u.err == nil || u.err.Error() != err.Error() {
			u.log.Warn("underlay not usable", "error", err)
		}
		u.err = err
		return false
	}
	found = keep(u.found, found, need, c.devices)
	news := found != u.found
	if news {
		u.log.Info("underlay", "interface", found.Interface, "publicIP", addrText(found.PublicIP), "publicIP6", addrText(found.PublicIP6), "mtu", found.MTU)
	}
	u.found, u.err, u.chosen = found, nil, c
	return news
}

// addrText is an address for people, "" for none.
func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// choice reads what the underlay follows from.
func (u *underlay) choice(ctx context.Context, now sighted) choice {
	u.mu.Lock()
	c := choice{ifaces: u.cfg.Ifaces, public: u.cfg.PublicIP, public6: u.cfg.PublicIP6, before: u.found, devices: devices(u.cfg.Name, now.links, now.addrs)}
	u.mu.Unlock()
	c.need = u.prefer()
	if u.announced != nil {
		c.announced = u.announced()
	}
	u.ask(ctx, &c)
	return c
}

// prefer are the families that a device should have. While no network is known
// that is IPv4.
func (u *underlay) prefer() families {
	n := u.network()
	if n == nil {
		return families{v4: true}
	}
	return familiesOf(n)
}

// familiesOf are those of a network's pods, none of no network's.
func familiesOf(n *conf.Network) families {
	if n == nil {
		return families{}
	}
	return families{v4: n.EnableIPv4, v6: n.EnableIPv6}
}

// public are the addresses that this node announces, none while it has none.
func (u *underlay) public() []netip.Addr {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.DeleteFunc([]netip.Addr{u.found.PublicIP, u.found.PublicIP6}, func(a netip.Addr) bool { return !a.IsValid() })
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
	now, err := u.read()
	if err != nil {
		return "", false
	}
	for _, d := range devices(u.cfg.Name, now.links, now.addrs) {
		if !d.own && d.bears(ip) {
			return d.name, true
		}
	}
	return "", false
}

// read asks the kernel for all links and addresses.
func (u *underlay) read() (sighted, error) {
	links, err := u.links()
	if err != nil {
		return sighted{}, err
	}
	addrs, err := u.allAddresses()
	return sighted{links, addrs}, err
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
func (u *underlay) own(link string) bool { return ownName(u.cfg.Name, link) }

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
