package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// taking is a request that takes the answers of all layers itself: see package answers.
type taking struct {
	key     string
	which   []int
	denials bool // it takes the answers of denials only
	taken   []string
}

func (t *taking) WantsAnswers(allowed bool) bool { return !allowed || !t.denials }

func (t *taking) TakeAnswer(layer int, d *ratelimit.Decision, spent bool, err error) {
	t.taken = append(t.taken, fmt.Sprint(layer, *d, spent, err))
}

// TestARequestTakesTheAnswersThatObserversGet asks two equal stacks: one whose requests take the answers, and one whose
// layers are observed.
func TestARequestTakesTheAnswersThatObserversGet(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	var seen []string
	clock := new(testClock)
	stackOf := func(observed bool) *ratelimit.Layered[*taking] {
		var layers []ratelimit.Layer[*taking]
		for i, limit := range []ratelimit.Limit{
			ratelimit.TokenBucket(ratelimit.PerSecond(2), 6), ratelimit.FixedWindow(ratelimit.PerSecond(5)), ratelimit.SlidingLog(ratelimit.PerSecond(4)),
		} {
			l := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock}))
			y := ratelimit.By(l, func(r *taking) (string, error) { return r.key, nil })
			if i == 2 {
				y = ratelimit.Shadow(y)
			}
			if observed {
				y = ratelimit.Observe(y, func(e ratelimit.Event[*taking]) { seen = append(seen, fmt.Sprint(i, e.Decision, e.Spent, e.Err)) })
			}
			layers = append(layers, y)
		}
		l, err := ratelimit.AllOf(func(r *taking, which []int) []int { return append(which, r.which...) }, layers...)
		require.NoError(t, err)
		return l
	}
	takes, observed := stackOf(false), stackOf(true)
	allowed, denied := 0, 0
	for range 2000 {
		clock.advance(time.Duration(r.IntN(int(300 * time.Millisecond))))
		q := &taking{key: fmt.Sprint(r.IntN(3)), which: [][]int{{0, 1, 2}, {0}, {2, 1}, {1, 2}, {}}[r.IntN(5)], denials: r.IntN(2) == 0}
		cost := r.IntN(8)
		seen = nil
		var ok, want bool
		if r.IntN(2) == 0 {
			ok, want = takes.Allow(q, cost), observed.Allow(&taking{key: q.key, which: q.which}, cost)
		} else {
			d, err := takes.Take(t.Context(), q, cost)
			e, wantErr := observed.Take(t.Context(), &taking{key: q.key, which: q.which}, cost)
			require.Equal(t, e, d)
			require.Equal(t, fmt.Sprint(wantErr), fmt.Sprint(err))
			ok, want = d.Allowed && err == nil, e.Allowed && wantErr == nil
		}
		require.Equal(t, want, ok)
		if ok {
			allowed++
		} else {
			denied++
		}
		if ok && q.denials {
			require.Empty(t, q.taken)
			continue
		}
		if !ok && cost > 5 && len(q.taken) == len(seen) { // an error of Allow has no text
			continue
		}
		require.Equal(t, seen, q.taken)
	}
	require.Greater(t, allowed, 200)
	require.Greater(t, denied, 200)
}
