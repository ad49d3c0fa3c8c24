package attach

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// FuzzParseAlias: what is read of an interface's alias is what would be written
// there, but for white space; and any owner and address come back.
func FuzzParseAlias(f *testing.F) {
	f.Add("tenure tenure net c1 eth0 10.5.34.7/24 fd00::7/64", "net", "c1", "eth0", []byte{10, 5, 34, 7})
	f.Add("tenure b n c i", "n", "c", "i", []byte{})
	f.Add("tenure b n c i 10.5.34.7", "n", "c", "i", make([]byte, 16))
	f.Add("uplink of tenure", "", "", "", []byte{1})
	f.Fuzz(func(t *testing.T, alias, network, container, ifName string, address []byte) {
		if o, addrs, ok := ParseAlias(alias); ok {
			if got, want := Alias(o, addrs), strings.Join(strings.Fields(alias), " "); !sameAddresses(got, want) {
				t.Errorf("%q is %v %v, whose alias is %q", alias, o, addrs, got)
			}
		}
		o := Owner{"tenure", network, container, ifName}
		for _, word := range []string{network, container, ifName} {
			if len(strings.Fields(word)) != 1 || strings.Fields(word)[0] != word {
				return
			}
		}
		var addrs []netip.Prefix
		if a, ok := netip.AddrFromSlice(address); ok {
			addrs = append(addrs, netip.PrefixFrom(a, a.BitLen()))
		}
		back, found, ok := ParseAlias(Alias(o, addrs))
		if !ok || back != o || !slices.Equal(found, addrs) {
			t.Errorf("%v %v comes back as %v %v (%t)", o, addrs, back, found, ok)
		}
		if name := HostName(o); len(name) != maxLinkName {
			t.Errorf("%v is called %q", o, name)
		}
	})
}

// sameAddresses compares two aliases, with their addresses as addresses.
func sameAddresses(a, b string) bool {
	_, x, _ := ParseAlias(a)
	_, y, _ := ParseAlias(b)
	return slices.Equal(strings.Fields(a)[:5], strings.Fields(b)[:5]) && slices.Equal(x, y)
}
