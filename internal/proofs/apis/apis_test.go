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

// bounds are what an hour has to reach.
type bounds struct {
	goodput, refused float64
	apart            bool // one process may be served far more often than another
}

// goal returns the bounds for an API. The clients' jitter is not seeded, so each has room above what ten runs have reached.
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
	return bounds{goodput: .97, refused: .1, apart: true} // the refusals of an hour do not show more
}

// misses are the APIs whose hours miss the goal, and what they reach.
var misses = map[string]bounds{
	// The fields do not say that the budget refills, and the first minutes pass until its answers have shown it.
	"own, draft 06": {goodput: .97, refused: .06}, "own, X-, epoch": {goodput: .97, refused: .06}, "own, X-, delta": {goodput: .97, refused: .06},
	// Eight processes meet at the last of few units: each sees a budget that another has spent by then.
	"own, ten a minute, burst 100": {goodput: .95, refused: .13}, "own, fixed window": {goodput: .97, refused: .18},
	"Discord": {goodput: .8, refused: .27, apart: true}, "six a minute": {goodput: .85, refused: .38, apart: true},
	// The server holds 50 requests, each for a minute, so that each answer is a minute old.
	"own, leaky bucket": {goodput: .97, refused: .32},
	// Units come back in the rhythm in which they were spent, and the fields have the time of the next one only.
	"own, sliding log": {goodput: .7, refused: .25, apart: true}, "own, sliding counter": {goodput: .82, refused: .05},
	"Slack": {goodput: .93, refused: .1, apart: true},
}

func play(t *testing.T, c client, api apis.API, processes int, e apis.Event, seed uint64) (r apis.Result) {
	hour := time.Hour
	if api.Limit.Rate.Per == time.Second && api.Limit.Rate.Units > 10 && e == apis.Calm {
		hour /= 6 // it has as many requests as another's hour
	}
	synctest.Test(t, func(t *testing.T) {
		r = apis.Play{API: api, Processes: processes, Event: e, Seed: seed, Hour: hour, Client: c.new}.Run(t.Context())
	})
	t.Logf("| %s | %d | %s | %s | %v", api.Name, processes, e, c.name, r)
	return r
}

// An hour of busy workers uses the limit of each API, is refused little, and its processes share the limit where figures show it.
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

// What happens in an hour costs no client its share for the rest of it.
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

// Peers play the same hours. Those that repeat what was refused use the limit, and most of what they send is refused.
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
