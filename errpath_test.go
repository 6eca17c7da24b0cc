package ratelimit_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// refusals are the ways in which a call is refused for good, and what Take says to each.
func refusals() []refusal {
	big := whole(1 << 40)
	bucket, blocked := ratelimit.TokenBucket(ratelimit.PerSecond(10), 20).Named("plan"), ratelimit.Blocked()
	return []refusal{
		{"above the capacity", bucket, 21, ratelimit.ErrExceedsLimit},
		{"far above the capacity", ratelimit.SlidingLog(ratelimit.PerSecond(10)), big, ratelimit.ErrExceedsLimit},
		{"blocked", blocked, 1, ratelimit.ErrBlocked},
		{"blocked and named", blocked.Named("banned"), big, ratelimit.ErrBlocked},
		{"above a queue", ratelimit.LeakyBucket(ratelimit.PerSecond(10), 5), 6, ratelimit.ErrExceedsLimit},
		{"below zero", bucket, -1, ratelimit.ErrNegativeCost},
		{"below zero and blocked", blocked, -big, ratelimit.ErrNegativeCost},
	}
}

type refusal struct {
	name  string
	limit ratelimit.Limit
	cost  int
	err   error
}

// A client that is banned, or that asks for more than can ever pass, must not cost more than
// one that is denied: Allow allocates for neither.
func TestAllowAllocatesNothingForWhatIsRefusedForGood(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes pools allocate")
	}
	for _, test := range refusals() {
		for _, known := range []bool{false, true} {
			l := newWith(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 100), ratelimit.Options[string]{})
			if known {
				require.True(t, l.Allow("ann", 1))
			}
			require.NoError(t, l.SetLimit(test.limit))
			name := fmt.Sprintf("%s, known: %v", test.name, known)
			allocatesNothing(t, name, func() { l.Allow("ann", test.cost) })
			for n := 1; n <= 3; n++ {
				open := newWith(t, ratelimit.Unlimited(), ratelimit.Options[string]{})
				layers := []ratelimit.Layer[call]{ratelimit.By(open, byUser), ratelimit.By(l, byUser), ratelimit.By(open, byRoute)}
				stack := stackOf(t, layers[3-n:]...)
				if n == 1 {
					stack = stackOf(t, layers[1])
				}
				allocatesNothing(t, fmt.Sprintf("%s, %d layers", name, n), func() { stack.Allow(call{user: "ann"}, test.cost) })
				_, err := stack.Take(t.Context(), call{user: "ann"}, test.cost)
				require.ErrorIs(t, err, test.err)
				if !known { // else the key is not under the new limit yet, and what it has spent is converted
					allocs := testing.AllocsPerRun(100, func() { _, _ = stack.Take(t.Context(), call{user: "ann"}, test.cost) })
					require.LessOrEqual(t, allocs, 2.0, "Take allocates its error and no text: %s", name)
				}
			}
			_, err := l.Take(t.Context(), "ann", test.cost)
			require.ErrorIs(t, err, test.err)
			require.False(t, l.Allow("ann", test.cost))
		}
	}
}

func allocatesNothing(t *testing.T, name string, f func()) {
	t.Helper()
	f()
	assert.Zero(t, testing.AllocsPerRun(100, f), name)
}

