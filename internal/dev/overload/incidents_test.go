package overload

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// A partial outage stays partial: goodput, as a share of the best fixed limit's, of one process and of several that share
// the backend. The proof of package inflight plays all incidents, and other libraries beside these limits.
func TestAPartialOutageStaysPartial(t *testing.T) {
	t.Parallel()
	least := map[string]float64{
		"30 % quick 503":                     0.9,
		"50 % quick 503":                     0.9,
		"30 % hang for 2 s":                  0.6,
		"33 % have a deadline of 1 ms":       0.9,
		"a cap of 16, a refusal costs 10 ms": 0.72,
		"the cap falls from 64 to 16":        0.72,
	}
	for _, i := range Incidents() {
		want, ok := least[i.Name]
		if !ok {
			continue
		}
		best := i.Best(1, 8, 16, 20, 28, 40, 160, 400)
		for _, processes := range testsize.Of([]int{1, 4}, []int{1, 4, 8}) {
			for _, l := range limits {
				f := new(Fleet)
				for range processes {
					f.Gates = append(f.Gates, NewLimiter(1000, l.new(Cell{Phase: Phase{Service: i.Service}})))
				}
				for at, r := range i.Play(f, 1) {
					if i.Phases[at].Name == "" {
						continue
					}
					part := r.Goodput / best[at].Goodput
					name := fmt.Sprintf("%s (%s), %d × %s", i.Name, i.Phases[at].Name, processes, l.name)
					t.Logf("%-70s %3.0f %%", name, 100*part)
					assert.GreaterOrEqual(t, part, want, name)
				}
			}
		}
	}
}

// The world of a partial outage does what its fields say.
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
