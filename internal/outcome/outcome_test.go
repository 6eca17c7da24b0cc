package outcome_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/keyfunc"
)

func TestEachDecisionHasAnOutcome(t *testing.T) {
	denied := ratelimit.Decision{RetryAfter: time.Second}
	redisTimeout := fmt.Errorf("%w: %w", ratelimit.ErrUnavailable, context.DeadlineExceeded)
	for _, test := range []struct {
		name string
		d    ratelimit.Decision
		err  error
		want outcome.Outcome
	}{
		{"allowed", ratelimit.Decision{Allowed: true}, nil, outcome.Allowed},
		{"denied", denied, nil, outcome.Denied},
		{"a cost above the capacity", ratelimit.Decision{}, fmt.Errorf("x: %w", ratelimit.ErrExceedsLimit), outcome.Exceeds},
		{"blocked", ratelimit.Decision{}, fmt.Errorf("x: %w", ratelimit.ErrBlocked), outcome.Exceeds},
		{"a store that is down", ratelimit.Decision{}, ratelimit.ErrUnavailable, outcome.Unavailable},
		{"a store that does not answer in time", ratelimit.Decision{}, redisTimeout, outcome.Unavailable},
		{"the same in a Wait that was denied before", denied, redisTimeout, outcome.Unavailable},
		{"the caller's own deadline", ratelimit.Decision{}, context.DeadlineExceeded, outcome.Failed},
		{"the caller's own deadline, with the limit known", ratelimit.Decision{Limit: ratelimit.Blocked()}, context.DeadlineExceeded, outcome.Failed},
		{"a caller that leaves", ratelimit.Decision{}, context.Canceled, outcome.Failed},
		{"a Wait that would be too late", denied, fmt.Errorf("x: %w", context.DeadlineExceeded), outcome.Denied},
		{"a Wait whose caller leaves", denied, context.Canceled, outcome.Denied},
		{"a Wait whose caller leaves a leaky bucket's queue", ratelimit.Decision{Allowed: true, Delay: time.Second}, context.Canceled, outcome.Failed},
		{"a full queue", denied, fmt.Errorf("x: %w", ratelimit.ErrLimited), outcome.Denied},
		{"a full table", ratelimit.Decision{}, ratelimit.ErrTableFull, outcome.Failed},
		{"a negative cost", ratelimit.Decision{}, ratelimit.ErrNegativeCost, outcome.Failed},
		{"a key function that fails", ratelimit.Decision{}, errors.New("no key"), outcome.Failed},
		{"a request without a key", ratelimit.Decision{}, fmt.Errorf("x: %w", keyfunc.ErrNoKey), outcome.Rejected},
		{"a malformed key", ratelimit.Decision{}, keyfunc.ErrMalformedKey, outcome.Rejected},
		{"an invalid key", ratelimit.Decision{}, ratelimit.ErrInvalidKey, outcome.Rejected},
		{"a key function in the wrong place", ratelimit.Decision{}, fmt.Errorf("%w: %w", keyfunc.ErrMisconfigured, keyfunc.ErrNoKey), outcome.Failed},
	} {
		assert.Equal(t, test.want, outcome.Of(test.d, test.err), test.name)
	}
	assert.Equal(t, "error", outcome.Outcome(200).String())
	assert.Equal(t, "exceeds", outcome.Exceeds.String())
}

// The results come from real limiters.
func TestTheResultsOfLimitersHaveTheseOutcomes(t *testing.T) {
	var got []outcome.Outcome
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(2)), &ratelimit.Options[string]{
		OnDecision: func(e ratelimit.Event[string]) { got = append(got, outcome.Of(e.Decision, e.Err)) },
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
	assert.Equal(t, []outcome.Outcome{outcome.Allowed, outcome.Denied, outcome.Exceeds, outcome.Denied, outcome.Denied, outcome.Failed}, got)
}
