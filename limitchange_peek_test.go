package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// question is a call returning the key's state without spending.
type question struct {
	name string
	look func(l *ratelimit.Keyed[string], key string) ratelimit.Decision
}

// oneLayer returns a stack with one layer of the limiter. The request is the key.
func oneLayer(l *ratelimit.Keyed[string], limit func(string) ratelimit.Limit) *ratelimit.Layered[string] {
	layer := ratelimit.By(l, func(key string) (string, error) { return key, nil })
	if limit != nil {
		layer = model.WithLimit(layer, limit)
	}
	s, err := ratelimit.All(layer)
	if err != nil {
		panic(err)
	}
	return s
}

const farAboveAll = math.MaxInt

// questions lists all calls, except Peek, that return a key's state and cannot spend.
var questions = []question{
	{"Take(0)", func(l *ratelimit.Keyed[string], key string) ratelimit.Decision {
		d, _ := l.Take(context.Background(), key, 0)
		return d
	}},
	{"Take above the capacity", func(l *ratelimit.Keyed[string], key string) ratelimit.Decision {
		d, _ := l.Take(context.Background(), key, farAboveAll)
		return d
	}},
	{"Reserve(0)", func(l *ratelimit.Keyed[string], key string) ratelimit.Decision {
		r, _ := l.Reserve(context.Background(), key, 0, time.Hour)
		return r.Decision
	}},
	{"Reserve above the capacity", func(l *ratelimit.Keyed[string], key string) ratelimit.Decision {
		r, _ := l.Reserve(context.Background(), key, farAboveAll, time.Hour)
		return r.Decision
	}},
	{"a stack's Take(0)", func(l *ratelimit.Keyed[string], key string) ratelimit.Decision {
		d, _ := oneLayer(l, nil).Take(context.Background(), key, 0)
		return d
	}},
	{"a stack's Take above the capacity", func(l *ratelimit.Keyed[string], key string) ratelimit.Decision {
		d, _ := oneLayer(l, nil).Take(context.Background(), key, farAboveAll)
		return d
	}},
	{"a stack's Reserve(0)", func(l *ratelimit.Keyed[string], key string) ratelimit.Decision {
		r, _ := oneLayer(l, nil).Reserve(context.Background(), key, 0, time.Hour)
		return r.Decision
	}},
}

// After a change of a key's limit, a question returns exact times, as a denial does.
func TestAPeekAfterAChangeOfLimitComesTrue(t *testing.T) {
	for _, q := range questions {
		for _, from := range makers {
			for _, to := range makers {
				for _, per := range []time.Duration{time.Second, 24 * time.Hour} { // once faster and once slower than before
					t.Run(fmt.Sprint(q.name, " ", from(1).Algorithm, " to ", to(1).Algorithm, " per ", per), func(t *testing.T) {
						l, clock := newLimiter(t, from(10))
						require.True(t, l.Allow("k", 10))
						clock.set(500 * ms)
						limit := to(10)
						limit.Rate.Per = per
						require.NoError(t, l.SetLimit(limit))
						answer := q.look(l, "k")
						require.Equal(t, limit, answer.Limit)
						require.Positive(t, answer.ResetAfter)
						if per < time.Hour {
							require.LessOrEqual(t, answer.ResetAfter, 2*per)
						}
						clock.advance(answer.ResetAfter - 1)
						require.Equal(t, time.Duration(1), q.look(l, "k").ResetAfter)
						clock.advance(1)
						d := q.look(l, "k")
						require.Zero(t, d.ResetAfter)
						require.Equal(t, 10, d.Remaining)
						require.Equal(t, 10, remaining(t, l, "k"))
					})
				}
			}
		}
	}
}

