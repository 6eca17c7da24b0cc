package httplimit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/keyfunc"
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

func TestJitterDistinguishesClientsByJitterBy(t *testing.T) {
	clock := new(fakeClock)
	limiter := &stub{decision: ratelimit.Decision{RetryAfter: time.Hour}}
	distinct := func(opts httplimit.Options, header string) int {
		opts.Jitter, opts.Now = time.Hour, clock.wall
		h, seen := middleware(t, limiter, opts).Wrap(ok), map[string]bool{}
		for i := range 20 {
			seen[send(h, with(header+": "+itoa(i))).Header.Get("Retry-After")] = true
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

// The client learns its request's fault, and the operator the field's name.
func TestTheAnswerToARequestWithoutItsKeyNamesTheReason(t *testing.T) {
	const secret = "s3cret"
	perKey := ratelimit.Must(ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(9)), nil))
	apiKey := ratelimit.Map(perKey, httplimit.APIKey("X-API-Key"))
	for name, row := range map[string]struct {
		limiter ratelimit.Limiter[*http.Request]
		request *http.Request
		cause   string // the cause in the log
	}{
		"missing":   {apiKey, with(), "no key: no X-Api-Key"},
		"two":       {apiKey, with("X-API-Key: "+secret, "X-API-Key: "+secret), "2 values of X-Api-Key"},
		"two parts": {ratelimit.Map(perKey, httplimit.BearerToken), with("Authorization: Bearer " + secret + " x"), "bearer token with spaces"},
		"of others": {&stub{err: fmt.Errorf("%w: no tenant", keyfunc.ErrNoKey)}, with(), "no tenant"},
		"a NaN":     {&stub{err: fmt.Errorf("layer 1: %w", ratelimit.ErrInvalidKey)}, with(), "layer 1: ratelimit: invalid key"},
		"of a ban":  {ratelimit.Must(ban.New(nil, apiKey, apiKey)), with(), "no key: no X-Api-Key"},
	} {
		for status, title := range map[int]string{0: "Bad Request", 401: "Unauthorized", 428: "Precondition Required"} {
			t.Run(fmt.Sprint(name, status), func(t *testing.T) {
				log, reported := new(bytes.Buffer), error(nil)
				opts := httplimit.Options{KeyCode: status, Logger: slog.New(slog.NewTextHandler(log, nil)), OnDecision: func(e httplimit.Event) { reported = e.Err }}
				m := middleware(t, row.limiter, opts)
				resp := send(m.Wrap(unreachable(t)), row.request)
				want := max(status, 400) // 0 means 400
				assert.Equal(t, want, resp.StatusCode)
				assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
				text := body(t, resp)
				assert.JSONEq(t, fmt.Sprintf(`{"type":"about:blank","title":%q,"status":%d,"detail":"The key that requests are limited by is missing or malformed."}`, title, want), text)
				assert.Equal(t, byte('\n'), text[len(text)-1])
				assert.ErrorContains(t, reported, row.cause)
				assert.Contains(t, log.String(), row.cause)
				assert.Contains(t, log.String(), `level=INFO msg="httplimit: request not decided" outcome=rejected error=`)
				assert.Equal(t, httplimit.Stats{Rejected: 1}, m.Stats())
				assert.NotContains(t, text+log.String(), secret)
			})
		}
	}
}

// The refusal of a blocked key names the block, not the cost: no cheaper request would pass.
func TestTheAnswerToABlockedKeyNamesNoCost(t *testing.T) {
	for name, limiter := range map[string]ratelimit.Limiter[*http.Request]{
		"the limit":           limiterOf(t, new(fakeClock), ratelimit.Blocked().Named("plan")),
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

// One limiter may return both errors in turn. Neither is remembered for the other.
func TestABlockedKeyAndACostAboveTheCapacityAreDistinguished(t *testing.T) {
	limiter := &stub{decision: ratelimit.Decision{Limit: ratelimit.FixedWindow(ratelimit.PerHour(1))}}
	h := middleware(t, limiter, httplimit.Options{}).Wrap(unreachable(t))
	for range 2 {
		for cause, want := range map[error]string{ratelimit.ErrBlocked: "The key is blocked.", ratelimit.ErrExceedsLimit: "costs more than its quota"} {
			limiter.err = cause
			assert.Contains(t, body(t, get(h)), want)
		}
	}
}

func TestTheAnswerToARequestThatInflightNeverAdmitsIsExplained(t *testing.T) {
	l := ratelimit.Must(inflight.New(2, &inflight.Options[string]{LimitFor: func(key string) int {
		return map[string]int{"blocked": -1}[key]
	}}))
	m := ratelimit.Must(httplimit.NewInflight(l, byTenant, &httplimit.InflightOptions{
		Units: func(r *http.Request) int { return len(r.Header["Unit"]) },
	}))
	for name, row := range map[string]struct {
		request *http.Request
		status  int
		detail  string
	}{
		"blocked":   {with("Tenant: blocked", "Unit: 1"), 403, "The key is blocked. Do not retry the request."},
		"too much":  {with("Tenant: a", "Unit: 1", "Unit: 2", "Unit: 3"), 403, "The request needs more than there ever is. Do not retry it."},
		"no key":    {with("Unit: 1"), 400, "The key that requests are limited by is missing or malformed."},
		"a failure": {with("Tenant: broken", "Unit: 1"), 500, ""}, // the error is not sent
	} {
		t.Run(name, func(t *testing.T) {
			resp := send(m.Wrap(unreachable(t)), row.request)
			assert.Equal(t, row.status, resp.StatusCode)
			var doc struct{ Type, Title, Detail string }
			require.NoError(t, json.Unmarshal([]byte(body(t, resp)), &doc))
			assert.Equal(t, "about:blank", doc.Type)
			assert.Equal(t, http.StatusText(row.status), doc.Title)
			assert.Equal(t, row.detail, doc.Detail)
			assert.Empty(t, resp.Header.Get("Retry-After"))
		})
	}
	call := with("Tenant: blocked", "Unit: 1", "Content-Type: application/grpc")
	call.Method = http.MethodPost
	assert.Equal(t, "the key is blocked: do not retry", send(m.Wrap(unreachable(t)), call).Header.Get("Grpc-Message"))
}

// RFC 9110 requires a challenge in each 401.
func TestA401HasAChallenge(t *testing.T) {
	for name, row := range map[string]struct {
		opts httplimit.Options
		code int
		want []string
	}{
		"by default":         {httplimit.Options{KeyCode: 401}, 401, []string{"Bearer"}},
		"another challenge":  {httplimit.Options{KeyCode: 401, Challenge: `Basic realm="api", Bearer`}, 401, []string{`Basic realm="api", Bearer`}},
		"another status":     {httplimit.Options{KeyCode: 403}, 403, nil},
		"the default status": {httplimit.Options{}, 400, nil},
		"an answer of the user": {httplimit.Options{KeyCode: 401, OnError: func(w http.ResponseWriter, e httplimit.Event) { w.WriteHeader(401) }},
			401, []string{"Bearer"}},
		"an answer with another challenge": {httplimit.Options{KeyCode: 401, OnError: func(w http.ResponseWriter, e httplimit.Event) {
			w.Header().Set("WWW-Authenticate", "Digest")
			w.WriteHeader(401)
		}}, 401, []string{"Digest"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := ratelimit.Must(httplimit.PerKey(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), httplimit.APIKey("X-Api-Key"), &row.opts))
			resp := get(m.Wrap(unreachable(t)))
			assert.Equal(t, row.code, resp.StatusCode)
			assert.Equal(t, row.want, resp.Header.Values("WWW-Authenticate"))
		})
	}
	t.Run("set already", func(t *testing.T) {
		m := ratelimit.Must(httplimit.PerKey(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), httplimit.APIKey("X-Api-Key"), &httplimit.Options{KeyCode: 401}))
		resp := get(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("WWW-Authenticate", "Negotiate")
			m.Wrap(unreachable(t)).ServeHTTP(w, r)
		}))
		assert.Equal(t, []string{"Negotiate"}, resp.Header.Values("WWW-Authenticate"))
	})
	t.Run("Inflight", func(t *testing.T) {
		for challenge, want := range map[string]string{"": "Bearer", "Digest": "Digest"} {
			m := ratelimit.Must(httplimit.NewInflight(ratelimit.Must(inflight.New(1, &inflight.Options[string]{})), httplimit.Header("X-Tenant"),
				&httplimit.InflightOptions{KeyCode: 401, Challenge: challenge}))
			resp := get(m.Wrap(unreachable(t)))
			assert.Equal(t, 401, resp.StatusCode)
			assert.Equal(t, []string{want}, resp.Header.Values("WWW-Authenticate"))
			assert.Equal(t, httplimit.InflightStats{Rejected: 1}, m.Stats(), "a request without a key is no failure")
		}
	})
}