// The same holds for other ways to be refused: a full table, and a key function that fails.
func TestAllowAllocatesNothingForErrors(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes pools allocate")
	}
	full := newWith(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 5), ratelimit.Options[string]{MaxKeys: 1, OnFull: ratelimit.RefuseNew})
	require.True(t, full.Allow("ann", 1))
	other := newWith(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 5), ratelimit.Options[string]{})
	require.True(t, other.Allow("", 1)) // it is not inserted for what is denied
	boom := errors.New("boom")
	stacks := map[string]*ratelimit.Layered[call]{
		"a full table": stackOf(t, ratelimit.By(other, byRoute), ratelimit.By(full, byUser)),
		"no key":       stackOf(t, ratelimit.By(other, byRoute), ratelimit.By(full, func(call) (string, error) { return "", boom })),
		"no shadow's key": stackOf(t, ratelimit.By(full, func(call) (string, error) { return "ann", nil }),
			ratelimit.Shadow(ratelimit.By(other, func(call) (string, error) { return "", boom }))),
	}
	for name, stack := range stacks {
		require.Equal(t, name == "no shadow's key", stack.Allow(call{user: "bob"}, 1), name)
		allocatesNothing(t, name, func() { stack.Allow(call{user: "bob"}, 1) })
	}
	allocatesNothing(t, "a full table, alone", func() { full.Allow("bob", 1) })
	_, err := stacks["a full table"].Take(t.Context(), call{user: "bob"}, 1)
	require.EqualError(t, err, "layer 1: ratelimit: key table full: 1 keys")
	_, err = stacks["no key"].Take(t.Context(), call{user: "bob"}, 1)
	require.EqualError(t, err, "layer 1: key: boom")
	require.ErrorIs(t, err, boom)
}

// Allow says what Take says, also to costs that can never pass and to keys of no limit.
func TestAllowAnswersAsTakeDoesToAnyCost(t *testing.T) {
	for _, limit := range append(everyAlgorithm[:len(everyAlgorithm):len(everyAlgorithm)], ratelimit.Unlimited(), ratelimit.Blocked()) {
		for _, known := range []bool{false, true} {
			for _, cost := range []int{-whole(1 << 62), -1, 0, 1, limit.Capacity(), whole(1 << 62)} {
				a, _ := newLimiter(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 1000))
				b, _ := newLimiter(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 1000))
				for _, l := range []*ratelimit.Keyed[string]{a, b} {
					if known {
						require.True(t, l.Allow("ann", 1))
					}
					require.NoError(t, l.SetLimit(limit))
					if known { // so that it is decided under the new limit
						l.Allow("ann", 1)
					}
				}
				d, err := a.Take(t.Context(), "ann", cost)
				require.Equal(t, d.Allowed, b.Allow("ann", cost), "%v: cost %d, known: %v: %v", limit, cost, known, err)
				want, err := a.Peek("ann", 0)
				require.NoError(t, err)
				got, err := b.Peek("ann", 0)
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
		}
	}
}

func BenchmarkRefused(b *testing.B) {
	for _, test := range append(refusals(), refusal{name: "denied", limit: ratelimit.TokenBucket(ratelimit.PerHour(1), 20), cost: 20}) {
		l := ratelimit.Must(ratelimit.New[string](test.limit, nil))
		l.Allow("ann", 1)
		open := ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil))
		b.Run(fmt.Sprintf("by=%s/layers=0/call=Allow", test.name), func(b *testing.B) {
			serial(b, []string{"ann"}, func(key string) { l.Allow(key, test.cost) })
		})
		b.Run(fmt.Sprintf("by=%s/layers=0/call=Take", test.name), func(b *testing.B) {
			serial(b, []string{"ann"}, func(key string) { _, _ = l.Take(b.Context(), key, test.cost) })
		})
		for n := 1; n <= 3; n++ {
			stack, err := ratelimit.All([]ratelimit.Layer[call]{
				ratelimit.By(l, byUser), ratelimit.By(open, byUser), ratelimit.By(open, byUser),
			}[:n]...)
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("by=%s/layers=%d/call=Allow", test.name, n), func(b *testing.B) {
				serial(b, []call{{user: "ann"}}, func(c call) { stack.Allow(c, test.cost) })
			})
			b.Run(fmt.Sprintf("by=%s/layers=%d/call=Take", test.name, n), func(b *testing.B) {
				serial(b, []call{{user: "ann"}}, func(c call) { _, _ = stack.Take(b.Context(), c, test.cost) })
			})
		}
	}
}
