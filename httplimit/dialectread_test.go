package httplimit_test

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// answers has responses' heads as the APIs' documentation shows them, and
// their meaning. All were sent at noon of August 1st, 2025: Unix 1754049600.
var answers = map[string]struct {
	head string
	want httplimit.Advice
}{
	"GitHub, allowed": {`200 OK
X-RateLimit-Limit: 5000
X-RateLimit-Remaining: 4987
X-RateLimit-Reset: 1754052000
X-RateLimit-Resource: core
X-RateLimit-Used: 13`, httplimit.Advice{Budgets: []httplimit.AdviceBudget{{Name: "core", Left: 4987, Reset: 40 * time.Minute}}}},
	"GitHub, primary limit": {`403 Forbidden
X-RateLimit-Limit: 60
X-RateLimit-Remaining: 0
X-RateLimit-Reset: 1754050200
X-RateLimit-Resource: core
X-RateLimit-Used: 60`, httplimit.Advice{Refused: true, Budgets: []httplimit.AdviceBudget{{Name: "core", Left: 0, Reset: 10 * time.Minute}}}},
	"GitHub, secondary limit": {`403 Forbidden
Retry-After: 60
X-RateLimit-Limit: 5000
X-RateLimit-Remaining: 4771
X-RateLimit-Reset: 1754052000`, httplimit.Advice{Refused: true, Wait: time.Minute}},
	"GitHub, no right": {`403 Forbidden
X-RateLimit-Limit: 5000
X-RateLimit-Remaining: 4770
X-RateLimit-Reset: 1754052000
X-RateLimit-Resource: core`, httplimit.Advice{Budgets: []httplimit.AdviceBudget{{Name: "core", Left: 4770, Reset: 40 * time.Minute}}}},
	"GitLab": {`200 OK
RateLimit-Limit: 60
RateLimit-Name: throttle_authenticated_web
RateLimit-Observed: 67
RateLimit-Remaining: 0
RateLimit-Reset: 1754049645
RateLimit-ResetTime: Fri, 01 Aug 2025 12:00:45 GMT`, httplimit.Advice{Budgets: []httplimit.AdviceBudget{{Reset: 45 * time.Second}}}},
	"Kong": {`429 Too Many Requests
RateLimit-Limit: 10
RateLimit-Remaining: 0
RateLimit-Reset: 47
Retry-After: 47
X-RateLimit-Limit-Minute: 10
X-RateLimit-Remaining-Minute: 0`, httplimit.Advice{Refused: true, Wait: 47 * time.Second}},
	"OpenAI, allowed": {`200 OK
X-RateLimit-Limit-Requests: 10000
X-RateLimit-Limit-Tokens: 200000
X-RateLimit-Remaining-Requests: 9999
X-RateLimit-Remaining-Tokens: 199971
X-RateLimit-Reset-Requests: 8.64s
X-RateLimit-Reset-Tokens: 6m0s`, httplimit.Advice{Budgets: []httplimit.AdviceBudget{
		{Name: "requests", Left: 9999, Reset: 8640 * time.Millisecond},
		{Name: "tokens", Left: 199971, Reset: 6 * time.Minute, Costs: true},
	}}},
	"OpenAI, refused": {`429 Too Many Requests
Retry-After: 1
Retry-After-Ms: 373
X-RateLimit-Remaining-Requests: 9998
X-RateLimit-Remaining-Tokens: 0
X-RateLimit-Reset-Requests: 17.28s
X-RateLimit-Reset-Tokens: 373ms`, httplimit.Advice{Refused: true, Wait: 373 * time.Millisecond}},
	"Groq": {`200 OK
X-RateLimit-Remaining-Requests: 14370
X-RateLimit-Remaining-Tokens: 17997
X-RateLimit-Reset-Requests: 2m59.56s
X-RateLimit-Reset-Tokens: 7.66s`, httplimit.Advice{Budgets: []httplimit.AdviceBudget{
		{Name: "requests", Left: 14370, Reset: 179560 * time.Millisecond},
		{Name: "tokens", Left: 17997, Reset: 7660 * time.Millisecond, Costs: true},
	}}},
	"Azure": {`200 OK
X-RateLimit-Remaining-Requests: 118
X-RateLimit-Remaining-Tokens: 119000`, httplimit.Advice{}}, // no reset
	"Anthropic, allowed": {`200 OK
Anthropic-RateLimit-Requests-Limit: 50
Anthropic-RateLimit-Requests-Remaining: 49
Anthropic-RateLimit-Requests-Reset: 2025-08-01T12:00:02Z
Anthropic-RateLimit-Tokens-Limit: 60000
Anthropic-RateLimit-Tokens-Remaining: 59000
Anthropic-RateLimit-Tokens-Reset: 2025-08-01T12:00:01Z
Anthropic-RateLimit-Input-Tokens-Remaining: 40000
Anthropic-RateLimit-Input-Tokens-Reset: 2025-08-01T12:00:01Z`, httplimit.Advice{Budgets: []httplimit.AdviceBudget{
		{Name: "requests", Left: 49, Reset: 2 * time.Second},
		{Name: "tokens", Left: 59000, Reset: time.Second, Costs: true},
		{Name: "input-tokens", Left: 40000, Reset: time.Second, Costs: true},
	}}},
	"Anthropic, refused": {`429 Too Many Requests
Anthropic-RateLimit-Requests-Remaining: 0
Anthropic-RateLimit-Requests-Reset: 2025-08-01T12:00:31Z
Retry-After: 31`, httplimit.Advice{Refused: true, Wait: 31 * time.Second}},
	"Anthropic, overloaded": {`529 Overloaded
X-Should-Retry: true`, httplimit.Advice{Refused: true}},
	"Discord, allowed": {`200 OK
X-RateLimit-Limit: 5
X-RateLimit-Remaining: 0
X-RateLimit-Reset: 1754049601.500
X-RateLimit-Reset-After: 1.250
X-RateLimit-Bucket: abcd1234`, httplimit.Advice{Budgets: []httplimit.AdviceBudget{{Name: "abcd1234", Reset: 1250 * time.Millisecond}}}},
	"Discord, refused": {`429 Too Many Requests
Retry-After: 65
X-RateLimit-Limit: 10
X-RateLimit-Remaining: 0
X-RateLimit-Reset-After: 64.57
X-RateLimit-Bucket: abcd1234
X-RateLimit-Scope: user`, httplimit.Advice{Refused: true, Wait: 65 * time.Second}},
	"X": {`429 Too Many Requests
X-Rate-Limit-Limit: 15
X-Rate-Limit-Remaining: 0
X-Rate-Limit-Reset: 1754050500`, httplimit.Advice{Refused: true, Budgets: []httplimit.AdviceBudget{{Reset: 15 * time.Minute}}}},
	"Okta": {`200 OK
X-Rate-Limit-Limit: 600
X-Rate-Limit-Remaining: 599
X-Rate-Limit-Reset: 1754049660`, httplimit.Advice{Budgets: []httplimit.AdviceBudget{{Left: 599, Reset: time.Minute}}}},
	"Reddit": {`200 OK
X-Ratelimit-Remaining: 595.0
X-Ratelimit-Reset: 337
X-Ratelimit-Used: 5`, httplimit.Advice{Budgets: []httplimit.AdviceBudget{{Left: 595, Reset: 337 * time.Second}}}},
	"Atlassian": {`429 Too Many Requests
X-RateLimit-Limit: 350
X-RateLimit-Remaining: 0
X-RateLimit-Reset: 2025-08-01T12:05Z`, httplimit.Advice{Refused: true, Budgets: []httplimit.AdviceBudget{{Reset: 5 * time.Minute}}}},
	"Slack": {`429 Too Many Requests
Retry-After: 30`, httplimit.Advice{Refused: true, Wait: 30 * time.Second}},
	"Envoy": {`429 Too Many Requests
X-RateLimit-Limit: 10, 10;w=60;name="per minute"
X-RateLimit-Remaining: 0
X-RateLimit-Reset: 23`, httplimit.Advice{Refused: true, Budgets: []httplimit.AdviceBudget{{Reset: 23 * time.Second}}}},
	"Stripe": {`429 Too Many Requests
Stripe-Rate-Limited-Reason: global-rate`, httplimit.Advice{Refused: true}},
	"express-rate-limit, draft 06": {`200 OK
RateLimit-Policy: 100;w=900
RateLimit-Limit: 100
RateLimit-Remaining: 99
RateLimit-Reset: 900`, httplimit.Advice{Budgets: []httplimit.AdviceBudget{{Left: 99, Reset: 15 * time.Minute}}}},
	"express-rate-limit, draft 07": {`429 Too Many Requests
RateLimit-Policy: 2;w=60
RateLimit: limit=2, remaining=0, reset=58`, httplimit.Advice{Refused: true, Budgets: []httplimit.AdviceBudget{{Reset: 58 * time.Second}}}},
	"express-rate-limit, draft 08": {`200 OK
RateLimit-Policy: "2-in-1min"; q=2; w=60; pk=:ZGE0ZDY5:
RateLimit: "2-in-1min"; r=1; t=59`, httplimit.Advice{Budgets: []httplimit.AdviceBudget{{Name: "2-in-1min", Left: 1, Reset: 59 * time.Second}}}},
	"Cloudflare": {`200 OK
Ratelimit: "default";r=1199;t=300
Ratelimit-Policy: "default";q=1200;w=300`, httplimit.Advice{Budgets: []httplimit.AdviceBudget{{Name: "default", Left: 1199, Reset: 5 * time.Minute}}}},
	"the draft after 11": {`200 OK
RateLimit-Policy: burst;q=100;w=60
RateLimit: Burst;a=40;w=60;c=2`, httplimit.Advice{Budgets: []httplimit.AdviceBudget{{Name: "burst", Left: 40, Reset: time.Minute}}}},
	"maintenance": {`503 Service Unavailable
Retry-After: Fri, 01 Aug 2025 13:00:00 GMT`, httplimit.Advice{Wait: time.Hour}},
	"from a cache": {`200 OK
Age: 1
X-RateLimit-Remaining: 0
X-RateLimit-Reset: 60`, httplimit.Advice{}},
	"malformed Dictionary":              {"200 OK\nRateLimit: limit=2, remaining=0, reset=58,", httplimit.Advice{}},
	"Dictionary, malformed at its head": {"200 OK\nRateLimit: =x, limit=2, remaining=0, reset=58", httplimit.Advice{}},
	"Dictionary with an inner list":     {"200 OK\nRateLimit: remaining=0, reset=58, x=(1 2)", httplimit.Advice{}},
	"Dictionary without a reset":        {"200 OK\nRateLimit: limit=2, remaining=0", httplimit.Advice{}},
	"span below zero":                   {"200 OK\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: -5s", httplimit.Advice{}},
}

