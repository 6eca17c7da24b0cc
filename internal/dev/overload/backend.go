package overload

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/weir-go/ratelimit/inflight"
)

// Spread is the distribution of service times around their mean.
type Spread int

// Spread's values. Their coefficients of variation are 0, 1, 1.3 and 1.4.
const (
	Constant Spread = iota
	Exponential
	Lognormal
	Bimodal // one request in ten takes ten times as long as the others
)

func (s Spread) String() string {
	return [...]string{"constant", "exponential", "lognormal", "bimodal"}[s]
}

// draw returns a service time as a multiple of the mean.
func (s Spread) draw(rng *rand.Rand) float64 {
	switch s {
	case Exponential:
		return rng.ExpFloat64()
	case Lognormal:
		return math.Exp(rng.NormFloat64() - 0.5)
	case Bimodal:
		if rng.IntN(10) == 0 {
			return 10 / 1.9
		}
		return 1 / 1.9
	}
	return 1
}

// Phase describes a backend and its clients for some time.
type Phase struct {
	Servers int           // how many requests the backend serves at once; others queue in it, first come, first served
	Service time.Duration // a server's mean time per request
	Spread  Spread
	Load    float64       // the rate of arrivals (Poisson), as a multiple of Capacity
	Each    time.Duration // the interval between bursts, without other requests; 0 stands for steady requests
	Burst   time.Duration // a burst's length
	Queue   int           // how many requests may wait at the gate for a permit; others without a permit are lost

	Leave     time.Duration // how long a client waits before it cancels; the backend ignores that; 0 means for ever
	LeaveVary bool          // Leave is a mean, and times are uniform between 0.5 and 1.5 of it
	Deadline  bool          // clients leave because of a deadline, so their outcome is Dropped
	Abort     bool          // the backend does not begin cancelled requests
	Fail      float64       // the share of requests failing at once by a bug
	FailLate  float64       // the share of requests failing by a bug after the backend's work
	FailPart  float64       // the share of requests failing by a bug after a random part of the backend's work
	Refuse    bool          // an outage: all requests fail at once with a status of overload
	PauseEach time.Duration // the interval between the backend's pauses, for example for garbage collection
	Pause     time.Duration // a pause's length
	SlowShare float64       // the share of slow requests; they take SlowBy times as long
	SlowBy    float64

	FailAs   inflight.Outcome // the outcome of requests failing by a bug; 0 means Cancelled
	FailIn   time.Duration    // how long it takes until Fail fails a request
	FailTo   float64          // the maximum to which Fail grows
	FailOver time.Duration    // how long Fail grows; 0 if it stays the same
	Short    float64          // the share of requests whose clients leave after ShortIn
	ShortIn  time.Duration
	Cap      int           // the backend refuses requests as Dropped while it has so many; 0 means no cap
	CapCost  time.Duration // how long a refusal occupies a server, before any other work
	Retries  int           // how often a request is sent again, 50 ms after a failure or a denial by the gate

	Hang     float64          // the share of requests that hang, besides those of Fail; they occupy no server
	HangIn   time.Duration    // how long they hang
	HangAs   inflight.Outcome // their outcome; 0 means Cancelled
	Wave     float64          // the share by which the load rises and falls, for example over a day
	WaveEach time.Duration    // the wave's period
}

// Capacity returns how many requests a second the backend can serve.
func (p *Phase) Capacity() float64 { return float64(p.Servers) / p.mean().Seconds() }

// mean returns the mean service time, including slow requests.
func (p *Phase) mean() time.Duration {
	return time.Duration(float64(p.Service) * (1 + p.SlowShare*max(0, p.SlowBy-1)))
}

// Gate is a limit in front of a backend. Its clock is now, the simulated time.
type Gate interface {
	Enter(now time.Duration, r *Request) bool
	Leave(now time.Duration, r *Request, o inflight.Outcome)
}

