package overload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Goal returns the maximum mean latency under a good limit, in service times.
func Goal(servers int) float64 {
	if servers <= 2 {
		return 6
	}
	return 2.5
}

const (
	// enough is an adaptive limit's minimum goodput, as a share of the best fixed limit's.
	enough = 0.95
	// settled is how many windows a limit gets at the beginning, and recovered how many after an event.
	settled, recovered = 60, 10
	// judged is the minimum number of measured requests.
	judged = 4000
)

// Cell is one point of the grid: a backend, its load, and an event.
type Cell struct {
	Phase
	Bound int
	Event string
	Seed  uint64
}

func (c Cell) String() string {
	return fmt.Sprintf("%d servers × %v %v, load %.2f, queue %d, bound %d, %s", c.Servers, c.Service, c.Spread, c.Load, c.Queue, c.Bound, c.Event)
}

// Events names what may happen to a backend.
var Events = []string{
	"none", "capacity × 30", "capacity / 30", "latency × 10", "refuses", "hangs", "flood", "clients leave", "pauses", "slow 1 %", "instant 500s",
}

// Sample draws a cell of the grid.
func Sample(seed uint64) Cell {
	rng := rand.New(rand.NewPCG(seed, 2))
	c := draw(rng, seed)
	if rng.IntN(2) == 0 {
		c.Event = Events[rng.IntN(len(Events))]
	}
	if c.Event == "capacity × 30" || c.Event == "capacity / 30" {
		c.Servers = []int{1, 2, 10}[rng.IntN(3)]
		c.Bound = 30 * c.Servers * (4 + rng.IntN(5))
	}
	return c
}

// draw returns a random cell without an event.
func draw(rng *rand.Rand, seed uint64) Cell {
	c := Cell{Seed: seed, Event: "none"}
	c.Servers = []int{1, 2, 10, 50, 100, 300}[rng.IntN(6)]
	c.Service = time.Duration(float64(time.Millisecond) * math.Pow(5000, rng.Float64())).Round(100 * time.Microsecond)
	c.Spread = Spread(rng.IntN(4))
	c.Load = math.Round(50*math.Pow(10, rng.Float64())) / 100
	c.Bound = int(float64(c.Servers) * 4 * math.Pow(20, rng.Float64()))
	if rng.IntN(3) == 0 {
		c.Queue = 2 * c.Bound
	}
	return c
}

// Failing lists ways for calls to end without success, though nothing is overloaded. In some,
// a share of the calls fails by a bug. In the others, clients leave after some service times.
var Failing = failing()

// Way is one way for a backend's calls to end.
type Way struct {
	Name   string
	change func(p *Phase, seed uint64)
}

func failing() (all []Way) {
	for _, share := range []float64{0.05, 0.1, 0.3, 0.6} {
		all = append(all,
			Way{fmt.Sprintf("%2.0f %% fail after their work", 100*share), func(p *Phase, _ uint64) { p.FailLate = share }},
			Way{fmt.Sprintf("%2.0f %% fail within their work", 100*share), func(p *Phase, _ uint64) { p.FailPart = share }},
			Way{fmt.Sprintf("%2.0f %% fail at once", 100*share), func(p *Phase, _ uint64) { p.Fail = share }})
	}
	for _, after := range []float64{0.5, 0.8, 1, 1.5, 2, 3, 10} {
		all = append(all, Way{fmt.Sprintf("clients leave after %v", after), func(p *Phase, seed uint64) {
			p.Leave, p.Abort = time.Duration(after*float64(p.Service)), seed%2 == 0
		}})
	}
	return all
}

// SampleFailing draws a cell with one of Failing. Seeds take the ways in turn.
func SampleFailing(seed uint64) Cell {
	rng := rand.New(rand.NewPCG(seed, 6))
	c := draw(rng, seed)
	way := Failing[seed%uint64(len(Failing))]
	c.Event = way.Name
	way.change(&c.Phase, rng.Uint64())
	if c.Leave > 0 {
		switch rng.IntN(3) {
		case 0:
			c.LeaveVary = true
			c.Event += ", more or less"
		case 1:
			c.Deadline = true
			c.Event += ", by a deadline"
		}
	}
	return c
}

