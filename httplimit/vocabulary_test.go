package httplimit_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/keyfunc"
)

func TestStatusOfAMissingKeyIsChosen(t *testing.T) {
	l := ratelimit.Must(ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	i := ratelimit.Must(httplimit.NewInflight(ratelimit.Must(inflight.New[keyfunc.Hash](1, nil)), httplimit.BearerToken, &httplimit.InflightOptions{KeyCode: 422}))
	assert.Equal(t, 422, send(i.Wrap(unreachable(t)), with()).StatusCode)
	for _, code := range []int{-1, 1, 200, 399, 500} {
		_, err := httplimit.New(ratelimit.Map(l, httplimit.BearerToken), &httplimit.Options{KeyCode: code})
		assert.ErrorContains(t, err, "httplimit: Options.KeyCode is")
		_, err = httplimit.NewInflight(ratelimit.Must(inflight.New[keyfunc.Hash](1, nil)), httplimit.BearerToken, &httplimit.InflightOptions{KeyCode: code})
		assert.ErrorContains(t, err, "httplimit: InflightOptions.KeyCode is")
	}
}

// The response decides a request's charge: by a header field, or by its length.
func TestTheResponseGivesTheCost(t *testing.T) {
	for name, write := range map[string]func(w http.ResponseWriter){
		"Write":       func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, 7)) },
		"WriteString": func(w http.ResponseWriter) { _, _ = io.WriteString(w, "1234567") },
		"ReadFrom":    func(w http.ResponseWriter) { _, _ = io.Copy(w, strings.NewReader("1234567")) },
		"in parts":    func(w http.ResponseWriter) { _, _ = w.Write([]byte("123")); _, _ = io.WriteString(w, "4567") },
	} {
		t.Run(name, func(t *testing.T) {
			limiter := limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(100)))
			m := middleware(t, limiter, httplimit.Options{SettleResponse: func(_ *http.Request, resp httplimit.Response, cost int) int {
				assert.Equal(t, http.StatusAccepted, resp.Status)
				assert.Equal(t, "30", resp.Header.Get("Tokens"))
				assert.Equal(t, 1, cost)
				return 30 + int(resp.Written)
			}})
			send(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Tokens", "30")
				w.WriteHeader(http.StatusAccepted)
				write(w)
			})), with())
			assert.Equal(t, 63, left(t, limiter))
		})
	}
	_, err := httplimit.New(limiterOf(t, nil, ratelimit.Unlimited()), &httplimit.Options{
		Settle:         httplimit.RefundServerErrors,
		SettleResponse: func(*http.Request, httplimit.Response, int) int { return 0 },
	})
	assert.EqualError(t, err, "httplimit: Options.Settle and Options.SettleResponse are both given")
}

func TestPerKey(t *testing.T) {
	m, err := httplimit.PerKey(ratelimit.FixedWindow(ratelimit.PerMinute(1)), httplimit.Header("X-Tenant"), nil)
	require.NoError(t, err)
	for _, want := range []int{200, 429} {
		assert.Equal(t, want, send(m.Wrap(ok), with("X-Tenant: a")).StatusCode)
	}
	assert.Equal(t, 200, send(m.Wrap(ok), with("X-Tenant: b")).StatusCode)
	_, err = httplimit.PerKey[string](ratelimit.FixedWindow(ratelimit.PerMinute(1)), nil, nil)
	assert.EqualError(t, err, "httplimit: PerKey: key is nil")
	_, err = httplimit.PerKey(ratelimit.Limit{}, httplimit.Header("X-Tenant"), nil)
	assert.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

func TestRetryAfterInMilliseconds(t *testing.T) {
	d := ratelimit.Decision{Limit: ratelimit.TokenBucket(ratelimit.PerSecond(10), 1), RetryAfter: 99_000_001}
	for ms, want := range map[bool]string{false: "", true: "100"} {
		resp := get(middleware(t, &stub{decision: d}, httplimit.Options{RetryAfterMs: ms}).Wrap(ok))
		assert.Equal(t, "1", resp.Header.Get("Retry-After"))
		assert.Equal(t, want, resp.Header.Get("Retry-After-Ms"))
	}
}
