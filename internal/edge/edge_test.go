package edge_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
	"github.com/weir-go/ratelimit/keyfunc"
)

// request is a request in any protocol.
type request struct{ ctx context.Context }

func (r *request) Context() context.Context { return r.ctx }

func client(*request) (string, error) { return "client", nil }

// middleware uses a Core as the packages' middleware does.
type middleware struct{ *edge.Core[*request] }

func newMiddleware(t *testing.T, l ratelimit.Limiter[*request], o edge.Options[*request]) middleware {
	t.Helper()
	o.Package, o.Thing, o.Now = "test", "request", time.Now
	o.TooLate = func(r *request, delay time.Duration) bool {
		end, ok := r.ctx.Deadline()
		return ok && time.Until(end) <= delay
	}
	c, err := edge.New(l, o)
	require.NoError(t, err)
	return middleware{c}
}

// pass decides on a request, holds it, and settles its charge. It returns the event.
func (m middleware) pass(ctx context.Context) edge.Event[*request] {
	return m.serve(ctx, func(context.Context, *edge.Charge[*request]) {})
}

// serve does what pass does, and also calls handle. If the request is refused inside, serve gives its charge back.
func (m middleware) serve(ctx context.Context, handle func(context.Context, *edge.Charge[*request])) edge.Event[*request] {
	e := m.Event(&request{ctx})
	charge := m.Charge(&e, m.Decide(&e, m.Settles))
	defer charge.End()
	held := m.Hold(&e)
	m.Report(&e)
	if m.Shadow || held && (e.Outcome == edge.Allowed || e.Outcome == edge.FailedOpen) {
		inside := edge.Inside(charge.Serve(ctx))
		handle(inside, charge)
		switch {
		case m.Settles:
			charge.Settle(func(cost int) int { return cost })
		case edge.WasRefused(inside):
			charge.Refused(&e)
		default:
			edge.MarkServed(ctx)
		}
	}
	return e
}

// stack returns a stack with a layer for each limit. It can give back a held request's charge.
func stack(limits ...ratelimit.Limit) *ratelimit.Layered[*request] {
	var layers []ratelimit.Layer[*request]
	for _, limit := range limits {
		layers = append(layers, ratelimit.By(ratelimit.Must(ratelimit.New[string](limit, nil)), client))
	}
	return ratelimit.Must(ratelimit.All(layers...))
}

// failing is a limiter that returns an error for each call.
type failing struct{ err error }

func (f failing) Allow(*request, int) bool { return false }
func (f failing) Take(context.Context, *request, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, f.err
}

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func expired() context.Context { return within(-time.Hour) }

// within returns a context with a deadline.
func within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	context.AfterFunc(ctx, cancel)
	return ctx
}

