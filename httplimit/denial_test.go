package httplimit_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var itoa = strconv.Itoa

func TestRetryAfterIsRoundedUpAndAtLeastOne(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		0:                              "1",
		1:                              "1",
		time.Second - 1:                "1",
		time.Second:                    "1",
		time.Second + 1:                "2",
		90 * time.Minute:               "5400",
		24*time.Hour + time.Nanosecond: "86401",
	} {
		limiter := &stub{decision: ratelimit.Decision{RetryAfter: wait}}
		assert.Equal(t, want, get(middleware(t, limiter, httplimit.Options{}).Wrap(ok)).Header.Get("Retry-After"), wait)
	}
}

func TestClientThatHonoursRetryAfterIsNeverDeniedTwice(t *testing.T) {
	testsize.Sequential(t)
	random := rand.New(rand.NewPCG(1, 2))
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.Per(7, 11*time.Second), 5),
		ratelimit.TokenBucket(ratelimit.PerDay(999_983), 3),
		ratelimit.FixedWindow(ratelimit.Per(4, 1500*time.Millisecond)),
		ratelimit.SlidingLog(ratelimit.Per(5, 3333*time.Millisecond)),
		ratelimit.SlidingCounter(ratelimit.Per(6, 7*time.Second)),
	} {
		for _, jitter := range []time.Duration{0, time.Minute} {
			t.Run(fmt.Sprint(limit, jitter), func(t *testing.T) {
				clock, cost := new(fakeClock), 0
				all := limiterOf(t, clock, limit, ratelimit.TokenBucket(ratelimit.Per(1, 999*time.Millisecond), 4).Named("other"))
				h := middleware(t, all, httplimit.Options{
					Jitter: jitter, Now: clock.wall, Cost: func(*http.Request) int { return cost },
				}).Wrap(ok)
				denials := 0
				for range 1000 {
					cost = 1 + random.IntN(3)
					if resp := get(h); resp.StatusCode == http.StatusTooManyRequests {
						denials++
						s, err := strconv.Atoi(resp.Header.Get("Retry-After"))
						require.NoError(t, err)
						clock.advance(time.Duration(s) * time.Second)
						require.Equal(t, http.StatusOK, get(h).StatusCode)
					}
					clock.advance(time.Duration(random.Int64N(int64(200 * time.Millisecond))))
				}
				assert.Greater(t, denials, 100)
			})
		}
	}
}

func TestHeadIsAnsweredWithoutABody(t *testing.T) {
	m := middleware(t, limiterOf(t, new(fakeClock), ratelimit.Blocked()), httplimit.Options{})
	denied := middleware(t, &stub{decision: ratelimit.Decision{RetryAfter: time.Second}}, httplimit.Options{})
	failed := middleware(t, &stub{err: io.ErrUnexpectedEOF}, httplimit.Options{})
	for _, m := range []*httplimit.Middleware{m, denied, failed} {
		overBoth(t, m.Wrap(ok), func(t *testing.T, client *http.Client, url string) {
			full, err := client.Get(url)
			require.NoError(t, err)
			length := len(body(t, full))
			head, err := client.Head(url)
			require.NoError(t, err)
			assert.Empty(t, body(t, head))
			assert.Equal(t, full.StatusCode, head.StatusCode)
			assert.Equal(t, itoa(length), head.Header.Get("Content-Length"))
			full.Header.Del("Date")
			head.Header.Del("Date")
			assert.Equal(t, full.Header, head.Header)
		})
		w, r := httptest.NewRecorder(), httptest.NewRequest("HEAD", "/", nil)
		m.Wrap(ok).ServeHTTP(w, r)
		assert.Empty(t, w.Body.String())
	}
}

