package fakekernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/tenure-cni/tenure/daemon/dataplane"
)

// protocolKernel marks the routes that a kernel makes for its addresses.
const protocolKernel = 2

// IPForward is the path of the sysctl that a new namespace has at 0.
const IPForward = "net/ipv4/ip_forward"

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
			Links:   map[string]dataplane.Link{},
			Addrs:   map[dataplane.Addr]struct{}{},
			Routes:  map[dataplane.Route]struct{}{},
			FDB:     map[dataplane.FDB]struct{}{},
			Neighs:  map[dataplane.Neigh]dataplane.MAC{},
			Sysctls: map[string]string{IPForward: "0"},

			TxChecksum: map[string]bool{},
			Rules: &dataplane.Rules{
				Chains:      map[dataplane.Chain][]string{},
				Jumps:       map[dataplane.Chain][]string{},
				RandomFully: true,
			},
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
func (k *Kernel) Read(ctx context.Context, rules bool) (dataplane.State, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failRead != nil {
		if err := k.failRead(); err != nil {
			return dataplane.State{}, err
		}
	}
	s := k.state.Clone()
	if !rules {
		s.Rules = nil
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

// RulesMark implements dataplane.Kernel.
func (k *Kernel) RulesMark(context.Context) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return fmt.Sprint(*k.state.Rules) // maps are printed in the order of their keys
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
	return nil
}

// createVxlan allows one device per VNI and port, whatever its addresses.
func (k *Kernel) createVxlan(c dataplane.AddVxlan) error {
	if _, err := k.link(c.Tunnel.Parent); err != nil {
		return err
	}
	for _, l := range k.state.Links {
		same := l.Tunnel.VNI == c.Tunnel.VNI && l.Tunnel.Port == c.Tunnel.Port
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
	delete(k.state.Sysctls, "net/ipv4/conf/"+name+"/forwarding")
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

func connected(a dataplane.Addr) dataplane.Route {
	return dataplane.Route{
		Dst: a.Prefix.Masked(), Link: a.Link, Type: dataplane.RouteUnicast,
		Protocol: protocolKernel, LinkScope: true, Src: a.Prefix.Addr(),
	}
}

func local(a dataplane.Addr) dataplane.Route {
	ip := a.Prefix.Addr()
	return dataplane.Route{
		Dst: netip.PrefixFrom(ip, ip.BitLen()), Link: a.Link, Type: dataplane.RouteLocal,
		Protocol: protocolKernel, Src: ip,
	}
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
	if !a.Prefix.IsSingleIP() && !k.occupied(connected(a)) {
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
		if _, ok := k.state.Addrs[c.Addr]; ok {
			return nil
		}
		k.state.Addrs[c.Addr] = struct{}{}
		k.state.Routes[local(c.Addr)] = struct{}{}
		if l.Up {
			k.connectAddr(c.Addr)
		}
	case dataplane.DelAddr:
		k.delAddr(c.Addr)
	}
	return nil
}

// delAddr takes the other addresses of the same prefix along, as a real
// kernel does when the first of them goes, and with the link's last address
// all its routes and neighbours.
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
		} else if a.Link == gone.Link {
			last = false
		}
	}
	if last {
		k.dropNeighs(gone.Link)
		k.dropRoutes(gone.Link, true)
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
