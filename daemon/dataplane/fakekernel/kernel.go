package fakekernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/tenure-cni/tenure/daemon/dataplane"
)

// protocolKernel marks the routes that a kernel makes for its addresses.
const protocolKernel = 2

// IPForward and IPForward6 are the paths of sysctls that a new namespace has at
// 0.
const (
	IPForward  = "net/ipv4/ip_forward"
	IPForward6 = "net/ipv6/conf/all/forwarding"
)

func sendRedirects(link string) string { return "net/ipv4/conf/" + link + "/send_redirects" }

// metric6 is that of the routes that a kernel makes for its IPv6 addresses.
const metric6 = 256

func noRules() *dataplane.Rules {
	return &dataplane.Rules{
		Chains:      map[dataplane.Chain][]string{},
		Jumps:       map[dataplane.Chain][]string{},
		RandomFully: true,
	}
}

// Kernel is a dataplane.Kernel in memory. It is safe for concurrent use.
type Kernel struct {
	guard dataplane.Guard

	mu    sync.Mutex
	state dataplane.State
	index int
	// fail and failRead, when set, may refuse a call.
	fail     func(dataplane.Op) error
	failRead func() error
	watchers map[chan struct{}]struct{}
}

// New returns a kernel with one link that is up for each name, and nothing
// else. The fence is guard.
func New(guard dataplane.Guard, links ...string) *Kernel {
	k := &Kernel{
		guard:    guard,
		watchers: map[chan struct{}]struct{}{},
		state: dataplane.State{
			IPv6:    true,
			Links:   map[string]dataplane.Link{},
			Addrs:   map[dataplane.Addr]struct{}{},
			Routes:  map[dataplane.Route]struct{}{},
			FDB:     map[dataplane.FDB]struct{}{},
			Neighs:  map[dataplane.Neigh]dataplane.MAC{},
			Sysctls: map[string]string{IPForward: "0", IPForward6: "0", sendRedirects("all"): "1"},
			Rules:   noRules(),
			Rules6:  noRules(),

			TxChecksum: map[string]bool{},
		},
	}
	for _, name := range links {
		k.addLink(name, dataplane.Link{Kind: "veth", MTU: 1500, Up: true})
	}
	return k
}

// Edit changes the state behind the data plane's back. The fields Fenced and
// Tokens are the guard's and not looked at.
func (k *Kernel) Edit(f func(*dataplane.State)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(&k.state)
	k.notify()
}

// EditRules changes the firewall rules behind the data plane's back, which
// gives no notice.
func (k *Kernel) EditRules(f func(*dataplane.Rules)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(k.state.Rules)
}

// FailApply lets f refuse changes from now on; nil ends that.
func (k *Kernel) FailApply(f func(dataplane.Op) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = f
}

// FailRead lets f refuse reads from now on; nil ends that.
func (k *Kernel) FailRead(f func() error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failRead = f
}

// Read implements dataplane.Kernel.
func (k *Kernel) Read(ctx context.Context, rules dataplane.Families) (dataplane.State, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failRead != nil {
		if err := k.failRead(); err != nil {
			return dataplane.State{}, err
		}
	}
	s := k.state.Clone()
	if !rules.V4 {
		s.Rules = nil
	}
	if !rules.V6 {
		s.Rules6 = nil
	}
	s.Fenced = map[string]bool{}
	for name, l := range s.Links {
		if l.Kind != dataplane.KindVxlan {
			continue
		}
		attached, err := k.guard.Attached(ctx, l.Index)
		if err != nil {
			s.Faults = append(s.Faults, dataplane.Fault{What: "fence", Why: err.Error()})
			continue
		}
		s.Fenced[name] = attached
	}
	k.readUplinks(ctx, &s)
	tokens, err := k.guard.Tokens()
	if err != nil {
		s.Faults = append(s.Faults, dataplane.Fault{What: "fence", Why: err.Error()})
		return s, nil
	}
	s.Tokens = map[dataplane.MAC]netip.Prefix{}
	for mac, subnet := range tokens {
		s.Tokens[mac] = subnet
	}
	return s, nil
}

