package main

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	tab := newTable("ADD")
	for _, v := range []float64{9, 1, 5} {
		tab.add("a", "ms", v)
	}
	tab.add("b", "s", 1234.5)
	tab.add("b", "s", 1235.5)
	tab.add("b", "s", 0.0123)
	var got strings.Builder
	if err := tab.print(&got); err != nil {
		t.Fatal(err)
	}
	want := `
ADD   ms                 s
a     5.00 (1.00–9.00)   -
b     -                  1234 (0.012–1236)
`
	if got.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", got.String(), want)
	}
}

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		in   []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{4, 2}, 3}, {[]float64{9, 1, 2}, 2}} {
		if got := median(tc.in); got != tc.want {
			t.Errorf("median(%v) = %v, want %v", tc.in, got, tc.want)
		}
	}
}

func TestPercentile(t *testing.T) {
	var hundred []float64
	for i := range 100 {
		hundred = append(hundred, float64(100-i))
	}
	for _, tc := range []struct {
		in   []float64
		p    int
		want float64
	}{{hundred, 99, 99}, {hundred, 50, 50}, {hundred[:3], 99, 100}, {[]float64{7}, 1, 7}} {
		if got := percentile(tc.in, tc.p); got != tc.want {
			t.Errorf("percentile %d of %d samples: %v, want %v", tc.p, len(tc.in), got, tc.want)
		}
	}
}

func TestTenancies(t *testing.T) {
	seen := tenancies{}
	for i, tc := range []struct {
		key, uid string
		change   bool
	}{{"a", "1", false}, {"b", "2", false}, {"a", "1", false}, {"a", "2", true}, {"b", "2", false}} {
		if got := seen.change(tc.key, tc.uid); got != tc.change {
			t.Errorf("write %d, %s by %s: another tenant before: %t, want %t", i, tc.key, tc.uid, got, tc.change)
		}
	}
}