func TestARequestThatCannotBeDecidedIsRefused(t *testing.T) {
	const secret = "what-no-client-may-see"
	for name, row := range map[string]struct {
		err  error
		ctx  context.Context
		want edge.Outcome
		code rpcstatus.Code
		open bool // whether FailOpen applies
	}{
		"the store is down":      {ratelimit.ErrUnavailable, nil, edge.Failed, rpcstatus.Unavailable, true},
		"the limiter fails":      {errors.New("bug"), nil, edge.Failed, rpcstatus.Unavailable, true},
		"the table is full":      {ratelimit.ErrTableFull, nil, edge.Failed, rpcstatus.Unavailable, false},
		"the cost is negative":   {ratelimit.ErrNegativeCost, nil, edge.Failed, rpcstatus.Internal, false},
		"no key":                 {keyfunc.ErrNoKey, nil, edge.Rejected, rpcstatus.Unauthenticated, false},
		"a malformed key":        {keyfunc.ErrMalformedKey, nil, edge.Rejected, rpcstatus.Unauthenticated, false},
		"an invalid key":         {ratelimit.ErrInvalidKey, nil, edge.Rejected, rpcstatus.Unauthenticated, false},
		"a misconfigured server": {fmt.Errorf("%w: %w", keyfunc.ErrMisconfigured, keyfunc.ErrNoKey), nil, edge.Failed, rpcstatus.Internal, false},
		"the client has left":    {errors.New("the call of the store was cut"), cancelled(), edge.Rejected, rpcstatus.Canceled, false},
		"the deadline has ended": {errors.New("the call of the store was cut"), expired(), edge.Rejected, rpcstatus.DeadlineExceeded, false},
		"more than there is":     {ratelimit.ErrExceedsLimit, nil, edge.Exceeds, rpcstatus.ResourceExhausted, false},
		"a blocked key":          {ratelimit.ErrBlocked, nil, edge.Exceeds, rpcstatus.ResourceExhausted, false},
	} {
		for _, failOpen := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, FailOpen %v", name, failOpen), func(t *testing.T) {
				if row.ctx == nil {
					row.ctx = context.Background()
				}
				var reported []edge.Outcome
				m := newMiddleware(t, failing{fmt.Errorf("%w: %s", row.err, secret)}, edge.Options[*request]{
					FailOpen: failOpen, OnDecision: func(e edge.Event[*request]) { reported = append(reported, e.Outcome) },
				})
				want := row.want
				if failOpen && row.open {
					want = edge.FailedOpen
				}
				e := m.pass(row.ctx)
				assert.Equal(t, want, e.Outcome)
				assert.Equal(t, []edge.Outcome{want}, reported)
				assert.Equal(t, map[edge.Outcome]edge.Stats{
					edge.Failed: {Failed: 1}, edge.FailedOpen: {FailedOpen: 1}, edge.Rejected: {Rejected: 1}, edge.Exceeds: {Exceeds: 1},
				}[want], m.Stats())
				a := m.Answer(&e, rpcstatus.Unauthenticated)
				assert.Equal(t, row.code, a.Code)
				assert.NotContains(t, a.Message, secret)
				assert.Zero(t, a.Wait, "the client's backoff knows better")
				assert.Equal(t, want == edge.Exceeds, a.Never)
			})
		}
	}
}

func TestACostBelowZeroIsRejectedAlsoWithFailOpen(t *testing.T) {
	m := newMiddleware(t, stack(ratelimit.FixedWindow(ratelimit.PerHour(1))), edge.Options[*request]{FailOpen: true, Cost: func(*request) int { return -1 }})
	e := m.pass(t.Context())
	assert.Equal(t, edge.Rejected, e.Outcome)
	assert.ErrorIs(t, e.Err, ratelimit.ErrNegativeCost)
	assert.Equal(t, rpcstatus.InvalidArgument, m.Answer(&e, rpcstatus.Unauthenticated).Code)
}

// A leaky bucket with one request a second holds a request until its turn. If its client leaves, it
// gives its place back. If its deadline comes first, it is denied at once, and was never allowed.
func TestALeakyBucketHoldsARequestUntilItsTurn(t *testing.T) {
	layer := func(limit ratelimit.Limit) (ratelimit.Limiter[*request], error) { return stack(limit), nil }
	perKey := func(limit ratelimit.Limit) (ratelimit.Limiter[*request], error) { return edge.PerKey(limit, client) }
	for name, row := range map[string]struct {
		limiter func(ratelimit.Limit) (ratelimit.Limiter[*request], error)
		settles bool
	}{"charged": {layer, false}, "settled": {layer, true}, "PerKey": {perKey, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := row.limiter(ratelimit.LeakyBucket(ratelimit.PerSecond(1), 10))
				require.NoError(t, err)
				m := newMiddleware(t, l, edge.Options[*request]{Settles: row.settles})
				start := time.Now()
				for n := range 3 {
					assert.Equal(t, edge.Allowed, m.pass(t.Context()).Outcome)
					assert.Equal(t, time.Duration(n)*time.Second, time.Since(start))
				}
				ctx, leave := context.WithCancel(t.Context())
				time.AfterFunc(500*time.Millisecond, leave)
				left := m.pass(ctx)
				assert.Equal(t, edge.Rejected, left.Outcome)
				assert.ErrorIs(t, left.Err, context.Canceled)
				assert.Equal(t, 2500*time.Millisecond, time.Since(start))
				for range 5 {
					late := m.pass(within(500 * time.Millisecond))
					assert.Equal(t, edge.Denied, late.Outcome)
					assert.Equal(t, 500*time.Millisecond, late.Decision.Delay)
					answer := m.Answer(&late, 0)
					assert.Equal(t, 500*time.Millisecond, answer.Wait)
					assert.Contains(t, answer.Message, "the rate limit delays the call beyond its deadline: ")
				}
				assert.Equal(t, edge.Allowed, m.pass(t.Context()).Outcome)
				assert.Equal(t, 3*time.Second, time.Since(start), "in place of those that were not served")
				assert.Equal(t, edge.Stats{Allowed: 4, Denied: 5, Rejected: 1}, m.Stats())
			})
		})
	}
}

