package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Package edge tests each error's outcome.
func TestAnswersToRequestsThatCouldNotBeDecided(t *testing.T) {
	const reduced = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	for name, row := range map[string]struct {
		err      error
		status   int
		kind     string
		retry    string
		open     int // the status with FailOpen
		rejected bool
	}{
		"no key":                 {keyfunc.ErrNoKey, 400, "about:blank", "", 400, true},
		"pattern before routing": {errors.Join(keyfunc.ErrMisconfigured, keyfunc.ErrNoKey), 500, "about:blank", "", 500, false},
		"cost below zero":        {ratelimit.ErrNegativeCost, 500, "about:blank", "", 500, false},
		"full table":             {ratelimit.ErrTableFull, 503, reduced, "1", 503, false},
		"store down":             {ratelimit.ErrUnavailable, 503, reduced, "1", 200, false},
		"another error":          {errors.New("broken"), 500, "about:blank", "", 200, false},
	} {
		t.Run(name, func(t *testing.T) {
			var seen httplimit.Event
			opts := httplimit.Options{OnDecision: func(e httplimit.Event) { seen = e }}
			resp := get(middleware(t, &stub{err: row.err}, opts).Wrap(ok))
			assert.Equal(t, row.status, resp.StatusCode)
			assert.Equal(t, row.retry, resp.Header.Get("Retry-After"))
			assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
			assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
			assert.Contains(t, body(t, resp), `"type":"`+row.kind+`"`)
			want := httplimit.OutcomeFailed
			if row.rejected {
				want = httplimit.OutcomeRejected
			}
			assert.Equal(t, want, seen.Outcome)

			opts.FailOpen = true
			assert.Equal(t, row.open, get(middleware(t, &stub{err: row.err}, opts).Wrap(ok)).StatusCode)
		})
	}
}

func TestRetryAfterOfAStoreThatIsDownIsItsOwn(t *testing.T) {
	limiter := &stub{err: ratelimit.ErrUnavailable, decision: ratelimit.Decision{RetryAfter: 2500 * time.Millisecond}}
	assert.Equal(t, "3", get(middleware(t, limiter, httplimit.Options{}).Wrap(ok)).Header.Get("Retry-After"))
}

func TestPatternBeforeRoutingIsTheServersMistake(t *testing.T) {
	l := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerMinute(1)), nil))
	for _, key := range []func(*http.Request) (string, error){httplimit.Pattern, keyfunc.Optional(httplimit.PathValue("id"))} {
		mux := http.NewServeMux()
		mux.Handle("GET /items/{id}", ok)
		outside := middleware(t, ratelimit.Map(l, key), httplimit.Options{FailOpen: true}).Wrap(mux)
		assert.Equal(t, http.StatusInternalServerError, send(outside, httptest.NewRequest("GET", "/items/1", nil)).StatusCode)
	}
}

func TestDegradedDecisionsAreShown(t *testing.T) {
	d := ratelimit.Decision{Allowed: true, Limit: ratelimit.FixedWindow(ratelimit.PerMinute(5)), Degraded: true}
	limiter := &stub{decision: d}
	m := middleware(t, limiter, httplimit.Options{DegradedHeader: "x-degraded"})
	h := m.Wrap(ok)
	assert.Equal(t, "true", get(h).Header.Get("X-Degraded"))
	limiter.decision.Allowed = false
	assert.Equal(t, "true", get(h).Header.Get("X-Degraded"))
	limiter.decision.Degraded = false
	assert.Empty(t, get(h).Header.Values("X-Degraded"))
	assert.Equal(t, httplimit.Stats{Allowed: 1, Denied: 2, Degraded: 2}, m.Stats())

	for _, opts := range []httplimit.Options{{}, {DegradedHeader: "X-Degraded", Shadow: true}} {
		m = middleware(t, &stub{decision: d}, opts)
		assert.Empty(t, get(m.Wrap(ok)).Header.Values("X-Degraded"))
		assert.Equal(t, uint64(1), m.Stats().Degraded)
	}
}

