package httplimit_test

import (
	"context"
	"io"
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
)

// A server stalls, and 40 callers wait. When it answers again, the requests go on at the pace of the limiter: at no instant more are sent
// than its burst, although all slots come back at once.
func TestSlotsThatComeBackAfterAStallSendNoBurstAboveTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, stall = 20, 10 * time.Second
		begin := time.Now()
		var mu sync.Mutex
		var sent []time.Duration
		flying := 0
		stalls := roundTrip(func(*http.Request) (*http.Response, error) {
			mu.Lock()
			sent = append(sent, time.Since(begin))
			flying++
			assert.LessOrEqual(t, flying, slots)
			mu.Unlock()
			time.Sleep(max(stall-time.Since(begin), 10*time.Millisecond))
			mu.Lock()
			defer mu.Unlock()
			flying--
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("answer"))}, nil
		})
		rate := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 1), nil))
		base := http.RoundTripper(stalls)
		transport, err := httplimit.NewTransport(base, ratelimit.Map(rate, httplimit.TargetHost), &httplimit.TransportOptions{MaxInFlight: 20})
		require.NoError(t, err)
		c := &http.Client{Transport: transport}
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() { fetch(t, c, "http://a/") })
		}
		time.Sleep(stall / 2)
		synctest.Wait()
		assert.EqualValues(t, slots, transport.Stats().InFlight)
		all.Wait()
		require.Len(t, sent, 40)
		assert.Equal(t, 1900*time.Millisecond, sent[slots-1])
		for i := slots; i < len(sent); i++ {
			assert.Equal(t, stall+time.Duration(i-slots)*100*time.Millisecond, sent[i], "at the rate, from the end of the stall")
		}
		assert.Zero(t, transport.Stats().InFlight)
	})
}

func TestAResponsesBodyHoldsItsSlotUntilItEnds(t *testing.T) {
	for name, ends := range map[string]func(*testing.T, *http.Response){
		"read": func(t *testing.T, resp *http.Response) {
			_, err := io.Copy(io.Discard, resp.Body)
			assert.NoError(t, err)
		},
		"close": func(t *testing.T, resp *http.Response) { assert.NoError(t, resp.Body.Close()) },
		"both, twice": func(t *testing.T, resp *http.Response) {
			for range 2 {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, transport := client(t, newBackend(nil), reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxInFlight: 1})
				first, err := c.Get("http://a/1")
				require.NoError(t, err)
				assert.EqualValues(t, 1, transport.Stats().InFlight)
				assert.Equal(t, 200, fetch(t, c, "http://b/other key"))
				second := make(chan int)
				go func() { second <- fetch(t, c, "http://a/2") }()
				synctest.Wait()
				assert.EqualValues(t, 2, transport.Stats().Sent)
				ends(t, first)
				assert.Equal(t, 200, <-second)
				assert.Zero(t, transport.Stats().InFlight)
			})
		})
	}
}

// duplex is the connection of a response that switches protocols.
type duplex struct{ io.Reader }

func (duplex) Write(p []byte) (int, error) { return len(p), nil }
func (duplex) Close() error                { return nil }

// A request leaves nothing behind, however it ends: an error, a response without a body, a refusal that is repeated, a switch of protocols.
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				_, transport := client(t, roundTrip(func(*http.Request) (*http.Response, error) { n++; return answer(n) }),
					reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxInFlight: 1, MaxRetries: 1})
				for range 3 {
					func() {
						defer func() { _ = recover() }()
						r, err := http.NewRequest("GET", "http://a/", nil)
						require.NoError(t, err)
						resp, err := transport.RoundTrip(r)
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
				}
			})
		})
	}
}

type cutOff struct{}

func (cutOff) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestARequestWaitsForASlotAsLongAsItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, transport := client(t, newBackend(nil), reserver(t, ratelimit.TokenBucket(ratelimit.PerMinute(100), 100)), httplimit.TransportOptions{MaxInFlight: 1, MaxWait: 3 * time.Second})
		held, err := c.Get("http://a/held")
		require.NoError(t, err)
		begin := time.Now()
		_, err = c.Get("http://a/patient")
		require.ErrorIs(t, err, ratelimit.ErrLimited)
		assert.ErrorContains(t, err, "MaxInFlight is 1, and so many are in flight")
		var late *ratelimit.LateError
		assert.ErrorAs(t, err, &late)
		assert.Equal(t, 3*time.Second, time.Since(begin).Truncate(time.Millisecond))

		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, "GET", "http://a/leaves", nil)
		require.NoError(t, err)
		left, last := make(chan error), make(chan int)
		go func() { _, err := c.Do(r); left <- err }()
		synctest.Wait()
		go func() { last <- fetch(t, c, "http://a/last") }()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-left, context.Canceled)
		body(t, held)
		assert.Equal(t, 200, <-last, "a request that has left holds up no other")
		assert.Zero(t, transport.Stats().InFlight)
		assert.EqualValues(t, 2, transport.Stats().Sent)
	})
}

func TestMaxInFlightBelowZeroIsRefused(t *testing.T) {
	_, err := httplimit.NewTransport(nil, reserver(t, ratelimit.Unlimited()), &httplimit.TransportOptions{MaxInFlight: -1})
	assert.EqualError(t, err, "httplimit: TransportOptions.MaxInFlight is -1, want 0 for any number, or more")
}
