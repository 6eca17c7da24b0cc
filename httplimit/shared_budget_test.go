package httplimit_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

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
}

func TestBudgetsOfOtherServersFieldsAreRead(t *testing.T) {
	for line, want := range map[string]httplimit.AdviceBudget{
		"X-Shopify-Shop-Api-Call-Limit: 32/40": {Name: "shopify", Left: 8, Limit: 40, Window: 20 * time.Second, Refills: true, Reset: 16 * time.Second},
		"Ratelimit-Remaining: 0;w=21600":       {Left: 0, Window: 6 * time.Hour, Reset: 6 * time.Hour},
	} {
		got := httplimit.AdviceOf(&http.Response{StatusCode: 200, Header: fields(line)})
		assert.Equal(t, []httplimit.AdviceBudget{want}, got.Budgets, line)
	}
}

func TestAnAdviceFunctionReadsTheBodyAndSoDoesTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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

// A reverse proxy's Transport would have to wait too long, so the proxy answers with the time to retry.
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
