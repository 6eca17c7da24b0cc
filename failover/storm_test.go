package failover_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var storms = flag.Int("storms", testsize.Of(6, 200), "random runs of callers on a primary that answers, fails, hangs, panics and is late by turns")

var firstStorm = flag.Uint64("first", 0, "the seed of the first of them")

// weather is a primary whose calls succeed or fail at random. It records each call's result.
type weather struct {
	t       *testing.T
	timeout time.Duration

	mu    sync.Mutex // guards the fields below
	rng   *rand.Rand
	bad   int            // of 1000 calls, how many fail
	span  time.Duration  // a call's maximum time
	calls []*weatherCall // decisions and settlements, ordered by their beginnings
	made  map[int]*promise
	next  int
}

// weatherCall is a call to the primary, as the breaker should see it.
type weatherCall struct {
	began, known time.Time // known is the time of the result or, if earlier, of the timeout
	fails        bool
	reports      bool // whether the breaker learns the result
	settles      bool
}

// promise is the primary's record of one reservation.
type promise struct {
	settled, cancelled int
	actual             int
}

var errCall = errors.New("about the call")

// call makes one call, and returns its error.
func (w *weather) call(ctx context.Context, settles bool) error {
	w.mu.Lock()
	span := time.Duration(w.rng.Int64N(int64(w.span)))
	c := &weatherCall{began: time.Now(), settles: settles}
	w.calls = append(w.calls, c)
	kind := 0
	if w.rng.IntN(1000) < w.bad {
		kind = 1 + w.rng.IntN(6)
	} else if w.rng.IntN(30) == 0 {
		kind = 7
	}
	if settles && (kind == 4 || kind == 7) { // a settlement has no context, and no errors about the call
		kind = 1
	}
	w.mu.Unlock()
	deadline := c.began.Add(w.timeout)
	end := func(fails, reports bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		c.known, c.fails, c.reports = time.Now(), fails, reports
		if !c.known.Before(deadline) {
			c.known, c.fails, c.reports = deadline, true, true
		}
	}
	switch kind {
	case 0:
		time.Sleep(span)
		end(false, true)
	case 1:
		time.Sleep(span)
		end(true, true)
		return errDown
	case 2:
		time.Sleep(span)
		end(true, true)
		panic("the weather")
	case 3: // late, but successful
		time.Sleep(w.timeout + 1 + span)
		end(true, true)
	case 4:
		<-ctx.Done()
		end(true, true)
		return ctx.Err()
	case 5: // ignores its context
		time.Sleep(2*w.timeout + span)
		end(true, true)
		return errDown
	case 6:
		end(true, true)
		return fmt.Errorf("the store: %w", context.DeadlineExceeded)
	case 7:
		time.Sleep(span)
		end(false, false)
		return errCall
	}
	return nil
}

func (w *weather) Allow(string, int) bool { panic("an Allow hides the error") }

func (w *weather) Take(ctx context.Context, _ string, _ int) (ratelimit.Decision, error) {
	err := w.call(ctx, false)
	return ratelimit.Decision{Allowed: err == nil}, err
}

func (w *weather) Reserve(ctx context.Context, _ string, _ int, _ time.Duration) (*ratelimit.Reservation, error) {
	if err := w.call(ctx, false); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	p := new(promise)
	w.made[w.next] = p
	return ratelimit.NewReservation(ratelimit.Decision{Allowed: true, Remaining: w.next}, func(actual int) error {
		w.mu.Lock()
		if p.actual = actual; actual == 0 {
			p.cancelled++
		} else {
			p.settled++
		}
		w.mu.Unlock()
		if actual == 0 { // the failover cancels the reservation by itself, so no caller sees the result
			return nil
		}
		return w.call(context.Background(), true)
	}), nil
}

// calmInstead is a stand-in that counts its reservations.
type calmInstead struct {
	mu            sync.Mutex
	made, settled int
}

func (s *calmInstead) Allow(string, int) bool { return true }

func (s *calmInstead) Take(context.Context, string, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{Allowed: true}, nil
}

func (s *calmInstead) Reserve(context.Context, string, int, time.Duration) (*ratelimit.Reservation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	return ratelimit.NewReservation(ratelimit.Decision{Allowed: true}, func(int) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.settled++
		return nil
	}), nil
}

