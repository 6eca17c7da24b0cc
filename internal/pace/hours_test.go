package pace_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/internal/dev/apis"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// play plays an hour of Transports against an API.
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

// A server sends Retry-After alone, or nothing at all. It still refuses few of an hour's
// requests, from one process or from eight. Without a pace, it would refuse half of them or more.
func TestAPaceIsLearntFromServersWithoutFigures(t *testing.T) {
	for _, name := range []string{"own, Retry-After alone", "Notion", "Slack"} {
		for _, processes := range []int{1, 8} {
			t.Run(fmt.Sprint(name, " ", processes), func(t *testing.T) {
				r := play(t, apis.Named(name)[0], processes, apis.Calm)
				assert.Greater(t, r.Goodput, .94)
				assert.Less(t, r.Share(), .15, "2 to 9 % in a hundred runs")
			})
		}
	}
}

// Eight processes share a server's bucket evenly, by its figures in any
// dialect. In some dialects only successive answers show that it refills.
func TestEightProcessesShareABucketThatRefills(t *testing.T) {
	for _, name := range []string{"own, draft 11", "own, draft 06", "own, X-, epoch", "Anthropic", "Shopify"} {
		t.Run(name, func(t *testing.T) {
			api := apis.Named(name)[0]
			r := play(t, api, 8, apis.Calm)
			assert.Greater(t, r.Goodput, .97)
			assert.Less(t, r.Share(), .12, "2 % in most runs, and up to 7 %")
			least, most := r.Spread()
			assert.Greater(t, least, -.25)
			assert.Less(t, most, .25)
			assert.Less(t, r.Silence, 3*api.Cycle(8))
		})
	}
}

// For half an hour no request is served. Then the former pace applies again, and the server's limit is used in full.
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
