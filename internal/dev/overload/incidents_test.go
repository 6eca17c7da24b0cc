package overload

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// A partial outage stays partial. The test measures the goodput of one process, and of several sharing the backend, as
// a share of the best fixed limit's. Long tests play all incidents. Package inflight's proof compares other libraries.
func TestAPartialOutageStaysPartial(t *testing.T) {
	testsize.Extra(t)
	short := map[string]bool{"30 % quick 503": true, "90 % quick 503": true, "50 % quick 503, after an outage": true, "a cap of 16, a refusal costs 10 ms": true}
	for _, i := range Incidents() {
		if !testsize.Long() && !short[i.Name] {
			continue
		}
		t.Run(i.Name, func(t *testing.T) {
			t.Parallel()
			best := i.Best(1, 4, 8, 12, 16, 20, 28, 40, 64, 160, 400)
			for _, processes := range testsize.Of([]int{1}, []int{1, 4, 8}) {
				if processes > 1 && i.Shared == 0 {
					continue
				}
				f := new(Fleet)
				for range processes {
					f.Gates = append(f.Gates, NewLimiter(1000, i.Adaptive()))
				}
				for stage, r := range i.Play(f, 1) {
					if i.Phases[stage].Name == "" {
						continue
					}
					part := r.Goodput / best[stage].Goodput
					t.Logf("%-8s %d processes: %3.0f %%", i.Phases[stage].Name, processes, 100*part)
					assert.GreaterOrEqual(t, part, i.Reach(stage, processes), "%s, %d processes", i.Phases[stage].Name, processes)
				}
			}
		})
	}
}

// Hanging calls hold most of the permits, whatever the limit is. The limit grows
// until the other calls have enough permits, in every run and not only on average.
func TestCallsThatHangDoNotHoldTheLimitLow(t *testing.T) {
	testsize.Extra(t)
	for _, i := range Incidents() {
		if !strings.Contains(i.Name, "hang") {
			continue
		}
		t.Run(i.Name, func(t *testing.T) {
			t.Parallel()
			var parts []float64
			for seed := range uint64(testsize.Of(4, 40)) {
				best := i.Best(seed, 100, 400, 1000)
				parts = append(parts, i.Play(NewLimiter(1000, i.Adaptive()), seed)[1].Goodput/best[1].Goodput)
			}
			slices.Sort(parts)
			t.Logf("least %.2f, median %.2f", parts[0], parts[len(parts)/2])
			assert.Greater(t, parts[0], 0.9)
		})
	}
}

// The simulation follows the fields for partial outages.
func TestFailuresCapsAndRetries(t *testing.T) {
	play := func(p Phase) *World {
		p.Servers, p.Service, p.Load = 4, 20*time.Millisecond, 1
		w := NewWorld(&Fixed{Limit: 1 << 30}, 1)
		w.Begin(p)
		w.Play(100 * time.Second) // 20,000 requests
		return w
	}
	w := play(Phase{Fail: 0.5, FailIn: time.Second})
	assert.InDelta(t, 10_000, w.Good, 400)
	assert.InDelta(t, 0.5+0.01, w.Mean().Seconds(), 0.02, "half of them take a second")
	assert.Less(t, w.Answers/time.Duration(w.Good), 100*time.Millisecond)

	w = play(Phase{FailIn: time.Millisecond, FailTo: 0.8, FailOver: 100 * time.Second})
	assert.InDelta(t, 12_000, w.Good, 400, "40 % on average")

	w = play(Phase{Fail: 0.5, FailIn: time.Millisecond, Retries: 2})
	assert.InDelta(t, 17_500, w.Good, 500, "1/2 + 1/4 + 1/8 of them")

	w = play(Phase{Cap: 2})
	assert.InDelta(t, 100*2*50, w.Good, 4000, "two at once")
	assert.Less(t, w.Good, 10_000)

	w = play(Phase{Short: 0.25, ShortIn: time.Microsecond})
	assert.InDelta(t, 15_000, w.Good, 400)
}
