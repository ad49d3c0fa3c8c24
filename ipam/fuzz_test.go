package ipam

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// FuzzLedger: what is accepted has no address twice, in whatever form, and is the same
// once written and read again.
func FuzzLedger(f *testing.F) {
	file := func(rest string) string {
		return `{"version":1,"boot":"b","last":{"10.5.1.0/24":"10.5.1.9"},` + rest + `}`
	}
	held := func(addresses string) string {
		return `{"network":"tenure","containerID":"c1","ifName":"eth0","addresses":[` + addresses + `],"netns":"/run/netns/x","host":"ten0","mac":"0a:58:0a:05:01:02","created":"2026-07-01T10:00:00.123456789+02:00"}`
	}
	for _, seed := range []string{
		file(`"cooling":[{"address":"10.5.1.3","released":"2026-07-01T10:00:00Z"}],"allocations":[` + held(`"10.5.1.2/24","fd00::2/64"`) + `]`),
		file(`"cooling":[],"allocations":[` + held(`"10.5.1.2/24","::ffff:10.5.1.2/120"`) + `]`), file(`"cooling":[{"address":"::ffff:10.5.1.2","released":"2026-07-01T10:00:00Z"}],"allocations":[` + held(`"10.5.1.2/24"`) + `]`),
		file(`"cooling":[{"address":"fe80::1%eth0","released":"2026-07-01T10:00:00Z"}]`), file(`"cooling":[{"address":"10.5.1.3","released":"9999-12-31T23:59:59-23:00"}]`),
		file(`"cooling":[{"address":"10.5.1.3","released":"0000-01-01T00:00:00+23:00"}]`), file(`"allocations":[{}]`), file(`"allocations":null,"cooling":null`), file(`"allocations":[` + held(`""`) + `]`),
		"", "{}", "null", "[]", `{"version":2}`, `{"version":0,"boot":"b"}`, `{"version":1,"boot":""}`, `{"version":1,"boot":"b","last":{"":""}}`, `{"version":1,"boot":"b"} `, `{"version":1,"boot":"b"}x`,
		`{"version":1,"boot":"` + strings.Repeat("b", 3000) + `","allocations":[{"containerID":"` + strings.Repeat("c", 3000) + `"}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, boot, err := decode(b)
		if err != nil {
			if !errors.Is(err, ErrNewerVersion) && !strings.HasPrefix(err.Error(), "decode ledger: ") {
				t.Errorf("%q: %v", b, err)
			}
			return
		}
		seen := map[netip.Addr]bool{}
		for _, r := range s.records {
			for _, p := range r.Addresses {
				if seen[p.Addr().Unmap()] {
					t.Errorf("%q has %s twice", b, p)
				}
				seen[p.Addr().Unmap()] = true
			}
		}
		for _, sl := range s.slots {
			if sl.cooling() && seen[sl.addr.Unmap()] {
				t.Errorf("%q has %s cooling and held", b, sl.addr)
			}
		}
		text, err := s.encode(nil, boot)
		if err != nil {
			t.Fatalf("%q cannot be written: %v", b, err)
		}
		again, bootToo, err := decode(text)
		if err != nil || bootToo != boot {
			t.Fatalf("%q is %q, and that is not read: %v", b, text, err)
		}
		if twice, err := again.encode(nil, boot); err != nil || !bytes.Equal(twice, text) {
			t.Errorf("%q is %q, and that is %q (%v)", b, text, twice, err)
		}
		again.expire(time.Now(), time.Minute)
	})
}
