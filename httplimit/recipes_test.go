package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
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

// This file has the code about HTTP from docs/recipes.md, and simulates it.

// An API limits each route, and the whole account.
func nestedTransports(base http.RoundTripper) (http.RoundTripper, error) {
	account := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(50), 1).Named("account"), nil))
	perRoute := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(1), 1).Named("route"), nil))
	route := func(r *http.Request) (string, error) { return r.URL.Path, nil }
	inner, err := httplimit.NewTransport(base, ratelimit.Map(account, httplimit.TargetHost), nil)
	if err != nil {
		return nil, err
	}
	return httplimit.NewTransport(inner, ratelimit.Map(perRoute, route), &httplimit.TransportOptions{
		Key: route, // a route that must wait holds up no other
	})
}

func TestNestedTransportsKeepTheLimitsOfAccountAndRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(50), 1), nil))
		routes := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(1), 2), nil)) // one request waits for the account
		var served, refused atomic.Int32
		tr, err := nestedTransports(roundTripper(func(r *http.Request) (*http.Response, error) {
			if !account.Allow("", 1) || !routes.Allow(r.URL.Path, 1) {
				refused.Add(1)
				return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}, Body: http.NoBody}, nil
			}
			served.Add(1)
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		}))
		require.NoError(t, err)
		var wg sync.WaitGroup
		for route := range 40 {
			wg.Go(func() {
				for range 60 {
					resp, err := tr.RoundTrip(httptest.NewRequestWithContext(t.Context(), "GET", "http://api.test/"+strconv.Itoa(route), nil))
					if assert.NoError(t, err) {
						_ = resp.Body.Close()
					}
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 2400, served.Load())
		assert.Zero(t, refused.Load())
	})
}

// A rate is kept at the point of sending. So it belongs inside the limit in flight: requests wait for their permits first.
func TestATransportWithARateGoesInsideTheOneInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		inSecond := map[int]int{}
		base := roundTripper(func(*http.Request) (*http.Response, error) {
			mu.Lock()
			inSecond[int(time.Since(start)/time.Second)]++
			mu.Unlock()
			time.Sleep(3 * time.Second)
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		})

		rate := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(2), 1), nil))
		permits := ratelimit.Must(inflight.New(20, &inflight.Options[string]{MaxQueue: 1000}))
		transport := ratelimit.Must(httplimit.NewTransport(base, ratelimit.Map(rate, httplimit.TargetHost), &httplimit.TransportOptions{Inflight: permits}))

		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				_, err := transport.RoundTrip(httptest.NewRequestWithContext(t.Context(), "GET", "http://api.test/", nil))
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		for second, n := range inSecond {
			assert.LessOrEqual(t, n, 2, "second %d", second)
		}
	})
}

// A server's refusals contain no time to retry, so the Transport backs off.
func ExampleAdvice_refused() {
	advice := func(resp *http.Response) (httplimit.Advice, bool) {
		if resp.Header.Get("X-Error") == "slow_down" {
			return httplimit.Advice{Refused: true}, true // without Wait: a second, then twice as long each time
		}
		return httplimit.Advice{}, false // the usual fields
	}
	a, ok := advice(&http.Response{StatusCode: http.StatusBadRequest, Header: http.Header{"X-Error": {"slow_down"}}})
	fmt.Println(a.Refused, ok)
	// Output: true true
}

// A streamed response's real cost is known at its end.
func ExampleOptions_settleResponse() {
	limiter := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerMinute(1000), 1000), nil))
	byUser := ratelimit.Map(limiter, func(*http.Request) (string, error) { return "ann", nil })
	limit := ratelimit.Must(httplimit.New(byUser, &httplimit.Options{
		Cost: func(*http.Request) int { return 400 }, // an estimate
		SettleResponse: func(_ *http.Request, resp httplimit.Response, cost int) int {
			tokens, err := strconv.Atoi(resp.Header.Get("X-Tokens"))
			if err != nil {
				return cost
			}
			return tokens
		},
	}))
	h := limit.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			fmt.Fprintln(w, "data: a part")
			_ = http.NewResponseController(w).Flush()
		}
		w.Header().Set("X-Tokens", "150") // too late for the client, in time for SettleResponse
	}))
	h.ServeHTTP(httptest.NewRecorder(), with())
	d, _ := limiter.Peek(context.Background(), "ann", 1)
	fmt.Println(d.Remaining)
	// Output: 850
}

// Routes are in groups with a limit each. Each group has a mux.
func ExampleMiddleware_Wrap_groups() {
	page := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	reads := ratelimit.Must(httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(50), 100).Named("reads"), nil))
	writes := ratelimit.Must(httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerMinute(1)).Named("writes"), nil))

	writing := http.NewServeMux()
	writing.Handle("POST /orders", page)
	writing.Handle("DELETE /orders/{id}", page)
	mux := http.NewServeMux()
	mux.Handle("GET /", reads.Wrap(page))
	mux.Handle("POST /", writes.Wrap(writing))
	mux.Handle("DELETE /", writes.Wrap(writing)) // the same budget

	for _, request := range []string{"GET /orders", "POST /orders", "DELETE /orders/7", "GET /orders/7"} {
		method, path, _ := strings.Cut(request, " ")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		fmt.Println(request, w.Code)
	}
	// Output:
	// GET /orders 200
	// POST /orders 200
	// DELETE /orders/7 429
	// GET /orders/7 200
}
