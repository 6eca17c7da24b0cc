package overload

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/inflight"
)

// A wrong simulation proves nothing, so this one is compared with queueing theory.
func TestSimulationAgreesWithTheory(t *testing.T) {
	world := func(p Phase, limit int) (*World, float64) {
		w := NewWorld(&Fixed{Limit: limit}, 1)
		w.Begin(p)
		w.Play(100 * time.Second)
		w.Tally = Tally{}
		w.Play(2000 * time.Second)
		return w, float64(w.Mean()) / float64(p.Service)
	}
	one := Phase{Servers: 1, Service: 50 * time.Millisecond, Spread: Exponential, Load: 0.5}
	_, latency := world(one, math.MaxInt)
	assert.InDelta(t, 2, latency, 0.1, "M/M/1 at half load: twice the service time")

	one.Load = 1
	w, latency := world(one, 11)
	assert.InDelta(t, 6, latency, 0.2, "M/M/1/11 at full load: 12/2")
	assert.InDelta(t, 11./12, float64(w.Good)/2000/20, 0.01, "and 11/12 of the capacity: no limit with a latency of 6 does better")

	two := Phase{Servers: 2, Service: 50 * time.Millisecond, Spread: Lognormal, Load: 1}
	w, _ = world(two, 2)
	assert.InDelta(t, 0.4, float64(w.Lost)/float64(w.Lost+w.Good), 0.01, "M/G/2/2 at a load of 2: Erlang's loss formula, whatever the spread")
}

func TestSpreadsHaveTheirMean(t *testing.T) {
	for _, s := range []Spread{Constant, Exponential, Lognormal, Bimodal} {
		w, sum := NewWorld(&Fixed{}, 1), 0.0
		for range 400_000 {
			sum += s.draw(w.services)
		}
		assert.InDelta(t, 1, sum/400_000, 0.01, s.String())
	}
}

func TestPlayIsRepeatable(t *testing.T) {
	c := Sample(3)
	for range 2 {
		assert.Equal(t, Play(c, NewLimiter(c.Bound, inflight.Learn(nil))), Play(c, NewLimiter(c.Bound, inflight.Learn(nil))))
	}
}

func TestPausesAndClientsThatLeave(t *testing.T) {
	w := NewWorld(&Fixed{Limit: math.MaxInt}, 1)
	p := Phase{Servers: 1, Service: time.Second, Load: 0.001, Leave: 3 * time.Second, PauseEach: 10 * time.Second, Pause: 10 * time.Second}
	w.Begin(p)
	w.Play(10_000 * time.Second)
	assert.Less(t, w.Good, 2, "it stands still all the time, but before the first pause")
	assert.Positive(t, w.Ended)
	assert.LessOrEqual(t, w.Mean(), 3*time.Second+1)
}

// The same backend runs twice: in the simulation, and as goroutines that call the limiter
// and sleep in a synctest bubble. Only the order of events at one instant differs.
func TestRealLimiterLearnsAsInTheSimulation(t *testing.T) {
	for name, adaptive := range map[string]func() inflight.Algorithm{
		"Learn": inflight.Learn(nil), "Timeout": inflight.Learn(&inflight.LearnOptions{Timeout: 250 * time.Millisecond}),
	} {
		for _, servers := range []int{1, 10} {
			p := Phase{Servers: servers, Service: 100 * time.Millisecond, Load: 1000, Queue: 400}
			gate := NewLimiter(300, adaptive)
			w := NewWorld(gate, 1)
			w.Begin(p)
			w.Play(40 * time.Second)
			w.Tally = Tally{}
			w.Play(100 * time.Second)

			good, mean, limit := real(t, p, 300, adaptive)
			assert.InDelta(t, w.Good, good, 0.02*float64(good), "%s, %d servers", name, servers)
			assert.InEpsilon(t, float64(w.Mean()), float64(mean), 0.3, "%s, %d servers", name, servers)
			assert.InDelta(t, gate.Limit, limit, 1+0.3*float64(limit), "%s, %d servers: it goes up and down", name, servers)
		}
	}
}

