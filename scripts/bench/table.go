package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// table collects figures by contender (row) and quantity (column), in the
// order of their first appearance.
type table struct {
	title   string
	rows    []string
	columns []string
	samples map[[2]string][]float64
	ratios  [][2]string // rows to compare, the first to the second
	cell    func([]float64) string
}

func newTable(title string) *table {
	return &table{title: title, samples: map[[2]string][]float64{}, cell: extremes}
}

// cells has cells of at least one sample printed otherwise than with
// their extremes.
func (t *table) cells(cell func([]float64) string) *table {
	t.cell = cell
	return t
}

// row has a row stand where it is named first, whenever its samples come.
func (t *table) row(name string) {
	if !slices.Contains(t.rows, name) {
		t.rows = append(t.rows, name)
	}
}

func (t *table) has(row string) bool { return slices.Contains(t.rows, row) }

// add takes one sample.
func (t *table) add(row, column string, value float64) {
	t.row(row)
	if !slices.Contains(t.columns, column) {
		t.columns = append(t.columns, column)
	}
	key := [2]string{row, column}
	t.samples[key] = append(t.samples[key], value)
}

// ratio adds a row: the medians of one row as multiples of another's.
func (t *table) ratio(of, to string) { t.ratios = append(t.ratios, [2]string{of, to}) }

// print writes the table, "-" for a cell without a sample.
func (t *table) print(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintf(out, "\n%s\t%s\n", t.title, strings.Join(t.columns, "\t"))
	for _, row := range t.rows {
		cells := []string{row}
		for _, column := range t.columns {
			text := "-"
			if samples := t.samples[[2]string{row, column}]; len(samples) > 0 {
				text = t.cell(samples)
			}
			cells = append(cells, text)
		}
		_, _ = fmt.Fprintln(out, strings.Join(cells, "\t"))
	}
	for _, r := range t.ratios {
		cells := []string{"ratio " + r[0] + " : " + r[1]}
		for _, column := range t.columns {
			cells = append(cells, t.quotient(r, column))
		}
		_, _ = fmt.Fprintln(out, strings.Join(cells, "\t"))
	}
	return out.Flush()
}

// quotient is "-" where there is nothing to divide by.
func (t *table) quotient(rows [2]string, column string) string {
	v := t.ratioOf(rows[0], rows[1], column)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "-"
	}
	return fmt.Sprintf("%.2f", v)
}

// ratioOf divides the medians of two rows; NaN where one has no sample.
func (t *table) ratioOf(of, to, column string) float64 {
	return t.at(of, column, 50) / t.at(to, column, 50)
}

// paired is the median of what one row is of another, sample by sample: what
// slows the machine for a while slows both. NaN without samples.
func (t *table) paired(of, to, column string) float64 {
	a, b := t.samples[[2]string{of, column}], t.samples[[2]string{to, column}]
	var all []float64
	for i := range min(len(a), len(b)) {
		all = append(all, a[i]/b[i])
	}
	if len(all) == 0 {
		return math.NaN()
	}
	return median(all)
}

// at is a percentile of a cell, the 50th being the median; NaN without a sample.
func (t *table) at(row, column string, p int) float64 {
	samples := t.samples[[2]string{row, column}]
	switch {
	case len(samples) == 0:
		return math.NaN()
	case p == 50:
		return median(samples)
	}
	return percentile(samples, p)
}

// extremes is "median (least–greatest)"; a single sample stands alone.
func extremes(samples []float64) string {
	if len(samples) == 1 {
		return figure(samples[0])
	}
	return fmt.Sprintf("%s (%s–%s)", figure(median(samples)), figure(slices.Min(samples)), figure(slices.Max(samples)))
}

// quantiles is "p50 / p99".
func quantiles(samples []float64) string {
	return fmt.Sprintf("%s / %s", figure(median(samples)), figure(percentile(samples, 99)))
}

// figure shows three significant digits where there are decimals at all.
func figure(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// median of at least one sample; of an even number, the mean of the middle two.
func median(samples []float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// percentile is the least sample that p in a hundred do not exceed.
func percentile(samples []float64, p int) float64 {
	s := slices.Sorted(slices.Values(samples))
	return s[max(0, (len(s)*p+99)/100-1)]
}
