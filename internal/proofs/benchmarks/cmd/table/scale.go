package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/weir-go/ratelimit/internal/dev/chart"
)

const million = 1_000_000

// The picture's lengths, in pixels.
const (
	width, height = 920, 440
	left, right   = 72.0, width - 196.0
	top, bottom   = 84.0, height - 64.0
	lineHeight    = 20.0 // a label's height at the end of a curve
)

// contender is a curve of the picture.
type contender struct{ peer, class, label string }

var contenders = []contender{
	{us, "a", "ratelimit"},
	{"xtime-map+Mutex", "b", "x/time/rate, map + Mutex"},
	{"sethvargo", "c", "sethvargo/go-limiter"},
	{"throttled-LRU", "d", "throttled, LRU store"},
}

// drawScale draws a decision's cost by the number of keys.
func drawScale(r results) string {
	var t table
	t.add(r, "Scale", "ns/op", "peer")
	c := chart.New(width, height, "Cost of a decision against the number of keys",
		"Nanoseconds per decision for 10 to 10 million keys: this package and three others.")
	c.Text("heading", "start", left, 34, "Cost of one decision, by number of keys")
	c.Text("muted", "start", left, 55, fmt.Sprintf("Known keys, picked at random, one after the other. %s, %s, %s",
		r.config["cpu"], r.config["go"], r.config["date"]))
	x, y := t.scales()
	t.axes(c, x, y)
	ends := t.curves(c, x, y)
	label(c, ends)
	return c.String()
}

// scales fits the axes to the samples.
func (t *table) scales() (x, y chart.Scale) {
	grid := t.grid()
	return chart.Log(t.keys(0), t.keys(len(t.cols)-1), left, right), chart.Log(grid[0], grid[len(grid)-1], bottom, top)
}

func (t *table) keys(col int) float64 {
	n, _ := strconv.ParseFloat(t.cols[col], 64) // BenchmarkScale's columns have numbers as names
	return n
}

// grid returns the times of the picture's lines. The medians lie between the first and the last.
func (t *table) grid() []float64 {
	var medians []float64
	for _, c := range contenders {
		for _, col := range t.cols {
			medians = append(medians, t.cells[[2]string{c.peer, col}].median())
		}
	}
	return steps(slices.Min(medians), slices.Max(medians))
}

// steps returns 1, 2 and 5 times powers of ten. The first is at most lowest, and the last at least highest.
func steps(lowest, highest float64) (steps []float64) {
	for power := 1.0; ; power *= 10 {
		for _, digit := range []float64{1, 2, 5} {
			step := digit * power
			if step <= lowest {
				steps = steps[:0]
			}
			if steps = append(steps, step); step >= highest {
				return steps
			}
		}
	}
}

func (t *table) axes(c *chart.Canvas, x, y chart.Scale) {
	for _, ns := range t.grid() {
		c.Line("grid", left, y(ns), right, y(ns))
		c.Text("small", "end", left-8, y(ns)+4, short(ns))
	}
	for i := range t.cols {
		at := x(t.keys(i))
		c.Line("axis", at, bottom, at, bottom+4)
		c.Text("small", "middle", at, bottom+19, short(t.keys(i)))
	}
	c.Line("axis", left, bottom, right, bottom)
	c.Text("small", "middle", (left+right)/2, bottom+42, "keys (logarithmic)")
	c.Upright("small", 20, (top+bottom)/2, "ns per decision (logarithmic)")
}

// short formats a number in words.
func short(n float64) string {
	switch whole := int(n); {
	case whole >= million && whole%million == 0:
		return fmt.Sprintf("%d million", whole/million)
	case whole >= 10_000:
		return fmt.Sprintf("%d,%03d", whole/1000, whole%1000)
	default:
		return fmt.Sprint(whole)
	}
}

// end is a curve's end, with its label.
type end struct {
	contender
	at chart.Point
}

// curves draws the curves, with this library's on top.
func (t *table) curves(c *chart.Canvas, x, y chart.Scale) (ends []end) {
	for _, who := range slices.Backward(contenders) {
		var points []chart.Point
		for i, col := range t.cols {
			ns := t.cells[[2]string{who.peer, col}].median()
			points = append(points, chart.Point{X: x(t.keys(i)), Y: y(ns)})
		}
		c.Curve(who.class, points)
		ends = append(ends, end{who, points[len(points)-1]})
	}
	return ends
}

// label writes a name at each curve's end. It works upwards and keeps the names far enough apart.
func label(c *chart.Canvas, ends []end) {
	slices.SortFunc(ends, func(a, b end) int { return cmp.Compare(b.at.Y, a.at.Y) })
	lowest := bottom
	for _, e := range ends {
		y := min(e.at.Y+4, lowest)
		c.Text(e.class, "start", e.at.X+12, y, e.label)
		lowest = y - lineHeight
	}
}