// remote is a stub with Reserve. It records settlements.
type remote struct {
	stub
	settled []int
}

func (r *remote) Reserve(ctx context.Context, q *http.Request, cost int, _ time.Duration) (*ratelimit.Reservation, error) {
	d, err := r.Take(ctx, q, cost)
	return ratelimit.NewReservation(d, func(actual int) error {
		r.settled = append(r.settled, actual)
		return nil
	}), err
}

func TestPanicsOfOptionsSettleTheCharge(t *testing.T) {
	boom := func() { panic("boom") }
	for name, row := range map[string]struct {
		opts    httplimit.Options
		settled int
	}{
		"OnDecision, before the handler: nothing is charged": {httplimit.Options{
			Settle: httplimit.ChargeOnly(200), OnDecision: func(httplimit.Event) { boom() }}, 0},
		"Settle, after the handler: the cost stays charged": {httplimit.Options{
			Settle: func(*http.Request, int, int) int { boom(); return 0 }}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			limiter := &remote{stub: stub{decision: ratelimit.Decision{Allowed: true}}}
			assert.PanicsWithValue(t, "boom", func() { get(middleware(t, limiter, row.opts).Wrap(ok)) })
			assert.Equal(t, []int{row.settled}, limiter.settled)
		})
	}
}

func TestShadowModeSettlesNothingThatWasDenied(t *testing.T) {
	m := middleware(t, limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerMinute(1))), httplimit.Options{
		Shadow: true, Settle: func(r *http.Request, _, cost int) int {
			assert.Equal(t, "/first", r.URL.Path)
			return cost
		},
	})
	h := m.Wrap(ok)
	send(h, httptest.NewRequest("GET", "/first", nil))
	send(h, httptest.NewRequest("GET", "/denied", nil))
}

func TestShadowModeHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := middleware(t, limiterOf(t, nil, ratelimit.LeakyBucket(ratelimit.PerSecond(1), 5)), httplimit.Options{Shadow: true})
		begin := time.Now()
		for range 3 {
			get(m.Wrap(ok))
		}
		assert.Zero(t, time.Since(begin))
	})
}

func TestRequestIsNotHeldPastTheServersWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := limiterOf(t, nil, ratelimit.LeakyBucket(ratelimit.PerSecond(1), 10))
		var served atomic.Int32
		m := middleware(t, limiter, httplimit.Options{Settle: httplimit.RefundServerErrors})
		h := m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
		r := withContextValue(httptest.NewRequest("GET", "/", nil), http.ServerContextKey, &http.Server{WriteTimeout: 2 * time.Second})
		for range 3 {
			go send(h, r)
		}
		synctest.Wait()
		begin := time.Now()
		resp := send(h, r)
		assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		assert.Equal(t, "2", resp.Header.Get("Retry-After"), "the two before it, which are held, and no more")
		assert.NotEmpty(t, resp.Header.Get("RateLimit"))
		assert.Zero(t, time.Since(begin), "at once")
		call := r.Clone(r.Context())
		call.Method, call.ProtoMajor = "POST", 2
		call.Header.Set("Content-Type", "application/grpc")
		assert.Equal(t, "8", send(h, call).Header.Get("Grpc-Status"), "and no call is told that it was cancelled")
		time.Sleep(time.Minute)
		assert.Equal(t, int32(2), served.Load())
	})
}

// deadlines is a writer that records its deadlines, counted from the beginning.
type deadlines struct {
	*httptest.ResponseRecorder
	begin       time.Time
	read, write []time.Duration
}

func (w *deadlines) SetReadDeadline(at time.Time) error {
	w.read = append(w.read, at.Sub(w.begin))
	return nil
}

func (w *deadlines) SetWriteDeadline(at time.Time) error {
	w.write = append(w.write, at.Sub(w.begin))
	return nil
}

