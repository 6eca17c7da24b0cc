package pace_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/pace"
)

var (
	runs  = flag.Int("runs", testsize.Of(400, 30_000), "how many random runs of queues")
	first = flag.Uint64("first", 1, "the seed of the first random run")
)

// Requests of several keys arrive, are refused, wait, and are repeated, cancelled and lost, while
// the limiter takes time to book and to cancel. Each run checks that no request waits without a
// timer or a wake-up under way. A key's requests are sent in order, none is sent before the server
// allows it, and at most MaxInFlight are in flight. Each booking is used or given back once.
//
// go test ./internal/pace -run TestRandomQueues -runs 100000 -timeout 0
func TestRandomQueues(t *testing.T) {
	n := *runs
	for seed := *first; seed < *first+uint64(n); seed++ {
		synctest.Test(t, func(t *testing.T) { newWorld(t, seed).run() })
		if t.Failed() {
			return
		}
	}
}

// world is one random run: clients, a limiter, and servers.
type world struct {
	t       *testing.T
	seed    uint64
	rnd     *rand.Rand // guarded by mu, like the fields below
	pacer   *pace.Pacer[*request]
	limiter ratelimit.Reserver[string]
	slow    time.Duration // the maximum time that the limiter takes
	hurry   bool          // whether requests have deadlines and are cancelled
	keys    int           // how many keys there are
	forgets bool          // whether the pacer remembers fewer keys
	slots   int           // the pacer's MaxInFlight

	arriving sync.Mutex

	mu      sync.Mutex
	failure string // the first failure, as text
	arrived int
	waiting int                  // requests in Await
	events  int                  // arrivals, sendings and failures
	booked  int                  // bookings
	undone  int                  // bookings given back
	used    int                  // bookings used by sent requests
	undoing map[string]int       // cancellations under way
	closed  map[string]time.Time // for each key, the instant until which the server's answers forbid requests
	reset   map[string]time.Time // when these answers were last forgotten
	sent    map[string][]sending
	flying  map[string]int // requests in flight

	ctx  context.Context // all requests' context
	stop context.CancelFunc
}

// request may be sent several times.
type request struct {
	key    string
	ticket int // its number in the order of arrival
}

// sending is one attempt: when the request joined the queue, and when it was sent.
type sending struct {
	ticket  int
	queued  time.Time // when it arrived or came back
	settled time.Time // when it was sent
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, seed: seed, rnd: rand.New(rand.NewPCG(testsize.Seed(seed), 0)), //nolint:gosec
		undoing: map[string]int{}, closed: map[string]time.Time{}, reset: map[string]time.Time{}, sent: map[string][]sending{},
		flying: map[string]int{},
	}
	limit := []ratelimit.Limit{
		ratelimit.Unlimited(),
		ratelimit.TokenBucket(ratelimit.PerSecond(1+w.upTo(20)), 1+w.upTo(5)),
		ratelimit.LeakyBucket(ratelimit.PerSecond(1+w.upTo(20)), 100),
		ratelimit.FixedWindow(ratelimit.PerSecond(1 + w.upTo(10))),
		ratelimit.SlidingLog(ratelimit.PerSecond(1 + w.upTo(10))),
		ratelimit.SlidingCounter(ratelimit.PerSecond(1 + w.upTo(10))),
	}[w.upTo(6)]
	w.limiter = ratelimit.Must(ratelimit.New[string](limit, nil))
	w.slow = []time.Duration{0, 0, time.Millisecond, time.Second}[w.upTo(4)]
	w.hurry = w.upTo(2) == 0
	w.keys, w.forgets = 1+w.upTo(3), w.upTo(3) == 0
	opts := pace.Options[*request]{Units: func(context.Context) int { return w.upTo(4) }}
	if w.forgets {
		opts.MaxKeys = 1
	}
	w.slots = max(0, w.upTo(5)-1)
	opts.MaxInFlight = w.slots
	if w.hurry && w.upTo(3) == 0 {
		opts.MaxWait = w.span(20 * time.Second)
	}
	w.pacer = pace.New("test", w, opts)
	return w
}

// upTo returns a random number below n.
func (w *world) upTo(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rnd.IntN(n)
}

// span returns a random time up to longest. It is often 0 and often round, so that several things happen at one instant.
func (w *world) span(longest time.Duration) time.Duration {
	switch w.upTo(4) {
	case 0:
		return 0
	case 1:
		return longest * time.Duration(w.upTo(4)) / 4
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rnd.Int64N(int64(longest + 1)))
}