// moment is a change of the breaker's state.
type moment struct {
	at       time.Time
	from, to failover.State
}

// weathered is a limiter over weather and calmInstead, with its callers' observations.
type weathered struct {
	t       *testing.T
	w       *weather
	standIn *calmInstead
	l       *failover.Limiter[string]
	o       failover.Options
	out     bytes.Buffer

	mu        sync.Mutex
	moments   []moment
	decisions int
	cancelled int
	kept      map[int]int // how often callers have settled the primary's reservations
	unsettled int
	at        string
}

func newWeather(t *testing.T, seed uint64) (*weathered, *rand.Rand) {
	rng := rand.New(rand.NewPCG(testsize.Seed(seed), 31))
	s := &weathered{t: t, standIn: &calmInstead{}, kept: map[int]int{}, at: fmt.Sprintf("seed %d", seed)}
	s.o = failover.Options{
		Timeout:  []time.Duration{7, 50, 800}[rng.IntN(3)] * time.Millisecond,
		Failures: 1 + rng.IntN(8),
		MaxCalls: []int{1, 3, 40}[rng.IntN(3)],
		OpenFor:  []time.Duration{50, 1000}[rng.IntN(2)] * time.Millisecond,
		Logger:   slog.New(slog.NewTextHandler(&s.out, nil)),
		OnStateChange: func(from, to failover.State) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.moments = append(s.moments, moment{time.Now(), from, to})
		},
	}
	s.w = &weather{t: t, timeout: s.o.Timeout, rng: rand.New(rand.NewPCG(testsize.Seed(seed), 32)), span: max(1, s.o.Timeout/time.Duration(1+rng.IntN(20))), made: map[int]*promise{}}
	l, err := failover.New[string](s.w, s.standIn, &s.o)
	require.NoError(t, err)
	s.l = l
	return s, rng
}

func (s *weathered) caller(rng *rand.Rand, steps int, pause time.Duration) {
	var settling sync.WaitGroup
	defer settling.Wait()
	for range steps {
		s.one(rng, &settling)
		time.Sleep(time.Duration(rng.Int64N(int64(pause))))
	}
}

