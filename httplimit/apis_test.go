package httplimit_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/apis"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// play plays an hour of Transports.
func play(t *testing.T, api apis.API, processes int, e apis.Event) (r apis.Result) {
	if testsize.Race {
		t.Skip("it would take seconds, and the tests of single requests run the same code")
	}
	synctest.Test(t, func(t *testing.T) {
		r = apis.Play{API: api, Processes: processes, Event: e, Seed: 1, Client: apis.Transport}.Run(t.Context())
		t.Logf("%-24s %d %-8s %v", api.Name, processes, e, r)
	})
	return r
}

// A server that answers with Retry-After alone, or with nothing, refuses little of an hour's requests, of one process and of eight. Without a
// pace, it refuses half of them and more.
func TestAPaceIsLearntFromServersWithoutFigures(t *testing.T) {
	for _, name := range []string{"own, Retry-After alone", "Notion", "Slack"} {
		for _, processes := range []int{1, 8} {
			t.Run(fmt.Sprint(name, " ", processes), func(t *testing.T) {
				r := play(t, apis.Named(name)[0], processes, apis.Calm)
				assert.Greater(t, r.Goodput, .95)
				assert.Less(t, r.Share(), .1)
			})
		}
	}
}

// Eight processes share what a server's figures show: of a bucket in any dialect, also where only the answers show that it refills.
func TestEightProcessesShareABucketThatRefills(t *testing.T) {
	for _, name := range []string{"own, draft 11", "own, draft 06", "own, X-, epoch", "Anthropic", "Shopify"} {
		t.Run(name, func(t *testing.T) {
			api := apis.Named(name)[0]
			r := play(t, api, 8, apis.Calm)
			assert.Greater(t, r.Goodput, .97)
			assert.Less(t, r.Share(), .07, "usually a third of that")
			least, most := r.Spread()
			assert.Greater(t, least, -.25)
			assert.Less(t, most, .25)
			assert.Less(t, r.Silence, 3*api.Cycle(8))
		})
	}
}

// Half an hour in which nothing is served, then the pace of before: the server's limit is used again in full.
func TestAnOutageOfHalfAnHourIsNotLearntAsAPace(t *testing.T) {
	for _, e := range []apis.Event{apis.Outage, apis.Failing} {
		t.Run(string(e), func(t *testing.T) {
			r := play(t, apis.Named("own, Retry-After alone")[0], 4, e)
			assert.Greater(t, r.Goodput, .95)
			assert.Less(t, r.Failed, 1000, "of connections or 500s, which 40 workers would make 10,000s of")
			assert.Less(t, r.Silence, 75*time.Second)
		})
	}
}

// The first error of a connection may come from an idle connection that the server has closed. A second error in a row
// closes the queue, and an answer opens it again. Errors of the request itself and of its context do not count.
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