// A bucket with 2 requests a second has a line with room for one. Of three requests at once,
// the first passes. The second is held if MaxHold is long enough. The last is denied at once.
func TestMaxHoldHoldsARequestThatCanPassWithinIt(t *testing.T) {
	for maxHold, want := range map[time.Duration][]edge.Outcome{
		500*time.Millisecond - 1: {edge.Denied, edge.Denied, edge.Allowed},
		500 * time.Millisecond:   {edge.Denied, edge.Allowed, edge.Allowed},
		time.Minute:              {edge.Denied, edge.Allowed, edge.Allowed},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(2), 1), &ratelimit.Options[string]{MaxWaiting: 1}))
			m := newMiddleware(t, ratelimit.Map(l, client), edge.Options[*request]{MaxHold: maxHold})
			start := time.Now()
			outcomes := make(chan edge.Outcome, 3)
			for range 2 {
				go func() { outcomes <- m.pass(t.Context()).Outcome }()
				synctest.Wait()
			}
			last := m.pass(t.Context()).Outcome
			assert.Zero(t, time.Since(start))
			first, second := <-outcomes, <-outcomes
			if second == edge.Allowed {
				assert.Equal(t, 500*time.Millisecond, time.Since(start))
			}
			assert.Equal(t, want, []edge.Outcome{last, second, first}, maxHold)
			assert.Zero(t, l.Stats().Waiting)
		})
	}
}

func TestRefuseHeldDeniesWhatIsHeldAndServesWhatCanPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerHour(1), 1), nil))
		m := newMiddleware(t, ratelimit.Map(l, client), edge.Options[*request]{MaxHold: 100 * time.Hour})
		assert.Equal(t, edge.Allowed, m.pass(t.Context()).Outcome)
		held := make(chan edge.Outcome, 3)
		for range 3 {
			go func() { held <- m.pass(t.Context()).Outcome }()
		}
		synctest.Wait()
		assert.Equal(t, 3, l.Stats().Waiting)
		m.RefuseHeld()
		for range 3 {
			assert.Equal(t, edge.Denied, <-held)
		}
		assert.Equal(t, edge.Denied, m.pass(t.Context()).Outcome, "at once")
		time.Sleep(time.Hour)
		assert.Equal(t, edge.Allowed, m.pass(t.Context()).Outcome, "without a hold")
	})
}