// real plays a phase with goroutines. Clients wait for a permit, and a semaphore stands for the servers.
func real(t *testing.T, p Phase, bound int, adaptive func() inflight.Algorithm) (good int, mean time.Duration, limit int) {
	synctest.Test(t, func(t *testing.T) {
		l, err := inflight.New(bound, &inflight.Options[int]{Adaptive: adaptive, MaxQueue: p.Queue})
		require.NoError(t, err)
		servers := make(chan struct{}, p.Servers)
		start, sum := time.Now(), time.Duration(0)
		var mu sync.Mutex // guards good and sum
		var wg sync.WaitGroup
		for range p.Queue {
			wg.Go(func() {
				for time.Since(start) < 140*time.Second {
					permit, err := l.Acquire(context.Background(), 0, 1)
					if err != nil {
						t.Error(err)
						return
					}
					sent := time.Now()
					servers <- struct{}{}
					time.Sleep(p.Service)
					<-servers
					permit.Release()
					mu.Lock()
					if d := time.Since(start); d > 40*time.Second && d <= 140*time.Second {
						good++
						sum += time.Since(sent)
					}
					mu.Unlock()
				}
			})
		}
		time.Sleep(139 * time.Second)
		s, _ := l.Stats(0)
		limit = s.Limit
		wg.Wait()
		mean = sum / time.Duration(good)
	})
	return good, mean, limit
}

// still is an algorithm with nearly the same limit at all times. It adds up its windows' latencies.
type still struct {
	sum     time.Duration
	windows int
}

func (*still) Limit() int { return 80 }

func (s *still) Update(x inflight.Sample) int {
	s.sum += x.RTT
	s.windows++
	return 80 + s.windows%5
}

// A window lasts about as long as a quick request. Yet its mean latency is that of all requests, with and without a queue.
func TestWindowsAreNotMadeOfTheQuickRequests(t *testing.T) {
	for _, spread := range []Spread{Constant, Exponential, Lognormal, Bimodal} {
		for _, servers := range []int{40, 300} {
			p := Phase{Servers: servers, Service: 120 * time.Millisecond, Spread: spread, Load: 1.5, Queue: 1000}
			a := new(still)
			w := NewWorld(NewLimiter(1000, func() inflight.Algorithm { return a }), 1)
			w.Begin(p)
			w.Play(50 * time.Second)
			assert.InEpsilon(t, float64(w.Mean()), float64(a.sum)/float64(a.windows), 0.12, "%v, %d servers", spread, servers)
		}
	}
}

// If the best fixed limit is used as a gate, it has the goodput returned by
// Best, even if service times vary. Only the backend's earlier state differs.
func TestLuckDoesNotDecideBetweenGates(t *testing.T) {
	p := Phase{Servers: 10, Service: 20 * time.Millisecond, Spread: Bimodal, Load: 1.1}
	for seed := range uint64(4) {
		length := p.judged()
		best, _ := Best(p, 100, length, seed+1<<32, Goal(p.Servers))
		v := Play(Cell{Phase: p, Bound: 100, Event: "none", Seed: seed + 1<<32}, &Fixed{Limit: best})
		assert.InDelta(t, 1, v[0].Goodput, 0.01)
	}
}

// A gate with a bound on the latency is compared with the best fixed limit within
// the bound. While the backend itself takes longer, the gate is not judged.
func TestGateIsJudgedByItsReportedOutcomes(t *testing.T) {
	p := Phase{Servers: 1, Service: 20 * time.Millisecond, Spread: Exponential, Load: 1}
	length := p.judged()
	_, most := Best(p, 40, length, 1, Goal(1))
	limit, less := Best(p, 40, length, 1, 2.5)
	assert.Positive(t, limit)
	assert.Less(t, less, most)
	limit, less = Best(p, 40, length, 1, 0.25)
	assert.Zero(t, limit)
	assert.Zero(t, less)

	p = Phase{Servers: 10, Service: 100 * time.Millisecond, Load: 1}
	gate := NewLimiter(100, inflight.Learn(&inflight.LearnOptions{Timeout: 250 * time.Millisecond}))
	gate.Timeout = 250 * time.Millisecond
	var steps []string
	for _, v := range Play(Cell{Phase: p, Bound: 100, Event: "latency × 10", Seed: 1}, gate) {
		steps = append(steps, v.Step)
		assert.GreaterOrEqual(t, v.Goodput, 0.95, v.Step)
	}
	assert.Equal(t, []string{"settled", "back"}, steps)
}