// A request's limit is the key's limit from the first call on.
func TestAPeekUnderARequestsLimitComesTrue(t *testing.T) {
	for _, from := range makers {
		for _, to := range makers {
			for _, cost := range []int{0, farAboveAll} {
				l, clock := newLimiter(t, from(10))
				require.True(t, l.Allow("k", 10))
				limit := to(10)
				limit.Rate.Per = time.Minute
				s := oneLayer(l, func(string) ratelimit.Limit { return limit })
				answer, _ := s.Take(t.Context(), "k", cost)
				require.Positive(t, answer.ResetAfter)
				clock.set(answer.ResetAfter - 1)
				d, _ := s.Take(t.Context(), "k", cost)
				require.Equal(t, time.Duration(1), d.ResetAfter, "%v to %v", from(10), limit)
				clock.advance(1)
				d, _ = s.Take(t.Context(), "k", cost)
				require.Zero(t, d.ResetAfter)
			}
		}
	}
}

// The clock may step back after a question has put the key under another limit.
func TestAQuestionThatTakesALimitOverRecordsTheTime(t *testing.T) {
	for _, q := range questions {
		for _, from := range makers {
			for _, to := range makers {
				l, clock := newLimiter(t, from(10))
				require.True(t, l.Allow("k", 10))
				clock.set(10 * time.Minute)
				require.NoError(t, l.SetLimit(to(10)))
				answer := q.look(l, "k")
				clock.set(9 * time.Minute)
				d, err := l.Take(t.Context(), "k", 10)
				require.NoError(t, err)
				require.Equal(t, answer.Remaining, d.Remaining, "%s: %v to %v", q.name, from(10), to(10))
				require.Equal(t, answer.ResetAfter+time.Minute, d.ResetAfter)
			}
		}
	}
}

// A Peek changes nothing, even after a change of the limit.
func TestAPeekLeavesTheKeyUnderItsLimit(t *testing.T) {
	for _, from := range makers {
		for _, to := range makers {
			l, clock := newLimiter(t, from(10))
			require.True(t, l.Allow("k", 10))
			require.NoError(t, l.SetLimit(to(10)))
			clock.set(30 * time.Minute)
			_, _ = l.Peek(context.Background(), "k", 1)
			_, _ = l.Peek(context.Background(), "k", farAboveAll)
			_, _ = oneLayer(l, nil).Peek(context.Background(), "k", 1)
			require.NoError(t, l.SetLimit(from(10)))
			clock.set(2 * time.Hour)
			require.Equal(t, 10, remaining(t, l, "k"))
		}
	}
}

// Spending beyond a tightened log's limit waits as a debt. After a raise, exactly this spending counts.
func TestADebtOfATightenedLogIsPlacedAgainWhenTheLimitIsRaised(t *testing.T) {
	perHour := func(n int) ratelimit.Limit { return ratelimit.SlidingLog(ratelimit.PerHour(n)) }
	for _, from := range makers {
		for _, denials := range []int{0, 1} {
			l, clock := newLimiter(t, from(12))
			require.True(t, l.Allow("k", 3))
			require.NoError(t, l.SetLimit(perHour(2)))
			for range denials {
				require.False(t, l.Allow("k", 1))
			}
			require.NoError(t, l.SetLimit(perHour(8)))
			d, err := l.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			require.Equal(t, ratelimit.Decision{Allowed: true, Limit: perHour(8), Remaining: 4, ResetAfter: time.Hour}, d, "from %v, %d denials", from(12), denials)
			clock.set(time.Hour)
			require.Equal(t, 8, remaining(t, l, "k"))
		}
	}
}

// A charged debt is also placed again when a log's limit changes:
// in shorter and in longer windows, even if only a part of it fits.
func TestADebtIsPlacedAgainWhenALogsLimitChanges(t *testing.T) {
	for _, tt := range []struct {
		name      string
		spend     int // spent under 10 an hour, then charged again as a debt
		to        ratelimit.Rate
		remaining int
		retry     time.Duration // the time until one more unit fits
		reset     time.Duration
	}{
		{"all fits", 10, ratelimit.PerHour(25), 5, 0, time.Hour},
		{"all fits exactly", 10, ratelimit.PerHour(20), 0, time.Hour, time.Hour},
		{"a part fits", 10, ratelimit.PerHour(15), 0, time.Hour, 2 * time.Hour},
		{"all fits into a shorter window", 10, ratelimit.PerMinute(25), 5, 0, time.Minute},
		{"a longer window", 10, ratelimit.PerDay(10), 0, 48 * time.Hour, 48 * time.Hour},
		// 10 leave, then 6, and then 4, and 1 more fits beside these 4
		{"a lower limit", 10, ratelimit.PerHour(6), 0, 2 * time.Hour, 3 * time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, _ := newLimiter(t, ratelimit.SlidingLog(ratelimit.PerHour(10)))
			require.True(t, l.Allow("k", tt.spend))
			require.NoError(t, l.Adjust(context.Background(), "k", tt.spend))
			require.NoError(t, l.SetLimit(ratelimit.SlidingLog(tt.to)))
			d, err := l.Peek(context.Background(), "k", 1)
			require.NoError(t, err)
			require.Equal(t, tt.remaining, d.Remaining)
			require.Equal(t, tt.retry, d.RetryAfter)
			require.Equal(t, tt.reset, d.ResetAfter)
			got, err := l.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			require.Equal(t, tt.retry, got.RetryAfter)
		})
	}
}

