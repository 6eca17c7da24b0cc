package main

import (
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/chart"
)

// The picture's lengths, in pixels and time.
const (
	width    = 920
	left     = 64.0
	right    = width - 28.0
	top      = 82.0
	plot     = 74.0  // the height of a panel's plot
	panel    = 114.0 // the panel's height with its captions
	bin      = 400 * time.Millisecond
	maxRate  = 60 // the maximum of the y axes, in requests a second
	timeTick = 2 * time.Second
)

var seconds = chart.Linear(0, length.Seconds(), left, right)

// picture draws the stream, and below it each algorithm's admissions.
func picture() (string, error) {
	at := arrivals()
	c := chart.New(width, int(top+6*panel)+38, "The admissions of five rate limiting algorithms",
		"Requests per second over time: a bursty stream, and the part of it that each algorithm admits.")
	c.Text("heading", "start", left, 34, "One bursty stream, five algorithms")
	c.Text("muted", "start", left, 55, "Each holds a client to 10 requests a second (dotted), and to 40 at once.")
	legend(c)
	offered(c, at)
	for i, l := range lanes() {
		tr, err := send(l.limit, at)
		if err != nil {
			return "", err
		}
		l.draw(c, top+float64(i+1)*panel, tr)
	}
	timeLabels(c, top+5*panel+plot+30)
	return c.String(), nil
}

// legend draws the legend of the colours, from right to left.
func legend(c *chart.Canvas) {
	x := right
	for _, entry := range []struct {
		class, text string
		width       float64
	}{{"denied", "denied", 58}, {"admitted", "admitted", 71}, {"offered", "offered", 62}} {
		c.Text("small", "end", x, 55, entry.text)
		c.Rect(entry.class, x-entry.width, 45.5, 10, 10)
		x -= entry.width + 14
	}
}

func offered(c *chart.Canvas, at []time.Duration) {
	caption(c, top, "Offered", "a trickle, a burst, a long overload, another burst", fmt.Sprintf("%d requests", len(at)))
	axes(c, top+plot+30)
	bars(c, top+plot+30, "offered", counts(at), nil)
}

// draw draws a panel: bars of the admitted requests, and the denied ones on top of them.
func (l lane) draw(c *chart.Canvas, y float64, tr trace) {
	caption(c, y, l.name, l.note, fmt.Sprintf("%d passed, %d at most in any 4 s", len(tr.left), tr.mostEver))
	base := y + plot + 30
	axes(c, base)
	passed := counts(tr.left)
	bars(c, base, "denied", counts(tr.denied), passed)
	bars(c, base, "admitted", passed, nil)
	if l.limit.Algorithm == ratelimit.AlgorithmFixedWindow {
		for _, t := range tr.anew {
			c.Line("window", seconds(t.Seconds()), base-plot, seconds(t.Seconds()), base)
		}
	}
	rateLine(c, base)
}

func caption(c *chart.Canvas, y float64, name, note, figures string) {
	c.Text("name", "start", left, y+20, name)
	c.Text("small", "start", left+132, y+20, note)
	c.Text("small", "end", right, y+20, figures)
}

// axes draws a panel's grid, its base line and the labels.
func axes(c *chart.Canvas, base float64) {
	height := chart.Linear(0, maxRate, base, base-plot)
	for v := 0.0; v <= maxRate; v += 20 {
		c.Line("grid", left, height(v), right, height(v))
		c.Text("small", "end", left-8, height(v)+4, fmt.Sprint(v))
	}
	for t := time.Duration(0); t <= length; t += timeTick {
		c.Line("axis", seconds(t.Seconds()), base, seconds(t.Seconds()), base+4)
	}
	c.Line("axis", left, base, right, base)
	c.Upright("small", 20, base-plot/2, "per second")
}

// timeLabels draws the times below the lowest panel.
func timeLabels(c *chart.Canvas, base float64) {
	for t := time.Duration(0); t <= length; t += timeTick {
		c.Text("small", "middle", seconds(t.Seconds()), base+18, fmt.Sprint(t.Seconds()))
	}
	c.Text("small", "middle", (left+right)/2, base+38, "time, in seconds")
}

// rateLine marks the rate of all limits.
func rateLine(c *chart.Canvas, base float64) {
	y := chart.Linear(0, maxRate, base, base-plot)(10)
	c.Line("rate", left, y, right, y)
}

// counts counts the instants in each bin.
func counts(at []time.Duration) []int {
	n := make([]int, length/bin)
	for _, t := range at {
		if i := int(t / bin); i < len(n) {
			n[i]++
		}
	}
	return n
}

// bars draws one bar per bin. If there are bars below, it stands on top of them.
func bars(c *chart.Canvas, base float64, class string, n, under []int) {
	height := chart.Linear(0, maxRate*bin.Seconds(), 0, plot)
	for i, count := range n {
		if count == 0 {
			continue
		}
		y := base
		if under != nil {
			y -= height(float64(under[i]))
		}
		h := height(float64(count))
		x := seconds((time.Duration(i) * bin).Seconds())
		c.Rect(class, x+0.5, y-h, seconds((time.Duration(i+1)*bin).Seconds())-x-1, h)
	}
}
