package httplimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/keyfunc"
)

type inflightOptions = inflight.Options[string]

func byTenant(r *http.Request) (string, error) {
	switch tenant := r.Header.Get("Tenant"); tenant {
	case "":
		return "", keyfunc.ErrNoKey
	case "none":
		return "", ratelimit.SkipLayer
	case "broken":
		return "", errors.New("database is down")
	default:
		return tenant, nil
	}
}

func newInflight(t *testing.T, limit int, o *inflightOptions, opts *httplimit.InflightOptions) (*httplimit.Inflight[string], *inflight.Limiter[string]) {
	t.Helper()
	l := ratelimit.Must(inflight.New(limit, o))
	return ratelimit.Must(httplimit.NewInflight(l, byTenant, opts)), l
}

func tenantRequest(tenant string) *http.Request {
	r := with("Tenant: " + tenant)
	return r
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestInflightShedsWithReducedCapacity(t *testing.T) {
	m, l := newInflight(t, 1, nil, nil)
	var inner *httptest.ResponseRecorder
	h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner = serve(m.Wrap(http.NotFoundHandler()), tenantRequest("a"))
		w.WriteHeader(http.StatusTeapot)
	}))
	assert.Equal(t, http.StatusTeapot, serve(h, tenantRequest("a")).Code)
	assert.Equal(t, http.StatusServiceUnavailable, inner.Code)
	assert.Equal(t, "1", inner.Header().Get("Retry-After"))
	assert.Equal(t, "no-store", inner.Header().Get("Cache-Control"))
	assert.Equal(t, "application/problem+json", inner.Header().Get("Content-Type"))
	var problem struct {
		Type   string
		Status int
	}
	require.NoError(t, json.Unmarshal(inner.Body.Bytes(), &problem))
	assert.Equal(t, "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity", problem.Type)
	assert.Equal(t, 503, problem.Status)
	assert.Equal(t, http.StatusTeapot, serve(h, tenantRequest("a")).Code, "the permit is back")
	s, _ := l.Stats("a")
	assert.Zero(t, s.InFlight)
	assert.Equal(t, httplimit.InflightStats{Admitted: 2, Shed: 2}, m.Stats())
}

// learned is an algorithm that records whether each of its windows had drops.
type learned struct{ dropped *[]bool }

func (l learned) Limit() int { return 1000 }
func (l learned) Update(s inflight.Sample) int {
	*l.dropped = append(*l.dropped, s.Dropped)
	return 1000
}

func TestInflightReportsOutcomesToAdaptiveLimits(t *testing.T) {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	late, cancel := context.WithTimeout(context.Background(), -1)
	defer cancel()
	panics := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("handler") })
	status := func(code int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
	}
	for name, row := range map[string]struct {
		h    http.Handler
		ctx  context.Context
		want []bool
	}{
		"success":             {status(200), context.Background(), []bool{false}},
		"client's error":      {status(404), context.Background(), []bool{false}},
		"server's error":      {status(500), context.Background(), []bool{true}}, // a drop, because all fail after some time
		"deadline of another": {status(504), context.Background(), []bool{true}},
		"overload":            {status(503), context.Background(), []bool{true}},
		"panic":               {panics, context.Background(), []bool{true}},
		"deadline":            {status(200), late, []bool{true}},
		"client that left":    {status(200), canceled, []bool{true}}, // a drop, because all clients leave
		"connection taken":    {status(101), context.Background(), nil},
		"nothing was written": {http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), context.Background(), []bool{false}},
	} {
		bubble(t, name, func(t *testing.T) {
			var got []bool
			m, _ := newInflight(t, 1000, &inflightOptions{Adaptive: func() inflight.Algorithm { return learned{&got} }}, nil)
			h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(10 * time.Millisecond)
				row.h.ServeHTTP(w, r.WithContext(row.ctx))
			}))
			if row.ctx != context.Background() { // the request's own context has ended by then
				h = m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(10 * time.Millisecond) }))
			}
			for range 21 {
				r := tenantRequest("a")
				ctx, end := context.WithCancelCause(r.Context())
				if row.ctx == late {
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(r.Context(), 5*time.Millisecond)
					defer stop()
				} else if row.ctx == canceled {
					time.AfterFunc(5*time.Millisecond, func() { end(nil) })
				}
				func() {
					defer func() { _ = recover() }()
					serve(h, r.WithContext(ctx))
				}()
				end(nil)
			}
			assert.Equal(t, row.want, got)
		})
	}
}