// The server's timeouts start again after the hold. Before it, they are moved behind the hold. Here the hold lasts longer than
// its delay at first, because the limit is lowered.
func TestAHoldRestartsTheServersTimeoutsBeforeAndAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), nil))
		h := middleware(t, ratelimit.Map(l, everyone), httplimit.Options{MaxHold: time.Hour}).Wrap(ok)
		server := &http.Server{ReadTimeout: 5 * time.Second, WriteTimeout: 9 * time.Second}
		r := withContextValue(httptest.NewRequest("GET", "/", nil), http.ServerContextKey, server)
		send(h, r)
		w, done := &deadlines{ResponseRecorder: httptest.NewRecorder(), begin: time.Now()}, make(chan struct{})
		go func() {
			defer close(done)
			h.ServeHTTP(w, r)
		}()
		synctest.Wait()
		require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.Per(1, 3*time.Second), 1)))
		<-done
		assert.Equal(t, http.StatusOK, w.Code)
		held := time.Since(w.begin)
		assert.Greater(t, held, time.Second)
		assert.Equal(t, []time.Duration{6 * time.Second, held + 5*time.Second}, w.read)
		assert.Equal(t, []time.Duration{10 * time.Second, held + 9*time.Second}, w.write)
	})
}

// A client that has filled the queue is at fault for the 503. So an outer Settle sees a client error.
func TestARequestThatCannotBeHeldIsTheClientsFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var statuses []int
		outer := middleware(t, limiterOf(t, nil, ratelimit.Unlimited()), httplimit.Options{Settle: func(_ *http.Request, status, cost int) int {
			statuses = append(statuses, status)
			return cost
		}})
		h := outer.Wrap(middleware(t, limiterOf(t, nil, ratelimit.LeakyBucket(ratelimit.PerSecond(1), 10)), httplimit.Options{}).Wrap(ok))
		r := withContextValue(httptest.NewRequest("GET", "/", nil), http.ServerContextKey, &http.Server{WriteTimeout: time.Second})
		assert.Equal(t, http.StatusOK, send(h, r).StatusCode)
		assert.Equal(t, http.StatusServiceUnavailable, send(h, r).StatusCode)
		assert.Equal(t, []int{http.StatusOK, http.StatusBadRequest}, statuses)
	})
}

func TestPanicOfTheZeroMiddlewareNamesNew(t *testing.T) {
	for _, m := range []*httplimit.Middleware{nil, new(httplimit.Middleware)} {
		assert.PanicsWithError(t, "httplimit: this Middleware is nil or zero: make one with New, PerIP or PerKey", func() { m.Wrap(ok) })
	}
	m := middleware(t, new(stub), httplimit.Options{})
	assert.PanicsWithError(t, "httplimit: Middleware.Wrap: next is nil", func() { m.Wrap(nil) })
	inflight := new(httplimit.Inflight[string])
	assert.PanicsWithError(t, "httplimit: this Inflight is nil or zero: make one with NewInflight", func() { inflight.Wrap(ok) })
	assert.Zero(t, inflight.Stats())
}

func TestPerIPIsOneLimitForEachAddress(t *testing.T) {
	h := ratelimit.Must(httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerHour(1), 2).Named("ip"), nil)).Wrap(ok)
	from := func(addr string) *http.Response {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(addr), 1).String()
		return send(h, r)
	}
	for _, addr := range []string{"192.0.2.1", "192.0.2.2", "2001:db8::1"} {
		resp := from(addr)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Equal(t, `"ip";q=2;w=7200;weir-refill`, resp.Header.Get("RateLimit-Policy"))
		assert.Equal(t, http.StatusOK, from(addr).StatusCode)
		assert.Equal(t, http.StatusTooManyRequests, from(addr).StatusCode)
	}
	assert.Equal(t, http.StatusTooManyRequests, from("2001:db8::2").StatusCode, "of the same /64")

	_, err := httplimit.PerIP(ratelimit.Limit{}, nil)
	assert.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	_, err = httplimit.PerIP(ratelimit.Unlimited(), &httplimit.Options{Jitter: -1})
	assert.ErrorContains(t, err, "Options.Jitter")
}
