package httplimit_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var servers = flag.Int("servers", testsize.Of(40, 1000), "how many random hostile servers a Transport meets")

// Values that a server may write into any field that a Transport reads.
var (
	readFields = []string{
		"Retry-After", "Retry-After-Ms", "Date", "Age", "RateLimit", "RateLimit-Policy", "RateLimit-Remaining", "RateLimit-Reset",
		"X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Reset-After", "X-RateLimit-Resource", "X-RateLimit-Bucket",
		"X-RateLimit-Remaining-Requests", "X-RateLimit-Reset-Requests", "X-RateLimit-Remaining-Tokens", "X-RateLimit-Reset-Tokens",
		"Anthropic-Ratelimit-Tokens-Remaining", "Anthropic-Ratelimit-Tokens-Reset", "X-Rate-Limit-Remaining", "X-Rate-Limit-Reset",
	}
	hostileValues = []string{
		"", "0", "-1", "1", "5", "0.5", "1e9", "1e308", "1e-9", "NaN", "Infinity", "-Infinity", "9223372036854775807", "9223372036854775808", "99999999999999999999999",
		"1700000000", "946684800", "946684800000", "0x10", " 3 ", "3,4", "3;q=1", "6m0s", "-6m0s", "9999999h", "1s1s", "٣", "\x00", "a\"b", strings.Repeat("9", 5000), strings.Repeat(";a", 5000),
		`"a";r=0;t=5`, `"a";r=0;t=999999999999999`, `"a";r=-1;t=5`, `"a";r=5;t=0`, `"a";r=0`, `"a";q=1;w=5`, `"a";r=1;t=5, "b";r=0;t=3`, `"a";r=0;t=5,`, `a;r=0;w=5`, `"a";a=0;w=5`,
		"limit=1, remaining=0, reset=5", "limit=1, remaining=0, reset=1e9", "remaining=?1, reset=:AA==:", "((((", `"\`, `"a";r=0;t=5;pk=:!!:`,
		"Sat, 01 Jan 2000 00:00:10 GMT", "Sat, 01 Jan 2000 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 GMT", "2000-01-01T00:00:20Z", "9999-12-31T23:59:59Z", "0000-01-01T00:00Z",
		"Sun Nov  6 08:49:37 1994", "Sunday, 06-Nov-94 08:49:37 GMT",
	}
)

// hostile is a server that answers anything.
type hostile struct {
	mu  sync.Mutex
	rnd *rand.Rand
}

func (s *hostile) upTo(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(n)
}

func (s *hostile) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
	}
	time.Sleep(time.Duration(s.upTo(3)) * 50 * time.Millisecond)
	if s.upTo(12) == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	resp := &http.Response{
		StatusCode: []int{200, 200, 200, 429, 429, 503, 529, 403, 204, 304, 500, 100, 0, -1, 999}[s.upTo(15)],
		Header:     http.Header{}, Body: io.NopCloser(strings.NewReader("body")), Request: r,
	}
	if s.upTo(10) == 0 {
		resp.Header = nil
		return resp, nil
	}
	for range s.upTo(6) {
		resp.Header.Add(readFields[s.upTo(len(readFields))], hostileValues[s.upTo(len(hostileValues))])
	}
	return resp, nil
}

// Every request of a Transport ends, with any answers of the server: within the longest wait that the server is
// granted, for each attempt, and the waits of requests before it in the queue.
func TestTransportOutlivesHostileServers(t *testing.T) {
	n := *servers
	for seed := range uint64(n) {
		synctest.Test(t, func(t *testing.T) {
			s := &hostile{rnd: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec
			const longest, requests, retries = 10 * time.Second, 20, 2
			tr, err := httplimit.NewTransport(s, reserver(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 5)), &httplimit.TransportOptions{MaxServerWait: longest, MaxRetries: retries})
			require.NoError(t, err)
			begin := time.Now()
			var all sync.WaitGroup
			for i := range requests {
				all.Go(func() {
					time.Sleep(time.Duration(s.upTo(20)) * time.Second)
					ctx, limited := t.Context(), s.upTo(3) == 0
					if limited {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, time.Duration(s.upTo(15))*time.Second)
						defer cancel()
					}
					if s.upTo(3) == 0 {
						ctx = httplimit.WithCost(ctx, s.upTo(7)-1)
					}
					var body io.Reader
					switch s.upTo(3) {
					case 0:
						body = strings.NewReader("text")
					case 1:
						body = io.MultiReader(strings.NewReader("cannot be read again"))
					}
					r, err := http.NewRequestWithContext(ctx, []string{"GET", "POST", "HEAD", "OPTIONS", ""}[s.upTo(5)], fmt.Sprintf("http://host-%d/", i%2), body)
					if err != nil {
						t.Error(err)
						return
					}
					requested := time.Now()
					resp, err := tr.RoundTrip(r)
					if (resp == nil) == (err == nil) {
						t.Errorf("seed %d: a response and an error, or neither: %v", seed, err)
					}
					if deadline, ok := ctx.Deadline(); ok && time.Now().After(deadline.Add(time.Second)) {
						t.Errorf("seed %d: returned %v after the deadline, asked %v before", seed, time.Since(deadline), time.Since(requested))
					}
				})
			}
			all.Wait()
			if took := time.Since(begin); took > requests*(retries+1)*(longest+time.Minute) {
				t.Errorf("seed %d: took %v", seed, took)
			}
			stats := tr.Stats()
			if stats.Sent-stats.Retried+stats.Failed != requests {
				t.Errorf("seed %d: %d requests: %+v", seed, requests, stats)
			}
		})
		if t.Failed() {
			return
		}
	}
}
