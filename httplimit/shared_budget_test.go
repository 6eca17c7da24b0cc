package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// Twenty minutes of busy workers: a client that reads the reset of a bucket as its next chance would stand still for most of each minute.
func TestBusyClientsUseABucketThatRefillsWithoutSilence(t *testing.T) {
	own := func(dialect httplimit.Dialect, limit ratelimit.Limit) func() http.Handler {
		return func() http.Handler {
			return ratelimit.Must(httplimit.PerIP(limit, &httplimit.Options{Dialect: dialect})).Wrap(ok)
		}
	}
	anthropic := func() http.Handler {
		l := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerMinute(50), 50), nil))
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d, _ := l.Take(r.Context(), "k", 1)
			h := w.Header()
			h.Set("Anthropic-Ratelimit-Requests-Limit", "50")
			h.Set("Anthropic-Ratelimit-Requests-Remaining", fmt.Sprint(d.Remaining))
			h.Set("Anthropic-Ratelimit-Requests-Reset", time.Now().Add(d.ResetAfter).UTC().Format(time.RFC3339))
			if !d.Allowed {
				h.Set("Retry-After", fmt.Sprint(int64((d.RetryAfter+time.Second-1)/time.Second)))
				w.WriteHeader(http.StatusTooManyRequests)
			}
		})
	}
	bucket := ratelimit.TokenBucket(ratelimit.PerMinute(50), 50)
	for name, row := range map[string]struct {
		server    func() http.Handler
		processes int
	}{
		"draft 11":              {own(httplimit.DialectDraft11, bucket), 1},
		"draft 11, 8 processes": {own(httplimit.DialectDraft11, bucket), 8},
		"draft 06":              {own(httplimit.DialectDraft06, bucket), 1},
		"X-, delta":             {own(httplimit.DialectXDelta, bucket), 1},
		"Anthropic":             {anthropic, 1},
		"Anthropic, 8":          {anthropic, 8},
	} {
		bubble(t, name, func(t *testing.T) {
			var mu sync.Mutex
			served, refused, longest := 0, 0, time.Duration(0)
			by := make([]int, row.processes)
			last := time.Now()
			server := row.server()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			defer cancel()
			var all sync.WaitGroup
			for n := range row.processes {
				over := roundTrip(func(r *http.Request) (*http.Response, error) {
					time.Sleep(50 * time.Millisecond)
					w := httptest.NewRecorder()
					arrives := r.Clone(r.Context())
					arrives.RemoteAddr = "192.0.2.1:1"
					w.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
					server.ServeHTTP(w, arrives)
					mu.Lock()
					defer mu.Unlock()
					if w.Code != http.StatusOK {
						refused++
					} else {
						served++
						by[n]++
						now := time.Now()
						longest, last = max(longest, now.Sub(last)), now
					}
					return w.Result(), nil
				})
				c, _ := client(t, over, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxRetries: 9, MaxWait: -1})
				for range 10 {
					all.Go(func() {
						for ctx.Err() == nil {
							r, _ := http.NewRequestWithContext(ctx, "GET", "http://a.example/", nil)
							resp, err := c.Do(r)
							if err != nil {
								return // its time is after the end
							}
							_, _ = io.Copy(io.Discard, resp.Body)
							_ = resp.Body.Close()
						}
					})
				}
			}
			all.Wait()
			t.Logf("%d served, %d refused, %v of silence, by process %v", served, refused, longest, by)
			assert.Greater(t, served, 1000, "of 1,050")
			assert.Less(t, longest, 20*time.Second)
			assert.Less(t, float64(refused)/float64(served+refused), .1)
		})
	}
}

func TestTwoTokensOnOneHostAreTwoBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(once(429, fields("Retry-After: 60")))
		c, transport := client(t, b, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxWait: time.Second})
		get := func(token string) (int, error) {
			r := ratelimit.Must(http.NewRequest("GET", "http://a.example/", nil))
			r.Header.Set("Authorization", "Bearer "+token)
			resp, err := c.Do(r)
			if err != nil {
				return 0, err
			}
			return resp.StatusCode, resp.Body.Close()
		}
		status, err := get("one")
		require.NoError(t, err)
		require.Equal(t, 429, status)
		_, err = get("one")
		var late *ratelimit.LateError
		require.ErrorAs(t, err, &late)
		assert.Equal(t, time.Minute, late.RetryAfter())
		status, err = get("two")
		require.NoError(t, err)
		assert.Equal(t, 200, status)
		transport.Reset("http://a.example")
		status, err = get("one")
		require.NoError(t, err)
		assert.Equal(t, 200, status)
	})
}