func (s *weathered) one(rng *rand.Rand, settling *sync.WaitGroup) {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	began := time.Now()
	end := began.Add(s.o.Timeout)
	mayCancel := false
	switch rng.IntN(4) {
	case 0:
		own := began.Add(time.Duration(rng.Int64N(int64(2 * s.o.Timeout))))
		ctx, cancel = context.WithDeadline(ctx, own)
		if own.Before(end) {
			end = own
		}
	case 1:
		ctx, cancel = context.WithCancel(ctx)
		mayCancel = true
		own := time.Duration(rng.Int64N(int64(2 * s.o.Timeout)))
		timer := time.AfterFunc(own, cancel)
		defer timer.Stop()
		if at := began.Add(own); at.Before(end) {
			end = at
		}
	}
	defer cancel()
	var d ratelimit.Decision
	var err error
	var res *ratelimit.Reservation
	if rng.IntN(2) == 0 {
		d, err = s.l.Take(ctx, "k", 1)
	} else {
		res, err = s.l.Reserve(ctx, "k", 1, 0)
		d = res.Decision
	}
	// After waiting for its turn, a call has its whole timeout. Its caller waits no longer than Timeout in all.
	if late := time.Since(end); late > 0 {
		s.t.Errorf("%s: a caller was answered %v late", s.at, late)
	}
	s.mu.Lock()
	s.decisions++
	switch {
	case errors.Is(err, context.Canceled) && mayCancel:
		s.cancelled++
	case err != nil && !errors.Is(err, errCall):
		s.t.Errorf("%s: a caller sees %v", s.at, err)
	case err == nil && !d.Allowed:
		s.t.Errorf("%s: a caller is denied: %+v", s.at, d)
	}
	if res != nil && err == nil && !d.Degraded {
		s.kept[d.Remaining] = 0
	}
	s.mu.Unlock()
	if res == nil || err != nil || rng.IntN(4) == 0 {
		return
	}
	after, actual := time.Duration(rng.Int64N(int64(3*s.o.Timeout))), 1+rng.IntN(3)
	settling.Go(func() {
		time.Sleep(after)
		requested := time.Now()
		err := res.Settle(actual)
		if d.Degraded {
			assert.NoError(s.t, err)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.kept[d.Remaining]++
		// Timeout bounds a settlement's waits for its turn and for the answer together.
		if time.Since(requested) > s.o.Timeout {
			s.t.Errorf("%s: a settlement took %v", s.at, time.Since(requested))
		}
		if err != nil {
			s.unsettled++
			assert.ErrorIs(s.t, err, ratelimit.ErrUnavailable)
		}
	})
}

// TestInAnyWeatherCallersAreAnsweredAndTheBreakerKeepsItsRule compares
// the callers' and the primary's observations with the documentation.
func TestInAnyWeatherCallersAreAnsweredAndTheBreakerKeepsItsRule(t *testing.T) {
	n := *storms
	opened := 0
	for seed := *firstStorm; seed < *firstStorm+uint64(n); seed++ {
		synctest.Test(t, func(t *testing.T) {
			s, rng := newWeather(t, seed)
			began := time.Now()
			var callers sync.WaitGroup
			pause := []time.Duration{time.Millisecond, 30 * time.Millisecond, time.Second}[rng.IntN(3)]
			for range 1 + rng.IntN(30) {
				mine := rand.New(rand.NewPCG(rng.Uint64(), 33))
				callers.Go(func() { s.caller(mine, 150, pause) })
			}
			done := make(chan struct{})
			var sky sync.WaitGroup
			sky.Go(func() {
				for {
					s.w.mu.Lock()
					s.w.bad = []int{0, 0, 20, 400, 500, 1000}[rng.IntN(6)]
					s.w.mu.Unlock()
					select {
					case <-done:
						return
					case <-time.After(time.Duration(rng.Int64N(int64(5 * time.Second)))):
					}
				}
			})
			callers.Wait()
			close(done)
			sky.Wait()
			time.Sleep(time.Minute)
			synctest.Wait()
			s.check(began)
			opened += len(s.moments)
		})
	}
	require.NotZero(t, opened)
}

func (s *weathered) check(began time.Time) {
	t, st := s.t, s.l.Stats()
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	require.EqualValues(t, s.decisions, st.Primary+st.Instead+st.Cancelled, s.at)
	require.EqualValues(t, s.cancelled, st.Cancelled, s.at)
	require.EqualValues(t, s.unsettled, st.Unsettled, s.at)
	require.Zero(t, st.Settling)
	var ends []time.Time // when calls under way end, except overdue ones
	for _, c := range s.w.calls {
		ends = slices.DeleteFunc(ends, func(end time.Time) bool { return !end.After(c.began) })
		ends = append(ends, c.known)
		require.LessOrEqual(t, len(ends), 2*s.o.MaxCalls+1, "decisions and settlements and a probe, %s", s.at)
	}
	failed, ups := 0, 0
	for _, c := range s.w.calls {
		if c.fails {
			failed++
		}
	}
	require.EqualValues(t, failed, st.Unavailable+st.Timeouts+st.Panics, s.at)
	for id, p := range s.w.made {
		settled, kept := s.kept[id]
		if kept {
			require.Zero(t, p.cancelled, "%s: a reservation that its caller has was cancelled", s.at)
			require.LessOrEqual(t, p.settled, settled, s.at)
		} else {
			require.Equal(t, 1, p.cancelled, "%s: a reservation that nobody has stays charged", s.at)
			require.Zero(t, p.settled)
		}
	}
	for _, m := range s.moments {
		if m.to == failover.StateOpen {
			ups++
		}
	}
	require.EqualValues(t, ups, st.Opened, s.at)
	lines := strings.Count(s.out.String(), "\n")
	require.LessOrEqual(t, lines, 3*(2+int(time.Since(began)/time.Minute)), "%s: over %v\n%s", s.at, time.Since(began), s.out.String())
	s.checkBreaker(began)
}

// checkBreaker compares the breaker's changes of state with calls' results.
func (s *weathered) checkBreaker(began time.Time) {
	t := s.t
	far := began.Add(1000 * time.Hour)
	eras := []moment{{at: began, to: failover.StateClosed}}
	eras = append(eras, s.moments...)
	for i, era := range eras {
		ends, next := far, failover.StateClosed
		if i+1 < len(eras) {
			ends, next = eras[i+1].at, eras[i+1].to
			require.Equal(t, era.to, eras[i+1].from, "%s: changes are told in order", s.at)
		}
		at := fmt.Sprintf("%s, era %d: %v from %v for %v", s.at, i, era.to, era.at.Sub(began), ends.Sub(era.at))
		switch era.to {
		case failover.StateOpen: // half-open counts as open: it is reported only with a probe's result
			ends, next = far, failover.StateClosed
			for _, m := range eras[i+1:] {
				if m.to != failover.StateHalfOpen {
					ends, next = m.at, m.to
					break
				}
			}
			s.checkProbe(at, era.at, ends, next, far)
		case failover.StateClosed:
			var results []*weatherCall
			for _, c := range s.w.calls {
				if !c.began.Before(era.at) && !c.began.After(ends) && c.reports && !c.known.After(ends) && !(c.settles && !c.fails) {
					results = append(results, c)
				}
			}
			s.checkClosed(at, results, ends, next)
		}
	}
}

// checkProbe checks an outage from the breaker's opening to a probe's result.
func (s *weathered) checkProbe(at string, from, to time.Time, next failover.State, far time.Time) {
	var last *weatherCall
	for _, c := range s.w.calls {
		if c.settles || !c.began.After(from) || c.began.After(to) || c.began.Equal(to) && last != nil && last.reports {
			continue
		}
		require.GreaterOrEqual(s.t, c.began.Sub(from), s.o.OpenFor*8/10, "%s: the primary was asked", at)
		if last != nil {
			require.False(s.t, c.began.Before(last.known), "%s: two probes at a time", at)
			require.False(s.t, last.reports, "%s: a probe has told, and another one follows", at)
		}
		last = c
	}
	if to == far {
		require.True(s.t, last == nil || !last.reports, "%s: a probe has told, and nothing changes", at)
		return
	}
	require.NotNil(s.t, last, "%s: it changes without a probe", at)
	require.True(s.t, last.reports && last.known.Equal(to), "%s: it changes without what a probe has told: %+v", at, last)
	require.Equal(s.t, last.fails, next == failover.StateOpen, at)
}

// checkClosed compares the breaker's opening with its rule. The window
// moves in twentieths. If this matters, either answer is right.
func (s *weathered) checkClosed(at string, results []*weatherCall, ends time.Time, next failover.State) {
	window := max(time.Second, 2*s.o.Timeout)
	opens := func(last *weatherCall, window time.Duration, tied bool) bool {
		failures, successes := 0, 0
		var lastSuccess time.Time
		for _, c := range results {
			if c.known.After(last.known) {
				continue
			}
			if last.known.Sub(c.known) < window {
				if c.fails {
					failures++
				} else {
					successes++
				}
			}
			if !c.fails && c.known.After(lastSuccess) {
				lastSuccess = c.known
			}
		}
		row, first := 0, last.known
		for _, c := range results {
			if !c.known.After(last.known) && (c.known.After(lastSuccess) || tied && c.known.Equal(lastSuccess)) && c.fails {
				row++
				if c.known.Before(first) {
					first = c.known
				}
			}
		}
		return failures >= s.o.Failures && failures >= successes || row >= s.o.Failures && last.known.Sub(first) >= max(time.Second, 2*s.o.Timeout)
	}
	atEnd := false
	for _, c := range results {
		if !c.fails {
			continue
		}
		open := opens(c, window, false)
		sure := open == opens(c, window, true) // results at one instant have no order
		for _, other := range results {        // the window is between 19 and 20 twentieths long
			if age := c.known.Sub(other.known); age >= window*19/20 && age < window {
				sure = sure && opens(c, age, false) == open && opens(c, age+1, false) == open
			}
		}
		sure = sure && opens(c, window*19/20, false) == open
		same := 0
		for _, other := range results {
			if other.known.Equal(c.known) {
				same++
			}
		}
		if sure && open && same == 1 {
			require.True(s.t, c.known.Equal(ends), "%s: the rule opens it at a failure, %v before its end", at, ends.Sub(c.known))
		}
		if c.known.Equal(ends) && (open || !sure || same > 1) {
			atEnd = true
		}
	}
	if next == failover.StateOpen {
		require.True(s.t, atEnd, "%s: it opens against the rule", at)
	}
}
