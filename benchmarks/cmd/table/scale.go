package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/weir-go/ratelimit/internal/chart"
)

// The picture's measures, in pixels.
const (
	width, height = 920, 440
	left, right   = 72.0, width - 196.0
	top, bottom   = 84.0, height - 64.0
	lineHeight    = 19.0 // of the labels at the curves' ends
)

// contender is a curve of the picture.
type contender struct{ peer, class, label string }

var contenders = []contender{
	{us, "a", "ratelimit"},
	{"xtime-map+Mutex", "b", "x/time/rate, map + Mutex"},
	{"sethvargo", "c", "sethvargo/go-limiter"},
	{"throttled-LRU", "d", "throttled, LRU store"},
}

// drawScale draws the cost of a decision against the number of keys.
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

// scales fits the axes to the samples: keys by their logarithm, time from zero.
func (t *table) scales() (x, y chart.Scale) {
	return chart.Log(t.keys(0), t.keys(len(t.cols)-1), left, right), chart.Linear(0, t.ceiling(), bottom, top)
}

func (t *table) keys(col int) float64 {
	n, _ := strconv.ParseFloat(t.cols[col], 64) // BenchmarkScale names its columns by numbers
	return n
}

// ceiling returns the end of the time axis: the highest median, and up to the next grid line.
func (t *table) ceiling() (most float64) {
	for _, c := range contenders {
		for _, col := range t.cols {
			most = max(most, t.cells[[2]string{c.peer, col}].median())
		}
	}
	return math.Ceil(most/gridStep(most)) * gridStep(most)
}

// gridStep returns the step of 1, 2 or 5 times a power of ten that makes four to ten of most.
func gridStep(most float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(most/4)))
	switch n := most / 4 / power; {
	case n >= 5:
		return 5 * power
	case n >= 2:
		return 2 * power
	}
	return power
}

func (t *table) axes(c *chart.Canvas, x, y chart.Scale) {
	most := t.ceiling()
	for ns := 0.0; ns <= most; ns += gridStep(most) {
		c.Line("grid", left, y(ns), right, y(ns))
		c.Text("small", "end", left-8, y(ns)+4, fmt.Sprint(ns))
	}
	for i := range t.cols {
		at := x(t.keys(i))
		c.Line("axis", at, bottom, at, bottom+4)
		c.Text("small", "middle", at, bottom+19, short(t.keys(i)))
	}
	c.Line("axis", left, bottom, right, bottom)
	c.Text("small", "middle", (left+right)/2, bottom+42, "keys")
	c.Upright("small", 24, (top+bottom)/2, "ns per decision")
}

// short prints a round number of keys as people say it.
func short(n float64) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.0f million", n/1e6)
	case n >= 1e4:
		return fmt.Sprintf("%.0f,000", n/1e3)
	}
	return fmt.Sprintf("%.0f", n)
}

// end is where a curve ends, and what it is called.
type end struct {
	contender
	at chart.Point
}

// curves draws the curves, ours on top.
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

// label names each curve at its end, from below upwards, far enough apart to be read.
func label(c *chart.Canvas, ends []end) {
	slices.SortFunc(ends, func(a, b end) int { return cmp.Compare(b.at.Y, a.at.Y) })
	lowest := bottom
	for _, e := range ends {
		y := min(e.at.Y+4, lowest)
		c.Text(e.class, "start", e.at.X+12, y, e.label)
		lowest = y - lineHeight
	}
}
