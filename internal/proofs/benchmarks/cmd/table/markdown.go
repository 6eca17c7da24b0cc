package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// table is a table of samples. Rows and columns stand in the order of their addition.
type table struct {
	rows, cols []string
	cells      map[[2]string]samples
}

// add adds one benchmark's samples in one unit. The row's dimensions name the row, and
// the other dimensions the column. If there are no others, the unit names the column.
func (t *table) add(r results, base, unit string, row ...string) {
	for _, l := range r.lines {
		if v, ok := l.values[unit]; ok && l.base == base {
			t.put(l.label(row, true), cmp.Or(l.label(row, false), unit), v)
		}
	}
}

func (t *table) put(row, col string, v float64) {
	if t.cells == nil {
		t.cells = map[[2]string]samples{}
	}
	if !slices.Contains(t.rows, row) {
		t.rows = append(t.rows, row)
	}
	if !slices.Contains(t.cols, col) {
		t.cols = append(t.cols, col)
	}
	t.cells[[2]string{row, col}] = append(t.cells[[2]string{row, col}], v)
}

// label joins the values of the dimensions dims. If included is false, it joins those of all other dimensions.
func (l line) label(dims []string, included bool) string {
	var values []string
	for _, key := range []string{"work", "keys", "mix", "run", "call", "layers", "type", "algorithm", "goroutines", "peer"} {
		if value, ok := l.dims[key]; ok && slices.Contains(dims, key) == included {
			if key == "goroutines" {
				value += " goroutines"
			}
			values = append(values, value)
		}
	}
	return strings.Join(values, " ")
}

// medians returns the table with each cell's median.
func (t *table) medians() string { return t.mediansTo(0) }

// mediansTo is medians, with the given number of digits after the point.
func (t *table) mediansTo(digits int) string {
	return t.print(func(row, col string) string {
		if s := t.cells[[2]string{row, col}]; len(s) > 0 {
			return strconv.FormatFloat(s.median(), 'f', digits, 64)
		}
		return ""
	})
}

// ratios returns the table with each median's ratio to the base row's.
func (t *table) ratios(base string) string {
	return t.print(func(row, col string) string {
		s, ours := t.cells[[2]string{row, col}], t.cells[[2]string{base, col}]
		if len(s) == 0 || len(ours) == 0 {
			return ""
		}
		return fmt.Sprintf("%.2f", s.median()/ours.median())
	})
}

func (t *table) print(cell func(row, col string) string) string {
	var b strings.Builder
	b.WriteString("| |")
	for _, col := range t.cols {
		fmt.Fprintf(&b, " %s |", heading(col))
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---:|", len(t.cols)))
	for _, row := range t.rows {
		fmt.Fprintf(&b, "| %s |", row)
		for _, col := range t.cols {
			fmt.Fprintf(&b, " %s |", cell(row, col))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// heading writes out a number of keys at the beginning of a column's name.
func heading(col string) string {
	first, rest, _ := strings.Cut(col, " ")
	n, err := strconv.ParseFloat(first, 64)
	switch {
	case err != nil, strings.HasPrefix(rest, "goroutines"):
		return col
	case n == 1:
		return strings.TrimSpace("1 key " + rest)
	}
	return strings.TrimSpace(short(n) + " keys " + rest)
}