func TestInflightSkipAndOnRefused(t *testing.T) {
	m, l := newInflight(t, 1, nil, &httplimit.InflightOptions{
		Skip:      func(r *http.Request) bool { return r.URL.Path == "/healthz" },
		OnRefused: func(w http.ResponseWriter, _ *http.Request, err error) { http.Error(w, err.Error(), 529) },
	})
	held, err := l.TryAcquire("a", 1)
	require.NoError(t, err)
	defer held.Release()
	h := m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r := tenantRequest("a")
	r.URL.Path = "/healthz"
	assert.Equal(t, 200, serve(h, r).Code)
	w := serve(h, tenantRequest("a"))
	assert.Equal(t, 529, w.Code)
	assert.Equal(t, "1", w.Header().Get("Retry-After"))
	assert.Equal(t, httplimit.InflightStats{Skipped: 1, Shed: 1}, m.Stats())
}

func TestNewInflightRefusesOptionsThatCannotWork(t *testing.T) {
	_, err := httplimit.NewInflight(nil, byTenant, nil)
	assert.EqualError(t, err, "httplimit: NewInflight: l is nil")
	_, err = httplimit.NewInflight(ratelimit.Must(inflight.New[string](1, nil)), byTenant, &httplimit.InflightOptions{MaxWait: -1})
	assert.ErrorContains(t, err, "httplimit: InflightOptions.MaxWait is -1ns")
}

// ---- the client side ----

func TestATransportGivesThePermitBackIfOutcomePanics(t *testing.T) {
	for name, answer := range map[string]func(r *http.Request) (*http.Response, error){
		"without a response": func(*http.Request) (*http.Response, error) { return nil, errors.New("down") },
		"without a body": func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
		},
		"with a body": func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("x")), Request: r}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := ratelimit.Must(inflight.New[string](1, nil))
			transport := ratelimit.Must(httplimit.NewTransport(roundTripper(answer), nil, &httplimit.TransportOptions{
				Inflight: l,
				Outcome:  func(*http.Request, *http.Response, error, inflight.Outcome) inflight.Outcome { panic("outcome") },
			}))
			assert.PanicsWithValue(t, "outcome", func() {
				resp, _ := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "http://a/", nil))
				_, _ = io.ReadAll(resp.Body)
			})
			_, err := l.TryAcquire("http://a", 1)
			assert.NoError(t, err)
		})
	}
}

func TestPermitsOfATransportAreThoseOfAHost(t *testing.T) {
	base := roundTrip(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("x"))}, nil
	})
	l := ratelimit.Must(inflight.New[string](1, nil))
	transport := ratelimit.Must(httplimit.NewTransport(base, nil, &httplimit.TransportOptions{Inflight: l}))
	send := func(url string) (*http.Response, error) {
		return transport.RoundTrip(httptest.NewRequest("GET", url, nil))
	}
	first, err := send("http://a.example/1")
	require.NoError(t, err)
	_, err = send("http://A.example:80/2")
	assert.ErrorIs(t, err, ratelimit.ErrLimited)
	_, err = send("http://b.example/")
	assert.NoError(t, err)
	_ = first.Body.Close()
	_, err = send("http://a.example/3")
	assert.NoError(t, err)
}

func TestAnAdaptiveLimitOfATransportLearnsFromOutcomes(t *testing.T) {
	ok := httptest.NewRequest("GET", "/", nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	gone := ok.WithContext(ctx)
	status := func(code int) *http.Response { return &http.Response{StatusCode: code} }
	assert.Equal(t, inflight.Success, httplimit.ResponseOutcome(ok, status(404), nil))
	assert.Equal(t, inflight.Dropped, httplimit.ResponseOutcome(ok, status(429), nil))
	assert.Equal(t, inflight.Dropped, httplimit.ResponseOutcome(ok, status(503), nil))
	retries := &http.Response{StatusCode: 503, Header: fields("Retry-After: 1")}
	assert.Equal(t, inflight.Dropped, httplimit.ResponseOutcome(ok, retries, nil), "a Retry-After is no evidence of overload")
	assert.Equal(t, inflight.Dropped, httplimit.ResponseOutcome(ok, nil, context.DeadlineExceeded))
	assert.Equal(t, inflight.Cancelled, httplimit.ResponseOutcome(ok, nil, io.ErrUnexpectedEOF))
	assert.Equal(t, inflight.Cancelled, httplimit.ResponseOutcome(ok, status(500), nil))
	assert.Equal(t, inflight.Dropped, httplimit.ResponseOutcome(ok, status(504), nil))
	assert.Equal(t, inflight.Cancelled, httplimit.ResponseOutcome(gone, status(200), nil))
	assert.Equal(t, inflight.Cancelled, httplimit.ResponseOutcome(gone, nil, context.Canceled))
	assert.Equal(t, inflight.Ignored, httplimit.ResponseOutcome(ok, nil, ratelimit.ErrLimited), "refused by a limiter of ours")

	late, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	assert.Equal(t, inflight.Cancelled, httplimit.ResponseOutcome(ok.WithContext(late), nil, context.DeadlineExceeded), "the caller has chosen that deadline")
	assert.Equal(t, inflight.Cancelled, httplimit.ResponseOutcome(ok.WithContext(late), status(503), nil))
}

// An http.Client's Timeout is its caller's patience. An http.Transport's Timeout bounds the backend.
func TestATimeoutOfTheClientIsCancelledAndOneOfTheTransportIsDropped(t *testing.T) {
	block := make(chan struct{})
	server := started(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-block }))
	defer close(block)
	for want, client := range map[inflight.Outcome]*http.Client{
		inflight.Cancelled: {Timeout: 20 * time.Millisecond, Transport: new(http.Transport)},
		inflight.Dropped:   {Transport: &http.Transport{ResponseHeaderTimeout: 20 * time.Millisecond}},
	} {
		learnt := make(chan inflight.Outcome, 1)
		transport := ratelimit.Must(httplimit.NewTransport(client.Transport, nil, &httplimit.TransportOptions{
			Inflight: learning(t),
			Outcome: func(_ *http.Request, _ *http.Response, _ error, usual inflight.Outcome) inflight.Outcome {
				learnt <- usual
				return usual
			},
		}))
		client.Transport = transport
		_, err := client.Get(server.URL)
		require.Error(t, err)
		assert.Equal(t, want, <-learnt)
	}
}

