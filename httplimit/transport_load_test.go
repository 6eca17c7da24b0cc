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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var servers = flag.Int("servers", testsize.Of(40, 1000), "how many random hostile servers a Transport meets")

// These are the fields read by a Transport, and values for them.
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

// Each of a Transport's requests ends, whatever the server answers. A server may delay each
// attempt by MaxServerWait, and a request waits for all attempts before it in the queue.
func TestTransportOutlivesHostileServers(t *testing.T) {
	n := *servers
	for seed := range uint64(n) {
		synctest.Test(t, func(t *testing.T) {
			s := &hostile{rnd: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec
			const longest, requests, retries = 10 * time.Second, 20, 2
			tr := ratelimit.Must(httplimit.NewTransport(s, reserver(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 5)), &httplimit.TransportOptions{MaxServerWait: longest, MaxRetries: retries}))
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

// A connection's first error may come from an idle connection closed by the server. A second error in a row closes
// the queue, and an answer opens it again. Errors from the request itself and from its context do not count.
func TestErrorsOfTheConnectionAreWaitedForTwiceAsLongEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := error(io.EOF)
		b := newBackend(nil)
		c, transport := client(t, roundTrip(func(r *http.Request) (*http.Response, error) {
			resp, _ := b.RoundTrip(r)
			if fails != nil {
				_ = resp.Body.Close()
				return nil, fails
			}
			return resp, nil
		}), reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{})
		for n := range 11 {
			if n == 9 {
				fails = nil
			}
			_, err := c.Get("http://a/")
			assert.Equal(t, n >= 9, err == nil)
		}
		var gaps []time.Duration
		for i, at := range b.times()[1:] {
			gaps = append(gaps, (at-b.times()[i])/time.Second)
		}
		assert.Equal(t, []time.Duration{0, 1, 2, 4, 8, 15, 15, 15, 15, 0}, gaps)
		assert.Zero(t, transport.Stats().Refused)

		begin := time.Now()
		for _, fails = range []error{fmt.Errorf("unsupported scheme"), context.Canceled, ratelimit.ErrLimited} {
			for range 3 {
				_, err := c.Get("http://a/")
				assert.ErrorIs(t, err, fails)
			}
		}
		assert.Zero(t, time.Since(begin))
	})
}

// A response holds MaxInFlight's slot, or Inflight's permit, until its body ends.
func TestAResponsesBodyHoldsItsSlotUntilItEnds(t *testing.T) {
	for name, ends := range map[string]func(*testing.T, *http.Response){
		"read": func(t *testing.T, resp *http.Response) {
			_, err := io.Copy(io.Discard, resp.Body)
			assert.NoError(t, err)
		},
		"close": func(t *testing.T, resp *http.Response) { assert.NoError(t, resp.Body.Close()) },
		"half, then close": func(_ *testing.T, resp *http.Response) {
			_, _ = resp.Body.Read(make([]byte, 1))
			_ = resp.Body.Close()
		},
		"both, twice": func(_ *testing.T, resp *http.Response) {
			for range 2 {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		},
	} {
		for _, permits := range []bool{false, true} {
			bubble(t, fmt.Sprint(name, ", permits ", permits), func(t *testing.T) {
				opts, held := httplimit.TransportOptions{MaxInFlight: 1}, ratelimit.Must(inflight.New(1, &inflightOptions{MaxQueue: 1}))
				l := reserver(t, ratelimit.Unlimited())
				if permits {
					l, opts = nil, httplimit.TransportOptions{Inflight: held, MaxWait: time.Minute}
				}
				c, transport := client(t, newBackend(nil), l, opts)
				inFlight := func() int { return held.Totals().InFlight + int(transport.Stats().InFlight) }
				first, err := c.Get("http://a/1")
				require.NoError(t, err)
				assert.Equal(t, 1, inFlight())
				assert.Equal(t, 200, fetch(t, c, "http://b/other key"))
				if permits {
					_, err = c.Post("http://a/2", "", strings.NewReader("x"))
					assert.ErrorIs(t, err, ratelimit.ErrLimited)
					assert.ErrorContains(t, err, "no permit within MaxWait, which is 1m0s")
				}
				second := make(chan int)
				go func() { second <- fetch(t, c, "http://a/2") }()
				synctest.Wait()
				assert.EqualValues(t, 2, transport.Stats().Sent)
				ends(t, first)
				assert.Equal(t, 200, <-second)
				assert.Zero(t, inFlight())
			})
		}
	}
}

// duplex is the connection of a response that switches protocols.
type duplex struct{ io.Reader }

func (duplex) Write(p []byte) (int, error) { return len(p), nil }
func (duplex) Close() error                { return nil }

// A request leaves nothing behind, however it ends: with an error, a
// response without a body, a repeated refusal, or a switch of protocols.
func TestASlotComesBackHoweverARequestEnds(t *testing.T) {
	answers := map[string]func(n int) (*http.Response, error){
		"an error": func(int) (*http.Response, error) { return nil, io.ErrUnexpectedEOF },
		"nothing":  func(int) (*http.Response, error) { return nil, nil },
		"no body":  func(int) (*http.Response, error) { return &http.Response{StatusCode: 204, Body: http.NoBody}, nil },
		"a panic":  func(int) (*http.Response, error) { panic("below") },
		"a failure": func(int) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(cutOff{})}, nil
		},
		"a refusal": func(n int) (*http.Response, error) {
			resp := &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("answer"))}
			if n%2 == 1 {
				resp.StatusCode, resp.Header = 429, fields("Retry-After: 1")
			}
			return resp, nil
		},
		"a connection": func(int) (*http.Response, error) {
			return &http.Response{StatusCode: 101, Body: duplex{strings.NewReader("")}}, nil
		},
		"no connection": func(int) (*http.Response, error) {
			return &http.Response{StatusCode: 101, Body: io.NopCloser(strings.NewReader(""))}, nil
		},
	}
	for name, answer := range answers {
		bubble(t, name, func(t *testing.T) {
			n, permits := 0, ratelimit.Must(inflight.New[string](1, nil))
			_, transport := client(t, roundTrip(func(*http.Request) (*http.Response, error) { n++; return answer(n) }),
				reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxInFlight: 1, MaxRetries: 1, Inflight: permits})
			for range 3 {
				func() {
					defer func() { _ = recover() }()
					resp, err := transport.RoundTrip(ratelimit.Must(http.NewRequest("GET", "http://a/", nil)))
					if err != nil || resp == nil {
						return
					}
					if conn, ok := resp.Body.(io.Writer); ok {
						_, err := conn.Write([]byte("hello"))
						assert.NoError(t, err)
						_, _ = io.ReadAll(resp.Body)
						assert.EqualValues(t, 1, transport.Stats().InFlight, "until it is closed")
						_ = resp.Body.Close()
					}
					_, _ = io.ReadAll(resp.Body)
				}()
				assert.Zero(t, transport.Stats().InFlight)
				assert.Zero(t, permits.Totals().InFlight)
			}
		})
	}
}

type cutOff struct{}

func (cutOff) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