// response reads a response's head.
func response(t *testing.T, head string) *http.Response {
	t.Helper()
	text := "HTTP/1.1 " + strings.ReplaceAll(head, "\n", "\r\n") + "\r\nDate: Fri, 01 Aug 2025 12:00:00 GMT\r\nContent-Length: 0\r\n\r\n"
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil)
	require.NoError(t, err)
	return resp
}

func TestAnswersOfRealAPIsAreUnderstood(t *testing.T) {
	for name, row := range answers {
		t.Run(name, func(t *testing.T) {
			got := httplimit.AdviceOf(response(t, row.head))
			require.Len(t, got.Budgets, len(row.want.Budgets))
			for i, b := range got.Budgets {
				assert.InDelta(t, row.want.Budgets[i].Reset, b.Reset, 1000, "a float holds no nanoseconds of Unix time")
				want := row.want.Budgets[i]
				got.Budgets[i].Reset, got.Budgets[i].Limit, got.Budgets[i].Window, got.Budgets[i].Refills = want.Reset, want.Limit, want.Window, want.Refills
			}
			assert.Equal(t, row.want, got)
		})
	}
}

// A Transport obeys an Advice function first, and reads the rest itself.
func TestTransportIsTaughtADialect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(func(n int, _ *http.Request) (int, http.Header) {
			switch n {
			case 1:
				return 420, fields("Enhance-Your-Calm: 7s")
			case 3:
				return 429, fields("Retry-After: 5")
			}
			return 200, nil
		})
		c, transport := client(t, b, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{
			MaxRetries: 1,
			Advice: func(resp *http.Response) (a httplimit.Advice, ok bool) {
				if resp.StatusCode != 420 {
					return a, false
				}
				a.Wait, _ = time.ParseDuration(resp.Header.Get("Enhance-Your-Calm"))
				a.Refused = true
				return a, true
			},
		})
		resp, err := c.Post("http://a/", "text/plain", strings.NewReader("hello"))
		require.NoError(t, err)
		body(t, resp)
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, 200, fetch(t, c, "http://a/"))
		assert.Equal(t, []time.Duration{0, 7e9, 7e9, 12e9}, b.times())
		assert.Equal(t, []string{"hello", "hello", "", ""}, b.bodies)
		assert.Equal(t, uint64(2), transport.Stats().Refused)
	})
}