// learning returns an adaptive limit for each host.
func learning(t *testing.T) *inflight.Limiter[string] {
	t.Helper()
	return ratelimit.Must(inflight.New(1000, &inflightOptions{Adaptive: inflight.Learn(nil), MaxQueue: 1000}))
}

func TestATransportCountsRequestsWithPermitsAlone(t *testing.T) {
	inside := make(chan httplimit.TransportStats, 1)
	var transport *httplimit.Transport
	base := roundTrip(func(*http.Request) (*http.Response, error) {
		inside <- transport.Stats()
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("x"))}, nil
	})
	transport = ratelimit.Must(httplimit.NewTransport(base, nil, &httplimit.TransportOptions{Inflight: ratelimit.Must(inflight.New[string](1, nil))}))
	resp, err := transport.RoundTrip(httptest.NewRequest("GET", "http://a.example", nil))
	require.NoError(t, err)
	assert.Equal(t, httplimit.TransportStats{Sent: 1, InFlight: 1}, <-inside)
	_, err = transport.RoundTrip(httptest.NewRequest("GET", "http://a.example", nil))
	require.ErrorIs(t, err, ratelimit.ErrLimited)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, httplimit.TransportStats{Sent: 1, Failed: 1}, transport.Stats())
	transport.Reset("http://a.example") // no limit was announced
}

func TestOptionsOfATransportThatNeedALimiterOrPermits(t *testing.T) {
	permits := learning(t)
	for name, o := range map[string]*httplimit.TransportOptions{
		"MaxRetries":  {Inflight: permits, MaxRetries: 1},
		"MaxInFlight": {Inflight: permits, MaxInFlight: 1},
		"Cost":        {Inflight: permits, Cost: func(*http.Request) int { return 1 }},
		"Advice":      {Inflight: permits, Advice: func(*http.Response) (a httplimit.Advice, known bool) { return a, true }},
	} {
		_, err := httplimit.NewTransport(nil, nil, o)
		assert.ErrorContains(t, err, "without a limiter only Key, MaxWait, Inflight and Outcome", name)
	}
	_, err := httplimit.NewTransport(nil, nil, nil)
	assert.ErrorContains(t, err, "NewTransport: limiter is nil")
	_, err = httplimit.NewTransport(nil, reserver(t, ratelimit.Unlimited()), &httplimit.TransportOptions{
		Outcome: func(_ *http.Request, _ *http.Response, _ error, usual inflight.Outcome) inflight.Outcome {
			return usual
		},
	})
	assert.ErrorContains(t, err, "TransportOptions.Outcome is for an adaptive limit, and Inflight is not set")
}

// The wait for a permit is a part of MaxWait. After a long wait for it, a request does not wait as long again for its turn.
func TestTheWaitForAPermitIsAPartOfMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTrip(func(*http.Request) (*http.Response, error) {
			time.Sleep(8 * time.Second)
			return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
		})
		transport := ratelimit.Must(httplimit.NewTransport(base, reserver(t, ratelimit.TokenBucket(ratelimit.Per(1, 15*time.Second), 1)), &httplimit.TransportOptions{
			Inflight: ratelimit.Must(inflight.New(1, &inflightOptions{MaxQueue: 10})), MaxWait: 10 * time.Second,
		}))
		send := func() error {
			_, err := transport.RoundTrip(httptest.NewRequestWithContext(t.Context(), "GET", "http://a.example", nil))
			return err
		}
		first := make(chan error)
		go func() { first <- send() }()
		synctest.Wait()
		start := time.Now()
		require.ErrorIs(t, send(), ratelimit.ErrLimited, "8 s for the permit, and 7 for its turn")
		assert.LessOrEqual(t, time.Since(start), 10*time.Second)
		require.NoError(t, <-first)
	})
}

