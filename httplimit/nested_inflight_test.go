package httplimit_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// One adaptive limit for the backend, and a limit inside of it that refuses most requests of one tenant: for any kind of inner limit, and
// anything in between.
func TestARefusalInsideIsNoOverloadOfTheLimitAround(t *testing.T) {
	backend := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(20 * time.Millisecond) })
	perSecond := ratelimit.TokenBucket(ratelimit.PerSecond(50), 5)
	// A handler with limited calls to another server, or other limited work.
	calls := func(do func(r *http.Request) error) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			backend.ServeHTTP(w, r)
			if err := do(r); err != nil {
				http.Error(w, "", http.StatusServiceUnavailable)
			}
		})
	}
	for name, inner := range map[string]func(*testing.T) http.Handler{
		"in flight": func(t *testing.T) http.Handler {
			m, _ := newInflight(t, 2, nil, nil)
			return m.Wrap(backend)
		},
		"in flight, that hides behind a writer": func(t *testing.T) http.Handler {
			m, _ := newInflight(t, 2, nil, nil)
			return http.TimeoutHandler(m.Wrap(backend), time.Minute, "")
		},
		"rate": func(t *testing.T) http.Handler {
			l := ratelimit.Must(ratelimit.New[string](perSecond, nil))
			return middleware(t, ratelimit.Map(l, byTenant), httplimit.Options{}).Wrap(backend)
		},
		"rate, by a status of its own": func(t *testing.T) http.Handler {
			l := ratelimit.Must(ratelimit.New[string](perSecond, nil))
			return middleware(t, ratelimit.Map(l, byTenant), httplimit.Options{OnDenied: func(w http.ResponseWriter, _ httplimit.Event) {
				w.WriteHeader(http.StatusServiceUnavailable)
			}}).Wrap(backend)
		},
		"in flight, by hand": func(t *testing.T) http.Handler {
			_, l := newInflight(t, 2, nil, nil)
			return calls(func(r *http.Request) error {
				p, err := l.Acquire(r.Context(), r.Header.Get("Tenant"), 1)
				defer p.Release()
				time.Sleep(20 * time.Millisecond)
				return err
			})
		},
		"transport": func(t *testing.T) http.Handler {
			l := ratelimit.Must(ratelimit.New[string](perSecond, nil))
			limited := ratelimit.Must(ratelimit.All(ratelimit.By(l, byTenant)))
			tr := ratelimit.Must(httplimit.NewTransport(roundTripper(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
			}), limited, &httplimit.TransportOptions{MaxWait: time.Nanosecond, Key: func(r *http.Request) (string, error) { return r.Header.Get("Tenant"), nil }}))
			return calls(func(r *http.Request) error {
				_, err := tr.RoundTrip(r.Clone(r.Context()))
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testNoisyTenant(t, inner(t)) })
		})
	}
}

// testNoisyTenant puts an adaptive limit around a handler to which one tenant sends far more than it lets
// in, and checks that another one does not notice.
func testNoisyTenant(t *testing.T, inner http.Handler) {
	shared := ratelimit.Must(inflight.New(100, &inflight.Options[string]{Total: 100, Shared: inflight.Learn(&inflight.LearnOptions{Start: 50})}))
	h := ratelimit.Must(httplimit.NewInflight(shared, byTenant, nil)).Wrap(inner)
	var shed, served atomic.Int32
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		go func() {
			if serve(h, tenantRequest("noisy")).Code != 200 {
				shed.Add(1)
			}
		}()
		if time.Until(end)%(50*time.Millisecond) == 0 {
			go func() {
				if serve(h, tenantRequest("quiet")).Code == 200 {
					served.Add(1)
				}
			}()
		}
	}
	time.Sleep(time.Minute)
	assert.Greater(t, shed.Load(), int32(4000))
	assert.EqualValues(t, 160, served.Load())
}

// A multipart form's files are deleted by the server, which looks at its own request.
// A middleware around this one may watch the request while it is served, and finds it as it was.
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

// Facts that an inner handler learns about a request are visible around it: the route, and the form, whose files the server removes.
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

// A handler that is refused by one limit after it has passed another one: the request holds the context that was made
// for the latter.
func TestARefusalBesideAnInnerLimitIsNoOverloadEither(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dropped []bool
		outer, _ := newInflight(t, 1000, &inflightOptions{Adaptive: func() inflight.Algorithm { return learned{&dropped} }}, nil)
		inner, _ := newInflight(t, 1000, &inflightOptions{Adaptive: inflight.Learn(nil)}, nil)
		_, full := newInflight(t, 1, nil, nil)
		_, err := full.TryAcquire("a", 1)
		require.NoError(t, err)
		passed := inner.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(10 * time.Millisecond) }))
		h := outer.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			passed.ServeHTTP(w, r)
			if _, err := full.Acquire(ctx, "a", 1); err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		for range 100 {
			assert.Equal(t, http.StatusServiceUnavailable, serve(h, tenantRequest("a")).Code)
		}
		assert.Empty(t, dropped, "nothing is learnt")
	})
}
