package main

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/chart"
	"github.com/weir-go/ratelimit/internal/dev/overload"
)

// The picture's lengths, in pixels and time.
const (
	width  = 920
	left   = 64.0
	right  = width - 28.0
	top    = 96.0
	plot   = 130.0 // the height of a panel's plot
	panel  = 190.0 // the panel's height with its caption
	bin    = time.Second
	height = int(top + 3*panel + 30)
)

// story is the simulated incident. The backend loses half its servers for some time. Its
// clients send one and a half times as much as all servers can serve, and wait for a second.
var story = []overload.Phase{usual(20), usual(10), usual(20)}

func usual(servers int) overload.Phase {
	p := overload.Phase{Servers: servers, Service: 50 * time.Millisecond, Spread: overload.Exponential, Leave: time.Second}
	p.Load = 600 / p.Capacity()
	return p
}

const (
	phase  = 20 * time.Second
	length = 3 * phase
)

// point is the backend's state in a bin.
type point struct{ goodput, latency, limit float64 }

// lane is one way to protect the backend, and its curve's class.
type lane struct {
	name, class string
	points      []point
}

func lanes(seed uint64) []lane {
	return []lane{
		{"no limit", "b", play(&overload.Fixed{Limit: math.MaxInt}, seed)},
		{"fixed limit, 200", "d", play(&overload.Fixed{Limit: 200}, seed)},
		{"Learn, at most 200", "a", play(overload.NewLimiter(200, inflight.Learn(nil)), seed)},
	}
}

// play simulates the story.
func play(gate overload.Gated, seed uint64) (points []point) {
	w := overload.NewWorld(gate, seed)
	for _, p := range story {
		for end := w.Now + phase; w.Now < end; {
			if end-w.Now == phase {
				w.Begin(p)
			}
			w.Tally = overload.Tally{}
			w.Play(bin)
			_, limit := gate.State()
			points = append(points, point{float64(w.Good) / bin.Seconds(), w.Mean().Seconds(), float64(limit)})
		}
	}
	return points
}

var seconds = chart.Linear(0, 60, left, right)

func picture(seed uint64) string {
	c := chart.New(width, height, "The effect of a limit on requests in flight on an overloaded backend",
		"Goodput, latency and limit over time: without a limit, with a fixed one and with an adaptive one.")
	c.Text("heading", "start", left, 34, "600 requests a second for a backend that can serve 400, and 200 from 20 s to 40 s")
	c.Text("muted", "start", left, 55, "Simulated: 20 servers (10 in between), 50 ms each on average, clients that give up after 1 s.")
	l := lanes(seed)
	legend(c, l)
	panelOf(c, l, top, "Goodput: requests a second whose clients get an answer", chart.Linear(0, 700, top+30+plot, top+30),
		func(p point) float64 { return p.goodput }, 0, 200, 400, 600)
	panelOf(c, l, top+panel, "Latency: mean time in the backend, or until the client leaves, in seconds", chart.Log(0.03, 1, top+panel+30+plot, top+panel+30),
		func(p point) float64 { return max(0.03, p.latency) }, 0.03, 0.1, 0.3, 1)
	panelOf(c, l, top+2*panel, "Limit: requests that may be in flight", chart.Log(5, 500, top+2*panel+30+plot, top+2*panel+30),
		func(p point) float64 { return min(500, max(5, p.limit)) }, 5, 20, 50, 200, 500)
	c.Text("small", "middle", (left+right)/2, top+3*panel+18, "time, in seconds")
	return c.String()
}

func legend(c *chart.Canvas, lanes []lane) {
	x := left
	for _, l := range lanes {
		c.Rect(l.class, x, 68, 10, 10)
		c.Text("small", "start", x+15, 77.5, l.name)
		x += 170
	}
}

// panelOf draws one figure of all lanes over time.
func panelOf(c *chart.Canvas, lanes []lane, y float64, caption string, at chart.Scale, figure func(point) float64, marks ...float64) {
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
	for _, l := range lanes {
		var points []chart.Point
		for i, p := range l.points {
			points = append(points, chart.Point{X: seconds((time.Duration(i)*bin + bin/2).Seconds()), Y: at(figure(p))})
		}
		c.Trace(l.class, points)
	}
}
