package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenure-cni/tenure/conf"
)

func TestServersIn(t *testing.T) {
	const text = "# nameserver 192.0.2.1\nsearch example.org\n  nameserver\t192.0.2.53 # here\n" +
		"nameserver 127.0.0.53\nnameserver ::1\nnameserver fe80::1%eth0\nnameserver 2001:db8::53\nnameserver nonsense\nnameserver\n"
	if got, want := fmt.Sprint(serversIn(text)), "[192.0.2.53 fe80::1 2001:db8::53]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestNameServersCovered: of either family.
func TestNameServersCovered(t *testing.T) {
	d := &daemon{underlay: &underlay{resolv: filepath.Join(t.TempDir(), "resolv.conf")}}
	if err := os.WriteFile(d.underlay.resolv, []byte("nameserver 10.5.0.10\nnameserver 10.5.0.11\nnameserver fd00:5::a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	four, six := netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00:5::/48")
	for want, n := range map[string]*conf.Network{
		"": {}, "network 10.5.0.0/16 covers 10.5.0.10, 10.5.0.11,": {Network: four}, "network fd00:5::/48 covers fd00:5::a,": {IPv6Network: six},
		"network 10.5.0.0/16 and fd00:5::/48 covers 10.5.0.10, 10.5.0.11, fd00:5::a,": {Network: four, IPv6Network: six},
	} {
		got := d.nameServerProblems(n)
		if len(got) > 1 || (len(got) == 0) != (want == "") || want != "" && !strings.Contains(got[0].Text, want) {
			t.Errorf("want %q, got %+v", want, got)
		}
	}
}
