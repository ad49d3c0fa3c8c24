package fence

import (
	"fmt"
	"testing"
	"time"
	"unsafe"
)

// FuzzState: the map's bytes, whoever wrote them, are a state or an error; what is read as
// one is the same once written and read again.
func FuzzState(f *testing.F) {
	f.Add(make([]byte, stateSize))
	all := make([]byte, stateSize)
	for i := range all {
		all[i] = 0xff
	}
	f.Add(all)
	good := encode(Subnets{V4: pfx("10.5.34.0/24"), V6: pfx("fd00:5:0:22::/64")}, Network{V4: pfx("10.5.0.0/16"), V6: pfx("fd00:5::/48")}, time.Hour)
	f.Add(bytesOf(&good))
	v4 := encode(Subnets{V4: pfx("10.5.34.0/24")}, Network{V4: pfx("10.5.0.0/16")}, 0)
	f.Add(bytesOf(&v4))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != int(stateSize) {
			return
		}
		var s state
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&s)), stateSize), b)
		subnets, network, err := decode(s)
		if err != nil {
			return
		}
		again, networkToo, err := decode(encode(subnets, network, time.Duration(s.Deadline)))
		if err != nil || again != subnets || networkToo != network {
			t.Errorf("%x is %v of %v, and that is %v of %v (%v)", b, subnets, network, again, networkToo, err)
		}
	})
}

func bytesOf(s *state) []byte {
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(s)), stateSize)...)
}

// FuzzBootOffset: a clock that is off is never taken for one that is not.
func FuzzBootOffset(f *testing.F) {
	for _, seed := range []string{
		"monotonic           0         0\nboottime            0         0\n", "boottime 9223372036854775807 0", "boottime -9223372036 -999999999", "boottime 1 x", "boottime 1", "",
		"boottime 0 1\nboottime 5 0",
	} {
		f.Add([]byte(seed), int64(-3600), int64(7))
	}
	f.Add([]byte("x"), int64(-1), int64(1e9))
	f.Fuzz(func(t *testing.T, text []byte, sec, nsec int64) {
		_, _ = parseBootOffset(text)
		offset, err := parseBootOffset(fmt.Appendf(nil, "boottime %d %d\n", sec, nsec))
		if none := nsec%1e9 == 0 && sec == -(nsec/1e9); err == nil && (offset == 0) != none {
			t.Errorf("%d s and %d ns are an offset of %s", sec, nsec, offset)
		}
	})
}
