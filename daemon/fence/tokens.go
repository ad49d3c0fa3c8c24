package fence

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
)

// token is the value of a token: the subnet whose holder may send with the
// MAC that is its key. The program asks only whether there is one; the daemon
// reads it back to know whose it is.
type token struct {
	Addr   [16]byte // an IPv4 address in its mapped form
	Family uint8    // 4 or 6
	Bits   uint8    // of the prefix, in its own family
	_      [2]uint8
}

const tokenSize = 20

func newToken(p netip.Prefix) token {
	t := token{Addr: p.Addr().As16(), Family: 6, Bits: uint8(p.Bits())}
	if p.Addr().Is4() {
		t.Family = 4
	}
	return t
}

func (t token) prefix() (netip.Prefix, error) {
	a := netip.AddrFrom16(t.Addr)
	if t.Family == 4 {
		a = a.Unmap()
	}
	p := netip.PrefixFrom(a, int(t.Bits))
	if !p.IsValid() || p != p.Masked() || a.Is4() != (t.Family == 4) {
		return netip.Prefix{}, fmt.Errorf("%x/%d of family %d is no prefix", t.Addr, t.Bits, t.Family)
	}
	return p, nil
}

// Tokens reads from the kernel which sender MACs are let in, and the subnet
// that each speaks for.
func (f *Fence) Tokens() (map[[6]byte]netip.Prefix, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.readTokens(); err != nil {
		return nil, err
	}
	return maps.Clone(f.tokens), nil
}

// tokensAtOnce is how many tokens one question to the kernel asks for. One by one
// it would be two questions for each; and a kernel refuses fewer than share one
// place in its hash table.
const tokensAtOnce = 1024

// readTokens brings the copy in memory to what the kernel has. A value that
// cannot be read stands as the zero prefix: the MAC is let in all the same,
// so it must be seen.
func (f *Fence) readTokens() error {
	tokens := make(map[[6]byte]netip.Prefix, len(f.tokens))
	macs, values := make([][6]byte, tokensAtOnce), make([]token, tokensAtOnce)
	var cursor ebpf.MapBatchCursor
	for last := false; !last; {
		n, err := f.maps.tokens.BatchLookup(&cursor, macs, values, nil)
		last = errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !last {
			return fmt.Errorf("read map %s: %w", tokensName, err)
		}
		for i, mac := range macs[:n] {
			p, err := values[i].prefix()
			if err != nil {
				f.log.Warn("fence: a token is damaged", "mac", net.HardwareAddr(mac[:]).String(), "error", err)
			}
			tokens[mac] = p
		}
	}
	f.tokens = tokens
	return nil
}

// Allow lets frames from mac in, as those of the holder of subnet. Any other
// MAC of an overlapping subnet goes first: an earlier tenant's and a later
// one's never pass at the same time. It is idempotent.
func (f *Fence) Allow(mac [6]byte, subnet netip.Prefix) error {
	if !subnet.IsValid() || subnet != subnet.Masked() {
		return fmt.Errorf("allow MAC %s: %s is not a subnet", net.HardwareAddr(mac[:]), subnet)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for other, held := range f.tokens {
		if other == mac || !held.Overlaps(subnet) {
			continue
		}
		if err := f.deny(other); err != nil {
			return fmt.Errorf("allow MAC %s for %s: %w", net.HardwareAddr(mac[:]), subnet, err)
		}
	}
	if err := f.maps.tokens.Put(mac, newToken(subnet)); err != nil {
		return fmt.Errorf("allow MAC %s for %s: %w", net.HardwareAddr(mac[:]), subnet, err)
	}
	f.tokens[mac] = subnet
	return nil
}

// Deny shuts frames from mac out. A MAC that was not let in is no error.
func (f *Fence) Deny(mac [6]byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.deny(mac)
}

func (f *Fence) deny(mac [6]byte) error {
	if err := f.maps.tokens.Delete(mac); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("deny MAC %s: %w", net.HardwareAddr(mac[:]), err)
	}
	delete(f.tokens, mac)
	return nil
}
