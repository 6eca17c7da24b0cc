package overload

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/weir-go/ratelimit/inflight"
)

// Spread is the distribution of service times around their mean.
type Spread int

// The grid's spreads. Their coefficients of variation are 0, 1, 1.3 and 1.4.
const (
	Constant Spread = iota
	Exponential
	Lognormal
	Bimodal // one in ten takes ten times as long as the others
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

// Phase is the state of a backend and its clients for some time.
type Phase struct {
	Servers int           // requests that the backend serves at once; others queue in it, first come, first served
	Service time.Duration // the mean time that a server takes
	Spread  Spread
	Load    float64       // the rate at which requests arrive (Poisson), as a multiple of Capacity
	Each    time.Duration // the interval between bursts, without other requests; 0 stands for steady requests
	Burst   time.Duration // a burst's length
	Queue   int           // requests that may wait at the gate for a permit; others without a permit are lost

	Leave     time.Duration // the time after which clients cancel, ignored by the backend; 0 means never
	LeaveVary bool          // Leave is a mean: times are uniform between half of it and one and a half
	Deadline  bool          // clients leave because of a deadline, which counts as Dropped
	Abort     bool          // the backend does not begin cancelled requests
	Fail      float64       // the share of requests that fail at once by a bug
	FailLate  float64       // the share of requests that fail by a bug after the backend's work
	FailPart  float64       // the share of requests that fail by a bug after a random part of the backend's work
	Refuse    bool          // an outage: all requests fail at once with a status of overload
	PauseEach time.Duration // the interval between pauses of the backend, for example for garbage collection
	Pause     time.Duration // a pause's length
	SlowShare float64       // the share of requests that take SlowBy times as long
	SlowBy    float64

	FailAs   inflight.Outcome // the outcome of requests that fail by a bug; 0 means Cancelled
	FailIn   time.Duration    // the time after which Fail fails a request
	FailTo   float64          // the share to which Fail grows
	FailOver time.Duration    // the time in which Fail grows; 0 if it stays the same
	Short    float64          // the share of requests whose clients leave after ShortIn
	ShortIn  time.Duration
	Cap      int           // requests in the backend above which it refuses others as Dropped; 0 means no cap
	CapCost  time.Duration // how long a refusal occupies a server, before any other work
	Retries  int           // how often a request is sent again, 50 ms after it has failed or got no permit

	Hang     float64          // the share of requests that hang, in addition to Fail, and occupy no server
	HangIn   time.Duration    // the time until they end
	HangAs   inflight.Outcome // their outcome; 0 means Cancelled
	Wave     float64          // the share by which the load rises and falls, as over a day
	WaveEach time.Duration    // that wave's period
}

// Capacity returns how many requests a second the backend can serve.
func (p *Phase) Capacity() float64 { return float64(p.Servers) / p.mean().Seconds() }

// mean returns the mean service time, including slow requests.
func (p *Phase) mean() time.Duration {
	return time.Duration(float64(p.Service) * (1 + p.SlowShare*max(0, p.SlowBy-1)))
}

// Gate is a limit in front of a backend. Now is the simulated time.
type Gate interface {
	Enter(now time.Duration, r *Request) bool
	Leave(now time.Duration, r *Request, o inflight.Outcome)
}

// Request is one request. Permit or Token holds the handle that its Gate has returned.
type Request struct {
	Sent   time.Duration // when it passed the gate
	Permit inflight.Permit
	Token  any

	serial  uint64 // its number among all requests; 0 when it has ended
	tries   int    // earlier tries of the same request
	via     Gate   // the member of a Fleet that admitted it
	refused bool   // whether the backend has refused it
	gone    bool   // whether it has left the gate
	fails   bool   // whether it fails by a bug
}

// Tally counts requests' results for some time.
type Tally struct {
	Good    int           // answers to clients that were still waiting
	Answers time.Duration // the sum of their times in the backend
	Latency time.Duration // the requests' summed times in the backend, or until the client left
	Ended   int           // requests in Latency
	Lost    int           // requests without a permit
}

// Mean returns the mean time in the backend.
func (t *Tally) Mean() time.Duration {
	if t.Ended == 0 {
		return 0
	}
	return t.Latency / time.Duration(t.Ended)
}

// World is a backend, its clients and a gate between them, in simulated time.
type World struct {
	Now time.Duration
	// Tally counts requests since it was last set to zero.
	Tally

	gate                         Gate
	arrivals, services, failures *rand.Rand // separate series, so that worlds of one seed differ only by their gates' decisions
	serial                       uint64     // the serial of the latest request
	phase                        Phase
	queued                       int           // requests that wait at the gate
	next                         time.Duration // the time of the next arrival
	busy                         int           // busy servers
	stopped                      time.Duration // how long the backend has stood still
	resumes                      time.Duration // the time until which it stands still
	pauses                       time.Duration // the time of the next pause
	line                         ring          // requests in the backend that no server has begun
	refusals                     ring          // refused requests that no server has begun
	began                        time.Duration // when the phase began
	again                        []retry       // sorted by time
	served                       heapOf        // in backend time
	leaving                      heapOf        // includes ended requests, until their time comes
	free                         []*Request
}

// NewWorld returns a world in which nothing has happened.
func NewWorld(gate Gate, seed uint64) *World {
	w := &World{gate: gate}
	w.reseed(seed)
	return w
}

// reseed begins the random series again. From then on, requests arrive and servers take as long as in
// any other world with the same seed and phase. So no difference between two gates is due to luck.
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

// The kinds of the next event.
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
				w.leave(c.r, c.outcome) // the backend still works on the request
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

// backendTime returns the time without the backend's stops.
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

// enter sends a request to the gate.
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

// fails reports whether a request fails without any work.
func (w *World) fails() bool {
	share := w.phase.Fail
	if w.phase.FailOver > 0 {
		share += (w.phase.FailTo - share) * min(1, float64(w.Now-w.began)/float64(w.phase.FailOver))
	}
	return share > 0 && w.failures.Float64() < share
}

// failure returns the outcome of a request that fails.
func (w *World) failure() inflight.Outcome { return orCancelled(w.phase.FailAs) }

func orCancelled(o inflight.Outcome) inflight.Outcome {
	if o == inflight.Success {
		return inflight.Cancelled
	}
	return o
}

// patience returns the time after which a request's client leaves, or 0 for never, and the outcome.
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

// leave ends a request at the gate, and admits waiting requests.
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
	w.queued-- // before enter, in which the request may end
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

// coming is a future event of a request.
type coming struct {
	at     time.Duration
	r      *Request
	serial uint64 // the request's serial, since r may be reused by then

	outcome inflight.Outcome // the outcome if its client leaves or it fails
}

func (c coming) before(d coming) bool { return c.at < d.at || c.at == d.at && c.serial < d.serial }

// heapOf is a heap, the earliest event first.
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
