package main

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/chart"
	"github.com/weir-go/ratelimit/internal/overload"
)

// The picture's measures, in pixels and time.
const (
	width  = 920
	left   = 64.0
	right  = width - 28.0
	top    = 96.0
	plot   = 130.0 // height of a panel's plot
	panel  = 190.0 // and of the panel with its caption
	bin    = time.Second
	height = int(top + 3*panel + 30)
)

// story is what is drawn: a backend that loses half of its servers for a while, with half
// as much again to do as it can serve at its best.
var story = &overload.Scenario{
	Phases: []overload.Phase{
		{For: 20 * time.Second, Servers: 20, Service: 50 * time.Millisecond, PerSecond: 600},
		{For: 20 * time.Second, Servers: 10, Service: 50 * time.Millisecond, PerSecond: 600},
		{For: 20 * time.Second, Servers: 20, Service: 50 * time.Millisecond, PerSecond: 600},
	},
	Deadline: time.Second,
}

// lane is one way to protect the backend, and the class of its curve.
type lane struct {
	limit overload.Limit
	class string
	run   *overload.Run
}

func lanes(seed uint64) []lane {
	l := []lane{
		{overload.Limit{Name: "no limit"}, "b", nil},
		{overload.Limit{Name: "fixed limit, 200", Most: 200}, "d", nil},
		{overload.Limit{Name: "Gradient, at most 200", Most: 200, Adaptive: inflight.Gradient()}, "a", nil},
	}
	for i := range l {
		l[i].run = overload.Simulate(story, l[i].limit, seed)
	}
	return l
}

var seconds = chart.Linear(0, 60, left, right)

func picture(seed uint64) string {
	c := chart.New(width, height, "What a limit on requests in flight does for an overloaded backend",
		"Goodput, latency and limit over time: without a limit, with a fixed one and with an adaptive one.")
	c.Text("heading", "start", left, 34, "600 requests a second for a backend that can serve 400, and 200 from 20 s to 40 s")
	c.Text("muted", "start", left, 55, "Simulated: 20 servers (10 in between), 50 ms each on average, clients that give up after 1 s.")
	l := lanes(seed)
	legend(c, l)
	goodput(c, l, top)
	latency(c, l, top+panel)
	limits(c, l, top+2*panel)
	c.Text("small", "middle", (left+right)/2, top+3*panel+18, "time, in seconds")
	return c.String()
}

func legend(c *chart.Canvas, lanes []lane) {
	x := left
	for _, l := range lanes {
		c.Rect(l.class, x, 68, 10, 10)
		c.Text("small", "start", x+15, 77.5, l.limit.Name)
		x += 170
	}
}

// axes draws a panel's caption, grid and time ticks.
func axes(c *chart.Canvas, y float64, caption string, at chart.Scale, marks ...float64) {
	base := y + 30 + plot
	c.Text("name", "start", left, y+20, caption)
	for _, v := range marks {
		c.Line("grid", left, at(v), right, at(v))
		c.Text("small", "end", left-8, at(v)+4, fmt.Sprint(v))
	}
	for t := 0.0; t <= 60; t += 10 {
		c.Line("axis", seconds(t), base, seconds(t), base+4)
		c.Text("small", "middle", seconds(t), base+18, fmt.Sprint(t))
	}
	for _, t := range []float64{20, 40} {
		c.Line("window", seconds(t), base-plot, seconds(t), base)
	}
	c.Line("axis", left, base, right, base)
}

func goodput(c *chart.Canvas, lanes []lane, y float64) {
	at := chart.Linear(0, 700, y+30+plot, y+30)
	axes(c, y, "Goodput: answers within 1 s, per second, by when the request was sent", at, 0, 200, 400, 600)
	for _, l := range lanes {
		draw(c, l.class, func(from, to time.Duration) (float64, bool) { return at(l.run.Goodput(from, to)), true })
	}
}

func latency(c *chart.Canvas, lanes []lane, y float64) {
	at := chart.Log(0.1, 100, y+30+plot, y+30)
	axes(c, y, "Latency: 99 of 100 answers take no longer, in seconds", at, 0.1, 1, 10, 100)
	for _, l := range lanes {
		draw(c, l.class, func(from, to time.Duration) (float64, bool) {
			p99 := l.run.P99(from, to)
			return at(math.Max(0.1, p99.Seconds())), p99 > 0 // at the end, nobody without a limit was answered
		})
	}
}

// draw joins the figures of all bins that have one.
func draw(c *chart.Canvas, class string, figure func(from, to time.Duration) (y float64, ok bool)) {
	var points []chart.Point
	for t := time.Duration(0); t < story.Length(); t += bin {
		if y, ok := figure(t, t+bin); ok {
			points = append(points, chart.Point{X: seconds((t + bin/2).Seconds()), Y: y})
		}
	}
	c.Trace(class, points)
}

// limits draws the limits that there are.
func limits(c *chart.Canvas, lanes []lane, y float64) {
	at := chart.Log(5, 500, y+30+plot, y+30)
	axes(c, y, "Limit: requests that may be in flight", at, 5, 20, 50, 200, 500)
	for _, l := range lanes {
		var points []chart.Point
		switch {
		case len(l.run.Updates) > 0:
			for _, u := range l.run.Updates {
				points = append(points, chart.Point{X: seconds(u.At.Seconds()), Y: at(math.Max(5, float64(u.Limit)))})
			}
		case l.limit.Most > 0:
			points = []chart.Point{{X: left, Y: at(float64(l.limit.Most))}, {X: right, Y: at(float64(l.limit.Most))}}
		default:
			continue
		}
		c.Trace(l.class, points)
	}
}
