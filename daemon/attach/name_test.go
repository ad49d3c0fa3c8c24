package attach

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

var compareValues = cmp.Options{
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
}

func TestHostNamesAreDistinct(t *testing.T) {
	id := strings.Repeat("0123456789ab", 5)
	owners := []Owner{
		{"tenure", "net", id + "0000", "eth0"},
		{"tenure", "net", id + "0001", "eth0"},
		{"tenure", "net", id + "0000", "eth1"},
		{"tenure", "net2", id + "0000", "eth0"},
		{"other", "net", id + "0000", "eth0"},
		{"tenure", "net", id + "0000eth", "0"},
	}
	form := regexp.MustCompile(`^ten[0-9a-v]{12}$`)
	seen := map[string]Owner{}
	for _, o := range owners {
		name := HostName(o)
		if !form.MatchString(name) || name != HostName(o) {
			t.Errorf("%s: host name %q is not stable or not of the form %s", o, name, form)
		}
		if other, dup := seen[name]; dup {
			t.Errorf("%s and %s share the host name %s", o, other, name)
		}
		seen[name] = o
	}
	// A running pod's name must be found again after an upgrade.
	if got, want := HostName(Owner{"tenure", "tenure", "c1", "eth0"}), "tencuk19uikpn3j"; got != want {
		t.Errorf("host name of a known owner is %s, want %s", got, want)
	}
}

func TestMACFor(t *testing.T) {
	if got, want := MACFor(addr("10.5.34.7")), [6]byte{0x0a, 0x58, 10, 5, 34, 7}; got != want {
		t.Errorf("got %x, want %x", got, want)
	}
	if MACFor(addr("::ffff:10.5.34.7")) != MACFor(addr("10.5.34.7")) {
		t.Error("an IPv4-mapped address has another MAC")
	}
	a, b := MACFor(addr("fd00::7")), MACFor(addr("fd00::8"))
	if a == b || a != MACFor(addr("fd00::7")) || a[0] != 0x0a || a[1] != 0x58 {
		t.Errorf("IPv6: %x and %x", a, b)
	}
	if mac := hostMAC("tenure", "tenabc"); mac[0]&3 != 2 || mac[0] == 0x0a {
		t.Errorf("host end: %x is not locally administered, or among the pods'", mac)
	}
}

func TestAliasRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-zA-Z0-9][a-zA-Z0-9_.\-]{0,20}`)
		o := Owner{word.Draw(t, "instance"), word.Draw(t, "network"), word.Draw(t, "id"), word.Draw(t, "ifname")}
		addrs := rapid.SliceOfN(rapid.SampledFrom([]netip.Prefix{prefix("10.5.34.7/24"), prefix("fd00::7/64")}), 0, 2).Draw(t, "addrs")
		gotOwner, gotAddrs, ok := ParseAlias(Alias(o, addrs))
		if diff := cmp.Diff(addrs, gotAddrs, compareValues); !ok || gotOwner != o || len(addrs) > 0 && diff != "" {
			t.Fatalf("%v %v becomes %v %v, %v", o, addrs, gotOwner, gotAddrs, ok)
		}
	})
}

func TestParseAliasRefusesOthers(t *testing.T) {
	for _, alias := range []string{"", "uplink", "tenure", "tenure a b c", "tenured a b c d", "tenure a b c d 10.5.34.7", "tenure a b c d x/24"} {
		if o, addrs, ok := ParseAlias(alias); ok {
			t.Errorf("%q was read as %v %v", alias, o, addrs)
		}
	}
}
