package httplimit_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// witness is a base that notes when requests are sent, and when refusals are received.
type witness struct {
	base     http.RoundTripper
	mu       sync.Mutex
	sent     []time.Time
	reported []refusal
}

type refusal struct {
	at   time.Time
	wait time.Duration
}

func (w *witness) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.sent = append(w.sent, time.Now())
	w.mu.Unlock()
	resp, err := w.base.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusTooManyRequests {
		return resp, err
	}
	s, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reported = append(w.reported, refusal{time.Now(), time.Duration(s) * time.Second})
	return resp, err
}

// early returns the requests that were sent too early. A loaded machine may take its time
// between receiving a refusal and noting it, so the first half of each wait is left out.
func (w *witness) early() (n int) {
	for _, sent := range w.sent {
		for _, r := range w.reported {
			if sent.After(r.at.Add(r.wait/2)) && sent.Before(r.at.Add(r.wait)) {
				n++
			}
		}
	}
	return n
}

// Fifty goroutines share a client, and this package's middleware is the server. In each dialect, all get an answer, and nothing is sent
// while the server accepts nothing.
func TestClientAndServerUnderLoad(t *testing.T) {
	requests := testsize.Of(50, 80)
	for name, dialect := range map[string]httplimit.Dialect{
		"Retry-After alone": httplimit.DialectNone, "draft 11": httplimit.DialectDraft11, "Unix time": httplimit.DialectXEpoch,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.Per(30, time.Second)), nil))
			m := middleware(t, ratelimit.Map(l, everyone), httplimit.Options{Dialect: dialect})
			server := httptest.NewServer(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })))
			defer server.Close()
			w := &witness{base: &http.Transport{MaxIdleConnsPerHost: 50}}
			c, transport := client(t, w, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxRetries: 20})
			var wg sync.WaitGroup
			work := make(chan int)
			for range 50 {
				wg.Go(func() {
					for n := range work {
						text := fmt.Sprint("body ", n)
						resp, err := c.Post(server.URL, "text/plain", strings.NewReader(text))
						if assert.NoError(t, err) {
							assert.Equal(t, http.StatusOK, resp.StatusCode)
							assert.Equal(t, text, body(t, resp))
						}
					}
				})
			}
			for n := range requests {
				work <- n
			}
			close(work)
			wg.Wait()
			assert.Zero(t, w.early())
			assert.Equal(t, uint64(requests), m.Stats().Allowed)
			assert.Equal(t, m.Stats().Denied, transport.Stats().Refused)
			assert.Equal(t, m.Stats().Denied, transport.Stats().Retried)
			assert.Equal(t, uint64(len(w.sent)), transport.Stats().Sent)
			c.CloseIdleConnections()
		})
	}
}

// Each response contains the remaining budget, so the server has to refuse hardly any request of a client that obeys.
func TestClientThatListensIsHardlyRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []ratelimit.Limit{
			ratelimit.FixedWindow(ratelimit.PerMinute(30)), ratelimit.TokenBucket(ratelimit.PerMinute(30), 10), ratelimit.SlidingCounter(ratelimit.PerMinute(30)),
		} {
			l := ratelimit.Must(ratelimit.New[string](limit, nil))
			m := middleware(t, ratelimit.Map(l, everyone), httplimit.Options{})
			h := m.Wrap(ok)
			c, transport := client(t, roundTrip(func(r *http.Request) (*http.Response, error) {
				time.Sleep(20 * time.Millisecond)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				time.Sleep(20 * time.Millisecond)
				return w.Result(), nil
			}), reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxRetries: 10})
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					for range 10 {
						assert.Equal(t, http.StatusOK, fetch(t, c, "http://a/"))
					}
				})
			}
			wg.Wait()
			assert.LessOrEqual(t, transport.Stats().Refused, uint64(20), "%v: one for each caller, who knows nothing at the beginning", limit)
		}
	})
}