// spend sends a request and declares its cost.
func spend(t *testing.T, c *http.Client, url string, cost int) context.Context {
	ctx := httplimit.WithCost(t.Context(), cost)
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if assert.NoError(t, err) {
		resp, err := c.Do(r)
		if assert.NoError(t, err) {
			body(t, resp)
		}
	}
	return ctx
}

// A client keeps within tokens a minute: within its own limit, settled with the real usage, and within the server's.
func TestRequestsDeclareTheirCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(nil)
		c, _ := client(t, b, reserver(t, ratelimit.TokenBucket(ratelimit.PerMinute(1000), 1000)), httplimit.TransportOptions{})
		first := spend(t, c, "http://a/", 600)
		require.NoError(t, httplimit.SettleCost(first, 100))
		require.NoError(t, httplimit.SettleCost(first, 0), "only the first counts")
		spend(t, c, "http://a/", 900)
		assert.Equal(t, []time.Duration{0, 0}, b.times())
		spend(t, c, "http://a/", 500)
		assert.Equal(t, 30*time.Second, b.times()[2])
		assert.NoError(t, httplimit.SettleCost(t.Context(), 5), "nothing was declared")
		assert.NoError(t, httplimit.SettleCost(httplimit.WithCost(t.Context(), 5), 5), "nothing was sent")
	})
}

