package cluster

import (
	"net/netip"
	"slices"
	"testing"
)

// TestNote: a packet counts by what is in the overlay, of either family in either.
func TestNote(t *testing.T) {
	four := append([]byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0}, 192, 0, 2, 11, 192, 0, 2, 12)
	six := append(append([]byte{0x60, 0, 0, 0, 0, 0, 17, 64}, netip.MustParseAddr("2001:db8::b").AsSlice()...), netip.MustParseAddr("2001:db8::c").AsSlice()...)
	pod := append([]byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0}, 10, 5, 1, 2, 10, 5, 2, 2)
	pod6 := append(append([]byte{0x60, 0, 0, 0, 0, 0, 58, 64}, netip.MustParseAddr("fd00:5::2").AsSlice()...), netip.MustParseAddr("fd00:5::3").AsSlice()...)
	vxlan := append([]byte{0, 1, 0x21, 0x18}, make([]byte, 4+8+14)...)
	for _, c := range []struct {
		packet        []byte
		inside, plain string
	}{
		{slices.Concat(four, vxlan, pod), "10.5.1.2", ""},
		{slices.Concat(four, vxlan, pod6), "fd00:5::2", ""},
		{slices.Concat(six, vxlan, pod), "10.5.1.2", ""},
		{slices.Concat(six, vxlan, pod6), "fd00:5::2", ""},
		{slices.Concat(four, vxlan), "", ""}, // nothing in it
		{pod, "", "10.5.1.2"},
		{pod6, "", "fd00:5::2"},
		{slices.Concat(four, []byte{0, 1, 0, 53}, make([]byte, 40)), "", "192.0.2.11"},
		{[]byte{0, 1, 8, 0}, "", ""}, // ARP
		{four[:19], "", ""},
		{slices.Concat([]byte{0x4f}, four[1:]), "", "192.0.2.11"}, // says that it is longer
	} {
		w := Wire{from: map[netip.Addr]int{}, plain: map[netip.Addr]int{}}
		w.note(c.packet)
		for _, part := range []struct {
			got  map[netip.Addr]int
			want string
		}{{w.from, c.inside}, {w.plain, c.plain}} {
			a, _ := netip.ParseAddr(part.want)
			if len(part.got) > 1 || part.got[a] != len(part.got) || (len(part.got) == 0) != (part.want == "") {
				t.Errorf("%x: %v, want %q", c.packet, part.got, part.want)
			}
		}
	}
}
