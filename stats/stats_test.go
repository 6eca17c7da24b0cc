package stats_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/stats"
)

func TestWhatBecameOfADecision(t *testing.T) {
	denied := ratelimit.Decision{RetryAfter: time.Second}
	redisTimeout := fmt.Errorf("%w: %w", ratelimit.ErrUnavailable, context.DeadlineExceeded)
	for _, test := range []struct {
		name string
		d    ratelimit.Decision
		err  error
		want stats.Outcome
	}{
		{"allowed", ratelimit.Decision{Allowed: true}, nil, stats.Allowed},
		{"denied", denied, nil, stats.Denied},
		{"a cost above the capacity", ratelimit.Decision{}, fmt.Errorf("x: %w", ratelimit.ErrExceedsLimit), stats.Exceeds},
		{"blocked", ratelimit.Decision{}, fmt.Errorf("x: %w", ratelimit.ErrBlocked), stats.Exceeds},
		{"a store that is down", ratelimit.Decision{}, ratelimit.ErrUnavailable, stats.Unavailable},
		{"a store that does not answer in time", ratelimit.Decision{}, redisTimeout, stats.Unavailable},
		{"the same in a Wait that was denied before", denied, redisTimeout, stats.Unavailable},
		{"the caller's own deadline", ratelimit.Decision{}, context.DeadlineExceeded, stats.Failed},
		{"the caller's own deadline, with the limit known", ratelimit.Decision{Limit: ratelimit.Blocked()}, context.DeadlineExceeded, stats.Failed},
		{"a caller that leaves", ratelimit.Decision{}, context.Canceled, stats.Failed},
		{"a Wait that would be too late", denied, fmt.Errorf("x: %w", context.DeadlineExceeded), stats.Denied},
		{"a Wait whose caller leaves", denied, context.Canceled, stats.Denied},
		{"a Wait whose caller leaves a leaky bucket's queue", ratelimit.Decision{Allowed: true, Delay: time.Second}, context.Canceled, stats.Failed},
		{"a full queue", denied, fmt.Errorf("x: %w", ratelimit.ErrLimited), stats.Denied},
		{"a full table", ratelimit.Decision{}, ratelimit.ErrTableFull, stats.Failed},
		{"a negative cost", ratelimit.Decision{}, ratelimit.ErrNegativeCost, stats.Failed},
		{"a key that fails", ratelimit.Decision{}, errors.New("no key"), stats.Failed},
	} {
		assert.Equal(t, test.want, stats.OutcomeOf(test.d, test.err), test.name)
	}
	assert.Equal(t, "error", stats.Outcome(200).String())
	assert.Equal(t, "exceeds", stats.Exceeds.String())
}

// TestWhatLimitersTell takes the answers from limiters.
func TestWhatLimitersTell(t *testing.T) {
	var got []stats.Outcome
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(2)), &ratelimit.Options[string]{
		OnDecision: func(e ratelimit.Event[string]) { got = append(got, stats.OutcomeOf(e.Decision, e.Err)) },
	}))
	_, _ = l.Take(t.Context(), "k", 2)
	_, _ = l.Take(t.Context(), "k", 1)
	_, _ = l.Take(t.Context(), "k", 3)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.ErrorIs(t, l.Wait(ctx, "k", 1), context.DeadlineExceeded)
	all, err := ratelimit.All(ratelimit.By(l, func(k string) (string, error) { return k, nil }))
	require.NoError(t, err)
	require.ErrorIs(t, all.Wait(ctx, "k", 1), context.DeadlineExceeded)
	cancel()
	require.ErrorIs(t, l.Wait(ctx, "k", 1), context.Canceled)
	assert.Equal(t, []stats.Outcome{stats.Allowed, stats.Denied, stats.Exceeds, stats.Denied, stats.Denied, stats.Failed}, got)
}
