package main

import (
	"fmt"
	"time"

	"github.com/weir-go/ratelimit/internal/dev/chart"
)

// The picture's lengths, in pixels.
const (
	width  = 920
	left   = 64.0
	right  = width - 28.0
	top    = 96.0
	plot   = 130.0 // the height of a panel's plot
	panel  = 190.0 // the panel's height with its caption
	height = int(top + 2*panel + 30)
)

var seconds = chart.Linear(0, length.Seconds(), left, right)

func picture(lanes []*lane) string {
	c := chart.New(width, height, "50 greedy tenants and a modest one share 1,000 units a second",
		"The units granted to all tenants and to the modest tenant, under a shared bucket, a bucket for each tenant, and package fair.")
	c.Text("heading", "start", left, 34, "50 greedy tenants and a modest one share 1,000 units a second")
	c.Text("muted", "start", left, 55, "Simulated. From 20 s to 40 s, 40 of the greedy tenants pause. The modest one requests half of its share.")
	x := left
	for _, l := range lanes {
		c.Rect(l.class, x, 68, 10, 10)
		c.Text("small", "start", x+15, 77.5, l.name)
		x += 150
	}
	draw(c, lanes, top, "All tenants: units granted a second", chart.Linear(0, 1200, top+30+plot, top+30), 1,
		func(l *lane, i int) float64 { return float64(l.granted[i]) }, 0, 500, 1000)
	const wide = 4 // bins per point: the modest tenant calls only ten times a second
	draw(c, lanes, top+panel, "The modest tenant: part of its calls granted, in %", chart.Linear(0, 110, top+panel+30+plot, top+panel+30), wide,
		func(l *lane, i int) float64 {
			wanted, served := 0, 0
			for j := i; j < i+wide; j++ {
				wanted, served = wanted+l.wanted[j], served+l.served[j]
			}
			return 100 * float64(served) / float64(max(wanted, 1))
		}, 0, 50, 100)
	c.Text("small", "middle", (left+right)/2, top+2*panel+18, "time, in seconds")
	return c.String()
}

// draw draws a figure of all lanes over time, with one point for several bins.
func draw(c *chart.Canvas, lanes []*lane, y float64, caption string, at chart.Scale, bins int, figure func(l *lane, i int) float64, marks ...float64) {
	base := y + 30 + plot
	c.Text("name", "start", left, y+20, caption)
	for _, v := range marks {
		c.Line("grid", left, at(v), right, at(v))
		c.Text("small", "end", left-8, at(v)+4, fmt.Sprint(v))
	}
	for t := time.Duration(0); t <= length; t += 10 * time.Second {
		c.Line("axis", seconds(t.Seconds()), base, seconds(t.Seconds()), base+4)
		c.Text("small", "middle", seconds(t.Seconds()), base+18, fmt.Sprint(t.Seconds()))
	}
	for _, t := range []time.Duration{phase, 2 * phase} {
		c.Line("window", seconds(t.Seconds()), base-plot, seconds(t.Seconds()), base)
	}
	c.Line("axis", left, base, right, base)
	for _, l := range lanes {
		var points []chart.Point
		for i := 0; i < len(l.granted); i += bins {
			middle := (float64(i) + float64(bins)/2) * bin.Seconds()
			points = append(points, chart.Point{X: seconds(middle), Y: at(figure(l, i))})
		}
		c.Trace(l.class, points)
	}
}