// Request is one request. Its gate keeps its own handle in Permit or Token.
type Request struct {
	Sent   time.Duration // when the request passed the gate
	Permit inflight.Permit
	Token  any

	serial  uint64 // its number among all requests; 0 when it has ended
	tries   int    // how often the request was tried before
	via     Gate   // the Fleet's member that admitted it
	refused bool   // whether the backend has refused it
	gone    bool   // whether it has left the gate
	fails   bool   // whether it fails by a bug
}

// Tally counts requests by their results.
type Tally struct {
	Good    int           // answers to clients still waiting
	Answers time.Duration // the sum of these answers' times in the backend
	Latency time.Duration // the sum of all requests' times in the backend, or until their clients left
	Ended   int           // the requests in Latency
	Lost    int           // requests without a permit
}

// Mean returns the mean time in the backend.
func (t *Tally) Mean() time.Duration {
	if t.Ended == 0 {
		return 0
	}
	return t.Latency / time.Duration(t.Ended)
}

// World has a backend, its clients and a gate between them, in simulated time.
type World struct {
	Now time.Duration
	// Tally counts requests since it was last set to zero.
	Tally

	gate                         Gate
	arrivals, services, failures *rand.Rand // separate series: worlds with one seed differ only by their gates' decisions
	serial                       uint64     // the latest request's serial
	phase                        Phase
	queued                       int           // requests waiting at the gate
	next                         time.Duration // when the next request arrives
	busy                         int           // busy servers
	stopped                      time.Duration // how long the backend has stood still in all
	resumes                      time.Duration // the instant until which the backend stands still
	pauses                       time.Duration // when the next pause begins
	line                         ring          // requests in the backend, not yet begun by a server
	refusals                     ring          // refused requests, not yet begun by a server
	began                        time.Duration // when the phase began
	again                        []retry       // sorted by time
	served                       heapOf        // in backend time
	leaving                      heapOf        // includes ended requests, until their time comes
	free                         []*Request
}

// NewWorld returns a world in which nothing has happened yet.
func NewWorld(gate Gate, seed uint64) *World {
	w := &World{gate: gate}
	w.reseed(seed)
	return w
}

// reseed begins the random series again. From then on, requests arrive as in any other world
// with this seed and phase, and servers take as long. So two gates do not differ by luck.
func (w *World) reseed(seed uint64) {
	w.arrivals, w.services, w.failures = rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 3)), rand.New(rand.NewPCG(seed, 4))
	if w.phase.Servers > 0 {
		w.next = w.Now + w.gap()
	}
}

const never = time.Duration(math.MaxInt64)

// Begin begins a phase.
func (w *World) Begin(p Phase) {
	w.phase, w.began = p, w.Now
	w.next = w.Now + w.gap()
	w.pauses = never
	if p.PauseEach > 0 {
		w.pauses = w.Now + p.PauseEach
	}
	w.begin()
}

// The kinds of events.
const (
	theEnd = iota
	anArrival
	anAnswer
	aClientLeaves
	aPause
	aRetry
)

// Play simulates for some time.
func (w *World) Play(d time.Duration) {
	for end := w.Now + d; ; {
		at, what := end, theEnd
		if w.next < at {
			at, what = w.next, anArrival
		}
		if len(w.served) > 0 && w.served[0].at+w.stopped < at {
			at, what = w.served[0].at+w.stopped, anAnswer
		}
		if len(w.leaving) > 0 && w.leaving[0].at < at {
			at, what = w.leaving[0].at, aClientLeaves
		}
		if w.pauses < at {
			at, what = w.pauses, aPause
		}
		if len(w.again) > 0 && w.again[0].at < at {
			at, what = w.again[0].at, aRetry
		}
		w.Now = at
		switch what {
		case theEnd:
			return
		case anArrival:
			w.next = w.Now + w.gap()
			w.arrive(0)
		case aRetry:
			tries := w.again[0].tries
			w.again = w.again[1:]
			w.arrive(tries)
		case anAnswer:
			w.answer(w.served.pop().r)
		case aClientLeaves:
			if c := w.leaving.pop(); c.serial == c.r.serial {
				w.leave(c.r, c.outcome) // meanwhile the backend still works on the request
			}
		case aPause:
			w.Stop(w.phase.Pause)
			w.pauses += w.phase.PauseEach
		}
	}
}