// More than 20 requests arrive each second, and their clients leave after 2 s. The requests behind them move up.
func TestHeldRequestsMoveUpWhenOthersLeave(t *testing.T) {
	leaky, bucket := ratelimit.LeakyBucket(ratelimit.PerSecond(20), 100), ratelimit.TokenBucket(ratelimit.PerSecond(20), 5)
	byKey := func(limit ratelimit.Limit) func() ratelimit.Limiter[*request] {
		return func() ratelimit.Limiter[*request] { return ratelimit.Must(edge.PerKey(limit, client)) }
	}
	layers := func() ratelimit.Limiter[*request] {
		limiter := func(limit ratelimit.Limit) ratelimit.Layer[*request] {
			return ratelimit.By(ratelimit.Must(ratelimit.New[string](limit, nil)), client)
		}
		whole := ratelimit.Must(ratelimit.New[struct{}](ratelimit.LeakyBucket(ratelimit.PerSecond(20), 200).Named("whole"), nil))
		return ratelimit.Must(ratelimit.All(limiter(leaky), ratelimit.Global[*request](whole), limiter(ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000).Named("calls"))))
	}
	for name, row := range map[string]struct {
		limiter func() ratelimit.Limiter[*request]
		opts    edge.Options[*request]
	}{
		"a leaky bucket":                   {byKey(leaky), edge.Options[*request]{}},
		"layers":                           {layers, edge.Options[*request]{}},
		"a token bucket with MaxHold":      {byKey(bucket), edge.Options[*request]{MaxHold: 10 * time.Second}},
		"a leaky bucket, MaxHold, settled": {byKey(leaky), edge.Options[*request]{MaxHold: 10 * time.Second, Settles: true}},
	} {
		for _, offered := range []float64{1.05, 1.5, 2, 10} {
			t.Run(fmt.Sprintf("%s/%v×", name, offered), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := newMiddleware(t, row.limiter(), row.opts)
					begin := time.Now().Add(5 * time.Second)
					end := begin.Add(20 * time.Second)
					var served atomic.Int64
					var all sync.WaitGroup
					for time.Now().Before(end) {
						all.Go(func() {
							ctx, leave := context.WithCancel(t.Context())
							defer leave()
							defer time.AfterFunc(2*time.Second, leave).Stop()
							if m.pass(ctx).Outcome != edge.Allowed {
								return
							}
							if now := time.Now(); !now.Before(begin) && now.Before(end) {
								served.Add(1)
							}
						})
						time.Sleep(time.Duration(float64(time.Second) / 20 / offered))
					}
					all.Wait()
					require.GreaterOrEqual(t, float64(served.Load())/20, .95*20)
				})
			})
		}
	}
}

func TestJitterAddsNoMoreThanItIsAndATenthAtMost(t *testing.T) {
	for _, row := range []struct{ jitter, wait, most time.Duration }{
		{0, time.Hour, time.Hour},
		{50 * time.Millisecond, time.Hour, time.Hour + 50*time.Millisecond},
		{time.Hour, 100 * time.Millisecond, 110 * time.Millisecond},
		{math.MaxInt64, math.MaxInt64, math.MaxInt64},
	} {
		n := 0
		m := newMiddleware(t, failing{}, edge.Options[*request]{Jitter: row.jitter, JitterBy: func(*request) string { n++; return fmt.Sprint(n) }})
		for range 50 {
			wait := m.Spread(&request{t.Context()}, row.wait)
			assert.GreaterOrEqual(t, wait, row.wait)
			assert.LessOrEqual(t, wait, row.most)
		}
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	layers := stack(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1))
	for want, row := range map[string]struct {
		l    ratelimit.Limiter[*request]
		opts edge.Options[*request]
	}{
		"test: New: limiter is nil":                       {nil, edge.Options[*request]{}},
		"test: New: limiter is nil ":                      {(*ratelimit.Layered[*request])(nil), edge.Options[*request]{}},
		"test: this limiter's key is the request itself":  {ratelimit.Must(ratelimit.New[*request](ratelimit.Unlimited(), nil)), edge.Options[*request]{}},
		"Options.MaxHold is 1s, and *ratelimit.Layered":   {layers, edge.Options[*request]{MaxHold: time.Second}},
		"Options.MaxHold is 1s, which needs a ratelimit.": {failing{}, edge.Options[*request]{MaxHold: time.Second}},
		"Options.MaxHold is -1ns, want 0 for none, or":    {layers, edge.Options[*request]{MaxHold: -1}},
		"Options.Jitter is -1ns, want 0 for none, or":     {layers, edge.Options[*request]{Jitter: -1}},
		"Options.Settle needs a ratelimit.Reserver":       {failing{}, edge.Options[*request]{Settles: true}},
	} {
		row.opts.Package, row.opts.Thing = "test", "request"
		_, err := edge.New(row.l, row.opts)
		require.Error(t, err, want)
		assert.Contains(t, err.Error()+" ", want)
	}
	for code, want := range map[rpcstatus.Code]rpcstatus.Code{0: rpcstatus.InvalidArgument, 7: 7, 16: 16} {
		require.NoError(t, edge.CompleteKeyCode("test: Options", &code))
		assert.Equal(t, want, code)
	}
	none := rpcstatus.Code(17)
	assert.EqualError(t, edge.CompleteKeyCode("test: Options", &none), "test: Options.KeyCode is 17, which does not exist")
}