// idler is a RoundTripper with CloseIdleConnections.
type idler struct {
	http.RoundTripper
	closed int
}

func (i *idler) CloseIdleConnections() { i.closed++ }

func TestIdleConnectionsOfTheBaseAreClosed(t *testing.T) {
	base := new(idler)
	limited := ratelimit.Must(httplimit.NewTransport(base, nil, &httplimit.TransportOptions{Inflight: learning(t)}))
	paced := ratelimit.Must(httplimit.NewTransport(limited, reserver(t, ratelimit.Unlimited()), nil))
	(&http.Client{Transport: limited}).CloseIdleConnections()
	assert.Equal(t, 1, base.closed)
	(&http.Client{Transport: paced}).CloseIdleConnections()
	assert.Equal(t, 2, base.closed)
	limited = ratelimit.Must(httplimit.NewTransport(new(backend), nil, &httplimit.TransportOptions{Inflight: learning(t)}))
	(&http.Client{Transport: limited}).CloseIdleConnections()
}

// A slow lookup of the key is a failure, not a lack of room.
func TestInflightReportsAKeyThatCouldNotBeLookedUp(t *testing.T) {
	l := ratelimit.Must(inflight.New[string](1, nil))
	m := ratelimit.Must(httplimit.NewInflight(l, func(*http.Request) (string, error) {
		return "", fmt.Errorf("lookup: %w", context.DeadlineExceeded)
	}, nil))
	w := send(m.Wrap(unreachable(t)), with())
	assert.Equal(t, 500, w.StatusCode)
	assert.Equal(t, httplimit.InflightStats{Failed: 1}, m.Stats())
}

// An event stream lasts as long as its client listens. So its duration is no evidence about the backend.
func TestAnEventStreamIsIgnored(t *testing.T) {
	for contentType, want := range map[string]inflight.Outcome{
		"text/event-stream": inflight.Ignored, "Text/Event-Stream; charset=utf-8": inflight.Ignored, "text/html": inflight.Success, "": inflight.Success,
	} {
		var got []inflight.Outcome
		m, _ := newInflight(t, 1, nil, &httplimit.InflightOptions{Outcome: func(_ *http.Request, _ int, usual inflight.Outcome) inflight.Outcome {
			got = append(got, usual)
			return usual
		}})
		h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			_, _ = w.Write([]byte("data: 1\n\n"))
		}))
		h.ServeHTTP(httptest.NewRecorder(), tenantRequest("a"))
		assert.Equal(t, []inflight.Outcome{want}, got, contentType)
	}
}

func TestAPermitComesBackAfterAPanic(t *testing.T) {
	learnt := &inflightOptions{Adaptive: inflight.Learn(nil)}
	fails := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		panic("handler")
	})
	outcome := &httplimit.InflightOptions{Outcome: func(*http.Request, int, inflight.Outcome) inflight.Outcome { panic("outcome") }}
	for name, row := range map[string]struct {
		o    *inflightOptions
		opts *httplimit.InflightOptions
		h    http.Handler
	}{
		"handler, fixed": {nil, nil, fails}, "handler, learnt": {learnt, nil, fails}, "outcome": {learnt, outcome, http.NotFoundHandler()},
	} {
		m, l := newInflight(t, 5, row.o, row.opts)
		for _, w := range []http.ResponseWriter{httptest.NewRecorder(), hijackable{httptest.NewRecorder(), nil}} {
			assert.Panics(t, func() { m.Wrap(row.h).ServeHTTP(w, tenantRequest("acme")) }, name)
			assert.Zero(t, l.Totals().InFlight, "%s, %T", name, w)
		}
	}
}

// A response is incomplete after a panic, even if its status was a success.
func TestAPanicAfterASuccessIsNoSuccess(t *testing.T) {
	var got []any
	m, _ := newInflight(t, 5, nil, &httplimit.InflightOptions{Outcome: func(_ *http.Request, status int, usual inflight.Outcome) inflight.Outcome {
		got = append(got, status, usual)
		return usual
	}})
	assert.Panics(t, func() {
		serve(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			panic("handler")
		})), tenantRequest("acme"))
	})
	assert.Equal(t, []any{http.StatusOK, inflight.Cancelled}, got)
}
