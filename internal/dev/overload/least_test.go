package overload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// A part of the backend is dead, in some cases after an outage of the whole backend. Five seconds later
// the limits have grown again, whatever the share of dropped requests, the number of processes and the
// rate of requests. If a limit stayed at its minimum, it would have a tenth of the goodput or less.
func TestALimitThatAnOutageHasLoweredReturnsWithinSeconds(t *testing.T) {
	t.Parallel()
	var parts []float64
	outages := map[float64]outage{}
	for seed := range uint64(testsize.Of(200, 4000)) {
		o := drawOutage(seed)
		part := o.play()
		parts = append(parts, part)
		outages[part] = o
	}
	slices.Sort(parts)
	for _, part := range parts[:3] {
		t.Logf("%.2f of a fixed limit's goodput: %v", part, outages[part])
	}
	t.Logf("one in a hundred %.2f, in ten %.2f, median %.2f", parts[len(parts)/100], parts[len(parts)/10], parts[len(parts)/2])
	assert.Greater(t, parts[0], 0.4, outages[parts[0]])
	assert.Greater(t, parts[len(parts)/100], 0.68)
	assert.Greater(t, parts[len(parts)/10], 0.92)
}

// outage is a partial outage of a random backend.
type outage struct {
	seed      uint64
	processes int
	before    time.Duration // how long an outage of the whole backend lasts before
	healthy   Phase
	partial   Phase
}

func (o outage) String() string {
	return fmt.Sprintf("seed %d, %d processes, %d of %d servers × %v %v, %.0f requests a second, %.0f %% dropped, after an outage of %v", o.seed, o.processes, o.partial.Servers, o.healthy.Servers,
		o.healthy.Service, o.healthy.Spread, o.healthy.Load*o.healthy.Capacity(), 100*o.partial.Fail, o.before)
}

func drawOutage(seed uint64) outage {
	rng := rand.New(rand.NewPCG(seed, 7))
	rate, share := 20*math.Pow(100, rng.Float64()), 0.2+0.7*rng.Float64()
	p := Phase{Service: 20 * time.Millisecond, Spread: Spread(rng.IntN(3)), FailAs: inflight.Dropped}
	p.Servers = max(1, int(rate*p.Service.Seconds()/(0.7+2*rng.Float64())))
	p.Load = rate / p.Capacity()
	o := outage{seed: seed, processes: []int{1, 4, 8}[rng.IntN(3)], healthy: p}
	if rng.IntN(2) == 0 {
		o.before = time.Duration(1+rng.IntN(10)) * time.Second
	}
	p.Fail, p.FailIn = share, time.Millisecond
	p.Servers = max(1, int(float64(p.Servers)*(1-share)+0.5))
	p.Load = rate / p.Capacity()
	o.partial = p
	return o
}

// play returns a fleet's goodput as a share of a fixed limit's, measured from five seconds after the partial outage begins.
func (o *outage) play() float64 {
	fleet := new(Fleet)
	for range o.processes {
		i := Incident{Service: o.healthy.Service}
		fleet.Gates = append(fleet.Gates, NewLimiter(1000, i.Adaptive()))
	}
	good := o.goodput(fleet)
	return float64(good) / float64(o.goodput(&Fixed{Limit: 2*o.partial.Servers + 2}))
}

func (o *outage) goodput(g Gate) int {
	w := NewWorld(g, o.seed)
	w.Begin(o.healthy)
	w.Play(15 * time.Second)
	if o.before > 0 {
		p := o.healthy
		p.Refuse = true
		w.Begin(p)
		w.Play(o.before)
	}
	w.Begin(o.partial)
	w.Play(5 * time.Second)
	w.reseed(o.seed)
	w.Tally = Tally{}
	w.Play(10 * time.Second)
	return w.Good
}
