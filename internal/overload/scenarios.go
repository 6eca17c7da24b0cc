package overload

import (
	"time"

	"github.com/weir-go/ratelimit/inflight"
)

// usual is a backend with a capacity of 400 requests a second, which gets 600.
func usual(d time.Duration) Phase {
	return Phase{For: d, Servers: 20, Service: 50 * time.Millisecond, PerSecond: 600}
}

// changed returns the phase with something else about it.
func changed(p Phase, change func(*Phase)) Phase {
	change(&p)
	return p
}

func scenario(name string, phases ...Phase) *Scenario {
	return &Scenario{Name: name, Phases: phases, Deadline: time.Second, Timeout: 200 * time.Millisecond}
}

// Scenarios are what the algorithms are measured by.
func Scenarios() []*Scenario {
	const s = time.Second
	var bursts []Phase
	for range 3 {
		bursts = append(bursts, changed(usual(6*s), func(p *Phase) { p.PerSecond = 200 }),
			changed(usual(4*s), func(p *Phase) { p.PerSecond = 1600 }))
	}
	slow := scenario("latency × 10 for 30 s, and back", usual(15*s), changed(usual(30*s), func(p *Phase) { p.Service *= 10 }), usual(15*s))
	slow.Timeout = 700 * time.Millisecond // above what the backend takes at its slowest, as AIMD's must be
	return []*Scenario{
		scenario("steady overload", usual(30*s)),
		scenario("5 servers", changed(usual(60*s), func(p *Phase) { p.Servers, p.PerSecond = 5, 150 })),
		scenario("100 servers", changed(usual(15*s), func(p *Phase) { p.Servers, p.PerSecond = 100, 3000 })),
		scenario("half the servers, and back", usual(15*s), changed(usual(15*s), func(p *Phase) { p.Servers = 10 }), usual(15*s)),
		slow,
		scenario("bursts", bursts...),
		scenario("a slow drift to × 3", usual(10*s), changed(usual(60*s), func(p *Phase) { p.DriftTo = 3 * p.Service })),
	}
}

// Algorithms are the adaptive limits, each with its defaults and an upper bound of four
// times the backend's servers.
func Algorithms(sc *Scenario) []Limit {
	most := 4 * sc.Phases[0].Servers
	return []Limit{
		{"AIMD", most, inflight.AIMD(inflight.Timeout(sc.Timeout))},
		{"Vegas", most, inflight.Vegas()},
		{"Gradient", most, inflight.Gradient()},
	}
}