func TestRefusalsOfAnInflight(t *testing.T) {
	one := func() *inflight.Limiter[string] { return ratelimit.Must(inflight.New[string](1, nil)) }
	full := func() *inflight.Limiter[string] {
		l := ratelimit.Must(inflight.New(1, &inflight.Options[string]{MaxKeys: 1}))
		_, _ = l.TryAcquire("another", 1)
		return l
	}
	blocked := func() *inflight.Limiter[string] {
		return ratelimit.Must(inflight.New(1, &inflight.Options[string]{LimitFor: func(string) int { return -1 }}))
	}
	fails := func(err error) func(*request) (string, error) {
		return func(*request) (string, error) { return "", err }
	}
	units := func(n int) func(*request) int { return func(*request) int { return n } }
	failed, rejected, shed, skipped := edge.InflightStats{Failed: 1}, edge.InflightStats{Rejected: 1}, edge.InflightStats{Shed: 1}, edge.InflightStats{Skipped: 1}
	for name, row := range map[string]struct {
		limiter  func() *inflight.Limiter[string]
		key      func(*request) (string, error)
		opts     edge.InflightOptions[*request]
		ctx      context.Context
		want     rpcstatus.Code
		stats    edge.InflightStats
		byClient bool
	}{
		"room":               {one, client, edge.InflightOptions[*request]{}, nil, 0, edge.InflightStats{Admitted: 1}, false},
		"the table is full":  {full, client, edge.InflightOptions[*request]{}, nil, rpcstatus.Unavailable, failed, true},
		"more than there is": {one, client, edge.InflightOptions[*request]{Units: units(2)}, nil, rpcstatus.ResourceExhausted, failed, false},
		"a blocked key":      {blocked, client, edge.InflightOptions[*request]{}, nil, rpcstatus.ResourceExhausted, failed, false},
		"negative units":     {one, client, edge.InflightOptions[*request]{Units: units(math.MinInt)}, nil, rpcstatus.Internal, failed, true},
		"no key":             {one, fails(keyfunc.ErrNoKey), edge.InflightOptions[*request]{}, nil, rpcstatus.Unauthenticated, rejected, false},
		"misconfigured":      {one, fails(fmt.Errorf("%w: %w", keyfunc.ErrMisconfigured, keyfunc.ErrNoKey)), edge.InflightOptions[*request]{}, nil, rpcstatus.Internal, failed, false},
		"another error":      {one, fails(errors.New("bug")), edge.InflightOptions[*request]{}, nil, rpcstatus.Internal, failed, false},
		"a key of a limiter": {one, fails(ratelimit.ErrLimited), edge.InflightOptions[*request]{}, nil, rpcstatus.Internal, failed, false},
		"the client left":    {one, client, edge.InflightOptions[*request]{}, cancelled(), rpcstatus.Canceled, shed, false},
		"the deadline":       {one, client, edge.InflightOptions[*request]{}, expired(), rpcstatus.DeadlineExceeded, shed, false},
		"left out":           {one, fails(ratelimit.SkipLayer), edge.InflightOptions[*request]{}, nil, 0, skipped, false},
		"skipped":            {one, fails(errors.New("bug")), edge.InflightOptions[*request]{Skip: func(*request) bool { return true }}, nil, 0, skipped, false},
	} {
		t.Run(name, func(t *testing.T) {
			i, err := edge.NewInflight(row.limiter(), row.key, row.opts)
			require.NoError(t, err)
			if row.ctx == nil {
				row.ctx = context.Background()
			}
			ctx := edge.Inside(outcome.WatchRefusals(row.ctx))
			permit, watched, why := i.Admit(&request{ctx})
			assert.Equal(t, row.want > 0, outcome.WasRefused(ctx))
			assert.Equal(t, row.want > 0 && !why.Cause.ByClient(), edge.WasRefused(ctx))
			assert.Equal(t, row.stats, i.Stats())
			never := uint64(0)
			if row.want == rpcstatus.ResourceExhausted {
				never = 1
			}
			assert.Equal(t, edge.Stats{Skipped: row.stats.Skipped, Allowed: row.stats.Admitted, Denied: row.stats.Shed, Exceeds: never,
				Rejected: row.stats.Rejected, Failed: row.stats.Failed - never}, i.Counts())
			assert.Equal(t, row.stats.Admitted == 1, watched)
			assert.Equal(t, row.want == 0, why.Err == nil)
			if row.want > 0 {
				answer := why.Answer(row.ctx, rpcstatus.Unauthenticated)
				assert.Equal(t, row.want, answer.Code)
				assert.Equal(t, name == "a blocked key", answer.Message == "the key is blocked: do not retry")
				assert.Equal(t, row.byClient, why.ByClient())
			}
			permit.Release()
		})
	}
}

