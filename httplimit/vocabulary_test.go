package httplimit_test

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/keyfunc"
)

func TestStatusOfAMissingKeyIsChosen(t *testing.T) {
	l := ratelimit.Must(ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	m := middleware(t, ratelimit.Map(l, httplimit.BearerToken), httplimit.Options{KeyCode: http.StatusUnauthorized})
	resp := send(m.Wrap(unreachable(t)), with())
	assert.Equal(t, http.StatusUnauthorized, resp.StatusCode)
	assert.Equal(t, `{"type":"about:blank","title":"Unauthorized","status":401,"detail":"The key that requests are limited by is missing or malformed."}`+"\n", body(t, resp))
	i := ratelimit.Must(httplimit.NewInflight(ratelimit.Must(inflight.New[keyfunc.Hash](1, nil)), httplimit.BearerToken, &httplimit.InflightOptions{KeyCode: 422}))
	assert.Equal(t, 422, send(i.Wrap(unreachable(t)), with()).StatusCode)
	for _, code := range []int{-1, 1, 200, 399, 500} {
		_, err := httplimit.New(ratelimit.Map(l, httplimit.BearerToken), &httplimit.Options{KeyCode: code})
		assert.ErrorContains(t, err, "httplimit: Options.KeyCode is")
		_, err = httplimit.NewInflight(ratelimit.Must(inflight.New[keyfunc.Hash](1, nil)), httplimit.BearerToken, &httplimit.InflightOptions{KeyCode: code})
		assert.ErrorContains(t, err, "httplimit: InflightOptions.KeyCode is")
	}
}

func TestEachOutcomeReachesOnDecision(t *testing.T) {
	var seen []httplimit.Outcome
	m := middleware(t, limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(1))), httplimit.Options{
		OnDecision: func(e httplimit.Event) { seen = append(seen, e.Outcome) },
	})
	h := m.Wrap(http.NotFoundHandler())
	send(h, with())
	send(h, with())
	assert.Equal(t, []httplimit.Outcome{httplimit.OutcomeAllowed, httplimit.OutcomeDenied}, seen)
}

// A request is charged by its response: by a header field, and by its length.
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

// A client's fault is no failure of the server: it has its own outcome, and one plain text.
func TestARequestWithoutAKeyIsRejectedInPlainWords(t *testing.T) {
	perKey := ratelimit.Must(ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(9)), nil))
	all := ratelimit.Must(ratelimit.All(ratelimit.By(perKey, httplimit.APIKey("X-API-Key"))))
	log := new(strings.Builder)
	var seen httplimit.Event
	m := middleware(t, all, httplimit.Options{
		Logger: slog.New(slog.NewTextHandler(log, nil)), OnDecision: func(e httplimit.Event) { seen = e },
	})
	assert.Equal(t, http.StatusBadRequest, get(m.Wrap(unreachable(t))).StatusCode)
	assert.Equal(t, httplimit.OutcomeRejected, seen.Outcome)
	assert.EqualError(t, seen.Err, "no key: no X-Api-Key")
	assert.Equal(t, httplimit.Stats{Rejected: 1}, m.Stats())
	assert.Contains(t, log.String(), `level=INFO msg="httplimit: request not decided" outcome=rejected error="no key: no X-Api-Key"`)

	mapped := ratelimit.Map(perKey, httplimit.APIKey("X-API-Key"))
	m = middleware(t, ratelimit.Must(ban.New(nil, mapped, mapped)), httplimit.Options{OnDecision: func(e httplimit.Event) { seen = e }})
	assert.Equal(t, http.StatusBadRequest, get(m.Wrap(unreachable(t))).StatusCode)
	assert.EqualError(t, seen.Err, "no key: no X-Api-Key", "the bans, which are asked first, have the same key")
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