// A debt placed again leaves bookings where they are, and can be cancelled together with them.
func TestADebtIsPlacedAgainBesideBookings(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.SlidingLog(ratelimit.PerHour(2)))
	require.True(t, l.Allow("k", 2))
	require.NoError(t, l.Adjust(context.Background(), "k", 1)) // at 1 h
	r, err := l.Reserve(t.Context(), "k", 1, 9*time.Hour)
	require.NoError(t, err)
	require.Equal(t, time.Hour, r.Delay)
	require.NoError(t, l.SetLimit(ratelimit.SlidingLog(ratelimit.PerHour(8))))
	require.Equal(t, 5, remaining(t, l, "k")) // the booking does not count yet
	d, err := l.Reserve(t.Context(), "k", 6, 9*time.Hour)
	require.NoError(t, err)
	require.Equal(t, time.Hour, d.Delay)
	require.NoError(t, d.Cancel())
	require.NoError(t, r.Cancel())
	require.Equal(t, 5, remaining(t, l, "k"))
	clock.set(time.Hour)
	require.Equal(t, 8, remaining(t, l, "k"))
}

// A grant gives a part of a booking back. The booking's settlement must not give
// the same part back again, because that would refund others' later spending.
func TestABookingThatWasGrantedBackGivesBackNothingMore(t *testing.T) {
	for _, make := range makers {
		for _, actual := range []int{0, 6} {
			for _, wait := range []time.Duration{0, time.Minute} {
				l, clock := newLimiter(t, make(10))
				require.True(t, l.Allow("k", 2))
				if make(10).Algorithm != ratelimit.AlgorithmLeakyBucket {
					require.True(t, l.Allow("k", 8))
				}
				r, err := l.Reserve(t.Context(), "k", 8, 9*time.Hour)
				require.NoError(t, err)
				require.Positive(t, r.Delay)
				clock.set(wait)
				require.NoError(t, l.Adjust(context.Background(), "k", -100))
				require.Equal(t, 10, remaining(t, l, "k"), make(10))
				require.True(t, l.Allow("k", 1))
				require.NoError(t, r.Settle(actual))
				require.Equal(t, 9, remaining(t, l, "k"), "%v, settled at %d", make(10), actual)
			}
		}
	}
}

// ---- a random run ----

// An inquiry is a random history of changing limits and calls on one key. It can be played again up to any call.
type inquiry struct {
	first ratelimit.Limit
	calls []lookCall
}

// lookCall is one call of an inquiry, after a pause.
type lookCall struct {
	kind  callKind
	after time.Duration
	limit ratelimit.Limit // for SetLimit; for LimitFor from a Refresh on; or for a request, unless zero
	n     int
}

type callKind int

const (
	callTake callKind = iota
	callStack
	callQuestion
	callPeek
	callSetLimit
	callRefresh
	callAdjust
	callReserve
	callSettle
)

func (c lookCall) String() string {
	return fmt.Sprintf("%s after %v: n=%d limit=%v", [...]string{"Take", "stack", "question", "Peek", "SetLimit", "Refresh", "Adjust", "Reserve", "Settle"}[c.kind], c.after, c.n, c.limit)
}

func (q inquiry) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "under %v\n", q.first)
	for _, c := range q.calls {
		fmt.Fprintln(&s, c)
	}
	return s.String()
}