func (k *Kernel) readUplinks(ctx context.Context, s *dataplane.State) {
	known, err := k.guard.Uplinks()
	uplinks := map[string]bool{}
	for name, l := range s.Links {
		if err == nil && slices.Contains(known, l.Index) {
			uplinks[name], err = k.guard.AttachedUplink(ctx, l.Index)
		}
	}
	if err != nil {
		s.Faults = append(s.Faults, dataplane.Fault{What: "fence", Why: err.Error()})
		return
	}
	s.Uplinks = uplinks
}

// RulesMark implements dataplane.Kernel.
func (k *Kernel) RulesMark(context.Context) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return fmt.Sprint(*k.state.Rules, *k.state.Rules6) // maps are printed in the order of their keys
}

// Apply implements dataplane.Kernel.
func (k *Kernel) Apply(ctx context.Context, op dataplane.Op) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail != nil {
		if err := k.fail(op); err != nil {
			return err
		}
	}
	defer k.notify()
	switch c := op.Change.(type) {
	case dataplane.AttachFence:
		l, err := k.link(c.Link)
		if err != nil {
			return err
		}
		return k.guard.Attach(ctx, l.Index)
	case dataplane.AttachUplink:
		l, err := k.link(c.Link)
		if err != nil {
			return err
		}
		return k.guard.AttachUplink(ctx, l.Index)
	case dataplane.DetachUplink:
		l, err := k.link(c.Link)
		if err != nil {
			return nil // gone, and the fence with it
		}
		return k.guard.DetachUplink(ctx, l.Index)
	case dataplane.AllowToken:
		return k.guard.Allow(c.MAC, c.Subnet)
	case dataplane.DenyToken:
		return k.guard.Deny(c.MAC)
	case dataplane.SetSysctl:
		k.state.Sysctls[c.Path] = c.Value
		return nil
	case dataplane.SetRules:
		return k.setRules(c)
	case dataplane.SetRoute, dataplane.DelRoute:
		return k.applyRoute(c)
	case dataplane.Reroute:
		return k.reroute(c)
	case dataplane.AddAddr, dataplane.DelAddr:
		return k.applyAddr(c)
	case dataplane.SetFDB, dataplane.DelFDB, dataplane.SetNeigh, dataplane.DelNeigh:
		return k.applyNeigh(c)
	}
	return k.applyLink(op.Change)
}

// Watch implements dataplane.Kernel.
func (k *Kernel) Watch(ctx context.Context) (<-chan struct{}, error) {
	ch := make(chan struct{}, 1)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watchers[ch] = struct{}{}
	context.AfterFunc(ctx, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.watchers, ch)
		close(ch)
	})
	return ch, nil
}

