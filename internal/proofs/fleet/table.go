package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// table is a table in Markdown.
type table struct{ rows [][]string }

func newTable(heads ...string) *table { return &table{rows: [][]string{heads}} }

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// print writes the table with columns of equal width.
func (t *table) print(out io.Writer) error {
	widths := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for i, row := range t.rows {
		t.line(&b, widths, row)
		if i == 0 {
			for _, w := range widths {
				b.WriteString("|" + strings.Repeat("-", w+2))
			}
			b.WriteString("|\n")
		}
	}
	_, err := fmt.Fprintln(out, b.String())
	return err
}

func (t *table) line(b *strings.Builder, widths []int, row []string) {
	for i, cell := range row {
		b.WriteString("| " + cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+1))
	}
	b.WriteString("|\n")
}

// thousands prints a count with a space between groups of three digits.
func thousands(n int64) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s %03d", thousands(n/1000), n%1000)
}

// short formats a time with about two digits.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	case d >= 10*time.Microsecond:
		return d.Round(time.Microsecond).String()
	}
	return d.Round(10 * time.Nanosecond).String()
}