// step is one part of a cell's story.
type step struct {
	Phase
	windows int           // how many windows pass before the step is judged
	stop    time.Duration // how long the backend stops at the beginning
	unseen  bool          // whether the step is not judged
	lasts   time.Duration // how long an unjudged step lasts
	name    string
}

// story returns a cell's steps.
func (c Cell) story() []step {
	usual := step{Phase: c.Phase, windows: settled, name: "settled"}
	with := func(name string, change func(*step)) step {
		s := usual
		s.windows, s.name = recovered, name
		change(&s)
		return s
	}
	back := with("back", func(*step) {})
	long := max(10*time.Second, 10*c.Service)
	switch c.Event {
	case "capacity × 30":
		return []step{usual, with("more", func(s *step) { s.Servers *= 30 })}
	case "capacity / 30":
		usual.Servers *= 30
		return []step{usual, with("less", func(s *step) { s.Servers /= 30 })}
	case "latency × 10":
		slow := with("slow", func(s *step) { s.Service *= 10; s.lasts = 30 * time.Second })
		slow.unseen = 30*time.Second < recovered*slow.window()*2
		return []step{usual, slow, back}
	case "refuses":
		return []step{usual, with("", func(s *step) { s.Refuse, s.unseen, s.lasts = true, true, long }), back}
	case "hangs":
		return []step{usual, with("", func(s *step) { s.unseen, s.lasts, s.stop = true, long, long }), back}
	case "flood":
		usual.Load = 0.5
		return []step{usual, with("flood", func(s *step) { s.Load = 5 }), with("ebb", func(s *step) { s.Load = 0.5 })}
	case "clients leave":
		usual.Leave = time.Duration((3 + 7*float64(c.Seed%8)/8) * float64(c.Service))
		usual.Abort = c.Seed%2 == 0
		if c.Servers >= 100 {
			return []step{usual, with("less", func(s *step) { s.Servers /= c.Servers / 10 })}
		}
	case "pauses":
		usual.PauseEach, usual.Pause = max(2*time.Second, 20*c.Service), max(100*time.Millisecond, c.Service)
	case "slow 1 %":
		usual.SlowShare, usual.SlowBy = 0.01, 30
	case "instant 500s":
		usual.Fail, usual.Load = 0.3, 0.5
	}
	return []step{usual}
}

// window returns about how long a window lasts if the latency just meets the goal.
func (p *Phase) window() time.Duration {
	s := p.mean()
	return max(100*time.Millisecond, 20*s/time.Duration(p.Servers), time.Duration(Goal(p.Servers)*float64(s)))
}

// judged returns how long a phase is measured.
func (p *Phase) judged() time.Duration {
	n := float64(judged)
	if p.SlowShare > 0 {
		n *= 5 // slow requests are few and long
	}
	return max(30*p.window(), time.Duration(n/min(1, p.Load)/p.Capacity()*float64(time.Second)))
}

// Verdict is a gate's result in one step of a cell.
type Verdict struct {
	Cell    Cell
	Step    string
	Latency float64 // the mean, in service times
	Goodput float64 // as a share of the best fixed limit's
	Limit   int     // the gate's limit at the end
	Best    int     // the best fixed limit
	Windows int     // how many windows passed before it was judged
}

func (v Verdict) String() string {
	return fmt.Sprintf("%d: %v [%s]: latency %.2f, goodput %.3f, limit %d, best %d, %d windows", v.Cell.Seed, v.Cell, v.Step, v.Latency, v.Goodput, v.Limit, v.Best, v.Windows)
}

// Good reports whether the goal was met.
func (v Verdict) Good() bool {
	return v.Goodput >= enough && v.Latency <= Goal(v.Cell.Servers)
}