// Two requests share one permit, each for 1.5 s. A third one finds no room in the queue for
// one, and its refusal has the recent wait. A fourth one waits for MaxWait, and no longer.
func TestAnInflightShedsWithTheRecentWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(inflight.New(1, &inflight.Options[string]{MaxQueue: 1}))
		i := ratelimit.Must(edge.NewInflight(l, client, edge.InflightOptions[*request]{MaxWait: 2 * time.Second}))
		work := func() {
			permit, _, why := i.Admit(&request{t.Context()})
			assert.NoError(t, why.Err)
			time.Sleep(1500 * time.Millisecond)
			permit.Release()
		}
		go work()
		synctest.Wait()
		work()
		for range 2 {
			go work()
			synctest.Wait()
		}
		_, _, why := i.Admit(&request{t.Context()})
		assert.ErrorIs(t, why.Err, ratelimit.ErrLimited)
		assert.Equal(t, 750*time.Millisecond, why.Answer(t.Context(), 0).Wait, "between a wait of 1.5 s and none")
		time.Sleep(time.Minute)

		permit, _, _ := i.Admit(&request{t.Context()})
		start := time.Now()
		_, _, why = i.Admit(&request{t.Context()})
		assert.Equal(t, 2*time.Second, time.Since(start))
		assert.Equal(t, outcome.CauseLimited, why.Cause, "not the request's own deadline")
		permit.Release()
		assert.Equal(t, edge.InflightStats{Admitted: 5, Shed: 2}, i.Stats())
	})
}