// looker is a limiter in the middle of an inquiry.
type looker struct {
	l       *ratelimit.Keyed[string]
	clock   *testClock
	own     ratelimit.Limit // the present request's limit
	theKeys ratelimit.Limit // LimitFor's result
	stack   *ratelimit.Layered[string]
	booked  []*ratelimit.Reservation
}

func begin(t *testing.T, limit ratelimit.Limit) *looker {
	a := &looker{clock: new(testClock)}
	a.l = newWith(t, limit, ratelimit.Options[string]{Clock: a.clock, LimitFor: func(string) ratelimit.Limit { return a.theKeys }})
	a.stack = oneLayer(a.l, func(string) ratelimit.Limit { return a.own })
	return a
}

// play makes a call, and returns its decision.
func (a *looker) play(c lookCall) (d ratelimit.Decision) {
	a.clock.advance(c.after)
	a.own = c.limit
	switch c.kind {
	case callTake:
		d, _ = a.l.Take(context.Background(), "k", c.n)
	case callStack:
		d, _ = a.stack.Take(context.Background(), "k", c.n)
	case callQuestion:
		d = questions[c.n%len(questions)].look(a.l, "k")
	case callPeek:
		d, _ = a.l.Peek(context.Background(), "k", c.n)
	case callSetLimit:
		_ = a.l.SetLimit(c.limit)
	case callRefresh:
		a.theKeys = c.limit
		a.l.Refresh("k")
	case callAdjust:
		_ = a.l.Adjust(context.Background(), "k", c.n)
	case callReserve:
		r, _ := a.l.Reserve(context.Background(), "k", c.n%4, 500)
		a.booked = append(a.booked, r)
		d = r.Decision
	case callSettle:
		if n := len(a.booked); n > 0 {
			_ = a.booked[c.n%n].Settle(c.n / 2)
		}
	}
	return d
}

// playAll plays an inquiry's first n calls.
func (q inquiry) playAll(t *testing.T, n int) *looker {
	a := begin(t, q.first)
	for _, c := range q.calls[:n] {
		a.play(c)
	}
	return a
}

func randomLimit(r *rand.Rand) ratelimit.Limit {
	units := []int{1, 2, 3, 5, 8, 20}[r.IntN(6)]
	per := []time.Duration{10, 60, 100, 1000}[r.IntN(4)]
	l := ratelimit.Limit{Algorithm: ratelimit.Algorithm(1 + r.IntN(5)), Rate: ratelimit.Per(units, per)}
	if l.Algorithm <= ratelimit.AlgorithmLeakyBucket {
		l.Burst = 1 + r.IntN(20)
	}
	return l
}

// randomInquiry returns calls under changing limits.
func randomInquiry(r *rand.Rand) inquiry {
	q := inquiry{first: randomLimit(r)}
	for range 4 + r.IntN(14) {
		c := lookCall{kind: callKind(r.IntN(int(callSettle) + 1)), n: r.IntN(8)}
		if r.IntN(2) == 0 {
			c.after = time.Duration(r.IntN(150))
		}
		if c.kind == callSetLimit || c.kind == callRefresh || c.kind == callStack && r.IntN(2) == 0 {
			c.limit = randomLimit(r)
		}
		if c.kind == callAdjust {
			c.n = r.IntN(50) - 20
		}
		q.calls = append(q.calls, c)
	}
	return q
}

// short returns the shortest history still failing.
func (q inquiry) short(fails func(inquiry) string) inquiry {
	for i := len(q.calls) - 1; i >= 0; i-- {
		less := inquiry{q.first, append(append([]lookCall(nil), q.calls[:i]...), q.calls[i+1:]...)}
		if fails(less) != "" {
			q = less
		}
	}
	return q
}

func inquire(t *testing.T, seed uint64, fails func(inquiry) string) {
	q := randomInquiry(rand.New(rand.NewPCG(testsize.Seed(seed), 0)))
	if fails(q) != "" {
		q = q.short(fails)
		require.Fail(t, fails(q), "%d: %v", seed, q)
	}
}

