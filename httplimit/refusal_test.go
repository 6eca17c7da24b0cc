package httplimit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/keyfunc"
)

// The client learns the fault of its request, and the operator the name of the field.
func TestTheAnswerToARequestWithoutItsKeySaysSo(t *testing.T) {
	const secret = "s3cret"
	perKey := ratelimit.Must(ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(9)), nil))
	for name, row := range map[string]struct {
		limiter ratelimit.Limiter[*http.Request]
		request *http.Request
		cause   string // in the log
	}{
		"missing":   {ratelimit.Map(perKey, httplimit.APIKey("X-API-Key")), with(), "no X-Api-Key"},
		"two":       {ratelimit.Map(perKey, httplimit.APIKey("X-API-Key")), with("X-API-Key: "+secret, "X-API-Key: "+secret), "2 values of X-Api-Key"},
		"two parts": {ratelimit.Map(perKey, httplimit.BearerToken), with("Authorization: Bearer " + secret + " x"), "bearer token with spaces"},
		"of others": {&stub{err: fmt.Errorf("%w: no tenant", keyfunc.ErrNoKey)}, with(), "no tenant"},
		"a NaN":     {&stub{err: fmt.Errorf("layer 1: %w", ratelimit.ErrInvalidKey)}, with(), "layer 1: ratelimit: invalid key"},
	} {
		for status, title := range map[int]string{0: "Bad Request", 401: "Unauthorized", 428: "Precondition Required"} {
			t.Run(fmt.Sprint(name, status), func(t *testing.T) {
				log, reported := new(bytes.Buffer), error(nil)
				opts := httplimit.Options{KeyCode: status, Logger: slog.New(slog.NewTextHandler(log, nil)), OnDecision: func(e httplimit.Event) { reported = e.Err }}
				resp := send(middleware(t, row.limiter, opts).Wrap(unreachable(t)), row.request)
				want := max(status, 400) // 0 is 400
				assert.Equal(t, want, resp.StatusCode)
				assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
				text := body(t, resp)
				assert.JSONEq(t, fmt.Sprintf(`{"type":"about:blank","title":%q,"status":%d,"detail":"The key that requests are limited by is missing or malformed."}`, title, want), text)
				assert.ErrorContains(t, reported, row.cause)
				assert.Contains(t, log.String(), row.cause)
				assert.NotContains(t, text+log.String(), secret)
			})
		}
	}
}

func TestOnErrorGetsTheMissingKey(t *testing.T) {
	perKey := ratelimit.Must(ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(9)), nil))
	m := middleware(t, ratelimit.Map(perKey, httplimit.APIKey("X-Session")), httplimit.Options{OnError: func(w http.ResponseWriter, e httplimit.Event) {
		w.WriteHeader(http.StatusTeapot)
		assert.ErrorContains(t, e.Err, "no X-Session")
	}})
	assert.Equal(t, http.StatusTeapot, get(m.Wrap(unreachable(t))).StatusCode)
}

// The refusal of a blocked key names the block, and not the cost: no cheaper request would pass.
func TestTheAnswerToABlockedKeyNamesNoCost(t *testing.T) {
	blocked := ratelimit.Blocked().Named("plan")
	plans := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(1), 5).Named("plan"), &ratelimit.Options[string]{
		LimitFor: func(string) ratelimit.Limit { return blocked },
	}))
	stack, err := ratelimit.All(ratelimit.By(ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(9)).Named("other"), nil)), everyone),
		ratelimit.By(plans, everyone))
	require.NoError(t, err)
	for name, limiter := range map[string]ratelimit.Limiter[*http.Request]{
		"the limit":           limiterOf(t, new(fakeClock), blocked),
		"a key's plan":        ratelimit.Map(plans, everyone),
		"a layer":             stack,
		"an engine of others": &stub{err: fmt.Errorf("x: %w", ratelimit.ErrBlocked), decision: ratelimit.Decision{Limit: ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("plan")}},
	} {
		t.Run(name, func(t *testing.T) {
			h := middleware(t, limiter, httplimit.Options{}).Wrap(unreachable(t))
			resp := get(h)
			assert.Equal(t, http.StatusForbidden, resp.StatusCode)
			assert.JSONEq(t, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":403,
				"detail":"The key is blocked. Do not retry the request.","violated-policies":["plan"]}`, body(t, resp))

			call := httptest.NewRequest("POST", "/svc/Method", nil)
			call.Header.Set("Content-Type", "application/grpc")
			assert.Equal(t, "the key is blocked: do not retry: plan", send(h, call).Header.Get("Grpc-Message"))
		})
	}
}

// One limiter may answer both at the same time: none is remembered for the other.
func TestABlockedKeyAndACostAboveTheCapacityAreDistinguished(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerHour(1))
	limiter := &stub{decision: ratelimit.Decision{Limit: limit}}
	h := middleware(t, limiter, httplimit.Options{}).Wrap(unreachable(t))
	for range 2 {
		for cause, want := range map[error]string{ratelimit.ErrBlocked: "The key is blocked.", ratelimit.ErrExceedsLimit: "costs more than its quota"} {
			limiter.err = cause
			assert.Contains(t, body(t, get(h)), want)
		}
	}
}

func TestTheAnswerToARequestThatInflightNeverAdmitsIsExplained(t *testing.T) {
	l, err := inflight.New(2, &inflight.Options[string]{LimitFor: func(key string) int {
		return map[string]int{"blocked": -1}[key]
	}})
	require.NoError(t, err)
	m, err := httplimit.NewInflight(l, httplimit.Header("Tenant"), &httplimit.InflightOptions{
		Units: func(r *http.Request) int { return len(r.Header["Unit"]) },
	})
	require.NoError(t, err)
	for name, row := range map[string]struct {
		request *http.Request
		status  int
		detail  string
	}{
		"blocked":  {with("Tenant: blocked", "Unit: 1"), 403, "The key is blocked. Do not retry the request."},
		"too much": {with("Tenant: a", "Unit: 1", "Unit: 2", "Unit: 3"), 403, "The request needs more than there ever is. Do not retry it."},
		"no key":   {with("Unit: 1"), 400, "The key that requests are limited by is missing or malformed."},
	} {
		t.Run(name, func(t *testing.T) {
			resp := send(m.Wrap(unreachable(t)), row.request)
			assert.Equal(t, row.status, resp.StatusCode)
			var doc struct{ Type, Title, Detail string }
			require.NoError(t, json.Unmarshal([]byte(body(t, resp)), &doc))
			assert.Equal(t, "about:blank", doc.Type)
			assert.Equal(t, http.StatusText(row.status), doc.Title)
			assert.Equal(t, row.detail, doc.Detail)
		})
	}
	call := with("Tenant: blocked", "Unit: 1", "Content-Type: application/grpc")
	call.Method = http.MethodPost
	assert.Equal(t, "the key is blocked: do not retry", send(m.Wrap(unreachable(t)), call).Header.Get("Grpc-Message"))
}