// Gated is a gate whose State returns how many windows it has seen, or -1 if it counts none, and its limit.
type Gated interface {
	Gate
	State() (windows, limit int)
}

// Allows is a gate with a bound on the mean latency: above it, the backend counts as overloaded. The gate is compared with
// the best fixed limit within the bound. If there is none, because the backend itself is slower, the gate cannot fail.
type Allows interface {
	Allows() time.Duration // 0 means no bound
}

// Play simulates a cell with a gate.
func Play(c Cell, gate Gated) (all []Verdict) {
	w := NewWorld(gate, c.Seed)
	for i, s := range c.story() {
		w.Begin(s.Phase)
		if s.stop > 0 {
			w.Stop(s.stop)
		}
		before, _ := gate.State()
		if s.unseen {
			w.Play(s.lasts)
			continue
		}
		began := w.Now
		for n, _ := gate.State(); n >= 0 && n-before < s.windows && w.Now-began < 100*time.Duration(s.windows)*s.window(); n, _ = gate.State() {
			w.Play(s.window() / 4)
		}
		after, _ := gate.State()
		if after < 0 { // the gate counts no windows
			w.Play(2 * time.Duration(s.windows) * s.window())
		}
		length := s.judged()
		if s.lasts > 0 {
			length = s.lasts - (w.Now - began)
		}
		if length <= 0 {
			continue
		}
		seed := c.Seed + uint64(i)<<32
		w.judge(length, seed)
		_, limit := gate.State()
		allowed := Goal(s.Servers)
		if a, ok := gate.(Allows); ok && a.Allows() > 0 {
			allowed = min(allowed, float64(a.Allows())/float64(s.mean()))
		}
		best, most := Best(s.Phase, c.Bound, length, seed, allowed)
		if best == 0 {
			continue
		}
		all = append(all, Verdict{
			Cell: c, Step: s.name, Latency: float64(w.Mean()) / float64(s.mean()), Goodput: float64(w.Good) / most, Limit: limit, Best: best, Windows: after - before,
		})
		all[len(all)-1].Cell.Servers = s.Servers
	}
	return all
}

// judge simulates for some time, and counts only that time's results.
func (w *World) judge(length time.Duration, seed uint64) {
	w.Tally = Tally{}
	w.reseed(seed)
	w.Play(length)
}

var reference sync.Map // results by cell, because several gates are compared with them

type gridCase struct {
	Phase
	bound  int
	length time.Duration
	seed   uint64

	allowed float64
}

type answered struct {
	limit int
	good  float64
}

// Best looks for the best fixed limit up to bound: the one with the highest goodput, among those whose mean latency
// is at most allowed, in service times. It returns the limit and the number of its good answers, or 0 if there is no
// such limit. Each limit gets the same requests, for the same time, as a gate that judge reseeds with seed. Otherwise
// the comparison would depend on luck: if service times vary much, a server's results for 4000 requests vary by 3 %.
func Best(p Phase, bound int, length time.Duration, seed uint64, allowed float64) (limit int, good float64) {
	key := gridCase{p, bound, length, seed, allowed}
	if b, ok := reference.Load(key); ok {
		return b.(answered).limit, b.(answered).good
	}
	var limits []int
	for _, f := range []float64{0.5, 0.8, 1, 1.1, 1.2, 1.35, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.5, 4, 5, 6, 7, 8, 9, 10, 12} {
		limits = append(limits, min(bound, max(1, int(math.Ceil(f*float64(p.Servers))))))
	}
	limits = slices.Compact(append(limits, bound))
	for _, n := range limits {
		w := NewWorld(&Fixed{Limit: n}, seed+1)
		w.Begin(p)
		w.Play(length / 4)
		w.judge(length, seed)
		g, latency := float64(w.Good), float64(w.Mean())/float64(p.mean())
		if latency <= allowed && g > good {
			limit, good = n, g
		}
	}
	reference.Store(key, answered{limit, good})
	return limit, good
}