// Stop stops the backend for some time.
func (w *World) Stop(d time.Duration) {
	w.stopped += d
	w.resumes = w.Now + d
}

// backendTime returns how long the backend has not stood still.
func (w *World) backendTime() time.Duration { return max(w.Now, w.resumes) - w.stopped }

func (w *World) gap() time.Duration {
	load := w.phase.Load
	if w.phase.Wave > 0 {
		load *= 1 + w.phase.Wave*math.Sin(2*math.Pi*float64(w.Now)/float64(w.phase.WaveEach))
	}
	gap := time.Duration(w.arrivals.ExpFloat64() / (load * w.phase.Capacity()) * float64(time.Second))
	if each := w.phase.Each; each > 0 {
		if in := (w.Now + gap) % each; in > w.phase.Burst {
			gap += each - in
		}
	}
	return gap
}

func (w *World) arrive(tries int) {
	if w.queued > 0 || !w.enter(tries) {
		if w.queued < w.phase.Queue {
			w.queued++
			return
		}
		w.Lost++
		w.retry(tries)
	}
}

// retry is a request that will be sent again.
type retry struct {
	at    time.Duration
	tries int
}

const retryAfter = 50 * time.Millisecond

func (w *World) retry(tries int) {
	if tries < w.phase.Retries {
		w.again = append(w.again, retry{w.Now + retryAfter, tries + 1})
	}
}

// enter sends a request to the gate, and reports whether it got in.
func (w *World) enter(tries int) bool {
	r := w.request()
	r.tries = tries
	if !w.gate.Enter(w.Now, r) {
		w.free = append(w.free, r)
		return false
	}
	w.serial++
	r.Sent, r.serial = w.Now, w.serial
	switch {
	case w.phase.Refuse:
		w.leave(r, inflight.Dropped)
		w.free = append(w.free, r)
		return true
	case w.fails():
		if w.phase.FailIn > 0 {
			w.leaving.push(coming{w.Now + w.phase.FailIn, r, r.serial, w.failure()})
			return true
		}
		w.leave(r, w.failure())
		w.free = append(w.free, r)
		return true
	case w.phase.Hang > 0 && w.failures.Float64() < w.phase.Hang:
		w.leaving.push(coming{w.Now + w.phase.HangIn, r, r.serial, orCancelled(w.phase.HangAs)})
		return true
	case w.phase.Cap > 0 && w.busy+w.line.len()+w.refusals.len() >= w.phase.Cap:
		r.refused = true
		w.refusals.push(r)
		w.begin()
		return true
	}
	if patience, o := w.patience(); patience > 0 {
		w.leaving.push(coming{w.Now + patience + 1, r, r.serial, o}) // an answer at that instant still reaches the client
	}
	w.line.push(r)
	w.begin()
	return true
}

// fails decides whether a request fails without any work.
func (w *World) fails() bool {
	share := w.phase.Fail
	if w.phase.FailOver > 0 {
		share += (w.phase.FailTo - share) * min(1, float64(w.Now-w.began)/float64(w.phase.FailOver))
	}
	return share > 0 && w.failures.Float64() < share
}

// failure returns a failed request's outcome.
func (w *World) failure() inflight.Outcome { return orCancelled(w.phase.FailAs) }

func orCancelled(o inflight.Outcome) inflight.Outcome {
	if o == inflight.Success {
		return inflight.Cancelled
	}
	return o
}

// patience returns how long a request's client waits, or 0 for ever, and the outcome if the client leaves.
func (w *World) patience() (time.Duration, inflight.Outcome) {
	o, patience := inflight.Cancelled, float64(w.phase.Leave)
	if w.phase.Deadline {
		o = inflight.Dropped
	}
	if w.phase.LeaveVary && patience > 0 {
		patience *= 0.5 + w.failures.Float64()
	}
	if w.phase.Short > 0 && w.failures.Float64() < w.phase.Short {
		patience = float64(w.phase.ShortIn)
	}
	return time.Duration(patience), o
}

