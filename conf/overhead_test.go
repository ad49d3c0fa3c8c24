package conf

import "testing"

// TestOverhead: the least MTU of either family is what is left behind the overhead,
// so that a config which leaves a pod less is none.
func TestOverhead(t *testing.T) {
	for backend, want := range map[Backend][2]int{
		{Type: BackendVXLAN}:                      {50, 70},
		{Type: BackendVXLAN, DirectRouting: true}: {50, 70}, // some are reached by vxlan all the same
		{Type: BackendHostGW}:                     {0, 0},
	} {
		if got := [2]int{backend.Overhead(false), backend.Overhead(true)}; got != want {
			t.Errorf("%+v: overhead %d, want %d", backend, got, want)
		}
	}
	for text, want := range map[string]int{
		`{"Network":"10.5.0.0/16","Backend":{"MTU":626}}`:                                                                 576,
		`{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw","MTU":576}}`:                                                576,
		`{"Network":"10.5.0.0/16","Backend":{"MTU":65535}}`:                                                               65485,
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"MTU":1350}}`:                  1280,
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"host-gw","MTU":1280}}`: 1280,
	} {
		if n := mustNetwork(t, text); n.Backend.MTU-n.Backend.Overhead(n.EnableIPv6) != want {
			t.Errorf("%s: MTU %d less %d, want %d", text, n.Backend.MTU, n.Backend.Overhead(n.EnableIPv6), want)
		}
	}
}