// FuzzChangedLimit checks the two properties below for any length of time.
func FuzzChangedLimit(f *testing.F) {
	f.Fuzz(func(t *testing.T, seed uint64) {
		inquire(t, seed, func(q inquiry) string { return q.answersComeTrue(t) })
		inquire(t, seed, func(q inquiry) string { return q.lookingChangesNothing(t) })
	})
}

// After any changes of the limit, a decision's times are exact, unless more is spent or the limit changes
// again. Peek is an exception: until the key adopts its new limit, Peek returns the result of a Take now.
func TestADecisionsFiguresComeTrueAfterAnyChangeOfLimit(t *testing.T) {
	for seed := range model.Rounds(5_000) {
		inquire(t, seed, func(q inquiry) string { return q.answersComeTrue(t) })
	}
}

func (q inquiry) answersComeTrue(t *testing.T) string {
	last := len(q.calls) - 1
	if last < 0 {
		return ""
	}
	c := q.calls[last]
	if c.kind > callQuestion {
		return ""
	}
	answer := q.playAll(t, last).play(c)
	if c.kind == callTake || c.kind == callStack {
		// The denied call is repeated after RetryAfter, and 1 ns before.
		again := c
		again.after = answer.RetryAfter
		if answer.Allowed || answer.RetryAfter == 0 {
			return q.freshAt(t, answer)
		}
		if d := q.playAll(t, last+1).play(again); !d.Allowed {
			return fmt.Sprintf("told %+v, and then denied: %+v", answer, d)
		}
		again.after--
		if d := q.playAll(t, last+1).play(again); d.Allowed {
			return fmt.Sprintf("told %+v, and allowed before that", answer)
		}
	}
	return q.freshAt(t, answer)
}

// freshAt checks a decision's ResetAfter, and describes the error, if any. At that
// instant it repeats the last call, with a cost of 0 or as the same question.
func (q inquiry) freshAt(t *testing.T, answer ratelimit.Decision) string {
	last := len(q.calls)
	c := q.calls[last-1]
	c.n *= min(1, int(c.kind)/int(callQuestion)) // the cost is 0, or the question is the same
	c.after = answer.ResetAfter
	if d := q.playAll(t, last).play(c); d.ResetAfter != 0 || d.Remaining != d.Limit.Capacity() {
		return fmt.Sprintf("told %+v, and then %+v", answer, d)
	}
	if c.after--; c.after < 0 {
		return ""
	}
	if d := q.playAll(t, last).play(c); d.ResetAfter != 1 {
		return fmt.Sprintf("told %+v, and 1 ns before that %+v", answer, d)
	}
	return ""
}

// Once a key is under a limit, a question under that limit changes no later decision. A Peek never changes one.
func TestAPeekChangesNoLaterDecision(t *testing.T) {
	for seed := range model.Rounds(5_000) {
		inquire(t, seed, func(q inquiry) string { return q.lookingChangesNothing(t) })
	}
}

func (q inquiry) lookingChangesNothing(t *testing.T) string {
	quiet, looking := begin(t, q.first), begin(t, q.first)
	under, sure := ratelimit.Limit{}, true
	for i, c := range q.calls {
		want, got := quiet.play(c), looking.play(c)
		if want != got {
			return fmt.Sprintf("call %d answers %+v, and %+v if others have asked", i, want, got)
		}
		_, _ = looking.l.Peek(context.Background(), "k", 1)
		_, _ = looking.stack.Peek(context.Background(), "k", c.n)
		switch c.kind {
		case callTake, callQuestion, callReserve:
			under, sure = ratelimit.Limit{}, true
		case callStack:
			under, sure = c.limit, true
		case callPeek:
		default: // the key may not be under the limit in force yet
			sure = false
		}
		if !sure {
			continue
		}
		if under != (ratelimit.Limit{}) {
			looking.own = under
			_, _ = looking.stack.Take(context.Background(), "k", 0)
			_, _ = looking.stack.Take(context.Background(), "k", farAboveAll)
			continue
		}
		for _, look := range questions {
			look.look(looking.l, "k")
		}
		if d, err := looking.l.Peek(context.Background(), "k", 7); err == nil && !d.Allowed {
			_ = looking.l.Allow("k", 7)
		}
	}
	return ""
}