func TestDeniedUploadLeavesTheConnectionInOrder(t *testing.T) {
	limiter := limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerMinute(1)))
	overBoth(t, middleware(t, limiter, httplimit.Options{}).Wrap(ok), func(t *testing.T, client *http.Client, url string) {
		for range 3 {
			resp, err := client.Post(url, "text/plain", io.LimitReader(zeros{}, 100_000))
			require.NoError(t, err)
			body(t, resp)
		}
	})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestProblemsAreValidJSON(t *testing.T) {
	for _, limiter := range []*stub{
		{decision: ratelimit.Decision{Limit: ratelimit.FixedWindow(ratelimit.PerMinute(1)), RetryAfter: time.Second}},
		{err: ratelimit.ErrExceedsLimit},
		{err: io.ErrUnexpectedEOF},
	} {
		resp := get(middleware(t, limiter, httplimit.Options{}).Wrap(ok))
		var problem struct {
			Type   string
			Title  string
			Status int
		}
		require.NoError(t, json.Unmarshal([]byte(body(t, resp)), &problem))
		assert.Equal(t, resp.StatusCode, problem.Status)
		assert.NotEmpty(t, problem.Type)
		assert.NotEmpty(t, problem.Title)
		assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	}
}

// retryAfters returns the Retry-After values that a number of clients with the same wait receive.
func retryAfters(t *testing.T, m *httplimit.Middleware, clients int) (all []int) {
	h := m.Wrap(ok)
	for i := range clients {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = fmt.Sprintf("10.0.%d.%d:%d", i/256, i%256, 1024+rand.IntN(60000))
		s, err := strconv.Atoi(send(h, r).Header.Get("Retry-After"))
		require.NoError(t, err)
		all = append(all, s)
	}
	return all
}

func TestJitterOnlyAddsAndIsStablePerClient(t *testing.T) {
	clock := new(fakeClock)
	limiter := &stub{decision: ratelimit.Decision{RetryAfter: 200*time.Second + 1}}
	m := middleware(t, limiter, httplimit.Options{Jitter: 10 * time.Second, Now: clock.wall})
	first := retryAfters(t, m, 500)
	spread := map[int]int{}
	for _, s := range first {
		spread[s]++
		assert.GreaterOrEqual(t, s, 201)
		assert.Less(t, s, 211)
	}
	assert.Len(t, spread, 10, "each second of the span is somebody's")
	assert.Equal(t, first, retryAfters(t, m, 500), "the same for the same client, from any port")

	clock.advance(150 * time.Second)
	limiter.decision.RetryAfter -= 150 * time.Second
	for i, s := range retryAfters(t, m, 500) {
		assert.GreaterOrEqual(t, s, 51)
		assert.LessOrEqual(t, s, min(first[i]-150, 55), "at most a tenth of what is left, and never later than said before")
	}

	clock.advance(time.Hour)
	limiter.decision.RetryAfter += 150 * time.Second
	assert.NotEqual(t, first, retryAfters(t, m, 500), "not for ever")
}

func TestJitterDistinguishesClientsByJitterBy(t *testing.T) {
	clock := new(fakeClock)
	limiter := &stub{decision: ratelimit.Decision{RetryAfter: time.Hour}}
	distinct := func(opts httplimit.Options, header string) int {
		opts.Jitter, opts.Now = time.Hour, clock.wall
		h, seen := middleware(t, limiter, opts).Wrap(ok), map[string]bool{}
		for i := range 20 {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set(header, itoa(i))
			seen[send(h, r).Header.Get("Retry-After")] = true
		}
		return len(seen)
	}
	assert.Greater(t, distinct(httplimit.Options{}, "X-Forwarded-For"), 1)
	assert.Greater(t, distinct(httplimit.Options{}, "Authorization"), 1)
	assert.Equal(t, 1, distinct(httplimit.Options{}, "User-Agent"))
	byAgent := httplimit.Options{JitterBy: func(r *http.Request) string { return r.UserAgent() }}
	assert.Greater(t, distinct(byAgent, "User-Agent"), 1)
	assert.Equal(t, 1, distinct(byAgent, "Authorization"))
}

func TestHeaderFieldsOfADenialCanBeAppendedTo(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerMinute(1)).Named("one")
	m := middleware(t, &stub{decision: ratelimit.Decision{Limit: limit, RetryAfter: time.Second}}, httplimit.Options{
		OnDenied: func(w http.ResponseWriter, _ httplimit.Event) {
			before := w.Header().Clone()
			for name := range w.Header() {
				w.Header().Add(name, "more")
			}
			for name, lines := range before {
				assert.Equal(t, append(lines, "more"), w.Header()[name], name)
			}
		},
	})
	get(m.Wrap(ok))
}