func (k *Kernel) notify() {
	for ch := range k.watchers {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (k *Kernel) link(name string) (dataplane.Link, error) {
	l, ok := k.state.Links[name]
	if !ok {
		return l, fmt.Errorf("link %s: %w", name, os.ErrNotExist)
	}
	return l, nil
}

func (k *Kernel) addLink(name string, l dataplane.Link) {
	k.index++
	l.Index = k.index
	k.state.Links[name] = l
}

func (k *Kernel) applyLink(change dataplane.Change) error {
	switch c := change.(type) {
	case dataplane.AddBridge:
		return k.create(c.Name, dataplane.Link{Kind: dataplane.KindBridge, MAC: c.MAC, MTU: orMTU(0)})
	case dataplane.AddVxlan:
		return k.createVxlan(c)
	case dataplane.DelLink:
		k.delLink(c.Link)
		return nil
	case dataplane.SetMAC:
		return k.changeLink(c.Link, func(l *dataplane.Link) {
			l.MAC = c.MAC
			k.dropNeighs(c.Link)
		})
	case dataplane.SetMTU:
		return k.changeLink(c.Link, func(l *dataplane.Link) { l.MTU = c.MTU })
	case dataplane.SetTxChecksum:
		return k.changeLink(c.Link, func(*dataplane.Link) { k.state.TxChecksum[c.Link] = c.On })
	case dataplane.SetUp:
		return k.changeLink(c.Link, func(l *dataplane.Link) {
			l.Up = true
			k.connect(c.Link)
		})
	case dataplane.SetDown:
		return k.changeLink(c.Link, func(l *dataplane.Link) {
			l.Up = false
			k.dropNeighs(c.Link)
			k.dropRoutes(c.Link, false)
			k.dropAddrs6(c.Link)
		})
	case dataplane.SetFlags:
		return k.changeLink(c.Link, func(l *dataplane.Link) {
			if l.NoARP {
				k.dropNeighs(c.Link)
			}
			l.NoARP, l.Promisc, l.ProtoDown = false, false, false
		})
	case dataplane.SetBridge:
		return k.changeLink(c.Link, func(l *dataplane.Link) { l.Odd = "" })
	case dataplane.SetFree:
		return k.changeLink(c.Link, func(l *dataplane.Link) { l.Master, l.Port = "", dataplane.Port{} })
	case dataplane.SetPort:
		if _, err := k.link(c.Bridge); err != nil {
			return err
		}
		err := k.changeLink(c.Link, func(l *dataplane.Link) {
			l.Master, l.Up, l.Port = c.Bridge, true, dataplane.Port{Hairpin: true}
		})
		if errors.Is(err, os.ErrNotExist) {
			err = nil // a link that is gone needs no plugging in
		}
		return err
	}
	return fmt.Errorf("unknown change: %s", change)
}

func orMTU(mtu int) int {
	if mtu == 0 {
		return 1500
	}
	return mtu
}

func (k *Kernel) create(name string, l dataplane.Link) error {
	if _, ok := k.state.Links[name]; ok {
		return syscall.EEXIST
	}
	k.addLink(name, l)
	for setting, value := range map[string]string{"disable_ipv6": "0", "accept_dad": "1", "accept_ra": "1", "addr_gen_mode": "0"} {
		k.state.Sysctls["net/ipv6/conf/"+name+"/"+setting] = value
	}
	if l.Kind == dataplane.KindBridge {
		k.state.Sysctls[sendRedirects(name)] = "1"
	}
	return nil
}

// createVxlan allows one device per VNI, port and family, whatever its addresses.
func (k *Kernel) createVxlan(c dataplane.AddVxlan) error {
	if _, err := k.link(c.Tunnel.Parent); err != nil {
		return err
	}
	for _, l := range k.state.Links {
		same := l.Tunnel.VNI == c.Tunnel.VNI && l.Tunnel.Port == c.Tunnel.Port && l.Tunnel.Local.Is6() == c.Tunnel.Local.Is6()
		if l.Kind == dataplane.KindVxlan && same {
			return syscall.EEXIST
		}
	}
	err := k.create(c.Name, dataplane.Link{
		Kind: dataplane.KindVxlan, MAC: c.MAC, MTU: orMTU(c.MTU), Tunnel: c.Tunnel,
	})
	if err == nil {
		k.state.TxChecksum[c.Name] = true
	}
	return err
}

func (k *Kernel) changeLink(name string, f func(*dataplane.Link)) error {
	l, err := k.link(name)
	if err != nil {
		return err
	}
	f(&l)
	k.state.Links[name] = l
	return nil
}

// delLink takes along what stands on the link: addresses, routes, entries,
// the vxlan devices above it; its ports go free.
func (k *Kernel) delLink(name string) {
	delete(k.state.Links, name)
	delete(k.state.TxChecksum, name)
	k.dropRoutes(name, true)
	k.dropNeighs(name)
	maps.DeleteFunc(k.state.Addrs, func(a dataplane.Addr, _ struct{}) bool { return a.Link == name })
	maps.DeleteFunc(k.state.FDB, func(f dataplane.FDB, _ struct{}) bool { return f.Link == name })
	maps.DeleteFunc(k.state.Sysctls, func(path, _ string) bool {
		return strings.HasPrefix(path, "net/ipv4/conf/"+name+"/") || strings.HasPrefix(path, "net/ipv6/conf/"+name+"/")
	})
	for other, l := range k.state.Links {
		if l.Kind == dataplane.KindVxlan && l.Tunnel.Parent == name {
			k.delLink(other)
		} else if l.Master == name {
			l.Master, l.Port = "", dataplane.Port{}
			k.state.Links[other] = l
		}
	}
}

func (k *Kernel) dropNeighs(link string) {
	maps.DeleteFunc(k.state.Neighs, func(n dataplane.Neigh, _ dataplane.MAC) bool { return n.Link == link })
}

// dropRoutes drops those through a link. Routes to its own addresses stay as
// long as these do.
func (k *Kernel) dropRoutes(link string, local bool) {
	maps.DeleteFunc(k.state.Routes, func(r dataplane.Route, _ struct{}) bool {
		return r.Link == link && (local || r.Type != dataplane.RouteLocal)
	})
}

// dropAddrs6 drops the IPv6 addresses of a link that goes down.
func (k *Kernel) dropAddrs6(link string) {
	for a := range maps.Clone(k.state.Addrs) {
		if a.Link == link && a.Prefix.Addr().Is6() {
			k.delAddr6(a)
		}
	}
}

func connected(a dataplane.Addr) dataplane.Route {
	if a.Prefix.Addr().Is6() {
		return dataplane.Route{
			Dst: a.Prefix.Masked(), Link: a.Link, Type: dataplane.RouteUnicast, Metric: metric6, Protocol: protocolKernel,
		}
	}
	return dataplane.Route{
		Dst: a.Prefix.Masked(), Link: a.Link, Type: dataplane.RouteUnicast,
		Protocol: protocolKernel, LinkScope: true, Src: a.Prefix.Addr(),
	}
}

func local(a dataplane.Addr) dataplane.Route {
	ip := a.Prefix.Addr()
	r := dataplane.Route{
		Dst: netip.PrefixFrom(ip, ip.BitLen()), Link: a.Link, Type: dataplane.RouteLocal, Protocol: protocolKernel,
	}
	if ip.Is4() {
		r.Src = ip
	}
	return r
}

// connect makes the routes for a link's addresses, one for each prefix.
func (k *Kernel) connect(link string) {
	addrs := slices.SortedFunc(maps.Keys(k.state.Addrs), func(a, b dataplane.Addr) int { return a.Prefix.Compare(b.Prefix) })
	for _, a := range addrs {
		if a.Link == link {
			k.connectAddr(a)
		}
	}
}

func (k *Kernel) connectAddr(a dataplane.Addr) {
	if (a.Prefix.Addr().Is6() || !a.Prefix.IsSingleIP()) && !k.occupied(connected(a)) {
		k.state.Routes[connected(a)] = struct{}{}
	}
}

// occupied says whether an earlier address of the same prefix has the route.
// What others put in its place does not keep the kernel from making it.
func (k *Kernel) occupied(want dataplane.Route) bool {
	for r := range k.state.Routes {
		if samePlace(r, want) && r.Link == want.Link && r.Protocol == protocolKernel {
			return true
		}
	}
	return false
}

func samePlace(a, b dataplane.Route) bool {
	isLocal := func(r dataplane.Route) bool { return r.Type == dataplane.RouteLocal }
	return a.Dst == b.Dst && a.Metric == b.Metric && isLocal(a) == isLocal(b)
}

func (k *Kernel) applyAddr(change dataplane.Change) error {
	switch c := change.(type) {
	case dataplane.AddAddr:
		l, err := k.link(c.Addr.Link)
		if err != nil {
			return err
		}
		if _, ok := k.state.Addrs[c.Addr]; ok || c.Addr.Prefix.Addr().Is6() && k.bears(c.Addr.Link, c.Addr.Prefix.Addr()) {
			return nil // one of IPv6 is there once, with whatever length
		}
		k.state.Addrs[c.Addr] = struct{}{}
		k.state.Routes[local(c.Addr)] = struct{}{}
		if l.Up {
			k.connectAddr(c.Addr)
		}
	case dataplane.DelAddr:
		if c.Addr.Prefix.Addr().Is6() {
			k.delAddr6(c.Addr)
		} else {
			k.delAddr(c.Addr)
		}
	}
	return nil
}

// delAddr6 takes nothing along but what the address alone has.
func (k *Kernel) delAddr6(gone dataplane.Addr) {
	shared := false
	for a := range maps.Clone(k.state.Addrs) {
		switch {
		case a.Link != gone.Link:
		case a.Prefix == gone.Prefix:
			delete(k.state.Addrs, a) // with whatever oddity
			delete(k.state.Routes, local(a))
		default:
			shared = shared || a.Prefix.Masked() == gone.Prefix.Masked()
		}
	}
	if !shared {
		delete(k.state.Routes, connected(gone))
	}
}

// delAddr takes the other addresses of the same prefix along, as a real
// kernel does when the first of them goes, and with the link's last IPv4 address
// all its routes and neighbours of that family.
func (k *Kernel) delAddr(gone dataplane.Addr) {
	if _, ok := k.state.Addrs[gone]; !ok {
		return
	}
	last := true
	for a := range k.state.Addrs {
		if a.Link == gone.Link && a.Prefix.Masked() == gone.Prefix.Masked() {
			delete(k.state.Addrs, a)
			delete(k.state.Routes, connected(a))
			if !k.bears(a.Link, a.Prefix.Addr()) {
				delete(k.state.Routes, local(a))
			}
		} else if a.Link == gone.Link && a.Prefix.Addr().Is4() {
			last = false
		}
	}
	if last {
		maps.DeleteFunc(k.state.Neighs, func(n dataplane.Neigh, _ dataplane.MAC) bool { return n.Link == gone.Link && n.Addr.Is4() })
		maps.DeleteFunc(k.state.Routes, func(r dataplane.Route, _ struct{}) bool { return r.Link == gone.Link && r.Dst.Addr().Is4() })
	}
}

// bears says whether a link has the address, with any prefix.
func (k *Kernel) bears(link string, ip netip.Addr) bool {
	for a := range k.state.Addrs {
		if a.Link == link && a.Prefix.Addr() == ip {
			return true
		}
	}
	return false
}

func (k *Kernel) applyNeigh(change dataplane.Change) error {
	switch c := change.(type) {
	case dataplane.SetFDB:
		if _, err := k.link(c.FDB.Link); err != nil {
			return err
		}
		k.replaceFDB(c.FDB)
	case dataplane.DelFDB:
		maps.DeleteFunc(k.state.FDB, func(f dataplane.FDB, _ struct{}) bool {
			return f == c.FDB || c.FDB.Odd != "" && f.Link == c.FDB.Link && f.MAC == c.FDB.MAC
		})
	case dataplane.SetNeigh:
		l, err := k.link(c.Neigh.Link)
		if err != nil {
			return err
		}
		if !l.Up {
			return syscall.ENETDOWN
		}
		k.state.Neighs[c.Neigh] = c.MAC
	case dataplane.DelNeigh:
		delete(k.state.Neighs, c.Neigh)
	}
	return nil
}

// replaceFDB replaces one entry of the same MAC, not all, as the kernel does.
func (k *Kernel) replaceFDB(f dataplane.FDB) {
	if _, ok := k.state.FDB[f]; ok {
		return
	}
	for old := range k.state.FDB {
		if old.Link == f.Link && old.MAC == f.MAC {
			delete(k.state.FDB, old)
			break
		}
	}
	k.state.FDB[f] = struct{}{}
}

func (k *Kernel) applyRoute(change dataplane.Change) error {
	switch c := change.(type) {
	case dataplane.SetRoute:
		if c.Route.Link != "" {
			l, err := k.link(c.Route.Link)
			if err != nil {
				return err
			}
			if !l.Up {
				return syscall.ENETDOWN
			}
		}
		for r := range k.state.Routes {
			if !samePlace(r, c.Route) {
				continue
			}
			if !c.Replace {
				return syscall.EEXIST
			}
			delete(k.state.Routes, r)
		}
		k.state.Routes[c.Route] = struct{}{}
	case dataplane.DelRoute:
		delete(k.state.Routes, c.Route)
	}
	return nil
}

func (k *Kernel) reroute(c dataplane.Reroute) error {
	var errs []error
	for _, r := range c.Set {
		errs = append(errs, k.applyRoute(dataplane.SetRoute{Route: r, Replace: true}))
	}
	for _, r := range c.Del {
		errs = append(errs, k.applyRoute(dataplane.DelRoute{Route: r}))
	}
	return errors.Join(errs...)
}