func (w *World) request() *Request {
	if n := len(w.free); n > 0 {
		r := w.free[n-1]
		w.free = w.free[:n-1]
		*r = Request{}
		return r
	}
	return new(Request)
}

// begin starts work on free servers.
func (w *World) begin() {
	for w.busy < w.phase.Servers && w.refusals.len() > 0 {
		r := w.refusals.pop()
		w.busy++
		w.served.push(coming{w.backendTime() + w.phase.CapCost, r, r.serial, inflight.Dropped})
	}
	for w.busy < w.phase.Servers && w.line.len() > 0 {
		r := w.line.pop()
		if r.gone && w.phase.Abort {
			w.free = append(w.free, r)
			continue
		}
		t := w.phase.Spread.draw(w.services)
		if w.phase.SlowShare > 0 && w.services.Float64() < w.phase.SlowShare {
			t *= w.phase.SlowBy
		}
		switch {
		case w.phase.FailLate > 0:
			r.fails = w.failures.Float64() < w.phase.FailLate
		case w.phase.FailPart > 0 && w.failures.Float64() < w.phase.FailPart:
			r.fails = true
			t *= w.failures.Float64()
		}
		w.busy++
		w.served.push(coming{w.backendTime() + time.Duration(t*float64(w.phase.Service)), r, r.serial, inflight.Success})
	}
}

func (w *World) answer(r *Request) {
	w.busy--
	if !r.gone {
		switch {
		case r.refused:
			w.leave(r, inflight.Dropped)
		case r.fails:
			w.leave(r, w.failure())
		default:
			w.Good++
			w.Answers += w.Now - r.Sent
			w.leave(r, inflight.Success)
		}
	}
	w.free = append(w.free, r)
	w.begin()
}

// leave ends a request at the gate, and admits waiting ones.
func (w *World) leave(r *Request, o inflight.Outcome) {
	r.gone, r.serial = true, 0
	w.Ended++
	w.Latency += w.Now - r.Sent
	w.gate.Leave(w.Now, r, o)
	if o != inflight.Success {
		w.retry(r.tries)
	}
	for w.queued > 0 && w.enterQueued() {
	}
}

func (w *World) enterQueued() bool {
	w.queued-- // before enter, because the request may end in it
	if w.enter(0) {
		return true
	}
	w.queued++
	return false
}

// ring is a queue of requests.
type ring struct {
	all   []*Request
	first int
}

func (q *ring) len() int        { return len(q.all) - q.first }
func (q *ring) push(r *Request) { q.all = append(q.all, r) }

func (q *ring) pop() *Request {
	r := q.all[q.first]
	q.first++
	if q.first > 1024 && 2*q.first > len(q.all) {
		q.all = append(q.all[:0], q.all[q.first:]...)
		q.first = 0
	}
	return r
}

// coming is a request's future event.
type coming struct {
	at     time.Duration
	r      *Request
	serial uint64 // the request's serial, because r may be reused by then

	outcome inflight.Outcome // the outcome if its client leaves or it fails
}

func (c coming) before(d coming) bool { return c.at < d.at || c.at == d.at && c.serial < d.serial }

// heapOf is a heap with the earliest event first.
type heapOf []coming

func (h *heapOf) push(c coming) {
	*h = append(*h, c)
	q := *h
	for i := len(q) - 1; i > 0; {
		up := (i - 1) / 2
		if !q[i].before(q[up]) {
			return
		}
		q[up], q[i] = q[i], q[up]
		i = up
	}
}

func (h *heapOf) pop() coming {
	q := *h
	first, last := q[0], len(q)-1
	q[0], q[last] = q[last], coming{}
	q = q[:last]
	*h = q
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return first
		}
		if down+1 < last && q[down+1].before(q[down]) {
			down++
		}
		if !q[down].before(q[i]) {
			return first
		}
		q[i], q[down] = q[down], q[i]
		i = down
	}
}
