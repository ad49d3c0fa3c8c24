package main

import (
	"math"
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
	tab.add("c", "ms", 0)
	var got strings.Builder
	if err := tab.print(&got); err != nil {
		t.Fatal(err)
	}
	want := `
ADD   ms                 s
a     5.00 (1.00–9.00)   -
b     -                  1234 (0.012–1236)
c     0                  -
`
	if got.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", got.String(), want)
	}
}

func TestTableOfQuantiles(t *testing.T) {
	tab := newTable("one").cells(quantiles)
	for v := range 101 {
		tab.add("a", "ADD", float64(v))
	}
	tab.add("b", "ADD", 25)
	tab.add("b", "DEL", 4)
	tab.add("b", "none", 0)
	tab.add("a", "none", 1)
	tab.ratio("a", "b")
	var got strings.Builder
	if err := tab.print(&got); err != nil {
		t.Fatal(err)
	}
	want := `
one           ADD           DEL           none
a             50.0 / 99.0   -             1.00 / 1.00
b             25.0 / 25.0   4.00 / 4.00   0 / 0
ratio a : b   2.00          -             -
`
	if got.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", got.String(), want)
	}
	if at := tab.at("a", "ADD", 99); at != 99 {
		t.Errorf("99th percentile %v", at)
	}
	if at := tab.at("a", "DEL", 50); !math.IsNaN(at) {
		t.Errorf("median of no samples %v", at)
	}
}

func TestGoals(t *testing.T) {
	var got strings.Builder
	if err := printGoals(&got, []goal{{"a", 0.45, 0.45}, {"b", 3, 3.1}, {"c", 1, math.NaN()}}); err != nil {
		t.Fatal(err)
	}
	want := `
Goals   at most   measured   
a       0.45      0.45       met
b       3         3.10       missed
c       1         NaN        missed
`
	if got.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", got.String(), want)
	}
}

func TestRotated(t *testing.T) {
	all := []string{"a", "b", "c"}
	for turn, want := range []string{"abc", "bca", "cab", "abc"} {
		if got := strings.Join(rotated(all, turn), ""); got != want {
			t.Errorf("turn %d: %s, want %s", turn, got, want)
		}
	}
}

func TestWithResult(t *testing.T) {
	for result, want := range map[string]string{
		"":                  `{"name":"n"}`,
		`{"ips":[{"a":1}]}`: `{"name":"n","prevResult":{"ips":[{"a":1}]}}`,
	} {
		var b []byte
		if result != "" {
			b = []byte(result)
		}
		if got, err := withResult([]byte(`{"name":"n"}`), b); err != nil || string(got) != want {
			t.Errorf("with %q: %s, %v, want %s", result, got, err, want)
		}
	}
}

func TestColumn(t *testing.T) {
	for i, want := range map[int]string{0: "1–50", 49: "1–50", 50: "51–100", 249: "201–250"} {
		if got := column(i); got != want {
			t.Errorf("ADD %d is in %s, want %s", i, got, want)
		}
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

func TestPairedIgnoresDrift(t *testing.T) {
	tab := newTable("x")
	for i, speed := range []float64{1, 5, 2} { // the machine is as slow as that
		tab.add("a", "s", 1.1*speed)
		if i < 2 {
			tab.add("a", "other", 1)
		}
		tab.add("b", "s", speed)
	}
	if got := tab.paired("a", "b", "s"); math.Abs(got-1.1) > 1e-9 {
		t.Errorf("paired %v", got)
	}
	if got := tab.paired("a", "b", "other"); !math.IsNaN(got) {
		t.Errorf("without samples %v", got)
	}
}
