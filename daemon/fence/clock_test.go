package fence

import (
	"testing"
	"time"
)

func TestParseBootOffset(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       time.Duration
		fails      bool
	}{
		{"none", "monotonic           0         0\nboottime            0         0\n", 0, false},
		{"days", "monotonic           5         7\nboottime       864000       123\n", 240*time.Hour + 123, false},
		{"back", "boottime            -3 500000000\n", -2500 * time.Millisecond, false},
		{"no line", "monotonic 0 0\n", 0, true},
		{"empty", "", 0, true},
		{"no number", "boottime x 0\n", 0, true},
		{"no fraction", "boottime 0 y\n", 0, true},
		{"wraps to zero", "boottime 18446744073709551616 0\n", 0, true},
		{"out of range", "boottime 9223372037 0\n", 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseBootOffset([]byte(tc.text))
			if (err != nil) != tc.fails || got != tc.want {
				t.Fatalf("got %s, %v", got, err)
			}
		})
	}
}

func TestBootTime(t *testing.T) {
	a := BootTime()
	if b := BootTime(); a <= 0 || b < a {
		t.Fatalf("read %s, then %s", a, b)
	}
	if d, err := TimeNamespaceOffset(); err != nil || d != 0 {
		t.Fatalf("this test wants an unbent clock: %s, %v", d, err)
	}
}