func TestNoMoreTokensAreSpentThanTheServerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := newBackend(func(n int, _ *http.Request) (int, http.Header) {
			if n == 1 {
				return 200, fields("X-RateLimit-Remaining-Requests: 100", "X-RateLimit-Reset-Requests: 1m0s",
					"X-RateLimit-Remaining-Tokens: 1000", "X-RateLimit-Reset-Tokens: 1m0s")
			}
			return 200, nil
		})
		slow := roundTrip(func(r *http.Request) (*http.Response, error) {
			resp, err := b.RoundTrip(r)
			if r.URL.Path != "/first" {
				<-release
			}
			return resp, err
		})
		c, _ := client(t, slow, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{})
		spend(t, c, "http://a/first", 1)
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { spend(t, c, "http://a/", 400) })
			synctest.Wait()
		}
		assert.Len(t, b.times(), 3, "two of 400 tokens each, beside the first")
		close(release)
		wg.Wait()
		times := b.times()
		assert.Equal(t, []time.Duration{0, 0, 0, time.Minute, time.Minute, time.Minute}, times)
	})
}

// A program could read these texts as numbers, but no server means them so.
func TestAValueThatIsNoNumberStopsNoClient(t *testing.T) {
	for _, fields := range [][2]string{
		{"X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
		{"Ratelimit-Remaining", "Ratelimit-Reset"},
		{"X-Rate-Limit-Remaining", "X-Rate-Limit-Reset"},
		{"X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"},
		{"Anthropic-Ratelimit-Requests-Remaining", "Anthropic-Ratelimit-Requests-Reset"},
	} {
		reported := func(remaining, reset string) []httplimit.AdviceBudget {
			h := http.Header{fields[0]: {remaining}, fields[1]: {reset}}
			return httplimit.AdviceOf(&http.Response{StatusCode: http.StatusOK, Header: h}).Budgets
		}
		for _, number := range []string{"Infinity", "Inf", "+Inf", "-Inf", "NaN", "0x10", "0x1p4", "-60", "1_000", "1.2.3", "."} {
			assert.Empty(t, reported("0", number), "%v: reset %s", fields, number)
			assert.Empty(t, reported(number, "60"), "%v: remaining %s", fields, number)
		}
		require.Len(t, reported(" 0 ", " 60 "), 1, "%v", fields)
		assert.Equal(t, time.Minute, reported("0", "60")[0].Reset)
		require.Len(t, reported("0.5", "1.5"), 1, "%v", fields)
	}
}

// A server chooses its budgets' names freely, and a field may be as long as the client accepts.
func TestAServersNamesFillNoMemory(t *testing.T) {
	testsize.Sequential(t)
	const answers, size = 40, 1 << 20
	name := func(n int) string { return strconv.Itoa(n) + strings.Repeat("x", size) }
	for how, opts := range map[string]httplimit.TransportOptions{
		"long names": {},
		"short names that are a part of something long": {Advice: func(resp *http.Response) (httplimit.Advice, bool) {
			part := resp.Header.Get("X-RateLimit-Resource")[:8]
			return httplimit.Advice{Budgets: []httplimit.AdviceBudget{{Name: part, Left: 1 << 20, Reset: time.Hour}}}, true
		}},
		"many names": {Advice: func(*http.Response) (a httplimit.Advice, known bool) {
			for i := range 1000 {
				a.Budgets = append(a.Budgets, httplimit.AdviceBudget{Name: strconv.Itoa(i) + strings.Repeat("x", 2000), Left: 1 << 20, Reset: time.Hour})
			}
			return a, true
		}},
	} {
		t.Run(how, func(t *testing.T) {
			c, transport := client(t, roundTrip(func(r *http.Request) (*http.Response, error) {
				n, _ := strconv.Atoi(r.URL.Path[1:])
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{
					"X-Ratelimit-Resource": {name(n)}, "X-Ratelimit-Remaining": {"1000000"}, "X-Ratelimit-Reset": {"3600"},
				}}, nil
			}), reserver(t, ratelimit.Unlimited()), opts)
			before := testsize.Heap()
			for n := range answers {
				fetch(t, c, "http://a/"+strconv.Itoa(10_000_000+n))
			}
			assert.Less(t, testsize.Heap()-before, int64(256<<10))
			transport.Reset("http://a")
		})
	}
}

