package ipam

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is the rules in their plainest form: every address of every subnet,
// looked at one by one.
type model struct {
	held     map[Key][]netip.Addr
	released map[netip.Addr]time.Time
	last     map[netip.Prefix]netip.Addr
	excluded []netip.Prefix
	cooldown time.Duration
}

// candidates are a subnet's pod addresses in the order of the round robin.
func (m *model) candidates(subnet netip.Prefix) []netip.Addr {
	var all []netip.Addr
	for a := subnet.Addr().Next().Next(); subnet.Contains(a); a = a.Next() {
		broadcast := a.Is4() && !subnet.Contains(a.Next())
		if !broadcast && !slices.ContainsFunc(m.excluded, func(p netip.Prefix) bool { return p.Contains(a) }) {
			all = append(all, a)
		}
	}
	after := slices.IndexFunc(all, func(a netip.Addr) bool { return m.last[subnet].IsValid() && m.last[subnet].Less(a) })
	if after < 0 {
		return all
	}
	return slices.Concat(all[after:], all[:after])
}

func (m *model) isHeld(a netip.Addr) bool {
	for _, addrs := range m.held {
		if slices.Contains(addrs, a) {
			return true
		}
	}
	return false
}

func (m *model) isCooling(a netip.Addr, now time.Time) bool {
	at, ok := m.released[a]
	return ok && now.Sub(at) < m.cooldown
}

func (m *model) allocate(subnet netip.Prefix, want netip.Addr, now time.Time) (netip.Addr, error) {
	candidates := m.candidates(subnet)
	if want.IsValid() {
		if !slices.Contains(candidates, want) || m.isHeld(want) {
			return want, ErrUnavailable
		}
		return want, nil
	}
	var oldest netip.Addr
	for _, a := range candidates {
		switch {
		case m.isHeld(a):
		case !m.isCooling(a, now):
			m.last[subnet] = a
			return a, nil
		case !oldest.IsValid() || m.released[a].Before(m.released[oldest]) ||
			m.released[a].Equal(m.released[oldest]) && a.Less(oldest):
			oldest = a
		}
	}
	if !oldest.IsValid() {
		return oldest, ErrFull
	}
	m.last[subnet] = oldest
	return oldest, nil
}

// TestModel drives a ledger and the model side by side; after every step the
// ledger must agree, and so must one opened from its file.
func TestModel(t *testing.T) {
	subnets := prefixes("10.5.34.0/28", "10.5.34.16/29", "10.5.34.24/30", "fd00::/125")
	rapid.Check(t, func(t *rapid.T) {
		dir := tempDir(t)
		clk := newClock()
		o := Options{
			Boot: "boot-1", Now: clk.read, Log: quiet(),
			Cooldown: time.Duration(rapid.IntRange(0, 4).Draw(t, "cooldown")) * time.Second,
			Exclude:  rapid.SliceOfN(rapid.SampledFrom(prefixes("10.5.34.4/30", "10.5.34.5/32", "10.5.34.17/32", "fd00::4/127", "10.5.34.12/30")), 0, 3).Draw(t, "exclude"),
		}
		path := filepath.Join(dir, "ledger.json")
		m := &model{map[Key][]netip.Addr{}, map[netip.Addr]time.Time{}, map[netip.Prefix]netip.Addr{}, o.Exclude, o.Cooldown}
		l := openIn(t, path, o)
		keys := rapid.Custom(func(t *rapid.T) Key { return key(fmt.Sprint(rapid.IntRange(0, 24).Draw(t, "key"))) })

		ask := func(t *rapid.T, want netip.Addr, subnet netip.Prefix) {
			k := keys.Draw(t, "k")
			got, existed, err := l.Allocate(k, []Ask{{subnet, want}}, nil)
			if had := m.held[k]; had != nil {
				if err != nil || !existed || firstOf(got) != had[0] {
					t.Fatalf("%s holds %s, got %v, existed %v, %v", k, had, got, existed, err)
				}
				return
			}
			expect, expectErr := m.allocate(subnet, want, clk.now)
			if !errors.Is(err, expectErr) {
				t.Fatalf("got error %v, want %v", err, expectErr)
			}
			if err != nil {
				return
			}
			if existed || firstOf(got) != expect {
				t.Fatalf("got %v, existed %v; want %s", got, existed, expect)
			}
			m.held[k] = []netip.Addr{expect}
			delete(m.released, expect)
		}
		t.Repeat(map[string]func(*rapid.T){
			"any": func(t *rapid.T) { ask(t, netip.Addr{}, rapid.SampledFrom(subnets).Draw(t, "subnet")) },
			"named": func(t *rapid.T) {
				subnet := rapid.SampledFrom(subnets).Draw(t, "subnet")
				want := subnet.Addr()
				for range rapid.IntRange(0, 16).Draw(t, "offset") {
					want = want.Next()
				}
				ask(t, want, subnet)
			},
			"adopt": func(t *rapid.T) {
				k, a := keys.Draw(t, "k"), rapid.SampledFrom([]string{"10.5.34.3", "10.5.34.5", "10.9.0.7"}).Draw(t, "addr")
				clash := m.held[k] != nil && m.held[k][0] != addr(a) || m.held[k] == nil && m.isHeld(addr(a))
				if err := l.Adopt(Allocation{Key: k, Addresses: []netip.Prefix{netip.PrefixFrom(addr(a), 28)}}); (err != nil) != clash {
					t.Fatalf("adopt %s for %s: %v, clash %v", a, k, err, clash)
				}
				if !clash {
					m.held[k] = []netip.Addr{addr(a)}
					delete(m.released, addr(a))
				}
			},
			"release": func(t *rapid.T) {
				k := keys.Draw(t, "k")
				if _, existed := l.Release(k); existed != (m.held[k] != nil) {
					t.Fatalf("release of %s: existed %v, holds %v", k, existed, m.held[k])
				}
				for _, a := range m.held[k] {
					m.released[a] = clk.now
				}
				delete(m.held, k)
			},
			"wait":   func(t *rapid.T) { clk.add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond) },
			"reopen": func(t *rapid.T) { l = openIn(t, path, o) },
			"": func(t *rapid.T) {
				checkAgainst(t, m, l)
				checkReload(t, l, openIn(t, path, o))
			},
		})
	})
}

func checkAgainst(t *rapid.T, m *model, l *Ledger) {
	owner := map[netip.Addr]Key{}
	for _, a := range l.List() {
		if other, twice := owner[firstOf(a)]; twice {
			t.Fatalf("%s is held by %s and %s", firstOf(a), a.Key, other)
		}
		owner[firstOf(a)] = a.Key
		if !slices.Equal(m.held[a.Key], []netip.Addr{firstOf(a)}) {
			t.Fatalf("%s holds %v, want %v", a.Key, a.Addresses, m.held[a.Key])
		}
	}
	if len(owner) != len(m.held) {
		t.Fatalf("%d records, want %d", len(owner), len(m.held))
	}
}

// checkReload compares everything the file is there to keep.
func checkReload(t *rapid.T, l, reloaded *Ledger) {
	want, err1 := l.current.Load().encode(nil, "boot-1")
	got, err2 := reloaded.current.Load().encode(nil, "boot-1")
	if err := errors.Join(err1, err2); err != nil || !bytes.Equal(want, got) {
		t.Fatalf("a restart changes the state (%v):\n%s\nto\n%s", err, want, got)
	}
}