func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == "" {
		w.failure = fmt.Sprintf(format, args...)
	}
}

// Reserve books in a Keyed, and takes some time to book and to cancel.
func (w *world) Reserve(ctx context.Context, r *request, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	if w.isUndoing(r.key, 0) > 0 && maxDelay > 0 { // maxDelay is 0 after a denial
		w.fail("a request books while bookings of its key are given back")
	}
	if w.slow > 0 {
		time.Sleep(w.span(w.slow))
	}
	switch w.upTo(100) {
	case 0:
		return nil, ratelimit.ErrUnavailable
	case 1:
		panic("in the limiter")
	}
	res, err := w.limiter.Reserve(ctx, r.key, cost, maxDelay)
	if err != nil || !res.Allowed {
		return res, err
	}
	w.count(&w.booked)
	return ratelimit.NewReservation(res.Decision, func(actual int) error {
		w.isUndoing(r.key, 1)
		defer w.isUndoing(r.key, -1)
		if w.slow > 0 {
			time.Sleep(w.span(w.slow))
		}
		w.count(&w.undone)
		if w.upTo(20) == 0 {
			panic("in Cancel")
		}
		return res.Settle(actual)
	}), nil
}

// Allow must not be called.
func (w *world) Allow(*request, int) bool { panic("not called") }

// Take must not be called.
func (w *world) Take(context.Context, *request, int) (ratelimit.Decision, error) {
	panic("not called")
}

// isUndoing adds more to the key's cancellations under way, and returns how many there are.
func (w *world) isUndoing(key string, more int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.undoing[key] += more
	return w.undoing[key]
}

func (w *world) count(n *int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*n++
}

func (w *world) run() {
	w.ctx, w.stop = context.WithCancel(w.t.Context())
	defer w.stop()
	var all sync.WaitGroup
	for range 2 + w.upTo(12) {
		time.Sleep(w.span(time.Second))
		r := &request{key: fmt.Sprint(w.upTo(w.keys))}
		all.Go(func() { w.serve(r) })
		if w.upTo(2) == 0 {
			synctest.Wait()
		}
	}
	for range w.upTo(3) {
		all.Go(w.forget)
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	w.watch(done)
	if w.failure == "" && w.booked != w.undone+w.used {
		w.failure = fmt.Sprintf("%d bookings, %d of them used and %d given back", w.booked, w.used, w.undone)
	}
	if n := w.pacer.Stats().InFlight; w.failure == "" && n > 0 {
		w.failure = fmt.Sprintf("%d are in flight at the end", n)
	}
	if w.failure == "" {
		w.checkOrder()
	}
	require.Empty(w.t, w.failure, "seed %d", w.seed)
}

// patience is longer than any wait in the test. A server that refuses all requests is called at ever longer
// intervals. After refusals of up to 5 s, an interval may be 64 times 5 s, and its start varies by as much again.
const patience = 12 * time.Minute

// watch checks the queues from time to time until the run is done. It fails if a
// request waits that could be sent, or if requests wait while nothing happens.
func (w *world) watch(done chan struct{}) {
	before, since := -1, time.Now()
	for {
		select {
		case <-done:
			return
		case <-time.After(w.span(time.Second) + 1):
		}
		synctest.Wait()
		w.mu.Lock()
		now, waiting := w.events, w.waiting
		w.mu.Unlock()
		if now != before || waiting == 0 {
			before, since = now, time.Now()
		}
		switch n := w.pacer.Overslept(time.Now()); {
		case n > 0:
			w.fail("%d wait who could go on", n)
		case time.Since(since) >= patience:
			w.fail("%d wait, and nothing has happened for %v", waiting, patience)
		default:
			continue
		}
		w.stop()
		<-done
		return
	}
}

// serve runs one request. If a call panics, serve abandons the request.
func (w *world) serve(r *request) {
	defer func() { _ = recover() }()
	ctx := w.ctx
	if w.hurry {
		switch w.upTo(3) {
		case 0:
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, w.span(20*time.Second))
			defer cancel()
		case 1:
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			time.AfterFunc(w.span(20*time.Second), cancel)
		}
	}
	w.arriving.Lock() // tickets are issued in the order of arrival
	p := w.pacer.Arrive(ctx, r.key)
	w.mu.Lock()
	w.arrived++
	r.ticket = w.arrived
	w.mu.Unlock()
	w.arriving.Unlock()
	queued := time.Now()
	flies := false
	defer func() {
		if flies {
			w.flies(r.key, -1)
		}
		w.leave(p)
	}()
	for tries := w.upTo(4); ; tries-- {
		if !w.await(p, r, queued) {
			return
		}
		flies = true
		w.flies(r.key, 1)
		time.Sleep(w.span(2 * time.Second))
		if w.upTo(20) == 0 {
			panic("behind")
		}
		a, now := w.answer(), time.Now()
		func() {
			defer func() { _ = recover() }() // Cancel may panic
			w.pacer.Learn(p, a, now)
		}()
		if a.Wait > 0 {
			w.close(r.key, now, a.Wait)
		}
		if !a.Refused || tries <= 0 {
			return
		}
		if w.upTo(2) == 0 {
			time.Sleep(w.span(10 * time.Second)) // the caller reads the answer to its end
		}
		w.flies(r.key, -1)
		flies = false
		w.pacer.Again(p)
		queued = time.Now()
	}
}