func TestNewInflightRefusesWhatCannotWork(t *testing.T) {
	l := ratelimit.Must(inflight.New[string](1, nil))
	o := edge.InflightOptions[*request]{Package: "test", Thing: "request"}
	_, err := edge.NewInflight(nil, client, o)
	assert.EqualError(t, err, "test: NewInflight: l is nil")
	_, err = edge.NewInflight[*request, string](l, nil, o)
	assert.EqualError(t, err, "test: NewInflight: key is nil")
	_, err = edge.NewInflight(ratelimit.Must(inflight.New[*request](1, nil)), func(r *request) (*request, error) { return r, nil }, o)
	assert.ErrorContains(t, err, "test: this limiter's key is the request itself")
	o.MaxWait = -1
	_, err = edge.NewInflight(l, client, o)
	assert.EqualError(t, err, "test: InflightOptions.MaxWait is -1ns, want 0 for none, or more")
	adaptive := ratelimit.Must(inflight.New(1, &inflight.Options[string]{Adaptive: inflight.Learn(nil)}))
	assert.False(t, ratelimit.Must(edge.NewInflight(l, client, edge.InflightOptions[*request]{})).Learns)
	assert.True(t, ratelimit.Must(edge.NewInflight(l, client, edge.InflightOptions[*request]{Judges: true})).Learns)
	assert.True(t, ratelimit.Must(edge.NewInflight(adaptive, client, edge.InflightOptions[*request]{})).Learns)
}

// A limit is lowered while requests are held. If a request can no longer pass within MaxHold, it is held
// for no longer than MaxHold, and not charged. It is answered like a request made at the hold's end.
func TestMaxHoldBoundsAHoldUnderALoweredLimit(t *testing.T) {
	bucket := ratelimit.TokenBucket(ratelimit.PerSecond(2), 2)
	for name, row := range map[string]struct {
		limit, lower ratelimit.Limit
		cost         int
		outcome      edge.Outcome
		ended        time.Duration   // since the first hold began
		waits        []time.Duration // the first request to leave counts the other one before it
		err          error
	}{
		"a token bucket":         {bucket, ratelimit.TokenBucket(ratelimit.PerMinute(1), 2), 1, edge.Denied, 1100 * time.Millisecond, []time.Duration{23200 * time.Millisecond, 83300 * time.Millisecond}, nil},
		"a leaky bucket":         {ratelimit.LeakyBucket(ratelimit.PerSecond(2), 5), ratelimit.LeakyBucket(ratelimit.PerMinute(1), 5), 1, edge.Denied, 1100 * time.Millisecond, []time.Duration{23200 * time.Millisecond, 83300 * time.Millisecond}, nil},
		"a burst below the cost": {bucket, ratelimit.TokenBucket(ratelimit.PerSecond(2), 1), 2, edge.Exceeds, 300 * time.Millisecond, []time.Duration{0}, ratelimit.ErrExceedsLimit},
		"a limit of Blocked":     {bucket, ratelimit.Blocked(), 1, edge.Exceeds, 300 * time.Millisecond, []time.Duration{0, 0}, ratelimit.ErrBlocked},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New[string](row.limit, nil))
				m := newMiddleware(t, ratelimit.Map(l, client), edge.Options[*request]{MaxHold: time.Second, Cost: func(*request) int { return row.cost }})
				for range 2 / row.cost {
					assert.Equal(t, edge.Allowed, m.pass(t.Context()).Outcome)
				}
				start := time.Now()
				held := make(chan edge.Event[*request], 2)
				go func() { held <- m.pass(t.Context()) }()
				time.Sleep(100 * time.Millisecond) // holds that end at one instant leave in any order
				if row.cost == 1 {
					go func() { held <- m.pass(t.Context()) }()
				}
				time.Sleep(200 * time.Millisecond)
				require.NoError(t, l.SetLimit(row.lower))
				var waits []time.Duration
				for range 2 / row.cost {
					e := <-held
					assert.Equal(t, row.outcome, e.Outcome)
					assert.Equal(t, row.lower, e.Decision.Limit)
					assert.ErrorIs(t, e.Err, row.err)
					waits = append(waits, e.Decision.RetryAfter+e.Decision.Delay)
				}
				slices.Sort(waits)
				assert.Equal(t, row.waits, waits)
				assert.Equal(t, row.ended, time.Since(start))
				assert.Zero(t, l.Stats().Waiting)
			})
		})
	}
}