// Only a part of a long name is kept. Still, long names are distinguished.
func TestLongNamesOfBudgetsAreDistinguished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := strings.Repeat("x", 1000)
		b := newBackend(func(n int, _ *http.Request) (int, http.Header) {
			switch n {
			case 1:
				return 200, fields("X-RateLimit-Resource: "+long+"a", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 60")
			case 2:
				return 200, fields("X-RateLimit-Resource: "+long+"b", "X-RateLimit-Remaining: 5", "X-RateLimit-Reset: 60")
			}
			return 200, nil
		})
		c, _ := client(t, b, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{})
		ended := make(chan int, 2)
		for range 2 { // the second is in flight when the first is answered
			go func() { ended <- fetch(t, c, "http://a/") }()
		}
		<-ended
		<-ended
		fetch(t, c, "http://a/")
		assert.Equal(t, time.Minute, b.times()[2])
	})
}

// A budget is stricter if it has no more units left and no less time until its reset. If neither is stricter, both are read.
func TestOfTwoBudgetsOfOneNameTheStricterIsRead(t *testing.T) {
	for line, want := range map[string][]httplimit.AdviceBudget{
		`"a";r=5;t=60, "a";r=9;t=60`:                {{Name: "a", Left: 5, Reset: time.Minute}},
		`"a";r=9;t=60, "A";r=5;t=60`:                {{Name: "a", Left: 5, Reset: time.Minute}},
		`"a";r=5;t=60, "a";r=5;t=60`:                {{Name: "a", Left: 5, Reset: time.Minute}},
		`"a";r=5;t=6, "a";r=5;t=60`:                 {{Name: "a", Left: 5, Reset: time.Minute}},
		`"a";r=5;t=6, "a";r=9;t=60`:                 {{Name: "a", Left: 5, Reset: 6 * time.Second}, {Name: "a", Left: 9, Reset: time.Minute}},
		`"b";r=5;t=6, "a";r=9;t=60, "b";r=1;t=6`:    {{Name: "a", Left: 9, Reset: time.Minute}, {Name: "b", Left: 1, Reset: 6 * time.Second}},
		`"a";r=3;t=9, "a";r=3;t=1000, "a";r=4;t=10`: {{Name: "a", Left: 3, Reset: 1000 * time.Second}},
	} {
		assert.Equal(t, want, httplimit.AdviceOf(&http.Response{StatusCode: 200, Header: http.Header{"Ratelimit": {line}}}).Budgets, line)
	}
}
