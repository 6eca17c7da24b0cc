package overload

import (
	"slices"
	"time"

	"github.com/weir-go/ratelimit/inflight"
)

// Incident is a sequence of phases, in some of which goodput is judged.
type Incident struct {
	Name    string
	Service time.Duration // of the healthy backend
	Phases  []Stage
	TooSlow bool // its answers come too late for any caller: a limit with a Timeout sets it to 25 service times
}

// Stage is one phase of an incident. Its second half is judged if it has a name.
type Stage struct {
	Name string
	For  time.Duration
	Rate float64 // requests per second, which replaces Load
	Phase
}

// Result is the result of a stage.
type Result struct {
	Goodput float64       // answers per second
	Latency time.Duration // mean of the answers
	Limit   int           // at the end, if it is known
}

// Play plays an incident, and returns the results of all stages.
func (i *Incident) Play(gate Gate, seed uint64) []Result {
	w := NewWorld(gate, seed)
	var all []Result
	for _, s := range i.Phases {
		s.Load = s.Rate / s.Capacity()
		w.Begin(s.Phase)
		w.Play(s.For / 2)
		w.Tally = Tally{}
		w.Play(s.For / 2)
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

// Best returns the results of the best of some fixed limits in each stage: the one with the most goodput, among those
// that do not let a queue grow.
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

// Incidents are partial outages, and a few incidents of other kinds. The backend has 16 servers of 20 ms, and gets 1200
// requests a second, half as many again as it can do.
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
	retried.Phases = slices.Clone(retried.Phases)
	for i := range retried.Phases {
		retried.Phases[i].Retries = 3
	}
	capped := func(p *Phase) { p.Cap, p.CapCost = 16, 10*time.Millisecond }
	wide := func(p *Phase) { p.Servers, p.Cap, p.CapCost = 64, 64, 10*time.Millisecond }
	constant := incident("10 minutes of constant 10 s", 10*minute, func(p *Phase) {
		p.Servers, p.Service, p.Spread = 1_000_000, 10*time.Second, Constant
	})
	constant.TooSlow = true
	constant.Phases[1].Name = "" // more in flight does give more goodput, of answers that come too late
	constant.Phases[2].For = 40 * time.Second
	return []Incident{
		incident("20 % quick 503", 40*time.Second, quick(0.2, 13)),
		incident("30 % quick 503", 40*time.Second, quick(0.3, 11)),
		incident("50 % quick 503", 40*time.Second, quick(0.5, 8)),
		incident("90 % quick 503", 40*time.Second, quick(0.9, 2)),
		retried,
		incident("errors grow from 0 to 60 %", minute, func(p *Phase) {
			p.FailIn, p.FailTo, p.FailOver = time.Millisecond, 0.6, minute
		}),
		incident("40 % fail after their work", 40*time.Second, func(p *Phase) { p.FailLate = 0.4 }),
		incident("30 % fail after 200 ms", minute, func(p *Phase) { p.Fail, p.FailIn = 0.3, 200*time.Millisecond }),
		incident("30 % hang for 2 s", 90*time.Second, func(p *Phase) { p.Fail, p.FailIn = 0.3, 2*time.Second }),
		{"33 % have a deadline of 1 ms", service, []Stage{
			stage("", 40*time.Second, 600, well),
			stage("incident", 40*time.Second, 900, func(p *Phase) { p.Short, p.ShortIn = 0.33, time.Millisecond }),
		}, false},
		{"a cap of 16, a refusal costs 10 ms", service, []Stage{stage("all", minute, 2400, capped)}, false},
		{"the cap falls from 64 to 16", service, []Stage{
			stage("", 40*time.Second, 4000, wide), stage("less", 40*time.Second, 4000, capped),
		}, false},
		incident("latency × 10", minute, func(p *Phase) { p.Service = 200 * time.Millisecond }),
		incident("latency × 2", minute, func(p *Phase) { p.Service = 40 * time.Millisecond }),
		constant,
	}
}
