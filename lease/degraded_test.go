package lease_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/lease"
)

// mood is a remote limiter. Its answers are degraded if the field is set.
type mood struct{ degraded bool }

func (m *mood) decision() decision {
	return decision{Allowed: true, Remaining: 1_000_000, ResetAfter: time.Second, Limit: plenty, Degraded: m.degraded}
}

func (m *mood) Allow(string, int) bool { return true }

func (m *mood) Take(context.Context, string, int) (decision, error) { return m.decision(), nil }

func (m *mood) Peek(context.Context, string, int) (decision, error) { return m.decision(), nil }

func (m *mood) Reserve(context.Context, string, int, time.Duration) (*reservation, error) {
	return ratelimit.NewReservation(m.decision(), nil), nil
}

// An answer is degraded if one of its batches is.
func TestAnAnswerThatWasSpentOfTwoBatchesIsDegradedIfEitherIs(t *testing.T) {
	ctx := context.Background()
	calls := map[string]func(l *lease.Limiter[string], cost int) (decision, error){
		"Take": func(l *lease.Limiter[string], cost int) (decision, error) { return l.Take(ctx, "k", cost) },
		"Peek": func(l *lease.Limiter[string], cost int) (decision, error) { return l.Peek(ctx, "k", cost) },
		"Reserve": func(l *lease.Limiter[string], cost int) (decision, error) {
			r, err := l.Reserve(ctx, "k", cost, 0)
			return r.Decision, err
		},
	}
	for name, call := range calls {
		for _, first := range []bool{true, false} {
			// beyond the held units: none, few enough for a fetch, and so many that a direct call is needed
			for _, more := range []int{0, 1, 30} {
				t.Run(fmt.Sprintf("%s, the first is %v, %d more", name, first, more), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						m := &mood{degraded: first}
						l, err := lease.New[string](m, &lease.Options[string]{MaxBatch: 40})
						require.NoError(t, err)
						for l.Stats().Held < 20 {
							require.Equal(t, first, take(t, l, 1).Degraded)
							synctest.Wait()
						}
						m.degraded = !first
						for fetched := false; !fetched; {
							before := l.Stats().Held
							require.Equal(t, first, take(t, l, 1).Degraded, "of the first batch alone")
							synctest.Wait()
							fetched = l.Stats().Held >= before
						}
						held := l.Stats().Held
						m.degraded = false
						d, err := call(l, held+more)
						require.NoError(t, err)
						require.True(t, d.Allowed)
						require.True(t, d.Degraded)
						require.NoError(t, l.Flush(ctx))
					})
				})
			}
		}
	}
}