func TestAChallengeThatCannotBeSentIsRefused(t *testing.T) {
	_, err := httplimit.PerIP(ratelimit.Unlimited(), &httplimit.Options{KeyCode: 401, Challenge: "Bearer\nX-Evil: 1"})
	assert.ErrorContains(t, err, `httplimit: Options.Challenge has '\n' at position 6`)
	_, err = httplimit.NewInflight(ratelimit.Must(inflight.New(1, &inflight.Options[string]{})), httplimit.Header("X-Tenant"),
		&httplimit.InflightOptions{Challenge: "Bearer"})
	assert.ErrorContains(t, err, "httplimit: InflightOptions.Challenge is given, and KeyCode is 0, want 401")
}

// A gateway reads only the status of the answer to its sub-request.
func TestPlainHTTPRefusesRPCsByTheStatus(t *testing.T) {
	passes := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for name, row := range map[string]struct {
		method, target string
		header         http.Header
	}{
		"gRPC":          {"POST", "/a.B/C", http.Header{"Content-Type": {"application/grpc"}}},
		"gRPC, proto":   {"POST", "/a.B/C", http.Header{"Content-Type": {"application/grpc+proto"}}},
		"gRPC, another": {"PUT", "/", http.Header{"Content-Type": {"Application/GRPC; x=y"}}},
		"gRPC-Web":      {"POST", "/a.B/C", http.Header{"Content-Type": {"application/grpc-web"}}},
		"gRPC-Web text": {"POST", "/a.B/C", http.Header{"Content-Type": {"application/grpc-web-text"}}},
		"Connect":       {"POST", "/a.B/C", http.Header{"Content-Type": {"application/json"}, "Connect-Protocol-Version": {"1"}}},
		"Connect GET":   {"GET", "/a.B/C?connect=v1", http.Header{}},
		"a stream":      {"POST", "/a.B/C", http.Header{"Content-Type": {"application/connect+json"}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(row.method, row.target, nil)
			r.Header = row.header
			is := func(resp *http.Response, status int) {
				t.Helper()
				assert.Equal(t, status, resp.StatusCode)
				assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
				assert.Empty(t, resp.Header.Get("Grpc-Status"))
			}
			m := ratelimit.Must(httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerMinute(1)), &httplimit.Options{PlainHTTP: true}))
			assert.Equal(t, 204, send(m.Wrap(passes), r).StatusCode)
			denied := send(m.Wrap(passes), r)
			is(denied, 429)
			assert.Equal(t, "60", denied.Header.Get("Retry-After"))
			assert.NotEmpty(t, denied.Header.Get("RateLimit"))

			m = ratelimit.Must(httplimit.PerIP(ratelimit.Blocked(), &httplimit.Options{PlainHTTP: true}))
			is(send(m.Wrap(passes), r), 403)
			m, err := httplimit.PerKey(ratelimit.Unlimited(), httplimit.Header("X-Tenant"), &httplimit.Options{PlainHTTP: true})
			require.NoError(t, err)
			is(send(m.Wrap(passes), r), 400)

			l := ratelimit.Must(inflight.New(1, &inflight.Options[string]{}))
			busy := ratelimit.Must(httplimit.NewInflight(l, func(*http.Request) (string, error) { return "", nil }, &httplimit.InflightOptions{PlainHTTP: true}))
			permit, err := l.TryAcquire("", 1)
			require.NoError(t, err)
			defer permit.Release()
			is(send(busy.Wrap(passes), r), 503)
		})
	}
}

// In every dialect, a denial has the fields exposed to pages.
func TestExposedFieldsAreTheSentFields(t *testing.T) {
	m := middleware(t, limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(1))), httplimit.Options{Skip: isPreflight})
	h := cors("https://app.example", m.Wrap(preflights(http.NotFoundHandler())))
	get := func() *http.Response {
		return send(h, with("Origin: https://app.example"))
	}
	require.Equal(t, http.StatusNotFound, get().StatusCode)
	denied := get()
	require.Equal(t, http.StatusTooManyRequests, denied.StatusCode)
	assert.Equal(t, "https://app.example", denied.Header.Get("Access-Control-Allow-Origin"))
	for _, field := range []string{"RateLimit", "RateLimit-Policy", "Retry-After"} {
		assert.NotEmpty(t, denied.Header.Get(field))
	}
	assert.Equal(t, httplimit.Stats{Allowed: 1, Denied: 1}, m.Stats())
}