// flies adds more to the key's requests in flight.
func (w *world) flies(key string, more int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.flying[key] += more; w.flying[key] > w.slots && w.slots > 0 && w.failure == "" {
		w.failure = fmt.Sprintf("%d are in flight, of %d", w.flying[key], w.slots)
	}
}

func (w *world) leave(p *pace.Place) {
	defer func() { _ = recover() }() // Cancel may panic
	w.pacer.Leave(p)
}

// await waits until the request may be sent, and reports whether it may.
func (w *world) await(p *pace.Place, r *request, queued time.Time) (ok bool) {
	w.mu.Lock()
	w.events++
	w.waiting++
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events++
		w.waiting--
		if !ok {
			return
		}
		now := time.Now()
		w.used++
		w.sent[r.key] = append(w.sent[r.key], sending{r.ticket, queued, now})
		if w.failure == "" && !w.forgets && now.Before(w.closed[r.key]) {
			w.failure = fmt.Sprintf("sent %v before the server allows it", w.closed[r.key].Sub(now))
		}
	}()
	return w.pacer.Await(p, r) == nil
}

// close records a wait learned by the pacer. It takes effect at the next instant, because
// at this instant a request may have been sent before the pacer learned the wait.
func (w *world) close(key string, learned time.Time, wait time.Duration) {
	time.Sleep(time.Nanosecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	if until := learned.Add(wait); until.After(w.closed[key]) && w.reset[key].Before(learned) {
		w.closed[key] = until
	}
}

// forget drops a server's earlier answers.
func (w *world) forget() {
	time.Sleep(w.span(20 * time.Second))
	key := fmt.Sprint(w.upTo(w.keys))
	w.mu.Lock()
	delete(w.closed, key)
	w.reset[key] = time.Now()
	w.mu.Unlock()
	w.pacer.Reset(key)
}

// answer returns a server's answer at random.
func (w *world) answer() (a pace.Advice) {
	switch w.upTo(8) {
	case 0:
		return pace.Advice{Broken: w.upTo(2) == 0} // no answer
	case 1:
		return pace.Advice{Answered: true, Refused: true}
	case 2, 3:
		return pace.Advice{Answered: true, Refused: true, Wait: 1 + w.span(5*time.Second)}
	case 4:
		return pace.Advice{Answered: true, Refused: w.upTo(3) == 0, Budgets: w.budgets()}
	}
	return pace.Advice{Answered: true}
}

func (w *world) budgets() (budgets []pace.Budget) {
	for range 1 + w.upTo(2) {
		budgets = append(budgets, pace.Budget{
			Policy: fmt.Sprint(w.upTo(2)),
			Units:  w.upTo(2) == 0,
			Left:   int64(w.upTo(4)),
			Until:  time.Now().Add(w.span(10 * time.Second)),
		})
	}
	return budgets
}

// checkOrder reports requests sent while an earlier one was in the queue.
func (w *world) checkOrder() {
	for _, all := range w.sent {
		for _, a := range all {
			for _, b := range all {
				if a.ticket < b.ticket && a.queued.Before(b.settled) && b.settled.Before(a.settled) {
					w.failure = fmt.Sprintf("request %d was sent at %v, and request %d, in the queue from %v, at %v",
						b.ticket, b.settled, a.ticket, a.queued, a.settled)
					return
				}
			}
		}
	}
}
