// Package overload simulates a backend that gets more requests than it can serve, with a
// limit on what is in flight and without. It is a discrete-event simulation on a clock of
// its own: the same seed gives the same figures on every machine.
package overload

import (
	"container/heap"
	"math/rand/v2"
	"time"

	"github.com/weir-go/ratelimit/inflight"
)

// Phase is a stretch of time in which a backend and its load stay the same, but that
// the service time may drift.
type Phase struct {
	For       time.Duration
	Servers   int           // requests that the backend works on at once; others queue in it
	Service   time.Duration // mean of the exponential service times
	DriftTo   time.Duration // what Service changes to, evenly, until the end; 0: it does not
	PerSecond float64       // requests that arrive, at random (Poisson)
}

// Scenario is what a backend goes through.
type Scenario struct {
	Name     string
	Phases   []Phase
	Deadline time.Duration // after which an answer is of no value to the client
	Timeout  time.Duration // what AIMD is told
}

// Length is how long the scenario takes.
func (s *Scenario) Length() (sum time.Duration) {
	for _, p := range s.Phases {
		sum += p.For
	}
	return sum
}

// Answer is a request that the backend has served.
type Answer struct {
	At      time.Duration // when it was sent
	Latency time.Duration
}

// Update is a window of samples that an adaptive limit has learnt from.
type Update struct {
	At    time.Duration
	Limit int
}

// Run is what became of a scenario's requests.
type Run struct {
	Answers  []Answer // in the order in which they were sent
	Shed     int
	Updates  []Update
	Deadline time.Duration
}

// Limit is how a backend is protected: not at all (the zero Limit), by a fixed limit, or by
// an adaptive one whose upper bound is Most.
type Limit struct {
	Name     string
	Most     int
	Adaptive inflight.Adaptive
}

// simulation is a run under way.
type simulation struct {
	Run
	rng     *rand.Rand
	now     time.Duration
	limiter *inflight.Limiter[string] // nil: no limit
	phase   Phase
	began   time.Duration // the phase
	busy    int           // servers
	waiting []*request    // in the backend
	served  requests      // those at work, by when they end
}

// request is one that was let in.
type request struct {
	sent, ends time.Duration
	permit     inflight.Permit
}

// Now makes the simulation the limiter's clock.
func (s *simulation) Now() time.Duration { return s.now }

// Simulate plays a scenario.
func Simulate(sc *Scenario, limit Limit, seed uint64) *Run {
	s := &simulation{rng: rand.New(rand.NewPCG(seed, 1))}
	s.Deadline = sc.Deadline
	if limit.Most > 0 {
		s.limiter = inflight.Must(inflight.New(limit.Most, &inflight.Options[string]{
			Clock: s, Adaptive: s.watch(limit.Adaptive),
		}))
	}
	end := time.Duration(0)
	for _, p := range sc.Phases {
		s.phase, s.began = p, end
		end += p.For
		s.play(end)
	}
	return &s.Run
}

// play lets requests come and go until the end of the phase.
func (s *simulation) play(end time.Duration) {
	s.serve()
	for next := s.now + s.gap(); ; {
		switch {
		case len(s.served) > 0 && s.served[0].ends <= min(next, end):
			s.now = s.served[0].ends
			s.answer(heap.Pop(&s.served).(*request))
		case next <= end:
			s.now = next
			s.arrive()
			next += s.gap()
		default:
			s.now = end
			return
		}
	}
}

// gap draws the time to the next arrival.
func (s *simulation) gap() time.Duration {
	return time.Duration(s.rng.ExpFloat64() / s.phase.PerSecond * float64(time.Second))
}

func (s *simulation) arrive() {
	r := &request{sent: s.now}
	if s.limiter != nil {
		var err error
		if r.permit, err = s.limiter.TryAcquire("backend", 1); err != nil {
			s.Shed++
			return
		}
	}
	s.waiting = append(s.waiting, r)
	s.serve()
}

// serve puts servers that are free to work.
func (s *simulation) serve() {
	for s.busy < s.phase.Servers && len(s.waiting) > 0 {
		r := s.waiting[0]
		s.waiting = s.waiting[1:]
		r.ends = s.now + time.Duration(s.rng.ExpFloat64()*float64(s.service()))
		s.busy++
		heap.Push(&s.served, r)
	}
}

// service is the mean service time now.
func (s *simulation) service() time.Duration {
	p := s.phase
	if p.DriftTo == 0 {
		return p.Service
	}
	done := float64(s.now-s.began) / float64(p.For)
	return p.Service + time.Duration(done*float64(p.DriftTo-p.Service))
}

// answer ends a request. The backend has worked on it even if the client has gone.
func (s *simulation) answer(r *request) {
	s.busy--
	latency := s.now - r.sent
	s.Answers = append(s.Answers, Answer{r.sent, latency})
	outcome := inflight.Success
	if latency > s.Deadline {
		outcome = inflight.Dropped
	}
	r.permit.Done(outcome)
	s.serve()
}

// watch notes what an algorithm says.
func (s *simulation) watch(a inflight.Adaptive) inflight.Adaptive {
	if a == nil {
		return nil
	}
	return func() inflight.Algorithm { return &watched{a(), s} }
}

type watched struct {
	inflight.Algorithm
	s *simulation
}

func (w *watched) Update(sample inflight.Sample) int {
	limit := w.Algorithm.Update(sample)
	w.s.Updates = append(w.s.Updates, Update{w.s.now, limit})
	return limit
}

// requests is a heap, the one that ends first first.
type requests []*request

func (q requests) Len() int           { return len(q) }
func (q requests) Less(i, j int) bool { return q[i].ends < q[j].ends }
func (q requests) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *requests) Push(x any)        { *q = append(*q, x.(*request)) }

func (q *requests) Pop() any {
	last := len(*q) - 1
	r := (*q)[last]
	*q = (*q)[:last]
	return r
}
