package fakekernel

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// Guard is a fence that only remembers. The zero value is ready; it is safe
// for concurrent use.
type Guard struct {
	mu       sync.Mutex
	attached map[int]bool
	// uplinks are the devices that were asked to bear the other form, and
	// whether they do.
	uplinks map[int]bool
	tokens  map[[6]byte]netip.Prefix
	err     error
}

// Fail makes every call fail with err from now on; nil ends that.
func (g *Guard) Fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

// Detach forgets the program on a device, as when somebody deletes the filter.
func (g *Guard) Detach(ifindex int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.attached, ifindex)
	if _, ok := g.uplinks[ifindex]; ok {
		g.uplinks[ifindex] = false
	}
}

// Uplinks implements dataplane.Guard.
func (g *Guard) Uplinks() ([]int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.uplinks)), g.err
}

// AttachedUplink implements dataplane.Guard.
func (g *Guard) AttachedUplink(_ context.Context, ifindex int) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.uplinks[ifindex], g.err
}

// AttachUplink implements dataplane.Guard.
func (g *Guard) AttachUplink(_ context.Context, ifindex int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.uplinks == nil {
		g.uplinks = map[int]bool{}
	}
	if g.err != nil {
		g.uplinks[ifindex] = false
		return g.err
	}
	g.uplinks[ifindex] = true
	return nil
}

// DetachUplink implements dataplane.Guard.
func (g *Guard) DetachUplink(_ context.Context, ifindex int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	delete(g.uplinks, ifindex)
	return nil
}

// Attached implements dataplane.Guard. A new device has a new index, so what
// was on the old one is forgotten.
func (g *Guard) Attached(_ context.Context, ifindex int) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.attached[ifindex], g.err
}

// Attach implements dataplane.Guard.
func (g *Guard) Attach(_ context.Context, ifindex int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	if g.attached == nil {
		g.attached = map[int]bool{}
	}
	g.attached[ifindex] = true
	return nil
}

// Tokens implements dataplane.Guard.
func (g *Guard) Tokens() (map[[6]byte]netip.Prefix, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return nil, g.err
	}
	return maps.Clone(g.tokens), nil
}

// Allow implements dataplane.Guard.
func (g *Guard) Allow(mac [6]byte, subnet netip.Prefix) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	if g.tokens == nil {
		g.tokens = map[[6]byte]netip.Prefix{}
	}
	g.tokens[mac] = subnet
	return nil
}

// Deny implements dataplane.Guard.
func (g *Guard) Deny(mac [6]byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	delete(g.tokens, mac)
	return nil
}
