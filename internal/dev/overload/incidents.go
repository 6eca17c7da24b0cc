package overload

import (
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/ratelimit/inflight"
)

// Incident is a sequence of stages. Goodput is measured in some of them.
type Incident struct {
	Name    string
	Service time.Duration // the healthy backend's service time
	Phases  []Stage
	TooSlow bool // the incident's answers come too late for any caller: a limit's Timeout is set to 25 service times

	// Least is a limit's minimum goodput in one process, as a share of the best fixed limit's. Shared
	// is the minimum for four and eight processes in front of one backend, or 0 if they are not tested.
	Least, Shared float64
}

// Adaptive returns package inflight's limit with the options for this incident.
func (i *Incident) Adaptive() func() inflight.Algorithm {
	var tooSlow time.Duration
	if i.TooSlow {
		tooSlow = 25 * i.Service
	}
	return inflight.Learn(&inflight.LearnOptions{Timeout: tooSlow})
}

// Reach returns an adaptive limit's minimum goodput in a stage, as a share of the best fixed limit's.
func (i *Incident) Reach(stage, processes int) float64 {
	least := i.Least
	if processes > 1 {
		least = i.Shared
	}
	if i.Phases[stage].Name == "after" {
		return 0.9
	}
	return least
}

// Stage is one phase of an incident. If it has a name, its second half is measured.
type Stage struct {
	Name string
	For  time.Duration
	Rate float64 // requests a second; it replaces Load
	Phase
	Flap time.Duration // if positive, Phase and Else alternate, and each lasts this long
	Else Phase
}

// play simulates a stage for some time.
func (s *Stage) play(w *World, d time.Duration) {
	if s.Flap <= 0 {
		w.Play(d)
		return
	}
	for ; d > 0; d -= 2 * s.Flap {
		for _, p := range []Phase{s.Phase, s.Else} {
			p.Load = s.Rate / p.Capacity()
			w.Begin(p)
			w.Play(s.Flap)
		}
	}
}

// Result is a stage's result.
type Result struct {
	Goodput float64       // good answers a second
	Latency time.Duration // the good answers' mean
	Limit   int           // the limit at the end, if the gate reports it
}

// Play simulates an incident, and returns all stages' results.
func (i *Incident) Play(gate Gate, seed uint64) []Result {
	w := NewWorld(gate, seed)
	var all []Result
	for _, s := range i.Phases {
		s.Load = s.Rate / s.Capacity()
		w.Begin(s.Phase)
		s.play(w, s.For/2)
		w.Tally = Tally{}
		s.play(w, s.For/2)
		r := Result{Goodput: float64(w.Good) / (s.For / 2).Seconds()}
		if w.Good > 0 {
			r.Latency = w.Answers / time.Duration(w.Good)
		}
		if g, ok := gate.(Gated); ok {
			_, r.Limit = g.State()
		}
		all = append(all, r)
	}
	return all
}

// Best tries some fixed limits. For each stage it returns the result
// with the most goodput, among limits without a growing queue.
func (i *Incident) Best(seed uint64, limits ...int) []Result {
	best := make([]Result, len(i.Phases))
	for _, n := range limits {
		for at, r := range i.Play(&Fixed{Limit: n}, seed) {
			b := &best[at]
			short := r.Latency < 3*i.Service || float64(r.Latency) < 1.1*float64(b.Latency)
			if b.Goodput == 0 || r.Goodput > 1.001*b.Goodput && short {
				*b = r
			}
		}
	}
	return best
}

