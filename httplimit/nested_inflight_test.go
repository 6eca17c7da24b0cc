package httplimit_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A limit inside an adaptive one refuses a request. The inner limit may be of any kind, with anything in between.
func TestARefusalInsideIsNoOverloadOfTheLimitAround(t *testing.T) {
	full, permits := newInflight(t, 1, nil, nil)
	held, err := permits.TryAcquire("a", 1)
	require.NoError(t, err)
	defer held.Release()
	spent := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	require.True(t, spent.Allow("a", 1))
	rate := ratelimit.Map(spent, byTenant)
	transport := ratelimit.Must(httplimit.NewTransport(new(backend), rate, &httplimit.TransportOptions{MaxWait: time.Nanosecond, Key: byTenant}))
	byHand := func(r *http.Request) error {
		p, err := permits.Acquire(r.Context(), "a", 1)
		p.Release()
		return err
	}
	// A handler makes limited calls to another server, or does other limited work.
	calls := func(do func(r *http.Request) error) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.Error(t, do(r))
			w.WriteHeader(http.StatusServiceUnavailable)
		})
	}
	unavailable := func(w http.ResponseWriter, _ httplimit.Event) { w.WriteHeader(http.StatusServiceUnavailable) }
	for name, inner := range map[string]http.Handler{
		"in flight":                             full.Wrap(unreachable(t)),
		"in flight, that hides behind a writer": http.TimeoutHandler(full.Wrap(unreachable(t)), time.Minute, ""),
		"rate":                                  middleware(t, rate, httplimit.Options{}).Wrap(unreachable(t)),
		"rate, by a status of its own":          middleware(t, rate, httplimit.Options{OnDenied: unavailable}).Wrap(unreachable(t)),
		"in flight, by hand":                    calls(byHand),
		"transport": calls(func(r *http.Request) error {
			_, err := transport.RoundTrip(r.Clone(r.Context()))
			return err
		}),
		// This request has passed one inner limit, and holds the context made for it.
		"by hand, beside an inner limit": calls(func(r *http.Request) error {
			serve(adaptive(t, ok), r)
			return byHand(r)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			var got []inflight.Outcome
			outer, _ := newInflight(t, 1, nil, &httplimit.InflightOptions{Outcome: func(_ *http.Request, _ int, usual inflight.Outcome) inflight.Outcome {
				got = append(got, usual)
				return usual
			}})
			assert.NotEqual(t, http.StatusOK, serve(outer.Wrap(inner), tenantRequest("a")).Code)
			assert.Equal(t, []inflight.Outcome{inflight.Ignored}, got)
		})
	}
}

// The server deletes a multipart form's files, and finds them in its own request. A middleware
// around this one may watch the request while it is served, and finds it unchanged.
func TestMiddlewareLeavesTheRequestOfItsCallerAlone(t *testing.T) {
	m, _ := newInflight(t, 1, &inflightOptions{Adaptive: inflight.Learn(nil)}, nil)
	limit := ratelimit.Must(httplimit.New(ratelimit.Map(ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil)), byTenant),
		&httplimit.Options{Settle: httplimit.RefundServerErrors}))
	for name, wrap := range map[string]func(http.Handler) http.Handler{"in flight": m.Wrap, "settling": limit.Wrap} {
		t.Run(name, func(t *testing.T) {
			serving, seen := make(chan struct{}), make(chan struct{})
			h := wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				close(serving)
				<-seen
				_, _ = io.ReadAll(r.Body)
			}))
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
			r.Header.Set("Tenant", "a")
			before, done := *r, make(chan struct{})
			go func() {
				defer close(done)
				h.ServeHTTP(httptest.NewRecorder(), r)
			}()
			<-serving
			assert.Equal(t, before.Context(), r.Context())
			assert.Equal(t, before.Body, r.Body)
			close(seen)
			<-done
			assert.Equal(t, before, *r)
		})
	}
}

// An inner handler learns a request's route, and its form with files
// for the server to remove. Both are visible around the limit.
func TestRouteAndFormAreHandedBack(t *testing.T) {
	m, _ := newInflight(t, 1, &inflightOptions{Adaptive: inflight.Learn(nil)}, nil)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /items/{id}", func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, r.ParseMultipartForm(1))
	})
	r := httptest.NewRequest(http.MethodPost, "/items/1", strings.NewReader("--x\r\nContent-Disposition: form-data; name=a\r\n\r\nb\r\n--x--\r\n"))
	r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
	r.Header.Set("Tenant", "a")
	m.Wrap(mux).ServeHTTP(httptest.NewRecorder(), r)
	assert.Equal(t, "POST /items/{id}", r.Pattern)
	assert.Equal(t, []string{"b"}, r.Form["a"])
	assert.Equal(t, []string{"b"}, r.PostForm["a"])
	assert.NotNil(t, r.MultipartForm)
}

func TestInflightLeavesTheRequestToTheServer(t *testing.T) {
	m, _ := newInflight(t, 1, nil, nil)
	r := tenantRequest("a")
	serve(m.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, got *http.Request) { assert.Same(t, r, got) })), r)
}