func TestARefusedAttemptCostsTheOwnBudgetNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := reserver(t, ratelimit.FixedWindow(ratelimit.PerHour(2)))
		c, _ := client(t, newBackend(once(429, fields("Retry-After: 1"))), l, httplimit.TransportOptions{MaxRetries: 1})
		require.Equal(t, 200, fetch(t, c, "http://a/"))
		require.Equal(t, 200, fetch(t, c, "http://a/"))
	})
}

func TestTheWaitInARefusalsBodyIsRead(t *testing.T) {
	google := `{"error": {"code": 429, "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37.5s"}]}}`
	for _, row := range []struct {
		status  int
		fields  string
		body    string
		refused bool
		wait    time.Duration
		noRetry bool
	}{
		{429, "", google, true, 37500 * time.Millisecond, false},
		{429, "", `{"error":{"message":"Rate limit reached. Please try again in 1m2.5s. Visit"}}`, true, 62500 * time.Millisecond, false},
		{429, "", `Please try again in 86ms.`, true, 86 * time.Millisecond, false},
		{403, "", `{"message":"You have exceeded a secondary rate limit."}`, true, time.Minute, false},
		{403, "", `{"message":"Forbidden"}`, false, 0, false},
		{429, "Retry-After: 3", google, true, 3 * time.Second, false},
		{418, "Retry-After: 120", "", true, 2 * time.Minute, false},
		{420, "", "", true, 0, false},
		{413, "Retry-After: 5", "", true, 5 * time.Second, false},
		{408, "Retry-After: 5", "", false, 5 * time.Second, false},
		{500, "Retry-After: 5", "", false, 5 * time.Second, false},
		{502, "Retry-After: 5", "", false, 5 * time.Second, false},
		{400, "X-Amzn-Errortype: ThrottlingException:http://internal.amazon.com/coral/", "", true, 0, false},
		{400, "X-Amzn-Errortype: ValidationException", "", false, 0, false},
		{429, "Stripe-Should-Retry: false", "", true, 0, true},
	} {
		resp := &http.Response{StatusCode: row.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(row.body + strings.Repeat(" ", 3000)))}
		if row.fields != "" {
			resp.Header = fields(row.fields)
		}
		got := httplimit.AdviceOf(resp)
		assert.Equal(t, httplimit.Advice{Refused: row.refused, Wait: row.wait, NoRetry: row.noRetry}, got, "%d %s %s", row.status, row.fields, row.body)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Len(t, text, len(row.body)+3000, "it is readable in full")
	}
	for line, want := range map[string]httplimit.AdviceBudget{
		"X-Shopify-Shop-Api-Call-Limit: 32/40": {Name: "shopify", Left: 8, Limit: 40, Window: 20 * time.Second, Refills: true, Reset: 16 * time.Second},
		"Ratelimit-Remaining: 0;w=21600":       {Left: 0, Window: 6 * time.Hour, Reset: 6 * time.Hour},
	} {
		got := httplimit.AdviceOf(&http.Response{StatusCode: 200, Header: fields(line)})
		assert.Equal(t, []httplimit.AdviceBudget{want}, got.Budgets)
	}
	synctest.Test(t, func(t *testing.T) { // an Advice function reads the body, and so does the caller
		advice := func(resp *http.Response) (httplimit.Advice, bool) {
			text, err := io.ReadAll(resp.Body)
			assert.NoError(t, err)
			assert.Equal(t, "seven", string(text))
			return httplimit.Advice{Refused: true, Wait: 7 * time.Second}, true
		}
		over := roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 429, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("seven"))}, nil
		})
		c, _ := client(t, over, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{Advice: advice})
		resp, err := c.Get("http://a/")
		require.NoError(t, err)
		assert.Equal(t, "seven", body(t, resp))
	})
}

// A reverse proxy whose Transport would wait for too long answers with the time.
func TestAReverseProxyOverATransportAnswersWithRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, transport := client(t, newBackend(once(429, fields("Retry-After: 90"))), reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxWait: time.Minute})
		proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "a.example"})
		proxy.Transport = transport
		proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, err error) {
			var late *ratelimit.LateError
			if !errors.As(err, &late) {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			w.Header().Set("Retry-After", fmt.Sprint(int64((late.RetryAfter()+time.Second-1)/time.Second)))
			w.WriteHeader(http.StatusTooManyRequests)
		}
		get(proxy)
		resp := get(proxy)
		assert.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, "90", resp.Header.Get("Retry-After"))
	})
}