// Incidents returns partial outages and some other incidents. The backend has 16
// servers of 20 ms. It gets 1200 requests a second, one and a half times its capacity.
func Incidents() []Incident {
	const service, minute = 20 * time.Millisecond, time.Minute
	base := Phase{Servers: 16, Service: service, Spread: Exponential, FailAs: inflight.Dropped}
	stage := func(name string, d time.Duration, rate float64, change func(*Phase)) Stage {
		s := Stage{Name: name, For: d, Rate: rate, Phase: base}
		change(&s.Phase)
		return s
	}
	well := func(*Phase) {}
	healthy, after := stage("", 40*time.Second, 1200, well), stage("after", 20*time.Second, 1200, well)
	incident := func(name string, d time.Duration, change func(*Phase)) Incident {
		return Incident{Name: name, Service: service, Phases: []Stage{healthy, stage("incident", d, 1200, change), after}}
	}
	quick := func(share float64, servers int) func(*Phase) {
		return func(p *Phase) { p.Fail, p.FailIn, p.Servers = share, time.Millisecond, servers }
	}
	retried := incident("50 % quick 503, 3 retries", 40*time.Second, quick(0.5, 8))
	for i := range retried.Phases {
		retried.Phases[i].Retries = 3
	}
	capped := func(p *Phase) { p.Cap, p.CapCost = 16, 10*time.Millisecond }
	wide := func(p *Phase) { p.Servers, p.Cap, p.CapCost = 64, 64, 10*time.Millisecond }
	outage := stage("", 10*time.Second, 1200, func(p *Phase) { p.Refuse = true })
	partly := func(name string, change func(*Phase)) Incident {
		i := incident(name+", after an outage", 40*time.Second, change)
		i.Phases = slices.Insert(i.Phases, 1, outage)
		return i
	}
	flaps := func(d time.Duration) Incident {
		i := incident(fmt.Sprintf("50 %% quick 503, %v of every %v", d, 2*d), 80*time.Second, quick(0.5, 8))
		i.Phases[1].Flap, i.Phases[1].Else = d, base
		return i
	}
	constant := incident("10 minutes of constant 10 s", 10*minute, func(p *Phase) {
		p.Servers, p.Service, p.Spread = 1_000_000, 10*time.Second, Constant
	})
	constant.TooSlow = true
	constant.Phases[1].Name = "" // with more requests in flight, goodput grows, but the answers come too late
	constant.Phases[2].For = 40 * time.Second
	deadlines := Incident{Name: "33 % have a deadline of 1 ms", Service: service, Phases: []Stage{
		stage("", 40*time.Second, 600, well),
		stage("incident", 40*time.Second, 900, func(p *Phase) { p.Short, p.ShortIn = 0.33, time.Millisecond }),
	}}
	cap16 := Incident{Name: "a cap of 16, a refusal costs 10 ms", Service: service, Phases: []Stage{stage("all", minute, 2400, capped)}}
	falls := Incident{Name: "the cap falls from 64 to 16", Service: service, Phases: []Stage{
		stage("", 40*time.Second, 4000, wide), stage("less", 40*time.Second, 4000, capped),
	}}
	least := func(i Incident, alone, shared float64) Incident {
		i.Least, i.Shared = alone, shared
		return i
	}
	return []Incident{
		least(incident("20 % quick 503", 40*time.Second, quick(0.2, 13)), 0.97, 0),
		least(incident("30 % quick 503", 40*time.Second, quick(0.3, 11)), 0.97, 0),
		least(incident("50 % quick 503", 40*time.Second, quick(0.5, 8)), 0.96, 0.95),
		least(incident("90 % quick 503", 40*time.Second, quick(0.9, 2)), 0.94, 0.88),
		least(retried, 0.95, 0),
		least(partly("50 % quick 503", quick(0.5, 8)), 0.94, 0),
		least(partly("90 % quick 503", quick(0.9, 2)), 0.92, 0),
		least(partly("a cap of 4", func(p *Phase) { p.Servers, p.Cap, p.CapCost = 4, 4, 10*time.Millisecond }), 0.66, 0),
		least(flaps(time.Second), 0.82, 0),
		least(flaps(5*time.Second), 0.9, 0),
		least(flaps(20*time.Second), 0.95, 0),
		least(incident("errors grow from 0 to 60 %", minute, func(p *Phase) {
			p.FailIn, p.FailTo, p.FailOver = time.Millisecond, 0.6, minute
		}), 0.88, 0),
		least(incident("40 % fail after their work", 40*time.Second, func(p *Phase) { p.FailLate = 0.4 }), 0.95, 0),
		least(incident("30 % fail after 200 ms", minute, func(p *Phase) { p.Fail, p.FailIn = 0.3, 200*time.Millisecond }), 0.95, 0),
		least(incident("30 % hang for 2 s", 90*time.Second, func(p *Phase) { p.Fail, p.FailIn = 0.3, 2*time.Second }), 1.5, 0),
		least(incident("30 % hang until a deadline of 2 s", 90*time.Second, func(p *Phase) {
			p.Fail, p.FailIn, p.FailAs = 0.3, 2*time.Second, inflight.Cancelled
		}), 1.5, 0),
		least(deadlines, 0.96, 0),
		least(cap16, 0.85, 0.75),
		least(falls, 0.81, 0.75),
		least(incident("latency × 10", minute, func(p *Phase) { p.Service = 200 * time.Millisecond }), 0.95, 0),
		least(incident("latency × 2", minute, func(p *Phase) { p.Service = 40 * time.Millisecond }), 0.96, 0),
		least(constant, 0.9, 0),
	}
}
