package apis

import (
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/internal/dev/apis"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var (
	all   = flag.Bool("all", testsize.Of(0, 1) == 1, "play the bursts, changed limits, skewed clocks, outages and all peers, too")
	seeds = flag.Uint64("seeds", 1, "how often each hour is played")
)

// bounds are an hour's goals.
type bounds struct {
	goodput, refused float64
	apart            bool // whether one process may be served far more often than another
}

// goal returns the bounds for an API. The clients' jitter is not
// seeded, so the bounds leave a margin beyond the results of ten runs.
func goal(api apis.API) bounds {
	if reached, missed := misses[api.Name]; missed {
		return reached
	}
	switch {
	case api.Figures && !api.Few:
		return bounds{goodput: .97, refused: .035}
	case api.Figures:
		return bounds{goodput: .97, refused: .1}
	}
	return bounds{goodput: .97, refused: .1, apart: true} // without figures, an hour has too few refusals to show more
}

// misses lists the APIs whose hours miss the goal, and the bounds they reach.
var misses = map[string]bounds{
	// The fields do not show that the budget refills. Only successive answers show it, after some minutes.
	"own, draft 06": {goodput: .97, refused: .06}, "own, X-, epoch": {goodput: .97, refused: .06}, "own, X-, delta": {goodput: .97, refused: .06},
	// Eight processes compete for few units. Each one reads a budget that another has meanwhile spent.
	"own, ten a minute, burst 100": {goodput: .95, refused: .13}, "own, fixed window": {goodput: .97, refused: .18},
	"Discord": {goodput: .8, refused: .27, apart: true}, "six a minute": {goodput: .85, refused: .38, apart: true},
	// The server holds 50 requests for a minute each, so each answer is a minute old.
	"own, leaky bucket": {goodput: .97, refused: .32},
	// Units come back in the rhythm of their spending. The fields only show when the next one comes.
	"own, sliding log": {goodput: .7, refused: .25, apart: true}, "own, sliding counter": {goodput: .82, refused: .05},
	"Slack": {goodput: .93, refused: .1, apart: true},
}

func play(t *testing.T, c client, api apis.API, processes int, e apis.Event, seed uint64) (r apis.Result) {
	hour := time.Hour
	if api.Limit.Rate.Per == time.Second && api.Limit.Rate.Units > 10 && e == apis.Calm {
		hour /= 6 // a sixth of an hour has as many requests as another API's hour
	}
	synctest.Test(t, func(t *testing.T) {
		r = apis.Play{API: api, Processes: processes, Event: e, Seed: seed, Hour: hour, Client: c.new}.Run(t.Context())
	})
	t.Logf("| %s | %d | %s | %s | %v", api.Name, processes, e, c.name, r)
	return r
}

// In an hour, busy workers use each API's limit and are seldom refused.
// If the answers contain figures, the processes share the limit.
func TestHours(t *testing.T) {
	if testsize.Race {
		t.Skip("the tests of single requests run the same code")
	}
	for _, api := range apis.All() {
		for _, n := range []int{1, 4, 8} {
			t.Run(fmt.Sprint(api.Name, " ", n), func(t *testing.T) {
				for seed := range *seeds {
					r, b := play(t, clients[0], api, n, apis.Calm, 1+seed), goal(api)
					assert.Greater(t, r.Goodput, b.goodput)
					assert.Less(t, r.Share(), b.refused)
					least, most := r.Spread()
					assert.True(t, b.apart || least > -.25 && most < .25, "%v and %v", least, most)
					if api.Figures {
						assert.Less(t, r.Silence, 3*max(api.Cycle(n), 3*time.Second)+30*time.Second)
					}
				}
			})
		}
	}
}

// No event takes a client's share for longer than it lasts.
func TestHoursWithEvents(t *testing.T) {
	if !*all {
		t.Skip("only with -all")
	}
	for _, api := range apis.All() {
		for _, n := range []int{1, 4, 8} {
			for _, e := range apis.Events[1:] {
				r := play(t, clients[0], api, n, e, 1)
				assert.Greater(t, r.Goodput, .6, "%s, %d processes, %s", api.Name, n, e)
			}
		}
	}
}

// Peers play the same hours. Peers repeating refused requests use the limit, but most of their requests are refused.
func TestPeers(t *testing.T) {
	if testsize.Race {
		t.Skip("the tests of single requests run the same code")
	}
	names, processes := []string{"own, draft 11", "GitHub"}, []int{1}
	if *all {
		names, processes = append(names, "own, Retry-After alone", "Anthropic", "Notion"), append(processes, 8)
	}
	for _, name := range names {
		for _, n := range processes {
			for _, c := range clients {
				if c.only != "" && c.only != name {
					continue
				}
				r := play(t, c, apis.Named(name)[0], n, apis.Calm, 1)
				assert.Greater(t, r.Goodput, .9)
			}
		}
	}
}
